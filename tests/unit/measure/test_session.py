"""What a measurement reads and does not count, and options that no run can have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kcverify import driver
from kcverify.diagnostics import InputError
from kcverify.measure.options import MeasureOptions

SPAN = "span: logit_span <= 0.5 except 20% -> L2"
CONTRACT = """contract c version "1"
assume {{ temperature in [1.0, 1.0]; sampler = full_softmax; horizon <= 1 tokens; reward in [0, 1] }}
{block} {{ {clauses} }}
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Logits of 40 requests of 4 tokens, the candidate's last row of each broken in `broken.npy`, and their data."""
    z = np.random.default_rng(0).normal(size=(160, 12)).astype("f4")
    np.save(tmp_path / "z.npy", z)
    broken = z.copy()
    broken[3::4] = np.nan
    np.save(tmp_path / "broken.npy", broken)
    lines = [json.dumps({"request_id": f"r{i}", "token_ids": [1, 2, 3, 4]}) for i in range(40)]
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    return tmp_path


def run(
    folder: Path, clauses: str, candidate: str, *, block: str = "numerical", data: bool = True, **options: Any
) -> dict[str, Any]:
    (folder / "c.kc").write_text(CONTRACT.format(block=block, clauses=clauses))
    contract = driver.select(driver.load(str(folder / "c.kc")), None)
    source = str(folder / "data.jsonl") if data else None
    sides = ([str(folder / "z.npy")], [str(folder / candidate)])
    return dict(driver.measure(contract, *sides, source, MeasureOptions(**options)))


@pytest.mark.parametrize("executor", [None, "serial"])
def test_a_broken_row_without_a_next_token_fails_all_the_same(files: Path, executor: str | None) -> None:
    clauses = f"{SPAN}; ratio: token_log_ratio <= 1 except 20% -> L2"
    bad = run(files, clauses, "broken.npy", executor=executor)
    assert bad["verdict"] == "fail" and bad["measured"]["rows"]["invalid"] == 40
    good = run(files, clauses, "z.npy", executor=executor)
    assert good["measured"]["rows"] == {"total": 160, "invalid": 0} | {
        f"support_{side}_only": 0 for side in ("reference", "candidate")
    }
    rows = {c["name"]: c["evidence"]["rows"] for c in good["measured"]["clauses"]}
    assert rows.pop("ratio") == 120 and set(rows.values()) == {160}
    assert "40 rows have no sampled token and are not counted by ratio" in good["measured"]["notes"]
    plain = run(files, SPAN, "z.npy", executor=executor)["measured"]["notes"]
    assert not any("sampled token" in note for note in plain)


def test_requests_that_the_observations_lack_never_pass(files: Path) -> None:
    lines = [json.dumps({"request_id": f"r{i}", "latency_ms": 5}) for i in range(40)]
    path = files / "seen.jsonl"
    path.write_text("\n".join(lines))
    clause = "slow: p50 latency <= 100 ms -> L2"
    whole = run(files, clause, "z.npy", block="runtime", observations=path)["measured"]["clauses"][0]
    assert whole["verdict"] == "pass"
    path.write_text("\n".join(lines[:-1]))
    part = run(files, clause, "z.npy", block="runtime", observations=path)["measured"]["clauses"][0]
    assert part["verdict"] == "unobservable" and "1 of 40 requests" in part["reason"]
    others = [json.dumps({"request_id": f"other{i}", "latency_ms": 5}) for i in range(40)]
    path.write_text("\n".join(others))
    apart = run(files, clause, "z.npy", block="runtime", observations=path)["measured"]["clauses"][0]
    assert apart["verdict"] == "pass"


@pytest.mark.parametrize("executor", [None, "serial"])
@pytest.mark.parametrize(
    ("option", "fields"),
    [
        ("--window", {"window": 0}),
        ("--window", {"window": -3}),
        ("--limit", {"limit": 3}),
        ("--seed", {"seed": 10**30}),
        ("--parse", {"parse": "json"}),
        ("--rows", {"rows": 3}),
        ("--device", {"device": "nonsense"}),
        ("--device", {"device": "meta"}),
    ],
)
def test_options_that_no_run_can_have(files: Path, option: str, fields: dict[str, Any], executor: str | None) -> None:
    with pytest.raises(InputError) as found:
        run(files, SPAN, "z.npy", data=False, executor=executor, **fields)
    assert found.value.diagnostics[0].message.startswith(option)
