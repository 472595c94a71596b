"""Builds the statements of an attestation from a contract, its check, and a result of `measure`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import realpath
from pathlib import Path
from typing import Any

from kcverify import __version__
from kcverify.diagnostics import InputError, input_error
from kcverify.digests import sha256_of
from kcverify.emit.plan import plan
from kcverify.prove.certificate import certificate
from kcverify.prove.certificate import text as certificate_text
from kcverify.prove.check import Checked
from kcverify.prove.kernel import BROKEN
from kcverify.provenance import kernels, weights
from kcverify.provenance.events import text_of
from kcverify.provenance.fields import ABSENT
from kcverify.provenance.fingerprint import Fingerprint, of_data
from kcverify.provenance.reading import is_there, read_bytes, strict
from kcverify.provenance.statement import bundle, subject, verdict_of

SUFFIX = ".intoto.jsonl"
_WORDS = ("pass", "fail", "inconclusive", "unobservable", "not_enforced")


@dataclass(frozen=True)
class Setting:
    """What is attested: paths of the result, the weights and the kernels, the times (milliseconds since 1970) from and
    until which it is valid, and whether a failure is stated."""

    result: str
    weights: Sequence[str]
    kernels: Sequence[str]
    start: int
    end: int
    record_failure: bool = False


def refused(reason: str, hint: str = "") -> InputError:
    """Nothing is signed, for this reason."""
    return input_error("attest_refused", hint=hint, reason=reason)


def sidecar(first: str) -> Path:
    """Where the attestation of weights stands: beside the file, or in the folder."""
    path = Path(first)
    return path / f"kcverify{SUFFIX}" if is_there(first, folder=True) else path.with_name(path.name + SUFFIX)


def outside(output: Path, setting: Setting) -> None:
    """Raise InputError (`attest_inside`) where the output is one of the files that are hashed."""
    hashed = [*weights.shards(setting.weights).values(), Path(setting.result)]
    hashed += [path for spec in setting.kernels for path in kernels.resolve(spec).files.values()]
    if realpath(output) in {realpath(path) for path in hashed}:
        raise input_error("attest_inside", path=output)


def statements(checked: Checked, setting: Setting) -> list[dict[str, Any]]:
    """The statements to sign. Raises InputError: `attest_refused`, `fingerprint_invalid`, those of weights and kernels."""
    content = read_bytes(setting.result)
    result, found = _result(setting.result, content, checked)
    verdict = _verdict(result, checked, setting.record_failure)
    shards = {name: sha256_of(path) for name, path in weights.shards(setting.weights).items()}
    _same("weights", shards, found["candidate"])
    builds = _builds(result, setting)
    _same("kernels", builds, found["candidate"])
    subjects = [subject("weights", name, sha) for name, sha in sorted(shards.items())]
    subjects += [subject("kernel", name, sha) for name, sha in sorted(builds.items())]
    contract = checked.contract
    predicate = {
        "kcverify": __version__,
        "contract": {"name": contract.name, "version": contract.version, "digest": checked.digest},
        "validity": {"from": text_of(setting.start), "until": text_of(setting.end)},
        "verdict": verdict,
        "complete": result["complete"] is True,
        "recordedFailure": setting.record_failure,
        "clauses": [{key: str(c[key] or "") for key in _CLAUSE} for c in result["measured"]["clauses"]],
        "guarantees": [
            {"name": v.claim.name, "slice": v.scope or "", "verdict": v.status.value} for v in checked.verdicts
        ],
        "proofs": _proofs(checked),
        "evidence": [{"name": _named(setting.result), "digest": {"sha256": hashlib.sha256(content).hexdigest()}}],
        "fingerprints": {side: one.data() for side, one in found.items()},
    }
    return bundle(subjects, predicate)


def _named(path: str) -> str:
    """The name of a file as text, whatever its bytes are."""
    return Path(path).name.encode("utf-8", "replace").decode()


_CLAUSE = ("name", "slice", "severity", "verdict")


def _result(path: str, content: bytes, checked: Checked) -> tuple[dict[str, Any], dict[str, Fingerprint]]:
    """The result, which must be of this contract, and the fingerprints of its sides."""
    try:
        data = strict(content)
        told, measured = data["contract"]["digest"], data["measured"]
        if type(data["complete"]) is not bool:
            raise TypeError("whether it is complete is not said")
        for row in measured["clauses"]:
            if row["verdict"] not in _WORDS or not all(isinstance(row[k], str | None) for k in _CLAUSE):
                raise ValueError(f"the clause {row['name']!r} cannot be read")
        if not isinstance(data["pair"]["candidate"], str):
            raise TypeError("its candidate is no text")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{path} is no result of `kcverify measure --format json` ({type(error).__name__}: {error})"
        raise refused(reason) from None
    if told != checked.digest or measured.get("digest") != checked.digest:
        raise refused(f"{path} is about the contract {told}, and this one is {checked.digest}")
    known = {(c.name, s) for c in checked.contract.clauses for s in (c.slices or (None,))}
    listed = [(row["name"], row["slice"]) for row in measured["clauses"]]
    if sorted(map(str, listed)) != sorted(map(str, known)):
        raise refused(f"{path} has not every clause of the contract once")
    for row in measured["clauses"]:
        _consistent(path, row, checked)
    if not isinstance(data.get("provenance"), dict):
        raise refused(f"{path} does not say what was measured", "measure again: results carry `provenance`")
    return data, {side: of_data(data["provenance"].get(side), path) for side in ("reference", "candidate")}


def _consistent(path: str, row: Mapping[str, Any], checked: Checked) -> None:
    """Raise InputError (`attest_refused`) where a clause says something else than its own numbers, or than the contract."""
    clause = next(c for c in checked.contract.clauses if c.name == row["name"])
    enough = -math.log(1.0 - float(clause.confidence))
    try:
        evidence = row["evidence"]
        logs = {side: _log_e(evidence, side) for side in ("fail", "pass")}
        against = _number(evidence["log_threshold_fail"])
        exceeding = [evidence[key] or 0 for key in ("exceeding_rows", "exceeding_requests")]
        requests, needed = (_count(evidence[key] or 0) for key in ("requests", "requests_needed"))
        kind = next(p.evidence for p in plan(checked.contract).clauses if p.clause.name == clause.name)
        clean = not any(exceeding) and requests >= needed
        faults = {
            "its severity is another": row["severity"] != clause.severity,
            "it is enforced": row["verdict"] == "not_enforced" and evidence["kind"] != "none",
            "nothing was measured": row["verdict"] == "pass" and evidence["kind"] in _TESTED and not requests,
            "the evidence for it does not reach its threshold": (
                row["verdict"] == "pass" and logs["pass"] is not None and logs["pass"] < enough - _ROUNDING
            ),
            "the evidence against it reached its threshold": (
                row["verdict"] == "pass"
                and logs["fail"] is not None
                and against is not None
                and logs["fail"] >= against
            ),
            "no evidence for it is there": (
                row["verdict"] == "pass" and evidence["kind"] in _WITH_E_VALUES and logs["pass"] is None
            ),
            "a clause without exception passes after enough clean requests": (
                row["verdict"] == "pass" and evidence["kind"] == "maximum" and not clean
            ),
            "its evidence is of another kind": row["verdict"] in ("pass", "fail") and evidence["kind"] != kind,
        }
    except (KeyError, TypeError, ValueError) as error:
        raise refused(
            f"the evidence of `{clause.name}` in {path} cannot be read ({type(error).__name__}: {error})"
        ) from None
    for fault in (text for text, there in faults.items() if there):
        raise refused(f"{path} gives `{clause.name}` the verdict {row['verdict']}, and {fault}")


_ROUNDING = 1e-9
_WITH_E_VALUES = ("share", "binary", "mean")
_TESTED = (*_WITH_E_VALUES, "maximum")
_MOST = 1 << 48


def _number(value: object) -> float | None:
    if value in ("inf", "-inf"):
        return float(str(value))
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise TypeError(f"{value!r} is no number")
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise ValueError(f"{str(value)[:80]} is no count")
    return value


def _log_e(evidence: Mapping[str, Any], side: str) -> float | None:
    """Log of the e-value of a side; of one look, minus the log of the p-value. None where no test decides."""
    p = _number(evidence[f"p_{side}"])
    if p is not None and not 0.0 <= p <= 1.0:
        raise ValueError(f"{str(p)[:80]} is no p-value")
    return _number(evidence[f"log_e_{side}"]) if p is None else -math.log(p) if p > 0.0 else math.inf


def _verdict(result: Mapping[str, Any], checked: Checked, stated: bool) -> str:
    """The verdict of the clauses and guarantees; one that is no pass is refused unless it is stated."""
    verdict = verdict_of(result["measured"]["clauses"], result["complete"] is True)
    if verdict != result.get("verdict"):
        raise refused(f"its verdict is {result.get('verdict')!r}, and its clauses give {verdict!r}")
    open_ones = [v for v in checked.verdicts if v.status.value != "PROVED"]
    if verdict != "pass" and not stated:
        raise refused(f"the verdict is {verdict}", "state it with `--record-failure`, or attest a passing result")
    if open_ones and not stated:
        one = open_ones[0]
        raise refused(f"the guarantee `{one.claim.name}` is {one.status.value}", "state it with `--record-failure`")
    return verdict


def _builds(result: Mapping[str, Any], setting: Setting) -> dict[str, str]:
    """Kernel files by name with their SHA-256: those that are given, else those of the candidate where it is shipped."""
    given = list(setting.kernels)
    candidate = result["pair"]["candidate"]
    if not given and candidate.partition(":")[0] in kernels.SHIPPED:
        given = [candidate]
    if not given:
        raise refused(f"the kernel of {candidate} was not given", "give it with `--kernel module:function` or a file")
    return kernels.digests(given)


def _same(field: str, found: Mapping[str, str], measured: Fingerprint) -> None:
    """The given files are those that were measured: matched by SHA-256, whatever their names."""
    stated = measured.fields[field]
    if stated == ABSENT or isinstance(stated, str):
        hint = "declare them when measuring: `kcverify measure --fingerprint-candidate F.json`"
        raise refused(f"the result does not say which {field} were measured", hint)
    for name, sha in found.items():
        own = stated.get(name, "" if kernels.is_shipped(name) else sha)
        if sha not in stated.values() or own != sha:
            raise refused(f"{field} {name} ({sha[:16]}) are not those that were measured")
    missing = [name for name, sha in stated.items() if sha not in found.values()]
    if missing:
        raise refused(f"{field} {missing[0]} were measured and not given")
    if len(found) != len(stated):
        raise refused(f"{len(found)} {field} were given, and {len(stated)} were measured")


def _proofs(checked: Checked) -> list[dict[str, str]]:
    """The certificate of the guarantees, whole, as the text that `check --certificate` writes, with its SHA-256."""
    if not checked.verdicts:
        return []
    try:
        written = certificate_text([certificate(checked)])
    except BROKEN as error:
        raise refused(f"its proofs give no certificate: {error}") from None
    return [{"certificate": written, "sha256": hashlib.sha256(written.encode()).hexdigest()}]
