"""Resident memory does not grow with a file that can be read row by row: 200 MB in a process of its own."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
MEGABYTES = 200


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
    module.FILES[name](path, MEGABYTES << 20)
    requests, tokens, _, growth = module.measured([path])
    assert path.stat().st_size > 180 << 20
    assert requests > 10
    assert tokens > requests
    assert growth < MEGABYTES
    path.unlink()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
@pytest.mark.parametrize("name", ["json lines", "npy"])
def test_growth_of_a_comparison(name: str, tmp_path: Path) -> None:
    """Two files of 100 MB each."""
    module = benchmark()
    paths = [tmp_path / side for side in ("a", "b")]
    for path in paths:
        module.FILES[name](path, MEGABYTES << 19)
    requests, rows, _, growth = module.measured(paths)
    assert sum(path.stat().st_size for path in paths) > 180 << 20
    assert requests > 5
    assert rows > requests
    assert growth < MEGABYTES
    for path in paths:
        path.unlink()
