"""A kernel's module is looked for before torch is loaded, and nothing of it is run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kcverify.conformance.lookup import check_module
from kcverify.diagnostics import InputError

CONTRACTS = Path(__file__).parents[3] / "contracts"
KERNEL = str(CONTRACTS / "kernels" / "accumulator_bf16.kc")


@pytest.mark.parametrize(
    "command",
    [("conformance", "run", KERNEL), ("conformance", "chain", KERNEL, str(CONTRACTS / "reward_only.kc"))],
    ids=["run", "chain"],
)
def test_a_module_that_is_not_there_is_said_before_torch_is_loaded(command: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "kcverify", *command, "--kernel", "nosuch:fn"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert done.returncode == 2 and "no module `nosuch`" in done.stderr and "KC701" in done.stderr
    assert "kcverify.conformance.lookup" in loaded and "torch" not in loaded


def test_what_is_there_passes_unrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_to_look_at.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    for name in ("mine_to_look_at:f", "json:loads", "os.path:join", "matmul.bfloat16", "__main__:f", ":x"):
        check_module(name)
    assert sys.path == before and "mine_to_look_at" not in sys.modules
    with pytest.raises(InputError, match="no module `absent_module`"):
        check_module("absent_module.part:f")
