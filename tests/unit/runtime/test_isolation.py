"""A deployed monitor needs torch and the standard library only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import kcverify.runtime

RUNTIME = Path(kcverify.runtime.__file__).parent


def test_runtime_imports_torch_and_the_standard_library_only() -> None:
    for path in RUNTIME.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                root = name.split(".")[0]
                assert root == "torch" or root in sys.stdlib_module_names or name.startswith("kcverify.runtime"), (
                    path,
                    name,
                )


def test_importing_a_monitor_loads_no_solver() -> None:
    unwanted = ("z3", "lark", "flint", "jinja2", "typer")
    code = f"import sys, kcverify.runtime; print([m for m in {unwanted!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=RUNTIME.parents[1]
    )
    assert done.stdout.strip() == "[]"


CREATIONS = {"zeros", "ones", "empty", "full", "tensor", "arange", "eye", "linspace", "rand", "randn", "as_tensor"}


def test_every_new_tensor_names_its_device() -> None:
    """A default device that a user has set must not decide where counts live, nor what a pointer points at."""
    for path in RUNTIME.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if ast.unparse(node.func.value) == "torch" and node.func.attr in CREATIONS:
                assert any(k.arg == "device" for k in node.keywords), (path.name, node.lineno)
