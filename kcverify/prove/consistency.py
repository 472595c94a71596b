"""What the clauses say about each other: contradictions, dead clauses, vacuous thresholds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

import z3

from kcverify.bounds.graph import best_for, propagate
from kcverify.catalog.model import Family
from kcverify.catalog.quantities import BY_NAME
from kcverify.diagnostics import Related, Report
from kcverify.elaborate.contract import Clause, Contract
from kcverify.exact import decimal_down, decimal_up
from kcverify.prove import linear
from kcverify.prove.obligations import applies, atoms, certifiable, facts, in_graph, parameters, whole_piece
from kcverify.prove.verdict import Limits


@dataclass
class Model:
    """All clauses of one slice as formulas over one set of variables; `solver` holds the background and the lemmas."""

    scope: str
    clauses: tuple[Clause, ...]
    encoding: linear.Encoding
    solver: z3.Solver
    readings: dict[str, z3.ArithRef] = field(default_factory=dict)
    formulas: dict[str, z3.BoolRef] = field(default_factory=dict)


def reading_key(clause: Clause) -> tuple[str, bool]:
    """Name of the number that a clause outside the bound graph compares, and whether it is one minus that number."""
    arguments = dict(clause.arguments)
    name = clause.metric.name
    if name == "agreement" and arguments.get("top", Fraction(1)) == 1:
        return "flip_rate()", True
    if name == "flip_rate" and arguments.get("margin", Fraction(0)) == 0:
        return "flip_rate()", False
    text = ", ".join(f"{k}={v}" for k, v in sorted(arguments.items()))
    return f"{name}({text}).{clause.statistic.value}.{clause.exception}", False


def _reading(model: Model, clause: Clause) -> z3.BoolRef:
    key, flipped = reading_key(clause)
    if key not in model.readings:
        x = model.readings[key] = z3.Real(key)
        low, high = clause.metric.range
        if low is not None:
            model.solver.add(x >= linear.z(low))
        if high is not None:
            model.solver.add(x <= linear.z(high))
    x = model.readings[key]
    value = 1 - x if flipped else x
    t = model.encoding.temperature
    out = []
    for limit, upper in ((clause.limit.lower, False), (clause.limit.upper, True)):
        if limit is not None:
            slope = dict(limit.terms).get("temperature", Fraction(0))
            bound = linear.z(limit.constant) + linear.z(slope) * t
            out.append(value <= bound if upper else value >= bound)
    return z3.And(out)


def build(contract: Contract, scope: str, limits: Limits) -> Model:
    """Formulas of every clause that speaks about a slice, holes left out."""
    usable = tuple(c for c in contract.clauses if applies(c, scope) and not c.limit.hole)
    graph = [c for c in usable if in_graph(c)]
    piece = whole_piece(contract, scope)
    encoding = linear.encode(piece, parameters(contract.assumptions), [a for c in graph for a in atoms(c)], ())
    model = Model(scope, usable, encoding, linear.load(encoding, limits))
    for c in usable:
        found = z3.And([encoding.atom_formula(a) for a in atoms(c)]) if in_graph(c) else _reading(model, c)
        model.formulas[c.name] = linear.bound_to_band(encoding, c, found)
    return model


def _core(model: Model, given: Iterable[str], extra: z3.BoolRef | None) -> tuple[str, ...] | None:
    """Names of a minimal unsatisfiable set of clauses, or None where they are satisfiable or the solver gave up."""
    model.solver.push()
    for name in given:
        model.solver.assert_and_track(model.formulas[name], f"clause:{name}")
    if extra is not None:
        model.solver.add(extra)
    result = model.solver.check()
    found = [str(x) for x in model.solver.unsat_core()] if result == z3.unsat else None
    model.solver.pop()
    return None if found is None else tuple(sorted(n.removeprefix("clause:") for n in found if n.startswith("clause:")))


def contradictions(model: Model, report: Report) -> tuple[str, ...]:
    """Report a minimal set of clauses that exclude each other and return their names; empty where there is none."""
    core = _core(model, model.formulas, None)
    if core is None:
        return ()
    by_name = {c.name: c for c in model.clauses}
    first, *rest = sorted((by_name[n] for n in core), key=lambda c: c.span.start)
    where = f" on `{model.scope}`" if model.scope else ""
    report.add(
        "contradictory", first.span, related=[Related(c.span, f"`{c.name}`") for c in rest],
        clauses=", ".join(f"`{c.name}`" for c in (first, *rest)), reason=f"no values of their metrics{where} satisfy the limits together",
    )  # fmt: skip
    return core


def _one_sided(clause: Clause) -> bool:
    """Whether the negation of the clause is what its variable says: limits on the side that bounds the quantity."""
    return all(a.upper is BY_NAME[a.node.quantity].upper for a in atoms(clause))


def dead_clauses(model: Model, report: Report, broken: tuple[str, ...]) -> None:
    """Report every clause of the slice that others imply; of two equal clauses the later one.

    Clauses of a contradiction (`broken`) imply everything, so they are left out.
    """
    alive = [
        c
        for c in model.clauses
        if (model.scope in c.slices or (not c.slices and not model.scope)) and c.name not in broken
    ]
    usable = {c.name for c in model.clauses if certifiable(c, model.clauses) and c.name not in broken}
    for clause in reversed(alive):
        if is_vacuous(clause) or not _one_sided(clause):
            continue
        others = [n for n in model.formulas if n != clause.name and n in usable]
        core = _core(model, others, z3.Not(model.formulas[clause.name]))
        if not core:
            continue
        usable.discard(clause.name)
        by_name = {c.name: c for c in model.clauses}
        report.add(
            "dead", clause.span, related=[Related(by_name[n].span, f"`{n}` implies it") for n in core],
            name=clause.name, reason=_implied(model, clause, [by_name[n] for n in core]),
        )  # fmt: skip


def _implied(model: Model, clause: Clause, core: list[Clause]) -> str:
    names = " and ".join(f"`{c.name}`" for c in core)
    found = atoms(clause)
    if len(found) != 1 or clause.band is not None:
        return f"{names} already imply it" if len(core) > 1 else f"{names} already implies it"
    (atom,) = found
    best = propagate([f for c in core for f in facts(c, model.encoding.piece)], model.encoding.parameters)
    fact = best_for(best, atom.node.quantity, atom.node.mode, atom.node.rho)
    if fact is None:
        return f"{names} already implies it"
    if atom.upper:
        return f"{names} keeps {clause.metric.name} at most {decimal_up(fact.value, 3)}"
    return f"{names} keeps {clause.metric.name} at least {decimal_down(fact.value, 3)}"


def is_vacuous(clause: Clause) -> bool:
    """Whether the limits hold for every value that the metric can take."""
    low, high = clause.metric.range
    lower, upper = clause.limit.lower, clause.limit.upper
    if clause.limit.hole or any(t is not None and not t.is_constant for t in (lower, upper)):
        return False
    open_below = lower is None or (low is not None and lower.constant <= low)
    open_above = upper is None or (high is not None and upper.constant >= high)
    return open_below and open_above


def consistency(contract: Contract, report: Report, limits: Limits) -> None:
    """All findings about the measured clauses of a contract, slice by slice."""
    for clause in contract.clauses:
        if is_vacuous(clause):
            low, high = clause.metric.range
            ends = f"[{'-inf' if low is None else low}, {'inf' if high is None else high}]"
            report.add(
                "vacuous", clause.value_span, name=clause.name, metric=clause.metric.name, reason=f"its range is {ends}"
            )
    used = {s for c in contract.clauses for s in c.slices}
    for scope in ("", *sorted(used)):
        if sum(applies(c, scope) and not c.limit.hole for c in contract.clauses) < 2:
            continue
        model = build(contract, scope, limits)
        dead_clauses(model, report, contradictions(model, report))


def not_enforced(contract: Contract) -> list[str]:
    """Names of clauses and blocks that are read and checked, and that no monitor of this version measures."""
    names = [c.name for c in contract.clauses if c.metric.family is not Family.NUMERICAL]
    blocks = [
        name
        for name, block in (
            ("observability", contract.observability), ("escalate", contract.actions), ("promote", contract.stages),
        )
        if block
    ]  # fmt: skip
    return [*names, *blocks]
