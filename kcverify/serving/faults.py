"""Faults that the server can have: a table, what each does to a request, and which are in force."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kcverify.diagnostics import InputError, input_error
from kcverify.measure.kernels import BY_NAME


@dataclass(frozen=True)
class Behaviour:
    """How one request is answered; the defaults are a server without fault."""

    kernel: str | None = None
    noise: float = 0.0
    tells_weights: bool = False
    nan: bool = False
    temperature_factor: float = 1.0
    logit_factor: float = 1.0
    delay: float = 0.0
    hang: bool = False
    crash_after: int | None = None
    cut: str | None = None
    error: int | None = None
    clock: int = 0
    garbage: bool = False


@dataclass(frozen=True)
class Kind:
    """A row: name, what it means, how the server does it, the value's meaning and its default (None: it has no value).

    `read` gives the value of a text or number, or raises ValueError; `change` is what it does to a request. A row that
    is not `by_request` changes the engine, and so every request.
    """

    name: str
    meaning: str
    how: str
    value: str
    default: Any
    read: Callable[[Any], Any]
    change: Callable[[Behaviour, Any], Behaviour]
    by_request: bool = True


def _number(low: float, high: float, whole: bool = False) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        try:
            found = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
        except (ValueError, OverflowError):
            found = math.nan
        if not low <= found <= high or (whole and found != int(found)):
            raise ValueError(f"{'a whole number' if whole else 'a number'} from {low:g} to {high:g}")
        return int(found) if whole else found

    return read


def _one_of(*names: str) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, str) or value not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return value

    return read


def _none(value: Any) -> None:
    if value is not None:
        raise ValueError("no value")


KINDS: tuple[Kind, ...] = (
    Kind(
        "kernel", "another kernel computes, and the answers still name the old one", "the engine packs the weights anew",
        "name of the kernel", "int4", _one_of(*BY_NAME), lambda b, v: replace(b, kernel=v), by_request=False,
    ),
    Kind(
        "stale_weights", "the weights are not those whose version is reported", "noise on every matrix, the same each time",
        "noise in standard deviations", 0.05, _number(0, 10), lambda b, v: replace(b, noise=v), by_request=False,
    ),
    Kind(
        "other_weights", "other weights, reported as such", "as stale_weights, with a weight_version of their own",
        "noise in standard deviations", 0.05, _number(0, 10),
        lambda b, v: replace(b, noise=v, tells_weights=True), by_request=False,
    ),
    Kind(
        "nan_logits", "every logit is NaN: token 0, log-probabilities null", "rows are overwritten before the sampler",
        "", None, _none, lambda b, v: replace(b, nan=True),
    ),
    Kind(
        "wrong_temperature", "the sampler works at the request's temperature times the value; raw log-probabilities are right",
        "the sampler's temperature", "factor", 2.0, _number(1e-3, 1e3), lambda b, v: replace(b, temperature_factor=v),
    ),
    Kind(
        "scaled_logits", "every logit is multiplied: sampler and log-probabilities are wrong", "before the sampler",
        "factor", 0.5, _number(-1e3, 1e3), lambda b, v: replace(b, logit_factor=v),
    ),
    Kind("slow", "each token takes longer", "the answer waits", "milliseconds a token", 50.0, _number(0, 60_000),
         lambda b, v: replace(b, delay=v / 1000)),
    Kind("hang", "the request is accepted and never answered", "the answer waits for the client to leave", "", None, _none,
         lambda b, v: replace(b, hang=True)),
    Kind("crash", "the server dies in the middle of an answer", "os._exit without a farewell", "tokens before it", 1,
         _number(0, 4096, whole=True), lambda b, v: replace(b, crash_after=v)),
    Kind(
        "truncated", "the answer ends too early", "`chunk` breaks the body off; `done` ends a stream well, without [DONE]",
        "chunk or done", "chunk", _one_of("chunk", "done"), lambda b, v: replace(b, cut=v),
    ),
    Kind("error_500", "an error answer", "OpenAI's error JSON", "status", 500, _number(400, 599, whole=True),
         lambda b, v: replace(b, error=v)),
    Kind("clock_step", "the server's clock jumps: `created` is off", "added to the clock", "seconds", -3600,
         _number(-1_700_000_000, 1_000_000_000, whole=True), lambda b, v: replace(b, clock=v)),
    Kind("garbage_json", "the answer is no JSON", "the text of the answer is cut and spoilt; its status stays 200", "", None, _none,
         lambda b, v: replace(b, garbage=True)),
)  # fmt: skip

BY_KIND: Mapping[str, Kind] = {row.name: row for row in KINDS}


@dataclass(frozen=True)
class Fault:
    """One fault in force: its row, its value, the share of requests that it strikes."""

    kind: Kind
    value: Any
    share: float = 1.0

    def data(self) -> dict[str, Any]:
        """The fault as JSON."""
        return {"name": self.kind.name, "value": self.value, "share": self.share}


def fault(name: Any, value: Any = None, share: Any = None) -> Fault:
    """A fault of the table. Raises InputError: `option_invalid`."""
    kind = BY_KIND.get(name) if isinstance(name, str) else None
    if kind is None:
        raise _invalid(f"there is no fault {name!r:.60}", f"faults are {', '.join(BY_KIND)}")
    try:
        found = kind.default if value is None else kind.read(value)
    except ValueError as error:
        raise _invalid(f"{name} takes {error}", f"its value is {kind.value or 'left out'}") from None
    try:
        part = 1.0 if share is None else _number(0, 1)(share)
    except ValueError as error:
        raise _invalid(f"the share of {name} is {error}", f"{name}@0.03") from None
    if part != 1.0 and not kind.by_request:
        raise _invalid(f"{name} strikes all requests or none", "leave the share out")
    return Fault(kind, found, part)


def read_fault(text: str) -> Fault:
    """The fault of `name[=value][@share]`. Raises InputError: `option_invalid`."""
    body, at, share = text.partition("@")
    name, equals, value = body.partition("=")
    return fault(name, value if equals else None, share if at else None)


def read_faults(value: Any) -> list[Fault]:
    """Faults of a JSON object `{"name", "value", "share"}`, of a list of them; none of `{}`. Raises InputError."""
    if value in ({}, []):
        return []
    out = []
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, Mapping) or not set(item) <= {"name", "value", "share"}:
            raise _invalid("it is no object of name, value and share", '{"name": "slow", "value": 20}')
        out.append(fault(item.get("name"), item.get("value"), item.get("share")))
    return out


class Faults:
    """What is in force, and the behaviour of each request; which requests a share strikes is the same in every run."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.current = tuple(faults)
        self._chance = random.Random(0)

    def whole(self) -> Behaviour:
        """What holds for every request: the engine's faults."""
        b = Behaviour()
        for f in self.current:
            if not f.kind.by_request:
                b = f.kind.change(b, f.value)
        return b

    def behaviour(self) -> Behaviour:
        """The behaviour of the next request."""
        b = Behaviour()
        for f in self.current:
            if f.share >= 1.0 or self._chance.random() < f.share:
                b = f.kind.change(b, f.value)
        return b


def _invalid(reason: str, hint: str) -> InputError:
    return input_error("option_invalid", option="fault", reason=reason, hint=hint)
