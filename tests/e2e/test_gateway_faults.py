"""The fault injection of `benchmarks/gateway_faults.py`, three faults of it against small thresholds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.needs("torch"), pytest.mark.slow]


def test_faults_are_met_repaired_and_no_client_notices() -> None:
    words = [sys.executable, str(ROOT / "benchmarks" / "gateway_faults.py"), "--quick", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["missed"] == []
    assert found["clean"]["false fallbacks"] == 0
    rows = {row["fault"]: row for row in found["faults"]}
    assert rows["switched to int4"]["by"] == ["drift"]
    assert "errors" in rows["crashing"]["by"]
    for row in rows.values():
        assert row["client errors"] == 0, row["errors"]
    killed = rows["clean, the gateway killed"]
    assert killed["kept"] is True and killed["moves"] == []
    assert [m.split()[0] for m in rows["switched to int4"]["moves"]][-1] == "recovered"
