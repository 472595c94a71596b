"""Rate clauses compiled to integers: how many exceeding units fail, and how many still pass, at every sample size.

The evidence of `sequential.log_e_rate` is monotone: to fail it grows with the exceeding units and falls with the clean
ones, to pass the other way round. So each boundary is a staircase, and its steps decide every verdict without a float.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from kcverify.runtime.sequential import alarm_count, certificate_count, log_e_rate


@dataclass(frozen=True)
class RateTable:
    """Boundaries of one rate clause for 1 to `units` units.

    `alarms[i]` is the largest sample at which `first_alarm + i` exceeding units fail; `certificates[s]` the smallest at
    which `s` exceeding units pass. Both grow. Built by `rate_table`.
    """

    limit: float
    level: float
    units: int
    first_alarm: int
    alarms: tuple[int, ...]
    certificates: tuple[int, ...]

    def alarm(self, total: int) -> int | None:
        """Smallest number of exceeding units out of `total` that fails; None if none does."""
        count = self.first_alarm + bisect_left(self.alarms, self._checked(total))
        return count if count <= total else None

    def certificate(self, total: int) -> int | None:
        """Largest number of exceeding units out of `total` that passes; None if none does."""
        count = bisect_right(self.certificates, self._checked(total)) - 1
        return count if count >= 0 else None

    def verdict(self, exceeding: int, total: int) -> str:
        """`fail`, `pass` or `inconclusive`."""
        alarm, certificate = self.alarm(total), self.certificate(total)
        if alarm is not None and exceeding >= alarm:
            return "fail"
        return "pass" if certificate is not None and exceeding <= certificate else "inconclusive"

    def _checked(self, total: int) -> int:
        if not 0 <= total <= self.units:
            raise ValueError(f"the table ends at {self.units} units, asked for {total}")
        return total


def rate_table(limit: float, level: float, units: int) -> RateTable:
    """The table `S*(n)` of a rate clause, `limit` and `level` in (0, 1), for samples of up to `units` >= 1 units.

    Its size is the number of steps, about `2 * limit * units`; so is the work, times the bisection of one step.
    """
    bound = math.log(1.0 / level)
    first = next((s for s in range(1, units + 1) if log_e_rate(s, s, limit, "above") >= bound), units + 1)
    last = alarm_count(units, limit, level)
    alarms = [
        _last(s, units, lambda n, s=s: log_e_rate(s, n, limit, "above") >= bound)  # type: ignore[misc]
        for s in range(first, last if last is not None else first)
    ]
    passing = certificate_count(units, limit, level)
    certificates = [
        units + 1 - _last(0, units - s, lambda k, s=s: log_e_rate(s, units - k, limit, "below") >= bound) - 1  # type: ignore[misc]
        for s in range(0 if passing is None else passing + 1)
    ]
    return RateTable(limit, level, units, first, tuple(alarms), tuple(certificates))


def _last(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Largest number of low..high for which a property that holds at `low` and then stops holding does."""
    if holds(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
