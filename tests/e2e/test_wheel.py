"""The wheel carries everything and works outside the checkout, in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (found,) = out.glob("*.whl")
    return found


def test_wheel_holds_what_ships(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for part in (
        "kcverify/_shipped/grammar/contract.lark", "kcverify/_shipped/templates/monitor.py.j2", "kcverify/_shipped/contracts/rl_rollout.kc",
        "kcverify/data/tinylm.safetensors", "kcverify/data/heldout.txt", "kcverify/data/seq_tv_table.json",
    ):  # fmt: skip
        assert part in names
    assert not [n for n in names if n.startswith("tests/") or n.endswith(".pyc")]


def test_wheel_runs_outside_the_checkout(wheel, tmp_path):
    home = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    site = next((home / "lib").glob("python*")) / "site-packages"
    zipfile.ZipFile(wheel).extractall(site)
    # The dependencies are those of this environment, without the checkout itself: no network is needed.
    here = Path(sys.executable).parent.parent / "lib" / site.parent.name / "site-packages"
    (site / "dependencies.pth").write_text(str(here), encoding="utf-8")
    python = home / "bin" / "python"
    work = tmp_path / "work"
    work.mkdir()

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, "-m", "kcverify", *arguments], capture_output=True, text=True, cwd=work, timeout=120
        )

    where = subprocess.run(
        [python, "-c", "import kcverify; print(kcverify.__file__)"], capture_output=True, text=True, cwd=work
    )
    assert str(home) in where.stdout
    contract = site / "kcverify" / "_shipped" / "contracts" / "rl_rollout.kc"
    checked = run("check", str(contract))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "PROVED reward_safe" in checked.stdout
    compiled = run("compile", str(contract), "-o", "monitor.py")
    assert compiled.returncode == 0, compiled.stderr
    assert "ContractMonitor" in (work / "monitor.py").read_text(encoding="utf-8")
