"""States that add up: counts, exact sums, extremes, places. Merged in any order and any grouping they are the same."""

from __future__ import annotations

import base64
import json
import math
from array import array
from collections import Counter
from collections.abc import Mapping
from typing import Any, Self, TypeVar

import numpy as np

K = TypeVar("K", bound=type[Any])

_LOWEST = 1074
"""Every finite double is a whole multiple of 2^-1074."""


class Exact:
    """A sum of doubles without rounding, as a whole multiple of 2^-1074; NaN and infinities are counted apart."""

    def __init__(self) -> None:
        self.units = 0
        self.odd: Counter[str] = Counter()

    def add(self, value: float) -> None:
        """Add one double."""
        if not math.isfinite(value):
            self.odd[str(float(value))] += 1
            return
        top, bottom = float(value).as_integer_ratio()
        self.units += top << (_LOWEST - bottom.bit_length() + 1)

    @property
    def value(self) -> float:
        """The sum, rounded once."""
        if self.odd["nan"] or (self.odd["inf"] and self.odd["-inf"]):
            return math.nan
        if self.odd["inf"] or self.odd["-inf"]:
            return math.inf if self.odd["inf"] else -math.inf
        try:
            return self.units / (1 << _LOWEST)
        except OverflowError:
            return math.inf if self.units > 0 else -math.inf

    def merge(self, other: Exact) -> None:
        """Add another sum."""
        self.units += other.units
        self.odd += other.odd


class Largest:
    """The largest of values; minus infinity of none. NaN is never the largest."""

    def __init__(self, value: float = -math.inf) -> None:
        self.value = value

    def add(self, value: float) -> None:
        """See one more."""
        if value > self.value:
            self.value = float(value)

    def merge(self, other: Largest) -> None:
        """See what another saw."""
        self.add(other.value)


class Smallest:
    """The smallest of values; plus infinity of none. NaN is never the smallest."""

    def __init__(self, value: float = math.inf) -> None:
        self.value = value

    def add(self, value: float) -> None:
        """See one more."""
        if value < self.value:
            self.value = float(value)

    def merge(self, other: Smallest) -> None:
        """See what another saw."""
        self.add(other.value)


class Always:
    """Whether something held every time."""

    def __init__(self) -> None:
        self.held = True

    def add(self, held: bool) -> None:
        """See one more time."""
        self.held = self.held and bool(held)

    def merge(self, other: Always) -> None:
        """See what another saw."""
        self.add(other.held)


class First:
    """A count with its first place, where first is by request and position, so that order changes nothing."""

    def __init__(self) -> None:
        self.count = 0
        self.place: dict[str, Any] | None = None

    def add(self, count: int, place: dict[str, Any]) -> None:
        """Count more, the first of them at `place`."""
        if count <= 0:
            return
        self.count += count
        if self.place is None or _key(place) < _key(self.place):
            self.place = place

    def merge(self, other: First) -> None:
        """Count what another counted."""
        if other.place is not None:
            self.add(other.count, other.place)

    @property
    def where(self) -> str:
        """The place in words."""
        if self.place is None:
            return "nowhere"
        return f"request {self.place['request']}, position {self.place['position']}"


def _key(place: Mapping[str, Any]) -> tuple[str, int]:
    return str(place["request"]), int(place["position"])


class Additive:
    """A state made of parts that add up. Attributes that begin with `_` are passing, and are no part of it."""

    def parts(self) -> dict[str, Any]:
        """What is merged and recorded, by name."""
        return {name: part for name, part in vars(self).items() if not name.startswith("_")}

    def merge(self, other: Self) -> None:
        """Add another state of the same kind. Raises TypeError for parts that do not add up."""
        theirs = other.parts()
        for name, part in self.parts().items():
            setattr(self, name, merged(part, theirs[name]))

    def dump(self) -> dict[str, Any]:
        """The parts as JSON data."""
        return {name: encoded(part) for name, part in self.parts().items()}

    def load(self, told: Mapping[str, Any]) -> None:
        """Take the parts that `dump` wrote. Raises KeyError, TypeError, ValueError where it did not."""
        for name, held in self.parts().items():
            setattr(self, name, _loaded(held, told[name]))


def _loaded(held: Any, told: Any) -> Any:
    """What was told, taken by parts that have more than they write."""
    if isinstance(held, Additive):
        held.load(told["parts"])
        return held
    if isinstance(held, dict) and any(isinstance(value, Additive) for value in held.values()):
        by_key = {decoded(key): value for key, value in told["dict"]}
        return {key: _loaded(value, by_key[key]) for key, value in held.items()}
    return decoded(told)


def merged(a: Any, b: Any) -> Any:
    """The sum of two parts. Raises TypeError for a kind that does not say how it adds up."""
    if hasattr(a, "merge"):
        a.merge(b)
        return a
    if isinstance(a, bool) or type(a) is not type(b):
        raise TypeError(f"{type(a).__name__} and {type(b).__name__} do not add up")
    if isinstance(a, int | Counter):
        return a + b
    if isinstance(a, set):
        return a | b
    if isinstance(a, list | array):
        a.extend(b)
        return a
    if isinstance(a, dict):
        for key, value in b.items():
            a[key] = merged(a[key], value) if key in a else value
        return a
    if isinstance(a, tuple) and len(a) == len(b):
        return tuple(merged(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.ndarray) and a.dtype.kind in "iu" and a.shape == b.shape:
        return a + b
    raise TypeError(f"{type(a).__name__} does not add up")


KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Exact, Largest, Smallest, Always, First)}
"""Parts that are objects, by the name under which they are written. `part` adds a row."""


def part(kind: K) -> K:
    """Let a class of parts be written; as a decorator."""
    KINDS[kind.__name__] = kind
    return kind


def encoded(value: Any) -> Any:
    """A part as JSON data that `decoded` gives back, every number to its last bit."""
    if value is None or isinstance(value, bool | str | int | float):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, array):
        return {"array": value.typecode, "data": base64.b64encode(value.tobytes()).decode()}
    if isinstance(value, np.ndarray):
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"numbers": value.dtype.str, "shape": list(value.shape), "data": data}
    if isinstance(value, Counter):
        return {"counter": [[encoded(k), n] for k, n in value.items()]}
    if isinstance(value, dict):
        return {"dict": [[encoded(k), encoded(v)] for k, v in value.items()]}
    if isinstance(value, set | frozenset):
        return {"set": [encoded(v) for v in sorted(value)]}
    if isinstance(value, tuple):
        return {"tuple": [encoded(v) for v in value]}
    if isinstance(value, list):
        return [encoded(v) for v in value]
    if type(value).__name__ in KINDS:
        own = value.parts() if isinstance(value, Additive) else vars(value)
        return {"kind": type(value).__name__, "parts": {k: encoded(v) for k, v in own.items()}}
    raise TypeError(f"{type(value).__name__} cannot be written")


def decoded(told: Any) -> Any:
    """What `encoded` was given. Raises KeyError, TypeError, ValueError for anything else."""
    if isinstance(told, list):
        return [decoded(v) for v in told]
    if not isinstance(told, dict):
        return told
    if "array" in told:
        out = array(told["array"])
        out.frombytes(base64.b64decode(told["data"], validate=True))
        return out
    if "numbers" in told:
        data = base64.b64decode(told["data"], validate=True)
        return np.frombuffer(data, dtype=np.dtype(told["numbers"])).reshape(told["shape"]).copy()
    if "counter" in told:
        return Counter({decoded(k): n for k, n in told["counter"]})
    if "dict" in told:
        return {decoded(k): decoded(v) for k, v in told["dict"]}
    if "set" in told:
        return {decoded(v) for v in told["set"]}
    if "tuple" in told:
        return tuple(decoded(v) for v in told["tuple"])
    kind = KINDS[told["kind"]]
    whole: Any = object.__new__(kind)
    vars(whole).update({name: decoded(v) for name, v in told["parts"].items()})
    return whole


def packed(state: Mapping[str, Any]) -> bytes:
    """JSON data as bytes."""
    return json.dumps(state, separators=(",", ":")).encode()


def unpacked(state: bytes) -> dict[str, Any]:
    """What `packed` was given. Raises ValueError."""
    found: dict[str, Any] = json.loads(state)
    return found
