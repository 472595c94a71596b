"""The cached forward pass gives what the model's own gives: every kernel, prompts and running answers in one step."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from kcverify.measure.kernels import KERNELS  # noqa: E402
from kcverify.measure.sides import open_side  # noqa: E402
from kcverify.serving import decode  # noqa: E402

TEXTS = (b"The hacker said", b"a", b"Jargon file, version 4.4.7, the whole of it")
CLOSE = {"float32": 2e-4, "int8": 2e-4, "int4": 2e-4}
"""Largest difference of logits; the other formats round activations, where a last bit can move a code."""


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_cached_logits_are_those_of_the_model(kernel):
    side = open_side(f"demo:{kernel.name}")
    weights = decode.pack(side.basis.model, kernel)
    cache = decode.new_cache(weights.model.architecture, 4, 64)
    slots, ids = (2, 0, 3), [list(t) for t in TEXTS]
    read = []
    for i, (slot, tokens) in enumerate(zip(slots, ids, strict=True)):  # the first runs while the others are read
        running = [decode.Running(slots[j], ids[j][-1], len(ids[j]) - 1) for j in range(i)]
        grown, logits = decode.step(weights, cache, running, [decode.Prompt(slot, tokens, True)])
        read.append(logits[0])
        for j in range(i):
            ids[j].append(int(grown[j].argmax()))
    for _ in range(3):
        grown, _ = decode.step(
            weights, cache, [decode.Running(s, t[-1], len(t) - 1) for s, t in zip(slots, ids, strict=True)], []
        )
        for j in range(3):
            ids[j].append(int(grown[j].argmax()))
    limit = CLOSE.get(kernel.name, 0.7)
    for text, tokens, logits in zip(TEXTS, ids, read, strict=True):
        own = side.logits(torch.tensor([tokens]))[0]
        assert (logits - own[: len(text)]).abs().max() < limit
        chosen = own[len(text) - 1 : -1].gather(1, torch.tensor(tokens[len(text) :])[:, None])[:, 0]
        assert (own[len(text) - 1 : -1].amax(-1) - chosen).max() < 2 * limit
    last = decode.step(weights, cache, [], [decode.Prompt(1, list(TEXTS[0]), False)])[1][0]
    assert last.shape == (1, 256)
    assert (last[0] - read[0][-1]).abs().max() < limit


def test_perturbed_weights_are_other_weights_and_always_the_same():
    model = open_side("demo:float32").basis.model
    one, two = decode.perturbed(model, 0.05), decode.perturbed(model, 0.05)
    for name in model.matrices:
        assert torch.equal(one.tensors[name], two.tensors[name])
        relative = (one.tensors[name] - model.tensors[name]).std() / model.tensors[name].std()
        assert 0.04 < relative < 0.06
