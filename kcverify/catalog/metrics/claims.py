"""Metrics of the `guarantee` block: what follows from the clauses, for whole responses and for training."""

from __future__ import annotations

from fractions import Fraction

from kcverify.catalog.model import Argument, Carrier, Dimension, Direction, Estimator, Family, Level, Metric, Statistic

_ONE, _ZERO = Fraction(1), Fraction(0)
_DERIVED = (Carrier("the clauses of the contract, through the lemmas", Estimator.UPPER),)


def _row(
    name: str,
    title: str,
    definition: str,
    source: str,
    *,
    high: Fraction | None = None,
    quantity: str | None,
    dimension: Dimension = Dimension.NONE,
    statistic: Statistic = Statistic.READING,
    level: Level = Level.RUN,
    arguments: tuple[Argument, ...] = (),
    aliases: tuple[str, ...] = (),
) -> Metric:
    return Metric(
        name,
        Family.CLAIM,
        title,
        definition,
        source,
        dimension,
        Direction.AT_MOST,
        (_ZERO, high),
        statistic,
        level,
        _DERIVED,
        arguments,
        quantity,
        aliases,
    )


ROWS: tuple[Metric, ...] = (
    _row(
        "tv_seq",
        "total variation of whole responses",
        "half the sum over all responses of |P - Q|, P and Q the probabilities of a whole response",
        "total variation distance of two autoregressive policies",
        high=_ONE,
        quantity="tv_seq",
        aliases=("sequence_tv",),
    ),
    _row(
        "reward_drift",
        "drift of the expected reward",
        "|expected reward under P - expected reward under Q|",
        "difference of two expectations of one reward function",
        quantity="reward_drift",
        dimension=Dimension.REWARD,
    ),
    _row(
        "pass_rate_drift",
        "drift of the pass rate",
        "|pass rate under P - pass rate under Q|, for any set of passing responses",
        "an expected reward with values 0 and 1; at most the total variation",
        high=_ONE,
        quantity="pass_rate_drift",
    ),
    _row(
        "pg_bias",
        "policy-gradient bias",
        "norm of E_P[A grad log pi] - E_Q[A grad log pi]: the error of treating the candidate's samples as the "
        "reference's",
        "policy gradient with samples from another policy",
        quantity="pg_bias",
    ),
    _row(
        "clip_share",
        "share of the clip range spent by the kernels",
        "largest |p/q - 1| of a token over the clip range `clip` of the policy update",
        "PPO's clipped ratio",
        quantity="clip_share",
        statistic=Statistic.MAX,
        level=Level.TOKEN,
        arguments=(Argument("clip", default=Fraction(1, 5), low=Fraction(1, 1000), high=_ONE),),
    ),
)
