"""The Triton kernels: in the interpreter against the oracle, and compiled for sm_90 without a GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton_cases

from kcverify.runtime.gpu import launch
from kcverify.runtime.rowplan import RowPlan
from kcverify.runtime.rows import MonitorInputError, row_statistics

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.needs("triton")
MOST = {"plain": 60.0, "masked": 100.0, "second": 45.0}
"""Machine instructions a pair of logits; the full set, plain and second sweep together, has to stay below 80."""


def run(arguments: list[str], **environment: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, *arguments], env=os.environ | {"OMP_NUM_THREADS": "1"} | environment, capture_output=True,
        text=True, timeout=500, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_every_case_in_the_interpreter() -> None:
    """One process for all cases: Triton reads TRITON_INTERPRET when it is loaded, which takes seconds."""
    found = run(["tests/differential/triton_cases.py"], TRITON_INTERPRET="1", KCVERIFY_BACKEND="")
    assert list(found) == [name for name, _ in triton_cases.cases()]
    wrong = [f"{name}: {text}" for name, text in found.items() if text]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.needs("nvdisasm")
def test_compiles_for_sm90_within_the_instruction_budget(tmp_path: Path) -> None:
    found = run(["benchmarks/sass.py", "--json"], TRITON_CACHE_DIR=str(tmp_path))
    assert len(found) == 4  # three plans in bfloat16, the full set in float32
    for name, columns in found.items():
        assert isinstance(columns, dict)
        for what, column in columns.items():
            assert 0 < column["a_pair"] <= MOST[what], (name, what, column)
            registers, stack = (int(n) for n in re.findall(r"\d+", column["usage"]))
            assert registers <= 128 and stack <= 32, (name, what, column)
        assert columns["plain"]["a_pair"] + columns.get("second", {"a_pair": 0})["a_pair"] < 80, name
        assert ("second" in columns) == ("one sweep" not in name)
    one, full = found["bf16, one sweep: KL, log ratio"], found["bf16, full set"]
    assert isinstance(one, dict) and isinstance(full, dict)
    assert one["plain"]["a_pair"] < full["plain"]["a_pair"]


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET", "") != "", reason="the interpreter is on")
def test_not_available_on_the_host_without_the_interpreter() -> None:
    z = torch.zeros(1, 8)
    with pytest.raises(MonitorInputError, match="triton cannot run here: it runs on CUDA"):
        row_statistics(z, z, RowPlan(frozenset({"tv"})), backend="triton")


@pytest.mark.parametrize(
    ("rows", "width", "programs", "parts", "length"),
    [
        (4096, 151_936, 528, 1, 151_936 + 1664),
        (64, 151_936, 528, 9, 9 * 2048),
        (1, 151_936, 528, 75, 2048),
        (1, 1, 528, 1, 2048),
        (3, 5000, 4, 2, 4096),
        (0, 5000, 4, 3, 2048),
    ],
)
def test_few_rows_are_split_into_stretches_that_cover_the_vocabulary(
    rows: int, width: int, programs: int, parts: int, length: int
) -> None:
    assert launch.stretches(rows, width, 2048, programs) == (parts, length)
    assert (parts - 1) * length < width <= parts * length


def test_no_sum_is_kept_that_no_clause_needs() -> None:
    def on(*names: str) -> set[str]:
        plan = RowPlan(frozenset(names), ((1, False),) if "logit_span" in names else ())
        both = launch.flags(plan, exact=False, scaled=False) | launch.second_flags(plan)
        return {name for name, value in both.items() if value}

    assert on("logit_span") == {"TOP"}
    assert on("kl_reference_candidate", "log_ratio") == {"SOFTMAX"}
    assert on("kl_candidate_reference") == {"SOFTMAX", "REVERSE"}
    assert on("entropy_candidate") == {"SOFTMAX", "ENTROPY"}
    assert on("tv", "chi2", "bc") == {"SOFTMAX", "TV", "CHI2", "BC"}
