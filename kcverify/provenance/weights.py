"""What a checkpoint on disk is: its shards by SHA-256, element types, quantisation, tokenizer and sampler, without torch."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kcverify.diagnostics import input_error
from kcverify.digests import sha256_of
from kcverify.provenance.fields import ABSENT, Value
from kcverify.provenance.fingerprint import digest_of
from kcverify.provenance.reading import is_text, is_there, read_bytes, strict

ENDINGS = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".npy", ".npz")
"""Files of a folder that are shards of its weights."""

TOKENIZER = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja",
)  # fmt: skip
SAMPLER = "generation_config.json"
CONFIG = "config.json"
_HEADER = 100 << 20
_SMALL = 16 << 20


def shards(paths: Sequence[str]) -> dict[str, Path]:
    """The shards of files and folders by name: relative to the folder where one is given, else the file's own name.

    Raises InputError: `weights_invalid` where there is none, or two have one name.
    """
    out: dict[str, Path] = {}
    for given in paths:
        for name, path in _shards(given):
            if not is_text(name):
                reason = "its name is not UTF-8, and no fingerprint can hold it"
                raise input_error("weights_invalid", path=path, reason=reason)
            if name in out and out[name].resolve() != path.resolve():
                raise input_error("weights_invalid", path=given, reason=f"{path} and {out[name]} have one name")
            out[name] = path
    return out


def _shards(given: str) -> list[tuple[str, Path]]:
    path = Path(given)
    if is_there(given):
        return [(path.name, path)]
    if not is_there(given, folder=True):
        raise input_error("weights_invalid", path=given, reason="no such file or folder")
    found = sorted(_walked(path))
    if not found:
        raise input_error("weights_invalid", path=path, reason="the folder holds no shards")
    return [(p.relative_to(path).as_posix(), p) for p in found]


def _walked(top: Path) -> Iterator[Path]:
    """Every shard in a folder and below, behind links too: what a loader could find there.

    Raises InputError: `file_unreadable` for a folder that cannot be listed, `weights_invalid` for a shard that is no file,
    such as a link to nowhere, and for links that go round in a circle.
    """
    left: list[tuple[Path, tuple[Path, ...]]] = [(top, ())]
    while left:
        folder, above = left.pop()
        try:
            real, entries = folder.resolve(), list(folder.iterdir())
            if real in above:
                raise input_error("weights_invalid", path=folder, reason="a link that leads round in a circle")
            left += [(path, (*above, real)) for path in entries if path.is_dir()]
        except (OSError, RuntimeError) as error:
            reason = (getattr(error, "strerror", None) or str(error)).lower()
            raise input_error("file_unreadable", path=folder, reason=reason) from None
        for path in (p for p in entries if p.suffix in ENDINGS and not p.is_dir()):
            if not is_there(path):
                raise input_error("weights_invalid", path=path, reason="it is called like a shard, and is no file")
            yield path


def fields(paths: Sequence[str]) -> dict[str, Value]:
    """Fields that files and folders of weights tell: weights, dtype, quantization, tokenizer, sampler."""
    found = shards(paths)
    folders = [Path(p) for p in paths if Path(p).is_dir()]
    folders = folders or sorted({p.parent for p in found.values()})
    return {
        "weights": {name: sha256_of(path) for name, path in found.items()},
        "dtype": _types(found.values()),
        "quantization": _quantization(folders),
        "tokenizer": {f.name: sha256_of(f) for folder in folders for f in _present(folder, TOKENIZER)},
        "sampler": {f.name: sha256_of(f) for folder in folders for f in _present(folder, (SAMPLER,))},
    }


def _present(folder: Path, names: Iterable[str]) -> list[Path]:
    return [folder / name for name in names if (folder / name).is_file()]


def _types(paths: Iterable[Path]) -> Value:
    """Element types of safetensors shards with the number of tensors of each; absent where a shard does not say."""
    counts: dict[str, int] = {}
    for path in paths:
        if path.suffix != ".safetensors":
            return ABSENT
        for entry in _header(path).values():
            if isinstance(entry, dict) and isinstance(entry.get("dtype"), str):
                counts[entry["dtype"]] = counts.get(entry["dtype"], 0) + 1
    return {name: str(count) for name, count in sorted(counts.items())}


def _header(path: Path) -> dict[str, Any]:
    """The JSON header of a safetensors file. Raises InputError: `weights_invalid`, `file_unreadable`."""
    try:
        with path.open("rb") as handle:
            (size,) = struct.unpack("<Q", handle.read(8))
            if size > _HEADER:
                raise ValueError("its header has no sensible length")
            content = handle.read(size)
            if len(content) < size:
                raise ValueError("it ends within its header")
            header = strict(content)
        if not isinstance(header, dict):
            raise ValueError("its header is no object")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise input_error("file_unreadable", path=path, reason=reason) from None
    except (struct.error, ValueError) as error:
        raise input_error("weights_invalid", path=path, reason=f"no safetensors file: {error}") from None
    header.pop("__metadata__", None)
    return header


def _quantization(folders: Iterable[Path]) -> Value:
    """`quantization_config` of config.json by its digest and method; `none` where a config.json states none."""
    out: dict[str, str] = {}
    for path in (folder / CONFIG for folder in folders):
        if not path.is_file():
            continue
        try:
            config = strict(read_bytes(path, _SMALL))
        except ValueError as error:
            raise input_error("weights_invalid", path=path, reason=str(error)) from None
        stated: Mapping[str, Any] | None = config.get("quantization_config") if isinstance(config, dict) else None
        if not stated:
            out[path.name] = "none"
            continue
        method = stated.get("quant_method") if isinstance(stated, dict) else None
        text = json.dumps(stated, sort_keys=True)
        name = method if isinstance(method, str) and method else "unnamed"
        out[path.name] = f"{name} {digest_of(text)}"
    return out or ABSENT
