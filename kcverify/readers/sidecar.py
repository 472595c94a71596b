"""What a file never says, declared by its owner: `FILE.kcverify.json` beside it, or `--declare key=value`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kcverify.readers.documents import parse
from kcverify.readers.faults import Place, declaration, listed, shown
from kcverify.readers.stream import KNOWLEDGE, Declared

SUFFIX = ".kcverify.json"
_LIMIT = 1 << 20

Read = Callable[[Any], Any]


def _number(low: float, high: float, what: str, *, open_low: bool = False) -> Read:
    def read(value: Any) -> float:
        try:
            found = float(value) if not isinstance(value, bool) else math.nan
        except (TypeError, ValueError, OverflowError):
            found = math.nan
        if not (low <= found <= high) or (open_low and found == low):
            raise ValueError(f"{shown(value)} is not {what}")
        return found

    return read


def _count(low: int, what: str) -> Read:
    def read(value: Any) -> int:
        text = str(value) if not isinstance(value, bool) else ""
        if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdigit() or len(text) > 10:
            raise ValueError(f"{shown(value)} is not {what}")
        if int(text) < low:
            raise ValueError(f"{shown(value)} is not {what}")
        return int(text)

    return read


def _one_of(*names: str) -> Read:
    def read(value: Any) -> str:
        if value not in names:
            raise ValueError(f"{shown(value)} is none of {listed(names)}")
        return str(value)

    return read


def _text(value: Any) -> str:
    if not isinstance(value, str | int | float) or isinstance(value, bool) or not str(value) or len(str(value)) > 200:
        raise ValueError(f"{shown(value)} is not a short text")
    return str(value)


KEYS: dict[str, tuple[Read, str]] = {
    "temperature": (_number(0, 1e6, "a number from 0 up"), "sampling temperature"),
    "logprobs_mode": (_one_of("raw", "processed"), "before (`raw`) or after (`processed`) temperature and truncation"),
    "top_p": (_number(0, 1, "in (0, 1]", open_low=True), "nucleus of the sampler; 1 is none"),
    "top_k": (_count(-1, "a whole number from -1 up"), "most probable tokens that the sampler keeps; 0 or -1 is all"),
    "min_p": (_number(0, 1, "in [0, 1]"), "smallest probability, relative to the largest, that the sampler keeps"),
    "vocabulary": (_count(1, "a whole number from 1 up"), "width of the vocabulary"),
    "dtype": (_text, "number format of the engine's logits"),
    "weights": (_text, "version of the weights"),
    "kernel": (_text, "kernels or engine build"),
    "format": (_text, "name of the format, where the file does not show it"),
    "side": (_one_of("rollout", "trainer", "reference"), "which log-probabilities, where a file has several"),
    "positions": (_one_of("response", "prompt", "all"), "which positions count; `response` if not said"),
    "rows": (
        _one_of("logits", "logprobs"),
        "what whole rows hold: `logits`, or `logprobs` that are normalised already",
    ),
    "tensor": (_text, "name of the array of logits, where a file has several"),
}
"""Every key that a declaration may have: how its value is read, and what it says."""

assert set(KNOWLEDGE) <= set(KEYS)


def read_declarations(path: Path, flags: Sequence[str]) -> dict[str, Declared]:
    """Declarations of the sidecar file, then of the flags, which win. Raises InputError: `declaration_invalid`."""
    out = _sidecar(path.with_name(path.name + SUFFIX))
    seen: set[str] = set()
    for flag in flags:
        key, sign, value = flag.partition("=")
        key = key.strip()
        if not sign:
            raise declaration("--declare", f"{shown(flag)} is not of the form key=value", "--declare temperature=0.7")
        if key in seen:
            raise declaration("--declare", f"`{key}` is given twice", "give each key once")
        seen.add(key)
        out[key] = Declared(_read("--declare", key, value.strip()), "flag")
    return out


def _sidecar(path: Path) -> dict[str, Declared]:
    if not path.exists():
        return {}
    if not path.is_file():
        raise declaration(path, "it is no file")
    try:
        with path.open("rb") as file:
            raw = file.read(_LIMIT + 1)
    except OSError as error:
        raise declaration(path, f"cannot be read: {(error.strerror or str(error)).lower()}") from None
    if len(raw) > _LIMIT:
        raise declaration(path, f"more than {_LIMIT:,} bytes: this is no sidecar")
    value = parse(Place(str(path)), raw)
    if not isinstance(value, dict):
        raise declaration(path, f"{shown(value)} is not an object of keys and values")
    return {key: Declared(_read(path, key, item), "sidecar") for key, item in value.items()}


def _read(place: object, key: str, value: Any) -> Any:
    if key not in KEYS:
        raise declaration(place, f"there is no key {shown(key)}; the keys are {listed(KEYS, 20)}")
    try:
        return KEYS[key][0](value)
    except ValueError as error:
        raise declaration(place, f"`{key}`: {error}") from None


def settled(
    asked: Mapping[str, Declared], says: Mapping[str, Any], assumed: Mapping[str, Any]
) -> tuple[dict[str, Declared], list[str]]:
    """What holds: the owner's word, then the file's, then the project's default; and where the first two differ."""
    out = {k: Declared(v, "assumed") for k, v in assumed.items()}
    out |= {k: Declared(v, "file") for k, v in says.items() if v is not None}
    notes = [
        f"`{k}` is declared as {shown(d.value)}, and the file says {shown(says[k])}; the declaration is used"
        for k, d in asked.items()
        if says.get(k) is not None and says[k] != d.value and k in KNOWLEDGE
    ]
    return out | dict(asked), notes
