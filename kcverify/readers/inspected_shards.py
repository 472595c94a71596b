"""Reads every shard of a dump once: what each is, what they are together, and in what they disagree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kcverify.diagnostics import input_error
from kcverify.readers.inspection import FIELDS, Inspection, inspect
from kcverify.readers.shards import ENDINGS, find
from kcverify.readers.sidecar import SUFFIX

OWN = ("format", "container")
"""What is declared of a file by itself; two shards may differ in the second."""


@dataclass(frozen=True)
class Disagreement:
    """Something that is not the same in all shards: by value in words, the names of the shards that have it.

    `refused`: whether `compare` takes no such shards for one dump.
    """

    what: str
    values: tuple[tuple[str, tuple[str, ...]], ...]
    refused: bool


@dataclass(frozen=True)
class Inspections:
    """What was found of each shard, by name, in their order."""

    spec: str
    shards: tuple[tuple[str, Inspection], ...]

    @property
    def carries(self) -> set[str]:
        """What every shard has."""
        return set.intersection(*(found.carries for _, found in self.shards))

    @property
    def statuses(self) -> Counter[str]:
        """Positions of all shards by status."""
        return sum((found.statuses for _, found in self.shards), Counter())

    @property
    def notes(self) -> list[str]:
        """Of all shards, each once."""
        return list(dict.fromkeys(note for _, found in self.shards for note in found.stream.notes))

    @property
    def disagreements(self) -> list[Disagreement]:
        """Format, declarations, fields: whatever two shards have otherwise."""
        keys = sorted({key for _, found in self.shards for key in found.stream.declared} - {*OWN})
        rows = [("format", [found.format.name for _, found in self.shards], True)]
        for key in keys:
            told = [found.stream.declared.get(key) for _, found in self.shards]
            rows.append((key, ["not declared" if d is None else str(d.value) for d in told], True))
        carried = [", ".join(n for n in FIELDS if n in found.carries) or "nothing" for _, found in self.shards]
        rows.append(("carries", carried, False))
        return [
            Disagreement(what, self._by_value(values), refused)
            for what, values, refused in rows
            if len(set(values)) > 1
        ]

    def _by_value(self, values: Sequence[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
        held: dict[str, list[str]] = {}
        for (name, _), value in zip(self.shards, values, strict=True):
            held.setdefault(value, []).append(name)
        return tuple((value, tuple(names)) for value, names in held.items())


def inspect_shards(spec: str, declare: Sequence[str] = ()) -> Inspections:
    """Reads the files of a folder or a pattern, sidecars left out. Raises InputError as `inspect`; `file_unreadable`
    where there is none.
    """
    shards = [shard for shard in find("dump", [spec], ENDINGS) if not shard.path.name.endswith(SUFFIX)]
    if not shards:
        raise input_error("file_unreadable", path=spec, reason=f"it holds no file that ends in {' or '.join(ENDINGS)}")
    return Inspections(spec, tuple((shard.name, inspect(shard.path, list(declare))) for shard in shards))
