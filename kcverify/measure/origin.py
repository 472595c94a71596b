"""Which run a result is of and what it was measured on, so that whoever adds results up tells copies from two runs."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Sequence

from kcverify.measure.data import Request
from kcverify.measure.outcomes import Outcomes


def new_mark() -> str:
    """The mark of a new run: 32 hexadecimal digits of the system's randomness, none of a generator that a run draws from."""
    return secrets.token_hex(16)


def digest_of_data(requests: Sequence[Request], outcomes: Sequence[Outcomes], logits: Iterable[str]) -> str:
    """`sha256:` over requests, outcomes and the SHA-256 of recorded logits: alike for two runs on the same data."""
    asked = [(r.request_id, r.token_ids, sorted(r.tags), sorted(r.fields.items())) for r in requests]
    told = [(o.request_id, sorted((name, sorted(by.items())) for name, by in o.given.items())) for o in outcomes]
    text = repr((asked, told, list(logits)))
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
