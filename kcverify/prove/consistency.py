"""What the clauses say about each other: contradictions, dead clauses, vacuous thresholds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import z3

from kcverify.bounds.graph import Fact, Node, Parameters, best_for, joint_exception, propagate
from kcverify.catalog.model import Mode
from kcverify.catalog.quantities import BY_NAME
from kcverify.diagnostics import Related, Report
from kcverify.elaborate.contract import Clause, Contract
from kcverify.prove import linear
from kcverify.prove.encoding import bound_to_band, conjunction, encode, number
from kcverify.prove.obligations import (
    Piece,
    all_certifiable,
    as_written,
    atoms,
    facts,
    in_graph,
    mode_of,
    parameters,
    whole_piece,
    written,
)
from kcverify.prove.verdict import Limits


@dataclass
class Model:
    """Clauses of one slice as formulas over one set of variables, each switched on by a literal of the solver."""

    clauses: tuple[Clause, ...]
    solver: z3.Solver

    @cached_property
    def switches(self) -> dict[int, z3.BoolRef]:
        """The literal that switches on a clause, by the clause's `id`."""
        return {id(c): z3.Bool(f"on:{i}") for i, c in enumerate(self.clauses)}


@dataclass
class Ground:
    """What speaks about one slice: its clauses, and the strongest facts that follow from them one by one.

    `facts` rest on clauses that samples can certify, `all_facts` on every clause. Models are built when first asked.
    """

    scope: str
    clauses: tuple[Clause, ...]
    piece: Piece
    parameters: Parameters
    facts: dict[Node, Fact]
    all_facts: dict[Node, Fact]
    limits: Limits
    models: dict[str, Model] = field(default_factory=dict)

    @cached_property
    def by_name(self) -> dict[str, Clause]:
        """Its clauses by name."""
        return {c.name: c for c in self.clauses}

    @cached_property
    def coupled(self) -> bool:
        """Whether the temperature moves or bands a clause of the bound graph."""
        return any(linear.coupled(c) for c in self.clauses if in_graph(c))

    @cached_property
    def certifiable(self) -> frozenset[str]:
        """Names of the clauses that samples can ever certify."""
        return frozenset(c.name for c in all_certifiable(self.clauses, self.clauses))


def reading_key(clause: Clause) -> str:
    """Name of the number that a clause outside the bound graph compares."""
    text = ", ".join(f"{k}={v}" for k, v in sorted(dict(clause.arguments).items()))
    evidence = f"{clause.statistic.value}.{clause.exception}.{clause.unit}.{clause.window}"
    return f"{clause.metric.name}({text}).{evidence}"


def _is_reading(clause: Clause) -> bool:
    """Whether limits of the clause are compared as numbers: outside the graph, or where it has two quantities for one."""
    return not in_graph(clause) or clause.metric.quantity == "perplexity_ratio"


def _reading(clause: Clause) -> str:
    value = f"|{reading_key(clause)}|"
    out = []
    for limit, upper in ((clause.limit.lower, False), (clause.limit.upper, True)):
        if limit is not None:
            slope = dict(limit.terms).get("temperature", Fraction(0))
            bound = f"(+ {number(limit.constant)} (* {number(slope)} T))"
            out.append(f"({'<=' if upper else '>='} {value} {bound})")
    return bound_to_band(clause, conjunction(out))


def _range_of(clause: Clause) -> list[str]:
    """That the number which a clause compares lies in its metric's range."""
    low, high = clause.metric.range
    x = f"|{reading_key(clause)}|"
    return [
        *([f"(<= {number(low)} {x})"] if low is not None else []),
        *([f"(<= {x} {number(high)})"] if high is not None else []),
    ]


def ground(contract: Contract, scope: str, limits: Limits) -> Ground:
    """The clauses that speak about a slice, holes left out, and what follows from them."""
    piece, boxes = whole_piece(contract, scope), parameters(contract.assumptions)
    clauses = tuple(c for c in piece.clauses if not c.limit.hole)
    plain = [c for c in clauses if c.band is None]
    every = propagate([f for c in plain for f in facts(c, piece)], boxes)
    sure = all_certifiable(plain, clauses)
    best = every if len(sure) == len(plain) else propagate([f for c in sure for f in facts(c, piece)], boxes)
    return Ground(scope, clauses, piece, boxes, best, every, limits)


def _model(ground: Ground, kind: str) -> Model:
    """The model of the clauses in the bound graph (`graph`, those that a proof can need) or of the others (`readings`)."""
    if kind not in ground.models:
        inside = tuple(c for c in ground.clauses if (in_graph(c) if kind == "graph" else _is_reading(c)))
        kept = linear.essential(inside, ground.piece, ground.parameters) if kind == "graph" else inside
        ground.models[kind] = _built(ground, kind, kept)
    return ground.models[kind]


def _built(ground: Ground, kind: str, clauses: tuple[Clause, ...]) -> Model:
    """Clause `i` holds where the literal `on:i` does, and fails where `off:i` does."""
    limits = [a for c in clauses for a in atoms(c)] if kind == "graph" else []
    encoding = encode(ground.piece, ground.parameters, limits, ())
    text, formulas = [], []
    for i, c in enumerate(clauses):
        formula = encoding.clause_formula(c) if kind == "graph" else _reading(c)
        text += [f"(declare-const |on:{i}| Bool)", f"(declare-const |off:{i}| Bool)"]
        formulas += [f"(=> |on:{i}| {formula})", f"(=> |off:{i}| (not {formula}))"]
        formulas += [] if kind == "graph" else _range_of(c)
    readings = dict.fromkeys(reading_key(c) for c in clauses if kind != "graph")
    text += [f"(declare-const |{key}| Real)" for key in readings]
    solver = linear.solver_of([*text, *linear.switchable(encoding, formulas)], ground.limits)
    return Model(clauses, solver)


def _core(model: Model, given: Iterable[Clause], denied: Clause | None = None) -> tuple[str, ...] | None:
    """Names of a minimal unsatisfiable set of clauses, or None where they are satisfiable or the solver gave up.

    With `denied` that clause is taken to fail. Lemmas that join two quantities count only where no more than one
    clause of the set has an exception.
    """
    names = [model.switches[id(c)] for c in given]
    if denied is not None:
        names.append(z3.Bool(f"off:{next(i for i, c in enumerate(model.clauses) if c is denied)}"))
    joined = z3.Bool(linear.JOINED.strip("|"))
    for switches in ([joined], []):
        if model.solver.check(*names, *switches) != z3.unsat:
            return None
        core = {str(x) for x in model.solver.unsat_core()}
        places = [int(x.removeprefix("on:")) for x in core if x.startswith("on:")]
        clauses = tuple(sorted(model.clauses[i].name for i in places))
        if str(joined) not in core or not linear.apart(model.clauses, clauses):
            return clauses
    return None


def _contradiction(ground: Ground) -> tuple[str, ...]:
    """Names of clauses that exclude each other; empty where none are found."""
    for fact in ground.all_facts.values():
        q = fact.quantity
        if fact.value < q.low if q.upper else q.high is not None and fact.value > q.high:
            return fact.sources()
    for clause in ground.clauses:
        for a in atoms(clause) if clause.band is None else ():
            if linear.natural(a) or a.slope:
                continue
            known = best_for(ground.all_facts, a.node.quantity, a.node.mode, 1 - a.node.rho, a.node.grade)
            if known is None or known.node.rho + a.node.rho >= 1:
                continue
            if known.value > a.constant if a.upper else known.value < a.constant:
                return tuple(dict.fromkeys((*known.sources(), clause.name)))
    readings = any(_is_reading(c) for c in ground.clauses)
    for kind in (*(["readings"] if readings else []), *(["graph"] if _may_clash(ground) else [])):
        model = _model(ground, kind)
        core = _core(model, model.clauses)
        if core:
            return core
    return ()


def _may_clash(ground: Ground) -> bool:
    """Whether limits that bind at some temperatures only can exclude others: there is a floor, or one falls below zero."""
    graph = [c for c in ground.clauses if in_graph(c)]
    if not any(linear.coupled(c) for c in graph):
        return False
    ends = (ground.piece.low, ground.piece.high)
    return any(not linear.natural(a) or min(a.at(t) for t in ends) < 0 for c in graph for a in atoms(c))


def contradictions(ground: Ground, report: Report, known: set[tuple[str, ...]]) -> tuple[str, ...]:
    """Report a minimal set of clauses that exclude each other and return their names; empty where there is none."""
    core = tuple(sorted(_contradiction(ground)))
    if not core or core in known:
        return core
    known.add(core)
    by_name = {c.name: c for c in ground.clauses}
    first, *rest = sorted((by_name[n] for n in core), key=lambda c: c.span.start)
    where = f" on `{ground.scope}`" if ground.scope else ""
    report.add(
        "contradictory",
        first.span,
        related=[Related(c.span, f"`{c.name}`") for c in rest],
        clauses=", ".join(f"`{c.name}`" for c in (first, *rest)),
        reason=f"no values of their metrics{where} satisfy the limits together",
    )
    return core


def _one_sided(clause: Clause) -> bool:
    """Whether the negation of the clause is what its variable says: limits on the side that bounds the quantity."""
    return all(a.upper is BY_NAME[a.node.quantity].upper for a in atoms(clause))


def dead_clauses(
    contract: Contract, grounds: Mapping[str, Ground], broken: Mapping[str, tuple[str, ...]], report: Report
) -> None:
    """Report every clause that others imply on each of its slices; of two equal clauses the later one.

    Clauses of a contradiction (`broken`, by slice) imply everything, so they are left out.
    """
    removed: set[str] = set()
    by_name = {c.name: c for c in contract.clauses}
    for clause in reversed(contract.clauses):
        homes = clause.slices or ("",)
        skip = clause.limit.hole or is_vacuous(clause) or not _one_sided(clause)
        if skip or any(clause.name in broken.get(s, ()) for s in homes):
            continue
        cores = [
            implied(grounds[s], clause, removed.union(broken[s]) if broken[s] else removed) if s in grounds else ()
            for s in homes
        ]
        if not all(cores):
            continue
        removed.add(clause.name)
        names = tuple(dict.fromkeys(n for core in cores for n in core))
        report.add(
            "dead",
            clause.span,
            related=[Related(by_name[n].span, f"`{n}` implies it") for n in names],
            name=clause.name,
            reason=_implied(grounds[homes[0]], clause, [by_name[n] for n in names]),
        )


def implied(ground: Ground, clause: Clause, without: set[str]) -> tuple[str, ...]:
    """Names of clauses of the slice, none of them in `without`, that imply the clause; empty where none do."""
    if in_graph(clause):
        core = _implied_forward(ground, clause, without)
        if core or not ground.coupled:
            return core
    kind = "graph" if in_graph(clause) else "readings"
    model = _model(ground, kind)
    if len([a for a in atoms(clause) if a.node.rho]) > 1:
        return ()
    if not any(c is clause for c in model.clauses):
        model = _built(ground, kind, (*model.clauses, clause))
    others = [
        c
        for c in model.clauses
        if c is not clause and c.name not in without and c.name in ground.certifiable and _same_evidence(c, clause)
    ]
    return _core(model, others, clause) or ()


def _same_evidence(other: Clause, clause: Clause) -> bool:
    """Whether the other clause says something about each window of this one: single values do, shares and means may not."""
    pointwise = mode_of(other) is Mode.POINT and other.exception == 0 and in_graph(other)
    return pointwise or (other.window, other.unit) == (clause.window, clause.unit)


def _implied_forward(ground: Ground, clause: Clause, without: set[str]) -> tuple[str, ...]:
    """Sources of facts that imply every atom of the clause over the whole range of temperatures."""
    by_name = ground.by_name

    def usable(fact: Fact | None) -> bool:
        roots = [by_name[n] for n in (fact.sources() if fact is not None else ())]
        return all(c is not clause and c.name not in without and _same_evidence(c, clause) for c in roots)

    found = _facts_for(ground.facts, clause, ground.piece)
    if found is not None and not all(usable(f) for f in found):
        others = [c for c in ground.clauses if c.band is None and c is not clause and c.name not in without]
        sure = [c for c in others if c.name in ground.certifiable and _same_evidence(c, clause)]
        premises = [f for c in sure for f in facts(c, ground.piece)]
        best = propagate(premises, ground.parameters, {a.node.quantity for a in atoms(clause)})
        found = _facts_for(best, clause, ground.piece)
    if found is None or (joint_exception(found) > clause.exception and len(found) > 1):
        return ()
    return tuple(dict.fromkeys(n for f in found for n in f.sources()))


def _facts_for(best: Mapping[Node, Fact], clause: Clause, piece: Piece) -> list[Fact] | None:
    """For each atom of the clause a fact that implies it at every temperature of the piece; None where one lacks."""
    out = []
    for a in atoms(clause):
        fact = best_for(best, a.node.quantity, a.node.mode, a.node.rho, a.node.grade)
        ends = (a.at(piece.low), a.at(piece.high))
        if fact is None or (fact.value > min(ends) if a.upper else fact.value < max(ends)):
            return None
        out.append(fact)
    return out


def _implied(ground: Ground, clause: Clause, core: list[Clause]) -> str:
    names = " and ".join(f"`{c.name}`" for c in core)
    already = f"{names} already {'imply' if len(core) > 1 else 'implies'} it"
    found = atoms(clause)
    if not found or len(clause.slices) > 1 or any(c.band is not None for c in (clause, *core)):
        return already
    targets = {a.node.quantity for a in found}
    best = propagate([f for c in core for f in facts(c, ground.piece)], ground.parameters, targets)
    known = [best_for(best, a.node.quantity, a.node.mode, a.node.rho, a.node.grade) for a in found]
    limits = [written(f.node.quantity, f.value, 3) for f in known if f is not None]
    if len(limits) < len(found):
        return already
    keeps = f"{names} {'keeps' if len(core) == 1 else 'keep'} {clause.metric.name}"
    if len(limits) == 2:
        low, high = sorted(limits, key=Fraction)
        return f"{keeps} in [{low}, {high}]"
    _, upper = as_written(found[0].node.quantity, Fraction(0))
    return f"{keeps} at {'most' if upper else 'least'} {limits[0]}"


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
    grounds = {scope: ground(contract, scope, limits) for scope in ("", *sorted(used))}
    grounds = {scope: g for scope, g in grounds.items() if len(g.clauses) > 1}
    known: set[tuple[str, ...]] = set()
    broken = {scope: contradictions(g, report, known) for scope, g in grounds.items()}
    dead_clauses(contract, grounds, broken, report)


def not_enforced(contract: Contract) -> list[str]:
    """Names of blocks that no proof and no monitor enforces: `measure`, the gate and the gateway do."""
    return [
        name
        for name, block in (
            ("observability", contract.observability), ("escalate", contract.actions), ("promote", contract.stages),
        )
        if block
    ]  # fmt: skip
