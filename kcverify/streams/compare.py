"""One comparison of two streams: pairs once through everything, then identity, drift, estimators, and one verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from kcverify import __version__
from kcverify.codes import BY_ID, BY_SLUG, Severity
from kcverify.diagnostics import input_error
from kcverify.readers.stream import Stream
from kcverify.streams import estimators
from kcverify.streams.align import Matching, Pair, pairs
from kcverify.streams.bearing import parted, voided
from kcverify.streams.finding import Finding, Setting, show
from kcverify.streams.identity import BEARINGS
from kcverify.streams.intervals import CONFIDENCE, mean_of
from kcverify.streams.observing import DEFAULT, Observation, Options
from kcverify.streams.projects import PROJECTS
from kcverify.streams.rows import missing_mass, whole_rows

LEVELS = {
    "error": (Severity.ERROR,),
    "warning": (Severity.ERROR, Severity.WARNING),
    "note": tuple(Severity),
    "never": (),
}
"""What `--fail-on` may say beside names of codes."""


PAIRED = {"tokens": "their counted tokens", "order": "their order"}
"""How `assumptions` name the ways of pairing."""


def failing(word: str) -> tuple[tuple[Severity, ...], frozenset[str]]:
    """Severities and codes of `--fail-on`. Raises InputError: `option_invalid`."""
    severities: tuple[Severity, ...] = ()
    names = set()
    for part in (p.strip() for p in word.split(",")):
        if part in LEVELS:
            severities += LEVELS[part]
        elif (slug := BY_ID[part].slug if part in BY_ID else part) in BEARINGS or slug == "not_observable":
            names.add(slug)
        else:
            reason = f"`{part}` is neither {', '.join(LEVELS)} nor the name of a code that a comparison reports"
            raise input_error("option_invalid", option="--fail-on", reason=reason, hint="--fail-on error")
    return severities, frozenset(names)


def compare(left: Stream, right: Stream, options: Options = DEFAULT) -> dict[str, Any]:
    """The whole answer as plain data, every number finite or the text `inf`, `-inf`, `nan`.

    `verdict` is `comparable`; `not_comparable` where no number stands; `partly_comparable` where a finding of severity
    error or one that `fail_on` names leaves some; `unobservable`, `incomplete` (exit code 3). The exit code is 1 where a
    finding is one that `fail_on` names. Numbers that findings void are under `explained`, the others under `drift`.
    Raises InputError as the readers do, and `option_invalid`.
    """
    checked(options)
    seen = Observation(setting_of(left, right, options), options.project)
    seen.take(pairs(left, right, seen.matching))
    by = seen.matching.by
    return answered(
        seen, options, lambda cut_right, power: masses_of(pairs(left, right, Matching(), by), cut_right, power)
    )


def setting_of(left: Stream, right: Stream, options: Options) -> Setting:
    """What the checks are told."""
    sampled_by = "right" if options.sampled_by == "candidate" else "left"
    return Setting(left, right, sampled_by, options.window, options.kept_floor)


Masses = Callable[[bool, float], list[tuple[float, float, float]] | None]
"""For which side was cut and the power of the other's logits: by request, sum of masses, rows, sum of squares."""


def answered(seen: Observation, options: Options, masses: Masses, complete: bool = True) -> dict[str, Any]:
    """The answer of `compare` from what was seen. `masses` reads the streams once more, and is None where it cannot."""
    severities, names = failing(options.fail_on)
    left, right = seen.setting.left, seen.setting.right
    matching, sums, reported = seen.matching, seen.sums, seen.reported
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # infinities are counted where they arise
        found = seen.identity.findings(matching)
        found = [_at_one_temperature(f, found, masses) for f in found]
    errors = any(f.severity is Severity.ERROR and f.slug != "not_observable" for f in found)
    failed = any(f.severity in severities or f.slug in names for f in found if f.slug != "not_observable")
    blind = any(f.slug == "not_observable" for f in found)
    code = 1 if failed else 3 if blind or not complete else 0
    void = voided(found, BEARINGS, seen.drift.kept())
    drift, explained = (None, None) if blind else parted(seen.drift.result(), void)
    some = "partly_comparable" if drift is not None else "not_comparable"
    verdict = "unobservable" if blind else some if failed or errors else "comparable" if complete else "incomplete"
    answer = {
        "kcverify": __version__,
        "exit_code": code,
        "verdict": verdict,
        "reference": _about(left), "candidate": _about(right), "sampled_by": options.sampled_by,
        "requests": {
            "pairs": matching.pairs, "only_reference": len(matching.only_left), "only_candidate": len(matching.only_right),
            "repeated": len(matching.repeated), "tokens": sums.tokens, "paired_by": matching.by,
        },
        "findings": [_finding(f) for f in found],
        "assumptions": _assumptions(left, right, options, matching),
        "void": void,
        "left_out": [
            {"slug": f.slug, "family": family, "rows": n, "of": n + seen.drift.kept()[family]}
            for f in found for family, n in sorted(f.left_out.items()) if n
        ],
        "drift": drift,
        "explained": explained,
        "estimators": estimators.results(sums),
        "sequences": estimators.sequences(sums),
        "project": None if reported is None else {"name": options.project, "numbers": reported.results()},
    }  # fmt: skip
    plain_answer: dict[str, Any] = plain(answer)
    return plain_answer


def _at_one_temperature(finding: Finding, found: list[Finding], masses: Masses) -> Finding:
    """A support mismatch with the mass that was cut off after the other side's rows got the fitted temperature.

    Truncation follows the temperature in a sampler, so that this is the mass which the sampler cut. Reads the streams
    once more; findings without both causes stay as they are.
    """
    fitted = next((f.evidence["fitted_ratio"] for f in found if f.slug == "temperature_mismatch"), None)
    if finding.slug != "support_mismatch" or fitted is None or finding.evidence.get("source") != "rows":
        return finding
    cut_right = finding.evidence["side"] == "candidate"
    rows = masses(cut_right, fitted if cut_right else 1 / fitted)
    if not rows:
        return finding
    sums, counts, squares = (list(column) for column in zip(*rows, strict=True))
    mean = mean_of(sums, counts, squares, CONFIDENCE)
    low, high = max(0.0, mean.lower), min(1.0, mean.upper)
    same = {"value": mean.value, "lower": low, "upper": high, "unit": mean.unit}
    cause = f"{finding.cause}; at one temperature it cut off {show(mean.value)} [{show(low)}, {show(high)}]"
    return replace(finding, cause=cause, evidence={**finding.evidence, "missing_mass_at_one_temperature": same})


def masses_of(of: Iterable[Pair], cut_right: bool, power: float) -> list[tuple[float, float, float]]:
    """By request: the sum of the masses that one side cut off, rows, and the sum of the masses' squares."""
    out = []
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for pair in of:
            found = [missing_mass(block, cut_right, power) for block in whole_rows(pair)]
            if found:
                mass = np.concatenate(found)
                out.append((math.fsum(mass), float(len(mass)), math.fsum(mass * mass)))
    return out


def checked(options: Options) -> None:
    """Raises InputError: `option_invalid`."""
    failing(options.fail_on)
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
    sides = (("reference", left), ("candidate", right))
    nameless = [role for role, stream in sides if not stream.carries & {"token_ids", "tokens"}]
    if len(nameless) == 1:
        out.append(f"both sides scored the same tokens: the {nameless[0]} has no token ids")
    for role, stream in sides:
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
