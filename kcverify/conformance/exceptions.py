"""Runners of the classes about exceptions: NaN and infinities, indices out of range."""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

from kcverify.conformance import harness, probes, shapes
from kcverify.conformance.model import EXACT, Reading, Run, exact
from kcverify.conformance.operations import BY_NAME, dtype
from kcverify.conformance.precision import sampled

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
    args = probes.draw("normal", operation.shapes(dims), d.inputs, g)
    cases: list[tuple[str, list[Tensor]]] = [(n, [x, *args[1:]]) for n, x in probes.with_exceptions(args[0], g)]
    if len(args) > 1:
        cases += [
            (f"{n} in the second operand", [args[0], x, *args[2:]]) for n, x in probes.with_exceptions(args[1], g)
        ]
        zero = args[0].clone()
        zero[:, : max(zero.shape[1] // 2, 1)] = 0
        cases += [(f"{n} against zeros", [zero, x, *args[2:]]) for n, x in probes.with_exceptions(args[1], g)]
    for name, given in cases:
        _one(run, name, given)


def _one(run: Run, name: str, args: list[Tensor]) -> None:
    operation, policy = BY_NAME[run.operation], run.declared.exceptions
    held = [bool(torch.isfinite(x.double()).all()) for x in args]
    if all(held):
        return  # the format holds neither NaN nor infinity
    if policy == "RAISE":
        try:
            run.kernel(*[x.clone() for x in args])
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


def out_of_range(run: Run) -> None:
    """C-EXC-02: indices in range are exact, indices out of range do what is declared: `embedding(indices, table)`."""
    g = probes.generator(run.protocol.seed, 59)
    kind = dtype(run.declared.inputs)
    rows, columns = 50, 8
    table = probes.normal((rows, columns), g, kind).to(kind)
    inside = probes.indices(IN_RANGE, rows, g, False)
    out = harness.call(run, [inside, table], (IN_RANGE, columns))
    if out is None:
        return
    wrong = (harness.wide(out) != harness.wide(table)[inside]).any(1)
    run.read(Reading(f"{IN_RANGE} indices in range", exact(wrong.double().mean()), EXACT, "share of wrong rows"))
    run.powered += 1
    again = (table.double() * -0.5 + 0.25).to(kind)
    table.copy_(again)
    second = harness.call(run, [inside, table], (IN_RANGE, columns))
    if second is not None:
        wrong = (harness.wide(second) != harness.wide(table)[inside]).any(1)
        run.read(Reading("new numbers in the same memory", exact(wrong.double().mean()), EXACT, "share of wrong rows"))
    outside = probes.indices(OUT_OF_RANGE, rows, g, True)
    policy = run.declared.out_of_range
    if policy == "UNDEFINED":
        run.notes.append("out of range is declared undefined: not probed")
        return
    bad = [int(i) for i in outside if not _keeps(run, i.reshape(1), table, policy)]
    where = f"first {bad[0]} of a table of {rows} rows" if bad else ""
    run.read(
        Reading(
            f"{OUT_OF_RANGE} indices out of range, declared {policy}", Fraction(len(bad), OUT_OF_RANGE), EXACT, where
        )
    )


def _keeps(run: Run, index: Tensor, table: Tensor, policy: str) -> bool:
    try:
        out = run.kernel(index.clone(), table.clone())
    except harness.Refusals:
        return policy == "RAISE"
    if policy == "RAISE" or not isinstance(out, Tensor) or out.shape != (1, table.shape[1]):
        return False
    clamped = table[index.clamp(0, table.shape[0] - 1)]
    return bool(torch.equal(out, clamped if policy == "CLAMP" else torch.zeros_like(clamped)))
