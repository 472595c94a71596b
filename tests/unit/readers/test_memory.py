"""Resident memory does not grow with a file that can be read row by row, in a process of its own.

Files of tensors have 200 MB; those that cost more time a byte are smaller, and so is what they may grow by.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
MEGABYTES = {"json lines": 30, "parquet": 60}
"""Of a file; 200 for others."""

GROWTH = {"json lines": 20, "parquet": 100, "llama.cpp": 200}
"""Megabytes that reading may add; 120 for others."""


def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("reader_benchmark", ROOT / "benchmarks" / "readers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
@pytest.mark.parametrize(
    "name",
    [
        "json lines",
        "safetensors",
        "npy",
        "llama.cpp",
        "batch",
        pytest.param("parquet", marks=pytest.mark.needs("pyarrow")),
    ],
)
def test_growth_over_start_up(name: str, tmp_path: Path) -> None:
    module = benchmark()
    path = tmp_path / "file"
    size = MEGABYTES.get(name, 200)
    module.FILES[name](path, size << 20)
    requests, tokens, _, growth = module.measured([path])
    assert path.stat().st_size > 0.9 * (size << 20)
    assert requests > 10
    assert tokens > requests
    assert growth < GROWTH.get(name, 120)
    path.unlink()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
@pytest.mark.parametrize(
    ("name", "size", "most"), [("json lines", 10, 50), ("npy", 100, 120), ("safetensors", 100, 150)]
)
def test_growth_of_a_comparison(name: str, size: int, most: int, tmp_path: Path) -> None:
    """Two files of `size` megabytes each; parsed and held, those of JSON would take ten times as much."""
    module = benchmark()
    paths = [tmp_path / side for side in ("a", "b")]
    for path in paths:
        module.FILES[name](path, size << 20)
    requests, rows, _, growth = module.measured(paths)
    assert all(path.stat().st_size > 0.9 * (size << 20) for path in paths)
    assert requests > 5
    assert rows > requests
    assert growth < most
    for path in paths:
        path.unlink()
