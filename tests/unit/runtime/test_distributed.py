"""Real process groups: every rank ends with the state of one process that saw all rows, after three all-reduces."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import warm
from monitor_streams import Example, clause, fed, state, stream

from kcverify.runtime.distributed import NAME_BYTES, _read, _spelt

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="needs gloo"
)

WORKER = """
import json, os, sys
import torch, torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
sys.path.insert(0, {here!r})
from monitor_streams import Example, fed, state, stream
from test_distributed import CASES
from kcverify.runtime import MonitorInputError

torch.set_num_threads(1)
case, rank, world, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
dist.init_process_group("gloo", init_method="file://" + folder + "/store", rank=rank, world_size=world)

calls = []
class Count(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "c10d" in str(function):
            calls.append(str(function))
        return function(*args, **(kwargs or {{}}))

monitor = CASES[case](rank, world)
before = state(monitor)
with Count():
    try:
        merged = monitor.sync()
        outcome = {{"report": state(merged), "again": state(merged), "names": sorted(merged.ledger.names.values())}}
    except MonitorInputError as error:
        outcome = {{"error": str(error), "slug": error.slug}}
outcome |= {{"calls": calls, "unchanged": state(monitor) == before}}
if "report" in outcome:
    more = stream(2, seed=50 + rank)
    for index, update in enumerate(more):
        update["request_ids"] = [f"more-{{rank}}-{{index}}"] * 5
        monitor.update(**update)
    resumed, own = Example(merged.temperature), Example(merged.temperature)
    resumed.load_state_dict(merged.state_dict())
    own.load_state_dict(monitor.state_dict())
    outcome["resumed"] = state(resumed)
    later = monitor.sync()
    outcome["later"] = state(later)
    outcome["twice"] = []
    for whole, part in ((merged, later), (merged, own), (own, merged), (resumed, monitor), (monitor, later)):
        try:
            whole.merge(part)
        except MonitorInputError as error:
            outcome["twice"].append(error.slug + str(error))
with open(f"{{folder}}/{{rank}}.json", "w") as file:
    json.dump(outcome, file)
dist.destroy_process_group()
"""


def updates() -> list[dict[str, Any]]:
    """30 requests, one with an invalid row, some one-sided, some without a slice, some ids of one key space."""
    out = stream(30, seed=2, size=0.05)
    out[4]["candidate_logits"][1, 0] = torch.nan
    out[11]["candidate_logits"][2, 5] = -torch.inf
    out[12]["reference_logits"][3, 6] = -torch.inf
    out[19]["candidate_logits"][3, 42] += 3.0
    for index in (20, 21):
        out[index]["request_ids"] = [index] * 5
    del out[7]["slices"]["a"]
    return out


def sharded(rank: int, world: int) -> Example:
    """Requests dealt out at random, some of them closed, each rank in an order of its own."""
    given = updates()
    owner = random.Random(world)
    mine = [u for u in given if owner.randrange(world) == rank]
    random.Random(rank).shuffle(mine)
    monitor = fed(mine)
    monitor.close([u["request_ids"][0] for u in mine[::2]])
    return monitor


def ties(rank: int, world: int) -> Example:
    """Equal rows everywhere: the witness is the smallest key."""
    monitor = Example()
    z = torch.zeros(2, 8)
    w = z.clone()
    w[:, 3] = 0.5
    for index in range(rank, 9, world):
        monitor.update(z, w, request_ids=[100 - index] * 2, sampled_ids=torch.tensor([3, 1]))
    return monitor


def lopsided(rank: int, world: int) -> Example:
    """Only the last rank has seen anything."""
    return fed(updates()[:6]) if rank == world - 1 else Example()


def reused(rank: int | None, world: int) -> Example:
    """Every rank numbers its requests from 0 and closes them before the others' come."""
    monitor = Example()
    z = torch.zeros(3, 8)
    for owner in range(world) if rank is None else (rank,):
        for index in range(4):
            w = z.clone()
            w[1, 2 + owner] = 0.5
            monitor.update(z, w, request_ids=[index] * 3, sampled_ids=torch.tensor([3, 1, 0]))
            monitor.close([index])
    return monitor


def split(rank: int, world: int) -> Example:
    """One request on two ranks."""
    monitor = Example()
    z = torch.zeros(2, 8)
    for index in range(4):
        monitor.update(z, z, request_ids=[f"own-{rank}-{index}"] * 2)
    if rank < 2:
        monitor.update(z, z, request_ids=["both"] * 2)
    return monitor


def strangers(rank: int, world: int) -> Example:
    """Another temperature on one rank."""
    return Example(0.8 if rank == 1 else 1.0)


def loaded(rank: int, world: int) -> Example:
    """Every rank goes on from one and the same checkpoint."""
    monitor = fed(updates()[:3])
    monitor.close([u["request_ids"][0] for u in updates()[:3]])
    state_dict = monitor.state_dict()
    state_dict["_extra_state"]["origins"] = [2**60 + 17]
    monitor.load_state_dict(state_dict)
    return monitor


CASES = {f.__name__: f for f in (sharded, ties, lopsided, reused, split, strangers, loaded)}


def ranks(case: str, world: int, folder: Path) -> list[dict[str, Any]]:
    """Run a case in `world` processes and return what each told."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    code = WORKER.format(here=str(HERE))
    running = [
        warm.Popen(
            [sys.executable, "-c", code, case, str(rank), str(world), str(folder)],
            env=environment, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(world)
    ]  # fmt: skip
    try:
        errors = [child.communicate(timeout=240)[1] for child in running]
    finally:
        for child in running:
            child.kill()
    assert [child.returncode for child in running] == [0] * world, "\n".join(errors)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


@pytest.mark.parametrize("world", [2, 3])
def test_every_rank_has_the_report_of_one_process(tmp_path: Path, world: int) -> None:
    told = ranks("sharded", world, tmp_path)
    whole = state(fed(updates()))
    for one in told:
        assert one["report"] == one["again"] == one["resumed"] == whole
        assert len(one["calls"]) == 3 and all("allreduce" in c for c in one["calls"]), one["calls"]
        assert one["unchanged"] and len(one["twice"]) == 5
        assert all("option_invalid" in t and "one and the same state" in t for t in one["twice"])
    later = updates()
    for rank in range(world):
        more = stream(2, seed=50 + rank)
        for index, update in enumerate(more):
            update["request_ids"] = [f"more-{rank}-{index}"] * 5
        later += more
    assert {one["later"] for one in told} == {state(fed(later))}


def test_ties_and_empty_ranks(tmp_path: Path) -> None:
    whole = state(ties(0, 1))
    assert clause(json.loads(whole), "hard")["max"]["request"] == 92
    for case, expected in (
        ("ties", whole),
        ("lopsided", state(fed(updates()[:6]))),
        ("reused", state(reused(None, 2))),
    ):
        folder = tmp_path / case
        folder.mkdir()
        assert {one["report"] for one in ranks(case, 2, folder)} == {expected}


def test_a_request_open_on_two_ranks_is_refused_on_all(tmp_path: Path) -> None:
    for one in ranks("split", 3, tmp_path):
        assert one["slug"] == "option_invalid" and "open on more than one rank" in one["error"] and one["unchanged"]
        assert len(one["calls"]) == 3


def test_monitors_of_another_temperature_are_refused_on_all(tmp_path: Path) -> None:
    for one in ranks("strangers", 2, tmp_path):
        assert one["slug"] == "option_invalid" and "different contracts or temperatures" in one["error"]


def test_one_state_on_two_ranks_is_refused_on_all(tmp_path: Path) -> None:
    for one in ranks("loaded", 2, tmp_path):
        assert one["slug"] == "option_invalid" and "one and the same state" in one["error"] and one["unchanged"]


def test_without_a_group_it_is_a_copy() -> None:
    monitor = fed(stream(6))
    merged = monitor.sync()
    assert state(merged) == state(monitor) and not merged.ledger.slots
    merged.update(**stream(1, seed=8)[0])
    assert state(monitor) == state(fed(stream(6)))


def test_names_travel_as_integers() -> None:
    names = ["", "a", "request-17", "é\U0001f600" * 9, "x" * NAME_BYTES, "x" * (NAME_BYTES + 1), None, "\udc80"]
    spelt = _spelt(names)
    expected = [*names[:5], None, None, names[7]]
    assert _read(spelt) == expected and _read(3 * spelt) == expected
