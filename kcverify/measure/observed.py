"""What `measure` observes beside the logits: its own kernels' calls, and the lines of a file of outcomes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kcverify.elaborate.contract import Contract
from kcverify.elaborate.membership import belongs
from kcverify.measure.data import Request
from kcverify.measure.outcomes import Outcomes, misspelt, strangers
from kcverify.measure.run import Rows
from kcverify.measure.sides import KernelSide, Side
from kcverify.runtime.collect import Call, peak_bytes, reset_peak, timed
from kcverify.runtime.errors import MonitorInputError

_CALLS = ("latency", "throughput", "peak_memory")
_OWN = (*_CALLS, "failure_rate")


class Observer:
    """Feeds a monitor with what the contract asks for and this run can tell.

    Of the candidate's calls: latency (a request lasts as long as the call that scores it), throughput (tokens scored)
    and peak memory; of its logits: failures (a NaN, a +inf, or no token at all). What the file of outcomes carries
    comes from there alone.
    """

    def __init__(
        self,
        monitor: Any,
        contract: Contract,
        outcomes: Sequence[Outcomes] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.monitor, self.contract, self.outcomes, self.clock = monitor, contract, outcomes, clock
        asked = {c.metric.name for c in contract.clauses}
        self.carried = {metric for o in outcomes for metric in o.given}
        self.own = [name for name in _OWN if name in asked and name not in self.carried]
        self.device = torch.device("cpu")
        self.calls: list[Call] = []
        self.start = clock()

    def watch(self, candidate: Side) -> Side:
        """The candidate with its calls timed, where it computes and the contract asks for it."""
        self.start = self.clock()
        if not isinstance(candidate, KernelSide):
            self.own = [name for name in self.own if name not in _CALLS]
            return candidate
        if not set(self.own) & set(_CALLS):
            return candidate
        self.device = candidate.device
        reset_peak(self.device)
        watched = timed(candidate.logits, clock=self.clock, device=candidate.device)
        self.calls = watched.calls
        return replace(candidate, logits=watched)

    def elapsed(self) -> float:
        """Seconds since the run began."""
        return self.clock() - self.start

    def take(self, rows: Rows) -> None:
        """Observe the requests of one batch, which the candidate has just scored in one call."""
        call = self.calls.pop() if self.calls else None
        self.calls.clear()
        count = len(rows.requests)
        failed = broken(rows.candidate) if "failure_rate" in self.own else None
        for index, request in enumerate(rows.requests):
            mine = rows.request_index == index
            if failed is not None:
                self._observe("failure_rate", request, values=[bool(failed[mine.to(failed.device)].any())])
            if call is None:
                continue
            times = [self.elapsed()]
            if "latency" in self.own:
                self._observe("latency", request, values=[call.seconds], times=times)
            if "throughput" in self.own and call.seconds > 0.0:
                seconds = [call.seconds / count]
                self._observe("throughput", request, values=[int(mine.sum())], seconds=seconds, times=times)
            if "peak_memory" in self.own:
                self._observe("peak_memory", request, values=[peak_bytes(self.device)], times=times)

    def finish(self, requests: Sequence[Request]) -> list[str]:
        """Observe the file of outcomes; notes on what the figures are of. Raises InputError: `data_invalid`.

        Where the file is about requests of the data, one of them without a line is observed as not given: it may be the
        one that was never answered, and its metrics must not pass without it.
        """
        known = {r.request_id: r for r in requests}
        told = {o.request_id for o in self.outcomes}
        for request in requests if not told.isdisjoint(known) else ():
            if request.request_id not in told:
                for metric, given in self.outcomes[0].given.items():
                    self._observe(metric, request, **{name: [None] for name in given})
        for o in self.outcomes:
            data = known.get(o.request_id)
            fields = {**(data.fields if data else {}), **o.fields}
            request = Request(o.request_id, (), o.tags | (data.tags if data else frozenset()), fields)
            times = None if o.time is None else [o.time]
            for metric, given in o.given.items():
                try:
                    self._observe(metric, request, times=times, **{name: [value] for name, value in given.items()})
                except MonitorInputError as error:
                    raise o.line.fault(str(error)) from None
        return [*self._notes(), *misspelt(self.outcomes), *strangers(self.outcomes, known)]

    def _observe(self, metric: str, request: Request, **given: Any) -> None:
        self.monitor.observe(metric, request_ids=[request.request_id], slices=self._membership(request), **given)

    def _membership(self, request: Request) -> dict[str, list[bool]]:
        """Slices whose membership the request decides as a whole."""
        answers = {s.name: belongs(s.predicate, request.fields, request.tags) for s in self.contract.slices}
        return {name: [answer] for name, answer in answers.items() if answer is not None}

    def _notes(self) -> list[str]:
        notes: Mapping[str, str] = {
            "latency": "latency is that of the candidate's scoring calls: a request takes as long as its batch",
            "throughput": "throughput counts tokens scored by the candidate, not sampled ones",
            "peak_memory": "peak memory is the resident memory of the whole process, both sides in it"
            if self.device.type == "cpu"
            else "peak memory is what torch held for tensors on the device, both sides in it",
        }
        return [note for name, note in notes.items() if name in self.own]


def broken(logits: Tensor) -> Tensor:
    """Rows `[N, V]` that are no distribution, bool `[N]`."""
    top = logits.amax(-1)
    return ~torch.isfinite(top)
