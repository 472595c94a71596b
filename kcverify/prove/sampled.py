"""What clauses say about the log ratio of the sampled token, and so about every metric of that one number.

With `d = ln(p/q)` of the sampled token, a clause keeps `d` in an interval except on a share of the tokens; metrics of one
token are functions of `d`. The intervals come from clauses on the sampled token, and through the lemmas from all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import sympy as sp

from kcverify.bounds.graph import Fact, Node, best_for, joint_exception, propagate
from kcverify.catalog.model import Mode, Statistic
from kcverify.diagnostics import Related, Report
from kcverify.elaborate.contract import Clause, Contract
from kcverify.enclosure import value_down, value_up
from kcverify.exact import decimal_down, decimal_near, decimal_up
from kcverify.prove.obligations import applies, certifiable, facts, in_graph, parameters, whole_piece

METRICS = ("token_log_ratio", "token_ratio", "token_inverse_ratio", "token_k3")
_X = sp.Symbol("x")
_K3 = sp.exp(_X) - 1 - _X


@dataclass(frozen=True)
class Within:
    """`low <= d <= high` except on a share `rho` of the tokens, by the named clauses."""

    low: Fraction
    high: Fraction
    rho: Fraction
    sources: tuple[str, ...]


def _up(expr: sp.Expr, x: Fraction) -> Fraction:
    return value_up(expr, {_X: x})


def _down(expr: sp.Expr, x: Fraction) -> Fraction:
    return value_down(expr, {_X: x})


def _ends(clause: Clause) -> tuple[Fraction | None, Fraction | None] | None:
    """The clause's limits as plain numbers; None where they are none."""
    lower, upper = clause.limit.lower, clause.limit.upper
    if clause.limit.hole or clause.statistic is not Statistic.MAX or any(t and t.terms for t in (lower, upper)):
        return None
    return lower.constant if lower else None, upper.constant if upper else None


def interval(clause: Clause) -> Within | None:
    """What a clause on the sampled token says about `d`; None where it leaves one side open."""
    ends = _ends(clause)
    if ends is None or clause.metric.name not in METRICS:
        return None
    low, high = ends
    name = clause.metric.name
    if name == "token_log_ratio" and high is not None and low is None:
        return Within(-high, high, clause.exception, (clause.name,))
    if name == "token_ratio" and low and high:
        return Within(_down(sp.log(_X), low), _up(sp.log(_X), high), clause.exception, (clause.name,))
    if name == "token_inverse_ratio" and low and high:
        return Within(_down(-sp.log(_X), high), _up(-sp.log(_X), low), clause.exception, (clause.name,))
    return None


def image(metric: str, d: Within) -> tuple[Fraction, Fraction]:
    """Smallest and largest value of the metric on an interval of `d`, rounded outward."""
    inside = d.low <= 0 <= d.high
    if metric == "token_ratio":
        return _down(sp.exp(_X), d.low), _up(sp.exp(_X), d.high)
    if metric == "token_inverse_ratio":
        return _down(sp.exp(-_X), d.high), _up(sp.exp(-_X), d.low)
    sizes = [abs(d.low), abs(d.high)]
    if metric == "token_log_ratio":
        return Fraction(0) if inside else min(sizes), max(sizes)
    return Fraction(0) if inside else min(_down(_K3, x) for x in (d.low, d.high)), max(
        _up(_K3, x) for x in (d.low, d.high)
    )


def sampled_findings(contract: Contract, report: Report) -> None:
    """Reports clauses on the sampled token that others imply, and limits that read as if they were on its inverse."""
    for clause in contract.clauses:
        if clause.metric.name == "token_inverse_ratio":
            _direction(clause, report)
    removed: set[str] = set()
    for clause in reversed(contract.clauses):
        if clause.metric.name not in METRICS or _ends(clause) is None or clause.band is not None:
            continue
        for known in _known(contract, clause, removed):
            if known.rho <= clause.exception and _inside(clause, known):
                removed.add(clause.name)
                _dead(contract, clause, known, report)
                break


def _inside(clause: Clause, known: Within) -> bool:
    ends = _ends(clause)
    if ends is None:
        return False
    low, high = image(clause.metric.name, known)
    return (ends[0] is None or ends[0] <= low) and (ends[1] is None or high <= ends[1])


def _known(contract: Contract, clause: Clause, removed: set[str]) -> Iterator[Within]:
    """Intervals of `d` that other clauses give on every slice of the clause: those of one clause first."""
    homes = clause.slices or ("",)
    others = [
        c
        for c in contract.clauses
        if c is not clause and c.name not in removed and c.band is None and not c.limit.hole
        and all(applies(c, home) for home in homes)
        and (c.exception == 0 or (c.unit, c.window) == (clause.unit, clause.window))
    ]  # fmt: skip
    for other in others:
        found = interval(other)
        if found is not None:
            yield found
    full = [c for c in others if in_graph(c) and certifiable(c, others)]
    if full:
        piece = whole_piece(contract, homes[0])
        best = propagate(
            [f for c in full for f in facts(c, piece)], parameters(contract.assumptions), {"ratio_above", "ratio_below"}
        )
        yield from _from_graph(best, clause.exception)


def _from_graph(best: dict[Node, Fact], rho: Fraction) -> Iterator[Within]:
    above, below = (best_for(best, name, Mode.POINT, rho) for name in ("ratio_above", "ratio_below"))
    if above is None or below is None or below.value >= 1:
        return
    share = joint_exception((above, below))
    names = tuple(dict.fromkeys((*above.sources(), *below.sources())))
    yield Within(_down(sp.log(1 - _X), below.value), _up(sp.log(1 + _X), above.value), share, names)


def _dead(contract: Contract, clause: Clause, known: Within, report: Report) -> None:
    by_name = {c.name: c for c in contract.clauses}
    low, high = image(clause.metric.name, known)
    names = " and ".join(f"`{n}`" for n in known.sources)
    keep = "keeps" if len(known.sources) == 1 else "keep"
    if clause.limit.lower is not None:
        reach = f"in [{decimal_down(low, 5)}, {decimal_up(high, 6)}]"
    else:
        reach = f"at most {decimal_up(high, 3)}"
    report.add(
        "dead", clause.span, related=[Related(by_name[n].span, f"`{n}` implies it") for n in known.sources],
        name=clause.name, reason=f"{names} {keep} {clause.metric.name} {reach}",
    )  # fmt: skip


def _direction(clause: Clause, report: Report) -> None:
    """A limit on q/p that is not its own mirror image: it limits p/q to another interval than the one that is written."""
    ends = _ends(clause)
    if ends is None or (ends[0] and ends[1] and ends[0] * ends[1] == 1):
        return
    low, high = ends
    new_low = "0" if high is None else decimal_near(1 / high, 4) if high else "infinity"
    new_high = "infinity)" if not low else f"{decimal_near(1 / low, 4)}]"
    written = f"[{decimal_near(low or Fraction(0), 4)}, {'infinity)' if high is None else decimal_near(high, 4) + ']'}"
    report.add(
        "direction_inverted", clause.value_span, name=clause.name, written=written, effective=f"[{new_low}, {new_high}",
    )  # fmt: skip
