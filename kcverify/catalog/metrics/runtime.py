"""Metrics of the `runtime` block: time, speed, memory and failures of the candidate."""

from __future__ import annotations

from fractions import Fraction

from kcverify.catalog.model import Carrier, Dimension, Direction, Estimator, Family, Level, Metric, Statistic

_ZERO = Fraction(0)


def _row(
    name: str,
    title: str,
    definition: str,
    dimension: Dimension,
    direction: Direction,
    statistic: Statistic | None,
    level: Level,
    carrier: str,
    high: Fraction | None = None,
) -> Metric:
    return Metric(
        name,
        Family.RUNTIME,
        title,
        definition,
        "the candidate's own trace",
        dimension,
        direction,
        (_ZERO, high),
        statistic,
        level,
        (Carrier(carrier, Estimator.EXACT),),
    )


ROWS: tuple[Metric, ...] = (
    _row(
        "latency",
        "request latency",
        "time from the arrival of a request to its last token",
        Dimension.SECOND,
        Direction.AT_MOST,
        None,
        Level.REQUEST,
        "start and end of each request",
    ),
    _row(
        "time_to_first_token",
        "time to first token",
        "time from the arrival of a request to its first token",
        Dimension.SECOND,
        Direction.AT_MOST,
        None,
        Level.REQUEST,
        "arrival and first token of each request",
    ),
    _row(
        "throughput",
        "throughput",
        "sampled tokens divided by elapsed time",
        Dimension.TOKEN_RATE,
        Direction.AT_LEAST,
        Statistic.READING,
        Level.RUN,
        "token counts and wall clock",
    ),
    _row(
        "peak_memory",
        "peak memory",
        "largest amount of device memory in use",
        Dimension.BYTE,
        Direction.AT_MOST,
        Statistic.READING,
        Level.RUN,
        "memory counter of the device",
    ),
    _row(
        "kv_cache",
        "key-value cache",
        "largest amount of memory that the key-value cache holds",
        Dimension.BYTE,
        Direction.AT_MOST,
        Statistic.READING,
        Level.RUN,
        "cache counter of the engine",
    ),
    _row(
        "failure_rate",
        "failure rate",
        "share of requests that end in an error or a non-finite value",
        Dimension.NONE,
        Direction.AT_MOST,
        Statistic.RATE,
        Level.REQUEST,
        "outcome of each request",
        Fraction(1),
    ),
)
