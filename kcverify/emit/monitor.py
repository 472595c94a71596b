"""Source text of the monitor of one contract: readable, byte-identical from run to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from kcverify.elaborate.contract import Band, Contract
from kcverify.emit.plan import MonitorPlan, PlannedBound, PlannedClause, plan
from kcverify.resources import template_dir

LANGUAGE_VERSION = "1"


def emit_monitor(contract: Contract, *, verdicts: Mapping[str, str], digest: str, version: str) -> str:
    """Text of a module with class `ContractMonitor`, which imports `kcverify.runtime` (and so torch) only.

    `verdicts` maps each guarantee to its verdict word, `digest` is the contract's, `version` kcverify's. Every string
    of the contract enters as an escaped ASCII literal or as a comment without control characters.
    """
    planned = plan(contract)
    environment = Environment(
        loader=FileSystemLoader(template_dir()), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True, autoescape=False,
    )  # fmt: skip
    environment.filters |= {"literal": literal, "comment": comment}
    values = {
        "contract": contract,
        "digest": digest,
        "version": version,
        "language": LANGUAGE_VERSION,
        "verdicts": sorted(verdicts.items()),
        "temperature": _temperature(planned),
        "statistics": planned.statistics,
        "top": _tuple([str(pair) for pair in planned.top]),
        "tv_limit": planned.tv_limit,
        "guarantees": _tuple([f"({literal(name)}, {literal(word)})" for name, word in sorted(verdicts.items())]),
        "clauses": [_fields(c, planned) for c in planned.clauses],
        "readings": [_reading(c) for c in planned.clauses if _of_rows(c) and not _needs_samples(c)],
        "sampled": [_reading(c) for c in planned.clauses if _of_rows(c) and _needs_samples(c)],
        "sampled_column": next(
            (c.reading.statistics[-1] for c in planned.clauses if c.reading and _needs_samples(c)), ""
        ),
    }
    values["imports"] = _imports(values)
    return environment.get_template("monitor.py.j2").render(values)


def literal(text: object) -> str:
    """A double-quoted Python string literal of printable ASCII characters that denotes `text`."""
    return '"' + "".join('\\"' if ch == '"' else ascii(ch)[1:-1] if ch != "'" else ch for ch in str(text)) + '"'


def comment(text: object) -> str:
    """`text` as the inside of a comment: ASCII on one line, everything else escaped."""
    return "".join(ch if " " <= ch <= "~" else ascii(ch)[1:-1] for ch in str(text))


def _of_rows(planned: PlannedClause) -> bool:
    """Whether the clause reads columns of rows."""
    return planned.reading is not None and planned.enforced and not planned.reading.observed


def _needs_samples(planned: PlannedClause) -> bool:
    return _of_rows(planned) and planned.reading is not None and bool(planned.reading.inputs)


def _temperature(planned: MonitorPlan) -> str:
    if planned.temperature is None:
        return "None"
    low, high = planned.temperature
    return f"({low!r}, {_double(high)})"


def _double(value: float) -> str:
    """Literal of a double; `repr` writes infinity as a name that Python does not know."""
    return 'float("inf")' if value == float("inf") else repr(value)


def _pair(value: Fraction | None) -> str:
    return "None" if value is None else f"({value.numerator}, {value.denominator})"


def _tuple(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _strings(names: tuple[str, ...]) -> str:
    return _tuple([literal(name) for name in names])


def _bound(bound: PlannedBound) -> str:
    if bound.value is not None:
        return _double(bound.value)
    return f"Affine({_pair(bound.constant)}, {_pair(bound.slope)})"


def _band(band: Band) -> str:
    interval = band.interval
    return f"Band({_pair(interval.low)}, {_pair(interval.high)}, open_high={interval.open_high})"


def _fields(planned: PlannedClause, whole: MonitorPlan) -> list[tuple[str, str]]:
    """Keyword arguments of the clause's row, as text, defaults left out."""
    clause, reading = planned.clause, planned.reading
    fields = [
        ("name", literal(clause.name)),
        ("family", literal(clause.metric.family.value)),
        ("metric", literal(reading.label if reading is not None and reading.label else clause.metric.name)),
        ("statistic", literal(clause.statistic.value)),
        ("text", literal(clause.text)),
        ("severity", literal(clause.severity)),
        ("evidence", literal(planned.evidence)),
        ("confidence", repr(float(clause.confidence))),
    ]
    if clause.slices:
        fields.append(("slices", _strings(clause.slices)))
    for side, bound in (("lower", planned.lower), ("upper", planned.upper)):
        if bound is not None:
            fields.append((side, _bound(bound)))
    if planned.limit is not None:
        fields.append(("limit", repr(planned.limit)))
    if clause.exception:
        fields.append(("exception", repr(float(clause.exception))))
    if clause.unit != "request":
        fields.append(("unit", literal(clause.unit)))
    if planned.minimum_requests is not None:
        fields.append(("minimum_requests", repr(planned.minimum_requests)))
    if clause.band is not None and planned.enforced:
        fields.append(("band", _band(clause.band)))
    if clause.window is not None and planned.enforced:
        fields.append(("window", repr(float(clause.window))))
    if planned.reason:
        fields.append(("reason", literal(planned.reason)))
    if reading is not None:
        fields += _reading_fields(planned)
    return fields


def _reading_fields(planned: PlannedClause) -> list[tuple[str, str]]:
    reading = planned.reading
    assert reading is not None
    fields = []
    if reading.source != "rows":
        fields.append(("source", literal(reading.source)))
    if reading.inputs:
        fields.append(("inputs", _strings(reading.inputs)))
    if planned.evidence == "mean" and not reading.bounded:
        fields.append(("bounded", "False"))
    if planned.bins:
        fields.append(("bins", repr(planned.bins)))
    if planned.own_bins:
        fields.append(("own_bins", "True"))
    if planned.width != 1.0:
        fields.append(("width", repr(planned.width)))
    return fields


def _reading(planned: PlannedClause) -> dict[str, str]:
    """Name, comment and expression of one clause in `clause_values`."""
    clause, reading = planned.clause, planned.reading
    assert reading is not None
    return {"name": literal(clause.name), "text": comment(clause.text or clause.name), "call": _call(planned)}


def _call(planned: PlannedClause) -> str:
    reading = planned.reading
    assert reading is not None
    if reading.source == "calibration":
        return f"calibrated({reading.expression})"
    if reading.source != "rows":
        return f"signed({reading.expression})"
    if reading.indicator:
        return f"{'at_most' if planned.lower is None else 'at_least'}({reading.expression}, {reading.indicator})"
    name = literal(planned.clause.name)
    upper = _limit(planned.upper, f"self.upper[{name}]", 'float("inf")')
    lower = _limit(planned.lower, f"self.lower[{name}]", '-float("inf")')
    token = f', "{reading.token}"' if reading.token else ""
    if len(reading.statistics) == 2:
        return f"within({reading.expression}, {lower}, {upper}{token})"
    if planned.lower is None:
        return f"at_most({reading.expression}, {upper}{token})"
    if planned.upper is None:
        return f"at_least({reading.expression}, {lower}{token})"
    return f"within({reading.expression}, {reading.expression}, {lower}, {upper}{token})"


def _limit(bound: PlannedBound | None, computed: str, absent: str) -> str:
    if bound is None:
        return absent
    return computed if bound.value is None else _double(bound.value)


def _imports(values: Mapping[str, object]) -> list[str]:
    """Names of `kcverify.runtime` that the text uses, sorted."""
    text = repr((values["clauses"], values["readings"], values["sampled"]))
    optional = ("Affine", "Band", "at_least", "at_most", "calibrated", "k3", "signed", "within")
    return sorted(["ClauseSpec", "Monitor", "RowPlan", "Rows", "Values", *(n for n in optional if f"{n}(" in text)])
