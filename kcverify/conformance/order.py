"""Runners of the classes about order: schedules of a sum, determinism, communication."""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

from kcverify.conformance import harness, probes, ranks, shapes
from kcverify.conformance import tolerances as t
from kcverify.conformance.model import EXACT, Derivation, Reading, Run, exact
from kcverify.conformance.operations import BY_NAME, Operation, dtype, underflow
from kcverify.conformance.precision import sampled


def orders(x: Tensor, g: torch.Generator) -> list[Tensor]:
    """The same terms in other orders: reversed, sorted by size both ways, three draws."""
    by_size = x.double().abs().argsort()
    found = [x, x.flip(0), x[by_size], x[by_size.flip(0)]]
    return found + [x[torch.randperm(x.shape[0], generator=g)] for _ in range(3)]


def spread_of(results: list[Tensor], terms: Tensor, floor: float, by: str = "spread") -> Fraction | None:
    """`(max - min) / Σ|x|` of scalars, or by `max|x|`."""
    values = torch.stack([harness.wide(r).reshape(()) for r in results])
    sizes = harness.wide(terms).abs()
    total = (sizes.max() if by == "spread_max" else sizes.sum()).reshape(1)
    return harness.ratio((values.max() - values.min()).reshape(1), total, floor)


def reduction(run: Run) -> None:
    """C-ORD-01: the spread over orders of the same terms stays within the derived one."""
    operation, d = BY_NAME["sum"], run.declared
    sampled(run, operation)
    for i in range(run.protocol.trials):
        for j, name in enumerate((*run.protocol.distributions, "identical")):
            g = probes.generator(run.protocol.seed, 29, i, j)
            dims = shapes.trial(operation, run.protocol, g, i)
            if run.protocol.late:
                return
            (x,) = probes.draw(name, operation.shapes(dims), d.operands, g)
            results = [harness.call(run, [y.clone()], ()) for y in orders(x, g)]
            kept = [r for r in results if r is not None]
            if len(kept) < len(results):
                return
            wides = [harness.wide(x)]
            if not bool(harness.within_range(run, operation, wides, operation.oracle(*wides)).all()):
                continue
            floor = 2 * underflow(operation, [x], d)
            for by, limit in spread_limits(x.shape[-1], run):
                value = spread_of(kept, x, floor, by)
                run.read(
                    Reading(
                        f"spread over {len(kept)} orders, {name}", value, limit, shapes.named(dims), Fraction(1, 2**40)
                    )
                )


SPREADS = ("spread", "spread_max")
"""What a contract may limit: the spread over orders by `Σ|x|`, or by `max|x|`."""


def spread_limits(count: int, run: Run) -> list[tuple[str, Derivation]]:
    """The contract's own limits of a spread, else the derived one."""
    own = [(one.error, t.evaluate(one.bound, {"n": count})) for one in run.limits if one.error in SPREADS]
    return own or [("spread", spread_limit(count, run))]


def refuted(run: Run, count: int) -> tuple[str, Fraction, Derivation] | None:
    """A limit that two conforming sums of ones exceed, one after another and as a tree, with their spread."""
    ones = torch.ones(count, dtype=torch.float64)
    results = [tree_sum(ones, fanout, run.declared.accumulator) for fanout in (1, 2)]
    for by, limit in spread_limits(count, run):
        value = spread_of(results, ones, 0.0, by)
        if limit.value is not None and value is not None and value > limit.value:
            return by, value, limit
    return None


def spread_limit(count: int, run: Run) -> Derivation:
    """Spread of two orders in the declared accumulator, and a rounding of each result."""
    inner = t.spread(count, run.declared.accumulator, run.declared.summation)
    u = t.unit_roundoff(run.declared.output)
    if inner.value is None or run.declared.output == run.declared.accumulator:
        return inner
    value = inner.value + 2 * u * (1 + inner.value / 2)
    return Derivation(value, (*inner.lines, f"each rounded to {run.declared.output}: {t.shown(value)}"))


def tree_sum(x: Tensor, fanout: int, name: str) -> Tensor:
    """A conforming sum in a format: `fanout` 1 is sequential, 2 a balanced tree. Each step rounded to the format."""
    kind = dtype(name)
    y = x.to(kind)
    if fanout == 1:
        total = torch.zeros((), dtype=kind)
        for value in y:
            total = (total.double() + value.double()).to(kind)
        return total
    while y.shape[0] > 1:
        if y.shape[0] % 2:
            y = torch.cat((y, torch.zeros(1, dtype=kind)))
        y = (y[::2].double() + y[1::2].double()).to(kind)
    return y[0]


def differing(a: Tensor, b: Tensor) -> Fraction | None:
    """Share of elements that differ in a bit."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return None
    sizes = a.element_size()
    left, right = (x.contiguous().reshape(-1).view(torch.uint8).reshape(-1, sizes) for x in (a, b))
    return exact((left != right).any(1).double().mean()) if a.numel() else Fraction(0)


def determinism(run: Run) -> None:
    """C-ORD-02: repeats, batch sizes and thread counts give the declared agreement."""
    operation = BY_NAME[run.operation]
    sampled(run, operation)
    dims = shapes.middle(operation, run.protocol, m=33, n=24, k=512)
    for i, name in enumerate(("normal", "cancellation")):
        g = probes.generator(run.protocol.seed, 31, i)
        args = probes.draw(name, operation.shapes(dims), run.declared.operands, g)
        first = harness.call(run, args)
        if first is None:
            return
        for label, other, part in variants(run, operation, args):
            if other is not None:
                _agree(run, operation, args, first[part], other, part, f"{label}, {name}")


def variants(run: Run, operation: Operation, args: list[Tensor]) -> list[tuple[str, Tensor | None, slice]]:
    """Repeats, thread counts and batches of the same operands, each with the rows that it holds."""
    whole = slice(None)
    found = [(f"repeat {i + 1}", harness.call(run, args), whole) for i in range(3)]
    threads = torch.get_num_threads()
    for count in (1, 2, 4):
        try:
            torch.set_num_threads(count)
            found.append((f"{count} threads", harness.call(run, args), whole))
        finally:
            torch.set_num_threads(threads)
    if operation.rowwise:
        low = shapes.ranges(operation, run.protocol)["m"][0]
        for size in sorted({low, 1, 2, 16}):
            smaller = {**harness.sizes(operation, args), "m": size}
            if low <= size < args[0].shape[0] and not shapes.broken(smaller, run.protocol.requires):
                part = slice(0, size)
                batch = [args[0][part].clone(), *args[1:]]
                found.append((f"batch of {size}", harness.call(run, batch), part))
    return found


def _agree(run: Run, operation: Operation, args: list[Tensor], a: Tensor, b: Tensor, part: slice, name: str) -> None:
    declared = run.declared.determinism
    if declared == "none":
        return
    if declared == "bitwise":
        run.read(Reading(name, differing(a, b), EXACT, "share of elements with another bit"))
        return
    wides = [harness.wide(x) for x in args]
    limit = t.times(2, operation.tolerance(wides, run.declared), "two runs")
    value = harness.ratio(
        harness.wide(a) - harness.wide(b), operation.magnitude(*wides)[part], underflow(operation, wides, run.declared)
    )
    run.read(Reading(name, value, limit, "", harness.oracle_slack(operation, wides)))


def communication(run: Run) -> None:
    """C-ORD-03: buckets reduced over gloo processes, one after another and overlapped, agree with the exact sum."""
    name = ranks.name_of(run.kernel)
    answers = ranks.reduce(name, run.protocol.seed)
    if isinstance(answers, str):
        run.find("kernel_crashed", reason=answers)
        return
    limit = t.rounded_to(t.gamma(ranks.WORLD - 1, run.declared.accumulator), run.declared.output)
    for case in answers:
        run.read(
            Reading(
                case["name"],
                exact(case["error"]) if case["error"] is not None else None,
                limit,
                case["where"],
                Fraction(1, 2**40),
            )
        )
        run.read(Reading(f"{case['name']}: ranks agree", exact(case["apart"]), EXACT, case["where"]))
    run.powered += 1
    run.draws += len(answers) * ranks.WORLD
