"""What a kernel is: its source files or its build, by SHA-256, without importing it."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kcverify.diagnostics import InputError, input_error
from kcverify.digests import sha256_of
from kcverify.provenance.fields import ABSENT, Value
from kcverify.provenance.reading import is_text, is_there

_PACKAGE = Path(__file__).parents[1]
_SOURCES = ("kernels.py", "model.py")


@dataclass(frozen=True)
class Shipped:
    """A demo model that kcverify ships kernels for: the name of its tokenizer."""

    tokenizer: str


SHIPPED: Mapping[str, Shipped] = {"demo": Shipped("bytes"), "smollm2": Shipped("of the GGUF file")}
"""Models by the name before the colon of a kernel."""


def digests(specs: Iterable[str]) -> dict[str, str]:
    """SHA-256 of every file of several kernels. Raises InputError: `kernel_unknown`, also for two files of one name."""
    out: dict[str, str] = {}
    for spec in specs:
        for name, sha in resolve(spec).digests().items():
            if out.setdefault(name, sha) != sha:
                raise _unknown(spec, f"another file that was given is called {name} too")
    return out


def is_shipped(name: str) -> bool:
    """Whether a kernel, or one of its files, is of a shipped model: then its name says the format, and its bytes do not."""
    return name.partition(":")[0] in SHIPPED


@dataclass(frozen=True)
class KernelSource:
    """A kernel as it was named, its files by the name of each, and for a shipped one its format and model."""

    name: str
    files: Mapping[str, Path]
    format: str = ""
    model: str = ""

    def digests(self) -> dict[str, str]:
        """SHA-256 of each file."""
        return {label: sha256_of(path) for label, path in self.files.items()}


def resolve(spec: str) -> KernelSource:
    """`demo:FORMAT` or `smollm2:FORMAT`, a file, or `module:function` (the working folder is importable).

    Raises InputError: `kernel_unknown`.
    """
    prefix, colon, rest = spec.partition(":")
    if colon and prefix in SHIPPED:
        return _shipped(spec, prefix, rest)
    if is_there(spec):
        if not is_text(Path(spec).name):
            raise _unknown(spec, "the name of the file is not UTF-8, and no statement can hold it")
        return KernelSource(spec, {Path(spec).name: Path(spec)})
    if not (prefix and colon and rest):
        raise _unknown(spec, "no such file, and no `module:function`")
    origin = _origin(prefix)
    if origin is None:
        raise _unknown(spec, f"no source of the module {prefix} is found")
    return KernelSource(spec, {spec: origin})


def _unknown(spec: str, reason: str) -> InputError:
    return input_error("kernel_unknown", kernel=spec, reason=reason)


def _shipped(spec: str, model: str, form: str) -> KernelSource:
    formats = _formats(_PACKAGE / "measure" / "kernels.py")
    if form not in formats:
        raise _unknown(spec, f"formats are {', '.join(sorted(set(formats.values())))}")
    name = f"{model}:{formats[form]}"
    files = {f"{name} {file}": _PACKAGE / "measure" / file for file in _SOURCES}
    return KernelSource(name, files, formats[form], model)


def _formats(path: Path) -> dict[str, str]:
    """Names and aliases of the rows of the table of kernels -> name, read off its source: importing it needs torch."""
    out: dict[str, str] = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Kernel" and node.args:
            first = node.args[0]
            if not isinstance(first, ast.Constant):
                continue
            names = [e for k in node.keywords if k.arg == "aliases" for e in getattr(k.value, "elts", ())]
            for constant in (first, *names):
                out[str(constant.value)] = str(first.value)
    return out


def _origin(module: str) -> Path | None:
    """The source or build of a module, found without running it, or None."""
    where = [str(Path.cwd()), *sys.path]
    *packages, last = module.split(".")
    for package in packages:
        spec = importlib.machinery.PathFinder.find_spec(package, where)
        if spec is None or spec.submodule_search_locations is None:
            return None
        where = list(spec.submodule_search_locations)
    found = importlib.machinery.PathFinder.find_spec(last, where)
    if found is None or found.origin is None or not Path(found.origin).is_file():
        return None
    return Path(found.origin)


def fields(source: KernelSource, build: Value) -> dict[str, Value]:
    """Fields that a kernel tells; `build` is that of torch, which the shipped kernels are of."""
    out: dict[str, Value] = {"kernels": source.digests()}
    if source.model:
        out["tokenizer"] = SHIPPED[source.model].tokenizer
        out["quantization"] = {"kernel": source.format}
        out["build"] = build
        return out
    out["build"] = _distribution(source.name.partition(":")[0].partition(".")[0]) or build
    return out


def _distribution(package: str) -> Value:
    """Name and version of the distribution that a package belongs to, empty where there is none."""
    try:
        names = importlib.metadata.packages_distributions().get(package, ())
    except (OSError, ValueError):
        return ""
    return {name: importlib.metadata.version(name) for name in sorted(set(names))} or ""


def joined(weights: Mapping[str, Value], kernel: Mapping[str, Value]) -> dict[str, Value]:
    """Fields of weights and of a kernel together; what both tell about quantisation and tokenizer stands side by side."""
    out = dict(weights)
    for name, value in kernel.items():
        before = out.get(name, ABSENT)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            out[name] = {**before, **value}
        elif not before or before == ABSENT:
            out[name] = value
    return out
