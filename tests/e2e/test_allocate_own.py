"""`allocate` and `map` on a torch module of the user's own: what is chosen is what a swap by hand gives, and the best there is."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("scipy")

from kcverify.cli import main  # noqa: E402
from kcverify.measure.kernels import BY_NAME, multiply  # noqa: E402
from kcverify.measure.sides import open_side  # noqa: E402

CONTRACT = """contract budget
assume { temperature = 1; sampler = full_softmax; horizon <= 1 tokens; reward in [0, 1] }
numerical { drift: logit_span <= 1.2 except 5% -> L2 }
"""
SMALL = """import torch
from torch import nn


def small():
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(33, 33), nn.Tanh())]
    return nn.Sequential(nn.Embedding(64, 33), *layers, nn.Linear(33, 64))
"""
LLAMA = """import torch
from transformers import LlamaConfig, LlamaForCausalLM


def tiny():
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, initializer_range=0.3, tie_word_embeddings=True, **sizes))


def compiled():
    return torch.compile(tiny())
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    (tmp_path / "budget.kc").write_text(CONTRACT, encoding="utf-8")
    np.save(tmp_path / "ids.npy", np.random.default_rng(0).integers(0, 64, (176, 8)))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    torch.set_num_threads(before)


def bring(folder, monkeypatch, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, name, raising=False)


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return stop.value.code, out, err


def allocated(capsys, model: str, *more: str) -> dict:
    given = ("--data", "ids.npy", "--calibration", "16", "--points", "1", "--formats", "float32,int8,int4")
    code, out, _ = run(capsys, "allocate", "budget.kc", "--model", model, *given, *more, "--format", "json")
    answer = json.loads(out)
    assert (code, answer["verdict"]) == (0, "pass")
    passing = [u["cost"] for u in answer["uniforms"] if u["verdict"] == "pass"]
    assert answer["chosen"]["cost"] <= min(passing)
    return answer


def _span(module, form_of, ids) -> float:
    """The 95 % quantile of the logit span of a Sequential, computed layer by layer."""

    def logits(form):
        x = module[0](ids)
        for i, layer in enumerate(module[1:], 1):
            if isinstance(layer, torch.nn.Linear):
                kernel = BY_NAME[form(i)]
                x = multiply(kernel, x, kernel.pack(layer.weight)) + layer.bias
            else:
                x = layer(x)
        return x

    d = (logits(form_of) - logits(lambda i: "float32")).double()
    rows = (d.amax(-1) - d.amin(-1)).flatten().sort(descending=True).values
    return float(rows[int(0.05 * len(rows))])


def test_the_assignment_is_measured_as_a_swap_by_hand_and_beats_the_uniform_formats(capsys, folder, monkeypatch):
    bring(folder, monkeypatch, "own_small", SMALL)
    (folder / "budget.kc").write_text(CONTRACT.replace("1.2", "0.06"), encoding="utf-8")
    answer = allocated(capsys, "own_small:small")
    form = {u["name"].removeprefix("head (").removesuffix(".weight)"): u["format"] for u in answer["units"]}
    assert set(form) == {"1", "3", "5", "7"}
    assert len(set(form.values())) > 1
    assert answer["gain"]["saving"] > 0
    ids = torch.from_numpy(np.load("ids.npy")[16:])
    with torch.no_grad():
        mine = _span(sys.modules["own_small"].small(), lambda i: form[str(i)], ids)
    assert answer["chosen"]["figures"][0] == pytest.approx(mine, rel=1e-3)
    assert any("4 matrices of linear layers" in note for note in answer["notes"])


def test_a_model_of_transformers(capsys, folder, monkeypatch):
    pytest.importorskip("transformers")
    bring(folder, monkeypatch, "own_llama", LLAMA)
    np.save("ids.npy", np.load("ids.npy")[:, :4])
    answer = allocated(capsys, "own_llama:tiny", "--level", "block")
    assert [u["name"] for u in answer["units"]] == ["model.layers.0", "model.layers.1", "head"]
    assert any("the head shares its weight with the embedding model.embed_tokens" in note for note in answer["notes"])
    ids = torch.arange(8).reshape(1, 8)
    plain, compiled = (open_side(f"own_llama:{function}:int4").logits(ids) for function in ("tiny", "compiled"))
    assert torch.equal(plain, compiled)


def test_a_map_of_it_has_its_layers(capsys, folder, monkeypatch):
    bring(folder, monkeypatch, "own_small", SMALL)
    options = ("--kernel", "int8", "--kernel", "fp8", "--limit", "20", "--data", "ids.npy", "--format", "json")
    code, out, _ = run(capsys, "map", "--model", "own_small:small", *options)
    answer = json.loads(out)
    assert code == 0
    (blocks,) = (cut for cut in answer["cuts"] if cut["name"] == "layer_block")
    assert [cell["name"] for cell in blocks["cells"]] == ["1", "3", "5", "head"]
    assert all(0 < cell["means"]["int8"] < cell["means"]["fp8"] for cell in blocks["cells"])
    assert any("stay in the reference's type" in note for note in answer["notes"])


def test_measure_takes_it_apart_by_layer(capsys, folder, monkeypatch):
    bring(folder, monkeypatch, "own_small", SMALL)
    sides = ("--reference", "own_small:small:float32", "--candidate", "own_small:small:int8")
    options = ("--data", "ids.npy", "--limit", "20", "--by-layer", "--format", "json")
    _, out, _ = run(capsys, "measure", "budget.kc", *sides, *options)
    layers = json.loads(out)["by_layer"]
    assert len(layers["levels"][2]["units"]) == 4
    assert layers["whole"]["kl_mean"] > 0


def test_what_is_needed_is_said(capsys, folder, monkeypatch):
    bring(folder, monkeypatch, "own_small", SMALL)
    code, _, err = run(capsys, "map", "--model", "own_small:small")
    assert code == 2
    assert "KC418" in err
    assert "brings a `tokenizer`" in " ".join(err.split())
    code, _, err = run(capsys, "allocate", "budget.kc", "--model", "own_small:large")
    assert (code, "KC411" in err) == (2, True)
    code, _, err = run(capsys, "allocate", "budget.kc", "--model", "mine")
    assert (code, "one of demo, smollm2, module:function" in err) == (2, True)
