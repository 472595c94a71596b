"""Evidence of live monitors: what a store says of it is what the monitor's own report says."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from delivery_cases import NOON, TEXT, contract  # noqa: E402

from kcverify import driver  # noqa: E402
from kcverify.delivery import evidence, promotion  # noqa: E402
from kcverify.delivery.monitors import read_states, records  # noqa: E402
from kcverify.diagnostics import InputError  # noqa: E402
from kcverify.elaborate.form import digest  # noqa: E402
from kcverify.measure.session import load_monitor  # noqa: E402

MORE = TEXT.replace("runtime {", "statistical { top1: agreement(top = 1) >= 90% -> L2 }\nruntime {")
MADE = contract(MORE)
SOURCE = driver.emit_monitor(MADE)
LOGS = ("log_e_fail", "log_e_pass")


def monitor() -> Any:
    return load_monitor(SOURCE, None)


def feed(one: Any, seed: int, requests: int = 40, scale: float = 0.01) -> None:
    """Rows of noisy logits; now and then a large change, and, with the largest noise, a broken row."""
    make = torch.Generator().manual_seed(seed)
    chance = random.Random(seed)
    for i in range(requests):
        rows = chance.randint(1, 4)
        reference = torch.randn(rows, 12, generator=make)
        candidate = reference + scale * torch.randn(rows, 12, generator=make)
        if chance.random() < 0.2:
            candidate[0] += torch.randn(12, generator=make)
        if scale == 1.0 and chance.random() < 0.01:
            candidate[0, 0] = math.nan
        long = torch.tensor([chance.random() < 0.5] * rows)
        one.update(reference, candidate, request_ids=[f"{seed}-{i}"] * rows, slices={"long": long})
        one.observe("failure_rate", request_ids=[f"{seed}-{i}"], values=[chance.random() < 0.05])
        one.close([f"{seed}-{i}"])


@pytest.mark.parametrize("seed", [0, 1, 3])
@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0])
def test_records_give_the_verdicts_of_the_report(seed: int, scale: float) -> None:
    one = monitor()
    feed(one, seed, 60 * (seed + 1), scale)
    told = evidence.of_report((("r", "0"),), one.report(), MADE, digest(MADE)).cells
    counted = {c.key: c for c in evidence.of_records("s", MADE, one.evidence.requests, records(one)).cells}
    assert {c.key for c in told if c.verdict != "not_enforced"} == set(counted)
    for cell in told:
        mine = counted[cell.key]
        assert (mine.verdict, mine.requests, mine.log_e_fail, mine.log_e_pass) == (
            cell.verdict, cell.requests, cell.log_e_fail, cell.log_e_pass,
        ), cell.key  # fmt: skip


def test_workers_add_what_came_since_their_last_call(tmp_path: Path) -> None:
    whole = monitor()
    with promotion.start(str(tmp_path / "s.db"), MADE, NOON) as store:
        for worker in range(3):
            one, before, counted = monitor(), {}, 0
            for number in range(3):
                feed(one, 10 * worker + number)
                feed(whole, 10 * worker + number)
                now = records(one)
                fresh = {k: r.minus(before[k]) if k in before else r for k, r in now.items()}
                store.add(1, f"w{worker}", number, one.evidence.requests - counted, fresh)
                before, counted = now, one.evidence.requests
        requests, found = store.evidence(1)
    assert (requests, found) == (whole.evidence.requests, records(whole))


def test_state_files_merge_to_the_report_of_one_process(tmp_path: Path) -> None:
    whole = monitor()
    paths = []
    for seed in range(3):
        one = monitor()
        feed(one, seed)
        feed(whole, seed)
        paths.append(str(tmp_path / f"{seed}.state"))
        one.save(paths[-1])
    found = read_states(paths[::-1], MADE, digest(MADE))
    told = evidence.of_report((("r", "0"),), whole.report(), MADE, digest(MADE))
    assert (found.cells, found.requests) == (told.cells, told.requests)
    assert len({sha for _, sha in found.files}) == 3


def test_a_state_file_is_no_evidence_twice(tmp_path: Path) -> None:
    one = monitor()
    feed(one, 0)
    one.save(tmp_path / "first")
    feed(one, 1)
    one.save(tmp_path / "later")
    with pytest.raises(InputError, match="one and the same state"):
        read_states([str(tmp_path / "first"), str(tmp_path / "later")], MADE, digest(MADE))


def test_state_files_that_are_not_usable_are_named(tmp_path: Path) -> None:
    one = monitor()
    one.save(tmp_path / "good")
    (tmp_path / "cut").write_bytes((tmp_path / "good").read_bytes()[:-500])
    other = contract(MORE.replace("0.05", "0.04"))
    load_monitor(driver.emit_monitor(other), None).save(tmp_path / "other")
    torch.save({"format": 1, "state": {}, "progress": {}}, tmp_path / "bare")
    for name in ("cut", "other", "bare"):
        with pytest.raises(InputError) as caught:
            read_states([str(tmp_path / "good"), str(tmp_path / name)], MADE, digest(MADE))
        assert caught.value.diagnostics[0].code.slug == "evidence_invalid"
        assert name in str(caught.value)
