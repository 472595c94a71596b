"""`use` and `extends`: finds the contracts that a file builds on, and writes a child out in full."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kcverify.diagnostics import InputError, Report
from kcverify.elaborate.extend import merged
from kcverify.elaborate.scope import RefusedError, choose
from kcverify.forms.files import read_source
from kcverify.forms.read import read
from kcverify.syntax import tree


@dataclass(frozen=True)
class ImportLimits:
    """Files below each other, files in all, and contracts that extend each other."""

    depth: int = 8
    files: int = 64
    parents: int = 16


LIMITS = ImportLimits()
SUFFIXES = (".kc", ".yaml", ".yml", ".json")


@dataclass(eq=False)
class Unit:
    """One file with the files that it uses. Two files are two units, whatever they hold."""

    file: tree.File
    used: list[Unit] = field(default_factory=list)
    whole: dict[str, tree.Contract] = field(default_factory=dict)

    def find(self, name: str) -> tree.Contract | None:
        """The first contract of a name in this file."""
        return next((node for node in self.file.contracts if node.header.name.text == name), None)


@dataclass(frozen=True)
class Whole:
    """A contract written out in full, and its parent likewise where it extends one."""

    node: tree.Contract
    parent: tree.Contract | None = None


def resolve(file: tree.File, report: Report, limits: ImportLimits = LIMITS) -> tuple[Whole, ...]:
    """The contracts of a file, each with what it inherits; what cannot be found is reported and left out."""
    here = Path(file.source.name)
    unit = _unit(file, here.parent, (_identity(here),), {}, report, limits)
    out = []
    for node in file.contracts:
        parent = None
        if node.header.parent is not None:
            try:
                parent = _parent(unit, node, (node,), report, limits)
            except RefusedError:
                parent = None
        out.append(Whole(node if parent is None else merged(parent, node), parent))
    return tuple(out)


def _identity(path: Path) -> Path:
    """One path for all spellings of it; a path that cannot be one stands for itself."""
    try:
        return Path.cwd().joinpath(path).resolve()
    except (OSError, ValueError, RuntimeError):
        return path


def _unit(
    file: tree.File,
    folder: Path,
    chain: tuple[Path, ...],
    known: dict[Path, Unit],
    report: Report,
    limits: ImportLimits,
) -> Unit:
    """A file and all that it uses; `chain` are the files from the first to this one."""
    unit = Unit(file)
    known[chain[-1]] = unit
    for use in file.uses:
        used = _used(use, folder, chain, known, report, limits)
        if used is not None and used not in unit.used:
            unit.used.append(used)
    return unit


def _used(
    use: tree.Use,
    folder: Path,
    chain: tuple[Path, ...],
    known: dict[Path, Unit],
    report: Report,
    limits: ImportLimits,
) -> Unit | None:
    shown = use.path.value
    relative = Path(shown)
    if relative.is_absolute() or not shown.endswith(SUFFIXES):
        reason = "a path is relative to the file that uses it, and ends in .kc, .yaml or .json"
        report.add("use_unreadable", use.span, path=shown, reason=reason)
        return None
    path = folder / relative
    identity = _identity(path)
    if identity in chain:
        report.add("use_cycle", use.span, path=shown)
        return None
    if identity in known:
        return known[identity]
    if len(chain) > limits.depth or len(known) >= limits.files:
        report.add("use_depth", use.span, depth=limits.depth, files=limits.files)
        return None
    try:
        source = read_source(str(path))
    except InputError as error:
        found = error.diagnostics[0]
        report.add("use_unreadable", use.span, path=shown, reason=found.message.rpartition(": ")[2])
        return None
    return _unit(read(source, report), path.parent, (*chain, identity), known, report, limits)


def _parent(
    unit: Unit, node: tree.Contract, chain: tuple[tree.Contract, ...], report: Report, limits: ImportLimits
) -> tree.Contract:
    """The parent of a contract, written out in full. Raises RefusedError."""
    home, parent = _find(unit, node, report)
    name = parent.header.name.text
    if any(parent is child for child in chain):
        report.add("extends_cycle", _parent_name(node).span, name=name)
        raise RefusedError("extends_cycle")
    if len(chain) > limits.parents:
        report.add("extends_depth", _parent_name(node).span, limit=limits.parents)
        raise RefusedError("extends_depth")
    if parent.header.parent is None:
        return parent
    if name not in home.whole:
        home.whole[name] = merged(_parent(home, parent, (*chain, parent), report, limits), parent)
    return home.whole[name]


def _parent_name(node: tree.Contract) -> tree.Name:
    assert node.header.parent is not None
    return node.header.parent


def _find(unit: Unit, node: tree.Contract, report: Report) -> tuple[Unit, tree.Contract]:
    """The unit and the node of a parent: of the same file, else of the one used file that has it."""
    word = _parent_name(node)
    here = unit.find(word.text)
    places = [(unit, here)] if here is not None else [(used, used.find(word.text)) for used in unit.used]
    found = [(home, parent) for home, parent in places if parent is not None and not parent.header.kernel]
    if len(found) == 1:
        return found[0]
    if found:
        files = ", ".join(f"`{home.file.source.name}`" for home, _ in found)
        report.add("parent_ambiguous", word.span, name=word.text, files=files)
        raise RefusedError("parent_ambiguous")
    known = sorted({c.header.name.text for home in (unit, *unit.used) for c in home.file.contracts if c is not node})
    hint = choose(word.text, known, "contracts are") if known else 'name its file: `use "base.kc"`'
    report.add("unknown_parent", word.span, name=word.text, hint=hint)
    raise RefusedError("unknown_parent")
