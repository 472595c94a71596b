"""What a conformance check states: readings against derived tolerances, and the four verdicts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any

from torch import Tensor

from kcverify.diagnostics import Diagnostic, diagnosis
from kcverify.elaborate.kernel import Tolerance
from kcverify.elaborate.words import Condition

Function = Callable[..., Any]


class Verdict(StrEnum):
    """Of a kernel-level contract."""

    WITHIN = "within_tolerance"
    VIOLATION = "violation"
    UNDER_SPECIFIED = "under_specified"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Derivation:
    """A tolerance as an exact fraction and the lines that derive it; None where the formula says nothing."""

    value: Fraction | None
    lines: tuple[str, ...]

    def data(self) -> dict[str, Any]:
        """As JSON data: the exact fraction as text, and a double for reading."""
        exact = None if self.value is None else str(self.value)
        return {"exact": exact, "value": None if self.value is None else float(self.value), "lines": list(self.lines)}


EXACT = Derivation(Fraction(0), ("exact: every intermediate result is representable in the declared formats",))
"""The tolerance of results that no order of evaluation rounds."""


@dataclass(frozen=True)
class Reading:
    """One number against its tolerance. `value` is exact from a double, None where the result was not finite.

    `slack` is what the float64 oracle and the norms may be off by: between the two sides nothing is decided.
    """

    name: str
    value: Fraction | None
    tolerance: Derivation
    where: str = ""
    slack: Fraction = Fraction(0)

    @property
    def verdict(self) -> Verdict:
        """Within only if value plus slack is, violated only if value minus slack is; what is exact is so in float64 too."""
        if self.tolerance.value is None:
            return Verdict.UNDER_SPECIFIED
        slack = self.slack if self.tolerance.value else Fraction(0)
        if self.value is None or self.value - slack > self.tolerance.value:
            return Verdict.VIOLATION
        return Verdict.WITHIN if self.value + slack <= self.tolerance.value else Verdict.INCONCLUSIVE

    def data(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "name": self.name, "value": None if self.value is None else float(self.value), "where": self.where,
            "slack": float(self.slack), "tolerance": self.tolerance.data(), "verdict": self.verdict.value,
        }  # fmt: skip


@dataclass(frozen=True)
class Declared:
    """What a kernel is declared to be: formats, behaviour words, device. `formats` are of operands that differ, in order.

    `block` is how many terms a part has where `summation` is online, cascade, or pairwise over moments; `lanes`, in how many
    interleaved sums at most a cascade takes them; `base`, of which power the exponentials are, e or 2.
    """

    inputs: str = "float32"
    accumulator: str = "float32"
    output: str = "float32"
    denormals: str = "preserve"
    exceptions: str = "IEEE_PROPAGATE"
    out_of_range: str = "RAISE"
    determinism: str = "bitwise"
    summation: str = "sequential"
    formats: tuple[str, ...] = ()
    device: str = "cpu"
    block: int = 1
    lanes: int = 1
    base: str = "e"

    @property
    def operands(self) -> str | tuple[str, ...]:
        """Format of every operand, or of each one."""
        return self.formats or self.inputs

    @property
    def each(self) -> tuple[str, ...]:
        """The formats of all operands."""
        return self.formats or (self.inputs,)


@dataclass(frozen=True)
class Protocol:
    """How inputs are drawn: trials of each distribution, seed, confidence, range of every dimension, preconditions on them.

    `asked` are the draws with power that the confidence needs, 0 where nothing is stated; `until` is when drawing stops, on
    the monotonic clock.
    """

    trials: int = 4
    distributions: tuple[str, ...] = ("normal", "lognormal", "cancellation")
    seed: int = 7
    confidence: Fraction = Fraction(95, 100)
    shapes: tuple[tuple[str, int, int], ...] = ()
    requires: tuple[Condition, ...] = ()
    asked: int = 0
    until: float | None = None

    @property
    def late(self) -> bool:
        """Whether the time for drawing is over."""
        return self.until is not None and time.monotonic() >= self.until


@dataclass
class Run:
    """A kernel under a check and what was found so far. `limits` are a contract's own; without them the derived one holds.

    `held` are the last results as the kernel gave them, with copies: they must not change at later calls. `left` are the
    settings of the process that the kernel's last call left, None where it changed none.
    """

    kernel: Function
    declared: Declared
    protocol: Protocol
    operation: str = "matmul"
    limits: tuple[Tolerance, ...] = ()
    readings: list[Reading] = field(default_factory=list)
    findings: list[Diagnostic] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    held: list[tuple[Tensor, Tensor, str]] = field(default_factory=list)
    left: Any = None
    powerless: int = 0
    powered: int = 0
    draws: int = 0

    def read(self, *readings: Reading) -> None:
        """Add readings."""
        self.readings += readings

    def find(self, slug: str, **holes: object) -> None:
        """Add a finding once."""
        found = diagnosis(slug, holes)
        if found.message not in {d.message for d in self.findings}:
            self.findings.append(found)

    @property
    def verdict(self) -> Verdict:
        """The worst of the readings; a check that zeros or a constant pass everywhere is under-specified."""
        verdicts = {r.verdict for r in self.readings}
        if Verdict.VIOLATION in verdicts or any(d.code.slug in BREAKS for d in self.findings):
            return Verdict.VIOLATION
        if Verdict.UNDER_SPECIFIED in verdicts or (self.powerless and not self.powered):
            return Verdict.UNDER_SPECIFIED
        open_end = not verdicts or Verdict.INCONCLUSIVE in verdicts or self.draws < self.protocol.asked
        return Verdict.INCONCLUSIVE if open_end else Verdict.WITHIN

    def worst(self) -> Reading | None:
        """The reading nearest to, or farthest beyond, its tolerance."""

        def key(r: Reading) -> tuple[int, Fraction]:
            rank = [Verdict.WITHIN, Verdict.INCONCLUSIVE, Verdict.UNDER_SPECIFIED, Verdict.VIOLATION].index(r.verdict)
            if r.value is None or not r.tolerance.value:
                return rank, r.value or Fraction(0)
            return rank, r.value / r.tolerance.value

        return max(self.readings, key=key, default=None)


BREAKS = frozenset(
    {
        "kernel_raised",
        "kernel_crashed",
        "inputs_changed",
        "output_deferred",
        "output_form",
        "result_cached",
        "signature_seen",
        "process_changed",
    }
)
"""Findings that are violations by themselves."""


def exact(value: Tensor | float) -> Fraction | None:
    """The double as a fraction, None when it is not finite."""
    number = float(value)
    return Fraction(number) if abs(number) < float("inf") else None
