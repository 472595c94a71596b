"""What a gateway is started with: upstreams, limits, how it measures. Fixed for the life of the process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from urllib.parse import urlsplit

from kcverify.diagnostics import input_error
from kcverify.provenance.fingerprint import Fingerprint

ROLES = ("reference", "candidate", "guarded", "safe")
LOOPBACK = ("127.0.0.1", "::1", "localhost")
FALLBACKS: Mapping[str, tuple[str, ...]] = {
    "candidate": ("candidate", "guarded", "safe", "reference"),
    "guarded": ("guarded", "safe", "reference"),
    "safe": ("safe", "reference", "guarded"),
}
"""Who answers a request of a side, in this order; nothing ever falls back to the candidate."""


@dataclass(frozen=True)
class Limits:
    """Bounds of a gateway. Bytes, seconds, numbers of requests.

    `first`: until the first byte of an answer, `stall`: between two parts of it, `whole`: of a whole exchange.
    `queue`: requests that are to be measured, from the moment they are sent to the candidate, `queue_bytes` of answers
    that wait among them; `copies`: mirrored requests under way. `steps`: tokens of an answer that a reference without
    `prompt_logprobs` is asked about one by one. `choices` of an answer that are scored.
    """

    body: int = 8 << 20
    answer: int = 64 << 20
    concurrency: int = 512
    connect: float = 2.0
    first: float = 30.0
    stall: float = 30.0
    whole: float = 600.0
    queue: int = 2048
    queue_bytes: int = 64 << 20
    copies: int = 32
    scorers: int = 8
    steps: int = 256
    choices: int = 16


@dataclass(frozen=True)
class Settings:
    """`urls` by role, without a slash at the end. `top`: width of the lists of log-probabilities that are asked for.

    `measure`: share of the candidate's requests that are scored on the reference. `error`: how far a reported
    log-probability may be from the engine's, nats. `processed`: the engines report log-probabilities after temperature.
    `fingerprints` of the reference and the candidate where they were declared.
    """

    urls: Mapping[str, str]
    salt: str
    host: str = "127.0.0.1"
    port: int = 8080
    top: int = 20
    measure: Fraction = Fraction(1)
    error: float = 1e-5
    processed: bool = False
    limits: Limits = field(default_factory=Limits)
    token: bytes | None = None
    log: str | None = None
    fingerprints: Mapping[str, Fingerprint] = field(default_factory=dict)


def checked_urls(given: Mapping[str, str | None]) -> dict[str, str]:
    """URLs of all roles: the safe kernel is the reference where none is named, the guarded one the safe.

    Raises InputError: `option_invalid`.
    """
    out = {role: _url(f"--{role}", url) for role, url in given.items() if url is not None}
    for role in ("reference", "candidate"):
        if role not in out:
            raise input_error("option_invalid", option=f"--{role}", reason="it is needed", hint=f"--{role} URL")
    out.setdefault("safe", out["reference"])
    out.setdefault("guarded", out["safe"])
    same = [r for r in ("reference", "guarded", "safe") if out[r] == out["candidate"]]
    if same:
        raise input_error(
            "option_invalid", option=f"--{same[0]}", reason="it is the candidate's own URL", hint="name another server"
        )
    return {role: out[role] for role in ROLES}


def _url(option: str, text: str) -> str:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise input_error("option_invalid", option=option, reason=f"`{text}` is no URL ({error})") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or port == 0:
        raise input_error(
            "option_invalid", option=option, reason=f"`{text}` is no URL of a server", hint="http://127.0.0.1:8001"
        )
    if parts.username is not None or parts.password is not None:
        raise input_error("option_invalid", option=option, reason="a URL must not hold a password")
    return text.rstrip("/").removesuffix("/v1")


def checked_host(host: str, token: bytes | None) -> None:
    """An address that others reach needs a token. Raises InputError: `option_invalid`."""
    if host not in LOOPBACK and token is None:
        raise input_error(
            "option_invalid", option="--host", reason=f"`{host}` can be reached from other machines, and there is no token",
            hint="--admin-token-file FILE",
        )  # fmt: skip


def checked_token(option: str, content: bytes) -> bytes:
    """The first line of a token file. Raises InputError: `option_invalid` for fewer than 16 printable characters."""
    token = content.split(b"\n", 1)[0].strip()
    if len(token) < 16 or not all(33 <= c < 127 for c in token):
        raise input_error(
            "option_invalid", option=option, reason="a token is at least 16 printable characters on one line",
            hint="openssl rand -hex 32 > FILE",
        )  # fmt: skip
    return token
