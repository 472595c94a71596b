"""What a monitor knows about each clause: a row of constants, and how a row's value meets its limit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import torch

from kcverify.runtime.calibration import COLUMNS
from kcverify.runtime.histogram import SIZE
from kcverify.runtime.sources import SECOND

_INFINITY = math.inf
LEDGER_COLUMNS = 3
OBSERVED_COLUMNS = 7


@dataclass(frozen=True)
class Affine:
    """The exact number `constant + slope * temperature`, each given as numerator and denominator."""

    constant: tuple[int, int]
    slope: tuple[int, int]

    def at(self, temperature: float) -> Fraction:
        """Its value; a temperature is read as the shortest decimal that denotes the double."""
        return Fraction(*self.constant) + Fraction(*self.slope) * Fraction(repr(float(temperature)))


@dataclass(frozen=True)
class Band:
    """`when temperature in [low, high)` as exact numbers (None: unbounded); `open_high` False closes the upper end."""

    low: tuple[int, int] | None
    high: tuple[int, int] | None
    open_high: bool = True

    def holds(self, temperature: float) -> bool:
        """Whether the clause binds at this temperature."""
        t = Fraction(repr(float(temperature)))
        if self.low is not None and t < Fraction(*self.low):
            return False
        if self.high is None:
            return True
        return t < Fraction(*self.high) or (not self.open_high and t == Fraction(*self.high))


Bound = float | Affine | None


@dataclass(frozen=True)
class ClauseSpec:
    """One clause as the monitor enforces it.

    `evidence` is `share`, `binary`, `mean`, `maximum`, `reading`, `paired` or `none` (not enforced, `reason` says why).
    `limit` is the rate or mean that the sequential test compares with (None: the upper bound at the run's temperature).
    `source` is `rows` (a value a row), `sequence`, `geometric`, `ess` or `perplexity` (from the sampled tokens of a
    request), `calibration` (by bin) or one of `sources.OBSERVED` (a value a request, given to `observe`). `inputs` names
    what must be given beyond the logits. `bins` counts those of a calibration, each side's own with `own_bins`; `width`
    is the range of a paired value; `window` in seconds is the time that the clause is about (None: all). `complement`: the mean is that of one minus the value. `minimum_requests` is what
    a clause without exception must see before it passes.
    """

    name: str
    family: str
    metric: str
    statistic: str
    text: str
    severity: str
    evidence: str
    slices: tuple[str, ...] = ()
    lower: Bound = None
    upper: Bound = None
    limit: float | None = None
    exception: float = 0.0
    confidence: float = 0.95
    unit: str = "request"
    source: str = "rows"
    inputs: tuple[str, ...] = ()
    bounded: bool = True
    minimum_requests: int = 59
    band: Band | None = None
    bins: int = 0
    own_bins: bool = False
    width: float = 1.0
    window: float | None = None
    reason: str = ""

    @property
    def sampled(self) -> bool:
        """Whether it is about the sampled tokens."""
        return "sampled_ids" in self.inputs

    def active(self, temperature: float) -> bool:
        """Whether it is enforced at this temperature."""
        return self.evidence != "none" and (self.band is None or self.band.holds(temperature))


@dataclass(frozen=True)
class Values:
    """One clause over N rows: what its statistic reads, whether each row exceeds the limit, how bad it is.

    `value` float64 `[N]` goes into histograms and witnesses, `exceeds` bool `[N]` is True for NaN, `score` float64
    `[N]` orders rows from good to bad, `measure` float64 `[N]` is what a mean averages. `token` names the worst entry
    of the vocabulary by a rule of `witness.worst_token`. `columns` are what a calibration bins (see `calibration`).
    """

    value: torch.Tensor
    exceeds: torch.Tensor
    score: torch.Tensor
    measure: torch.Tensor
    token: str = ""
    columns: tuple[torch.Tensor, ...] = ()


def at_most(value: torch.Tensor, limit: float, token: str = "") -> Values:
    """Values of a clause `metric <= limit`."""
    return Values(value, ~(value <= limit), value, value, token)


def at_least(value: torch.Tensor, limit: float, token: str = "") -> Values:
    """Values of a clause `metric >= limit`; a mean is taken of one minus the value."""
    return Values(value, ~(value >= limit), -value, 1.0 - value, token)


def within(low: torch.Tensor, high: torch.Tensor, lower: float, upper: float, token: str = "") -> Values:
    """Values of a clause `metric in [lower, upper]` for a row whose metric ranges over `[low, high]` (positive)."""
    far_high, far_low = torch.log(high), -torch.log(low)
    value = torch.where(far_high >= far_low, high, low)
    return Values(value, ~((low >= lower) & (high <= upper)), torch.maximum(far_high, far_low), value, token)


def signed(value: torch.Tensor) -> Values:
    """Values of a clause on requests: the signed log ratio of each sampled token, summed over the request."""
    return Values(value, torch.zeros_like(value, dtype=torch.bool), value.abs(), value)


def calibrated(*columns: torch.Tensor) -> Values:
    """Values of a calibration clause: confidence and correctness of the reference, then of the candidate."""
    nothing = torch.zeros_like(columns[0])
    return Values(nothing, nothing.bool(), nothing, nothing, columns=columns)


def upper_limit(bound: Bound, temperature: float) -> float:
    """Largest double that is at most the bound (infinity where there is none)."""
    if bound is None:
        return _INFINITY
    return bound if isinstance(bound, float) else _float_down(bound.at(temperature))


def lower_limit(bound: Bound, temperature: float) -> float:
    """Smallest double that is at least the bound (minus infinity where there is none)."""
    if bound is None:
        return -_INFINITY
    return bound if isinstance(bound, float) else -_float_down(-bound.at(temperature))


def _float_down(x: Fraction) -> float:
    near = float(x)
    return near if Fraction(near) <= x else math.nextafter(near, -_INFINITY)


@dataclass(frozen=True)
class Sampled:
    """The rows of a slice (None: of all) that a sampled token follows, and invalid ones: what a clause on tokens counts."""

    slice: str | None


Group = str | Sampled | None
"""Rows that are counted together: of a slice, of all (None), or those of either that have a sampled token."""


@dataclass(frozen=True)
class Cell:
    """One clause on one slice (None: every row): the unit of counting."""

    clause: int
    slice: str | None


@dataclass(frozen=True)
class Layout:
    """Which cells, groups of rows and histograms a clause table needs; `slices[0]` is None, every row."""

    clauses: tuple[ClauseSpec, ...]
    cells: tuple[Cell, ...]
    slices: tuple[Group, ...]
    histograms: tuple[tuple[str, str | None], ...]
    slot: Mapping[Group, int] = field(default_factory=dict)

    def group(self, clause: ClauseSpec, name: str | None) -> int:
        """Place in `slices` of the rows that a clause counts on a slice."""
        return self.slot[Sampled(name) if clause.sampled else name]

    @property
    def sections(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the integer tables that a monitor keeps in one buffer, in order.

        `counts` = rows, invalid, reference-only rows, candidate-only rows; `slice_counts`, per slice: rows, invalid,
        unknown membership; `cell_counts`, per cell: exceeding rows, rows whose inputs were missing; `observed`, per
        cell: see `observations`; `calibration`, per bin: see `calibration`.
        """
        return {
            "counts": (4,),
            "slice_counts": (len(self.slices), 3),
            "cell_counts": (len(self.cells), 2),
            "histograms": (len(self.histograms), SIZE),
            "observed": (len(self.cells), OBSERVED_COLUMNS),
            "calibration": (sum(self.clauses[c.clause].bins for c in self.cells), COLUMNS),
        }

    @property
    def second(self) -> tuple[int, ...]:
        """Cells that keep a second record."""
        return tuple(i for i, c in enumerate(self.cells) if self.clauses[c.clause].source in SECOND)

    def bins(self, cell: int) -> slice:
        """Rows of a cell in the table of calibration bins."""
        first = sum(self.clauses[c.clause].bins for c in self.cells[:cell])
        return slice(first, first + self.clauses[self.cells[cell].clause].bins)

    def columns(self, cell: int) -> slice:
        """Columns of a cell in a request's sums: what is summed (low and high limb), and how many values are broken."""
        first = len(self.slices) + LEDGER_COLUMNS * cell
        return slice(first, first + LEDGER_COLUMNS)

    @property
    def width(self) -> int:
        """Columns of a request's sums: its rows in each slice, then those of each cell."""
        return len(self.slices) + LEDGER_COLUMNS * len(self.cells)


def layout(clauses: tuple[ClauseSpec, ...]) -> Layout:
    """The layout of the enforced clauses of a table."""
    cells = tuple(
        Cell(i, name) for i, c in enumerate(clauses) if c.evidence != "none" for name in (c.slices or (None,))
    )
    names = {c.slice for c in cells if c.slice is not None}
    tokens = {c.slice for c in cells if clauses[c.clause].sampled}
    slices: tuple[Group, ...] = (None, *sorted(names), *(Sampled(name) for name in sorted(tokens, key=str)))
    plain = {clauses[c.clause].metric for c in cells if _has_histogram(clauses[c.clause])}
    sliced = {(clauses[c.clause].metric, c.slice) for c in cells if c.slice and _has_histogram(clauses[c.clause])}
    histograms = (*((m, None) for m in sorted(plain)), *sorted(sliced, key=str))
    return Layout(clauses, cells, slices, histograms, {name: i for i, name in enumerate(slices)})


def _has_histogram(clause: ClauseSpec) -> bool:
    return clause.source in ("rows", "value") and clause.statistic != "rate"
