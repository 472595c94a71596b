"""Attestations: what is signed, what other tools read, and every way in which verification must fail."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from provenance_cases import DAY, START, TEXT, World, contract, result, slugs, world

pytest.importorskip("securesystemslib")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from kcverify.provenance import envelope, keys, verify
from kcverify.provenance.statement import STATEMENT, SVR, TEST_RESULT, bundle


@pytest.fixture(scope="module")
def attested(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, bytes, list[dict[str, Any]]]:
    """A world, the bytes of its sidecar and the statements in it; tests put back what they change."""
    there = world(tmp_path_factory.mktemp("attested"))
    statements = there.statements(result(there.fingerprint()))
    return there, there.sign(statements), statements


def test_what_was_attested_is_accepted(attested: tuple[World, bytes, list[dict[str, Any]]]) -> None:
    there, content, _ = attested
    there.sidecar.write_bytes(content)
    found = there.check()
    assert (slugs(found), found.exit_code, found.not_compared) == ([], 0, ())
    assert any(line.strip().startswith("PROVED safe") for line in found.proved)
    bare = there.check(verify.Given(START, kernels=[str(there.kernel)]))
    assert (slugs(bare), bare.exit_code) == ([], 0)
    assert bare.not_compared == ("the contract's text (--contract)", "the identity of what serves (--fingerprint)")


def test_other_tools_read_it(attested: tuple[World, bytes, list[dict[str, Any]]]) -> None:
    """Envelopes as DSSE defines them, checked without the library that wrote them; statements as in-toto defines them."""
    there, content, statements = attested
    key = load_pem_public_key(Path(there.public).read_bytes())
    assert isinstance(key, Ed25519PublicKey)
    for line, statement in zip(content.splitlines(), statements, strict=True):
        data = json.loads(line)
        payload, kind = base64.b64decode(data["payload"]), data["payloadType"].encode()
        pae = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
        key.verify(base64.b64decode(data["signatures"][0]["sig"]), pae)
        assert json.loads(payload) == statement
        assert set(statement) == {"_type", "subject", "predicateType", "predicate"} and statement["_type"] == STATEMENT
        assert all(len(s["digest"]["sha256"]) == 64 for s in statement["subject"])
        assert len({s["name"] for s in statement["subject"]}) == len(statement["subject"]) == 3
    by_kind = {s["predicateType"]: s["predicate"] for s in statements}
    assert (
        by_kind[TEST_RESULT]["passedTests"] == ["drift", "tail on long"] and by_kind[TEST_RESULT]["result"] == "PASSED"
    )
    assert by_kind[SVR]["verifier"]["policies"][0]["digest"] == by_kind[TEST_RESULT]["configuration"][0]["digest"]
    assert "KCVERIFY_GUARANTEE_PROVED:safe" in by_kind[SVR]["properties"]
    sha = hashlib.sha256((there.weights / "model-1.safetensors").read_bytes()).hexdigest()
    assert {"name": "model-1.safetensors", "digest": {"sha256": sha}, "annotations": {"kind": "weights"}} in statements[
        0
    ]["subject"]


def test_in_toto_reads_it(attested: tuple[World, bytes, list[dict[str, Any]]]) -> None:
    """The published library of in-toto parses and validates each statement, and the predicates that it has types of."""
    statement_pb2 = pytest.importorskip("in_toto_attestation.v1.statement_pb2")
    from google.protobuf import json_format
    from in_toto_attestation.predicates.test_result.v0 import test_result_pb2
    from in_toto_attestation.v1.statement import Statement

    for statement in attested[2]:
        parsed = json_format.ParseDict(statement, statement_pb2.Statement())
        Statement.copy_from_pb(parsed).validate()
        if statement["predicateType"] == TEST_RESULT:
            json_format.ParseDict(statement["predicate"], test_result_pb2.TestResult())


def _edit(change: Callable[[dict[str, Any]], Any]) -> Callable[[World, list[dict[str, Any]]], None]:
    """Sign again, with the right key, after a change of the kernel-contract predicate; the others follow from it."""

    def tamper(there: World, statements: list[dict[str, Any]]) -> None:
        predicate = copy.deepcopy(statements[0]["predicate"])
        del predicate["statements"]
        subjects = copy.deepcopy(statements[0]["subject"])
        change({"predicate": predicate, "subject": subjects})
        there.sign(bundle(subjects, predicate))

    return tamper


def _lines(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[World, list[dict[str, Any]]], None]:
    """Change the lines of the signed file."""

    def tamper(there: World, statements: list[dict[str, Any]]) -> None:
        there.sidecar.write_bytes(b"".join(change(there.sign(statements).splitlines(keepends=True))))

    return tamper


def _payload(change: Callable[[bytes], bytes]) -> Callable[[World, list[dict[str, Any]]], None]:
    """Change the payload of the first line and keep its signature."""

    def edit(lines: list[bytes]) -> list[bytes]:
        data = json.loads(lines[0])
        data["payload"] = base64.b64encode(change(base64.b64decode(data["payload"]))).decode()
        return [json.dumps(data, sort_keys=True, separators=(",", ":")).encode() + b"\n", *lines[1:]]

    return _lines(edit)


def _resigned(payload: bytes) -> Callable[[World, list[dict[str, Any]]], None]:
    """A payload that is no canonical statement, signed with the right key."""

    def tamper(there: World, statements: list[dict[str, Any]]) -> None:
        signer = keys.private_key(there.private)
        made = envelope.Envelope(payload, envelope.PAYLOAD_TYPE, {})
        made.sign(signer)
        there.sidecar.write_bytes(json.dumps(made.to_dict(), sort_keys=True, separators=(",", ":")).encode() + b"\n")

    return tamper


def _foreign(there: World, statements: list[dict[str, Any]]) -> None:
    """Everything as before, signed by somebody else."""
    other, _ = keys.generate(there.folder / "other.key")
    there.sign(statements)
    there.sidecar.write_bytes(envelope.sign(statements, keys.private_key(str(other))))


def _with_certificate(change: Callable[[dict[str, Any]], Any]) -> Callable[[World, list[dict[str, Any]]], None]:
    """A certificate that was changed, under a hash that fits, signed with the right key."""

    def edit(parts: dict[str, Any]) -> None:
        [proof] = parts["predicate"]["proofs"]
        doc = json.loads(proof["certificate"])
        change(doc)
        proof["certificate"] = json.dumps(doc)
        proof["sha256"] = hashlib.sha256(proof["certificate"].encode()).hexdigest()

    return _edit(edit)


def _inconsistent(there: World, statements: list[dict[str, Any]]) -> None:
    """A summary that says more than the statement that it follows from, named by it."""
    made = copy.deepcopy(statements)
    made[2]["predicate"]["properties"].append("SLSA_BUILD_LEVEL_3")
    named = made[0]["predicate"]["statements"]
    named[1]["sha256"] = hashlib.sha256(envelope.rfc8785.dumps(made[2])).hexdigest()
    there.sign(made)


def _untouched(there: World, statements: list[dict[str, Any]]) -> None:
    there.sign(statements)


def _file(name: str, content: bytes | None) -> Callable[[World, list[dict[str, Any]]], None]:
    """Write or remove a file of the world after it was signed."""

    def tamper(there: World, statements: list[dict[str, Any]]) -> None:
        there.sign(statements)
        path = there.folder / name
        path.unlink() if content is None else path.write_bytes(content)

    return tamper


def _plain(there: World) -> verify.Given:
    return there.given(fingerprint=None)


def _other_contract(there: World) -> verify.Given:
    return there.given(contract=contract(TEXT.replace("<= 2 except", "<= 3 except")))


def _other_build(there: World) -> verify.Given:
    return there.given(fingerprint=there.fingerprint(build="build 2"))


def _at(now: int) -> Callable[[World], verify.Given]:
    return lambda there: there.given(now=now)


Tamper = Callable[[World, list[dict[str, Any]]], None]
CASES: dict[str, tuple[Tamper, Callable[[World], verify.Given], list[str]]] = {
    "changed weights": (_file("model/model-1.safetensors", b"other"), _plain, ["weights_changed"]),
    "missing shard": (_file("model/model-2.safetensors", None), _plain, ["subject_missing"]),
    "added shard": (_file("model/model-3.safetensors", b"new"), _plain, ["subject_unattested"]),
    "changed kernel": (_file("mykernel.py", b"def run(x): return x\n"), _plain, ["kernel_changed"]),
    "kernel not given": (_untouched, lambda there: there.given(kernels=()), ["subject_missing"]),
    "changed contract": (_untouched, _other_contract, ["contract_changed", "certificate_rejected"]),
    "other library build": (_untouched, _other_build, ["identity_changed"]),
    "wrong key": (_foreign, World.given, ["attestation_key"]),
    "expired": (_untouched, _at(START + 90 * DAY + 1), ["attestation_expired"]),
    "not yet valid": (_untouched, _at(START - 1), ["attestation_early"]),
    "tampered payload": (_payload(lambda p: p.replace(b'"fail"', b'"pass"').replace(b'"drift"', b'"drifx"')), World.given, ["attestation_signature"]),
    "unsigned": (_lines(lambda x: [json.dumps({**json.loads(x[0]), "signatures": []}, sort_keys=True, separators=(",", ":")).encode() + b"\n"]), World.given, ["attestation_malformed"]),
    "not canonical": (_lines(lambda x: [x[0].replace(b'","', b'", "', 1), *x[1:]]), World.given, ["attestation_malformed"]),
    "a key twice in an envelope": (_lines(lambda x: [x[0].replace(b"{", b'{"payload":"",', 1), *x[1:]]), World.given, ["attestation_repeated_key"]),
    "a key twice in a signed payload": (_resigned(b'{"_type":"a","_type":"b"}'), World.given, ["attestation_repeated_key"]),
    "a signed payload that is no statement": (_resigned(b'{"_type":"a"}'), World.given, ["attestation_malformed"]),
    "a statement taken out": (_lines(lambda x: x[:2]), World.given, ["attestation_incomplete"]),
    "the contract's statement taken out": (_lines(lambda x: x[1:]), World.given, ["attestation_incomplete"]),
    "a statement twice": (_lines(lambda x: [*x, x[1]]), World.given, ["attestation_incomplete"]),
    "unknown predicate": (lambda w, s: [w.sign([*s, {**s[1], "predicateType": "https://slsa.dev/provenance/v1"}]), None][1], World.given, ["predicate_unknown"]),
    "a summary that says more": (_inconsistent, World.given, ["predicate_inconsistent"]),
    "a verdict that its clauses do not give": (_edit(lambda p: p["predicate"]["clauses"][0].update(verdict="fail")), World.given, ["predicate_inconsistent"]),
    "certificate under another hash": (_edit(lambda p: p["predicate"]["proofs"][0].update(sha256="0" * 64)), World.given, ["certificate_rejected"]),
    "certificate changed": (_with_certificate(lambda d: d["claims"][0]["limits"].update({k: ["<=", "1/1000"] for k in d["claims"][0]["limits"]})), World.given, ["certificate_rejected"]),
    "certificate left out": (_edit(lambda p: p["predicate"]["proofs"].clear()), World.given, ["certificate_rejected"]),
    "a guarantee that is not certified": (_edit(lambda p: p["predicate"]["guarantees"].append({"name": "more", "slice": "", "verdict": "PROVED"})), World.given, ["certificate_rejected"]),
    "no subject": (_edit(lambda p: p["subject"].clear()), World.given, ["attestation_malformed"]),
    "no end of validity": (_edit(lambda p: p["predicate"]["validity"].update(until="never")), World.given, ["attestation_malformed"]),
    "a fingerprint that does not add up": (_edit(lambda p: p["predicate"]["fingerprints"]["candidate"].update(identity="sha256:0")), World.given, ["attestation_malformed"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_was_tampered_with_is_rejected(name: str, tmp_path: Path) -> None:
    there = world(tmp_path)
    tamper, careful, expected = CASES[name]
    before = there.fingerprint()
    tamper(there, there.statements(result(before)))
    found = there.check(careful(there))
    assert slugs(found) == expected
    assert found.exit_code == 1


def test_every_code_of_a_rejection_is_met() -> None:
    from kcverify.codes.provenance import ROWS

    met = {slug for _, _, expected in CASES.values() for slug in expected}
    assert met == {row.slug for row in ROWS if not row.input_fault}


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@example(None)
def test_no_byte_is_free(attested: tuple[World, bytes, list[dict[str, Any]]], data: Any) -> None:
    there, content, _ = attested
    key = keys.public_key(there.public)
    if data is None:
        assert len(envelope.opened("a", content, key)) == 3
        return
    where = data.draw(st.integers(0, len(content) - 1))
    kind = data.draw(st.sampled_from(("replace", "insert", "delete", "cut")))
    byte = bytes([data.draw(st.integers(0, 255))])
    tail = {"replace": byte + content[where + 1 :], "insert": byte + content[where:], "delete": content[where + 1 :], "cut": b""}  # fmt: skip
    changed = content[:where] + tail[kind]
    if changed == content:
        return
    there.sidecar.write_bytes(changed or b"\n")
    assert there.check(verify.Given(START + DAY, contract())).findings


@pytest.mark.parametrize("end", ["sig", "payload"])
def test_every_bit_near_a_seam_counts(end: str, attested: tuple[World, bytes, list[dict[str, Any]]]) -> None:
    """Each byte of the first line's keys and of the last characters of base64, whose low bits decoders ignore."""
    there, content, _ = attested
    at = content.index(f'"{end}":'.encode())
    value_end = content.index(b'"', at + len(end) + 4)
    for where in (*range(at, at + len(end) + 5), *range(value_end - 4, value_end + 2)):
        for bit in range(8):
            there.sidecar.write_bytes(content[:where] + bytes([content[where] ^ (1 << bit)]) + content[where + 1 :])
            assert there.check(verify.Given(START + DAY, contract())).findings
    there.sidecar.write_bytes(content)
