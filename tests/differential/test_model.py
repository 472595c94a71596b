"""The forward pass against float64 numpy written from its description, its held-out loss, and its drift table."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load_file

from kcverify.measure.data import load_data
from kcverify.measure.run import run_pair
from kcverify.measure.sides import open_pair, open_side
from kcverify.measure.tokenizer import BYTES
from kcverify.resources import data_path

Array = NDArray[np.float64]
HELDOUT = str(data_path("heldout.txt"))


def numpy_logits(ids: NDArray[np.int64]) -> Array:
    """Logits `[T, 256]` of one sequence in float64: complex rotation, explicit causal softmax, one head at a time."""
    path = str(data_path("tinylm.safetensors"))
    w = {name: value.astype(np.float64) for name, value in load_file(path).items()}
    with safe_open(path, framework="np") as handle:
        c = json.loads(handle.metadata()["config"])
    length, width = len(ids), c["head_dim"]
    turn = np.exp(1j * np.outer(np.arange(length), c["rope_theta"] ** (-np.arange(0, width, 2) / width)))

    def norm(x: Array, name: str) -> Array:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + c["eps"]) * w[name]

    def rotate(x: Array) -> Array:
        z = (x[:, 0::2] + 1j * x[:, 1::2]) * turn
        return np.stack((z.real, z.imag), -1).reshape(x.shape)

    x = w["token_embd.weight"][ids]
    for i in range(c["layers"]):
        b = f"blk.{i}."
        h = norm(x, b + "attn_norm.weight")
        q, k, v = (h @ w[b + f"attn_{part}.weight"].T for part in "qkv")
        heads = []
        for head in range(c["heads"]):
            group = head // (c["heads"] // c["kv_heads"])
            mine, shared = slice(head * width, (head + 1) * width), slice(group * width, (group + 1) * width)
            scores = rotate(q[:, mine]) @ rotate(k[:, shared]).T / np.sqrt(width)
            scores[np.triu_indices(length, 1)] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(weights / weights.sum(-1, keepdims=True) @ v[:, shared])
        x = x + np.concatenate(heads, -1) @ w[b + "attn_output.weight"].T
        h = norm(x, b + "ffn_norm.weight")
        gate = h @ w[b + "ffn_gate.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w[b + "ffn_up.weight"].T)) @ w[b + "ffn_down.weight"].T
    return norm(x, "output_norm.weight") @ w["output.weight"].T


@pytest.mark.parametrize("length", [1, 2, 100, 256])
def test_forward_equals_float64_numpy(length: int) -> None:
    content = data_path("heldout.txt").read_bytes()
    ids = np.frombuffer(content[5000 : 5000 + length], np.uint8).astype(np.int64)
    got = open_side("demo:float32").logits(torch.from_numpy(ids)[None])[0]
    np.testing.assert_allclose(got.numpy(), numpy_logits(ids), rtol=0, atol=1e-4)


def test_a_position_never_sees_what_follows() -> None:
    side = open_side("demo:float32")
    ids = torch.randint(256, (2, 64), generator=torch.Generator().manual_seed(3))
    changed = ids.clone()
    changed[:, 40:] = (changed[:, 40:] + 1) % 256
    before, after = side.logits(ids), side.logits(changed)
    assert torch.equal(before[:, :40], after[:, :40])
    assert not torch.equal(before[:, 40:], after[:, 40:])


def test_held_out_loss_is_1_505_nats_a_byte() -> None:
    text = torch.tensor(list(data_path("heldout.txt").read_bytes()))
    context, scored_from = 256, 64
    starts = range(0, len(text) - context - 1, context - scored_from)
    windows = torch.stack([text[i : i + context + 1] for i in starts])
    side = open_side("demo:float32")
    total = 0.0
    for part in windows.split(32):
        logits = side.logits(part[:, :-1])[:, scored_from:]
        total += float(F.cross_entropy(logits.flatten(0, 1), part[:, 1 + scored_from :].flatten(), reduction="sum"))
    assert total / (len(windows) * (context - scored_from)) == pytest.approx(1.5047, abs=2e-4)


# span p50, mean TV, mean KL, top-1 of 64 windows; every eighth window is measured here
PUBLISHED = [
    ("bfloat16", 0.080, 0.0035, 6.1e-5, 0.9931),
    ("int8", 0.123, 0.0051, 1.4e-4, 0.9927),
    ("w8a8", 0.222, 0.0108, 6.3e-4, 0.9846),
    ("fp8", 0.622, 0.0286, 4.6e-3, 0.9565),
    ("int4", 1.40, 0.0654, 2.3e-2, 0.9094),
]


@pytest.mark.parametrize(("form", "span", "tv", "kl", "top1"), PUBLISHED)
def test_drift_table_is_reproduced(form: str, span: float, tv: float, kl: float, top1: float) -> None:
    requests = load_data(HELDOUT, window=256, tokenizer=BYTES, limit=64)[::8]
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    sides = open_pair("demo:float32", f"demo:{form}")
    run_pair(*sides, requests, on_rows=lambda rows: pairs.append((rows.reference, rows.candidate)))
    z, w = (torch.cat(side).double() for side in zip(*pairs, strict=True))
    p, q = z.log_softmax(-1), w.log_softmax(-1)
    spans = (w - z).amax(-1) - (w - z).amin(-1)
    assert float(spans.median()) == pytest.approx(span, rel=0.05)
    assert float((p.exp() - q.exp()).abs().sum(-1).mean() / 2) == pytest.approx(tv, rel=0.1)
    assert float((p.exp() * (p - q)).sum(-1).mean()) == pytest.approx(kl, rel=0.25)
    three_sigma = 3 * (top1 * (1 - top1) / len(z)) ** 0.5
    assert float((z.argmax(-1) == w.argmax(-1)).double().mean()) == pytest.approx(top1, abs=three_sigma)
