"""A torch module of the user's own: its linear layers multiply as a format does, and everything else is left alone."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from kcverify.diagnostics import InputError
from kcverify.measure.kernels import KERNELS, multiply
from kcverify.measure.layers import LEVELS, swapped, units_of
from kcverify.measure.sides import KernelSide, Models, open_side

SOURCE = '''
import torch
import torch.nn.functional as F
from torch import nn


class Words:
    def encode(self, text):
        return [min(ord(letter), 63) for letter in text]

    def decode(self, ids):
        return "".join(map(chr, ids))


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm, self.qkv_attn, self.out_attn = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim + 1), nn.GELU(), nn.Linear(2 * dim + 1, dim))

    def forward(self, x):
        q, k, v = self.qkv_attn(self.norm(x)).chunk(3, -1)
        x = x + self.out_attn(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.mlp(x)


class Small(nn.Module):
    """Odd sizes, dropout, a tied head, a projection that is used twice, two layers of one weight, one that is never used."""

    def __init__(self, dim=33, words=64):
        super().__init__()
        self.embedding, self.drop = nn.Embedding(words, dim), nn.Dropout(0.5)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(2))
        self.first, self.second, self.spare = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.head = nn.Linear(dim, words, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        x = self.drop(self.embedding(ids))
        for block in self.blocks:
            x = block(x)
        return self.head(self.second(self.first(self.first(x))))


class Answer:
    def __init__(self, logits):
        self.logits = logits


class Wrapped(nn.Module):
    """Small, with something else done to what it takes or gives."""

    def __init__(self, after=lambda module, logits: logits):
        super().__init__()
        self.inner, self.after = small(), after

    def forward(self, ids):
        return self.after(self, self.inner(ids))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(64, 16), nn.Linear(16, 64)
        self.inside = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.inside(self.embedding(ids), mask, is_causal=True))


def small():
    torch.manual_seed(0)
    return Small()


def encoder():
    torch.manual_seed(0)
    return Encoder()


def half():
    return small().to(torch.bfloat16)


def own_answer():
    return Wrapped(lambda module, logits: Answer(logits))


def _written(module, logits):
    if not hasattr(module, "kept") or module.kept.shape != logits.shape:
        module.kept = torch.empty_like(logits)
    return module.kept.copy_(logits)


def one_buffer():
    return Wrapped(_written)


def with_words():
    module = small()
    module.tokenizer = Words()
    return module


def strange_words():
    module = small()
    module.tokenizer = Words()
    module.tokenizer.encode = lambda text: [64]
    return module


def broken_words():
    module = small()
    module.tokenizer = Words()
    module.tokenizer.encode = lambda text: 1 / 0
    return module


def random():
    return Wrapped(lambda module, logits: logits + torch.rand(()))


def flat():
    return Wrapped(lambda module, logits: logits[:, -1])


def whole_numbers():
    return Wrapped(lambda module, logits: logits.long())


def raises():
    raise ValueError("no weights here")


def breaks():
    return Wrapped(lambda module, logits: logits @ torch.ones(3))


def asks(size):
    return small()


def number():
    return 3


def double():
    return small().double()


def nowhere():
    return small().to("meta")


def no_linear():
    return nn.Embedding(64, 64)


class Mine(nn.Linear):
    def forward(self, x):
        return super().forward(x)


def own_forward():
    return nn.Sequential(nn.Embedding(64, 8), Mine(8, 64))


NOTHING = 3
'''
IDS = torch.arange(24).reshape(3, 8) * 7 % 64


@pytest.fixture(scope="module")
def name(tmp_path_factory):
    """The module that the functions are in, importable."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_models.py").write_text(SOURCE, encoding="utf-8")
    sys.path.insert(0, str(folder))
    yield "own_models"
    sys.path.remove(str(folder))
    sys.modules.pop("own_models", None)


def side(spec: str, models: Models | None = None) -> KernelSide:
    found = open_side(spec, models=models)
    assert isinstance(found, KernelSide)
    return found


class ByHand(nn.Module):
    """A linear layer as a format multiplies."""

    def __init__(self, layer: nn.Linear, kernel) -> None:
        super().__init__()
        self.bias, self.kernel, self.packed = layer.bias, kernel, kernel.pack(layer.weight.detach())

    def forward(self, x):
        y = multiply(self.kernel, x, self.packed)
        return y if self.bias is None else y + self.bias


def by_hand(module: nn.Module, form_of) -> nn.Module:
    """A copy of the module whose linear layers are replaced, one by one."""
    made = copy.deepcopy(module).eval()
    for path, layer in list(made.named_modules()):
        if isinstance(layer, nn.Linear):
            parent, _, last = path.rpartition(".")
            setattr(made.get_submodule(parent), last, ByHand(layer, form_of(path)))
    return made


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_a_swap_is_what_it_is_by_hand(name, kernel) -> None:
    models: Models = {}
    reference, candidate = side(f"{name}:small:float32", models), side(f"{name}:small:{kernel.name}", models)
    module = models[f"{name}:small"].model.module
    with torch.no_grad():
        assert torch.equal(candidate.logits(IDS), by_hand(module, lambda path: kernel)(IDS))
        for unit in units_of(LEVELS[2], reference.basis.model):
            inside = {m.removesuffix(".weight") for m in unit.matrices}
            inside |= {"second"} if "first" in inside else set()
            made = by_hand(module, lambda path, inside=inside: kernel if path in inside else KERNELS[0])
            assert torch.equal(swapped(reference, reference.basis, candidate.basis, unit).logits(IDS), made(IDS))
        assert torch.allclose(module(IDS), reference.logits(IDS), atol=1e-5)  # and its own forward is back


def test_what_is_swapped_and_what_is_not_is_said(name) -> None:
    model = side(f"{name}:small:int8").basis.model
    assert [unit.name for unit in units_of(LEVELS[0], model)] == ["attention", "MLP", "other", "head"]
    assert [unit.name for unit in units_of(LEVELS[1], model)] == ["blocks.0", "blocks.1", "first", "head"]
    assert model.matrices[0] == "blocks.0.qkv_attn.weight"
    assert model.head == model.matrices[-1] == "head.weight"
    assert len(model.matrices) == 10
    said = "\n".join(model.notes)
    assert "the head shares its weight with the embedding embedding" in said
    assert "first.weight is the weight of 2 layers" in said
    assert "left as they are: spare.weight: no call reached it" in said


def test_sixteen_bit_weights_are_read_as_float32(name) -> None:
    models: Models = {}
    found = side(f"{name}:half:float32", models)
    assert found.logits(IDS).dtype == torch.float32
    assert "its bfloat16 weights are read as float32" in found.basis.model.notes[0]
    module = models[f"{name}:half"].model.module
    stored = sys.modules[name].half().blocks[0].out_attn.weight
    assert torch.equal(module.blocks[0].out_attn.weight, stored.float())


def test_an_answer_with_logits_and_a_buffer_that_is_written_again(name) -> None:
    plain = side(f"{name}:small:float32").logits(IDS)
    assert torch.equal(side(f"{name}:own_answer:float32").logits(IDS), plain)
    models: Models = {}
    first, second = side(f"{name}:one_buffer:float32", models), side(f"{name}:one_buffer:int4", models)
    kept = first.logits(IDS)
    assert not torch.equal(second.logits(IDS), kept)
    assert torch.equal(kept, plain)


def test_layers_that_a_fused_encoder_goes_past_are_swapped_all_the_same(name) -> None:
    models: Models = {}
    reference, candidate = side(f"{name}:encoder:float32", models), side(f"{name}:encoder:int4", models)
    model = reference.basis.model
    assert model.matrices == ("inside.layers.0.linear1.weight", "inside.layers.0.linear2.weight", "head.weight")
    assert "self_attn.out_proj.weight: no call reached it" in model.notes[-1]
    unit = units_of(LEVELS[1], model)[0]
    assert not torch.equal(
        swapped(reference, reference.basis, candidate.basis, unit).logits(IDS), reference.logits(IDS)
    )


@pytest.mark.parametrize(
    ("function", "slug", "words"),
    [
        ("nothing", "side_failed", "has no attribute 'nothing'"),
        ("NOTHING", "side_failed", "is a int, not a function"),
        ("raises", "side_failed", "ValueError: no weights here (own_models.py:"),
        ("asks", "module_unusable", "and such a function takes nothing"),
        ("breaks", "side_failed", "(own_models.py:"),
        ("number", "module_unusable", "it returned a int, not a torch.nn.Module"),
        ("flat", "shape_invalid", "[2, 3, vocabulary]"),
        ("whole_numbers", "side_failed", "torch.int64, not floating-point logits"),
        ("random", "module_unusable", "give different logits"),
        ("no_linear", "module_unusable", "no torch.nn.Linear multiplies in it"),
        ("own_forward", "module_unusable", "1: Mine has a forward of its own"),
        ("double", "module_unusable", "is float64; formats are of float32"),
        ("nowhere", "module_unusable", "is on the meta device"),
    ],
)
def test_what_gives_no_model_is_refused(name, function: str, slug: str, words: str) -> None:
    with pytest.raises(InputError) as refused:
        open_side(f"{name}:{function}:int8")
    (found,) = refused.value.diagnostics
    assert found.code.slug == slug
    assert words in found.message


def test_a_tokenizer_is_the_modules_own(name) -> None:
    assert side(f"{name}:small:int8").tokenizer is None
    words = side(f"{name}:with_words:int8").tokenizer
    assert words.encode(b" !") == [32, 33]
    assert words.decode([32, 33]) == " !"
    for function, reason in (("strange_words", "id 64, outside the vocabulary of 64"), ("broken_words", "division")):
        with pytest.raises(InputError, match=reason):
            side(f"{name}:{function}:int8").tokenizer.encode(b"a")


def test_the_weights_and_the_code_are_of_the_record(name) -> None:
    models: Models = {}
    first, second = (side(f"{name}:small:{form}", models) for form in ("float32", "int8"))
    assert (
        first.fingerprint["weights"]
        == second.fingerprint["weights"]
        != side(f"{name}:half:int8").fingerprint["weights"]
    )
    assert len(first.fingerprint["code"]) == 64
    assert "spare.weight" in first.fingerprint["note"]
    assert Path(sys.modules[name].__file__).name == "own_models.py"
