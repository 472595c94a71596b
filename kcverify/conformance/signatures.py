"""Signatures of a violation: what a contract says that a fault looks like, looked for on the kernel, one row a verb."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import comb, inf
from typing import Any

from torch import Tensor

from kcverify.conformance import harness, order, probes, shapes
from kcverify.conformance import tolerances as t
from kcverify.conformance.model import Run, Verdict
from kcverify.conformance.operations import BY_NAME, Operation
from kcverify.elaborate.kernel import Signature

LADDER = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Sizes of a dimension at which a residual is taken, where the declared range holds them."""

COERCED = ("tfloat32", "bfloat16", "float16", "float8_e4m3fn")
"""Accumulators that a coercion may have put in place of the declared one."""

_BIAS_DRAWS = 48


@dataclass(frozen=True)
class Signal:
    """One signature: whether it was seen (None: it does not apply here), the evidence, and a table by size."""

    text: str
    severity: str
    seen: bool | None
    evidence: str
    ladder: tuple[dict[str, Any], ...] = ()

    def data(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "signature": self.text, "severity": self.severity, "seen": self.seen, "evidence": self.evidence,
            "ladder": list(self.ladder),
        }  # fmt: skip


Found = tuple[bool | None, str, tuple[dict[str, Any], ...]]


def evaluate(run: Run, signatures: tuple[Signature, ...]) -> tuple[Signal, ...]:
    """Every signature of a contract on the kernel of a run that was made before."""
    found = []
    for one in signatures:
        seen, evidence, ladder = ROWS[one.verb](run, one)
        found.append(Signal(text(one), one.severity, seen, evidence, ladder))
    return tuple(found)


def text(one: Signature) -> str:
    """The signature in the words of the language."""
    tail = {"grows": f"grows with {one.dimension}", "exceeds": "exceeds tolerance", "differs": "differs between runs"}
    return f"{one.subject} {tail.get(one.verb, {'depends': 'depends on batch', 'is': 'is biased'}.get(one.verb, one.verb))}"


def _exceeds(run: Run, one: Signature) -> Found:
    over = [r for r in run.readings if r.verdict is Verdict.VIOLATION]
    if not over:
        return False, f"none of {len(run.readings)} readings", ()
    return True, f"{len(over)} of {len(run.readings)} readings, first `{over[0].name}`", ()


def _operation(run: Run) -> Operation | None:
    return BY_NAME.get(run.operation)


def _grows(run: Run, one: Signature) -> Found:
    """The residual by size: it leaves the declared tolerance behind, and it grows.

    A residual that does not depend on the size is exchangeable between sizes: that every one of r draws at the largest size
    exceeds every one of r at the smallest has probability `1 / C(2 r, r)` then. r is the least with that at most 1 - confidence.
    """
    operation = _operation(run)
    if operation is None or one.dimension not in operation.dims:
        return None, f"{run.operation} has no dimension {one.dimension}", ()
    count = replicates(run.protocol.confidence)
    drawn = _drawn(run, operation, one.dimension, count)
    rows = _ladder(run, drawn)
    if len(rows) < 2:
        return None, "one size only", rows
    beyond = any(r["residual"] is None or (r["limit"] is not None and r["residual"] > r["limit"]) for r in rows)
    small, large = rows[0]["size"], rows[-1]["size"]
    top, least = max(_sizes(drawn[small])), min(_sizes(drawn[large]))
    grown = least > top
    said = f"at most {top:.2g} in {count} draws at {one.dimension}={small}, at least {least:.2g} in {count} at {one.dimension}={large}"
    kept = [name for name in COERCED if rows[0]["coerced"].get(name) is not None and _explained(rows, name)]
    if beyond and grown and kept:
        said += f"; within what sums in {', '.join(kept)} allow"
    return beyond and grown, said, rows


def _explained(rows: tuple[dict[str, Any], ...], name: str) -> bool:
    """Whether sums in a format could leave these residuals, where its bound says anything."""
    bounded = [r for r in rows if r["coerced"].get(name) is not None]
    return bool(bounded) and all(r["residual"] is not None and r["residual"] <= r["coerced"][name] for r in bounded)


def replicates(confidence: Fraction) -> int:
    """Least r with `1 / C(2 r, r) <= 1 - confidence`: draws at either end that decide whether a residual grows."""
    return next(r for r in range(1, 64) if Fraction(1, comb(2 * r, r)) <= 1 - confidence or r == 63)


def residual(
    run: Run, operation: Operation, dimension: str, wanted: int, replicate: int
) -> tuple[Fraction | None, Fraction | None]:
    """The worst residual of ones, of normal and of uniform draws at a size, None if not finite; and the limit there."""
    dims = _at(run, operation, dimension, wanted)
    inner = Run(run.kernel, run.declared, run.protocol, run.operation, run.limits, left=run.left)
    for name in ("identical", "normal", "uniform"):
        g = probes.generator(run.protocol.seed, 61, replicate, wanted, DISTRIBUTION[name])
        harness.compare(inner, operation, probes.draw(name, operation.shapes(dims), run.declared.operands, g), name)
    values = [r.value for r in inner.readings]
    worst = None if not values or None in values else max(v for v in values if v is not None)
    return worst, next((r.tolerance.value for r in inner.readings), None)


DISTRIBUTION = {name: i for i, name in enumerate(("identical", "normal", "uniform"))}


def _at(run: Run, operation: Operation, dimension: str, wanted: int) -> dict[str, int]:
    return shapes.middle(operation, run.protocol, **{"m": 2, "n": 4, "k": 16, dimension: wanted})


Drawn = dict[int, list[tuple[Fraction | None, Fraction | None]]]
"""By size, the residual and the limit of each draw."""


def _drawn(run: Run, operation: Operation, dimension: str, count: int) -> Drawn:
    """Draws at every size of the ladder and at both ends of the declared range, from 8 on."""
    low, high = shapes.ranges(operation, run.protocol)[dimension]
    sizes = sorted({low, high, *(size for size in LADDER if low <= size <= high)})
    found: Drawn = {}
    for wanted in (size for size in sizes if size >= min(8, high)):
        size = _at(run, operation, dimension, wanted)[dimension]
        found[size] = [residual(run, operation, dimension, wanted, i) for i in range(count)]
    return dict(sorted(found.items()))


def _sizes(draws: list[tuple[Fraction | None, Fraction | None]]) -> list[float]:
    return [inf if value is None else float(value) for value, _ in draws]


def _ladder(run: Run, drawn: Drawn) -> tuple[dict[str, Any], ...]:
    """The largest residual of the draws at every size; the limit, and what other accumulators would allow."""
    rows = []
    for size, draws in drawn.items():
        worst, limit = max(_sizes(draws)), next((x for _, x in draws if x is not None), None)
        bounds = {name: t.rounded_to(t.gamma(size, name), run.declared.output).value for name in COERCED}
        rows.append(
            {
                "size": size, "residual": None if worst == inf else worst, "limit": None if limit is None else float(limit),
                "coerced": {n: None if b is None else float(b) for n, b in bounds.items()},
            }
        )  # fmt: skip
    return tuple(rows)


def _operands(run: Run, operation: Operation) -> list[Tensor]:
    dims = shapes.middle(operation, run.protocol, m=33, n=24, k=512)
    g = probes.generator(run.protocol.seed, 67)
    return probes.draw("normal", operation.shapes(dims), run.declared.operands, g)


def _between(run: Run, batches: bool) -> Found:
    operation = _operation(run)
    if operation is None:
        return None, f"{run.operation} has no operands to repeat", ()
    args = _operands(run, operation)
    first = harness.call(run, args)
    variants = order.variants(run, operation, args) if first is not None else []
    chosen = [(name, out, part) for name, out, part in variants if name.startswith("batch") is batches]
    if first is None or not chosen or any(out is None for _, out, _ in chosen):
        return None, "no result to compare", ()
    apart = [(name, order.differing(first[part], out)) for name, out, part in chosen if out is not None]
    worst = max(apart, key=lambda pair: pair[1] if pair[1] is not None else Fraction(2))
    if worst[1] == 0:
        return False, f"{len(apart)} runs agree in every bit", ()
    share = "another shape" if worst[1] is None else f"{float(worst[1]):.2%} of the elements"
    return True, f"{worst[0]}: {share} differ", ()


def _differs(run: Run, one: Signature) -> Found:
    return _between(run, batches=False)


def _depends(run: Run, one: Signature) -> Found:
    operation = _operation(run)
    if operation is not None and not operation.rowwise:
        return None, f"{operation.name} has no batch", ()
    return _between(run, batches=True)


def _biased(run: Run, one: Signature) -> Found:
    """One sign for each draw, of the mean error, and of the mean error away from zero: an exact two-sided sign test."""
    operation = _operation(run)
    if operation is None:
        return None, f"{run.operation} has no oracle", ()
    dims = shapes.middle(operation, run.protocol, m=4, n=12, k=24)
    means: list[tuple[float, float]] = []
    for i in range(_BIAS_DRAWS):
        g = probes.generator(run.protocol.seed, 71, i)
        args = probes.draw("normal", operation.shapes(dims), run.declared.operands, g)
        out = harness.call(run, args)
        if out is None:
            return None, "no result to compare", ()
        expected = operation.oracle(*[harness.wide(x) for x in args])
        error = harness.wide(out) - expected
        means.append((float(error.mean()), float((error * expected.sign()).mean())))
    alpha = (1 - run.protocol.confidence) / 4
    for at, what in ((0, "above the oracle"), (1, "away from zero")):
        signs = [pair[at] > 0 for pair in means if pair[at] != 0]
        most = max(sum(signs), len(signs) - sum(signs))
        if signs and tail(most, len(signs)) <= alpha:
            return True, f"{sum(signs)} of {len(signs)} draws lie {what}", ()
    return False, f"signs of {len(means)} draws are balanced", ()


def tail(least: int, count: int) -> Fraction:
    """`P(X >= least)` of `count` fair coins, exactly."""
    return Fraction(sum(comb(count, k) for k in range(least, count + 1)), 2**count)


ROWS: dict[str, Callable[[Run, Signature], Found]] = {
    "exceeds": _exceeds, "grows": _grows, "differs": _differs, "depends": _depends, "is": _biased,
}  # fmt: skip
"""How a verb of the language is looked for."""


def severity(signals: tuple[Signal, ...], verdict: Verdict) -> str:
    """What is raised: the highest severity among the signatures seen, among all of them if none fits; empty without violation."""
    if verdict is not Verdict.VIOLATION:
        return ""
    return max([s.severity for s in signals if s.seen] or [s.severity for s in signals], default="")


def broken(signals: tuple[Signal, ...]) -> bool:
    """Whether the kernel shows what the contract calls a violation."""
    return any(s.seen for s in signals)
