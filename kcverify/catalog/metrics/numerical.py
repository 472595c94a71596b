"""Metrics of the `numerical` block: distances between two rows of logits or of probabilities."""

from __future__ import annotations

from fractions import Fraction

from kcverify.catalog.model import Argument, Carrier, Dimension, Direction, Estimator, Family, Level, Metric, Statistic

_LOGITS = (Carrier("full logits of both sides", Estimator.EXACT),)
_ROWS_OR_TOP = (
    Carrier("full logits of both sides", Estimator.EXACT),
    Carrier("full probabilities of both sides", Estimator.EXACT),
    Carrier("top-k log-probabilities of both sides", Estimator.LOWER),
    Carrier("log-probability of the sampled token on both sides", Estimator.LOWER),
)
_SAMPLED = (
    Carrier("full logits of both sides", Estimator.EXACT),
    Carrier("log-probability of the sampled token on both sides", Estimator.EXACT),
)
_ONE, _ZERO = Fraction(1), Fraction(0)


def _pointwise(
    name: str,
    title: str,
    definition: str,
    source: str,
    *,
    dimension: Dimension = Dimension.NONE,
    direction: Direction = Direction.AT_MOST,
    high: Fraction | None = None,
    quantity: str | None = None,
    carriers: tuple[Carrier, ...] = _ROWS_OR_TOP,
    level: Level = Level.TOKEN,
    arguments: tuple[Argument, ...] = (),
) -> Metric:
    """A non-negative metric that by default every token (or request) must meet."""
    return Metric(
        name,
        Family.NUMERICAL,
        title,
        definition,
        source,
        dimension,
        direction,
        (_ZERO, high),
        Statistic.MAX,
        level,
        carriers,
        arguments,
        quantity,
    )


ROWS: tuple[Metric, ...] = (
    _pointwise(
        "logit_drift",
        "logit drift",
        "max over the vocabulary of |candidate logit - reference logit|",
        "sup norm of the logit error",
        dimension=Dimension.LOGIT,
        quantity="logit_drift",
        carriers=_LOGITS,
    ),
    _pointwise(
        "logit_span",
        "logit span drift",
        "max minus min over the vocabulary of (candidate logit - reference logit); with `mass` below 100% the smallest such "
        "value over any set of tokens that holds that mass on both sides",
        "what softmax sees of a logit error: unchanged by adding a constant to a row",
        dimension=Dimension.LOGIT,
        quantity="logit_span",
        carriers=_LOGITS,
        arguments=(Argument("mass", default=_ONE, low=Fraction(1, 2), high=_ONE),),
    ),
    _pointwise(
        "tv",
        "total variation",
        "half the sum over the vocabulary of |p - q|",
        "total variation distance",
        high=_ONE,
        quantity="tv",
    ),
    _pointwise(
        "kl(candidate || reference)",
        "KL divergence, candidate from reference",
        "sum over the vocabulary of q ln(q/p): expectation under the candidate, which samples",
        "Kullback and Leibler 1951",
        dimension=Dimension.NAT,
        quantity="kl_candidate_reference",
    ),
    _pointwise(
        "kl(reference || candidate)",
        "KL divergence, reference from candidate",
        "sum over the vocabulary of p ln(p/q): expectation under the reference",
        "Kullback and Leibler 1951",
        dimension=Dimension.NAT,
        quantity="kl_reference_candidate",
    ),
    _pointwise(
        "log_ratio",
        "largest log ratio",
        "max over the vocabulary of |ln(p/q)|, in nats",
        "pure differential privacy's epsilon of one token",
        quantity="log_ratio",
    ),
    _pointwise(
        "importance_ratio",
        "importance ratio",
        "p/q of every token of the vocabulary: reference over candidate",
        "importance sampling with samples from the candidate",
        direction=Direction.WITHIN,
        quantity="importance_ratio",
    ),
    _pointwise(
        "sequence_ratio",
        "importance ratio of a response",
        "product over the response's tokens of p/q",
        "importance sampling of whole responses",
        direction=Direction.WITHIN,
        carriers=_SAMPLED,
        level=Level.REQUEST,
    ),
    _pointwise(
        "geometric_ratio",
        "geometric mean ratio of a response",
        "exp of the mean over the response's tokens of ln(p/q)",
        "length-normalised importance ratio",
        direction=Direction.WITHIN,
        carriers=_SAMPLED,
        level=Level.REQUEST,
    ),
    _pointwise(
        "token_log_ratio",
        "log ratio of the sampled token",
        "|ln(p/q)| of the sampled token, in nats",
        "a lower bound of log_ratio, which is the largest over the vocabulary",
        carriers=(
            Carrier("full logits of both sides", Estimator.LOWER),
            Carrier("log-probability of the sampled token on both sides", Estimator.LOWER),
        ),
    ),
    _pointwise(
        "chi2",
        "chi-squared divergence",
        "sum over the vocabulary of (p - q)^2 / q",
        "Pearson's divergence: the variance of the importance ratio",
        quantity="chi2",
    ),
    _pointwise(
        "affinity",
        "Bhattacharyya coefficient",
        "sum over the vocabulary of sqrt(p q)",
        "one minus the squared Hellinger distance",
        direction=Direction.AT_LEAST,
        high=_ONE,
        quantity="bc",
        carriers=_ROWS_OR_TOP[:2],
    ),
    Metric(
        "ess",
        Family.NUMERICAL,
        "effective sample share",
        "(sum of w)^2 / (n sum of w^2) over n responses with w = product of p/q",
        "Kish 1965",
        Dimension.NONE,
        Direction.AT_LEAST,
        (_ZERO, _ONE),
        Statistic.READING,
        Level.RUN,
        _SAMPLED,
        quantity="ess",
    ),
)
