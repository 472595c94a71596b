"""docs/allocation.md: its contracts are read, its commands run, and their output is what the page shows, but for the numbers.

Numbers depend on the processor's kernels, so that a line is compared with every number blotted out.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
import warm

pytest.importorskip("torch")
pytest.importorskip("scipy")

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "allocation.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def blotted(line: str) -> str:
    """The words of a line, without numbers, places and blanks."""
    return re.sub(r"\d[\d,.e+-]*", "#", " ".join(line.split())).replace("# / #", "#")


@pytest.mark.parametrize(
    "body", [b for kind, _, b in BLOCKS if kind == "console"], ids=lambda b: " ".join(b.split()[2:4])
)
def test_the_output_is_what_the_page_shows(body: str, tmp_path: Path) -> None:
    for _, name, text in BLOCKS:
        if name:
            (tmp_path / name).write_text(text, encoding="utf-8")
    command, *shown = body.removeprefix("$ ").splitlines()
    words = [sys.executable, "-m", *shlex.split(command)]
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": "", "HOME": str(tmp_path)}
    done = warm.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    printed = iter(done.stdout.splitlines())
    for line in shown:
        if line.strip() != "...":
            assert any(blotted(line) == blotted(other) for other in printed), f"{line!r} is not printed:\n{done.stdout}"


def test_the_page_has_all_four() -> None:
    assert sum(kind == "console" for kind, _, _ in BLOCKS) == 4
