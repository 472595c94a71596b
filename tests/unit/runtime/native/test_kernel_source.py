"""The C++ source of a plan: what is chosen, and the whole text for three contracts."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kcverify import driver
from kcverify.measure.session import load_monitor
from kcverify.resources import contracts_dir
from kcverify.runtime.native.build import LEVELS, compiler
from kcverify.runtime.native.source import FORMATS, kernel_source, select
from kcverify.runtime.rowplan import STATISTICS, RowPlan

FULL = RowPlan(frozenset(STATISTICS), ((1, False), (5, True)))


@pytest.mark.parametrize("name", ["deploy_int8", "fp8_deployment", "rl_rollout"])
def test_source_of_a_contract(name: str, golden: Callable[[str], None]) -> None:
    contract = driver.select(driver.load(contracts_dir() / f"{name}.kc"), None)
    plan = load_monitor(driver.compile_monitor(contract).text, None).PLAN
    golden(kernel_source(plan, torch.bfloat16, scaled=plan.softmax))


def test_only_what_is_needed() -> None:
    raw = kernel_source(RowPlan(frozenset({"logit_span"})), torch.float32)
    assert "exp_of(x)" not in raw and "sweep_two" not in raw and "struct Top" not in raw
    one = kernel_source(RowPlan(frozenset({"tv", "kl_reference_candidate"}), tv_limit=0.05), torch.bfloat16)
    assert "TV_LIMIT = 0.05;" in one and "k.D +=" not in one and "k.Q +=" not in one
    assert "r.unswept" in one and "chi +=" not in one
    both = kernel_source(FULL, torch.float16)
    assert "TOP_K[] = {1, 5};" in both and "TOP_ORDERED[] = {false, true};" in both and "K = 6," in both


@pytest.mark.parametrize("plan", [FULL, RowPlan(frozenset({"logit_drift"})), RowPlan(frozenset({"bc"}))])
def test_no_flag_of_ours_is_left(plan: RowPlan) -> None:
    for dtype in FORMATS:
        text = kernel_source(plan, dtype)
        assert "KC_" not in text
        assert text == kernel_source(plan, dtype)


def test_select_resolves_our_flags_and_leaves_the_others() -> None:
    text = "#if KC_A\na\n#if defined(X)\nx\n#else\ny\n#endif\n#else\nb\n#endif\n#if KC_A || KC_B\nc\n#endif\n"
    assert select(text, {"KC_A": True, "KC_B": False}) == "a\n#if defined(X)\nx\n#else\ny\n#endif\nc\n"
    assert select(text, {"KC_A": False, "KC_B": False}) == "b\n"
    with pytest.raises(KeyError):
        select("#if KC_C\n#endif\n", {})


@pytest.mark.needs("compiler")
@pytest.mark.parametrize(
    ("dtype", "scaled"), [(dtype, i % 2 == 1) for i, dtype in enumerate(FORMATS)], ids=lambda x: str(x)
)
def test_memory_and_undefined_behaviour(dtype: torch.dtype, scaled: bool, tmp_path: Path) -> None:
    """Rows at the very end of their allocation, every kind of mask and value, under both sanitizers."""
    driver_text = (Path(__file__).parents[3] / "native" / "sanitize.cpp").read_text(encoding="utf-8")
    source, program = tmp_path / "rows.cpp", tmp_path / "rows"
    source.write_text(kernel_source(FULL, dtype, scaled=scaled) + driver_text, encoding="utf-8")
    command = [c for c in compiler() if c not in ("-shared", "-O3")]
    if scaled:  # the narrower vectors too
        command = [LEVELS["AVX2"] if c in LEVELS.values() else c for c in command]
    command += [
        "-O1",
        "-g",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        str(source),
        "-o",
        str(program),
    ]
    built = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([str(program)], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.strip().endswith("rows")
