"""The statements of an attestation: in-toto v1, one predicate each; two follow from the third, so that all say one thing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import rfc8785

STATEMENT = "https://in-toto.io/Statement/v1"
KERNEL_CONTRACT = "urn:kcverify:kernel-contract:v1"
TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
SVR = "https://in-toto.io/attestation/svr/v0.2"
VERIFIER = "urn:kcverify:verifier:v1"

Predicate = dict[str, Any]

_RESULT = {"pass": "PASSED", "inconclusive": "WARNED", "fail": "FAILED"}
_LISTS = {"passedTests": ("pass",), "warnedTests": ("inconclusive", "unobservable"), "failedTests": ("fail",)}


def cell(clause: Mapping[str, Any]) -> str:
    """The name of a clause on a slice."""
    return f"{clause['name']} on {clause['slice']}" if clause["slice"] else str(clause["name"])


def _contract(predicate: Mapping[str, Any]) -> dict[str, Any]:
    """The contract as a resource."""
    contract = predicate["contract"]
    return {"name": contract["name"], "digest": {"sha256": contract["digest"].removeprefix("sha256:")}}


def test_result(predicate: Mapping[str, Any]) -> Predicate:
    """in-toto test-result: a test for each measured clause. What was not enforced is no test."""
    lists = {key: [cell(c) for c in predicate["clauses"] if c["verdict"] in words] for key, words in _LISTS.items()}
    return {"result": _RESULT[predicate["verdict"]], "configuration": [_contract(predicate)], **lists}


def svr(predicate: Mapping[str, Any]) -> Predicate:
    """in-toto simple verification result: only what passed or was proved is a property."""
    held = [f"KCVERIFY_CLAUSE_PASS:{cell(c)}" for c in predicate["clauses"] if c["verdict"] == "pass"]
    held += [f"KCVERIFY_GUARANTEE_PROVED:{cell(g)}" for g in predicate["guarantees"] if g["verdict"] == "PROVED"]
    whole = ["KCVERIFY_CONTRACT_PASS"] if predicate["verdict"] == "pass" else []
    return {
        "verifier": {"id": VERIFIER, "policies": [_contract(predicate)]},
        "timeCreated": predicate["validity"]["from"],
        "properties": [*whole, *held],
    }


DERIVED: Mapping[str, Callable[[Mapping[str, Any]], Predicate]] = {TEST_RESULT: test_result, SVR: svr}
"""Predicates that other tools read -> how each follows from the kernel-contract predicate."""


def statement(kind: str, subjects: Iterable[Mapping[str, Any]], predicate: Predicate) -> dict[str, Any]:
    """An in-toto statement v1."""
    return {
        "_type": STATEMENT,
        "subject": [dict(s) for s in subjects],
        "predicateType": kind,
        "predicate": predicate,
    }


def subject(kind: str, name: str, sha256: str) -> dict[str, Any]:
    """A weight shard or a kernel build, by SHA-256; `kind` is `weights` or `kernel`."""
    return {"name": name, "digest": {"sha256": sha256}, "annotations": {"kind": kind}}


def bundle(subjects: list[dict[str, Any]], predicate: Predicate) -> list[dict[str, Any]]:
    """All statements of an attestation: the kernel contract first, which names the payloads of those that follow from it."""
    others = [statement(kind, subjects, derive(predicate)) for kind, derive in DERIVED.items()]
    named = [{"predicateType": s["predicateType"], "sha256": payload_digest(s)} for s in others]
    return [statement(KERNEL_CONTRACT, subjects, {**predicate, "statements": named}), *others]


def payload_digest(value: Mapping[str, Any]) -> str:
    """SHA-256 of a statement's canonical bytes."""
    return hashlib.sha256(rfc8785.dumps(dict(value))).hexdigest()


def verdict_of(clauses: Iterable[Mapping[str, Any]], complete: bool) -> str:
    """The verdict that clauses give together: a failure outweighs what is undecided, and half a run never passes."""
    words = [c["verdict"] for c in clauses if c["verdict"] != "not_enforced"]
    if "fail" in words:
        return "fail"
    return "pass" if words and complete and all(word == "pass" for word in words) else "inconclusive"
