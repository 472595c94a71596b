"""Floors of the storage format: clauses that ask for less than rounding alone does to logits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from kcverify.bounds.graph import Fact, Node, best_for, propagate
from kcverify.catalog.model import Mode, Statistic
from kcverify.catalog.storage import BY_NAME as FORMATS
from kcverify.diagnostics import Related, Report
from kcverify.elaborate.contract import Clause, Contract, Threshold
from kcverify.exact import decimal_down, decimal_near, decimal_up
from kcverify.prove.obligations import Atom, atoms, grade_of, in_graph, parameters, whole_piece


@dataclass(frozen=True)
class Floor:
    """Rounding of logits up to `largest`, whose last binade is `[2^exponent, 2^(exponent+1))`: half a unit moves one."""

    storage: str
    largest: Fraction
    exponent: int
    half: Fraction

    @property
    def step(self) -> Fraction:
        """Distance of two neighbours there: what both sides rounded can differ by, and the least that they can differ."""
        return 2 * self.half

    @property
    def binade(self) -> str:
        """The last binade as an interval."""
        low = Fraction(2) ** self.exponent
        return f"[{decimal_near(low, 6)}, {decimal_near(2 * low, 6)})"


def floor_of(contract: Contract) -> Floor | None:
    """The floor that `storage` and `logit_range` give, or None where one of the two is not assumed."""
    given = contract.assumptions
    reach = given.logit_range
    if given.storage is None or reach is None or reach.low is None or reach.high is None:
        return None
    largest = max(abs(reach.low), abs(reach.high))
    if largest == 0:
        return None
    row = FORMATS[given.storage]
    return Floor(given.storage, largest, row.exponent(largest), row.half(largest))


def storage_findings(contract: Contract, report: Report) -> None:
    """Reports clauses below what the storage format can give, and those within the noise of float32 logits."""
    floor = floor_of(contract)
    if floor is None:
        return
    noise = _noise(contract, floor) if floor.storage in ("float32", "float64") else {}
    for clause in contract.clauses:
        if clause.statistic is not Statistic.MAX or not in_graph(clause) or clause.limit.hole or grade_of(clause) != 1:
            continue
        reason = _below_floor(contract, clause, floor)
        if reason:
            related = _assumed(contract)
            limit = decimal_near(_largest_limit(contract, clause), 6)
            report.add(
                "infeasible", clause.value_span, related=related, name=clause.name, limit=limit, reason=reason,
                hint=f"allow at least {decimal_up(_least(contract, clause, floor), 3)}, or store logits in a finer format",
            )  # fmt: skip
        else:
            _within_noise(clause, floor, noise, report)


def _assumed(contract: Contract) -> list[Related]:
    spans = contract.assumptions.spans
    return [Related(spans[n], "assumed here") for n in ("logit_range", "storage") if n in spans]


def _largest_limit(contract: Contract, clause: Clause) -> Fraction:
    """The limit at the temperature where it allows most."""
    upper = clause.limit.upper
    return Fraction(0) if upper is None else max(_at(upper, t) for t in _temperatures(contract) or (Fraction(1),))


def _temperatures(contract: Contract) -> tuple[Fraction, ...]:
    t = contract.assumptions.temperature
    return () if t is None or t.low is None or t.high is None else (t.low, t.high)


def _at(threshold: Threshold, temperature: Fraction) -> Fraction:
    return threshold.constant + dict(threshold.terms).get("temperature", Fraction(0)) * temperature


def _least(contract: Contract, clause: Clause, floor: Floor) -> Fraction:
    """The smallest limit that is not below the floor. A log ratio is at least half the effective span."""
    if clause.metric.name != "log_ratio":
        return floor.step
    return floor.step / (2 * max(_temperatures(contract)))


def _below_floor(contract: Contract, clause: Clause, floor: Floor) -> str:
    """Why rounding alone breaks the clause; empty where it does not.

    A limit of exactly 0 asks for equal bits, which equal kernels give.
    """
    name, limit = clause.metric.name, _largest_limit(contract, clause)
    known = name in ("logit_drift", "logit_span") or (name == "log_ratio" and _temperatures(contract))
    if not known or limit <= 0 or limit >= _least(contract, clause, floor):
        return ""
    half, step = decimal_near(floor.half, 6), decimal_near(floor.step, 6)
    bits = FORMATS[floor.storage].bits
    text = (
        f"logits up to {decimal_near(floor.largest, 6)} lie {step} apart on {floor.binade}, so rounding alone moves one by up to "
        f"{half} on one side and {step} on both (unit roundoff 2^-{bits})"
    )
    if name == "logit_span":
        return f"{text}, and a span by up to {decimal_near(2 * floor.step, 6)}"
    if name == "log_ratio":
        return f"{text}; at temperature {decimal_near(max(_temperatures(contract)), 6)} one such step is a log ratio of at least {decimal_down(_least(contract, clause, floor), 3)}"
    return text


def _noise(contract: Contract, floor: Floor) -> dict[Node, Fact]:
    """What follows for every metric when both sides differ by the rounding of their logits to float32 and nothing else."""
    half = Fraction(2) ** (floor.exponent - FORMATS["float32"].bits)
    span = Fact(Node("logit_span", Mode.POINT), 4 * half, label="rounding")
    return propagate([span], parameters(contract.assumptions, whole_piece(contract, "")))


def _within_noise(clause: Clause, floor: Floor, noise: dict[Node, Fact], report: Report) -> None:
    """Reports a limit that rounding to float32 can use up by itself."""
    found = _noisy(atoms(clause), noise)
    if found is not None:
        reason = (
            f"float32 logits up to {decimal_near(floor.largest, 6)} are rounded, which alone moves {clause.metric.name} by up to "
            f"{decimal_up(found, 3)}: a monitor that reads them cannot tell whether a kernel keeps it"
        )
        report.add(
            "unmeasurable",
            clause.value_span,
            name=clause.name,
            reason=reason,
            hint=f"allow at least {decimal_up(found, 3)}",
        )


def _noisy(limits: Iterable[Atom], noise: dict[Node, Fact]) -> Fraction | None:
    for a in limits:
        fact = best_for(noise, a.node.quantity, Mode.POINT, Fraction(0))
        if fact is not None and fact.quantity.upper and a.upper and not a.slope and 0 < a.constant < fact.value:
            return fact.value
    return None
