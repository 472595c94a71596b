"""Runners of the classes about precision: accumulators, cancellation, denormals, scaling."""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

from kcverify.conformance import harness, probes, shapes
from kcverify.conformance import tolerances as t
from kcverify.conformance.model import EXACT, Declared, Reading, Run, exact
from kcverify.conformance.operations import BY_NAME, Operation, dtype, underflow


def sampled(run: Run, operation: Operation) -> None:
    """Every distribution at every trial's shape against the oracle; then new numbers in the same memory."""
    for i in range(run.protocol.trials):
        for j, name in enumerate(run.protocol.distributions):
            g = probes.generator(run.protocol.seed, i, j)
            dims = shapes.trial(operation, run.protocol, g, i)
            args = probes.draw(name, operation.shapes(dims), run.declared.inputs, g)
            harness.compare(run, operation, args, f"{operation.name}, {name}")
    g = probes.generator(run.protocol.seed, 99)
    dims = shapes.middle(operation, run.protocol, k=32, m=4, n=8)
    harness.fresh(run, operation, probes.draw("normal", operation.shapes(dims), run.declared.inputs, g))


def accumulator(run: Run) -> None:
    """C-PRC-01: backward error, sums exact in any order, growth with the sum's length, Freivalds for large products."""
    operation = BY_NAME[run.operation]
    sampled(run, operation)
    if not operation.reduced or not operation.bilinear:
        return
    _exact_sums(run, operation)
    if dtype(run.declared.inputs).is_floating_point:
        _selection(run, operation)
        _growth(run, operation)
    if operation.name == "matmul":
        freivalds(run)


def _operands(operation: Operation, column: Tensor, rows: int, scale: float) -> list[Tensor]:
    """The column(s) `[k, n]` as the summed operand, the other constant."""
    if operation.name == "sum":
        return [column[:, 0] * scale]
    first = torch.full((rows, column.shape[0]), scale, dtype=torch.float64)
    return [first, column if operation.name == "matmul" else column.mT]


def _bits(name: str) -> int:
    return 30 if name in t.EXACT_FORMATS else (1 / t.unit_roundoff(name)).numerator.bit_length() - 1


def _sizes(run: Run, operation: Operation, *wanted: int) -> list[int]:
    """Lengths of the sum inside the declared range."""
    return sorted({shapes.middle(operation, run.protocol, **{operation.reduced: k})[operation.reduced] for k in wanted})


def _exact_sums(run: Run, operation: Operation) -> None:
    """Pairs of opposite powers of two around small whole numbers: every order is exact in the declared accumulator."""
    d = run.declared
    sizes = _sizes(run, operation, 16, 64, 256)
    room = 6 if not dtype(d.inputs).is_floating_point else 14
    for k in sizes:
        pairs = max(k // 16, 1)
        bits = min(_bits(d.accumulator) - 2 - (2 * pairs).bit_length(), room)
        if k < 4 or bits < 2:
            continue
        g = probes.generator(run.protocol.seed, 7, k)
        column = torch.zeros(k, 4, dtype=torch.float64)
        column[:pairs], column[-pairs:] = 2.0**bits, -(2.0**bits)
        small = torch.randint(0, 2, (min(k - 2 * pairs, 2 ** (_bits(d.output) - 1), 127), 4), generator=g).double()
        column[pairs : pairs + small.shape[0]] = small
        args = [x.to(dtype(d.inputs)) for x in _operands(operation, column, 2, 1.0)]
        harness.compare(run, operation, args, f"sum exact in any order, {operation.reduced}={k}", EXACT)


def _selection(run: Run, operation: Operation) -> None:
    """One term a sum, with every bit of the format used: the result is that term, rounded once."""
    k = shapes.middle(operation, run.protocol, k=40, n=40)[operation.reduced]
    g = probes.generator(run.protocol.seed, 11)
    values = probes.normal((k, k), g, dtype(run.declared.inputs)).to(dtype(run.declared.inputs))
    if operation.name == "sum":
        args = [torch.where(torch.arange(k) == k // 2, values[0].double(), 0.0).to(values.dtype)]
    else:
        args = [torch.eye(k, dtype=torch.float64).to(values.dtype), values]
    one = t.constant(t.unit_roundoff(run.declared.output), f"a sum of one term, rounded to {run.declared.output}")
    same = run.declared.output == run.declared.inputs
    harness.compare(run, operation, args, "one term a sum, all bits", EXACT if same else one)


def _growth(run: Run, operation: Operation) -> None:
    """Ones: a narrow accumulator stops growing at 2^p terms, and its residual grows with the length."""
    found: list[str] = []
    for k in _sizes(run, operation, 64, 512, 4096):
        args = [
            x.to(dtype(run.declared.inputs))
            for x in _operands(operation, torch.ones(k, 2, dtype=torch.float64), 2, 1.0)
        ]
        before = len(run.readings)
        harness.compare(run, operation, args, f"ones, {operation.reduced}={k}")
        found += [f"{k}: {float(r.value):.2g}" for r in run.readings[before:] if r.value is not None]
    run.notes.append(f"residual of ones by {operation.reduced}: {', '.join(found)}")


def freivalds(run: Run, size: int = 192) -> None:
    """A large product against a random vector of signs: `C v = A (B v)`, O(n^2) for the oracle.

    Row i may be off by `t Σ_j D_ij`; a single element off by less than that is not seen (Freivalds 1979: a wrong row of
    whole numbers escapes one vector of signs with probability at most 1/2, so eight are drawn).
    """
    operation, d = BY_NAME["matmul"], run.declared
    dims = shapes.middle(operation, run.protocol, m=size, n=size, k=size)
    g = probes.generator(run.protocol.seed, 13)
    args = probes.draw("normal", operation.shapes(dims), d.inputs, g)
    a, b = (harness.wide(x) for x in args)
    out = harness.call(run, args, (dims["m"], dims["n"]))
    if out is None:
        return
    signs = torch.randint(0, 2, (dims["n"], 8), generator=g).double() * 2 - 1
    limit = operation.tolerance([a, b], d)
    room = (a.abs() @ b.abs().sum(1))[:, None]
    value = harness.ratio(
        harness.wide(out) @ signs - a @ (b @ signs), room, dims["n"] * underflow(operation, [a, b], d)
    )
    run.read(Reading("Freivalds, 8 vectors of signs", value, limit, f"{dims}", harness.oracle_slack(operation, [a, b])))
    if limit.value is not None:
        floor = float(limit.value) * float(room.mean())
        seen = (
            f"a single element off by less than {floor:.3g} is not seen"
            if floor
            else "every single wrong element is seen"
        )
        run.notes.append(f"Freivalds at {dims}: {seen}")


def cancellation(run: Run) -> None:
    """C-PRC-02: large offsets, shift invariance, sums of rows."""
    operation = BY_NAME[run.operation]
    sampled(run, operation)
    d = run.declared
    dims = shapes.middle(operation, run.protocol, m=6, n=64)
    for i, offset in enumerate((0.0, 64.0, 1024.0, -4096.0)):
        g = probes.generator(run.protocol.seed, 17, i)
        grid = torch.randint(-16, 17, (dims["m"], dims["n"]), generator=g).double() / 4
        x = (grid + offset).to(dtype(d.inputs))
        harness.compare(run, operation, [x], f"{operation.name}, offset {offset:g}")
        if operation.name == "softmax":
            _sum_of_rows(run, operation, x)
        if operation.name == "softmax" and offset:
            _shifted(run, operation, grid.to(dtype(d.inputs)), x)


def _sum_of_rows(run: Run, operation: Operation, x: Tensor) -> None:
    out = harness.call(run, [x])
    if out is not None:
        error = (harness.wide(out).sum(-1) - 1).abs().max()
        limit = operation.tolerance([harness.wide(x)], run.declared)
        run.read(
            Reading("rows sum to 1", exact(error), limit, f"{tuple(x.shape)}", harness.oracle_slack(operation, [x]))
        )


def _shifted(run: Run, operation: Operation, plain: Tensor, moved: Tensor) -> None:
    """Both are exact in the format, and softmax does not see the shift."""
    differences = [harness.wide(x) - harness.wide(x)[..., :1] for x in (plain, moved)]
    if not torch.equal(*differences):
        return  # the shift was rounded away: these are other operands
    a, b = harness.call(run, [plain]), harness.call(run, [moved])
    if a is None or b is None:
        return
    wide = harness.wide(plain)
    limit = t.times(2, operation.tolerance([wide], run.declared), "two runs")
    value = harness.ratio(
        harness.wide(a) - harness.wide(b), operation.magnitude(wide), underflow(operation, [wide], run.declared)
    )
    run.read(
        Reading("shift invariance", value, limit, f"{tuple(plain.shape)}", harness.oracle_slack(operation, [wide]))
    )


def denormals(run: Run) -> None:
    """C-PRC-03: numbers below the smallest normal one come out as they are, or as zero where that is declared."""
    operation, d = BY_NAME[run.operation], run.declared
    sampled(run, operation)
    dims = shapes.middle(operation, run.protocol, m=8, n=8, k=8)
    dims = {
        name: 8 if operation.bilinear and name in ("n", "k") and operation.name in ("matmul", "linear") else size
        for name, size in dims.items()
    }
    g = probes.generator(run.protocol.seed, 19)
    small, *others = probes.draw("subnormal", operation.shapes(dims), d.inputs, g)
    if operation.name == "sum":
        small = torch.where(
            torch.arange(small.shape[-1]) == 1,
            small.double() + float(torch.finfo(small.dtype).smallest_normal) / 8,
            0.0,
        ).to(small.dtype)
    unit = torch.ones if operation.name == "multiply" else (lambda *s: torch.eye(s[0]))
    args = [small, *(unit(*x.shape).to(x.dtype) for x in others)]
    out = harness.call(run, args)
    if out is None:
        return
    expected = operation.oracle(*[harness.wide(x) for x in args])
    got = harness.wide(out)
    wrong = got != expected
    if d.denormals == "flush":
        wrong &= got != 0
    share = exact(wrong.double().mean())
    run.read(Reading(f"denormals, declared {d.denormals}", share, EXACT, f"{tuple(small.shape)}"))
    flushed = int(((got == 0) & (expected != 0)).sum())
    run.notes.append(f"{flushed} of {int((expected != 0).sum())} denormal results came out as zero")


def scaling(run: Run) -> None:
    """C-PRC-04: a power of two in the first operand comes out as it is, in range."""
    operation, d = BY_NAME[run.operation], run.declared
    sampled(run, operation)
    reach = _reach(d)
    for i, power in enumerate((-reach, -reach // 2, -1, 1, reach // 2, reach)):
        g = probes.generator(run.protocol.seed, 23, i)
        dims = shapes.middle(operation, run.protocol, m=6, n=10, k=48)
        args = probes.draw("normal", operation.shapes(dims), d.inputs, g)
        scaled = [(args[0].double() * 2.0**power).to(args[0].dtype), *args[1:]]
        if not torch.equal(scaled[0].double() * 2.0**-power, args[0].double()):
            run.notes.append(f"2^{power} left the range of {d.inputs} for some operands: those are zeroed")
            keep = scaled[0].double() * 2.0**-power == args[0].double()
            args[0], scaled[0] = (torch.where(keep, x.double(), 0.0).to(x.dtype) for x in (args[0], scaled[0]))
        plain, moved = harness.call(run, args), harness.call(run, scaled)
        if plain is None or moved is None:
            return
        wides = [harness.wide(x) for x in args]
        floor = underflow(operation, wides, d) * max(2.0**-power, 1.0)
        error = harness.wide(moved) * 2.0**-power - harness.wide(plain)
        value = harness.ratio(error, operation.magnitude(*wides), floor)
        run.read(Reading(f"scaled by 2^{power}", value, EXACT, f"{dims}"))


def _reach(d: Declared) -> int:
    """Exponent by which operands of size about 1 may be scaled in every declared format."""
    least = min(t.smallest_normal(name) for name in (d.inputs, d.output) if t.smallest_normal(name))
    return max(1, (1 / least).numerator.bit_length() // 6) if least > Fraction(0) else 1
