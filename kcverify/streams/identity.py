"""The table of identity checks, and the one pass over two streams that runs them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kcverify.codes import Severity
from kcverify.streams import checks_policy, checks_rows, checks_run, checks_temperature, checks_tokens, checks_values
from kcverify.streams.align import Matching, Pair
from kcverify.streams.finding import Finding, Observer, Setting
from kcverify.streams.rows import Tops, Whole


@dataclass(frozen=True)
class Check:
    """One row: the codes that it may report, what it looks at, who does, and which findings explain it away."""

    codes: tuple[str, ...]
    about: str
    observer: Callable[[Setting], Observer]
    unless: tuple[str, ...] = ()


SAMPLED = "sampled tokens alone"
"""Source of a cause that was found without rows: only one such cause is reported, since each explains the other's."""

_NUMBERS = ("token_identity", "vocabulary_width", "shifted")
"""Findings after which the numbers of a pair are of different things: no cause is sought in them."""

CHECKS: tuple[Check, ...] = (
    Check(("token_identity", "token_divergence"), "token ids or texts", checks_tokens.TokenIdentity),
    Check(("requests_unmatched",), "request ids", checks_tokens.Unmatched),
    Check(("vocabulary_width",), "widths of rows; a constant tail", checks_rows.Width),
    Check(("no_distribution",), "rows of minus infinity", checks_rows.NoDistribution),
    Check(("non_finite",), "NaN and plus infinity", checks_values.NonFinite),
    Check(("placeholder_value",), "-9999, -1000, -100, 0.0, -inf, null by format", checks_values.Placeholders),
    Check(("positive_logprob",), "log-probabilities above 0", checks_values.Positive),
    Check(("unsampled_token",), "counted positions without a number", checks_values.Unsampled),
    Check(("weight_versions", "weights_differ"), "versions of the tokens of an answer; declared weights", checks_tokens.Versions),
    Check(("duplicate_token",), "lists with a token twice", checks_tokens.Duplicates),
    Check(("not_normalised",), "sums of rows and lists", checks_rows.Normalised, ("no_distribution",)),
    Check(("shifted",), "agreement at lags 1 to 3", checks_tokens.Shift, ("token_identity",)),
    Check(("repeated_rows",), "rows bit for bit", checks_tokens.RepeatedRows, ("token_identity",)),
    Check(("support_mismatch",), "mass where the other side has none; mean w", checks_policy.Support, (*_NUMBERS, "not_normalised")),
    Check(
        ("temperature_mismatch",), "log-probabilities against each other; d against surprisal", checks_temperature.Temperature,
        (*_NUMBERS, "not_normalised", "repeated_rows", "positive_logprob"),
    ),
    Check(("ratio_overflow",), "log-ratios beyond float32", checks_values.Overflow, _NUMBERS),
    Check(("weights_stale", "step_change"), "mean |d| by trainer step", checks_run.Steps, _NUMBERS),
    Check(("mask_hides_failure",), "share of tokens that the mask keeps", checks_run.Mask),
    Check(
        ("unsatisfiable_as_length_grows",), "mean d against a window", checks_run.Window,
        (*_NUMBERS, "temperature_mismatch", "support_mismatch"),
    ),
    Check(("identical_values",), "bits", checks_policy.Identical),
)  # fmt: skip
"""In the order in which findings are reported: what makes later ones meaningless comes first."""


class Identity:
    """All checks, fed together."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.observers = [check.observer(setting) for check in CHECKS]
        self.compared = 0

    def pair(self, pair: Pair) -> None:
        """Show a pair to every check."""
        self.compared += len(pair.sampled.at)
        for observer in self.observers:
            observer.pair(pair)

    def whole(self, rows: Whole) -> None:
        """Show rows to every check."""
        self.compared += int(rows.good.sum())
        for observer in self.observers:
            observer.whole(rows)

    def tops(self, rows: Tops) -> None:
        """Show lists to every check."""
        self.compared += len(rows.at)
        for observer in self.observers:
            observer.tops(rows)

    def findings(self, matching: Matching) -> list[Finding]:
        """Findings in the order of the table, those that an earlier one explains away left out.

        Without a single comparable number and without an error, the answer is `not_observable`.
        """
        out: list[Finding] = []
        for check, observer in zip(CHECKS, self.observers, strict=True):
            if not any(found.slug in check.unless for found in out):
                guessed = any(f.evidence.get("source") == SAMPLED for f in out)
                out += [f for f in observer.findings(matching) if not guessed or f.evidence.get("source") != SAMPLED]
        if not self.compared and not any(f.severity is Severity.ERROR for f in out):
            reason = self._reason(matching)
            out.append(Finding("not_observable", {"reason": reason}, reason, {"pairs": matching.pairs}))
        return out

    def _reason(self, matching: Matching) -> str:
        if not matching.pairs:
            counts = f"{len(matching.only_left)} in the reference, {len(matching.only_right)} in the candidate"
            return f"no request has a counterpart ({counts})"
        lacking = [
            word
            for word, stream in (("reference", self.setting.left), ("candidate", self.setting.right))
            if not stream.carries & {"logprobs", "logits", "top_logprobs"}
        ]
        if lacking:
            return f"the {' and the '.join(lacking)} holds no log-probabilities (no recompute exists)"
        return "no counted position has a number on both sides"
