"""What `measure` records of a run beside its numbers: provenance, enforced before the first one, and its worst witnesses."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kcverify.elaborate.contract import Contract
from kcverify.measure.data import Request
from kcverify.measure.run import Rows
from kcverify.measure.sides import Side
from kcverify.provenance import enforce
from kcverify.provenance.events import Call, Event, Recorded, event_of
from kcverify.provenance.fingerprint import Fingerprint
from kcverify.provenance.sides import of_side


@dataclass(frozen=True)
class Setting:
    """What the caller knows: declared fingerprints by side, seed, the model's file, the device, whether witnesses are
    kept, and the time of the run in milliseconds since 1970."""

    declared: Mapping[str, Fingerprint] = field(default_factory=dict)
    seed: int = 0
    gguf: Path | None = None
    device: str = "cpu"
    witnesses: bool = False
    now: int = 0


class Watch:
    """Looks at one run of `measure`; its state is what `finish` needs."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.events: list[Event] = []
        self._calls: dict[str, tuple[Call, tuple[Request, ...]]] = {}
        self._digests: dict[str, tuple[str, str]] = {}
        self._rows = 0
        self._rng: dict[str, bytes] = {}

    @property
    def needs_rows(self) -> bool:
        """Witnesses are found among rows."""
        return self.setting.witnesses

    def begin(
        self, contract: Contract, sides: tuple[Side, Side], requests: Sequence[Request], temperature: float, batch: int | None
    ) -> None:  # fmt: skip
        """Record what runs, and void it where `observability` is not met.

        Raises InputError: `trace_missing`, `fingerprint_missing`, `identity_mismatch`.
        """
        self.contract, self.sides, self.temperature = contract, sides, temperature
        size = "chosen by size" if batch is None else f"{batch} requests"
        self.found: dict[str, Fingerprint] = {}
        faults = enforce.trace_faults(contract, requests)
        for role, side in zip(enforce.SIDES, sides, strict=True):
            own = of_side(side, sampler(temperature), size, self.setting.gguf)
            declared = self.setting.declared.get(role)
            whole = own if declared is None else own.overlaid(declared)
            faults += enforce.fingerprint_faults(contract, role, side.name, whole, declared, f"--fingerprint-{role}")
            self.found[role] = whole
        enforce.void(faults)
        self.trace = enforce.traced(requests)
        self._rng = generators(self.setting.device)

    def take(self, rows: Rows) -> None:
        """Remember what a replay of each request of the batch would need, where witnesses are kept.

        Must come last of what looks at a batch: the generators' states are then those before the next call.
        """
        if not self.setting.witnesses:
            return
        inputs = [request.token_ids for request in rows.requests]
        for index, request in enumerate(rows.requests):
            mine = rows.request_index == index
            call = Call(
                inputs, index, self._rows, self._rng, self.setting.seed, self.setting.device, repr(self.temperature)
            )
            self._calls[request.request_id] = call, rows.requests
            self._digests[request.request_id] = (
                digest_of_rows(rows.reference, mine),
                digest_of_rows(rows.candidate, mine),
            )
        self._rows += len(rows.request_ids)
        now = generators(self.setting.device)
        self._rng = self._rng if now == self._rng else now

    def finish(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """The provenance of the result; with witnesses, their events are then in `events`."""
        self.events = list(self._events(result["measured"]["clauses"]))
        told = {role: found.data() for role, found in self.found.items()}
        return {"provenance": {"trace": self.trace, **told}}

    def _events(self, clauses: Sequence[Mapping[str, Any]]) -> Iterator[Event]:
        """An event for the worst value of each clause and slice that has one among the measured rows."""
        names = [side.name for side in self.sides]
        logits = [side.fingerprint.get("logits", "") for side in self.sides]
        for clause in clauses:
            worst = clause.get("max")
            known = self._calls.get(str(worst["request"])) if worst else None
            if worst is None or known is None or not isinstance(worst.get("row"), int):
                continue
            call, requests = known
            one = requests[call.place]
            request = {"request_id": one.request_id, "tags": sorted(one.tags), "fields": dict(one.fields)}
            recorded = Recorded(
                clause["name"], clause["slice"], worst["value"], worst.get("row"), worst.get("token"),
                self._digests[one.request_id],
            )  # fmt: skip
            yield event_of(self.contract, call, self.found, names, logits, request, recorded, self.setting.now)


def sampler(temperature: float) -> str:
    """How a measured run turns logits into probabilities."""
    return f"full softmax at temperature {temperature!r}"


def generators(device: str) -> dict[str, bytes]:
    """States of torch's random generators: that of the CPU, and that of a CUDA device where one runs."""
    out = {"cpu": torch.get_rng_state().numpy().tobytes()}
    if torch.device(device).type == "cuda":
        out["cuda"] = torch.cuda.get_rng_state(torch.device(device)).numpy().tobytes()
    return out


def restore(states: Mapping[str, bytes], device: str) -> None:
    """Put the generators into recorded states. Raises RuntimeError or TypeError for a state of another size."""
    for name, state in states.items():
        content = torch.frombuffer(bytearray(state), dtype=torch.uint8)
        if name == "cpu":
            torch.set_rng_state(content)
        else:
            torch.cuda.set_rng_state(content, torch.device(device))


def digest_of_rows(logits: Tensor, mine: Tensor) -> str:
    """SHA-256 of the bytes of the chosen rows of logits `[N, V]`, with their element type and shape before them."""
    rows = logits[mine.to(logits.device)].detach().cpu().contiguous()
    head = f"{str(rows.dtype).removeprefix('torch.')} {list(rows.shape)}\n".encode()
    content = rows.view(torch.uint8).numpy().tobytes() if rows.numel() else b""
    return "sha256:" + hashlib.sha256(head + content).hexdigest()
