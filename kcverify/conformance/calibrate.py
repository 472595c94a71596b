"""Three states for every class: a baseline that ordinary tests reject, a bad kernel that only the contract does, a good one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kcverify.conformance import probes, ranks
from kcverify.conformance.forks import server
from kcverify.conformance.harness import Refusals
from kcverify.conformance.model import Declared, Function, Protocol, Run, Verdict
from kcverify.conformance.operations import BY_NAME
from kcverify.conformance.table import ROWS, KernelClass, run_class

STATES = ("baseline", "bad", "good")
ORDINARY = 2e-2
"""rtol, and atol as a share of the largest result, of an ordinary functional test."""


@dataclass(frozen=True)
class State:
    """One kernel of one class."""

    name: str
    kernel: str
    ordinary: bool
    run: Run


def ordinary(operation: str, kernel: Function, declared: Declared) -> bool:
    """An ordinary functional test: one friendly shape, normal operands, a fixed tolerance."""
    g = probes.generator(1)
    try:
        if operation == "embedding":
            index, table = torch.arange(8), torch.randn(8, 4, generator=g)
            return bool(torch.equal(kernel(index, table), table[index]))
        if operation == "all_reduce":
            answers = ranks.reduce(ranks.name_of(kernel), Protocol().seed)
            return not isinstance(answers, str) and (answers[0]["error"] or 0) <= ORDINARY
        row = BY_NAME[operation]
        dims = {"m": 8, "n": 16, "k": 64}
        args = probes.draw("normal", row.shapes(dims), declared.operands, g)
        expected: Tensor = row.oracle(*[x.double() for x in args])
        out = kernel(*args)
        return bool(torch.allclose(out.double(), expected, ORDINARY, ORDINARY * float(expected.abs().max())))
    except Refusals:
        return False


def calibrate_class(row: KernelClass) -> tuple[State, ...]:
    """The three states of a class under its own contract."""
    found = []
    if row.operations == ("all_reduce",):
        ranks.reduce_all(tuple(ranks.name_of(getattr(row, name)) for name in STATES), row.protocol.seed)
    for name in STATES:
        kernel = getattr(row, name)
        run = run_class(row, kernel)
        found.append(State(name, kernel.__name__, ordinary(row.operations[0], kernel, row.declared), run))
    return tuple(found)


def told_apart(states: tuple[State, ...]) -> bool:
    """Baseline rejected by both, bad by the contract only, good by neither."""
    baseline, bad, good = states
    return (
        not baseline.ordinary and baseline.run.verdict is Verdict.VIOLATION
        and bad.ordinary and bad.run.verdict is Verdict.VIOLATION
        and good.ordinary and good.run.verdict is Verdict.WITHIN
    )  # fmt: skip


def calibrate(classes: tuple[KernelClass, ...] = ROWS) -> list[dict[str, Any]]:
    """The matrix as data, a row a class. `calibrated` is false where the class is under-specified."""
    rows = []
    if any(row.operations == ("all_reduce",) for row in classes):
        server()  # loads torch beside the other classes
    for row in classes:
        states = calibrate_class(row)
        rows.append(
            {
                "class": row.id, "title": row.title, "statement": row.statement, "operation": row.operations[0],
                "tolerance": row.tolerance, "calibrated": told_apart(states),
                "states": [
                    {
                        "state": s.name, "kernel": s.kernel, "ordinary": "pass" if s.ordinary else "fail",
                        "verdict": s.run.verdict.value, "worst": None if (worst := s.run.worst()) is None else worst.data(),
                    }
                    for s in states
                ],
            }
        )  # fmt: skip
    return rows
