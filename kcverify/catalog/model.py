"""What the rows of the catalogue state: metrics, lemmas and the quantities that connect them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction

import sympy as sp


class Family(StrEnum):
    """The block of a contract that a metric belongs to."""

    NUMERICAL = "numerical"
    STATISTICAL = "statistical"
    RUNTIME = "runtime"
    CLAIM = "claim"


class Level(StrEnum):
    """What one value of a metric describes."""

    TOKEN = "token"
    REQUEST = "request"
    RUN = "run"


class Statistic(StrEnum):
    """How the values of a metric become the number that a clause compares."""

    MAX = "max"
    MEAN = "mean"
    RATE = "rate"
    READING = "reading"


class Direction(StrEnum):
    """Which side of a threshold is the good one."""

    AT_MOST = "<="
    AT_LEAST = ">="
    WITHIN = "in"


class Estimator(StrEnum):
    """What a number that was computed from given inputs says about the metric."""

    EXACT = "exact"
    LOWER = "lower bound"
    UPPER = "upper bound"
    UNBIASED = "unbiased estimate"


class Dimension(StrEnum):
    """Physical or information unit of a metric; the value is the canonical unit's name in the language."""

    NONE = ""
    LOGIT = "logits"
    NAT = "nats"
    SECOND = "s"
    BYTE = "B"
    TOKEN = "tokens"
    REQUEST = "requests"
    TOKEN_RATE = "tokens/s"
    REQUEST_RATE = "requests/s"
    REWARD = "reward"


@dataclass(frozen=True)
class Argument:
    """One named argument of a metric. `values` lists the allowed names; empty means a number in `[low, high]`."""

    name: str
    default: str | Fraction | None = None
    values: tuple[str, ...] = ()
    low: Fraction | None = None
    high: Fraction | None = None


@dataclass(frozen=True)
class Carrier:
    """An input that carries a metric, and what an estimate from it is worth."""

    inputs: str
    estimator: Estimator


@dataclass(frozen=True)
class Metric:
    """One metric of the language.

    `range` is the interval of all possible values (None: unbounded). `statistic` None means that a contract must write
    one. `quantity` is the node of the bound graph that the metric is a reading of (None: it enters no proof). `caveat`
    says what a claim about it cannot rest on, for the reader of an UNKNOWN.
    """

    name: str
    family: Family
    title: str
    definition: str
    source: str
    dimension: Dimension
    direction: Direction
    range: tuple[Fraction | None, Fraction | None]
    statistic: Statistic | None
    level: Level
    carriers: tuple[Carrier, ...]
    arguments: tuple[Argument, ...] = ()
    quantity: str | None = None
    aliases: tuple[str, ...] = ()
    caveat: str = ""


class Evidence(StrEnum):
    """Why a lemma may be used."""

    PROVED = "proved"
    CITED = "cited"


class Mode(StrEnum):
    """How a quantity is aggregated over contexts.

    `POINT`: on every context but a share rho of them. `MEAN`: expectation over contexts. `SEQUENCE`: of whole
    responses (already one number).
    """

    POINT = "point"
    MEAN = "mean"
    SEQUENCE = "sequence"


@dataclass(frozen=True)
class Quantity:
    """A node of the bound graph: its symbol, unit, natural range, and how a user reads it.

    `upper` True: bounds are upper bounds (a smaller one is stronger); False: lower bounds (`bc`, `ess`). `graded`: there
    is one for every argument of its metric, such as the kept mass of a trimmed span; where `ordered`, a bound at one
    argument holds at others too.
    """

    name: str
    symbol: sp.Symbol
    dimension: Dimension
    title: str
    upper: bool = True
    low: Fraction = Fraction(0)
    high: Fraction | None = None
    sequence: bool = False
    graded: bool = False
    ordered: bool = True


@dataclass(frozen=True)
class Attained:
    """The bound is reached: `witness` names the family in `reference.witness` that reaches it."""

    witness: str


@dataclass(frozen=True)
class Lemma:
    """One bound: from premise quantities and parameters to a conclusion quantity.

    `bound` is a sympy expression in the symbols of the premises and parameters. `inverse` is the largest premise for a
    given conclusion (the symbol of the conclusion), for rows of one premise; None where the root is found on
    enclosures. `modes` lists from which aggregation to which the row leads; None is the generic rule: pointwise to
    pointwise, and mean to mean where the bound is concave (Jensen). A row whose bound contains the exception share
    `rho` holds for premises with an exception; of the others, those that leave the pointwise mode need `rho = 0`.
    `monotone` declares (with the reason in `argument`) what the sign rules cannot see: symbol name -> +1 or -1.
    `requires` names side conditions: `full_softmax` (no truncation). `not_after` names rows whose conclusion need not be
    fed into this one, since a row from their own premise is at least as tight. `special` marks a bound that a recursion computes
    (`bounds.special`) in place of its formula. `published` is the form in which the literature usually has the bound, in
    the same symbols, and `published_as` its wording; it is never below `bound`.
    """

    name: str
    premises: tuple[str, ...]
    conclusion: str
    bound: sp.Expr
    statement: str
    argument: str
    source: str
    evidence: Evidence = Evidence.PROVED
    inverse: sp.Expr | None = None
    parameters: tuple[str, ...] = ()
    attained: Attained | None = None
    modes: tuple[tuple[Mode, Mode], ...] | None = None
    monotone: Mapping[str, int] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    not_after: tuple[str, ...] = ()
    published: sp.Expr | None = None
    published_as: str = ""
    special: bool = False
