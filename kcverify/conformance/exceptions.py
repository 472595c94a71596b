"""Runners of the classes about exceptions: NaN and infinities, indices out of range."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from kcverify.conformance import harness, probes, shapes
from kcverify.conformance.model import EXACT, Reading, Run, exact
from kcverify.conformance.operations import BY_NAME, dtype
from kcverify.conformance.precision import sampled, typed
from kcverify.conformance.tolerances import unit_roundoff

POLICIES = ("IEEE_PROPAGATE", "MASK", "RAISE")
RANGES = ("RAISE", "CLAMP", "ZERO", "UNDEFINED")
IN_RANGE, OUT_OF_RANGE = 1000, 100
_MASKS = {"NaN": torch.isnan, "+Inf": torch.isposinf, "-Inf": torch.isneginf}


def propagation(run: Run) -> None:
    """C-EXC-01: masks of NaN, +Inf and -Inf of the result, each compared with the oracle's."""
    operation, d = BY_NAME[run.operation], run.declared
    sampled(run, operation)
    dims = shapes.middle(operation, run.protocol, m=9, n=8, k=12)
    g = probes.generator(run.protocol.seed, 53)
    args = probes.draw("normal", operation.shapes(dims), d.operands, g)
    cases: list[tuple[str, list[Tensor]]] = [(n, [x, *args[1:]]) for n, x in probes.with_exceptions(args[0], g)]
    if len(args) > 1:
        cases += [
            (f"{n} in the second operand", [args[0], x, *args[2:]]) for n, x in probes.with_exceptions(args[1], g)
        ]
        zero = args[0].clone()
        zero[:, : max(zero.shape[1] // 2, 1)] = 0
        cases += [(f"{n} against zeros", [zero, x, *args[2:]]) for n, x in probes.with_exceptions(args[1], g)]
    if len(args) == 2 and args[0].shape == args[1].shape:
        cases += [(f"{n} in both at one place", [x, _at(x, args[1])]) for n, x in probes.with_exceptions(args[0], g)]
    for name, given in cases:
        _one(run, name, given)
    if operation.name == "cast" and d.exceptions == "IEEE_PROPAGATE":
        _beyond(run)


def _beyond(run: Run) -> None:
    """Finite numbers beyond the output's range: an overflow shows as infinity, or as NaN where the format has none."""
    largest = float(torch.finfo(dtype(run.declared.output)).max)
    step = 2.0 ** math.floor(math.log2(largest)) * 2 * float(unit_roundoff(run.declared.output))
    beyond = [
        largest + step * (1 / 2 + 1 / 32),
        largest + 2 * step,
        2 * largest,
        1e3 * largest,
    ]  # half a step rounds back
    kept = [y for y in beyond if y <= torch.finfo(dtype(run.declared.inputs)).max]
    if not kept:
        return
    dims = shapes.middle(BY_NAME[run.operation], run.protocol, m=2, n=len(kept))
    places = torch.arange(dims["m"] * dims["n"])
    drawn = torch.tensor(kept, dtype=torch.float64)[places % len(kept)] * torch.where(
        places // len(kept) % 2 == 0, 1, -1
    )
    (x,) = typed(run, drawn.reshape(dims["m"], dims["n"]))
    out = harness.call(run, [x])
    if out is not None:
        share = exact(torch.isfinite(harness.wide(out)).double().mean())
        run.read(Reading(f"beyond {largest:g}: comes out finite", share, EXACT, f"{kept} and the same below zero"))


def _at(marked: Tensor, x: Tensor) -> Tensor:
    """`x` with what is not finite in `marked`."""
    return torch.where(torch.isfinite(marked.double()), x.double(), marked.double()).to(x.dtype)


def _one(run: Run, name: str, args: list[Tensor]) -> None:
    operation, policy = BY_NAME[run.operation], run.declared.exceptions
    held = [bool(torch.isfinite(x.double()).all()) for x in args]
    if all(held):
        return  # the format holds neither NaN nor infinity
    if policy == "RAISE":
        try:
            harness.invoke(run, [x.clone() for x in args])
        except harness.Refusals:
            run.read(Reading(f"{name}: raises", Fraction(0), EXACT))
        else:
            run.read(Reading(f"{name}: raises", Fraction(1), EXACT, "accepted silently"))
        return
    out = harness.call(run, args)
    if out is None:
        return
    got = harness.wide(out)
    if policy == "MASK":
        share = exact((~torch.isfinite(got)).double().mean())
        run.read(Reading(f"{name}: masked", share, EXACT, "share of results that are not finite"))
        return
    expected = operation.oracle(*[harness.wide(x) for x in args])
    for label, mask in _MASKS.items():
        wrong = mask(got) != mask(expected)
        where = f"{int(mask(got).sum())} where {int(mask(expected).sum())} belong"
        run.read(Reading(f"{name}: mask of {label}", exact(wrong.double().mean()), EXACT, where))


@dataclass(frozen=True)
class Indexed:
    """An operation with indices: operands behind the index for `count` indices, and the result that belongs to them."""

    operands: Callable[[int, Tensor, torch.Generator], list[Tensor]]
    expected: Callable[[Tensor, list[Tensor]], Tensor]
    ignored: Callable[[list[Tensor]], Tensor]


def _added(index: Tensor, others: list[Tensor]) -> Tensor:
    rows, table = others
    return table.double().index_add(0, index, rows.double()).to(table.dtype)


def _rows_to_add(count: int, table: Tensor, g: torch.Generator) -> list[Tensor]:
    """Whole numbers: their sums are exact in every order."""
    shape = (count, table.shape[1])
    return [torch.randint(-4, 5, shape, generator=g).to(table.dtype), (table.double() * 4).round().to(table.dtype)]


INDEXED: dict[str, Indexed] = {
    "embedding": Indexed(
        lambda count, table, g: [table], lambda index, others: others[0][index],
        lambda others: torch.zeros_like(others[0][:1]),
    ),
    "scatter": Indexed(_rows_to_add, _added, lambda others: others[1]),
}  # fmt: skip
"""`embedding(index, table)` reads rows, `scatter(index, rows, table)` adds rows to a copy; ZERO ignores what is out of range."""


def out_of_range(run: Run) -> None:
    """C-EXC-02: indices in range are exact, indices out of range do what is declared."""
    g = probes.generator(run.protocol.seed, 59)
    kind, row = dtype(run.declared.inputs), INDEXED[run.operation]
    count, columns = 50, 8
    table = probes.normal((count, columns), g, kind).to(kind)
    inside = probes.indices(IN_RANGE, count, g, False)
    others = row.operands(IN_RANGE, table, g)
    if not _exactly(run, row, inside, others, f"{IN_RANGE} indices in range"):
        return
    run.powered += 1
    run.draws += IN_RANGE
    for x in others:
        x.copy_((x.double() * -0.5 + 0.25).to(kind) if run.operation == "embedding" else (1 - x.double()).to(kind))
    _exactly(run, row, inside, others, "new numbers in the same memory")
    outside = probes.indices(OUT_OF_RANGE, count, g, True)
    policy = run.declared.out_of_range
    if policy == "UNDEFINED":
        run.notes.append("out of range is declared undefined: not probed")
        return
    run.draws += OUT_OF_RANGE
    probe = row.operands(1, table, g)
    bad = [int(i) for i in outside if not _keeps(run, row, i.reshape(1), probe, policy)]
    where = f"first {bad[0]} of a table of {count} rows" if bad else ""
    share = Fraction(len(bad), OUT_OF_RANGE)
    run.read(Reading(f"{OUT_OF_RANGE} indices out of range, declared {policy}", share, EXACT, where))


def _exactly(run: Run, row: Indexed, index: Tensor, others: list[Tensor], name: str) -> bool:
    """Whether there is a result; the share of wrong rows is read."""
    expected = row.expected(index, others)
    out = harness.call(run, [index, *others], expected.shape)
    if out is None:
        return False
    wrong = (harness.wide(out) != harness.wide(expected)).any(1)
    run.read(Reading(name, exact(wrong.double().mean()), EXACT, "share of wrong rows"))
    return True


def _keeps(run: Run, row: Indexed, index: Tensor, others: list[Tensor], policy: str) -> bool:
    count = others[-1].shape[0]
    clamped = row.expected(index.clamp(0, count - 1), others)
    device = run.declared.device
    try:
        out = harness.invoke(run, [x.clone().to(device) for x in (index, *others)])
    except harness.Refusals:
        return policy == "RAISE"
    if policy == "RAISE" or not isinstance(out, Tensor) or out.shape != clamped.shape:
        return False
    return bool(torch.equal(out.to("cpu"), clamped if policy == "CLAMP" else row.ignored(others)))
