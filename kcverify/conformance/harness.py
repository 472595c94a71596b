"""Calls a kernel so that it cannot pass by accident, and measures its result against the oracle.

Operands are cloned and compared afterwards; freed memory of the result's size is poisoned before the call; the oracle runs
only after the kernel returned; the result is copied at once and compared again at the end; NaN is no wildcard; every
comparison is repeated with zeros, a constant and a copy of the input, and one that they pass has no power.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor

from kcverify.conformance import form, probes, reach, shapes, surroundings, tampering
from kcverify.conformance.model import Declared, Derivation, Reading, Run, Verdict, exact
from kcverify.conformance.operations import BY_NAME, Operation, dtype, underflow
from kcverify.conformance.operations import result as result_dimensions
from kcverify.conformance.tolerances import evaluate, unit_roundoff

Refusals = (Exception, SystemExit)
"""A kernel is somebody else's code: whatever it raises becomes a finding."""


class StrayError(Exception):
    """What a kernel raised that is no exception of a program: it would pass every handler up to the interpreter's own."""


_ORACLE = Fraction(1, 2**52)
HELD, HELD_SIZE = 3, 2**16
"""Results that are compared again at later calls, and the largest that is kept for it."""


def wide(x: Tensor) -> Tensor:
    """float64 on the CPU."""
    return x.detach().to("cpu").double()


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal in type, shape and every bit, NaN included."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    left, right = (plain(x).contiguous().reshape(-1).view(torch.uint8) for x in (a, b))
    return bool(torch.equal(left, right))


def plain(x: Tensor) -> Tensor:
    """The numbers alone: no gradient, no sign or conjugate that is still to be applied."""
    return x.detach().resolve_conj().resolve_neg()


def poison(
    *shapes: torch.Size | tuple[int, ...], dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> None:
    """Fill memory with NaN and free it: an output that is never written comes out as NaN, not as the last answer."""
    value = float("nan") if dtype.is_floating_point else 77
    for shape in shapes:
        blocks = [torch.empty(shape, dtype=dtype, device=device).fill_(value) for _ in range(3)]
        del blocks


def call(run: Run, args: list[Tensor], result: torch.Size | tuple[int, ...] | None = None) -> Tensor | None:
    """The kernel's result as a copy of its own, on the processor; None after a finding that says why there is none.

    Operands are moved to the declared device first, in their strides.
    """
    if run.declared.device != "cpu":
        args = [x.to(run.declared.device) for x in args]
    given = [x.clone() for x in args]
    if result is not None:
        kind = args[-1].dtype if args[-1].dtype.is_floating_point else torch.float32
        poison(result, result, dtype=kind, device=args[-1].device)
    try:
        out = invoke(run, args)
    except Refusals as error:
        name = form.printable(type(error).__name__)
        run.find("kernel_raised", error=name, reason=form.reason(error), shapes=_shapes(given))
        restore(run, args, given)
        return None
    restore(run, args, given)
    wrong = form.fault(out, run.declared)
    if wrong:
        run.find("output_form", reason=wrong)
        return None
    assert isinstance(out, Tensor)
    other = form.format_fault(out, run.declared, run.operation == "cast")
    if other:
        run.find("output_form", reason=other)
    copy = plain(out).clone()
    wanted = _wanted(run, args) if result is None else tuple(result)
    if wanted is not None and tuple(copy.shape) != wanted:
        run.find("output_form", reason=f"shape {tuple(copy.shape)}, not {wanted}")
        return None
    _later(run, out, copy, args)
    if any(not same_bits(old, kept) for old, kept, _ in run.held):
        run.find("output_deferred", shapes=next(at for old, kept, at in run.held if not same_bits(old, kept)))
    if out.numel() <= HELD_SIZE:
        run.held[:] = [*run.held[-HELD:], (out.detach(), copy, _shapes(args))]
    return copy.to("cpu")


def _wanted(run: Run, args: list[Tensor]) -> tuple[int, ...] | None:
    """The result's shape, None for an operation without a row."""
    operation = BY_NAME.get(run.operation)
    if operation is None:
        return None
    dims = sizes(operation, args)
    return tuple(dims[name] for name in result_dimensions(operation))


def invoke(run: Run, args: list[Tensor]) -> object:
    """What the kernel returns. Settings of the process that it leaves changed hold for its own calls alone, names for none.

    Both are a finding.
    """
    changes, undo, read, put = tampering.changes, tampering.undo, surroundings.read, surroundings.put
    ours, names = read(), tampering.snapshot()
    if run.left is not None:
        put(run.left)
    try:
        return run.kernel(*args)
    except (*Refusals, KeyboardInterrupt):
        raise
    except BaseException as stray:
        raise StrayError(f"{form.printable(type(stray).__name__)}: {form.reason(stray)}") from None
    finally:
        replaced = changes(names)
        undo(replaced)
        left = read()
        put(ours)
        run.left = None if left == ours else left
        said = [x for x in (left.differing(ours), tampering.said(replaced)) if x]
        if said:
            run.find("process_changed", what="; ".join(said))
            run.notes.append(f"the kernel changes the process: {'; '.join(said)}; kept from the oracle")


def restore(run: Run, args: list[Tensor], given: list[Tensor]) -> None:
    """Operands as they were, their change a finding: numbers, shape, class, and whether gradients are kept."""
    changed = False
    for x, old in zip(args, given, strict=True):
        if type(x) is not Tensor:
            x.__class__ = Tensor
            changed = True
        if x.requires_grad or x.grad is not None:
            x.grad = None
            x.detach_()
            changed = True
        if not same_bits(x, old):
            x.data = old
            changed = True
    if changed:
        run.find("inputs_changed", shapes=_shapes(given))


def alone(run: Run) -> None:
    """A call from a thread of its own, with nothing of the check above it: a kernel that looks there finds no oracle to copy."""
    operation = BY_NAME.get(run.operation)
    if operation is None or run.protocol.late:
        return
    dims = shapes.middle(operation, run.protocol, k=32, m=4, n=8)
    args = probes.draw(
        "normal", operation.shapes(dims), run.declared.operands, probes.generator(run.protocol.seed, 101)
    )
    whole = run.kernel
    with ThreadPoolExecutor(1) as apart:
        run.kernel = lambda *given: apart.submit(whole, *given).result()
        try:
            compare(run, operation, args, "called from a thread of its own")
        finally:
            run.kernel = whole


def _later(run: Run, out: Tensor, copy: Tensor, args: list[Tensor]) -> None:
    """The result must not change afterwards, nor when the operands do."""
    kept = [x.clone() for x in args]
    for x in args:
        x.zero_()
    changed = not same_bits(out.detach(), copy)
    for x, old in zip(args, kept, strict=True):
        x.copy_(old)
    if changed:
        run.find("output_deferred", shapes=_shapes(args))


def _shapes(args: list[Tensor]) -> str:
    return ", ".join("x".join(map(str, x.shape)) or "scalar" for x in args)


def ratio(error: Tensor, magnitude: Tensor, floor: float) -> Fraction | None:
    """`max (|error| - floor) / magnitude` over elements, None when an error is not finite."""
    if not bool(torch.isfinite(error).all()):
        return None
    over = (error.abs() - floor).clamp_min(0)
    parts = torch.where(over == 0, 0.0, over / magnitude.abs())
    return exact(parts.max()) if parts.numel() else Fraction(0)


def norm(x: Tensor) -> Tensor:
    """Frobenius norm, its squares taken near 1: neither those of the largest nor of the smallest numbers leave the range."""
    peak = x.abs().max() if x.numel() else x.new_zeros(())
    if not bool(torch.isfinite(peak)) or not bool(peak):
        return peak
    scale = torch.exp2(torch.floor(torch.log2(peak)).clamp(-1020, 1020))
    return (x / scale).norm() * scale


def oracle_slack(operation: Operation, args: list[Tensor], fine: bool = False) -> Fraction:
    """How far the float64 oracle may be off, as a multiple of the magnitude: a generous count of roundings.

    `fine` where what it lacks was added in doubled sums: the square of that count.
    """
    if operation.bilinear and all(
        bool((x == x.round()).all()) and float(x.abs().amax() if x.numel() else 0) <= 2**20 for x in args
    ):
        return Fraction(0)  # whole numbers: sums of their products are exact in float64
    count = (4 * max(args[0].shape[-1:] or (1,)) + 64) * _ORACLE
    return count**2 if fine else count


def compare(
    run: Run, operation: Operation, args: list[Tensor], name: str, tolerance: Derivation | None = None
) -> bool | None:
    """One call against the oracle; whether it is within, None without result.

    The limit is the one given, else the contract's own, else the derived one.
    """
    wides = [wide(x) for x in args]
    out = call(run, args, operation.oracle(*wides).shape)
    if out is None:
        return None
    got, expected = wide(out), operation.oracle(*wides)
    kept = within_range(run, operation, wides, expected)
    at = Point(operation, wides, expected, run.declared, _beyond(operation, wides, run.declared), kept)
    limits = _limits(run, at, tolerance)
    found = []
    for kind, limit in limits:
        slack = Fraction(0) if limit.value == 0 else at.slack(kind)  # what is exact is exact in float64 too
        found.append(Reading(name, at.measure(kind, got), limit, _shapes(args), slack))
    run.read(*found)
    power(run, expected, wides[0], lambda y: all(_below(at.measure(kind, y), limit) for kind, limit in limits))
    return all(reading.verdict is Verdict.WITHIN for reading in found)


def within_range(run: Run, operation: Operation, wides: list[Tensor], expected: Tensor) -> Tensor:
    """Which results are compared: not those where the declared formats overflow, nor rows that no arithmetic decides; both are noted."""
    kept = reach.inside(operation, wides, expected, run.declared)
    if not bool(kept.all()):
        d = run.declared
        run.notes.append(f"results beyond the range of {d.accumulator} sums or of {d.output} are not compared")
    left = reach.undecided(operation, wides, run.declared)
    if left is None:
        return kept
    run.notes.append(
        "rows whose weights no order of evaluation decides are not compared: scores are off by more than they differ"
    )
    return kept & ~left


def _beyond(operation: Operation, wides: list[Tensor], d: Declared) -> Tensor | None:
    """For sums and results in float64, which the oracle's own float64 could not judge."""
    if operation.beyond is None or not d.output == d.accumulator == "float64":
        return None
    return operation.beyond(*wides)


def _limits(run: Run, at: Point, given: Derivation | None) -> list[tuple[str, Derivation]]:
    if given is not None:
        return [("", given)]
    dims = sizes(at.operation, at.args)

    def derive(accumulator: str) -> Derivation:
        return at.operation.tolerance(at.args, replace(run.declared, accumulator=accumulator))

    own = [(one.error, evaluate(one.bound, dims, derive)) for one in run.limits if one.error in KINDS]
    return own or [("", at.operation.tolerance(at.args, run.declared))]


def _below(value: Fraction | None, limit: Derivation) -> bool:
    return limit.value is not None and value is not None and value <= limit.value


def sizes(operation: Operation, args: list[Tensor]) -> dict[str, int]:
    """Dimensions by name, read off the operands' shapes."""
    probe = {name: 1009 + i for i, name in enumerate(operation.dims)}
    back = {value: name for name, value in probe.items()}
    return {
        back[mark]: size
        for marks, x in zip(operation.shapes(probe), args, strict=True)
        for mark, size in zip(marks, x.shape, strict=True)
    }


@dataclass(frozen=True)
class Point:
    """One comparison: operands, float64 oracle; measures an answer by the kind of error that a contract names.

    `beyond` is what the exact result has beyond the oracle's, where the kernel is as fine as the oracle; `kept` are the results
    that count, all of them where it is None.
    """

    operation: Operation
    args: list[Tensor]
    expected: Tensor
    declared: Declared
    beyond: Tensor | None = None
    kept: Tensor | None = None

    def measure(self, kind: str, got: Tensor) -> Fraction | None:
        """The error of an answer, None when it is not finite."""
        error = got - self.expected
        error = error if self.beyond is None else error - self.beyond
        return self._of(kind, error if self.kept is None else torch.where(self.kept, error, 0.0), got)

    def slack(self, kind: str) -> Fraction:
        """The same error for what the oracle itself may be off by."""
        fine = self.beyond is not None
        room = self.operation.magnitude(*self.args) * float(oracle_slack(self.operation, self.args, fine))
        return Fraction(0) if kind == "mismatch_rate" else self._of(kind, room, self.expected) or Fraction(0)

    def _of(self, kind: str, error: Tensor, got: Tensor) -> Fraction | None:
        floor = underflow(self.operation, self.args, self.declared)
        magnitude = self.operation.magnitude(*self.args)
        match kind:
            case "backward_error":
                product = self.operation.bilinear and self.operation.reduced and len(self.args) == 2
                size = norm(self.args[0]) * norm(self.args[1]) if product else norm(magnitude)
                return ratio(norm((error.abs() - floor).clamp_min(0)).reshape(1), size.reshape(1), 0.0)
            case "forward_error":
                over = norm((error.abs() - floor).clamp_min(0))
                return ratio(over.reshape(1), norm(self.expected).reshape(1), 0.0)
            case "relative_error":
                return ratio(error, self.expected, floor)
            case "absolute_error":
                return exact(error.abs().max()) if error.numel() else Fraction(0)
            case "ulp_error":
                place = torch.exp2(torch.floor(torch.log2(self.expected.abs().clamp_min(1e-300))) + 1)
                return ratio(error, place * float(unit_roundoff(self.declared.output)), 0.0)
            case "mismatch_rate":
                rounded = wide(self.expected.to(dtype(self.declared.output)))
                wrong = got != rounded
                return exact((wrong if self.kept is None else wrong & self.kept).double().mean())
        return ratio(error, magnitude, floor)


KINDS = ("backward_error", "forward_error", "relative_error", "absolute_error", "ulp_error", "mismatch_rate")
"""Errors of one answer against the oracle; every other one belongs to a class."""


def power(run: Run, expected: Tensor, first: Tensor, passes: Callable[[Tensor], bool]) -> None:
    """Count whether zeros, a constant or the input itself would have passed; an exact copy that is right has no say."""
    nulls = [torch.zeros_like(expected), torch.full_like(expected, float(expected.mean()) if expected.numel() else 0.0)]
    if first.shape == expected.shape:
        nulls.append(first)
    wrong = [y for y in nulls if not torch.equal(y, expected)]
    if not wrong or any(passes(y) for y in wrong):
        run.powerless += 1
    else:
        run.powered += 1


def fresh(run: Run, operation: Operation, args: list[Tensor]) -> None:
    """New numbers in the same memory, against the oracle: results kept by shape, address or object are found so."""
    before = call(run, args)
    for x in args:
        x.copy_((x.double() * -0.5 + 0.25).to(x.dtype) if x.dtype.is_floating_point else x.flip(-1).neg())
    within = compare(run, operation, args, "new numbers in the same memory")
    after = call(run, args)
    if within is False and before is not None and after is not None and same_bits(before, after):
        run.find("result_cached", shapes=_shapes(args))
