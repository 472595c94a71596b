"""Signed envelopes (DSSE) as lines of one file, in one canonical form: no byte of it is free."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import rfc8785
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import CryptoSigner, SSlibKey

from kcverify.diagnostics import Diagnostic, InputError, diagnosis
from kcverify.provenance.reading import strict

PAYLOAD_TYPE = "application/vnd.in-toto+json"
MOST_LINES = 64


class RejectedError(InputError):
    """An attestation that is not accepted, with the findings against it; the command line answers 1, not 2."""


def rejected(slug: str, **holes: object) -> RejectedError:
    """A rejection with one finding."""
    return RejectedError(finding(slug, **holes))


def finding(slug: str, **holes: object) -> Diagnostic:
    """One finding against an attestation."""
    return diagnosis(slug, holes)


@dataclass(frozen=True)
class Signed:
    """One statement whose signature was checked: the line it stands on (from 1), its bytes, and its JSON value."""

    line: int
    payload: bytes
    statement: dict[str, Any]


def sign(statements: Iterable[dict[str, Any]], signer: CryptoSigner) -> bytes:
    """A file of one envelope a line, each with a statement in canonical form."""
    lines = []
    for statement in statements:
        envelope = Envelope(rfc8785.dumps(statement), PAYLOAD_TYPE, {})
        envelope.sign(signer)
        lines.append(rfc8785.dumps(envelope.to_dict()) + b"\n")
    return b"".join(lines)


def opened(path: str, content: bytes, key: SSlibKey) -> list[Signed]:
    """The statements of a file, every signature checked with the key before a payload is read.

    Raises RejectedError: `attestation_malformed`, `attestation_repeated_key`, `attestation_key`, `attestation_signature`.
    """
    if not content.endswith(b"\n"):
        raise rejected("attestation_malformed", path=path, reason="its last line has no end")
    lines = content[:-1].split(b"\n")
    if len(lines) > MOST_LINES:
        raise rejected("attestation_malformed", path=path, reason=f"it has more than {MOST_LINES} lines")
    return [_opened(path, number, line, key) for number, line in enumerate(lines, 1)]


def _opened(path: str, number: int, line: bytes, key: SSlibKey) -> Signed:
    where = f"line {number}"
    data = _canonical(path, where, line)
    payload, keyid, signature = _parts(path, where, data)
    if keyid != key.keyid:
        raise rejected("attestation_key", path=path, found=keyid[:16], expected=key.keyid[:16])
    envelope = Envelope.from_dict(
        {
            "payload": data["payload"],
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{"keyid": keyid, "sig": base64.b64encode(signature).decode()}],
        }
    )
    try:
        envelope.verify([key], 1)
    except VerificationError:
        raise rejected("attestation_signature", path=path, line=number) from None
    statement = _canonical(path, f"the payload of line {number}", payload)
    return Signed(number, payload, statement)


def _canonical(path: str, where: str, content: bytes) -> dict[str, Any]:
    """The JSON object of canonical bytes."""
    try:
        data = strict(content)
    except ValueError as error:
        slug = "attestation_repeated_key" if "occurs twice" in str(error) else "attestation_malformed"
        raise rejected(slug, path=path, reason=f"{where}: {error}") from None
    if not isinstance(data, dict):
        raise rejected("attestation_malformed", path=path, reason=f"{where}: a {type(data).__name__}, no object")
    try:
        same = rfc8785.dumps(data) == content
    except (rfc8785.CanonicalizationError, UnicodeEncodeError, RecursionError):
        same = False
    if not same:
        raise rejected("attestation_malformed", path=path, reason=f"{where}: not in canonical form")
    return data


def _parts(path: str, where: str, data: dict[str, Any]) -> tuple[bytes, str, bytes]:
    """Payload, key id and signature of an envelope with exactly one signature."""
    signatures = data.get("signatures")
    if set(data) != {"payload", "payloadType", "signatures"} or data["payloadType"] != PAYLOAD_TYPE:
        raise rejected("attestation_malformed", path=path, reason=f"{where}: no envelope of an in-toto statement")
    one = signatures[0] if isinstance(signatures, list) and len(signatures) == 1 else None
    if not isinstance(one, dict) or set(one) != {"keyid", "sig"} or not isinstance(one["keyid"], str):
        raise rejected("attestation_malformed", path=path, reason=f"{where}: not exactly one signature")
    out = []
    for name, text in (("payload", data["payload"]), ("signature", one["sig"])):
        try:
            raw = base64.b64decode(text, validate=True)
        except (TypeError, ValueError, binascii.Error):
            raw = b""
        if not isinstance(text, str) or not raw or base64.b64encode(raw).decode() != text:
            raise rejected("attestation_malformed", path=path, reason=f"{where}: its {name} is no base64")
        out.append(raw)
    return out[0], one["keyid"], out[1]
