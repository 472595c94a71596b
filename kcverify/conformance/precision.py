"""Runners of the classes about precision: accumulators, cancellation, denormals, scaling."""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

from kcverify.conformance import harness, probes, shapes
from kcverify.conformance import tolerances as t
from kcverify.conformance.model import EXACT, Declared, Derivation, Reading, Run, exact
from kcverify.conformance.operations import BY_NAME, Operation, dtype, underflow


def sampled(run: Run, operation: Operation) -> None:
    """Every distribution at every trial's shape against the oracle; then new numbers in the same memory.

    A draw counts where a kernel without work would have failed it; others are drawn again, up to twice the trials.
    """
    names = run.protocol.distributions
    telling = [name for i in range(run.protocol.trials) for name in names if _one_draw(run, operation, i, name)]
    i, most = run.protocol.trials, 2 * run.protocol.trials
    while telling and run.draws < run.protocol.asked and i < most and not run.protocol.late:
        for name in dict.fromkeys(telling):
            _one_draw(run, operation, i, name)
        i += 1
    g = probes.generator(run.protocol.seed, 99)
    dims = shapes.middle(operation, run.protocol, k=32, m=4, n=8)
    harness.fresh(run, operation, probes.draw("normal", operation.shapes(dims), run.declared.operands, g))


def _one_draw(run: Run, operation: Operation, index: int, name: str) -> bool:
    """One fresh draw against the oracle; whether it counts."""
    if run.protocol.late:
        return False
    g = probes.generator(run.protocol.seed, index, DISTRIBUTION_INDEX[name])
    dims = shapes.trial(operation, run.protocol, g, index)
    args = probes.draw(name, operation.shapes(dims), run.declared.operands, g)
    before = run.powered
    harness.compare(run, operation, args, f"{operation.name}, {name}")
    run.draws += run.powered > before
    return run.powered > before


DISTRIBUTION_INDEX = {name: i for i, name in enumerate(probes.DISTRIBUTIONS)}


def typed(run: Run, *args: Tensor) -> list[Tensor]:
    """Operands in their declared formats."""
    names = run.declared.operands
    each = (names,) * len(args) if isinstance(names, str) else names
    return [x.to(dtype(name)) for x, name in zip(args, each, strict=True)]


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
    if operation.name in ("matmul", "linear"):
        if run.declared.output == "float64":
            run.notes.append("no Freivalds probe: its float64 arithmetic is no finer than the kernel's")
            return
        freivalds(run, operation)


def _operands(operation: Operation, column: Tensor, rows: int) -> list[Tensor]:
    """The column(s) `[k, n]` as the summed operand, the other of ones."""
    if operation.name == "sum":
        return [column[:, 0]]
    first = torch.ones(rows, column.shape[0], dtype=torch.float64)
    return [first, column if operation.name == "matmul" else column.mT]


def _bits(name: str) -> int:
    return 30 if name in t.EXACT_FORMATS else (1 / t.unit_roundoff(name)).numerator.bit_length() - 1


def _sizes(run: Run, operation: Operation, *wanted: int) -> list[tuple[int, int, int]]:
    """Lengths of the sum inside the declared ranges, each once, with rows and columns that are declared too."""
    found = [shapes.middle(operation, run.protocol, **{"m": 2, "n": 4, operation.reduced: k}) for k in wanted]
    sized = {d[operation.reduced]: (d.get("m", 1), d["n"] if operation.reduced != "n" else 1) for d in found}
    return [(k, *sized[k]) for k in sorted(sized)]


def _exact_sums(run: Run, operation: Operation) -> None:
    """Pairs of opposite powers of two around small whole numbers: every order is exact in the declared accumulator."""
    d = run.declared
    room = 6 if not dtype(d.inputs).is_floating_point else 14
    for k, rows, columns in _sizes(run, operation, 16, 64, 256):
        pairs = max(k // 16, 1)
        bits = min(_bits(d.accumulator) - 2 - (2 * pairs).bit_length(), room)
        if k < 4 or bits < 2:
            continue
        g = probes.generator(run.protocol.seed, 7, k)
        column = torch.zeros(k, columns, dtype=torch.float64)
        column[:pairs], column[-pairs:] = 2.0**bits, -(2.0**bits)
        count = min(k - 2 * pairs, 2 ** (_bits(d.output) - 1), 127)
        column[pairs : pairs + count] = torch.randint(0, 2, (count, columns), generator=g).double()
        args = typed(run, *_operands(operation, column, rows))
        harness.compare(run, operation, args, f"sum exact in any order, {operation.reduced}={k}", EXACT)


def picking(count: int, size: int) -> Tensor:
    """`[count, size]`: every row takes one place of `size`, one after another."""
    out = torch.zeros(count, size, dtype=torch.float64)
    out[torch.arange(count), torch.arange(count) % size] = 1.0
    return out


def _selection(run: Run, operation: Operation) -> None:
    """One term a sum, with every bit of the format used: the result is that term, rounded once."""
    dims = shapes.middle(operation, run.protocol, m=40, n=40, k=40)
    *others, last = operation.shapes(dims)
    values = probes.normal(last, probes.generator(run.protocol.seed, 11), torch.float64)
    if others:
        args = typed(run, picking(*others[0]), values)
    else:
        args = typed(run, torch.where(torch.arange(last[0]) == last[0] // 2, values, 0.0))
    harness.compare(run, operation, args, "one term a sum, all bits", _one_term(run, args[-1]))


def _one_term(run: Run, values: Tensor) -> Derivation | None:
    """The limit of a sum of one term: exact where accumulator and output hold every bit of it; None where others count."""
    d, given = run.declared, str(values.dtype).removeprefix("torch.")
    if _operands_rounded(run):
        return None
    narrow = t.unit_roundoff(d.accumulator) > t.unit_roundoff(given)
    inner = t.constant(t.unit_roundoff(d.accumulator), f"one term in {d.accumulator}") if narrow else EXACT
    if d.output in (d.accumulator if narrow else given, given):
        return inner
    return t.rounded_to(inner, d.output)


def _operands_rounded(run: Run) -> bool:
    """Whether the contract's limits name a format beside the declared ones that keeps fewer bits than the operands have."""
    d = run.declared
    known = {d.inputs, d.accumulator, d.output, *d.formats}
    named = {name for one in run.limits for name in t.formats_of(one.bound)} - known
    return any(t.unit_roundoff(name) > t.unit_roundoff(d.inputs) for name in named)


def _growth(run: Run, operation: Operation) -> None:
    """Ones: a narrow accumulator stops growing at 2^p terms, and its residual grows with the length."""
    found: list[str] = []
    for k, rows, columns in _sizes(run, operation, 64, 512, 4096):
        args = typed(run, *_operands(operation, torch.ones(k, columns, dtype=torch.float64), rows))
        before = len(run.readings)
        harness.compare(run, operation, args, f"ones, {operation.reduced}={k}")
        found += [f"{k}: {float(r.value):.2g}" for r in run.readings[before:] if r.value is not None]
    run.notes.append(f"residual of ones by {operation.reduced}: {', '.join(found)}")


FREIVALDS = 1024
"""Largest size of the probed product in every dimension; the oracle's work grows with its square."""


def freivalds(run: Run, operation: Operation, size: int = FREIVALDS) -> None:
    """A large product against a random vector of signs: `C v = A (B v)`, O(n^2) for the oracle.

    Row i may be off by `t Σ_j D_ij`; a single element off by less than that is not seen (Freivalds 1979: a wrong row of
    whole numbers escapes one vector of signs with probability at most 1/2, so eight are drawn).
    """
    d = run.declared
    dims = shapes.middle(operation, run.protocol, m=size // 8, n=size, k=size)
    g = probes.generator(run.protocol.seed, 13)
    args = probes.draw("normal", operation.shapes(dims), d.operands, g)
    a, b = (harness.wide(x) for x in args)
    right = b if operation.name == "matmul" else b.mT
    out = harness.call(run, args, (dims["m"], dims["n"]))
    if out is None:
        return
    signs = torch.randint(0, 2, (dims["n"], 8), generator=g).double() * 2 - 1
    limit = operation.tolerance([a, b], d)
    room = (a.abs() @ right.abs().sum(1))[:, None]
    error = harness.wide(out) @ signs - a @ (right @ signs)
    value = harness.ratio(error, room, dims["n"] * underflow(operation, [a, b], d))
    run.read(
        Reading(
            "Freivalds, 8 vectors of signs", value, limit, shapes.named(dims), harness.oracle_slack(operation, [a, b])
        )
    )
    if limit.value is None:
        return
    floor = float(limit.value) * float(room.mean())
    said = (
        f"a single element off by less than {floor:.3g} is not seen" if floor else "every single wrong element is seen"
    )
    escape = "a row wrong by more escapes all 8 vectors with probability at most 2^-8"
    run.notes.append(f"Freivalds at {shapes.named(dims)}, sensitivity floor: {said}; {escape}")


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
        if operation.tolerance([harness.wide(x)], d).value is None:
            run.notes.append(f"offset {offset:g}: the derivation says nothing at these operands, which are not probed")
            continue
        harness.compare(run, operation, [x], f"{operation.name}, offset {offset:g}")
        if operation.name == "softmax":
            _sum_of_rows(run, operation, x)
        if offset:
            _shifted(run, operation, grid.to(dtype(d.inputs)), x, offset)


def _sum_of_rows(run: Run, operation: Operation, x: Tensor) -> None:
    out = harness.call(run, [x])
    if out is not None:
        error = (harness.wide(out).sum(-1) - 1).abs().max()
        limit = operation.tolerance([harness.wide(x)], run.declared)
        slack = harness.oracle_slack(operation, [x])
        run.read(Reading("rows sum to 1", exact(error), limit, f"{tuple(x.shape)}", slack))


def _shifted(run: Run, operation: Operation, plain: Tensor, moved: Tensor, offset: float) -> None:
    """Both are exact in the format: the result does not see the shift, or moves by it."""
    differences = [harness.wide(x) - harness.wide(x)[..., :1] for x in (plain, moved)]
    if not torch.equal(*differences):
        return  # the shift was rounded away: these are other operands
    a, b = harness.call(run, [plain]), harness.call(run, [moved])
    if a is None or b is None:
        return
    wides = [harness.wide(x) for x in (plain, moved)]
    one, two = (operation.tolerance([x], run.declared) for x in wides)
    limit = t.plus(one, two, "two runs")
    magnitude = torch.maximum(*(operation.magnitude(x) for x in wides))
    error = harness.wide(a) + (offset if operation.name == "logsumexp" else 0.0) - harness.wide(b)
    value = harness.ratio(error, magnitude, 2 * underflow(operation, wides[:1], run.declared))
    slack = harness.oracle_slack(operation, [wides[0]])
    run.read(Reading("shift invariance", value, limit, f"{tuple(plain.shape)}, by {offset:g}", slack))


def denormals(run: Run) -> None:
    """C-PRC-03: numbers below the smallest normal one come out as they are, or as zero where that is declared."""
    operation, d = BY_NAME[run.operation], run.declared
    sampled(run, operation)
    dims = shapes.middle(operation, run.protocol, m=8, n=8, k=8)
    g = probes.generator(run.protocol.seed, 19)
    small, *others = probes.draw("subnormal", operation.shapes(dims), d.operands, g)
    if operation.name == "sum":
        small = torch.where(
            torch.arange(small.shape[-1]) == 1,
            small.double() + float(torch.finfo(small.dtype).smallest_normal) / 8,
            0.0,
        ).to(small.dtype)
    args = [small, *(_units(operation, x) for x in others)]
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


def _units(operation: Operation, x: Tensor) -> Tensor:
    """The second operand that gives the first one's elements back: ones, or one term for every sum."""
    if operation.name == "multiply":
        return torch.ones_like(x)
    return (picking(*x.shape) if operation.name == "linear" else picking(*x.mT.shape).mT).contiguous().to(x.dtype)


def scaling(run: Run) -> None:
    """C-PRC-04: powers of two in an operand come out as they are, in range: one for all of it, and one for every row."""
    operation, d = BY_NAME[run.operation], run.declared
    sampled(run, operation)
    reach = _reach(d)
    for i, power in enumerate((-reach, -reach // 2, -1, 1, reach // 2, reach)):
        g = probes.generator(run.protocol.seed, 23, i)
        dims = shapes.middle(operation, run.protocol, m=6, n=10, k=48)
        args = probes.draw("normal", operation.shapes(dims), d.operands, g)
        powers = torch.full((args[0].shape[0] if args[0].dim() > 1 else 1,), float(power), dtype=torch.float64)
        _scaled(run, operation, args, powers, f"scaled by 2^{power}")
        if operation.rowwise and args[0].dim() > 1:
            blocks = torch.randint(-reach, reach + 1, powers.shape, generator=g).double()
            _scaled(run, operation, args, blocks, "a scale for every row")


def _scaled(run: Run, operation: Operation, args: list[Tensor], powers: Tensor, name: str) -> None:
    """The first operand's rows times `2^powers`; elements that leave the format's range are zeroed on both sides."""
    factors = torch.exp2(powers)[:, None] if args[0].dim() > 1 else torch.exp2(powers)
    moved = (args[0].double() * factors).to(args[0].dtype)
    keep = moved.double() / factors == args[0].double()
    if not bool(keep.all()):
        run.notes.append(f"{name}: some operands left the range of {args[0].dtype}: those are zeroed")
    plain, moved = (torch.where(keep, x.double(), 0.0).to(x.dtype) for x in (args[0], moved))
    a, b = harness.call(run, [plain, *args[1:]]), harness.call(run, [moved, *args[1:]])
    if a is None or b is None:
        return
    wides = [harness.wide(plain), *(harness.wide(x) for x in args[1:])]
    floor = underflow(operation, wides, run.declared) * float(torch.exp2(-powers).clamp_min(1.0).max())
    value = harness.ratio(harness.wide(b) / factors - harness.wide(a), operation.magnitude(*wides), floor)
    run.read(Reading(name, value, EXACT, str([tuple(x.shape) for x in args])))


def _reach(d: Declared) -> int:
    """Exponent by which operands of size about 1 may be scaled in every declared format."""
    least = min(t.smallest_normal(name) for name in (d.inputs, d.output) if t.smallest_normal(name))
    return max(1, (1 / least).numerator.bit_length() // 6) if least > Fraction(0) else 1
