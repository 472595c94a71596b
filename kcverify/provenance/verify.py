"""Checks an attestation: signatures, time, contract, weights, kernels, proofs. Whatever is not shown to hold, fails."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from securesystemslib.signer import SSlibKey

from kcverify.diagnostics import Diagnostic, InputError
from kcverify.digests import sha256_of
from kcverify.elaborate.contract import Contract
from kcverify.elaborate.form import digest
from kcverify.prove.certificate import differences
from kcverify.prove.certificate import statement as proved
from kcverify.prove.kernel import BROKEN
from kcverify.provenance import kernels, weights
from kcverify.provenance.envelope import RejectedError, Signed, finding, opened, rejected
from kcverify.provenance.events import text_of
from kcverify.provenance.fields import ABSENT
from kcverify.provenance.fingerprint import Fingerprint, of_data
from kcverify.provenance.fingerprint import differences as differences_of
from kcverify.provenance.reading import is_there, read_bytes, strict
from kcverify.provenance.statement import (
    DERIVED,
    KERNEL_CONTRACT,
    STATEMENT,
    payload_digest,
    statement,
    verdict_of,
)


@dataclass(frozen=True)
class Given:
    """What the attestation is compared with; `weights` empty: the files of the attested names beside it; `kernels`
    empty: the shipped kernels of the attested names. `fingerprint` is that of what serves. `now` in milliseconds since
    1970."""

    now: int
    contract: Contract | None = None
    fingerprint: Fingerprint | None = None
    weights: Sequence[str] = ()
    kernels: Sequence[str] = ()


@dataclass(frozen=True)
class Verified:
    """What came of it: findings against it (none: accepted), the kernel-contract predicate and the subjects of an
    authentic one, what the certificates prove in words, and what was not compared."""

    findings: tuple[Diagnostic, ...]
    predicate: Mapping[str, Any] | None = None
    subjects: Sequence[Mapping[str, Any]] = ()
    proved: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 accepted and passed; 1 rejected, or a recorded failure; 3 a recorded verdict that decides nothing."""
        if self.findings or self.predicate is None:
            return 1
        open_ones = any(g["verdict"] != "PROVED" for g in self.predicate["guarantees"])
        refuted = any(g["verdict"] == "REFUTED" for g in self.predicate["guarantees"])
        if self.predicate["verdict"] == "fail" or refuted:
            return 1
        return 0 if self.predicate["verdict"] == "pass" and not open_ones else 3


def verify(path: str, key: SSlibKey, given: Given) -> Verified:
    """Check one file. Raises InputError for a file that cannot be read; everything else is a finding."""
    content = read_bytes(path)
    try:
        signed = opened(path, content, key)
        main = _complete(path, signed)
        predicate, subjects = main["predicate"], main["subject"]
        _check_form(path, predicate, subjects)
    except RejectedError as error:
        return Verified(error.diagnostics)
    words: list[str] = []
    findings = [
        *_derived(path, signed, main),
        *_times(path, predicate, given.now),
        *_contract(path, predicate, given.contract),
        *_weights(path, subjects, given.weights),
        *_kernels(subjects, given.kernels),
        *_identity(predicate, given.fingerprint),
        *_proofs(predicate, given.contract, words),
    ]
    missing = [] if given.contract is not None else ["the contract's text (--contract)"]
    missing += _silent(predicate, given.fingerprint)
    return Verified(tuple(findings), predicate, subjects, tuple(words), tuple(missing))


def _complete(path: str, signed: Sequence[Signed]) -> dict[str, Any]:
    """The kernel-contract statement, where every predicate is known and there is exactly one of each."""
    by_kind: dict[str, dict[str, Any]] = {}
    for one in signed:
        value = one.statement
        if set(value) != {"_type", "subject", "predicateType", "predicate"} or value["_type"] != STATEMENT:
            reason = f"line {one.line} holds no in-toto statement of version 1"
            raise rejected("attestation_malformed", path=path, reason=reason)
        kind = value["predicateType"]
        if kind != KERNEL_CONTRACT and (not isinstance(kind, str) or kind not in DERIVED):
            raise rejected("predicate_unknown", path=path, line=one.line, found=repr(kind))
        if kind in by_kind:
            raise rejected("attestation_incomplete", path=path, reason=f"the predicate {kind} occurs twice")
        by_kind[kind] = value
    missing = [kind for kind in (KERNEL_CONTRACT, *DERIVED) if kind not in by_kind]
    if missing:
        raise rejected("attestation_incomplete", path=path, reason=f"the statement {missing[0]} is missing")
    return by_kind[KERNEL_CONTRACT]


def _check_form(path: str, predicate: Any, subjects: Any) -> None:
    """Raise RejectedError (`attestation_malformed`) where the predicate or a subject is not what is written."""
    try:
        names = [(s["annotations"]["kind"], s["name"]) for s in subjects]
        if len(set(names)) != len(names) or not all(isinstance(name, str) and name for _, name in names):
            raise ValueError("two subjects of one name, or one of none")
        for s in subjects:
            kind, sha = s["annotations"]["kind"], s["digest"]["sha256"]
            if kind not in ("weights", "kernel") or set(s["digest"]) != {"sha256"} or len(bytes.fromhex(sha)) != 32:
                raise ValueError(f"the subject {s['name']!r}")
        if {s["annotations"]["kind"] for s in subjects} != {"weights", "kernel"}:
            raise ValueError("a subject of each kind is needed")
        for row in (*predicate["clauses"], *predicate["guarantees"]):
            if not all(isinstance(row[key], str) for key in ("name", "slice", "verdict")):
                raise TypeError("a clause or guarantee")
        if verdict_of(predicate["clauses"], predicate["complete"] is True) != predicate["verdict"]:
            raise rejected("predicate_inconsistent", path=path, reason="its verdict is not that of its clauses")
        contract, proofs = predicate["contract"], predicate["proofs"]
        texts = [contract[key] for key in ("name", "version", "digest")]
        texts += [proof[key] for proof in proofs for key in ("certificate", "sha256")]
        texts += [named[key] for named in predicate["statements"] for key in ("predicateType", "sha256")]
        texts += [row["severity"] for row in predicate["clauses"]]
        texts += [predicate["kcverify"], *(one["name"] for one in predicate["evidence"])]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("the contract, a proof or the name of a statement")
        if not all(len(bytes.fromhex(one["digest"]["sha256"])) == 32 for one in predicate["evidence"]):
            raise ValueError("its evidence")
        for side in ("reference", "candidate"):
            of_data(predicate["fingerprints"][side], path)
        moment(predicate["validity"]["from"])
        moment(predicate["validity"]["until"])
    except RejectedError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, InputError) as error:
        reason = f"its predicate cannot be read ({type(error).__name__}: {error})"
        raise rejected("attestation_malformed", path=path, reason=reason) from None


def moment(text: str) -> int:
    """Milliseconds since 1970 of a time as RFC 3339 writes it in UTC. Raises ValueError."""
    return int(datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp() * 1000)


def _derived(path: str, signed: Sequence[Signed], main: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """The statements for other tools are those that the kernel-contract statement names, and follow from it."""
    predicate = {key: value for key, value in main["predicate"].items() if key != "statements"}
    named = {(s["predicateType"], s["sha256"]) for s in main["predicate"]["statements"]}
    there = {(s.statement["predicateType"], payload_digest(s.statement)) for s in signed}
    if named != {entry for entry in there if entry[0] != KERNEL_CONTRACT}:
        yield finding("attestation_incomplete", path=path, reason="its lines are not those that it names")
    for one in signed:
        kind = one.statement["predicateType"]
        if kind in DERIVED and one.statement != statement(kind, main["subject"], DERIVED[kind](predicate)):
            yield finding("predicate_inconsistent", path=path, reason=f"{kind} says something else than the contract")


def _times(path: str, predicate: Mapping[str, Any], now: int) -> Iterator[Diagnostic]:
    start, end = (predicate["validity"][key] for key in ("from", "until"))
    shown = text_of(now)
    if now < moment(start):
        yield finding("attestation_early", path=path, start=start, now=shown)
    if now > moment(end):
        yield finding("attestation_expired", path=path, end=end, now=shown)


def _contract(path: str, predicate: Mapping[str, Any], contract: Contract | None) -> Iterator[Diagnostic]:
    """The contract is the attested one, and so are its clauses."""
    if contract is None:
        return
    told = sorted((row["name"], row["slice"], row["severity"]) for row in predicate["clauses"])
    known = sorted((c.name, s or "", c.severity) for c in contract.clauses for s in (c.slices or (None,)))
    if digest(contract) != predicate["contract"]["digest"]:
        yield finding(
            "contract_changed",
            given=f"{contract.name} ({digest(contract)})",
            attested=f"{predicate['contract']['name']} ({predicate['contract']['digest']})",
        )
    elif told != known:
        yield finding(
            "predicate_inconsistent", path=path, reason="its clauses are not those of the contract, each once"
        )


def _identity(predicate: Mapping[str, Any], here: Fingerprint | None) -> Iterator[Diagnostic]:
    """Fields of the identity in which what serves is not what was measured as the candidate."""
    if here is None:
        return
    attested = of_data(predicate["fingerprints"]["candidate"], "the attestation")
    for row in differences_of(here, attested):
        if row.identity and row.contradiction:
            yield finding("identity_changed", field=row.name, found=row.first, expected=row.second)


def _silent(predicate: Mapping[str, Any], here: Fingerprint | None) -> list[str]:
    """Fields of the identity that were measured, and of which the fingerprint of what serves says nothing."""
    if here is None:
        return ["the identity of what serves (--fingerprint)"]
    attested = of_data(predicate["fingerprints"]["candidate"], "the attestation")
    rows = [row for row in differences_of(here, attested) if row.identity and not row.contradiction]
    return [f"{row.name}, of which --fingerprint says nothing" for row in rows if row.first == ABSENT]


def _weights(path: str, subjects: Sequence[Mapping[str, Any]], given: Sequence[str]) -> Iterator[Diagnostic]:
    attested = _attested(subjects, "weights")
    files = weights.shards(given) if given else _beside(Path(path).parent, attested)
    yield from _compared("weights", attested, {n: sha256_of(p) for n, p in files.items()}, "weights_changed")


def _beside(folder: Path, attested: Mapping[str, str]) -> dict[str, Path]:
    """The files of the attested names in the folder of the attestation; none outside of it."""
    inside = {n: folder / n for n in attested if ".." not in PurePosixPath(n).parts and not Path(n).is_absolute()}
    return {name: path for name, path in inside.items() if is_there(path)}


def _kernels(subjects: Sequence[Mapping[str, Any]], given: Sequence[str]) -> Iterator[Diagnostic]:
    attested = _attested(subjects, "kernel")
    specs = given or sorted({n.partition(" ")[0] for n in attested if n.partition(":")[0] in kernels.SHIPPED})
    try:
        found = kernels.digests(specs)
    except InputError:
        if given:
            raise
        found = {}
    yield from _compared("kernel", attested, found, "kernel_changed")


def _attested(subjects: Sequence[Mapping[str, Any]], kind: str) -> dict[str, str]:
    return {str(s["name"]): s["digest"]["sha256"] for s in subjects if s["annotations"]["kind"] == kind}


def _compared(kind: str, attested: Mapping[str, str], found: Mapping[str, str], slug: str) -> Iterator[Diagnostic]:
    """Each attested file is one that is there: by name, else by SHA-256, as in-toto does, else by what only resembles it.

    A name that is there with another SHA-256 is a change, also where its bytes stand under another name: shards that
    changed places are another model. A file of a shipped kernel matches under its own name only: files of several
    formats have the same bytes.
    """
    left = {name: sha for name, sha in found.items() if attested.get(name) != sha}
    wanted = {name: sha for name, sha in attested.items() if found.get(name) != sha}
    for name in [name for name in wanted if name in left]:
        yield finding(slug, name=name, found=left.pop(name), expected=wanted.pop(name))
    for name, sha in list(wanted.items()):
        renamed = next((n for n, s in left.items() if s == sha and not kernels.is_shipped(n)), None)
        if renamed is not None and not kernels.is_shipped(name):
            del left[renamed], wanted[name]
    for name, sha in wanted.items():
        same = next((n for n in left if Path(n).name == Path(name).name), None)
        if same is None and len(left) == len(attested) == 1:
            same = next(iter(left))
        if same is None:
            yield finding("subject_missing", kind=kind, name=name)
        else:
            yield finding(slug, name=name, found=left.pop(same), expected=sha)
    for name in left:
        yield finding("subject_unattested", kind=kind, name=name)


def _proofs(predicate: Mapping[str, Any], contract: Contract | None, words: list[str]) -> Iterator[Diagnostic]:
    """Every certificate is checked again; the verdicts of guarantees are those that it certifies."""
    said: dict[tuple[str, str], str] = {}
    for proof in predicate["proofs"]:
        try:
            if hashlib.sha256(proof["certificate"].encode()).hexdigest() != proof["sha256"]:
                raise ValueError("it has not the SHA-256 that is attested")
            doc = strict(proof["certificate"])
            words += proved(doc)
            if doc["contract"]["digest"] != predicate["contract"]["digest"]:
                raise ValueError("it is about another contract")
            against = [] if contract is None else differences(doc, contract)
            if against:
                raise ValueError(against[0])
            said |= {(c["name"], c.get("on") or ""): c["verdict"] for c in doc["claims"]}
        except BROKEN as error:
            reason = str(error) if type(error) is ValueError else f"malformed: {error!r}"
            yield finding("certificate_rejected", reason=reason)
            return
    listed = {(g["name"], g["slice"]): g["verdict"] for g in predicate["guarantees"]}
    if said != listed:
        yield finding("certificate_rejected", reason="its verdicts are not those of the statement")


def summary(found: Verified) -> dict[str, Any] | None:
    """What an authentic attestation states, as plain data; None where it is not authentic."""
    told = found.predicate
    if told is None:
        return None
    subjects = [
        {"kind": s["annotations"]["kind"], "name": s["name"], "sha256": s["digest"]["sha256"]} for s in found.subjects
    ]
    keys = ("contract", "validity", "verdict", "clauses", "guarantees")
    return {**{key: told[key] for key in keys}, "subjects": subjects}
