"""Reads a file of outcomes: JSON lines, one request each, with what was measured beside the logits."""

from __future__ import annotations

import difflib
import inspect
import re
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import FrameType
from typing import Any

from kcverify.diagnostics import input_error
from kcverify.measure.data import Line, json_object, numbered, read_bytes, request_name, request_tags
from kcverify.measure.functions import import_function
from kcverify.runtime.collect import parser

Parse = Callable[[str], bool]
MOST_SECONDS = 5.0
"""Of processor time that a pattern may take for one response."""


@dataclass(frozen=True)
class Field:
    """One field of a line: the metrics it feeds and as which argument of `observe`, its kind, its unit as a factor.

    Kinds: `number`, `truth`, and `text`, which is parsed into a truth value.
    """

    name: str
    feeds: tuple[tuple[str, str], ...]
    kind: str
    factor: Fraction = Fraction(1)


_MS = Fraction(1, 1000)
FIELDS: Mapping[str, Field] = {
    f.name: f
    for f in (
        Field("latency_ms", (("latency", "values"),), "number", _MS),
        Field("time_to_first_token_ms", (("time_to_first_token", "values"),), "number", _MS),
        Field("failed", (("failure_rate", "values"),), "truth"),
        Field("parsed_candidate", (("parse_rate", "values"), ("parse_rate_delta", "candidate")), "truth"),
        Field("parsed_reference", (("parse_rate_delta", "reference"),), "truth"),
        Field("response_candidate", (("parse_rate", "values"), ("parse_rate_delta", "candidate")), "text"),
        Field("response_reference", (("parse_rate_delta", "reference"),), "text"),
        Field("correct_candidate", (("accuracy_delta", "candidate"),), "truth"),
        Field("correct_reference", (("accuracy_delta", "reference"),), "truth"),
        Field("reward_candidate", (("reward_delta", "candidate"),), "number"),
        Field("reward_reference", (("reward_delta", "reference"),), "number"),
        Field("sampled_tokens", (("throughput", "values"),), "number"),
        Field("elapsed_ms", (("throughput", "seconds"),), "number", _MS),
        Field("peak_memory_bytes", (("peak_memory", "values"),), "number"),
        Field("kv_cache_bytes", (("kv_cache", "values"),), "number"),
    )
}
"""Fields by name. `time_s` is the time of the request, in seconds from any fixed start."""

_KNOWN = ("request_id", "tags", "time_s", *FIELDS)


@dataclass(frozen=True)
class Outcomes:
    """One request's line: what is given of each metric, by argument of `observe`; tags and trace fields; its time.

    Every metric that some line of the file has a field of is in `given` of every line, with None for what is missing.
    """

    line: Line
    request_id: str
    given: Mapping[str, Mapping[str, float | None]]
    tags: frozenset[str]
    fields: Mapping[str, str | int | float | bool]
    time: float | None


def open_parser(text: str | None) -> Parse | None:
    """`json`, `regex:PATTERN` or `module:function` as a check of one text. Raises InputError: `option_invalid`,
    `side_failed` for a module that cannot be imported."""
    if text is None:
        return None
    kind, _, rest = text.partition(":")
    if kind == "regex":
        if not rest:
            raise input_error("option_invalid", option="--parse", reason="the pattern is empty: no response is")
        try:
            return _limited(parser(re.compile(rest, re.DOTALL)), rest)
        except re.error as error:
            raise input_error("option_invalid", option="--parse", reason=f"not a pattern: {error}") from None
    if text == "json":
        return parser("json")
    if not rest:
        reason = f"`{text}` is none of json, regex:PATTERN, module:function"
        raise input_error("option_invalid", option="--parse", reason=reason)
    return parser(_of_one_text(import_function(text), text))


def _of_one_text(function: Callable[..., object], name: str) -> Callable[..., object]:
    """The function, which rejects by raising: one that cannot be called with a text would reject every response."""
    try:
        inspect.signature(function).bind("")
    except TypeError as error:
        raise input_error(
            "option_invalid", option="--parse", reason=f"`{name}` does not take one text: {error}"
        ) from None
    except ValueError:  # a built-in function that does not tell its arguments
        pass
    return function


def _limited(parse: Parse, pattern: str) -> Parse:
    """The same check, ended where one text takes longer than `MOST_SECONDS`: a few characters that a model wrote can keep
    an unlucky pattern busy for years. Only the main thread can be interrupted; elsewhere there is no limit."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        return parse
    reason = f"`{pattern[:100]}` takes more than {MOST_SECONDS:g} s of one response"
    slow = input_error("option_invalid", option="--parse", reason=reason, hint="a pattern without nested repetitions")

    def end(number: int, frame: FrameType | None) -> None:
        raise slow

    def check(text: str) -> bool:
        before = signal.signal(signal.SIGVTALRM, end)
        signal.setitimer(signal.ITIMER_VIRTUAL, MOST_SECONDS)
        try:
            return parse(text)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
            signal.signal(signal.SIGVTALRM, before)

    return check


def load_outcomes(path: Path, parse: Parse | None = None) -> list[Outcomes]:
    """The lines of an observations file, each an object with `request_id` and any of `FIELDS`, `tags`, `time_s` and
    trace fields. `parse` judges the fields `response_*`.

    Raises InputError: `file_unreadable`, `file_empty`, `data_invalid` with the line.
    """
    rows: list[tuple[Line, dict[str, Any]]] = []
    first: dict[str, int] = {}
    for number, raw in numbered(read_bytes(str(path))):
        line = Line(str(path), number)
        value = json_object(line, raw)
        name = value["request_id"] = request_name(line, value.get("request_id"))
        if name in first:
            raise line.fault(f"request_id {name!r} is that of line {first[name]} too")
        first[name] = number
        rows.append((line, value))
    present = {key for _, value in rows for key in value if key in FIELDS}
    return [_outcomes(line, value, present, parse) for line, value in rows]


def _outcomes(line: Line, value: Mapping[str, Any], present: set[str], parse: Parse | None) -> Outcomes:
    given: dict[str, dict[str, float | None]] = {}
    for name in sorted(present):
        field = FIELDS[name]
        entry = _entry(line, field, value[name], parse) if value.get(name) is not None else None
        for metric, argument in field.feeds:
            arguments = given.setdefault(metric, {})
            if entry is not None and arguments.get(argument) is not None:
                raise line.fault(f"`{name}` and another field both say what `{metric}` is")
            if entry is not None or argument not in arguments:
                arguments[argument] = entry
    for metric, arguments in given.items():
        for argument in _arguments(metric):
            arguments.setdefault(argument, None)
    trace = {k: v for k, v in value.items() if k not in _KNOWN and isinstance(v, str | int | float | bool)}
    when = None if value.get("time_s") is None else _number(line, "time_s", value["time_s"])
    return Outcomes(line, value["request_id"], given, request_tags(line, value.get("tags")), trace, when)


def _arguments(metric: str) -> tuple[str, ...]:
    """Arguments of `observe` that any field feeds for the metric."""
    return tuple(sorted({a for f in FIELDS.values() for m, a in f.feeds if m == metric}))


def _entry(line: Line, field: Field, value: object, parse: Parse | None) -> float:
    if field.kind == "number":
        return float(Fraction(_number(line, field.name, value)) * field.factor)
    if field.kind == "truth":
        if not isinstance(value, bool):
            raise line.fault(f"`{field.name}` is {value!r}, neither true nor false")
        return float(value)
    if not isinstance(value, str):
        raise line.fault(f"`{field.name}` is a {type(value).__name__}, no text")
    if parse is None:
        raise line.fault(f"`{field.name}` needs --parse to say what a response of the right format is")
    return float(parse(value))


def _number(line: Line, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise line.fault(f"`{name}` is {value!r}, no number")
    try:
        number = float(value)
    except OverflowError:
        number = float("inf")
    if number in (float("inf"), float("-inf")):
        raise line.fault(f"`{name}` is beyond the largest number")
    if number < 0.0 and not name.startswith(("reward", "time_s")):
        raise line.fault(f"`{name}` is {value!r}, below zero")
    if name == "elapsed_ms" and number == 0.0:
        raise line.fault("`elapsed_ms` is 0: nothing takes no time")
    return number


def strangers(outcomes: Sequence[Outcomes], known: Mapping[str, object]) -> list[str]:
    """Notes on a file that has no metric, and on requests that the measured ones (`known`, by id) do not have."""
    if outcomes and not outcomes[0].given and all(o.time is None for o in outcomes):
        return [f"the observations have no field of a metric: none of {', '.join(FIELDS)}"]
    other = [o.request_id for o in outcomes if o.request_id not in known]
    if not other:
        return []
    return [
        f"{len(other)} of {len(outcomes)} observed requests are none of the measured ones, as {other[0]}: their values "
        "count, with the slices of their own lines"
    ]


def misspelt(outcomes: Sequence[Outcomes]) -> list[str]:
    """Notes on fields that are not read and look like ones that are."""
    names = sorted({name for o in outcomes for name in o.fields})
    close = {name: difflib.get_close_matches(name, _KNOWN, 1, 0.8) for name in names}
    return [f"field `{name}` is not read: did you mean `{found[0]}`" for name, found in close.items() if found]
