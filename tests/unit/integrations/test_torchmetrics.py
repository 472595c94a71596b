"""The metric gives the monitor's verdicts, alone, in a collection, in a checkpoint and over two processes."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import warm

RUNTIME = Path(__file__).parents[1] / "runtime"
sys.path.insert(0, str(RUNTIME))

from monitor_streams import Example, fed, spec, state, stream  # noqa: E402

from kcverify.runtime import Monitor, MonitorInputError  # noqa: E402

pytestmark = pytest.mark.needs("torchmetrics")


def text(report: dict[str, Any]) -> str:
    return json.dumps(report, sort_keys=True)


def metric(**settings: Any) -> Any:
    from kcverify.integrations.torchmetrics import ContractMetric

    return ContractMetric(Example(), **settings)


def filled(updates: list[dict[str, Any]]) -> Any:
    made = metric()
    for update in updates:
        made.update(**update)
    return made


def test_compute_is_the_report_and_reset_forgets() -> None:
    updates = stream(12)
    made = filled(updates)
    assert text(made.compute()) == state(fed(updates)) and made.update_count == 12
    made.close(["request-3"])
    assert text(made.compute()) == state(fed(updates))
    made.reset()
    made.update(**updates[0])
    assert text(made.compute()) == state(fed(updates[:1]))


def test_forward_gives_the_batch_and_keeps_the_whole() -> None:
    made, updates = metric(), stream(6)
    for update in updates:
        assert text(made(**update)) == state(fed([update]))
    assert text(made.compute()) == state(fed(updates)) and made.update_count == 6


def test_checkpoints_copies_and_merges() -> None:
    updates = stream(10)
    made = filled(updates[:6])
    other = metric()
    other.load_state_dict(made.state_dict())
    assert [k for k in made.state_dict() if k.startswith("monitor.")]
    for one in (other, made.clone(), copy.deepcopy(made)):
        for update in updates[6:]:
            one.update(**update)
        assert text(one.compute()) == state(fed(updates))
    made.merge_state(filled(updates[6:]))
    assert text(made.compute()) == state(fed(updates)) and made.update_count == 10
    with pytest.raises(MonitorInputError, match="one and the same state"):
        made.merge_state(other)
    assert text(made.compute()) == state(fed(updates)) and made.update_count == 10


def test_what_is_observed_beside_the_logits_counts_too() -> None:
    from kcverify.integrations.torchmetrics import ContractMetric

    class Timed(Monitor):
        CLAUSES = (spec("slow", "latency", "maximum", upper=1.0, limit=0.0, source="value", minimum_requests=2),)

    made = ContractMetric(Timed())
    verdicts = []
    for seconds in (0.5, 0.25, 2.0):
        made.observe("latency", request_ids=[f"r{seconds}"], values=seconds)
        verdicts.append(made.compute()["clauses"][0]["verdict"])
    assert verdicts == ["inconclusive", "pass", "fail"]


def test_inside_a_collection() -> None:
    from torchmetrics import MetricCollection

    updates = stream(4)
    collection = MetricCollection({"contract": metric(), "again": metric()})
    for update in updates:
        collection.update(**update)
    assert text(collection["contract"].compute()) == text(collection["again"].compute()) == state(fed(updates))
    collection.reset()
    assert not collection["again"].update_called


WORKER = """
import json, sys, warnings
import torch, torch.distributed as dist
from monitor_streams import Example, state, stream
from kcverify.integrations.torchmetrics import ContractMetric

torch.set_num_threads(1)
rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method="file://" + folder + "/store", rank=rank, world_size=world)
metric = ContractMetric(Example())
steps = ContractMetric(Example(), dist_sync_on_step=True)
batches = []
for index, update in enumerate(stream(20)):
    if index % world == rank:
        metric.update(**update)
        batches.append(steps(**update))
before = state(metric.monitor)
first = metric.compute()
after = state(metric.monitor)
metric.sync()
inside = state(metric.monitor)
metric.unsync()
told = {"report": json.dumps(first, sort_keys=True), "inside": inside, "local": before == after == state(metric.monitor),
        "batch": json.dumps(batches[3], sort_keys=True)}
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump(told, file)
dist.destroy_process_group()
"""


def test_two_processes(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(RUNTIME), *filter(None, sys.path)])}
    environment["OMP_NUM_THREADS"] = "1"
    running = [
        warm.Popen(
            [sys.executable, "-c", WORKER, str(rank), "2", str(tmp_path)], env=environment, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        errors = [child.communicate(timeout=240)[1] for child in running]
    finally:
        for child in running:
            child.kill()
    assert [child.returncode for child in running] == [0, 0], "\n".join(errors)
    updates = stream(20)
    for rank in range(2):
        told = json.loads((tmp_path / f"{rank}.json").read_text())
        assert told["report"] == told["inside"] == state(fed(updates)) and told["local"]
        assert told["batch"] == state(fed(updates[6:8]))
