"""The table of identity checks, and the one pass over two streams that runs them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kcverify.codes import Severity
from kcverify.streams import (
    checks_policy,
    checks_repeated,
    checks_rows,
    checks_run,
    checks_tokens,
    checks_values,
)
from kcverify.streams.adding import Additive
from kcverify.streams.align import Matching, Pair
from kcverify.streams.bearing import ALL, NONE, OF_SAMPLED, SOME, TOUCHED, Bearing
from kcverify.streams.finding import Finding, Observer, Setting
from kcverify.streams.rows import Tops, Whole


@dataclass(frozen=True)
class Check:
    """One row: the codes that it may report, what it looks at, who does, what each code means for the numbers, and which
    findings explain it away.
    """

    codes: tuple[str, ...]
    about: str
    observer: Callable[[Setting], Observer]
    bears: tuple[Bearing, ...]
    unless: tuple[str, ...] = ()


_NUMBERS = ("token_identity", "vocabulary_width", "shifted")
"""Findings after which the numbers of a pair are of different things: no cause is sought in them."""

CHECKS: tuple[Check, ...] = (
    Check(("token_identity", "token_divergence"), "token ids or texts", checks_tokens.TokenIdentity, (ALL, NONE)),
    Check(("requests_unmatched",), "request ids", checks_tokens.Unmatched, (NONE,)),
    Check(("vocabulary_width",), "widths of rows; a constant tail", checks_rows.Width, (ALL,)),
    Check(("no_distribution",), "rows of minus infinity", checks_rows.NoDistribution, (SOME,)),
    Check(("non_finite",), "NaN and plus infinity", checks_values.NonFinite, (TOUCHED,)),
    Check(("placeholder_value",), "-9999, -1000, -100, 0.0, -inf, null by format", checks_values.Placeholders, (SOME,)),
    Check(("positive_logprob",), "log-probabilities above 0", checks_values.Positive, (TOUCHED,)),
    Check(("unsampled_token",), "counted positions without a number", checks_values.Unsampled, (SOME,)),
    Check(("weight_versions", "weights_differ"), "versions of the tokens of an answer; declared weights", checks_tokens.Versions, (SOME, NONE)),
    Check(("duplicate_token",), "lists with a token twice", checks_tokens.Duplicates, (NONE,)),
    Check(("not_normalised",), "sums of rows and lists", checks_rows.Normalised, (ALL,), ("no_distribution",)),
    Check(("shifted",), "agreement at lags 1 to 3", checks_tokens.Shift, (ALL,), ("token_identity",)),
    Check(("repeated_rows",), "rows bit for bit", checks_repeated.RepeatedRows, (ALL,), ("token_identity",)),
    Check(
        ("support_mismatch", "temperature_mismatch"),
        "mass where the other side has none; log-probabilities against each other; mean w; d against surprisal",
        checks_policy.Policy, (ALL, ALL), (*_NUMBERS, "not_normalised", "repeated_rows", "positive_logprob"),
    ),
    Check(("ratio_overflow",), "log-ratios beyond float32", checks_values.Overflow, (OF_SAMPLED,), _NUMBERS),
    Check(("weights_stale", "step_change"), "mean |d| by trainer step", checks_run.Steps, (ALL, ALL), _NUMBERS),
    Check(("mask_hides_failure",), "share of tokens that the mask keeps", checks_run.Mask, (ALL,)),
    Check(
        ("unsatisfiable_as_length_grows",), "mean d against a window", checks_run.Window, (NONE,),
        (*_NUMBERS, "temperature_mismatch", "support_mismatch"),
    ),
    Check(("identical_values",), "bits", checks_policy.Identical, (NONE,)),
)  # fmt: skip
"""In the order in which findings are reported: what makes later ones meaningless comes first."""

BEARINGS: dict[str, Bearing] = {
    slug: bearing for check in CHECKS for slug, bearing in zip(check.codes, check.bears, strict=True)
}
"""What each finding means for the numbers."""


class Identity(Additive):
    """All checks, fed together."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._observers = [check.observer(setting) for check in CHECKS]
        self.compared = 0

    def close(self) -> None:
        """Nothing more comes of this shard."""
        for observer in self._observers:
            observer.close()

    def merge(self, other: Identity) -> None:
        """Add what the checks of another shard saw."""
        super().merge(other)
        for mine, theirs in zip(self._observers, other._observers, strict=True):
            mine.merge(theirs)

    def dump(self) -> dict[str, Any]:
        """Every check's state by the name of its class, as JSON data."""
        return super().dump() | {type(o).__name__: o.dump() for o in self._observers}

    def load(self, told: Mapping[str, Any]) -> None:
        """See `Additive.load`."""
        super().load(told)
        for observer in self._observers:
            observer.load(told[type(observer).__name__])

    def pair(self, pair: Pair) -> None:
        """Show a pair to every check."""
        self.compared += len(pair.sampled.at)
        for observer in self._observers:
            observer.pair(pair)

    def whole(self, rows: Whole) -> None:
        """Show rows to every check."""
        self.compared += int(rows.good.sum())
        for observer in self._observers:
            observer.whole(rows)

    def tops(self, rows: Tops) -> None:
        """Show lists to every check."""
        self.compared += len(rows.at)
        for observer in self._observers:
            observer.tops(rows)

    def findings(self, matching: Matching) -> list[Finding]:
        """Findings in the order of the table, those that an earlier one explains away left out.

        Without a single comparable number and without an error, the answer is `not_observable`.
        """
        out: list[Finding] = []
        for check, observer in zip(CHECKS, self._observers, strict=True):
            if not any(found.slug in check.unless for found in out):
                out += observer.findings(matching)
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
            for word, stream in (("reference", self._setting.left), ("candidate", self._setting.right))
            if not stream.carries & {"logprobs", "logits", "top_logprobs"}
        ]
        if lacking:
            return f"the {' and the '.join(lacking)} holds no log-probabilities (no recompute exists)"
        return "no counted position has a number on both sides"
