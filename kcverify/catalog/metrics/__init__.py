"""The table of metrics: one row a metric, found by the name that a contract writes."""

from __future__ import annotations

from kcverify.catalog.metrics import claims, numerical, runtime, sampled, statistical
from kcverify.catalog.model import Metric, Statistic

ROWS: tuple[Metric, ...] = (*numerical.ROWS, *sampled.ROWS, *statistical.ROWS, *runtime.ROWS, *claims.ROWS)

BY_NAME: dict[str, Metric] = {name: row for row in ROWS for name in (row.name, *row.aliases)}
"""Rows by name and alias. Metrics with a direction carry it in the name: `kl(candidate || reference)`."""

DIRECTED: frozenset[str] = frozenset(row.name.partition("(")[0] for row in ROWS if "||" in row.name)
"""Names that mean nothing without a direction."""

WHOLE_ARGUMENTS: frozenset[str] = frozenset({"top", "count"})
"""Arguments that take whole numbers only."""


def statistics_of(metric: Metric) -> tuple[Statistic, ...]:
    """Statistics that a contract may write before the metric, its default among them.

    `MAX` also allows quantiles, which are limits on all but a share of the values.
    """
    if metric.statistic in (Statistic.RATE, Statistic.READING):
        return (metric.statistic,)
    return (Statistic.MAX, Statistic.MEAN)
