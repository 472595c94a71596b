"""One comparison of two streams: pairs once through everything, then identity, drift, estimators, and one verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kcverify import __version__
from kcverify.codes import BY_SLUG, Severity
from kcverify.diagnostics import input_error
from kcverify.readers.stream import Stream
from kcverify.streams import estimators
from kcverify.streams.align import Matching, pairs
from kcverify.streams.drift import Drift
from kcverify.streams.finding import Finding, Setting, show
from kcverify.streams.identity import Identity
from kcverify.streams.intervals import CONFIDENCE, mean_of
from kcverify.streams.projects import PROJECTS, Reported
from kcverify.streams.rows import missing_mass, mixed_rows, top_rows, whole_rows

LEVELS = {
    "error": (Severity.ERROR,),
    "warning": (Severity.ERROR, Severity.WARNING),
    "note": tuple(Severity),
    "never": (),
}
"""What `--fail-on` may say beside names of codes."""


@dataclass(frozen=True)
class Options:
    """What a comparison may be told beyond its two streams."""

    sampled_by: str = "candidate"
    project: str | None = None
    fail_on: str = "error"
    window: tuple[float, float] | None = None
    kept_floor: float | None = None


PAIRED = {"tokens": "their counted tokens", "order": "their order"}
"""How `assumptions` name the ways of pairing."""


def failing(word: str) -> tuple[tuple[Severity, ...], frozenset[str]]:
    """Severities and codes of `--fail-on`. Raises InputError: `option_invalid`."""
    severities: tuple[Severity, ...] = ()
    names = set()
    for part in (p.strip() for p in word.split(",")):
        if part in LEVELS:
            severities += LEVELS[part]
        elif part in BY_SLUG:
            names.add(part)
        else:
            reason = f"`{part}` is neither {', '.join(LEVELS)} nor the name of a code"
            raise input_error("option_invalid", option="--fail-on", reason=reason, hint="--fail-on error")
    return severities, frozenset(names)


def compare(left: Stream, right: Stream, options: Options = Options()) -> dict[str, Any]:
    """The whole answer as plain data, every number finite or the text `inf`, `-inf`, `nan`.

    `verdict` is `comparable`, `not_comparable` (a finding that `fail_on` names; exit code 1) or `unobservable` (exit
    code 3). With a finding of severity error the numbers are under `explained`, not under `drift`.
    Raises InputError as the readers do, and `option_invalid`.
    """
    severities, names = failing(options.fail_on)
    _checked(options)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # infinities are counted where they arise
        return _compared(left, right, options, severities, names)


def _compared(
    left: Stream, right: Stream, options: Options, severities: tuple[Severity, ...], names: frozenset[str]
) -> dict[str, Any]:
    sampled_by = "right" if options.sampled_by == "candidate" else "left"
    setting = Setting(left, right, sampled_by, options.window, options.kept_floor)
    matching, identity, drift = Matching(), Identity(setting), Drift()
    sums = estimators.Sums(sampled_by)
    reported = None if options.project is None else Reported(options.project, sampled_by)
    for pair in pairs(left, right, matching):
        identity.pair(pair)
        drift.pair(pair)
        sums.add(pair)
        if reported is not None:
            reported.add(pair)
        _rows(pair, setting, identity, drift)
    found = identity.findings(matching)
    found = [_at_one_temperature(f, found, setting) for f in found]
    errors = any(f.severity is Severity.ERROR and f.slug != "not_observable" for f in found)
    failed = any(f.severity in severities or f.slug in names for f in found if f.slug != "not_observable")
    blind = any(f.slug == "not_observable" for f in found)
    code = 1 if failed else 3 if blind else 0
    numbers = None if blind else drift.result()
    answer = {
        "kcverify": __version__,
        "exit_code": code,
        "verdict": "unobservable" if blind else "not_comparable" if failed or errors else "comparable",
        "reference": _about(left), "candidate": _about(right), "sampled_by": options.sampled_by,
        "requests": {
            "pairs": matching.pairs, "only_reference": len(matching.only_left), "only_candidate": len(matching.only_right),
            "repeated": len(matching.repeated), "tokens": sums.tokens, "paired_by": matching.by,
        },
        "findings": [_finding(f) for f in found],
        "assumptions": _assumptions(left, right, options, matching),
        "drift": None if errors else numbers,
        "explained": numbers if errors else None,
        "estimators": estimators.results(sums),
        "sequences": estimators.sequences(sums),
        "project": None if reported is None else {"name": options.project, "numbers": reported.results()},
    }  # fmt: skip
    plain_answer: dict[str, Any] = plain(answer)
    return plain_answer


def _at_one_temperature(finding: Finding, found: list[Finding], setting: Setting) -> Finding:
    """A support mismatch with the mass that was cut off after the other side's rows got the fitted temperature.

    Truncation follows the temperature in a sampler, so that this is the mass which the sampler cut. Reads the streams
    once more; findings without both causes stay as they are.
    """
    fitted = next((f.evidence["fitted_ratio"] for f in found if f.slug == "temperature_mismatch"), None)
    if finding.slug != "support_mismatch" or fitted is None or finding.evidence.get("source") != "rows":
        return finding
    cut_right = finding.evidence["side"] == "candidate"
    power = fitted if cut_right else 1 / fitted
    sums, counts, squares = [], [], []
    for pair in pairs(setting.left, setting.right, Matching()):
        masses = [missing_mass(block, cut_right, power) for block in whole_rows(pair)]
        if masses:
            mass = np.concatenate(masses)
            sums.append(math.fsum(mass))
            counts.append(float(len(mass)))
            squares.append(math.fsum(mass * mass))
    mean = mean_of(sums, counts, squares, CONFIDENCE)
    low, high = max(0.0, mean.lower), min(1.0, mean.upper)
    same = {"value": mean.value, "lower": low, "upper": high, "unit": mean.unit}
    cause = f"{finding.cause}; at one temperature it cut off {show(mean.value)} [{show(low)}, {show(high)}]"
    return replace(finding, cause=cause, evidence={**finding.evidence, "missing_mass_at_one_temperature": same})


def _rows(pair: Any, setting: Setting, identity: Identity, drift: Drift) -> None:
    """Every kind of row that both sides have, to the checks and to the drift table."""
    for block in whole_rows(pair):
        identity.whole(block)
        if block.widths[0] == block.widths[1] and block.good.any():
            drift.whole(block)
    width = setting.left.value("vocabulary")
    same = width if width == setting.right.value("vocabulary") and isinstance(width, int) else None
    for lists in top_rows(pair, setting.names, same):
        identity.tops(lists)
        drift.tops(lists)
    for lists, whole, _ in mixed_rows(pair):
        identity.tops(lists)
        drift.tops(lists, whole)


def _checked(options: Options) -> None:
    """Raises InputError: `option_invalid`."""
    if options.sampled_by not in ("reference", "candidate"):
        reason = f"`{options.sampled_by}` is neither reference nor candidate"
        raise input_error("option_invalid", option="--sampled-by", reason=reason, hint="--sampled-by candidate")
    if options.project is not None and options.project not in PROJECTS:
        reason = f"`{options.project}` is none of {', '.join(PROJECTS)}"
        raise input_error("option_invalid", option="--as", reason=reason, hint="--as verl")
    if options.window is not None and not 0 < options.window[0] < options.window[1] < math.inf:
        reason = f"{options.window[0]:g},{options.window[1]:g} is no window of ratios"
        raise input_error("option_invalid", option="--window", reason=reason, hint="--window 0.99,1.01")
    if options.kept_floor is not None and not 0 <= options.kept_floor <= 1:
        reason = f"{options.kept_floor:g} is no share"
        raise input_error("option_invalid", option="--min-kept-share", reason=reason, hint="--min-kept-share 0.7")


def _about(stream: Stream) -> dict[str, Any]:
    return {
        "path": str(stream.path), "format": stream.format, "carries": sorted(stream.carries),
        "declared": {k: {"value": str(d.value), "origin": d.origin} for k, d in sorted(stream.declared.items())},
        "notes": list(stream.notes),
    }  # fmt: skip


def _finding(found: Finding) -> dict[str, Any]:
    row = BY_SLUG[found.slug]
    return {
        "code": row.id, "slug": row.slug, "severity": row.severity.value, "message": found.message, "cause": found.cause,
        "hint": row.fix, "evidence": dict(found.evidence),
    }  # fmt: skip


def _assumptions(left: Stream, right: Stream, options: Options, matching: Matching) -> list[str]:
    """What the numbers rest on and no file says."""
    out = [f"the {options.sampled_by} sampled the tokens"] if left.carries | right.carries else []
    if matching.by != "id":
        out.append(f"requests have no id in common and are paired by {PAIRED[matching.by]}")
    for role, stream in (("reference", left), ("candidate", right)):
        for key, declared in sorted(stream.declared.items()):
            if declared.origin == "assumed":
                out.append(f"{key} of the {role} is {declared.value}, as {stream.format} writes by default")
        if stream.value("temperature") is None:
            out.append(f"temperature of the {role} is not declared")
    return out


def plain(value: Any) -> Any:
    """Data that JSON has: numpy scalars unwrapped, NaN and infinities as texts."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value
