"""The README's example, as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_example_prints_what_the_readme_shows(tmp_path):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```\n(.*?)```", text, re.S)
    contract = next(b for b in blocks if b.startswith("contract short_answers"))
    shown = next(b for b in blocks if b.startswith("$ kcverify check short.kc\n"))
    (tmp_path / "short.kc").write_text(contract, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", "from kcverify.cli import main; main(['check', 'short.kc'])"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip() == shown.split("\n", 1)[1].rstrip()
