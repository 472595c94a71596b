"""`allocate`: from a contract and a model to the cheapest assignment of formats that was measured to keep the contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch

from kcverify import __version__
from kcverify.allocation.budget import Budget, budgets
from kcverify.allocation.costs import COSTS, Cost, table_of
from kcverify.allocation.measured import Judge, Measured, counts, data, finite, judge, shares, side_of
from kcverify.allocation.search import Attempt, Problem, Search, worst_share
from kcverify.allocation.sensitivity import Figures, Sensitivity, figures, remembered, sensitivities
from kcverify.allocation.solve import Assignment, closest, total
from kcverify.diagnostics import input_error
from kcverify.measure.data import Request, load_data
from kcverify.measure.kernels import BY_NAME
from kcverify.measure.layers import LEVELS, Unit, units_of
from kcverify.measure.session import load_monitor
from kcverify.measure.sides import Basis, KernelSide, Models, model_named, open_side
from kcverify.prove.check import Checked
from kcverify.resources import data_path
from kcverify.runtime.report import number

FORMATS = ("float32", "bfloat16", "int8_bf16", "fp8", "int4_bf16")
"""Formats that are tried if none are named; each has a fast kernel on CPU and CUDA."""


@dataclass
class AllocateOptions:
    """How `allocate` runs. `data` None is the shipped text; `tell` is told of each attempt, `progress` of each swap."""

    model: str = "demo"
    reference: str = "float32"
    formats: tuple[str, ...] = FORMATS
    cost: str = "bytes"
    level: str = "matrix"
    clause: str | None = None
    data: str | None = None
    window: int = 16
    calibration: int = 64
    limit: int = 1088
    points: int = 6
    temperature: Fraction | None = None
    device: str = "cpu"
    gguf: Path | None = None
    tell: Callable[[str], None] = field(default=lambda text: None, repr=False)
    progress: Callable[[int, int], None] | None = field(default=None, repr=False)


def check_options(options: AllocateOptions) -> None:
    """Raise InputError (`option_invalid`) for what no run can have."""
    for option, value, least in (
        ("--window", options.window, 1), ("--calibration", options.calibration, 1), ("--limit", options.limit, 2), ("--points", options.points, 0),
    ):  # fmt: skip
        if value < least:
            raise input_error(
                "option_invalid", option=option, reason=f"{value} is below {least}", hint=f"give {least} or more"
            )
    for option, word, known in (
        *model_named(options.model), ("--cost", options.cost, tuple(COSTS)), ("--level", options.level, tuple(v.name for v in LEVELS)),
        *(("--formats", form, tuple(BY_NAME)) for form in options.formats), ("--reference", options.reference, tuple(BY_NAME)),
    ):  # fmt: skip
        if word not in known:
            raise input_error("option_invalid", option=option, reason=f"no `{word}`", hint=f"one of {', '.join(known)}")
    names = [BY_NAME[form].name for form in options.formats]
    if len(set(names)) != len(names) or not names:
        raise input_error(
            "option_invalid",
            option="--formats",
            reason="each format is named once, one at least",
            hint="--formats bf16,int8,int4",
        )


def opened(options: AllocateOptions) -> tuple[KernelSide, dict[str, Basis]]:
    """The reference, and what each format multiplies with. Raises InputError as `open_side`."""
    models: Models = {}

    def side(form: str) -> KernelSide:
        found = open_side(f"{options.model}:{form}", device=options.device, gguf=options.gguf, models=models)
        assert isinstance(found, KernelSide)
        return found

    reference = side(options.reference)
    bases: dict[str, Basis] = {}
    for form in options.formats:
        basis = side(form).basis
        assert basis is not None
        bases[basis.kernel.name] = basis
    return reference, bases


def split(options: AllocateOptions, reference: KernelSide) -> tuple[list[Request], list[Request]]:
    """Calibration requests and the held-out ones after them. Raises InputError: `allocation_data` and those of the data."""
    text = options.data or str(data_path("heldout.txt"))
    found = load_data(
        text, window=options.window, tokenizer=reference.tokenizer, vocabulary=reference.vocabulary, limit=options.limit
    )
    if len(found) <= options.calibration:
        reason = f"{options.calibration} are for calibration, and none is left to verify on"
        raise input_error("allocation_data", count=len(found), reason=reason)
    return found[: options.calibration], found[options.calibration :]


@dataclass(frozen=True)
class Run:
    """Everything that was measured and solved, in the order in which it came about."""

    budgets: Sequence[Budget]
    temperature: float
    cost: Cost
    units: Sequence[Unit]
    costs: Mapping[tuple[str, str], float]
    sensitivities: Sequence[Sensitivity]
    attempts: Sequence[Attempt]
    stopped: str
    uniforms: Sequence[Measured]
    chosen: Measured | None
    rival: Measured | None
    equal: Measured | None
    pareto: Sequence[tuple[str, Assignment, float, Figures]]
    looks: int
    unusable: int


def allocate(checked: Checked, source: str, options: AllocateOptions) -> dict[str, Any]:
    """The answer of `kcverify allocate` as JSON data; `source` is the text of the contract's monitor.

    Raises InputError: `allocation_no_budget`, `allocation_data`, `option_invalid`, and those of the sides and the data.
    """
    check_options(options)
    heat = None if options.temperature is None else float(options.temperature)
    temperature = load_monitor(source, heat).temperature
    found = budgets(checked.contract, Fraction(repr(float(temperature))), options.clause)
    reference, bases = opened(options)
    known, held = split(options, reference)
    reference = remembered(reference)
    how = Judge(checked.contract, source, reference, held, found, temperature)
    with torch.no_grad():
        run = _run(options, how, bases, known)
    assert reference.basis is not None
    answer = _answer(checked, options, run, known, held)
    return {**answer, "notes": [*reference.basis.model.notes, *answer["notes"]]}


def _run(options: AllocateOptions, how: Judge, bases: Mapping[str, Basis], known: Sequence[Request]) -> Run:
    model = next(iter(bases.values())).model
    units = units_of(next(v for v in LEVELS if v.name == options.level), model)
    cost = COSTS[options.cost]
    costs = table_of(cost, bases, units)
    seen = sensitivities(how.reference, bases, units, known, how.budgets, how.temperature, options.progress)
    drifts = tuple(
        {(s.unit.name, s.format): b.adds(s.figures.values[i]) for s in seen} for i, b in enumerate(how.budgets)
    )
    limits = (1.0,) * len(how.budgets)
    problem = Problem(tuple(u.name for u in units), tuple(bases), costs, drifts, limits)

    def side(name: str, assignment: Assignment) -> KernelSide:
        return side_of(name, how.reference, bases, units, assignment)

    def look(name: str, assignment: Assignment) -> Measured:
        return judge(how, side(name, assignment), name, assignment, total(costs, assignment))

    search = Search(
        problem,
        lambda assignment: figures(how.reference, side("mixed", assignment), known, how.budgets, how.temperature),
        lambda assignment, _: look("allocated", assignment),
        worst_share(how.budgets),
        options.tell,
    )
    uniforms = [look(form, dict.fromkeys(problem.units, form)) for form in bases]
    rival = _best(uniforms)
    if rival is not None and rival.rank == 0:
        search.low = problem.predicted(rival.assignment) or None
    stopped = search.run()
    mine = [a.held_out for a in search.attempts if a.held_out is not None]
    chosen = _best([*uniforms, *mine])
    equal = None
    if rival is not None:
        nearest = closest(costs, rival.cost, drifts, limits, problem.units, problem.formats)
        equal = None if nearest is None else look("equal cost", nearest.assignment)
    if equal is not None and chosen is not None and (equal.rank, equal.cost) < (chosen.rank, chosen.cost):
        chosen = equal
    points = _pareto(problem, options.points)
    pareto = [
        (name, a, total(costs, a), figures(how.reference, side(name, a), how.requests, how.budgets, how.temperature))
        for name, a in points
    ]
    looks = search.looks + len(uniforms) + (equal is not None)
    unusable = sum(not finite(s.figures) for s in seen)
    return Run(
        how.budgets, how.temperature, cost, units, costs, seen, search.attempts, stopped, uniforms, chosen, rival, equal, pareto, looks, unusable
    )  # fmt: skip


def _best(found: Sequence[Measured]) -> Measured | None:
    """The cheapest of those that pass, else of those within the limits; the first of equals. None where none is."""
    kept = [one for one in found if one.rank < 2]
    return min(kept, key=lambda one: (one.rank, one.cost), default=None)


def _pareto(problem: Problem, count: int) -> list[tuple[str, Assignment]]:
    """Assignments of least drift at `count` costs between the cheapest and the dearest, by adding up."""
    least = sum(min(problem.cost[u, f] for f in problem.formats) for u in problem.units)
    most = sum(max(problem.cost[u, f] for f in problem.formats) for u in problem.units)
    out: list[tuple[str, Assignment]] = []
    for i in range(count):
        at = least * (most / least) ** ((i + 0.5) / count)
        found = closest(problem.cost, at, problem.drifts, problem.limits, problem.units, problem.formats)
        if found is not None and all(found.assignment != a for _, a in out):
            out.append((f"at most {at:.4g}", found.assignment))
    return out


def _gain(run: Run) -> dict[str, Any]:
    """The chosen assignment against the best uniform format, both measured on the held-out prompts."""
    chosen, rival, equal = run.chosen, run.rival, run.equal
    empty = {
        "best_uniform": None,
        "saving": None,
        "tie": False,
        "equal_cost": None,
        "equal_cost_shares": None,
        "sentence": "no uniform format keeps the contract",
    }
    if rival is None or chosen is None:
        return empty
    saving = 1 - chosen.cost / rival.cost if rival.cost else 0.0
    tie = chosen.cost == rival.cost
    unit = run.cost.unit
    if tie:
        sentence = f"a tie: no assignment was found that keeps the contract for less than {rival.name} alone ({rival.cost:,.0f} {unit})"
    elif rival.rank > chosen.rank:
        sentence = f"no uniform format passes; {rival.name}, at {rival.cost:,.0f} {unit}, is {rival.verdict}"
    else:
        sentence = f"{100 * saving:.1f} % below the best uniform format that does as well, {rival.name} ({chosen.cost:,.0f} against {rival.cost:,.0f} {unit})"
    both = None
    if equal is not None:
        pairs = (max(shares(one.figures, run.budgets)) for one in (equal, rival))
        both = {name: number(value) for name, value in zip(("allocated", "uniform"), pairs, strict=True)}
    return {
        "best_uniform": rival.name, "saving": saving, "tie": tie, "equal_cost": None if equal is None else data(equal, run.budgets),
        "equal_cost_shares": both, "sentence": sentence,
    }  # fmt: skip


def _answer(
    checked: Checked, options: AllocateOptions, run: Run, known: Sequence[Request], held: Sequence[Request]
) -> dict[str, Any]:
    chosen = run.chosen
    verdict, code = ("fail", 1) if chosen is None else ("pass", 0) if chosen.rank == 0 else ("inconclusive", 3)
    contract = checked.contract
    spent = None if chosen is None else shares(chosen.figures, run.budgets)
    return {
        "kcverify": __version__,
        "exit_code": code,
        "verdict": verdict,
        "contract": {"name": contract.name, "version": contract.version, "digest": checked.digest},
        "model": options.model,
        "reference": options.reference,
        "level": options.level,
        "temperature": run.temperature,
        "cost": {"name": run.cost.name, "unit": run.cost.unit, "about": run.cost.about, "repeatable": run.cost.repeatable},
        "data": {
            "source": options.data or "the shipped text", "window": options.window, "calibration": len(known), "held_out": len(held),
        },
        "budgets": [_budget(b) for b in run.budgets],
        "binding": None if spent is None else run.budgets[spent.index(max(spent))].clause,
        "units": _units(run),
        "attempts": [_attempt(a, run) for a in run.attempts],
        "stopped": run.stopped,
        "uniforms": [data(u, run.budgets) for u in run.uniforms],
        "chosen": None if chosen is None else data(chosen, run.budgets),
        "gain": _gain(run),
        "pareto": _points(run),
        "notes": _notes(run),
    }  # fmt: skip


def _budget(b: Budget) -> dict[str, Any]:
    return {
        "clause": b.clause, "text": b.text, "figure": b.figure_name, "limit": b.limit, "unit": b.unit,
        "adds": "the figures add up" if b.power == 1 else "their squares add up",
    }  # fmt: skip


def _units(run: Run) -> list[dict[str, Any]]:
    rows = []
    for unit in run.units:
        mine = [s for s in run.sensitivities if s.unit is unit]
        rows.append(
            {
                "name": unit.name, "kind": unit.kind, "matrices": len(unit.matrices),
                "format": None if run.chosen is None else run.chosen.assignment[unit.name],
                "sensitivity": [
                    {"format": s.format, "cost": run.costs[unit.name, s.format], "figures": [number(v) for v in s.figures.values]} for s in mine
                ],
            }
        )  # fmt: skip
    return rows


def _attempt(a: Attempt, run: Run) -> dict[str, Any]:
    held = a.held_out
    return {
        "scale": a.scale, "cost": a.cost, "formats": counts(a.assignment), "predicted": number(a.predicted), "calibration": number(a.measured),
        "held_out": None if held is None else data(held, run.budgets), "said": a.said,
    }  # fmt: skip


def _points(run: Run) -> list[dict[str, Any]]:
    """All measured points by cost; `efficient` where no other one is as cheap and nearer to the reference."""
    rows = [("pareto", name, a, cost, found) for name, a, cost, found in run.pareto]
    rows += [("uniform", u.name, u.assignment, u.cost, u.figures) for u in run.uniforms]
    seen = [("allocated", a.held_out) for a in run.attempts if a.held_out is not None] + (
        [("equal cost", run.equal)] if run.equal else []
    )
    rows += [
        ("chosen" if run.chosen is not None and m.assignment == run.chosen.assignment else kind, m.name, m.assignment, m.cost, m.figures)
        for kind, m in seen if m is not None
    ]  # fmt: skip
    rows = [row for i, row in enumerate(rows) if all((row[0], row[2]) != (kind, a) for kind, _, a, _, _ in rows[:i])]
    share = [max(shares(found, run.budgets)) for *_, found in rows]
    out = []
    for i, (kind, name, a, cost, found) in enumerate(rows):
        beaten = any(
            c <= cost and s <= share[i] and (c < cost or s < share[i])
            for (_, _, _, c, _), s in zip(rows, share, strict=True)
        )
        out.append(
            {
                "kind": kind, "name": name, "cost": cost, "figures": [number(v) for v in found.values], "share": number(share[i]),
                "formats": counts(a), "efficient": not beaten,
            }
        )  # fmt: skip
    return sorted(out, key=lambda row: (row["cost"], str(row["share"])))


def _notes(run: Run) -> list[str]:
    notes = [
        f"the held-out prompts were looked at {run.looks} times: each verdict has its clause's confidence, and the chance that one of them "
        f"passes wrongly is at most {run.looks} times what one may"
    ]
    if run.unusable:
        notes.append(f"{run.unusable} swaps gave rows without a value: such a format is not used in such a module")
    if not run.cost.repeatable:
        notes.append(run.cost.about)
    left = run.chosen.open if run.chosen is not None else ()
    notes += [f"not judged here: {text}" for text in left]
    if any(not b.mean and b.exception for b in run.budgets):
        notes.append(
            "quantiles do not add up exactly: the sum decides nothing, the measurement of the whole assignment does"
        )
    return notes
