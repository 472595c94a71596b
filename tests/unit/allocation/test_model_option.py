"""What `--model` takes is said where something else is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcverify import driver
from kcverify.allocation.mapping import MapOptions, drift_map
from kcverify.conformance.chain import ChainOptions, chain
from kcverify.diagnostics import Diagnostic, InputError
from kcverify.forms.files import read_source

CONTRACTS = Path(__file__).parents[3] / "contracts"


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_of_logits.py").write_text("def logits(ids, *more, scale=1):\n    return ids\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)


def mapped(model: str) -> Diagnostic:
    with pytest.raises(InputError) as caught:
        drift_map(None, MapOptions(model, kernels=("int8",)))
    [found] = caught.value.diagnostics
    return found


def test_a_function_of_logits_is_told_what_a_model_is() -> None:
    found = mapped("mine_of_logits:logits")
    assert found.code.slug == "module_unusable" and "it takes `ids`" in found.message
    assert "torch.nn.Module" in found.code.why


def test_a_name_that_is_no_model_lists_what_is() -> None:
    found = mapped("nothing")
    assert found.hint == "one of demo, smollm2, module:function"


def test_the_chain_says_why_it_takes_shipped_models_alone() -> None:
    path = str(CONTRACTS / "kernels" / "accumulator_bf16.kc")
    [kernel] = driver.load_source(read_source(path)).kernels
    [contract] = driver.load(CONTRACTS / "reward_only.kc")
    with pytest.raises(InputError) as caught:
        chain(kernel, path, contract, None, ChainOptions("mine_of_logits:logits"))
    [found] = caught.value.diagnostics
    assert "the norm before its head" in found.message and found.hint == "one of demo, smollm2"
