"""Runners of the classes about composition: fusion, schedules, shapes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial

import torch
from torch import Tensor

from kcverify.conformance import harness, probes, shapes
from kcverify.conformance import tolerances as t
from kcverify.conformance.later import Later
from kcverify.conformance.model import Declared, Derivation, Function, Reading, Run, Verdict
from kcverify.conformance.operations import BY_NAME, Operation, dtype, underflow
from kcverify.conformance.precision import sampled
from kcverify.conformance.sampling import needed

SHARE = Fraction(95, 100)
HELD_OUT = 64
"""Fewest held-out shapes: with none failing, 59 are enough for 95 % confidence in a rate of 95 %."""


def fused(run: Run) -> None:
    """C-CMP-01: the fused kernel against the operation in steps, within the tolerances of both together."""
    operation, d = BY_NAME[run.operation], run.declared
    sampled(run, operation)
    if operation.unfused is None:
        run.notes.append(f"{operation.name} has no steps: compared with the oracle alone")
        return
    for i in range(run.protocol.trials):
        for j, name in enumerate(run.protocol.distributions):
            g = probes.generator(run.protocol.seed, 37, i, j)
            dims = shapes.trial(operation, run.protocol, g, i)
            args = probes.draw(name, operation.shapes(dims), d.operands, g)
            _pair(
                run, operation, args, partial(harness.call, run), _steps(operation, d), f"fused against steps, {name}"
            )


def _steps(operation: Operation, d: Declared) -> Function:
    """The operation in steps with a result in the declared format: in float32, in float64 where float32 is no such precision.

    A library's own steps take operands in their format.
    """
    unfused, output = operation.unfused, dtype(d.output)
    assert unfused is not None
    if ":" in operation.name:
        return unfused
    fine = d.accumulator == "float64" or d.accumulator in t.EXACT_FORMATS

    def steps(*args: Tensor) -> Tensor:
        out: Tensor = operation.oracle(*[x.double() for x in args]) if fine else unfused(*[x.float() for x in args])
        return out.to(output)

    return steps


def _pair(
    run: Run,
    operation: Operation,
    args: list[Tensor],
    one: Callable[[list[Tensor]], Tensor | None],
    other: Function,
    name: str,
) -> None:
    out = one(args)
    if out is None:
        return
    wides = [harness.wide(x) for x in args]
    limit = t.times(2, operation.tolerance(wides, run.declared), "both sides")
    error = harness.wide(out) - harness.wide(other(*args))
    error = torch.where(harness.within_range(run, operation, wides, operation.oracle(*wides)), error, 0.0)
    value = harness.ratio(error, operation.magnitude(*wides), 2 * underflow(operation, wides, run.declared))
    run.read(Reading(name, value, limit, str([tuple(x.shape) for x in args]), harness.oracle_slack(operation, wides)))


def schedules(kernel: Function) -> list[object]:
    """What a kernel's parameter `schedule` may be: the values of its attribute `schedules`, none without one."""
    if isinstance(kernel, Later):
        return list(kernel.schedules)
    try:
        known = "schedule" in inspect.signature(kernel).parameters
    except (TypeError, ValueError):
        return []
    return list(getattr(kernel, "schedules", range(4))) if known else []


def schedule(run: Run) -> None:
    """C-CMP-02: tiles, splits and orders of the summed dimension change the result by no more than two roundings of a sum."""
    operation, d = BY_NAME[run.operation], run.declared
    sampled(run, operation)
    choices = schedules(run.kernel)
    for i in range(run.protocol.trials):
        g = probes.generator(run.protocol.seed, 41, i)
        dims = shapes.trial(operation, run.protocol, g, i)
        args = probes.draw("normal", operation.shapes(dims), d.operands, g)
        wides = [harness.wide(x) for x in args]
        limit = t.times(2, operation.tolerance(wides, d), "two schedules")
        found = _results(run, operation, args, choices, g)
        if len(found) < 2 or any(out is None for _, out in found):
            continue
        stacked = torch.stack([harness.wide(out) for _, out in found if out is not None])
        kept = harness.within_range(run, operation, wides, operation.oracle(*wides))
        error = torch.where(kept, stacked.amax(0) - stacked.amin(0), 0.0)
        bad = not bool(torch.isfinite(torch.where(kept, stacked, 0.0)).all())
        value = None if bad else harness.ratio(error, operation.magnitude(*wides), 2 * underflow(operation, wides, d))
        names = ", ".join(name for name, _ in found)
        run.read(
            Reading(
                "spread over schedules",
                value,
                limit,
                f"{shapes.named(dims)}: {names}",
                harness.oracle_slack(operation, wides),
            )
        )


def _results(
    run: Run, operation: Operation, args: list[Tensor], choices: list[object], g: torch.Generator
) -> list[tuple[str, Tensor | None]]:
    """Of every declared schedule; of permuted and of padded sums, which move tiles and splits of any kernel."""
    found: list[tuple[str, Tensor | None]] = [("as given", harness.call(run, args))]
    whole = run.kernel
    for choice in choices:
        run.kernel = partial(whole, schedule=choice)
        found.append((f"schedule {choice}", harness.call(run, args)))
    run.kernel = whole
    axes = _SUMMED.get(operation.name)
    if axes is not None:
        size = args[0].shape[axes[0]]
        order = torch.randperm(size, generator=g)
        moved = [x.index_select(axis, order) for x, axis in zip(args, axes, strict=True)]
        found.append(("permuted", harness.call(run, moved)))
        room = shapes.ranges(operation, run.protocol)[operation.reduced][1] - size
        longer = {**harness.sizes(operation, args), operation.reduced: size + min(PADDING, room)}
        if operation.bilinear and room > 0 and not shapes.broken(longer, run.protocol.requires):
            padded = [_padded(x, axis, min(PADDING, room)) for x, axis in zip(args, axes, strict=True)]
            found.append(("padded", harness.call(run, padded)))
    return found


PADDING = 48
"""Zeros behind a sum: a multiple of the usual tiles that is no power of two; fewer where longer sums are not declared."""


def _padded(x: Tensor, axis: int, count: int) -> Tensor:
    """Zeros behind an axis."""
    shape = list(x.shape)
    shape[axis] = count
    return torch.cat([x, torch.zeros(shape, dtype=torch.float32).to(x.dtype)], axis)


_SUMMED = {"matmul": (1, 0), "linear": (1, 1), "sum": (0,), "logsumexp": (1,), "variance": (1,)}
"""Axis of every operand that the operation sums over; the order of it is free."""


def polymorphism(run: Run) -> None:
    """C-CMP-03: the pass rate over held-out shapes of the declared class is at least 0.95 of the benchmarked shape's."""
    operation = BY_NAME[run.operation]
    at = shapes.benchmark(operation, run.protocol)
    benchmarked = [_passes(run, operation, at, i, _TOLD) for i in range(4)]
    rate = sum(benchmarked) / len(benchmarked)
    if not rate:
        run.read(Reading("benchmarked shape: no draw passes", None, Derivation(Fraction(0), ()), f"{at}"))
        return
    floor = SHARE * Fraction(sum(benchmarked), len(benchmarked))
    count = max(HELD_OUT, needed(floor, run.protocol.confidence), run.protocol.asked)
    passed, failing, tried = 0, [], 0
    for i in range(count):
        if run.protocol.late:
            break
        g = probes.generator(run.protocol.seed, 43, i)
        dims = shapes.trial(operation, run.protocol, g, i + 1)
        ok = _passes(run, operation, dims, i)
        tried += 1
        passed += ok
        failing += [] if ok else [dims]
    decided = t.rate_decision(passed, tried, floor, run.protocol.confidence)
    lines = (
        f"at most 1 - 0.95 * {rate:g} = {float(1 - floor):.3g} of held-out shapes fail, at confidence {run.protocol.confidence}",
    )
    limit = Derivation(1 - floor, lines)
    run.draws += passed
    share = Fraction(tried - passed, max(tried, 1))
    slack = Fraction(0) if decided is not None else Fraction(1)
    where = f"{passed} of {tried} held-out shapes pass" + (
        f", first failing {shapes.named(failing[0])}" if failing else ""
    )
    run.read(Reading("held-out shapes", share, limit, where, slack))
    g = probes.generator(run.protocol.seed, 45)
    small = shapes.middle(operation, run.protocol, m=4, n=8, k=32)
    harness.fresh(run, operation, probes.draw("normal", operation.shapes(small), run.declared.operands, g))


_SPOILT = ("inputs_changed", "output_deferred", "process_changed")
_TOLD = (*_SPOILT, "output_form", "kernel_raised")
"""Findings of one shape that are findings of the run: held-out shapes may fail by form or by raising, the benchmarked one may not."""


def _passes(run: Run, operation: Operation, dims: dict[str, int], index: int, told: tuple[str, ...] = _SPOILT) -> bool:
    """One shape on a run of its own, whose power counts for the whole."""
    inner = Run(run.kernel, run.declared, replace(run.protocol, asked=0), run.operation, run.limits, left=run.left)
    g = probes.generator(run.protocol.seed, 47, index)
    args = probes.draw("normal", operation.shapes(dims), run.declared.operands, g)
    harness.compare(inner, operation, args, "shape")
    run.powerless += inner.powerless
    run.powered += inner.powered
    for finding in inner.findings:
        if finding.code.slug in told and finding not in run.findings:
            run.findings.append(finding)
    return (
        inner.verdict in (Verdict.WITHIN, Verdict.UNDER_SPECIFIED)
        and bool(inner.readings)
        and all(r.verdict is Verdict.WITHIN for r in inner.readings)
    )
