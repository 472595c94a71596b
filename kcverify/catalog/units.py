"""The table of units: dimension and exact factor to the canonical unit of each."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kcverify.catalog.model import Dimension


@dataclass(frozen=True)
class Unit:
    """One unit. A value in canonical units is `value * factor`, where `low <= factor <= high`.

    `low` and `high` differ only where the factor is irrational (bits).
    """

    name: str
    dimension: Dimension
    low: Fraction
    high: Fraction
    title: str

    @property
    def exact(self) -> bool:
        """Whether the factor is rational."""
        return self.low == self.high


def _unit(name: str, dimension: Dimension, factor: Fraction | int, title: str) -> Unit:
    return Unit(name, dimension, Fraction(factor), Fraction(factor), title)


_LN2 = Fraction(693147180559945309417232121458176568075500134360255254120680, 10**60)

ROWS: tuple[Unit, ...] = (
    _unit("%", Dimension.NONE, Fraction(1, 100), "hundredth"),
    _unit("logits", Dimension.LOGIT, 1, "difference of logits"),
    _unit("nats", Dimension.NAT, 1, "information, natural logarithm"),
    Unit("bits", Dimension.NAT, _LN2, _LN2 + Fraction(1, 10**60), "information, binary logarithm"),
    _unit("us", Dimension.SECOND, Fraction(1, 10**6), "microsecond"),
    _unit("ms", Dimension.SECOND, Fraction(1, 1000), "millisecond"),
    _unit("s", Dimension.SECOND, 1, "second"),
    _unit("minutes", Dimension.SECOND, 60, "minute"),
    _unit("h", Dimension.SECOND, 3600, "hour"),
    _unit("d", Dimension.SECOND, 86400, "day"),
    _unit("B", Dimension.BYTE, 1, "byte"),
    _unit("KiB", Dimension.BYTE, 2**10, "1024 bytes"),
    _unit("MiB", Dimension.BYTE, 2**20, "1024 KiB"),
    _unit("GiB", Dimension.BYTE, 2**30, "1024 MiB"),
    _unit("tokens", Dimension.TOKEN, 1, "sampled tokens"),
    _unit("requests", Dimension.REQUEST, 1, "requests"),
    _unit("tokens/s", Dimension.TOKEN_RATE, 1, "tokens a second"),
    _unit("requests/s", Dimension.REQUEST_RATE, 1, "requests a second"),
)
BY_NAME: dict[str, Unit] = {row.name: row for row in ROWS}

_SAME: dict[str, tuple[str, ...]] = {
    "nats": ("nat",),
    "bits": ("bit",),
    "logits": ("logit",),
    "s": ("sec", "secs", "second", "seconds"),
    "ms": ("msec", "msecs", "millisecond", "milliseconds", "millis"),
    "us": ("µs", "usec", "microseconds"),
    "minutes": ("min", "mins", "minute", "m"),
    "h": ("hr", "hrs", "hour", "hours"),
    "d": ("day", "days"),
    "tokens": ("token", "tok"),
    "requests": ("request", "req", "reqs"),
    "tokens/s": ("token/s", "tok/s", "tps"),
    "requests/s": ("request/s", "req/s", "rps", "qps"),
    "B": ("byte", "bytes"),
    "%": ("percent", "pct"),
}

FOREIGN: dict[str, tuple[str, Fraction]] = {
    **{spelling: (name, Fraction(1)) for name, spellings in _SAME.items() for spelling in spellings},
    "KB": ("KiB", Fraction(10**3, 2**10)),
    "MB": ("MiB", Fraction(10**6, 2**20)),
    "GB": ("GiB", Fraction(10**9, 2**30)),
    "TB": ("GiB", Fraction(10**12, 2**30)),
    "TiB": ("GiB", Fraction(2**10)),
    "ns": ("us", Fraction(1, 1000)),
    "weeks": ("d", Fraction(7)),
    "tokens/minute": ("tokens/s", Fraction(1, 60)),
    "requests/minute": ("requests/s", Fraction(1, 60)),
}
"""What people write for a unit: the unit of the language, and how many of it one of theirs is. Used in hints only."""

UNIT_OPTIONAL = frozenset({Dimension.LOGIT, Dimension.REWARD})
"""Dimensions that have one scale only, so that a contract writes the bare number."""


def of_dimension(dimension: Dimension) -> tuple[Unit, ...]:
    """Units that a value of this dimension may be written in, smallest first as listed."""
    return tuple(row for row in ROWS if row.dimension is dimension)


def canonical_low(value: Fraction, unit: Unit) -> Fraction:
    """`value` in the canonical unit, never above its true value (exact for a rational factor)."""
    return value * (unit.low if value >= 0 else unit.high)


def canonical_high(value: Fraction, unit: Unit) -> Fraction:
    """`value` in the canonical unit, never below its true value (exact for a rational factor)."""
    return value * (unit.high if value >= 0 else unit.low)


def readable(value: Fraction, dimension: Dimension) -> tuple[Fraction, str]:
    """A canonical value in the largest exact unit in which it is at least 1: `0.12` seconds are `(120, "ms")`."""
    rows = [row for row in of_dimension(dimension) if row.exact]
    fitting = [row for row in rows if abs(value) >= row.low] or rows[:1]
    best = max(fitting, key=lambda row: row.low, default=None)
    return (value / best.low, best.name) if best else (value, "")
