"""State: exact integers in tensors, checkpoints that survive a kill, names and slots that do not pile up."""

from __future__ import annotations

import copy
import math
import os
import pickle
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from monitor_streams import Example, clause, fed, state, stream

from kcverify.runtime import MonitorInputError, Rows
from kcverify.runtime.evidence import FIXED, LIMB, Evidence, fixed_point
from kcverify.runtime.ledger import Ledger
from kcverify.runtime.sequential import Wealth

HERE = Path(__file__).parent


def fields(evidence: Evidence) -> list[dict[str, Any]]:
    return [dict(vars(record)) for record in evidence.records]


def test_evidence_as_limbs_is_exact_and_additive() -> None:
    plan = Example().layout
    one, two = fed(stream(9)).settled_evidence(), fed(stream(7, seed=3, size=0.4)).settled_evidence()
    one.records[0].total, two.records[0].total = 2**70 + 3, -(2**71) - 5
    sums, whole = Evidence(plan), one.copy()
    whole.merge(two)
    sums.unpack(one.packed() + two.packed())
    assert fields(sums) == fields(whole) and sums.requests == 16
    assert all(vars(Wealth()).keys() == f.keys() for f in fields(sums))


def test_fixed_point_limbs_give_the_number_back() -> None:
    values = torch.tensor([0.0, 1.5, -1.5, 2.0**-36, -(2.0**-36), 1e9, -1e9, math.inf, math.nan], dtype=torch.float64)
    low, high, broken = fixed_point(values)
    found = [(h << LIMB) + n for n, h in zip(low.tolist(), high.tolist(), strict=True)]
    assert found == [0, 3 * FIXED // 2, -3 * FIXED // 2, 1, -1, FIXED << 15, -(FIXED << 15), 0, 0]
    assert broken.tolist() == [False] * 7 + [True] * 2 and int(low.min()) >= 0


def rows(count: int, **values: float) -> Rows:
    names = (
        "logit_span", "logit_drift", "tv", "kl_candidate_reference", "ratio_min", "ratio_max", "agreement_1",
        "token_log_ratio",
    )  # fmt: skip
    table = {n: torch.full((count,), values.get(n, 0.0), dtype=torch.float64) for n in names}
    none = torch.zeros(count, dtype=torch.int64)
    return Rows(table, none > 0, none, none)


def test_a_long_request_of_large_values_does_not_wrap_around() -> None:
    """One int64 for the sum overflowed past 2^27 nats and the clause on the mean saw a value of 0."""
    monitor = Example()
    for _ in range(5):
        monitor.count(rows(1000, kl_candidate_reference=30_000.0), request_ids=[7] * 1000)
    found = clause(monitor.report(), "kl")["evidence"]
    assert found["observed"] == 30_000.0 and found["requests"] == 1
    ratio = Example()
    for _ in range(5):
        ratio.count(rows(1000, token_log_ratio=30_000.0), request_ids=[7] * 1000)
    assert clause(ratio.report(), "seq")["max"]["value"] == 0.0


def test_slots_of_closed_requests_are_used_again() -> None:
    monitor, whole = Example(), Example()
    for index, update in enumerate(stream(40, seed=5)):
        monitor.update(**update)
        whole.update(**update)
        if index >= 2:
            monitor.close([f"request-{index - 2}"])
    assert monitor.ledger.sums.shape[0] == 64 and len(monitor.ledger.slots) == 2
    assert max(monitor.ledger.slots.values()) < 3
    assert state(monitor) == state(whole)


def test_names_of_closed_requests_are_kept_for_witnesses_only() -> None:
    monitor = Example()
    for index, update in enumerate(stream(60, 2)):
        monitor.update(**update)
        monitor.close([f"request-{index}"])
    assert len(monitor.ledger.names) <= len(monitor.layout.cells)
    assert str(clause(monitor.report(), "drift")["max"]["request"]).startswith("request-")


def test_rows_are_numbered_through_merges_by_their_positions() -> None:
    updates = stream(6, 6)
    updates[4]["candidate_logits"][5, 3] += 4.0
    halves = [Example(), Example()]
    for part, monitor in enumerate(halves):
        keep = slice(3 * part, 3 * part + 3)
        for u in updates:
            monitor.update(
                u["reference_logits"][keep], u["candidate_logits"][keep], request_ids=u["request_ids"][keep],
                sampled_ids=u["sampled_ids"][keep], slices={k: m[keep] for k, m in u["slices"].items()},
                positions=torch.arange(6)[keep],
            )  # fmt: skip
    halves[0].merge(halves[1])
    assert clause(halves[0].report(), "hard")["max"]["row"] == 5
    assert state(halves[0]) == state(fed(updates))


def test_rows_are_numbered_on_after_a_checkpoint(tmp_path: Path) -> None:
    monitor = Example()
    z = torch.zeros(4, 8)
    monitor.update(z, z, request_ids=["a", "b", "a", "a"])
    monitor.save(tmp_path / "state.pt")
    resumed = Example()
    resumed.load(tmp_path / "state.pt")
    w = z.clone()
    w[3, 2] = 5.0
    resumed.update(z, w, request_ids=["b", "a", "a", "b"])
    worst = clause(resumed.report(), "hard")["max"]
    assert (worst["request"], worst["row"], worst["token"]) == ("b", 2, 2)


@pytest.mark.parametrize(
    ("slug", "positions"),
    [("shape_invalid", torch.zeros(2, dtype=torch.int64)), ("option_invalid", torch.zeros(3))],
)
def test_bad_positions_are_refused(slug: str, positions: torch.Tensor) -> None:
    z, monitor = torch.zeros(3, 4), Example()
    with pytest.raises(MonitorInputError) as caught:
        monitor.update(z, z, request_ids=[1, 2, 3], positions=positions)
    assert caught.value.slug == slug and state(monitor) == state(Example())


def test_weights_only_reads_the_state(tmp_path: Path) -> None:
    monitor = fed(stream(8))
    monitor.close(["request-1"])
    torch.save(monitor.state_dict(), tmp_path / "plain.pt")
    resumed = Example()
    resumed.load_state_dict(torch.load(tmp_path / "plain.pt", weights_only=True))
    assert state(resumed) == state(monitor)


def test_state_inside_another_module_comes_along() -> None:
    outer, again = torch.nn.ModuleDict({"watch": fed(stream(5))}), torch.nn.ModuleDict({"watch": Example()})
    again.load_state_dict(outer.state_dict())
    assert state(again["watch"]) == state(outer["watch"])


def test_state_of_another_contract_or_temperature_changes_nothing() -> None:
    class Other(Example):
        DIGEST = "e"

    monitor = fed(stream(5))
    before = state(monitor)
    for other, word in ((Other(), "contract"), (Example(0.5), "temperature")):
        with pytest.raises(MonitorInputError, match=word) as caught:
            monitor.load_state_dict(other.state_dict())
        assert caught.value.slug == "option_invalid" and state(monitor) == before


@pytest.mark.parametrize("damage", [b"", b"junk", None])
def test_a_file_that_is_no_state_is_refused(tmp_path: Path, damage: bytes | None) -> None:
    path = tmp_path / "state.pt"
    fed(stream(3)).save(path)
    path.write_bytes(path.read_bytes()[:-200] if damage is None else damage)
    monitor = Example()
    with pytest.raises(MonitorInputError, match="cannot be read") as caught:
        monitor.load(path)
    assert caught.value.slug == "option_invalid" and state(monitor) == state(Example())
    torch.save({"weights": torch.zeros(2)}, path)
    with pytest.raises(MonitorInputError, match="no monitor state"):
        monitor.load(path)
    with pytest.raises(MonitorInputError, match="cannot be read"):
        monitor.load(tmp_path / "missing.pt")


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    monitor = fed(stream(3))
    monitor.save(path, {"batch": 3})
    with pytest.raises((AttributeError, pickle.PicklingError, TypeError)):
        monitor.save(path, {"batch": lambda: None})
    assert Example().load(path) == {"batch": 3} and [p.name for p in tmp_path.iterdir()] == ["state.pt"]


def test_copies_are_independent() -> None:
    monitor = fed(stream(6))
    before = state(monitor)
    copies = [copy.deepcopy(monitor), pickle.loads(pickle.dumps(monitor))]
    for other in copies:
        assert state(other) == before
        other.update(**stream(1, seed=9)[0])
    empty = monitor.fresh()
    assert state(empty) == state(Example()) and state(monitor) == before
    empty.update(**stream(1)[0])
    assert state(monitor) == before


def test_a_state_with_the_wrong_shape_is_refused() -> None:
    ledger = Ledger(3)
    with pytest.raises(MonitorInputError, match="open requests"):
        ledger.load({"keys": [1, 2], "names": {}, "sums": torch.zeros(1, 3, dtype=torch.int64)})
    evidence = Evidence(Example().layout)
    with pytest.raises(MonitorInputError, match="shape"):
        evidence.load({"records": torch.zeros(2, 5, dtype=torch.int64), "worst": []})


CHILD = """
import os, sys, torch
from pathlib import Path
from monitor_streams import Example, state, stream

torch.set_num_threads(1)
path, report = Path(sys.argv[1]), Path(sys.argv[2])
monitor, updates = Example(), stream(24)
done = monitor.load(path)["batches"] if path.exists() else 0
print("start", done, flush=True)
for index in range(done, len(updates)):
    monitor.update(**updates[index])
    if index % 3 == 2:
        monitor.close([f"request-{index - 1}"])
    monitor.save(path, {"batches": index + 1})
    print("saved", index + 1, flush=True)
report.write_text(state(monitor))
"""


def run(tmp_path: Path, kill_after: int | None) -> tuple[int, int, int]:
    """First batch of the run, last batch that it told of, exit code; killed once it told of `kill_after` batches."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])}
    command = [sys.executable, "-c", CHILD, str(tmp_path / "state.pt"), str(tmp_path / "report.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        start, last = int(child.stdout.readline().split()[1]), 0
        for line in child.stdout:
            last = int(line.split()[1])
            if kill_after is not None and last - start >= kill_after:
                child.send_signal(signal.SIGKILL)
                break
        child.stdout.read()
        return start, last, child.wait()


def test_killed_runs_end_with_the_report_of_one_that_was_not(tmp_path: Path) -> None:
    """Two real kills, wherever they hit: between batches, in an update or in the middle of a save."""
    at = 0
    for batches in (5, 4):
        start, told, code = run(tmp_path, batches)
        assert code == -signal.SIGKILL and start >= at and told == start + batches
        at = told
        assert not (tmp_path / "report.json").exists()
    start, _, code = run(tmp_path, None)
    assert code == 0 and 9 <= start < 24
    assert (tmp_path / "report.json").read_text() == state(fed(stream(24)))


def test_a_change_of_type_rounds_nothing() -> None:
    monitor = fed(stream(6))
    before = state(monitor)
    torch.nn.ModuleDict({"model": torch.nn.Linear(2, 2), "watch": monitor}).half()
    assert state(monitor) == before and monitor.extremes.dtype == torch.float64
    assert state(monitor.to(torch.bfloat16)) == before


@pytest.mark.parametrize("where", [0.2, 0.4, 0.5, 0.6, 0.8])
def test_a_damaged_file_is_refused_and_changes_nothing(tmp_path: Path, where: float) -> None:
    path = tmp_path / "state"
    fed(stream(9)).save(path)
    content = bytearray(path.read_bytes())
    content[int(where * len(content))] ^= 4
    path.write_bytes(content)
    monitor = fed(stream(3))
    before = monitor.report()
    with pytest.raises(MonitorInputError, match="cannot be read"):
        monitor.load(path)
    assert monitor.report() == before


@pytest.mark.parametrize("part", ["sums", "places", "_extra_state", "ledger", "float"])
def test_a_state_that_lacks_a_part_changes_nothing(tmp_path: Path, part: str) -> None:
    path = tmp_path / "state"
    fed(stream(9)).save(path)
    found = torch.load(path, weights_only=True)
    state = found["state"]
    if part == "float":
        state["sums"] = state["sums"].double()
    elif part == "ledger":
        del state["_extra_state"]["ledger"]
    else:
        del state[part]
    torch.save(found, path)
    monitor = fed(stream(3))
    before = monitor.report()
    with pytest.raises(MonitorInputError, match="state"):
        monitor.load(path)
    assert monitor.report() == before


def test_progress_that_could_not_be_read_back_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    fed(stream(3)).save(path, {"batch": 1})
    with pytest.raises(MonitorInputError, match="progress"):
        fed(stream(4)).save(path, {"batch": object()})
    assert Example().load(path) == {"batch": 1} and [p.name for p in tmp_path.iterdir()] == ["state"]


def test_exact_values_and_bounds_do_not_mix_through_a_file(tmp_path: Path) -> None:
    class Bounded(Example):
        PLAN = replace(Example.PLAN, tv_limit=0.01)

    Bounded().save(tmp_path / "state")
    with pytest.raises(MonitorInputError, match="exact"):
        Bounded(exact=True).load(tmp_path / "state")


def test_inference_mode_may_come_and_go() -> None:
    with torch.inference_mode():
        monitor = fed(stream(3))
    z = torch.zeros(2, 64)
    monitor.update(z, z, request_ids=["x", "y"])
    with torch.inference_mode():
        monitor.update(z + 1, z + 1, request_ids=["x", "z"])
    monitor.close({"x", "y"})
    other = Example()
    other.merge(monitor)
    assert other.report() == monitor.report()


def test_threads_share_a_monitor() -> None:
    one, many = Example(), Example()
    batches = [(torch.randn(40, 64), f"r{index}") for index in range(24)]

    def feed(monitor: Example, z: torch.Tensor, name: str) -> None:
        monitor.update(z, z + 0.01 * z.roll(1, 0), request_ids=[name] * 40)
        monitor.close([name])

    for z, name in batches:
        feed(one, z, name)
    with ThreadPoolExecutor(4) as pool:
        for job in [pool.submit(feed, many, z, name) for z, name in batches]:
            job.result()
    assert many.report() == one.report()
    with pytest.raises(MonitorInputError, match="once"):
        many.merge(many)


def test_a_state_is_added_once(tmp_path: Path) -> None:
    """However it comes back: the monitor itself, a copy, a file, inside another state, or the result of a sync."""
    one, whole = fed(stream(4)), Example()
    one.save(tmp_path / "state")
    whole.merge(one)
    before = state(whole)
    loaded, bundle = Example(), Example()
    loaded.load(tmp_path / "state")
    bundle.merge(loaded)
    loaded.update(**stream(1, seed=9)[0])
    for again in (one, copy.deepcopy(one), pickle.loads(pickle.dumps(one)), loaded, bundle, one.sync()):
        with pytest.raises(MonitorInputError, match="one and the same state"):
            whole.merge(again)
        with pytest.raises(MonitorInputError, match="one and the same state"):
            again.merge(whole)
    assert state(whole) == before


def test_copies_of_an_empty_state_and_what_comes_after_a_reset_add_up() -> None:
    template, updates = Example(), stream(6)
    workers = [copy.deepcopy(template) for _ in range(2)]
    whole = Example()
    for half in (updates[:3], updates[3:]):
        for worker, given in zip(workers, (half[:1], half[1:]), strict=True):
            for update in given:
                worker.update(**update)
            whole.merge(worker)
            worker.reset()
    assert state(whole) == state(fed(updates))


def test_a_state_without_marks_of_an_older_version_loads() -> None:
    old = fed(stream(2)).state_dict()
    del old["_extra_state"]["origins"]
    monitor = Example()
    monitor.load_state_dict(old)
    assert state(monitor) == state(fed(stream(2)))
