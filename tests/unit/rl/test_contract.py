"""From a contract to its masks: which clauses become limits, on which side they are rounded, what a batch is told."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from kcverify import driver
from kcverify.cli import main
from kcverify.diagnostics import InputError
from kcverify.emit.masks import emit_masks, plan_masks
from kcverify.enclosure import ball, precision
from kcverify.rl.contract import masks_of
from kcverify.source import Source

torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parents[3]
TEXT = """contract small version "1.0"
pair {{
  reference trainer = "float32"
  candidate rollout = "int8"
}}
assume {{
  temperature in [0.5, 1.0]
  sampler     = full_softmax
  horizon     <= 8 tokens
  reward      in [0, 1]
  advantage   in [-2, 2]
  score_norm  <= 4
}}
slice hard = tag("hard")
numerical {{
{clauses}
}}
guarantee {{
{claims}
}}
"""


def contract(*clauses: str, claims: tuple[str, ...] = ("safe: reward_drift <= 1",)):
    text = TEXT.format(
        clauses="\n".join(f"{c} -> L2" for c in clauses or ("d: logit_span <= 9",)), claims="\n".join(claims)
    )
    loaded = driver.load_source(Source("small.kc", text))
    assert not loaded.report.errors, [d.message for d in loaded.report.errors]
    return loaded.contracts[0]


def rules(*clauses: str, claims: tuple[str, ...] = ("safe: reward_drift <= 1",)):
    return {rule.clause: rule for rule in masks_of(contract(*clauses, claims=claims)).rules}


def pair(ratio: list[list[float]]):
    rollout = torch.full((len(ratio), len(ratio[0])), -2.0, dtype=torch.float64)
    return rollout + torch.tensor(ratio, dtype=torch.float64).log(), rollout


@pytest.mark.parametrize(
    ("clause", "level", "low", "high"),
    [
        ("r: importance_ratio in [0.95, 1.05]", "token", "0.95", "1.05"),
        ("r: token_ratio in [0.5, 5]", "token", "0.5", "5"),
        ("r: token_inverse_ratio in [0.5, 5]", "token", "0.2", "2"),
        ("r: sequence_ratio in [0.8, 1.25]", "sequence", "0.8", "1.25"),
        ("r: geometric_ratio in [0.99, 1.01]", "geometric", "0.99", "1.01"),
    ],
)
def test_ratio_clauses_become_windows_rounded_inward(clause, level, low, high):
    rule = rules(clause)["r"]
    assert rule.level == level
    with precision(300):
        exact_low, exact_high = (ball(Fraction(x)).log() for x in (low, high))
        assert ball(Fraction(rule.log_low)) > exact_low and ball(Fraction(rule.log_high)) < exact_high
    assert rule.log_low == pytest.approx(math.log(float(low)), rel=1e-14)
    assert rule.log_high == pytest.approx(math.log(float(high)), rel=1e-14)


def test_absolute_and_clip_clauses():
    found = rules(
        "a: token_log_ratio <= 0.1",
        "b: log_ratio <= 0.2 except 1%",
        claims=("c: clip_share(clip = 0.2) <= 50%",),
    )
    assert Fraction(found["a"].log_high) <= Fraction(1, 10) and found["a"].log_low == -found["a"].log_high
    assert found["b"].allowed == 0.01
    assert found["c"].log_low == pytest.approx(math.log(0.9)) and found["c"].log_high == pytest.approx(math.log(1.1))


def test_outcome_claims_become_budgets_rounded_down():
    found = rules(
        claims=("g: pg_bias <= 1.6", "r: reward_drift <= 0.3", "s: tv_seq <= 0.1", "p: pass_rate_drift <= 0.2")
    )
    for name, exact in (("g", "1/10"), ("r", "3/10"), ("s", "1/10"), ("p", "1/5")):
        assert found[name].level == "prefix" and Fraction(found[name].budget) <= Fraction(exact)
        assert found[name].budget == pytest.approx(float(Fraction(exact)), rel=1e-15)


def test_what_no_mask_enforces_is_listed_with_its_reason():
    made = masks_of(
        contract(
            "  span: logit_span <= 0.5",
            "  mean: mean tv <= 0.1",
            "  band: token_log_ratio <= 0.1 when temperature in [0.5, 1]",
            "  scaled: token_log_ratio <= 0.1 * temperature",
        )
    )
    assert [name for name, _ in made.not_enforced] == ["span", "mean", "band", "scaled"]
    reasons = dict(made.not_enforced)
    assert "logit_span is nothing" in reasons["span"] and "not a mean" in reasons["mean"]
    assert "band of temperature" in reasons["band"] and "depends on an assumption" in reasons["scaled"]
    assert [rule.clause for rule in made.rules] == ["safe"]
    bare = replace(contract(claims=("g: pg_bias <= 1",)))
    bare = replace(bare, assumptions=replace(bare.assumptions, score_norm=None))
    assert "needs the assumptions" in dict(plan_masks(bare).not_enforced)["g"]
    with pytest.raises(InputError, match="no number yet"):
        masks_of(contract("drift: logit_span <= ?"))


def test_a_batch_is_masked_and_each_clause_counted():
    made = masks_of(contract("  a: importance_ratio in [0.9, 1.1] except 20%", "  s: sequence_ratio in [0.8, 1.25]"))
    trainer, rollout = pair([[1.05, 0.95, 1.0, 1.2, 1.0], [1.0, 1.0, 1.0, 1.0, 1.0]])
    weights, report = made(trainer, rollout, torch.ones(2, 5), upper=torch.full((2, 5), 0.01), prefix_only=True)
    assert weights.tolist() == [[1, 1, 1, 0, 1], [1] * 5]
    assert report.details["clauses"]["a"] == {"units": 10, "dropped": 0.1, "allowed": 0.2, "exceeded": False}
    assert report.details["clauses"]["s"]["dropped"] == 0 and not report.mask_hides_failure and report.ok
    trainer, rollout = pair([[1.2, 1.2, 1.0, 1.2, 1.0], [1.0, 1.0, 1.0, 1.0, 1.0]])
    weights, report = made(trainer, rollout, torch.ones(2, 5), upper=torch.full((2, 5), 0.01), prefix_only=True)
    assert weights.tolist() == [[0] * 5, [1] * 5], "the response's ratio is 1.728"
    assert report.mask_hides_failure and report.details["clauses"]["s"]["exceeded"] and not report.ok
    assert sum(text.startswith("mask_hides_failure") for text in report.findings) == 2


def test_missing_inputs_are_findings_never_passes():
    made = masks_of(
        contract("  a: token_ratio in [0.9, 1.1] on hard", "  t: tv <= 0.05", claims=("s: tv_seq <= 0.25",))
    )
    trainer, rollout = pair([[1.5, 1.0, 1.0], [1.5, 1.0, 1.0]])
    weights, report = made(trainer, rollout, torch.ones(2, 3))
    assert (weights == 1).all() and not report.ok
    assert [re.findall(r"clause `(\w+)`", text)[0] for text in report.findings] == ["a", "t", "s"]
    upper = torch.tensor([[0.01, 0.2, 0.01], [0.01, 0.01, 0.25]])
    weights, report = made(
        trainer, rollout, torch.ones(2, 3), slices={"hard": torch.tensor([True, False])}, upper=upper, prefix_only=True
    )
    assert weights.tolist() == [[0, 0, 1], [1, 1, 0]]
    sampled = made(trainer, rollout, torch.ones(2, 3), slices={"hard": torch.ones(2)}, upper=upper)[1]
    assert any("not certified" in text for text in sampled.findings)


def test_broken_tokens_break_every_clause():
    made = masks_of(contract("  a: token_ratio in [0.9, 1.1] except 10%"))
    trainer, rollout = pair([[1.0, math.nan, 1.0]])
    weights, report = made(trainer, rollout, torch.ones(1, 3), upper=torch.zeros(1, 3), prefix_only=True)
    assert weights[0].tolist() == [1, 0, 0], "the stopped prefix ends at the token without a bound"
    assert report.details["clauses"]["a"]["exceeded"] and report.broken == 1


def test_the_generated_module_is_the_object(tmp_path, monkeypatch):
    """`kcverify compile --rl` writes a module that imports kcverify.rl only and gives the same masks."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["compile", str(ROOT / "contracts" / "reward_only.kc"), "-o", "monitor.py", "--rl", "rl_masks.py"])
    assert stop.value.code == 0
    assert "ContractMasks(" in (tmp_path / "rl_masks.py").read_text(encoding="utf-8")
    text = emit_masks(contract("  a: token_ratio in [0.9, 1.1] on hard", "  b: tv <= 0.05"), digest="d", version="1")
    scope: dict = {}
    exec(text, scope)
    made = masks_of(contract("  a: token_ratio in [0.9, 1.1] on hard", "  b: tv <= 0.05"))
    assert scope["MASKS"].rules == made.rules and scope["MASKS"].not_enforced == made.not_enforced
    trainer, rollout = pair([[1.0, 1.5]])
    more = {"slices": {"hard": torch.ones(1)}, "upper": torch.zeros(1, 2)}
    weights, report = scope["masks"](trainer, rollout, torch.ones(1, 2), **more)
    assert weights.tolist() == [[1, 0]] and report.method == "contract small"
    assert text.splitlines()[5] == "from kcverify.rl.enforce import ContractMasks, Rule"
    code = "import sys, kcverify.rl; print({m.split('.')[0] for m in sys.modules} & {'jinja2', 'z3', 'lark', 'typer', 'flint'})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout.strip() == "set()"
