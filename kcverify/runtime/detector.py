"""Drift after a long clean period: a restarting detector, its health, and the mirror image that lets a kernel return.

The e-process of a clause carries its good past as debt; a detector forgets it. Each bet j multiplies by its e-value
`e_j` of every unit (`E[e_j | past] <= 1` while the units meet the limit) and keeps two numbers, of all the times k at
which the drift may have begun: `M_j <- e_j max(M_j, 1)`, the wealth of the best k, and `R_j <- e_j (R_j + 1)`, the sum
over all k. `M` and `R` are their means under the weights of the bets. These are the CUSUM and the Shiryaev-Roberts form
of an e-detector (Shin, Ramdas and Rinaldo, "E-detectors", 2022; Shiryaev 1963, Roberts 1966).

The alarm is `R >= c`, as soon as `M >= sqrt(c)` too. Units that meet the limit raise it once in at least `c` units on
average: `E[R_n | past] <= R_{n-1} + 1`, so that `R_n - n` is a supermartingale from 0; at the time T of the alarm (or at
any earlier time that is bounded, then by monotone convergence) `c P(T <= n) <= E[R_min(T,n)] <= E[min(T, n)] <= E[T]`, and
`E[T] < inf` makes the left side tend to c. A second condition only makes T later. So a contract's
`false_alarm_every 30 d` is `c` = units in 30 days, with nothing lost: `R` is at least `M`, and some 70 times as large
where a rate of 1 % has become 3 %. `sqrt(c)` is there because `R` counts starts: with a small `c` a flawless stream alone
would reach it. Health is read off `M`, which is near 1 in a flawless stream: `1 - ln max(M, 1) / ln c`, at most one half
at an alarm, where it becomes 0. A start in the middle (after an action, say) begins at `R = 0` again.

State is two dozen logarithms and a count. It depends on the order of the units, unlike the evidence of a clause: it
belongs to one stream, cannot be merged over shards, and is saved and restored whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from kcverify.runtime.errors import option_error
from kcverify.runtime.sequential import BETS, bets, log_sum, rate_points

DAY = 86_400
KINDS = ("binary", "share", "mean")
SIDES = ("above", "below")


class Rule(Protocol):
    """What is read of a line of `escalate`: the interval between false alarms, and its unit (`s` or `requests`)."""

    @property
    def false_alarm_every(self) -> Fraction | None:
        """Seconds, or requests."""

    @property
    def false_alarm_unit(self) -> str:
        """`s` or `requests`."""


def units_between_alarms(rule: Rule, traffic: Fraction | float | None) -> float:
    """The threshold `c` of a line of `escalate`: units of the clause between two false alarms, `traffic` units a second.

    Raises MonitorInputError: `option_invalid` where the line states no interval, where an interval in time has no
    traffic to count it in, or where it holds fewer than 2 units.
    """
    every = rule.false_alarm_every
    if every is None:
        raise option_error("false_alarm_every", "the line of `escalate` states no interval between false alarms")
    if rule.false_alarm_unit == "s" and traffic is None:
        raise option_error(
            "traffic", "an interval in time needs the units a second: `assume { traffic = N requests/s }`"
        )
    units = float(every * Fraction(traffic or 0)) if rule.false_alarm_unit == "s" else float(every)
    if not units >= 2.0:
        raise option_error("false_alarm_every", f"holds {units:g} units; a detector needs at least 2")
    return units


@dataclass(frozen=True)
class _Bets:
    """Weights (logs) and what a value adds to each log wealth."""

    weights: tuple[float, ...]
    on_exceeding: tuple[float, ...] = ()
    on_clean: tuple[float, ...] = ()
    sizes: tuple[float, ...] = ()

    def steps(self, value: float, limit: float, sign: float) -> list[float] | tuple[float, ...]:
        if self.sizes:
            return [math.log1p(sign * size * (value - limit)) for size in self.sizes]
        return self.on_exceeding if value else self.on_clean


def _bets(kind: str, limit: float, side: str) -> _Bets:
    if kind == "binary":
        weights, up, down = zip(*rate_points(limit, side), strict=True)
        return _Bets(weights, up, down)
    return _Bets((-math.log(BETS),) * BETS, sizes=bets(limit, side))


class Restarting:
    """`M` and `R` of bets whose weights (logs) sum to at most 1; the alarm is at `log_threshold`, the log of `c`."""

    def __init__(self, weights: Sequence[float], log_threshold: float) -> None:
        self.weights, self.log_threshold = tuple(weights), log_threshold
        self._most = [2.0 * log_threshold - weight for weight in self.weights]
        self.reset()

    def reset(self) -> None:
        """Start anew, as after a change of route."""
        self.wealth = [0.0] * len(self.weights)
        self.summed = [-math.inf] * len(self.weights)
        self.seen = 0

    def take(self, steps: Sequence[float], count: int = 1) -> None:
        """Take in `count` units that each add these logs of e-values, one a bet, below infinity.

        A run of equal units is taken in at once: a falling wealth restarts at its last step or never, and a sum is a
        geometric one. Neither grows beyond `c` squared, so that health returns once a drift has ended.
        """
        for j, step in enumerate(steps):
            start = max(self.wealth[j], 0.0)
            if step >= 0.0:
                self.wealth[j] = min(start + count * step, self._most[j])
            else:
                self.wealth[j] = step + (max(start + (count - 1) * step, 0.0) if count > 1 else start)
            grown = _log_add(self.summed[j] + count * step, step + _log_geometric(step, count))
            self.summed[j] = min(grown, self._most[j])
        self.seen += count

    @property
    def log_e(self) -> float:
        """`ln M`."""
        return log_sum([w + m for w, m in zip(self.weights, self.wealth, strict=True)])

    @property
    def log_r(self) -> float:
        """`ln R`, -inf before the first unit."""
        return log_sum([w + r for w, r in zip(self.weights, self.summed, strict=True)])

    @property
    def alarm(self) -> bool:
        """Whether `R` has reached its threshold now, and `M` its root; the caller acts and resets."""
        best, bound = self.log_e, self.log_threshold
        return best >= bound or (best >= bound / 2.0 and self.log_r >= bound)

    @property
    def health(self) -> float:
        """In [0, 1]: `1 - ln(max(M, 1))/ln c`, 1 without any evidence of drift; 0 at the alarm and only there."""
        return 0.0 if self.alarm else min(1.0, 1.0 - max(self.log_e, 0.0) / self.log_threshold)


class Detector(Restarting):
    """A restarting detector of one clause on one stream of units.

    `kind` is `binary` (a unit exceeds or not), `share` or `mean` (a value in [0, 1]); `limit` in (0, 1) is the clause's
    rate or mean; `units` the mean number of units between false alarms. Side `above` watches for values that have become
    too large; `below`, its mirror image on shadow traffic, for a stream that has become good: units that break the limit
    look like a recovery once in at least `units` of them. Raises MonitorInputError: `option_invalid`.
    """

    def __init__(self, kind: str, limit: float, units: float, side: str = "above") -> None:
        if kind not in KINDS or side not in SIDES:
            raise option_error("detector", f"kind {kind!r} of {KINDS}, side {side!r} of {SIDES}")
        if not 0.0 < limit < 1.0:
            raise option_error("limit", f"{limit} is outside (0, 1)")
        if not 2.0 <= units < math.inf:
            raise option_error("units", f"{units} units between false alarms; at least 2 are needed")
        self.kind, self.limit, self.side = kind, limit, side
        self._bets = _bets(kind, limit, side)
        self._sign = 1.0 if side == "above" else -1.0
        super().__init__(self._bets.weights, math.log(units))

    @classmethod
    def of_rule(
        cls, rule: Rule, kind: str, limit: float, traffic: Fraction | float | None = None, side: str = "above"
    ) -> Detector:
        """The detector of a line of `escalate`; `traffic` is that of its stream (shadow: its share) in units a second."""
        return cls(kind, limit, units_between_alarms(rule, traffic), side)

    def add(self, value: float, count: int = 1) -> None:
        """Take in `count` units of one value in a row: 0 or 1 (binary), or in [0, 1]; a value that is not in [0, 1] is 1."""
        if not 0.0 <= value <= 1.0:
            value = 1.0
        if count >= 1:
            self.take(self._bets.steps(value, self.limit, self._sign), count)

    def extend(self, values: Iterable[float]) -> None:
        """Take in units in their order."""
        for value in values:
            self.add(float(value))

    def state_dict(self) -> dict[str, Any]:
        """Plain containers that `load_state_dict` restores; the logarithm of 0 is None, so that JSON holds them."""
        settings = [self.kind, self.side, self.limit, self.log_threshold]
        wealth, summed = ([None if x == -math.inf else x for x in xs] for xs in (self.wealth, self.summed))
        return {"settings": settings, "wealth": wealth, "summed": summed, "seen": self.seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state. One that was saved without the sums starts them at the wealths, which are never more.

        Raises MonitorInputError where it is that of a detector with other settings.
        """
        mine, summed = self.state_dict(), state.get("summed", state["wealth"])
        sizes = {len(state["wealth"]), len(summed), len(self.wealth)}
        if list(state["settings"]) != mine["settings"] or len(sizes) != 1:
            raise option_error("state", f"of a detector with {state['settings']}, not {mine['settings']}")
        wealth, summed = ([-math.inf if x is None else float(x) for x in xs] for xs in (state["wealth"], summed))
        if not all(x < math.inf for x in (*wealth, *summed)):
            raise option_error("state", "it holds a logarithm that is no number below infinity")
        self.wealth, self.summed, self.seen = wealth, summed, int(state["seen"])


def _log_add(a: float, b: float) -> float:
    """`ln(exp(a) + exp(b))`; -inf stands for 0."""
    high, low = max(a, b), min(a, b)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


def _log_geometric(step: float, count: int) -> float:
    """`ln(1 + e^step + ... + e^((count - 1) step))`, `count` at least 1, `step` below infinity."""
    if count == 1 or step == -math.inf:
        return 0.0
    if step == 0.0:
        return math.log(count)
    top = (count - 1) * step if step > 0.0 else 0.0
    return top + math.log(math.expm1(-abs(step) * count) / math.expm1(-abs(step)))
