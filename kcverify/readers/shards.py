"""Dumps in several files: which files a folder, a pattern or a list names, and which of two sides belong together."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kcverify.diagnostics import Diagnostic, InputError, diagnose, input_error

ENDINGS = (".jsonl", ".ndjson", ".json", ".safetensors", ".npy", ".npz", ".parquet", ".pt", ".pth", ".bin", ".kld")
"""Files of a folder that are taken for shards of a dump, where a command reads every format."""

_SHOWN = 5


@dataclass(frozen=True)
class Shard:
    """One file of a side. `name` is its path below what all files of the side share, without the ending."""

    name: str
    path: Path


@dataclass(frozen=True)
class Matched:
    """Pairs (reference, candidate) in the order of the reference's names, and what matched them: name, number, order.

    `alone`: the shards of each side that the other lacks.
    """

    pairs: tuple[tuple[Shard, Shard], ...]
    by: str
    alone: tuple[tuple[Shard, ...], tuple[Shard, ...]] = ((), ())


def is_several(spec: str) -> bool:
    """Whether a side is a folder or a pattern of files; no where that cannot be looked at, such as a name too long."""
    path = Path(spec)
    try:
        return bool(spec) and (path.is_dir() or (glob.has_magic(spec) and not path.exists()))
    except (OSError, ValueError):
        return False


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """Sorting key by which `part-2` stands before `part-10`."""
    return tuple((0, int(p)) if p.isdecimal() else (1, p) for p in re.split(r"(\d+)", name) if p)


def find(role: str, specs: Sequence[str], endings: Sequence[str]) -> tuple[Shard, ...]:
    """The files that `specs` (folders, patterns, files) of a side name: several named files in the order given, all
    else in the order of names, numbers by value. Folders are searched through, hidden files left out.

    Raises InputError: `file_unreadable` where a spec names none, `shard_mismatch` for a name that two files share.
    """
    listed = len(specs) > 1 and not any(is_several(spec) for spec in specs)
    found: list[tuple[Path, Path]] = []
    for spec in specs:
        found += _files(spec, endings)
    parents = [root for root, _ in found]
    shared = Path(os.path.commonpath(parents)) if len(set(parents)) > 1 else parents[0]
    shards = [Shard(path.relative_to(shared).with_suffix("").as_posix(), path) for _, path in found]
    names = [shard.name for shard in shards]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise input_error("shard_mismatch", detail=f"two shards of the {role} are called {_some(twice)}")
    return tuple(shards if listed else sorted(shards, key=lambda shard: natural(shard.name)))


def _files(spec: str, endings: Sequence[str]) -> list[tuple[Path, Path]]:
    """Files with the folder that their names are relative to."""
    path = Path(spec)
    if not is_several(spec):
        return [(path.parent, path)]
    named = glob.iglob(glob.escape(str(path)) + "/**" if path.is_dir() else spec, recursive=True)  # noqa: PTH207 - patterns may be absolute
    files = [p for p in sorted(map(Path, named)) if p.suffix in endings and p.is_file()]
    if path.is_dir():
        files = [p for p in files if not any(part.startswith(".") for part in p.relative_to(path).parts)]
        found = [(path, p) for p in files]
    else:
        found = [(p.parent, p) for p in files]
    if not found:
        what = "it holds" if path.is_dir() else "the pattern matches"
        reason = f"{what} no file that ends in {' or '.join(endings)}"
        raise input_error("file_unreadable", path=spec, reason=reason)
    return found


def matched(reference: Sequence[Shard], candidate: Sequence[Shard]) -> Matched:
    """As `corresponding`, of every shard. Raises InputError: `shard_mismatch` also for a shard that one side lacks."""
    found = corresponding(reference, candidate)
    left, right = found.alone
    if left or right:
        raise InputError(*_unmatched(found.by, "candidate", left), *_unmatched(found.by, "reference", right))
    return found


def corresponding(reference: Sequence[Shard], candidate: Sequence[Shard]) -> Matched:
    """The shards that belong together: of the same names; else of the same numbers in their names, all of them or the
    last one; else, where no name or number occurs on both sides, in order. Where some alone have a counterpart, these.

    Raises InputError: `shard_mismatch` where none has one and the sides are not as many.
    """
    keys: list[tuple[str, Callable[[Shard], Hashable]]] = [("name", lambda s: s.name), ("number", _numbers)]
    keys.append(("number", lambda s: _numbers(s)[-1:]))
    partial: Matched | None = None
    for by, key in keys:
        left, right = {key(s): s for s in reference}, {key(s): s for s in candidate}
        if len(left) < len(reference) or len(right) < len(candidate) or () in left or () in right:
            continue
        if left.keys() == right.keys():
            return Matched(tuple((s, right[k]) for k, s in left.items()), by)
        if partial is None and left.keys() & right.keys():
            pairs = tuple((s, right[k]) for k, s in left.items() if k in right)
            alone = (
                tuple(s for k, s in left.items() if k not in right),
                tuple(s for k, s in right.items() if k not in left),
            )
            partial = Matched(pairs, by, alone)
    if partial is not None:
        return partial
    if len(reference) != len(candidate):
        detail = (
            f"the reference has {len(reference)} shards, the candidate {len(candidate)}, and no name occurs in both"
        )
        raise input_error("shard_mismatch", detail=detail)
    return Matched(tuple(zip(reference, candidate, strict=True)), "order")


def _numbers(shard: Shard) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", shard.name))


def _unmatched(by: str, other: str, lonely: Sequence[Shard]) -> list[Diagnostic]:
    if not lonely:
        return []
    names = _some([str(shard.path) for shard in lonely])
    return [diagnose("shard_mismatch", detail=f"the {other} has no shard of the same {by} as {names}")]


def _some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
