"""Metrics of one sampled token, in the forms in which training frameworks publish their thresholds."""

from __future__ import annotations

from fractions import Fraction

from kcverify.catalog.model import Carrier, Dimension, Direction, Estimator, Family, Level, Metric, Statistic

_CARRIERS = (
    Carrier("full logits of both sides", Estimator.EXACT),
    Carrier("log-probability of the sampled token on both sides", Estimator.EXACT),
)


def _row(name: str, title: str, definition: str, source: str, dimension: Dimension, direction: Direction) -> Metric:
    return Metric(
        name,
        Family.NUMERICAL,
        title,
        definition,
        source,
        dimension,
        direction,
        (Fraction(0), None),
        Statistic.MAX,
        Level.TOKEN,
        _CARRIERS,
    )


ROWS: tuple[Metric, ...] = (
    _row(
        "token_ratio",
        "importance ratio of the sampled token",
        "p/q of the sampled token: reference over candidate",
        "importance sampling with samples from the candidate",
        Dimension.NONE,
        Direction.WITHIN,
    ),
    _row(
        "token_inverse_ratio",
        "inverse importance ratio of the sampled token",
        "q/p of the sampled token: candidate over reference, one over the importance ratio",
        "what a limit on the exponential of -ln(p/q) compares",
        Dimension.NONE,
        Direction.WITHIN,
    ),
    _row(
        "token_k3",
        "k3 estimate of the sampled token",
        "p/q - 1 - ln(p/q) of the sampled token; its mean over the candidate's samples is KL(candidate || reference) "
        "where the supports match",
        "Schulman 2020, approximating KL divergence",
        Dimension.NAT,
        Direction.AT_MOST,
    ),
)
