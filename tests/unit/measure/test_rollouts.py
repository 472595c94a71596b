"""The demo model's own rollouts as files: each planted fault is found, and a real kernel's drift is none of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kcverify import driver
from kcverify.measure.rollouts import FAULTS, Plan, _cut, write_rollouts
from kcverify.output.compare_streams import brief
from kcverify.resources import data_path

torch.set_num_threads(1)
DECLARED = (("side=trainer", "temperature=0.8"), ("temperature=0.8",))


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("rollouts")
    written = write_rollouts(folder, Path(data_path("heldout.txt")), Plan(requests=20, tokens=12))
    return {fault.name: driver.compare(str(a), str(b), *DECLARED) for fault, a, b in written}


@pytest.mark.parametrize(
    ("name", "slugs"), [("int8", []), ("temperature", ["temperature_mismatch"]), ("top_p", ["support_mismatch"])]
)
def test_each_fault_has_its_own_name(compared: dict[str, dict[str, Any]], name: str, slugs: list[str]) -> None:
    found = compared[name]
    assert [f["slug"] for f in found["findings"]] == slugs
    assert (found["drift"] is None) == bool(slugs)
    assert found["exit_code"] == (1 if slugs else 0)
    lines = brief(found)
    assert (slugs[0] if slugs else "drift: k3") in "\n".join(lines)


def test_the_fitted_ratio_is_the_temperature(compared: dict[str, dict[str, Any]]) -> None:
    evidence = compared["temperature"]["findings"][0]["evidence"]
    assert evidence["lower"] <= 0.8 <= evidence["upper"]


def test_a_cut_support_holds_the_mass_and_no_more() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    assert torch.isinf(_cut(logits, 0.8)).tolist() == [[False, False, True, True]]
    assert torch.equal(_cut(logits, 1.0), logits)
    assert len({f.name for f in FAULTS}) == len(FAULTS)
