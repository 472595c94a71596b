"""ed25519 keys: making a pair, reading either half. Needs the extra `kcverify[attest]`."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from securesystemslib.signer import CryptoSigner, SSlibKey

from kcverify.diagnostics import InputError, input_error
from kcverify.provenance.reading import read_bytes

_LARGEST = 1 << 16
_OTHERS = stat.S_IRWXO | stat.S_IWGRP
"""What nobody but the owner may do with a private key; that a group reads it is how orchestrators hand out secrets."""
_PRIVATE, _PUBLIC = "private ed25519 key", "public ed25519 key"


def generate(path: Path) -> tuple[Path, Path]:
    """Write a new pair: the private key at `path`, readable by its owner alone, the public one at `path.pub`.

    Raises InputError: `file_unwritable`, also where either file is there already.
    """
    public = path.parent / (path.name + ".pub")
    signer = CryptoSigner.generate_ed25519()
    _write_new(public, public_pem(signer.public_key), 0o644)
    try:
        _write_new(path, signer.private_bytes, 0o600)
    except InputError:
        public.unlink(missing_ok=True)
        raise
    return path, public


def _write_new(path: Path, content: bytes, mode: int) -> None:
    """Write a file that is not there, whole and on disk, or none at all."""
    made = False
    try:
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            made = True
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise input_error(
            "file_unwritable", path=path, reason="it is there already, and a key is never replaced"
        ) from None
    except (OSError, ValueError) as error:
        if made:
            path.unlink(missing_ok=True)
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise input_error("file_unwritable", path=path, reason=reason) from None


def public_pem(key: SSlibKey) -> bytes:
    """A public key as PEM."""
    raw = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key.keyval["public"]))
    return raw.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def private_key(path: str) -> CryptoSigner:
    """The signer of a private key file. Raises InputError: `key_invalid`, also for a file that anybody may read or others
    may write, `file_unreadable`, `file_empty`."""
    try:
        open_to = stat.S_IMODE(Path(path).stat().st_mode) & _OTHERS
    except (OSError, ValueError):
        open_to = 0  # reading it says why
    if open_to and os.name == "posix":
        reason = f"others than its owner may read or write it; `chmod 600 {shlex.quote(path)}`, or make another"
        raise input_error("key_invalid", path=path, what=_PRIVATE, reason=reason)
    try:
        key = load_pem_private_key(read_bytes(path, _LARGEST), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _invalid(path, _PRIVATE, error) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise input_error("key_invalid", path=path, what=_PRIVATE, reason=f"it is a {type(key).__name__}")
    return CryptoSigner(key)


def public_key(path: str) -> SSlibKey:
    """A public key from its file. Raises InputError: `key_invalid`, `file_unreadable`, `file_empty`."""
    try:
        key = load_pem_public_key(read_bytes(path, _LARGEST))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _invalid(path, _PUBLIC, error) from None
    if not isinstance(key, Ed25519PublicKey):
        raise input_error("key_invalid", path=path, what=_PUBLIC, reason=f"it is a {type(key).__name__}")
    return SSlibKey.from_crypto(key)


def _invalid(path: str, what: str, error: Exception) -> InputError:
    reason = str(error).strip().split("\n", 1)[0].split(". ", 1)[0] or type(error).__name__
    return input_error("key_invalid", path=path, what=what, reason=reason)
