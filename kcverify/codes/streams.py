"""Codes about two streams that are compared (KC5xx): each names a cause that is no drift."""

from __future__ import annotations

from kcverify.codes.model import Code, Severity


def _row(id: str, slug: str, message: str, why: str, fix: str, severity: Severity = Severity.ERROR) -> Code:
    return Code(id, slug, severity, message, why, fix)


ROWS: tuple[Code, ...] = (
    _row(
        "KC501",
        "temperature_mismatch",
        "candidate logits are {ratio} times the reference's, {confidence} interval [{lower}, {upper}]",
        "Two temperatures give two policies. The difference of log-probabilities then grows with a token's surprisal, which "
        "rounding never does; a correlation coefficient near 1 does not see it.",
        "score both sides at one temperature, or declare each side's temperature and logprobs mode",
    ),
    _row(
        "KC502",
        "support_mismatch",
        "{side} gives probability zero to tokens that hold {mass} of the other side's mass{where}, {confidence} interval [{lower}, {upper}]",
        "Top-k, top-p, min-p and grammars cut tokens off and scale the rest up: every ratio then has the factor that was cut "
        "off, and KL in one direction is infinite. None of it comes from arithmetic.",
        "score both sides before truncation, or truncate both alike",
    ),
    _row(
        "KC503",
        "not_normalised",
        "rows of log-probabilities of {side} sum to {lowest} to {highest}, not to 1",
        "Numbers that do not sum to 1 are no distribution: log-probabilities were scaled by a temperature instead of logits, or "
        "a part of a row was written.",
        "apply the temperature to the logits, then the log-softmax over the whole row",
    ),
    _row(
        "KC504",
        "shifted",
        "the sides agree when one is moved by {lag} token(s): reference[t] = candidate[t + {lag}]",
        "A log-probability that belongs to the next or to the last token is an off-by-one in the scoring code; compared as "
        "they stand, the numbers are unrelated.",
        "logits at position t score token t + 1: shift one of the sides",
    ),
    _row(
        "KC505",
        "positive_logprob",
        "{count} log-probabilities of {side} are above 0, up to {largest}",
        "No probability exceeds 1. Such numbers are logits, losses with the wrong sign, or log-probabilities of another base "
        "or scale.",
        "export log-softmax values in nats",
    ),
    _row(
        "KC506",
        "placeholder_value",
        "{count} counted log-probabilities of {side} are placeholders ({kinds})",
        "Engines write -9999, -1000, -100, 0.0 or -inf where they have no number. Averaged as a number, one of them decides "
        "every mean.",
        "mask these positions, or let the engine write what it knows",
    ),
    _row(
        "KC507",
        "ratio_overflow",
        "{count} tokens have a log-ratio above {limit}, up to {largest}: e^d is infinite in float32",
        "An infinite ratio times an advantage of zero is NaN, and one such token poisons a batch. Here it is kept in log "
        "space.",
        "clip the log-ratio before the exponential, and find out why the engine sampled a token of probability zero",
    ),
    _row(
        "KC508",
        "no_distribution",
        "{count} of {rows} rows of {side} are minus infinity everywhere, first at {where}",
        "A row in which every token is banned is no distribution; nothing can be compared with it.",
        "look at the mask or grammar that bans every token",
    ),
    _row(
        "KC509",
        "non_finite",
        "{count} of {rows} rows or log-probabilities of {side} are NaN or infinite, first at {where}",
        "A broken number is counted in the denominator and fails by default: leaving it out would make a broken kernel look "
        "good.",
        "find the overflow that made it; none may be dropped silently",
    ),
    _row(
        "KC510",
        "duplicate_token",
        "{count} entries of {side}'s lists of most probable tokens repeat a token of the same list",
        "A token that is listed twice counts twice: the listed mass can exceed 1. Here each one counts once.",
        "write each token once; engines append the sampled token to the list",
    ),
    _row(
        "KC511",
        "unsampled_token",
        "{count} positions count by the mask, and {side} has no log-probability there",
        "Padding, tool output and prompts are not sampled: a mask that counts them averages what no policy chose.",
        "let the mask count sampled tokens alone",
    ),
    _row(
        "KC512",
        "weight_versions",
        "{count} answers hold tokens of several weight versions: {versions}",
        "An answer that was under way while weights were updated belongs to no policy; its ratios mix two models.",
        "keep the version of each token, and compare tokens of one version",
    ),
    _row(
        "KC513",
        "weights_stale",
        "disagreement grows with the trainer's step, from {first} to {last} nats, and not with the lag of the engine's weights",
        "Rounding does not grow while weights train. Growth with the step at a constant lag says that the engine's weights "
        "do not follow.",
        "check that the weight update reaches the engine",
    ),
    _row(
        "KC514",
        "step_change",
        "disagreement jumps at step {at}, from {before} to {after} nats",
        "A jump between two steps comes from a change of the set-up: an update that failed, another kernel, another "
        "temperature.",
        "find out what changed at this step",
    ),
    _row(
        "KC515",
        "repeated_rows",
        "{count} of {rows} rows of {side} repeat an earlier row bit for bit where the other side's rows differ",
        "Different contexts give different rows. Identical ones are a buffer that was not updated or a cache that was read "
        "at the wrong place.",
        "check which rows the export writes",
    ),
    _row(
        "KC516",
        "mask_hides_failure",
        "the mask keeps {kept} of the tokens, below the floor of {floor}",
        "A mask that drops what disagrees makes the rest agree. Below its floor the kept share is the finding, not the drift "
        "of what was kept.",
        "repair the disagreement instead of masking it, or lower the floor knowingly",
    ),
    _row(
        "KC517",
        "unsatisfiable_as_length_grows",
        "the mean log-ratio tends to {mean} as answers grow, outside the window [{lower}, {upper}] of the geometric mean",
        "The geometric mean of the ratios tends to e^-KL, not to 1. A window that leaves e^-KL out rejects every long "
        "answer, however healthy.",
        "widen the window, or test the arithmetic mean",
    ),
    _row(
        "KC518",
        "not_observable",
        "nothing can be compared: {reason}",
        "Missing data is no agreement. Without numbers of both sides for the same tokens there is no verdict.",
        "recompute the log-probabilities on the side that lacks them",
    ),
    _row(
        "KC519",
        "requests_unmatched",
        "{count} requests have no counterpart: {detail}",
        "Requests of one side alone, and those whose id repeats, say nothing about a difference.",
        "export the same requests from both sides, each under its own id",
        Severity.WARNING,
    ),
    _row(
        "KC520",
        "token_divergence",
        "the sides generated different tokens in {count} requests; comparable up to position {first} at the earliest",
        "Two engines that generate by themselves part ways at some token. Up to there their rows have the same context; "
        "after it they do not.",
        "score one side's tokens on the other side to compare whole answers",
        Severity.WARNING,
    ),
    _row(
        "KC521",
        "identical_values",
        "all {count} log-probabilities are bit-identical",
        "Two engines do not round alike. Identical numbers mean one engine, or a side that was copied from the other (as in "
        "bypass modes, where no trainer recompute exists).",
        "if the sides should differ, check that both were computed",
        Severity.NOTE,
    ),
    _row(
        "KC522",
        "weights_differ",
        "the sides declare different weights: {reference} and {candidate}",
        "Two versions of the weights are two policies. Their distance is that of the update, to which the kernels only add.",
        "compare sides of one version to measure kernels; keep this comparison for staleness",
        Severity.WARNING,
    ),
)  # fmt: skip
