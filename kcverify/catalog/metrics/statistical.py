"""Metrics of the `statistical` block: what the drift does to choices, calibration, reward and format."""

from __future__ import annotations

from fractions import Fraction

from kcverify.catalog.model import Argument, Carrier, Dimension, Direction, Estimator, Family, Level, Metric, Statistic

_ONE, _ZERO = Fraction(1), Fraction(0)
_UNIT: tuple[Fraction | None, Fraction | None] = (_ZERO, _ONE)
_RANKED = (
    Carrier("full logits of both sides", Estimator.EXACT),
    Carrier("top-k tokens of both sides, k at least what is asked", Estimator.EXACT),
)
_LOGITS = (Carrier("full logits of both sides", Estimator.EXACT),)
_PAIRED_REWARD = (Carrier("reward of both sides on the same prompts", Estimator.UNBIASED),)
_PAIRED_TEXT = (Carrier("response of both sides on the same prompts", Estimator.UNBIASED),)


def _row(
    name: str,
    title: str,
    definition: str,
    source: str,
    direction: Direction,
    range: tuple[Fraction | None, Fraction | None],
    statistic: Statistic,
    level: Level,
    carriers: tuple[Carrier, ...],
    arguments: tuple[Argument, ...] = (),
    dimension: Dimension = Dimension.NONE,
    quantity: str | None = None,
    caveat: str = "",
) -> Metric:
    return Metric(
        name,
        Family.STATISTICAL,
        title,
        definition,
        source,
        dimension,
        direction,
        range,
        statistic,
        level,
        carriers,
        arguments,
        quantity,
        caveat=caveat,
    )


ROWS: tuple[Metric, ...] = (
    _row(
        "agreement",
        "top-k agreement",
        "share of tokens whose k most probable tokens are the same on both sides, as a set or in order; ties count as agreement",
        "rank agreement",
        Direction.AT_LEAST,
        _UNIT,
        Statistic.RATE,
        Level.TOKEN,
        _RANKED,
        (
            Argument("top", default=_ONE, low=_ONE, high=Fraction(1000)),
            Argument("ordered", default="false", values=("true", "false")),
        ),
        quantity="disagreement",
    ),
    _row(
        "rank",
        "rank of the reference's choice",
        "rank of the reference's most probable token under the candidate, 1 where they agree; ties count as agreement",
        "rank agreement",
        Direction.AT_MOST,
        (_ONE, None),
        Statistic.MAX,
        Level.TOKEN,
        _LOGITS,
    ),
    _row(
        "flip_rate",
        "margin-aware flip rate",
        "share of tokens whose most probable token differs although the reference's margin exceeds `margin` logits; ties "
        "are no flip",
        "a flip at a near tie is no fault of the kernel",
        Direction.AT_MOST,
        _UNIT,
        Statistic.RATE,
        Level.TOKEN,
        _RANKED,
        (Argument("margin", default=_ZERO, low=_ZERO),),
        quantity="flips",
    ),
    _row(
        "ece_drift",
        "drift of the expected calibration error",
        "|ECE of the candidate - ECE of the reference| with `count` equal bins, fixed by the reference or each "
        "side's own; confidence is the largest probability, correct is the given token as that side's choice",
        "Naeini et al. 2015; with own bins no bound from drift exists",
        Direction.AT_MOST,
        _UNIT,
        Statistic.READING,
        Level.RUN,
        (Carrier("confidence and correctness of both sides", Estimator.UNBIASED),),
        (
            Argument("bins", values=("reference", "own")),
            Argument("count", default=Fraction(15), low=Fraction(2), high=Fraction(1000)),
        ),
        quantity="ece_drift",
        caveat="`agreement` and `flip_rate` count a tie as agreement, but a tie may change which token is the choice, and with it "
        "what counts as correct: they bound no calibration error",
    ),
    _row(
        "reward_delta",
        "reward difference on paired prompts",
        "|mean reward of the candidate - mean reward of the reference| over the same prompts",
        "paired comparison",
        Direction.AT_MOST,
        (_ZERO, None),
        Statistic.READING,
        Level.RUN,
        _PAIRED_REWARD,
        dimension=Dimension.REWARD,
    ),
    _row(
        "accuracy_delta",
        "accuracy difference on paired prompts",
        "|share of correct answers of the candidate - that of the reference| over the same prompts",
        "paired comparison",
        Direction.AT_MOST,
        _UNIT,
        Statistic.RATE,
        Level.REQUEST,
        _PAIRED_TEXT,
    ),
    _row(
        "parse_rate",
        "parse rate",
        "share of the candidate's responses that the declared format accepts",
        "structured output",
        Direction.AT_LEAST,
        _UNIT,
        Statistic.RATE,
        Level.REQUEST,
        (Carrier("response of the candidate", Estimator.EXACT),),
    ),
    _row(
        "parse_rate_delta",
        "parse rate difference",
        "|parse rate of the candidate - parse rate of the reference| over the same prompts",
        "paired comparison",
        Direction.AT_MOST,
        _UNIT,
        Statistic.RATE,
        Level.REQUEST,
        _PAIRED_TEXT,
    ),
    _row(
        "perplexity_ratio",
        "perplexity ratio",
        "perplexity of the candidate over that of the reference on one text",
        "exp of the difference of mean negative log-likelihoods",
        Direction.WITHIN,
        (_ZERO, None),
        Statistic.READING,
        Level.RUN,
        (Carrier("log-probability of each given token on both sides", Estimator.EXACT),),
        quantity="perplexity_ratio",
        caveat="only a limit on every token bounds the perplexity of any text; a mean or an exception is about the measured tokens",
    ),
)
