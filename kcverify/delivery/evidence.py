"""Evidence of a stage from files and stores, as cells: a clause on a slice with its verdict and both log e-values.

A file is a result of `measure` or a monitor's report, as JSON. Several of them add up where they are of fresh data: log
e-values add, counts of clauses without exception add, readings of all requests do not.

A pass needs the evidence of all files together. A failure does not: what one file alone shows is not made good by the
others, and stays. So each file has a chance of alpha to fail a good kernel, n files together n times that at most (and the sum of
all once more): the error of the side that holds a candidate back. Who wants it to be alpha gives states of monitors, which
are merged before anything is judged.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kcverify.delivery import windows
from kcverify.delivery.records import Record, stated, tested, tested_limit
from kcverify.delivery.state import key
from kcverify.diagnostics import InputError, input_error
from kcverify.elaborate.contract import Clause, Contract
from kcverify.emit.plan import PlannedClause, plan
from kcverify.provenance.enforce import provenance_of
from kcverify.provenance.reading import strict
from kcverify.runtime.many import Judged, judge_slices
from kcverify.runtime.sequential import Outcome, judge_clean

VERDICTS = ("pass", "fail", "inconclusive", "unobservable", "not_enforced")
_ADDABLE_READINGS = ("throughput", "peak_memory", "kv_cache")
"""Readings for which every part within the limit means that the whole is."""
_SMALLEST_P = 1e-300
_MOST = 1 << 48
"""Requests that one file may state; sums of many stay exact as JSON."""
LARGEST = 1e15
"""Size of a log e-value that one file may state."""
RUN, OF = "run ", " of "
"""What stands before the mark of a run, and between the digest of what a report says and that of its data."""
_MARK = re.compile(r"(?:[0-9a-f]{32})?")
_DIGEST = re.compile(r"(?:sha256:[0-9a-f]{64})?")
_SHOWN = 80
_NEVER = "evidence of this kind cannot be merged: measure the data in one run, or give states of monitors"


@dataclass(frozen=True)
class Cell:
    """One clause on one slice (None: all requests). `needed`: clean requests until pass, where that is known."""

    clause: str
    slice: str | None
    kind: str
    verdict: str
    reason: str
    requests: int = 0
    log_e_fail: float | None = None
    log_e_pass: float | None = None
    needed: int | None = None

    @property
    def key(self) -> str:
        """Its name in the state."""
        return key(self.clause, self.slice)


@dataclass(frozen=True)
class Evidence:
    """Everything that one source says. `files` are paths with the SHA-256 of each, none for a store; `contents` name what
    they say, the same for a copy that is laid out otherwise (see `looks`); `provenance` is what a result of `measure` says
    of its sides and its trace (see `provenance.enforce`), `data` the digest of what it was measured on."""

    path: str
    files: tuple[tuple[str, str], ...]
    requests: int
    cells: tuple[Cell, ...]
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    provenance: Mapping[str, Any] | None = None
    contents: tuple[str, ...] = ()
    data: str = ""


def read_json(path: str, content: bytes, contract: Contract, digest: str) -> Evidence:
    """A result of `measure --format json` or a monitor's report. Raises InputError: `evidence_invalid`."""
    try:
        found = strict(content.decode(json.detect_encoding(content)))
    except ValueError as error:
        raise _invalid(path, f"it is no JSON, and no state of a monitor ({_cut(str(error))})") from None
    report = found.get("measured", found) if isinstance(found, dict) else None
    if not isinstance(report, dict) or not isinstance(report.get("clauses"), list):
        raise _invalid(path, "it is neither a result of `kcverify measure` nor a monitor's report")
    faults = [] if found.get("complete", True) is True else [f"the run of {path} was not complete"]
    read = of_report(((path, hashlib.sha256(content).hexdigest()),), report, contract, digest, faults)
    told = provenance_of(path, found)
    said = json.dumps([report, told], sort_keys=True, default=lambda side: side.data()).encode()
    run, data = _origin(path, found)
    return replace(read, provenance=told, contents=contents_of(hashlib.sha256(said).hexdigest(), run, data), data=data)


def _origin(path: str, found: Mapping[str, Any]) -> tuple[str, str]:
    """The mark of the run and the digest of its data; empty where a report does not say. Raises `evidence_invalid`."""
    run, about = found.get("run", ""), found.get("data")
    data = about.get("digest", "") if isinstance(about, dict) else ""
    if not (isinstance(run, str) and _MARK.fullmatch(run) and isinstance(data, str) and _DIGEST.fullmatch(data)):
        raise _invalid(path, "`run` or the `digest` of its `data` is not what `kcverify measure` writes")
    return run, data


def contents_of(said: str, run: str, data: str) -> tuple[str, ...]:
    """Names of what a report says: its digest alone; with the mark of its run, the mark and the digest of its data too."""
    return (said,) if not run else (f"{RUN}{run}", f"{said}{OF}{data}")


def of_report(
    files: tuple[tuple[str, str], ...],
    report: Mapping[str, Any],
    contract: Contract,
    digest: str,
    faults: Sequence[str] = (),
) -> Evidence:
    """A monitor's report as evidence; it must be of this very contract. Raises InputError: `evidence_invalid`."""
    path = files[0][0]
    if report.get("digest") != digest:
        told = f"it is about the contract {_cut(str(report.get('digest')))}, and this one is {digest}"
        raise _invalid(path, told, "measure again with this contract, or give the contract that it was measured with")
    one_look = report.get("looks") == "one look"
    if not one_look and report.get("looks") != "any number of looks":
        raise _invalid(path, f"`looks` is {_short(report.get('looks'))}")
    known = {(c.name, s) for c in contract.clauses for s in (c.slices or (None,))}
    cells = []
    try:
        for row in report["clauses"]:
            cells.append(_cell(row, one_look))
        requests = _count(report["requests"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _invalid(path, f"a clause cannot be read ({type(error).__name__}: {error})") from None
    named = [(c.clause, c.slice) for c in cells]
    if len(set(named)) != len(named) or not set(named) <= known:
        raise _invalid(path, "its clauses are not those of the contract, each once")
    notes = (f"{path} was looked at once: its p-values enter as e-values 1/(2 sqrt p)",) if one_look else ()
    return Evidence(path, files, requests, tuple(cells), tuple(faults), notes)


def _invalid(path: str, reason: str, hint: str = "") -> InputError:
    return input_error("evidence_invalid", hint=hint, path=path, reason=reason)


def _cell(row: Mapping[str, Any], one_look: bool) -> Cell:
    evidence, verdict, slice = row["evidence"], row["verdict"], row["slice"]
    if verdict not in VERDICTS or not isinstance(slice, str | None) or not isinstance(row["name"], str):
        raise ValueError(f"{_short(row['name'])} on {_short(slice)} has the verdict {_short(verdict)}")
    needed = evidence["requests_needed"]
    logs = [_calibrated(evidence[f"p_{s}"]) if one_look else _number(evidence[f"log_e_{s}"]) for s in ("fail", "pass")]
    return Cell(
        row["name"], slice, _text(evidence["kind"]), verdict, _text(row["reason"]), _count(evidence["requests"] or 0),
        logs[0], logs[1], None if needed is None else _count(needed),
    )  # fmt: skip


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise ValueError(f"{_short(value)} is no count")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{_short(value)} is no text")
    return value


def _short(value: object) -> str:
    """A value as a message shows it, however long it is."""
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _number(value: object) -> float | None:
    if value is None:
        return None
    if value in ("inf", "-inf"):
        return float(str(value))
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        raise ValueError(f"{_short(value)} is no log e-value")
    return float(value)


def _calibrated(value: object) -> float | None:
    """Log of the e-value `1/(2 sqrt p)` of a p-value (Vovk and Wang 2021, equation 1 at one half)."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        raise ValueError(f"{_short(value)} is no p-value")
    return -math.log(2.0) - 0.5 * math.log(max(float(value), _SMALLEST_P))


def of_records(path: str, contract: Contract, requests: int, records: Mapping[str, Record]) -> Evidence:
    """What a store counted in one run. Raises InputError: `evidence_invalid` for a cell or a limit of another contract."""
    records, parts = windows.gathered(records)
    cells: list[Cell] = []
    known: set[str] = set()
    for planned in plan(contract).clauses:
        clause = planned.clause
        slices = clause.slices or (None,)
        known |= {key(clause.name, s) for s in slices} if planned.enforced else set()
        seen = [(s, records[key(clause.name, s)]) for s in slices if key(clause.name, s) in records]
        if not planned.enforced or not seen:
            continue
        for _, record in seen:
            _check_limit(path, planned, record, contract)
        outcomes = [_tested_alone(planned, record, parts.get(key(clause.name, s), {})) for s, record in seen]
        judged = _judged(clause, outcomes)
        for (s, record), one in zip(seen, judged, strict=True):
            outcome = stated(planned, record, s, one.outcome)
            cells.append(
                Cell(
                    clause.name, s, planned.evidence, outcome.verdict, outcome.reason, record.wealth.requests,
                    one.log_e_fail, one.log_e_pass, planned.minimum_requests,
                )
            )  # fmt: skip
    foreign = sorted(set(records) - known)
    if foreign:
        raise _invalid(path, f"it has evidence of `{foreign[0]}`, which the contract does not enforce")
    return Evidence(path, (), requests, tuple(cells))


_UNSEEN = Outcome("inconclusive", "no requests were measured", 0.0)


def _judged(clause: Clause, outcomes: Sequence[Outcome]) -> list[Judged]:
    """Outcomes of the slices that were seen, judged over all that the clause names: a rule over those seen so far would
    give the first one the whole of the level, the second one half of it, and more in all than there is."""
    unseen = [_UNSEEN] * (len(clause.slices or (None,)) - len(outcomes))
    return judge_slices([*outcomes, *unseen], float(clause.confidence), clause.severity)[: len(outcomes)]


def _tested_alone(planned: PlannedClause, record: Record, parts: windows.Parts) -> Outcome:
    """The test of one slice as if it were alone."""
    return tested(planned, record) if planned.clause.window is None else windows.certified(planned, record, parts)


def _check_limit(path: str, planned: PlannedClause, record: Record, contract: Contract) -> None:
    """The wealths must be those of the contract's limit; one that depends on the temperature lies between its ends."""
    limit = tested_limit(planned, None)
    interval = contract.assumptions.temperature
    if limit is not None:
        fits = record.limit == limit
    elif interval is None or interval.low is None or interval.high is None:
        fits = False
    else:
        ends = [tested_limit(planned, float(t)) for t in (interval.low, interval.high)]
        fits = min(e for e in ends if e is not None) <= record.limit <= max(e for e in ends if e is not None)
    if not fits:
        raise _invalid(path, f"evidence of `{planned.clause.name}` was gathered for another limit, {record.limit!r}")


def merged(sources: Sequence[Evidence], contract: Contract) -> tuple[Cell, ...]:
    """Cells of all sources together. A failure of any of them stays one."""
    out: list[Cell] = []
    for clause in contract.clauses:
        groups = [
            [c for e in sources for c in e.cells if (c.clause, c.slice) == (clause.name, s)]
            for s in clause.slices or (None,)
        ]
        present = [group for group in groups if group]
        if all(len(group) == 1 for group in present):
            out += [group[0] for group in present]
        else:
            out += _added(clause, present)
    return tuple(out)


def _added(clause: Clause, groups: Sequence[Sequence[Cell]]) -> list[Cell]:
    """Cells of one clause, each from several sources; e-values over slices are decided together."""
    sums = [_sum(clause, group) for group in groups]
    outcomes = [Outcome(c.verdict, c.reason, c.log_e_fail, c.log_e_pass) for c in sums]
    judged = _judged(clause, outcomes)
    return [
        replace(c, verdict=j.outcome.verdict, reason=j.outcome.reason) if _tested(group) else c
        for c, j, group in zip(sums, judged, groups, strict=True)
    ]


def _tested(group: Iterable[Cell]) -> bool:
    return all(c.verdict in ("pass", "inconclusive") for c in group)


def _sum(clause: Clause, group: Sequence[Cell]) -> Cell:
    first = next((c for v in ("fail", "unobservable", "not_enforced") for c in group if c.verdict == v), None)
    requests = sum(c.requests for c in group)
    fail, certify = _total([c.log_e_fail for c in group]), _total([c.log_e_pass for c in group])
    whole = replace(group[0], requests=requests, log_e_fail=fail, log_e_pass=certify)
    if first is not None:
        return replace(whole, verdict=first.verdict, reason=first.reason)
    if len(group) == 1:
        return whole
    confidence = float(clause.confidence)
    if fail is None and certify is None:
        if whole.kind == "maximum":
            outcome = judge_clean(0, requests, max(c.needed or 1 for c in group), confidence)
            return replace(whole, verdict=outcome.verdict, reason=outcome.reason)
        addable = clause.metric.name in _ADDABLE_READINGS or whole.kind not in ("reading", "paired")
        if addable and all(c.verdict == "pass" for c in group):
            return whole
        return replace(whole, verdict="inconclusive", reason=_NEVER)
    bound = math.log(1.0 / (1.0 - confidence))
    if fail is not None and fail >= bound:
        return replace(
            whole, verdict="fail", reason="the evidence of all sources against the limit reached its threshold"
        )
    if certify is not None and certify >= bound:
        return replace(whole, verdict="pass", reason="certified by the evidence of all sources together")
    return replace(whole, verdict="inconclusive", reason="not enough evidence for either side")


def _total(values: Sequence[float | None]) -> float | None:
    """Sum of log e-values; None where a source has none."""
    known = [v for v in values if v is not None]
    return sum(known) if known and len(known) == len(values) else None
