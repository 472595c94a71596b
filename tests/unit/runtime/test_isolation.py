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
