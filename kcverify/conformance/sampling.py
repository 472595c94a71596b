"""How many draws a contract's confidence needs, and what the draws that were made are worth."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from kcverify.conformance.model import Declared, Protocol, Run
from kcverify.conformance.probes import DISTRIBUTIONS, unfit
from kcverify.elaborate.kernel import KernelContract

CALIBRATION_TRIALS = 4
"""Trials of one distribution for the kernels that calibrate a contract: they show its power, no rate."""


@dataclass(frozen=True)
class Effort:
    """What a caller changes about a run: draws in all, seconds for drawing, the device; None where the contract decides."""

    trials: int | None = None
    seconds: float | None = None
    device: str = ""


def protocol(contract: KernelContract, default: Protocol, effort: Effort, d: Declared) -> Protocol:
    """The contract's protocol, the class's where it has none: its draws are shared out evenly over its distributions.

    Those that make no sense for the declared formats are left out (`left_out` says why).
    """
    p = contract.protocol
    known = tuple(n for n in p.distributions if n in DISTRIBUTIONS) or default.distributions
    names = tuple(n for n in known if not unfit(n, d.each, d.output)) or ("normal",)
    wanted = effort.trials if effort.trials is not None else p.trials
    trials = max(-(-wanted // len(names)), 1) if wanted else default.trials
    until = None if effort.seconds is None else time.monotonic() + effort.seconds
    ranges = contract.scope.shapes or default.shapes
    return Protocol(trials, names, p.seed or default.seed, p.confidence, ranges, contract.requires, p.trials, until)


def left_out(contract: KernelContract, d: Declared) -> list[str]:
    """Distributions of a contract that are not drawn, each with the reason."""
    found = {n: unfit(n, d.each, d.output) for n in contract.protocol.distributions}
    return [f"{name} is not drawn: {reason}" for name, reason in found.items() if reason]


def calibrating(one: Protocol) -> Protocol:
    """The protocol for kernels that are known to be bad or good."""
    return replace(one, trials=max(min(one.trials, CALIBRATION_TRIALS), 2), asked=0, until=None)


def evidence(run: Run) -> dict[str, Any]:
    """Draws that had power against those the contract asks for, and the confidence that they reach.

    `n` clean draws at confidence `c` say that less than a share `r = 1 - (1 - c)^(1/n)` of all draws exceeds the tolerance.
    The contract fixes `r` by its own `n` and `c`; fewer draws reach `1 - (1 - r)^m`, which is below `c`.
    """
    asked, made, c = run.protocol.asked, run.draws, run.protocol.confidence
    miss = float(1 - c)
    share = 1 - miss ** (1 / asked) if asked else None
    reached = 1 - miss ** (made / asked) if asked else None
    return {
        "asked": asked, "draws": made, "confidence": float(c), "share": share,
        "reached": None if reached is None else min(reached, float(c)), "met": made >= asked,
    }  # fmt: skip


def needed(floor: Fraction, confidence: Fraction) -> int:
    """Fewest clean trials that show a rate of at least `floor < 1`: the least n with `floor^n <= 1 - confidence`."""
    count, left = 1, floor
    while left > 1 - confidence:
        left *= floor
        count += 1
    return count


AS_WRITTEN = Effort()
"""The contract decides everything."""
