"""Checks of a training run: disagreement over steps, masks that hide it, windows that no long answer can meet."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from kcverify.readers.stream import Flags, Request
from kcverify.streams.align import Matching, Pair
from kcverify.streams.finding import Finding, Observer, Setting, show
from kcverify.streams.intervals import DECISIVE, Interval, ratio, student
from kcverify.streams.rows import dot

STEP = ("trainer_step", "global_step", "train_step", "training_step", "step")
LAG = ("lag", "sync_lag", "staleness", "off_policy_steps")
VERSION = ("weights_version", "weight_version", "policy_version", "rollout_step", "version")
"""Names of the fields of a request that say at which step it was trained on, and how old the engine's weights were."""

GROWTH = 2.0
"""How many times the first third of the steps the last third must be."""

JUMP = 3.0
"""How many times the level before a step the level after it must be, or the reverse."""


def steps_of(values: Sequence[float], lags: Sequence[float | None] | None = None) -> Iterator[Finding]:
    """What a series of mean |d| by trainer step says: a jump, or growth that the engine's lag does not explain.

    A jump is the best split in two levels; growth is a monotone trend (Kendall) at a constant lag. Whichever leaves
    less unexplained is reported. Fewer than 4 steps say nothing.
    """
    y = np.asarray(values, dtype=np.float64)
    n = len(y)
    if n < 4 or not np.isfinite(y).all():
        return
    cut, level_rest = _split(y)
    x = np.arange(n, dtype=np.float64)
    line = np.polyfit(x, y, 1)
    line_rest = float(((y - np.polyval(line, x)) ** 2).sum())
    before, after = float(y[:cut].mean()), float(y[cut:].mean())
    spread = math.sqrt(level_rest / max(1, n - 2))
    high, low = max(before, after), min(before, after)
    if level_rest < line_rest and high > JUMP * max(low, 1e-12) and high - low > 6 * spread:
        yield Finding(
            "step_change",
            {"at": cut, "before": show(before), "after": show(after)},
            "the set-up changed between two steps",
            {"at": cut, "before": before, "after": after, "steps": n},
        )
        return
    third = max(1, n // 3)
    first, last = float(y[:third].mean()), float(y[-third:].mean())
    if n < 6 or last < GROWTH * first or _trend(y) > 1 - DECISIVE or _by_lag(y, lags):
        return
    yield Finding(
        "weights_stale",
        {"first": show(first), "last": show(last)},
        "the engine's weights do not follow the trainer's" + ("" if lags is None else "; the lag does not explain it"),
        {"first": first, "last": last, "steps": n, "slope_per_step": float(line[0])},
    )


def _split(y: np.ndarray[Any, Any]) -> tuple[int, float]:
    """The cut that leaves least unexplained by two levels, and what it leaves."""
    rests = [float(((y[:k] - y[:k].mean()) ** 2).sum() + ((y[k:] - y[k:].mean()) ** 2).sum()) for k in range(1, len(y))]
    best = int(np.argmin(rests))
    return best + 1, rests[best]


def _trend(y: np.ndarray[Any, Any]) -> float:
    """One-sided p-value of Kendall's rank correlation with time (normal approximation)."""
    n = len(y)
    s = float(np.sign(y[None, :] - y[:, None])[np.triu_indices(n, 1)].sum())
    sd = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    return 1 - NormalDist().cdf((s - 1) / sd)


def _by_lag(y: np.ndarray[Any, Any], lags: Sequence[float | None] | None) -> bool:
    """Whether the lag explains the series better than the step does: then it is no stuck update."""
    if lags is None or any(v is None for v in lags):
        return False
    x = np.asarray(lags, dtype=np.float64)
    if np.ptp(x) == 0:
        return False
    step = np.arange(len(y))
    if abs(float(np.corrcoef(x, step)[0, 1])) > 0.99:
        return False
    return abs(float(np.corrcoef(x, y)[0, 1])) >= abs(float(np.corrcoef(step, y)[0, 1]))


class Steps(Observer):
    """Mean |d| by the trainer's step, where requests carry one."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.by_step: dict[float, list[tuple[float, float, float | None]]] = {}

    def pair(self, pair: Pair) -> None:
        """Add a request to its step."""
        step = _number((pair.left, pair.right), STEP)
        s = pair.sampled
        if step is None or not len(s.at):
            return
        lag = _number((pair.right, pair.left), LAG)
        version = _number((pair.right, pair.left), VERSION)
        lag = lag if lag is not None else None if version is None else step - version
        self.by_step.setdefault(step, []).append((float(np.abs(s.left - s.right).sum()), float(len(s.at)), lag))

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """At most one; `at` becomes the step's own number."""
        order = sorted(self.by_step)
        values = [math.fsum(v[0] for v in self.by_step[k]) / math.fsum(v[1] for v in self.by_step[k]) for k in order]
        lags = [_mean([v[2] for v in self.by_step[k]]) for k in order]
        for found in steps_of(values, None if all(v is None for v in lags) else lags):
            if found.slug == "step_change":
                at = order[found.evidence["at"]]
                at = int(at) if at == int(at) else at
                yield Finding(found.slug, {**found.holes, "at": at}, found.cause, {**found.evidence, "step": at})
            else:
                yield found


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return math.fsum(known) / len(known) if len(known) == len(values) and known else None


def _number(requests: Sequence[Request], names: Sequence[str]) -> float | None:
    for request in requests:
        for name in names:
            value = _scalar(request.fields, name)
            if value is not None:
                return value
    return None


def _scalar(fields: Mapping[str, Any], name: str) -> float | None:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return None
    return float(value) if math.isfinite(value) else None


def kept_share(kept: float, floor: float, more: Mapping[str, Any] | None = None) -> Iterator[Finding]:
    """A finding where the mask keeps less than the floor."""
    if kept < floor:
        yield Finding(
            "mask_hides_failure",
            {"kept": f"{kept:.3g}", "floor": f"{floor:.3g}"},
            "what disagrees was masked away",
            {"kept_share": kept, "floor": floor, **(more or {})},
        )


class Mask(Observer):
    """The share of one side's counted tokens that the other side's mask keeps; and shares that requests state."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.kept, self.all = 0, 0
        self.dropped: list[tuple[float, int]] = []
        self.stated: list[float] = []

    def pair(self, pair: Pair) -> None:
        """Count positions that either mask counts, but for a prompt that one side leaves out."""
        for request in (pair.left, pair.right):
            stated = _scalar(request.fields, "kept_share")
            if stated is not None:
                self.stated.append(stated)
        a, b = pair.left_mask, pair.right_mask
        either = a | b
        if not either.any() or (a.all() and b.all()):
            self.kept, self.all = self.kept + int(a.sum()), self.all + int(a.sum())
            return
        after = np.ones(len(a), dtype=bool)
        for own, other in ((a, b), (b, a)):
            if own.all() and _is_suffix(other):
                after = other
        self.kept += int((a & b & after).sum())
        self.all += int((either & after).sum())
        n = pair.agreed
        left, right = pair.raw
        gone = (either & ~(a & b) & after)[:n] & np.isfinite(left) & np.isfinite(right)
        if gone.any():
            self.dropped.append((float(np.abs(left[gone] - right[gone]).sum()), int(gone.sum())))

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """At most one."""
        floor = self.setting.kept_floor
        if floor is None or not (self.all or self.stated):
            return
        shares = [*self.stated, *([self.kept / self.all] if self.all else [])]
        more: dict[str, Any] = {"tokens": self.all}
        if self.dropped:
            count = sum(n for _, n in self.dropped)
            more |= {"dropped": count, "mean_abs_dropped": math.fsum(s for s, _ in self.dropped) / count}
        yield from kept_share(min(shares), floor, more)


def _is_suffix(mask: Flags) -> bool:
    """Whether a mask counts the end of a sequence and nothing before: what precedes it is a prompt."""
    return bool(mask.any() and not mask.all() and mask[int(np.argmax(mask)) :].all())


def window(lower: float, upper: float, mean: Interval, sd: float) -> Iterator[Finding]:
    """A finding where the limit of the mean log-ratio lies outside the window `[lower, upper]` of the geometric mean.

    With equal supports `mean w = 1`, so that a spread `sd` of `d` has mean `-sd^2/2`: the window holds for long answers
    only if `sd <= sqrt(-2 log lower)`. The share of answers of `n` tokens inside is that of a normal variable with
    standard deviation `sd / sqrt(n)`.
    """
    a, b = math.log(lower), math.log(upper)
    if mean.lower <= b and mean.upper >= a:
        return
    law = NormalDist(mean.value, max(sd, 1e-300) / math.sqrt(1000))
    yield Finding(
        "unsatisfiable_as_length_grows",
        {"mean": f"{mean.value:.3g}", "lower": f"{a:.4g}", "upper": f"{b:.4g}"},
        f"answers of 1000 tokens stay inside with probability {law.cdf(b) - law.cdf(a):.2f}, longer ones ever less",
        {
            "mean_log_ratio": mean.value, "sd": sd, "limit_sd": math.sqrt(-2 * a) if a < 0 else 0.0,
            "keep_rate_at_1000": law.cdf(b) - law.cdf(a), "window": [lower, upper],
        },
    )  # fmt: skip


def window_of_spread(lower: float, upper: float, sd: float) -> Iterator[Finding]:
    """`window` where only the spread of `d` is known and the supports match."""
    mean = -sd * sd / 2
    yield from window(lower, upper, Interval(mean, mean, mean, "stated", 0), sd)


class Window(Observer):
    """The mean log-ratio against a window of its geometric mean."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.rows: list[tuple[float, float, float]] = []

    def pair(self, pair: Pair) -> None:
        """Add moments of `d`."""
        s = pair.sampled
        if self.setting.window is not None and len(s.at):
            d = s.left - s.right if self.setting.sampled_by == "right" else s.right - s.left
            self.rows.append((float(len(d)), float(d.sum()), dot(d, d)))

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """At most one."""
        if self.setting.window is None or not self.rows:
            return
        n, total, square = (math.fsum(c) for c in zip(*self.rows, strict=True))
        mean = total / n
        sd = math.sqrt(max(0.0, square / n - mean * mean))
        if len(self.rows) >= 5:
            found = ratio([r[1] for r in self.rows], [r[0] for r in self.rows])
        else:
            half = student(0.95, int(n) - 1) * sd / math.sqrt(n)
            found = Interval(mean, mean - half, mean + half, "token", int(n))
        yield from window(*self.setting.window, found, sd)
