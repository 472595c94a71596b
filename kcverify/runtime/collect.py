"""Collects what `Monitor.observe` takes: times around a user's callables, parsed formats, pairs, memory.

The clock is an argument everywhere, so that nothing here depends on the wall clock.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar

import torch

try:
    import resource
except ImportError:  # not on this platform
    resource = None  # type: ignore[assignment]

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
Clock = Callable[[], float]


@dataclass(frozen=True)
class Call:
    """One call: seconds from its start to its end and to its first item (None: not an iterator, or none came); items;
    the error that ended it."""

    seconds: float
    first: float | None = None
    items: int = 0
    error: BaseException | None = None

    @property
    def failed(self) -> bool:
        """Whether it ended in an error."""
        return self.error is not None


@dataclass
class Timed(Generic[P, T]):
    """A callable with the time of every call; made by `timed`.

    Calling it gives what the callable gives. `stream` iterates over what it gives, and times the first item. An error
    is recorded and raised on. `calls` holds the calls since the last `take`.
    """

    function: Callable[P, T]
    clock: Clock = time.perf_counter
    synchronize: Callable[[], object] | None = None
    calls: list[Call] = field(default_factory=list)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call it; the call ends when the device has finished, where `synchronize` waits for one."""
        start = self.clock()
        try:
            value = self.function(*args, **kwargs)
            self._wait()
        except BaseException as error:
            self.calls.append(Call(self.clock() - start, error=error))
            raise
        self.calls.append(Call(self.clock() - start))
        return value

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Iterator[Any]:
        """Call it and yield the items of what it gives.

        Time that the consumer takes between items counts, as it does for a client that reads a stream. The call is
        recorded when the items end, fail, or are abandoned.
        """
        start, first, items = self.clock(), None, 0
        error: BaseException | None = None
        try:
            value: Any = self.function(*args, **kwargs)
            for item in value:
                self._wait()
                items += 1
                first = self.clock() - start if first is None else first
                yield item
        except GeneratorExit:
            raise
        except BaseException as caught:
            error = caught
            raise
        finally:
            self.calls.append(Call(self.clock() - start, first, items, error))

    def take(self) -> list[Call]:
        """The calls since the last `take`."""
        taken, self.calls = self.calls, []
        return taken

    def _wait(self) -> None:
        if self.synchronize is not None:
            self.synchronize()


def timed(
    function: Callable[P, T],
    *,
    clock: Clock = time.perf_counter,
    device: torch.device | str = "cpu",
) -> Timed[P, T]:
    """`function` with the latency, time to first item and failure of every call.

    On a CUDA device each call waits for the kernels that it has started, since they would otherwise go uncounted.
    """
    place = torch.device(device)
    wait = (lambda: torch.cuda.synchronize(place)) if place.type == "cuda" else None
    return Timed(function, clock, wait)


def parser(format: str | re.Pattern[str] | Callable[[str], object]) -> Callable[[str], bool]:
    """Whether a text is of a format: `"json"` (RFC 8259: one value, no NaN, no key twice), a pattern that must match the
    whole text, or a callable. A callable accepts by returning anything but False or None, and rejects by an error.

    Raises ValueError for another name.
    """
    if isinstance(format, re.Pattern):
        return lambda text: format.fullmatch(text) is not None
    if format == "json":
        return lambda text: _accepts(_json, text)
    if callable(format):
        return lambda text: _accepts(format, text)
    raise ValueError(f"the format is `json`, a compiled pattern or a callable, not {format!r}")


def _accepts(check: Callable[[str], object], text: str) -> bool:
    try:
        verdict = check(text)
    except Exception:  # whatever a user's parser raises is its way to reject
        return False
    return verdict is not False and verdict is not None


def _json(text: str) -> bool:
    json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique)
    return True


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)


@dataclass
class Pairs(Generic[K]):
    """Scores of two sides that come in any order, paired by request.

    `add` takes one side's score; `take` gives complete pairs as keywords of `observe`. What has come from one side only
    stays, and is in `rest` with None for the other.
    """

    reference: dict[K, float] = field(default_factory=dict)
    candidate: dict[K, float] = field(default_factory=dict)

    def add(self, side: str, request: K, score: float) -> None:
        """Keep a score of `side` (`reference` or `candidate`). Raises ValueError for a side's second score of a request."""
        kept = {"reference": self.reference, "candidate": self.candidate}.get(side)
        if kept is None:
            raise ValueError(f"the side is `reference` or `candidate`, not {side!r}")
        if request in kept:
            raise ValueError(f"the {side} has a score of request {request!r} already")
        kept[request] = score

    def take(self) -> dict[str, list[Any]]:
        """Remove the complete pairs and return them."""
        return self._columns([r for r in self.reference if r in self.candidate])

    def rest(self) -> dict[str, list[Any]]:
        """Remove and return everything, with None where a side is missing."""
        return self._columns([*self.reference, *(r for r in self.candidate if r not in self.reference)])

    def _columns(self, requests: Iterable[K]) -> dict[str, list[Any]]:
        chosen = list(requests)
        return {
            "request_ids": chosen,
            "reference": [self.reference.pop(r, None) for r in chosen],
            "candidate": [self.candidate.pop(r, None) for r in chosen],
        }


def peak_bytes(device: torch.device | str = "cpu") -> int | None:
    """Largest memory in use so far: on CUDA what torch's allocator held for tensors on that device, on the CPU the
    resident memory of the whole process (both sides of a pair in one process share it). None where nobody can tell."""
    place = torch.device(device)
    if place.type == "cuda":
        return int(torch.cuda.max_memory_allocated(place))
    if place.type != "cpu" or resource is None:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


def reset_peak(device: torch.device | str = "cpu") -> bool:
    """Start a new peak; False where the device keeps one for the whole process, as the CPU does."""
    place = torch.device(device)
    if place.type != "cuda":
        return False
    torch.cuda.reset_peak_memory_stats(place)
    return True


def cache_bytes(cache: object) -> int:
    """Bytes of all tensors in a nest of tuples, lists, mappings and objects with attributes (`past_key_values`).

    Storage that several tensors share counts once, whole: a view of a preallocated cache holds all of it.
    """
    storages: dict[tuple[str, int], int] = {}
    seen: set[int] = set()
    waiting: list[object] = [cache]
    while waiting:
        item = waiting.pop()
        if isinstance(item, torch.Tensor):
            storage = item.untyped_storage()
            storages[str(item.device), storage.data_ptr()] = storage.nbytes()
        elif (
            not isinstance(item, str | bytes | int | float | torch.dtype | torch.device | type) and id(item) not in seen
        ):
            seen.add(id(item))
            waiting += _parts(item)
    return sum(storages.values())


def _parts(item: object) -> list[object]:
    if isinstance(item, Mapping):
        return list(item.values())
    if isinstance(item, list | tuple):
        return list(item)
    return list(getattr(item, "__dict__", {}).values())
