"""The rules of ARCHITECTURE.md that a program can hold: import order, seams, file size, who prints."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "kcverify"
FILES = sorted(p for p in PACKAGE.rglob("*.py") if "_shipped" not in p.parts)
ORDER = (
    "source", "codes", "diagnostics", "digests", "exact", "resources", "render", "enclosure", "catalog", "syntax", "forms", "elaborate", "bounds",
    "reference", "prove", "emit", "output", "runtime", "integrations", "executors", "readers", "streams", "rl", "measure", "conformance",
    "allocation", "provenance", "delivery", "exporters", "routing", "serving", "gateway", "docgen", "driver",
    "arguments", "demo", "editor", "cli", "__main__",
)  # fmt: skip
SEAMS = {
    "lark": ("syntax/parser.py",),
    "z3": ("prove/",),
    "jinja2": ("emit/", "docgen/", "exporters/", "gateway/"),
    "torch": ("runtime/", "integrations/", "rl/", "measure/", "conformance/", "readers/torch_file.py", "allocation/", "provenance/", "serving/"),
    "torchmetrics": ("integrations/",),
    "pyarrow": ("readers/parquet_file.py",),
    "triton": ("runtime/gpu/", "conformance/with_triton.py"),
    "ray": ("executors/cluster.py",),
    "typer": ("cli/",),
    "ruamel": ("forms/", "exporters/text.py"),
    "pygls": ("editor/",),
    "transitions": ("delivery/machine.py",),
    "starlette": ("gateway/", "serving/"),
    "uvicorn": ("gateway/", "serving/"),
    "httpx": ("gateway/",),
    "prometheus_client": ("gateway/",),
    "opentelemetry": ("exporters/", "gateway/"),
    "securesystemslib": ("provenance/",),
    "torchao": ("conformance/",),
    "bitsandbytes": ("conformance/",),
}  # fmt: skip
# Imports inside functions: the light-install seams, where a command loads only what it needs; __main__ is ready for Ctrl-C first.
DEFERRED = ("__init__.py", "__main__.py", "driver.py", "cli/", "editor/")


def place(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@cache
def imports(path: Path) -> list[tuple[str, ast.AST, bool]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {n for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef) for n in ast.walk(f)}
    out = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            out += [(a.name, node, node in inside) for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            out.append((node.module, node, node in inside))
            assert not any(a.name == "*" for a in node.names), f"{place(path)}: import *"
    return out


def unit(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


@pytest.mark.parametrize("path", FILES, ids=place)
def test_imports_point_one_way(path):
    own = place(path).split("/")[0].removesuffix(".py")
    for module, _, deferred in imports(path):
        if not module.startswith("kcverify.") or own in ("__init__",):
            continue
        if own == "runtime":
            assert unit(module) == "runtime", f"{place(path)} imports {module}: a deployed monitor needs torch alone"
            continue
        if not deferred:
            assert ORDER.index(unit(module)) <= ORDER.index(own), f"{place(path)} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=place)
def test_outside_libraries_stay_behind_their_seams(path):
    for module, _, deferred in imports(path):
        allowed = SEAMS.get(module.split(".")[0])
        assert allowed is None or place(path).startswith(allowed), f"{place(path)} imports {module}"
        if deferred:
            assert place(path).startswith(DEFERRED), f"{place(path)} imports {module} inside a function"


@pytest.mark.parametrize("path", FILES, ids=place)
def test_size_docstring_and_silence(path):
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert len(text.splitlines()) <= 420, f"{place(path)} has {len(text.splitlines())} lines"
    assert ast.get_docstring(tree), f"{place(path)} states no job"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, (
                f"{place(path)}: {node.name} has {node.end_lineno - node.lineno + 1} lines"
            )
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            assert place(path).startswith(("cli/", "prove/kernel.py")), f"{place(path)} prints"


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sorted(m.split('.')[0] for m in sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(run.stdout.split())


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import kcverify", {"sympy", "z3", "lark", "torch", "typer", "numpy"}),
        ("import kcverify.cli", {"sympy", "z3", "lark", "torch", "flint", "numpy"}),
        ("import kcverify.driver", {"torch", "jinja2"}),
        ("import kcverify.readers.inspection", {"torch", "jinja2", "z3", "pyarrow", "safetensors"}),
        ("import kcverify.delivery.promotion", {"torch", "z3", "jinja2", "typer"}),
        ("import kcverify.runtime.sequential", {"torch", "sympy", "z3", "jinja2"}),
        ("import kcverify.runtime", {"sympy", "z3", "lark", "flint", "jinja2", "typer"}),
    ],
)
def test_light_installs(statement, absent):
    if "runtime" in statement:
        pytest.importorskip("torch")
        absent = absent - {"sympy"}  # torch itself loads sympy
    assert not modules_after(statement) & absent
