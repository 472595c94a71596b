"""Observations of two processes: `sync` gives the report of one that saw all."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
import warm
from test_observations import drawn, fed, measured

WORKER = """
import json, sys
import torch, torch.distributed as dist
sys.path.insert(0, {here!r})
from test_observations import drawn, fed, measured
from test_observations_shared import REQUESTS

torch.set_num_threads(1)
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + folder + "/store", rank=rank, world_size=2)
reports = [fed(REQUESTS[rank::2]).sync().report(), measured(drawn(6, 0.2)[rank::2]).sync().report()]
with open(f"{{folder}}/{{rank}}.json", "w") as file:
    json.dump(reports, file)
dist.destroy_process_group()
"""
REQUESTS = [(key, 0.01 * key, key % 3 > 0, 0.02 * (key % 7) - 0.05) for key in range(40)]


@pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="needs gloo"
)
def test_two_processes_report_as_one(tmp_path: Path) -> None:
    script = WORKER.format(here=str(Path(__file__).parent))
    workers = [warm.Popen([sys.executable, "-c", script, str(rank), str(tmp_path)]) for rank in (0, 1)]
    assert [w.wait(240) for w in workers] == [0, 0]
    want = json.loads(json.dumps([fed(REQUESTS).report(), measured(drawn(6, 0.2)).report()]))
    for rank in (0, 1):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == want
