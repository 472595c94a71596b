"""Verdicts of a run as they stand in a file: a result of `measure`, a monitor's report, or an answer of `gate`."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kcverify.diagnostics import InputError, input_error

VERDICTS = ("pass", "fail", "inconclusive", "unobservable", "not_enforced")
"""Words for a clause, those of `delivery.evidence`, which needs an extra."""
OVERALL = ("pass", "fail", "inconclusive")
_LARGEST = sys.float_info.max
SIGN = {"pass": 1, "fail": -1}
"""A verdict as a number; every other word is 0, which is no success."""


@dataclass(frozen=True)
class ClauseVerdict:
    """One clause on one slice (None: all requests); log e-values are None where that side does not exist."""

    name: str
    slice: str | None
    severity: str
    text: str
    verdict: str
    reason: str
    requests: int | None
    log_e_fail: float | None
    log_e_pass: float | None

    @property
    def where(self) -> str:
        """Its name with its slice."""
        return self.name if self.slice is None else f"{self.name} on {self.slice}"

    @property
    def sign(self) -> int:
        """1 pass, -1 fail, 0 for everything that is neither."""
        return SIGN.get(self.verdict, 0)


@dataclass(frozen=True)
class Verdicts:
    """All verdicts of one file with its SHA-256; `about` is `measure` or `gate`, `stage` that of a gate."""

    path: str
    about: str
    contract: str
    digest: str
    stage: str | None
    verdict: str
    clauses: tuple[ClauseVerdict, ...]
    sha256: str = ""

    @property
    def sign(self) -> int:
        """1 pass, -1 fail, 0 inconclusive."""
        return SIGN.get(self.verdict, 0)


def read(path: str, content: bytes, digest: str | None = None) -> Verdicts:
    """The verdicts of a file, about the contract with this digest. Raises InputError: `evidence_invalid`."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise _invalid(path, "it is no JSON") from None
    try:
        verdicts = _gate(path, found) if isinstance(found, dict) and "gate" in found else _measure(path, found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"it is no result of `measure` or `gate` in JSON ({type(error).__name__}: {error})"
        raise _invalid(path, reason) from None
    if digest is not None and verdicts.digest != digest:
        raise _invalid(path, f"it is about the contract {verdicts.digest}, and this one is {digest}")
    return replace(verdicts, sha256=hashlib.sha256(content).hexdigest())


def _invalid(path: str, reason: str) -> InputError:
    return input_error("evidence_invalid", path=path, reason=reason)


def _gate(path: str, found: Mapping[str, Any]) -> Verdicts:
    named, gate = found["contract"], found["gate"]
    clauses = tuple(_clause(row, row["clause"], row) for row in gate["clauses"])
    stage = _text(gate["stage"])
    return Verdicts(
        path, "gate", _text(named["name"]), _text(named["digest"]), stage, _overall(gate["verdict"]), clauses
    )


def _measure(path: str, found: Mapping[str, Any]) -> Verdicts:
    report = found.get("measured", found)
    clauses = tuple(_clause(row, row["name"], row["evidence"]) for row in report["clauses"])
    stated = found.get("verdict")
    verdict = _whole(clauses) if stated is None else _overall(stated)
    if verdict == "pass" and found.get("complete", True) is not True:
        raise ValueError("a run that is not complete has passed")
    return Verdicts(path, "measure", _text(report["contract"]), _text(report["digest"]), None, verdict, clauses)


def _whole(clauses: tuple[ClauseVerdict, ...]) -> str:
    """The verdict of a report that states none: the worst of its enforced clauses; nothing measured is no pass."""
    words = {c.verdict for c in clauses if c.verdict != "not_enforced"}
    if "fail" in words:
        return "fail"
    return "pass" if words == {"pass"} else "inconclusive"


def _clause(row: Mapping[str, Any], name: object, evidence: Mapping[str, Any]) -> ClauseVerdict:
    verdict = row["verdict"]
    if verdict not in VERDICTS:
        raise ValueError(f"{verdict!r} is no verdict")
    place = row["slice"]
    if place is not None:
        place = _text(place)
    return ClauseVerdict(
        _text(name), place, _text(row["severity"]), _text(row.get("text", "")), verdict, _text(row["reason"]),
        _count(evidence["requests"]), _log(evidence["log_e_fail"]), _log(evidence["log_e_pass"]),
    )  # fmt: skip


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _overall(value: object) -> str:
    if value not in OVERALL:
        raise ValueError(f"{value!r} is no verdict")
    return str(value)


def _count(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} is no count")
    return value


def _log(value: object) -> float | None:
    if value is None:
        return None
    if value in ("inf", "-inf"):
        return float(str(value))
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_LARGEST <= value <= _LARGEST:
        raise ValueError(f"{value!r} is no log e-value")
    return float(value)
