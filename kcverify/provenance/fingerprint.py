"""A fingerprint: every field of the table, and the two digests that they give."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import rfc8785

from kcverify.diagnostics import InputError, input_error
from kcverify.provenance.fields import ABSENT, BY_NAME, FIELDS, Value

FORMAT = "kcverify-fingerprint/1"


@dataclass(frozen=True)
class Fingerprint:
    """What ran: a value for every row of the table, `absent` where it could not be told."""

    fields: Mapping[str, Value]

    @property
    def identity(self) -> str:
        """`sha256:` of the fields that must match."""
        return self._digest("identity")

    @property
    def context(self) -> str:
        """`sha256:` of the fields that are recorded."""
        return self._digest("context")

    def _digest(self, kind: str) -> str:
        chosen = {field.name: self.fields[field.name] for field in FIELDS if field.digest == kind}
        return digest_of(chosen)

    def data(self) -> dict[str, Any]:
        """Plain values for JSON."""
        fields = {name: value if isinstance(value, str) else dict(value) for name, value in self.fields.items()}
        return {"format": FORMAT, "identity": self.identity, "context": self.context, "fields": fields}

    def overlaid(self, other: Fingerprint) -> Fingerprint:
        """This one, with what `other` states where this one is silent."""
        out: dict[str, Value] = {}
        for name, own in self.fields.items():
            stated = other.fields[name]
            if own == ABSENT:
                out[name] = stated
            elif isinstance(own, Mapping) and isinstance(stated, Mapping) and not BY_NAME[name].files:
                out[name] = {**stated, **own}
            else:
                out[name] = own
        return Fingerprint(out)


@dataclass(frozen=True)
class Difference:
    """One field in which two fingerprints differ, and the part of it: `""` for the whole field."""

    field: str
    part: str
    first: str
    second: str

    @property
    def identity(self) -> bool:
        """Whether the field must match."""
        return BY_NAME[self.field].digest == "identity"

    @property
    def contradiction(self) -> bool:
        """Whether both sides say something, and say two things."""
        silent = ABSENT in (self.first, self.second)
        return not silent or (bool(self.part) and BY_NAME[self.field].files)

    @property
    def name(self) -> str:
        """`field`, or `field part`."""
        return f"{self.field} {self.part}".rstrip()


def digest_of(value: Any) -> str:
    """`sha256:` and the SHA-256 of the canonical JSON (RFC 8785)."""
    return "sha256:" + hashlib.sha256(rfc8785.dumps(value)).hexdigest()


def fingerprint(**fields: Value) -> Fingerprint:
    """A fingerprint of these fields; those that are not given, or empty, are absent."""
    unknown = set(fields) - set(BY_NAME)
    if unknown:
        raise KeyError(*unknown)
    return Fingerprint({field.name: _whole(fields.get(field.name) or ABSENT) for field in FIELDS})


_HALF = re.compile("[\ud800-\udfff]")


def _whole(value: Value) -> Value:
    """A value that UTF-8 can hold: half of a surrogate pair, as names of files and JSON may hold, is replaced."""
    if isinstance(value, str):
        return _HALF.sub("\ufffd", value)
    return {_HALF.sub("\ufffd", key): _HALF.sub("\ufffd", one) for key, one in value.items()}


def of_data(data: object, path: str) -> Fingerprint:
    """What `Fingerprint.data` gave. Raises InputError: `fingerprint_invalid`."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise _invalid(path, f"it has not the format {FORMAT}")
    fields = data.get("fields")
    if set(data) != {"format", "identity", "context", "fields"} or not isinstance(fields, dict):
        raise _invalid(path, "its keys are not `format`, `identity`, `context` and `fields`")
    if set(fields) != set(BY_NAME):
        odd = sorted(set(fields) ^ set(BY_NAME))
        raise _invalid(path, f"its fields are not those of the table: {', '.join(map(str, odd))}")
    for name, value in fields.items():
        if not (_text(value) or (isinstance(value, dict) and value and all(map(_text, (*value, *value.values()))))):
            raise _invalid(path, f"`{name}` is neither text nor an object of texts")
    found = Fingerprint(fields)
    for kind in ("identity", "context"):
        if data[kind] != getattr(found, kind):
            raise _invalid(path, f"its {kind} is not the digest of its fields")
    return found


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value) and not any("\ud800" <= c <= "\udfff" for c in value)


def _invalid(path: str, reason: str) -> InputError:
    return input_error("fingerprint_invalid", path=path, reason=reason)


def differences(first: Fingerprint, second: Fingerprint) -> list[Difference]:
    """Where two fingerprints differ, in the order of the table; a field of one that is silent differs too."""
    out = []
    for field in FIELDS:
        a, b = first.fields[field.name], second.fields[field.name]
        if a == b:
            continue
        if isinstance(a, str) or isinstance(b, str):
            out.append(Difference(field.name, "", shown(a), shown(b)))
            continue
        parts = [key for key in sorted({*a, *b}) if a.get(key) != b.get(key)]
        out += [Difference(field.name, key, a.get(key, ABSENT), b.get(key, ABSENT)) for key in parts]
    return out


def shown(value: Value) -> str:
    """A value in one line."""
    return value if isinstance(value, str) else ", ".join(f"{k} {v}" for k, v in sorted(value.items()))
