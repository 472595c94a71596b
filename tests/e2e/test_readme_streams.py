"""What the README prints under "Point it at what you have" is what the commands print."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import warm

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(
    r"```\n(\$ kcverify (?:inspect|compare) .*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S
)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: b.split("\n", 1)[0][2:60])
def test_the_output_is_real(block: str) -> None:
    """Each shown line is printed, in this order; `...` stands for lines that are left out."""
    command, _, shown = block.partition("\n")
    words = command.removeprefix("$ kcverify ").split()
    done = warm.run(
        [sys.executable, "-m", "kcverify", *words], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    printed = iter((done.stdout + done.stderr).splitlines())
    for line in shown.splitlines():
        if line.strip() != "...":
            assert any(line.rstrip() == other.rstrip() for other in printed), (line, done.stdout, done.stderr)


def test_the_readme_shows_some() -> None:
    assert len(BLOCKS) >= 3
