"""No code of kcverify unpickles, executes or shells out: every exception is a row here, with the reason why it is no input."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "kcverify"

FORBIDDEN = {
    "pickle.load", "pickle.loads", "pickle.Unpickler", "cPickle.loads", "_pickle.loads", "dill.loads", "cloudpickle.loads",
    "joblib.load", "marshal.load", "marshal.loads", "shelve.open", "eval", "exec", "compile", "builtins.eval", "builtins.exec",
    "builtins.compile", "__import__", "runpy.run_path", "runpy.run_module", "code.interact", "os.system", "os.popen",
    "os.execv", "os.execve", "os.execvp", "os.spawnv", "commands.getoutput", "subprocess.getoutput",
    "subprocess.getstatusoutput", "pty.spawn", "asyncio.create_subprocess_shell", "tempfile.mktemp", "shutil.unpack_archive",
    "tarfile.open", "sympy.sympify", "sp.sympify", "sympy.parse_expr", "sp.parse_expr", "numpy.fromregex", "pandas.read_pickle",
    "torch.hub.load", "torch.utils.cpp_extension.load_inline", "torch.utils.cpp_extension.load", "torch.jit.load",
    "torch.package.PackageImporter", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "xml.etree.ElementTree.parse",
    "xml.etree.ElementTree.fromstring",
}  # fmt: skip
"""Calls that turn data into code, follow names in data, or race for a file."""

METHODS = {"extract", "extractall", "executescript", "load_extension", "enable_load_extension"}
"""Methods that write what an archive names, or run more than one statement."""

ALLOWED = {
    ("executors/pool.py", "pickle.loads"): (2, "the pipe between a pool and the processes that it started itself; no file, no socket"),
    ("measure/session.py", "exec"): (1, "the monitor that `emit` generated in this very process from an elaborated contract"),
    ("measure/session.py", "compile"): (1, "the same"),
}  # fmt: skip
"""File and call -> how often, and why it is no input."""

IMPORTS_BY_NAME = {
    "readers/opening.py": "rows of the table of readers",
    "runtime/__init__.py": "names of this package",
    "runtime/gpu/launch.py": "names of this package",
    "conformance/later.py": "rows of the table of kernels",
    "measure/functions.py": "`module:function` of the command line: code that the user names",
    "conformance/kernels.py": "`module:function` of the command line: code that the user names",
    "conformance/forks.py": "names of this package, on the pipe from the process that started this one",
    "conformance/ranks.py": "`module:function` from the process that started this one",
}
"""Where a module is imported by a name that is no literal, and where the name is from."""


@cache
def trees() -> tuple[tuple[str, ast.Module], ...]:
    """Every module by its path, parsed once."""
    paths = sorted(ROOT.rglob("*.py"))
    return tuple((p.relative_to(ROOT).as_posix(), ast.parse(p.read_text(encoding="utf-8"))) for p in paths)


def names(tree: ast.Module) -> dict[str, str]:
    """What a name of the module stands for, by its imports."""
    out = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                out[alias.asname or alias.name.split(".")[0]] = alias.name if alias.asname else alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                out[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return out


def called(node: ast.expr, known: dict[str, str]) -> str:
    """The dotted name of an expression, through the imports; empty where it is none."""
    if isinstance(node, ast.Name):
        return known.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        inner = called(node.value, known)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def literal(call: ast.Call, name: str) -> object:
    """The literal value of a keyword; None where it is missing or computed."""
    found = next((k.value for k in call.keywords if k.arg == name), None)
    return found.value if isinstance(found, ast.Constant) else None


def put_together(sql: ast.expr) -> bool:
    """Whether a statement is made from parts other than constants of its module."""
    if isinstance(sql, ast.JoinedStr):
        parts = [part.value for part in sql.values if isinstance(part, ast.FormattedValue)]
        return not all(isinstance(part, ast.Name) and part.id.isupper() for part in parts)
    return isinstance(sql, ast.BinOp) or (isinstance(sql, ast.Call) and isinstance(sql.func, ast.Attribute))


def faults(path: str, tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    """Name of a forbidden thing, its line, what is wrong."""
    known = names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            name = called(node, known)
            own = "." in name or (isinstance(node, ast.Name) and node.id not in known)
            if name in FORBIDDEN and own:
                yield name, node.lineno, "forbidden"
        if not isinstance(node, ast.Call):
            continue
        name = called(node.func, known)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name in ("torch.load",) and literal(node, "weights_only") is not True:
            yield name, node.lineno, "without weights_only=True"
        if name in ("np.load", "numpy.load") and literal(node, "allow_pickle") is not False:
            yield name, node.lineno, "without allow_pickle=False"
        if name.endswith("read_array") and literal(node, "allow_pickle") is not False:
            yield name, node.lineno, "without allow_pickle=False"
        if name == "ruamel.yaml.YAML" and literal(node, "typ") not in ("safe", "rt") and node.keywords + node.args:
            yield name, node.lineno, "neither safe nor round-trip"
        if any(k.arg == "shell" and getattr(k.value, "value", True) is not False for k in node.keywords):
            yield name, node.lineno, "through a shell"
        if method in METHODS:
            yield f".{method}", node.lineno, "writes what an archive names, or runs many statements"
        if (
            name in ("importlib.import_module",)
            and not isinstance(node.args[0], ast.Constant)
            and path not in IMPORTS_BY_NAME
        ):
            yield name, node.lineno, "a module by a computed name"
        if method in ("execute", "executemany") and node.args and put_together(node.args[0]):
            yield f".{method}", node.lineno, "SQL put together from parts"


UNBOUNDED = {"aread", "aiter_bytes", "iter_bytes", "aiter_text", "iter_text", "aiter_lines", "iter_lines"}
"""Methods of an answer of httpx that unpack it, however large it becomes."""


def test_no_answer_from_the_network_is_unpacked_or_read_without_an_end() -> None:
    """`Upstream.body`, `parts` and `listed` and `client._posted` read raw parts up to a limit; everything else uses them."""
    wrong = []
    for path, tree in trees():
        known = names(tree)
        if "httpx" not in known.values():
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            name = called(node.func, known)
            whole = name.split(".")[0] == "httpx" and node.func.attr in ("get", "post", "put", "request", "stream")
            if whole or node.func.attr in UNBOUNDED or (node.func.attr == "json" and not node.args):
                wrong.append(f"{path}:{node.lineno}: .{node.func.attr}")
            if node.func.attr in ("get", "post") and name.endswith("client." + node.func.attr):
                wrong.append(f"{path}:{node.lineno}: {name}")
    assert not wrong, "\n".join(wrong)


def test_nothing_turns_input_into_code() -> None:
    found: Counter[tuple[str, str]] = Counter()
    wrong = []
    for path, tree in trees():
        for name, line, why in faults(path, tree):
            found[path, name] += 1
            if (path, name) not in ALLOWED:
                wrong.append(f"{path}:{line}: {name}: {why}")
    assert not wrong, "\n".join(wrong)
    assert found == Counter({key: count for key, (count, _) in ALLOWED.items()})


def test_every_exception_is_still_needed() -> None:
    """A row for a file that no longer imports by name would let one in unseen."""
    using = {
        path for path, tree in trees()
        for known in [names(tree)]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and called(node.func, known) == "importlib.import_module"
        and not (node.args and isinstance(node.args[0], ast.Constant))
    }  # fmt: skip
    assert using == set(IMPORTS_BY_NAME)


@pytest.mark.parametrize(
    "source",
    [
        "import pickle\npickle.loads(x)", "from pickle import loads as f\nf(x)", "import torch\ntorch.load(p)",
        "import torch as t\nt.load(p, weights_only=w)", "import numpy as np\nnp.load(p)", "import subprocess as s\ns.run(x, shell=True)",
        "eval(x)", "f = eval", "import os\nos.system(x)", "from tempfile import mktemp\nmktemp()", "archive.extractall()",
        "db.execute(f'select {x}')", "import importlib\nimportlib.import_module(x)", "from ruamel.yaml import YAML\nYAML(typ='unsafe')",
        "import subprocess\nsubprocess.run(x, shell=flag)", "import builtins\nbuiltins.exec(x)",
    ],
)  # fmt: skip
def test_the_scan_finds_what_it_is_for(source: str) -> None:
    assert list(faults("made.py", ast.parse(source)))
