"""The gate of a stage: pass, fail or inconclusive, as a function of the merged evidence and of the clock it is given.

What decides: clauses whose severity does more than log or alert (all, where the contract has no `escalate`). Clauses of
the `runtime` block need traffic and are not asked for offline. A failing clause fails the gate wherever it was seen.

Pass sides multiply over stages on fresh data: a stage without a minimum of its own adds what the stages before it have
gathered, as `prove.measurability` counts, and says so; a stage with a minimum stands on its own evidence. Fail sides
are each stage's own, since a clean past would be a credit for a broken present; for the same reason evidence of
earlier stages helps only a stage whose own evidence leans to the pass side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from kcverify.catalog.model import Family
from kcverify.delivery.evidence import Cell
from kcverify.delivery.state import Carried, key
from kcverify.diagnostics import input_error
from kcverify.elaborate.contract import Clause, Contract, Stage
from kcverify.elaborate.policy import STAGES
from kcverify.elaborate.scope import choose
from kcverify.emit.plan import PlannedClause, plan
from kcverify.runtime.sequential import judge_clean

MILD = ("log", "alert")


@dataclass(frozen=True)
class Question:
    """What the gate is asked. Times in milliseconds; `held` (in the stage), `stepped` (in the step), `calm` (since the
    route last changed) are None where they are not known. `last_step`: whether the next place is another stage.
    `against`: what files that were looked at before in this run, and are not given now, said against the pass side (log
    e-values, 0 at most); None where there were none."""

    stage: str
    requests: int
    cells: Sequence[Cell]
    held: int | None = None
    stepped: int | None = None
    calm: int | None = None
    last_step: bool = True
    route: str = "candidate"
    carried: Carried = field(default_factory=dict)
    decided: Mapping[str, str] = field(default_factory=dict)
    faults: Sequence[str] = ()
    against: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Judged:
    """One cell as the gate sees it: its verdict, whether it decides, evidence of this stage and of all stages."""

    clause: str
    slice: str | None
    severity: str
    decides: bool
    verdict: str
    reason: str
    requests: int
    log_e_fail: float | None
    log_e_pass: float | None
    log_e_pass_all: float | None
    log_threshold: float
    crossed: str = ""

    @property
    def key(self) -> str:
        """Its name in the state."""
        return key(self.clause, self.slice)


@dataclass(frozen=True)
class Decision:
    """The answer: a verdict, why, and every cell. `waiting` are the minimum samples and times that are not met."""

    stage: str
    verdict: str
    reasons: tuple[str, ...]
    waiting: tuple[str, ...]
    cells: tuple[Judged, ...]
    requests: int

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 3 inconclusive."""
        return {"pass": 0, "fail": 1}.get(self.verdict, 3)

    def crossed(self) -> dict[str, str]:
        """Cells whose evidence decided anew: what a store keeps."""
        return {c.key: c.crossed for c in self.cells if c.crossed}

    def carry(self, carried: Carried) -> dict[str, tuple[float | None, int]]:
        """Evidence of the pass side and requests up to the end of this stage."""
        out = dict(carried)
        for cell in self.cells:
            before, count = carried.get(cell.key, (0.0, 0))
            fresh = cell.log_e_pass
            total = before + fresh if before is not None and fresh is not None and math.isfinite(fresh) else None
            out[cell.key] = (total, count + cell.requests)
        return out


def stage_of(contract: Contract, name: str) -> Stage:
    """The stage of this name. Raises InputError: `stage_undeclared`."""
    for stage in contract.stages:
        if stage.name == name:
            return stage
    names = [stage.name for stage in contract.stages]
    known = f"; it has {', '.join(f'`{s}`' for s in names)}" if names else "; it has no block `promote`"
    others = choose(name, STAGES, "stages are")
    hint = choose(name, names, "its stages are") if names else f"declare the stage in a block `promote`; {others}"
    raise input_error("stage_undeclared", hint=hint, contract=contract.name, stage=name, known=known)


def evaluate(contract: Contract, asked: Question) -> Decision:
    """The verdict of a stage. Raises InputError: `stage_undeclared`."""
    stage = stage_of(contract, asked.stage)
    cells = tuple(_cells(contract, stage, asked))
    waiting = (*asked.faults, *_times(stage, asked), *_samples(stage, asked))
    if asked.route != "candidate":
        waiting = (f"traffic is on the route `{asked.route}`, not on the candidate", *waiting)
    failing = [c for c in cells if c.verdict == "fail" and c.decides]
    open_cells = [c for c in cells if c.decides and (c.verdict != "pass" if asked.last_step else _blind(c))]
    if failing:
        verdict, reasons = "fail", tuple(_told(c) for c in failing)
    elif waiting or open_cells:
        verdict, reasons = "inconclusive", (*waiting, *(_told(c) for c in open_cells))
    elif not any(c.decides for c in cells):
        verdict, reasons = "inconclusive", ("no clause decides this stage: nothing was shown",)
    elif asked.last_step:
        verdict, reasons = (
            "pass",
            ("every clause that decides is certified, and the minimum samples and times are met",),
        )
    else:
        verdict, reasons = "pass", ("no clause failed, and the step was held for its time",)
    return Decision(stage.name, verdict, reasons, tuple(waiting), cells, asked.requests)


def _blind(cell: Judged) -> bool:
    """Whether nothing was seen of it: traffic is not raised on time alone."""
    return cell.requests == 0 or cell.verdict == "unobservable"


def _told(cell: Judged) -> str:
    return f"{cell.key}: {cell.verdict}, {cell.reason}"


def _cells(contract: Contract, stage: Stage, asked: Question) -> Iterator[Judged]:
    mild = {a.severity for a in contract.actions if a.action in MILD}
    found = {c.key: c for c in asked.cells}
    for planned in plan(contract).clauses:
        clause = planned.clause
        for name in clause.slices or (None,):
            name_of = key(clause.name, name)
            cell = found.get(name_of)
            enforced = planned.enforced and (cell is None or cell.verdict != "not_enforced")
            missing = cell is None or cell.verdict in ("inconclusive", "unobservable")
            offline = stage.name == "offline" and clause.metric.family is Family.RUNTIME
            unasked = offline and missing and asked.decided.get(name_of) != "fail"
            decides = clause.severity not in mild and enforced and not unasked
            if cell is None or not enforced:
                reason = planned.reason or (cell.reason if cell is not None else _nothing(planned))
                cell = Cell(clause.name, name, "none", "inconclusive" if enforced else "not_enforced", reason)
            cell = _looked_at(clause, cell, asked)
            yield _sticky(_with_past(clause, stage, cell, asked, decides), asked)


def _looked_at(clause: Clause, cell: Cell, asked: Question) -> Cell:
    """The cell with what earlier looks at other files said against it, so that no file can be tried after file.

    Whether a later file repeats an earlier one or is fresh, the true log e-value is at least this one.
    """
    if asked.against is None or cell.log_e_pass is None or cell.verdict not in ("pass", "inconclusive"):
        return cell
    total = cell.log_e_pass + asked.against.get(cell.key, 0.0)
    if cell.verdict == "pass" and total < math.log(1.0 / (1.0 - float(clause.confidence))):
        reason = "not certified: what files that this stage was shown before say against it still counts"
        return replace(cell, verdict="inconclusive", reason=reason, log_e_pass=total)
    return replace(cell, log_e_pass=total)


def _nothing(planned: PlannedClause) -> str:
    """Why there is no evidence of a clause, and where there would be some."""
    if planned.evidence in ("reading", "paired"):
        name = planned.clause.metric.name
        return f"{name} is read from all requests at once, which no store keeps: give a monitor's state with --evidence"
    return "no evidence was given"


def _judged(clause: Clause, cell: Cell, decides: bool) -> Judged:
    bound = math.log(1.0 / (1.0 - float(clause.confidence)))
    return Judged(
        clause.name, cell.slice, clause.severity, decides, cell.verdict, cell.reason, cell.requests, cell.log_e_fail,
        cell.log_e_pass, None, bound,
    )  # fmt: skip


def _with_past(clause: Clause, stage: Stage, cell: Cell, asked: Question, decides: bool) -> Judged:
    """The cell with the evidence of earlier stages where the stage has no minimum of its own."""
    own = _judged(clause, cell, decides)
    past = asked.carried.get(cell.key)
    if past is None or stage.min_requests is not None or cell.verdict not in ("pass", "inconclusive"):
        return own
    before, count = past
    if cell.kind == "maximum" and cell.log_e_pass is None:
        outcome = judge_clean(
            0, cell.requests + count if cell.requests else 0, cell.needed or 1, float(clause.confidence)
        )
        return replace(own, verdict=outcome.verdict, reason=f"{outcome.reason}, over all stages")
    if before is None or cell.log_e_pass is None:
        return own
    total = before + cell.log_e_pass
    own = replace(own, log_e_pass_all=total)
    if cell.requests and cell.log_e_pass >= 0.0 and total >= own.log_threshold:
        reason = "certified by the evidence of this stage and of those before it together"
        return replace(own, verdict="pass", reason=reason)
    reason = (
        "not enough evidence over all stages"
        if cell.log_e_pass >= 0.0
        else "this stage's own evidence leans to neither side"
    )
    return replace(own, verdict="inconclusive", reason=reason)


def _sticky(cell: Judged, asked: Question) -> Judged:
    """A crossing that was recorded in this run stays; what crosses now is marked."""
    before = asked.decided.get(cell.key)
    if before == "fail" and cell.verdict != "fail":
        return replace(
            cell, verdict="fail", reason="it failed earlier in this stage, and stays so until the stage restarts"
        )
    if before == "pass" and cell.verdict == "inconclusive":
        return replace(cell, verdict="pass", reason="it was certified earlier in this stage")
    if cell.verdict in ("pass", "fail") and cell.verdict != before:
        return replace(cell, crossed=cell.verdict)
    return cell


def _samples(stage: Stage, asked: Question) -> Iterator[str]:
    wanted = stage.min_requests
    if wanted is not None and asked.last_step and asked.requests < wanted:
        yield f"{asked.requests:,} of at least {wanted:,} requests were seen"


def _times(stage: Stage, asked: Question) -> Iterator[str]:
    """The minimum times that are not met: of the whole stage, of one step of a canary, since the last trouble."""
    calm = None if asked.held is None or asked.calm is None else min(asked.held, asked.calm)
    for wanted, passed, what in (
        (stage.duration, asked.held, "the stage lasts"),
        (stage.hold, asked.stepped, "the share of traffic is held"),
        (stage.stable, calm, "the stage must be stable for"),
    ):
        if wanted is None or wanted == 0:
            continue
        if passed is None:
            yield f"{what} at least {_time(wanted)}, and how long it has been is not known"
        elif passed < 0:
            yield f"the clock is {_time(Fraction(-passed, 1000))} behind the start of the stage"
        elif passed < wanted * 1000:
            yield f"{what} at least {_time(wanted)}, and {_time(Fraction(passed, 1000))} have passed"


def _time(seconds: Fraction) -> str:
    """Whole units where they are exact: `2 h`, `90 s`."""
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds // size} {name}"
    return f"{float(seconds):.6g} s"
