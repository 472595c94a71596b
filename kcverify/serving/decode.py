"""Forward pass of the demo model with a cache of keys and values: rows of prompts and of running answers in one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from kcverify.measure.kernels import Kernel, Packed
from kcverify.measure.model import Architecture, Model


@dataclass(frozen=True)
class Weights:
    """A model under one kernel, with matrices of one input side by side: `blk.0.qkv`, `blk.0.gate_up`.

    Every format scales each row by itself, so that a row's codes are those that it has alone.
    """

    model: Model
    kernel: Kernel
    packed: Mapping[str, Packed]

    def times(self, name: str, x: Tensor) -> Tensor:
        """`x[rows, K]` times the matrix transposed: `[rows, N]` float32."""
        return self.kernel.apply(x, self.packed[name])


_JOINED = {"qkv": ("attn_q", "attn_k", "attn_v"), "gate_up": ("ffn_gate", "ffn_up")}
_ALONE = ("attn_output", "ffn_down")


def pack(model: Model, kernel: Kernel) -> Weights:
    """Every matrix as the kernel packs it."""
    t, out = model.tensors, {model.head: kernel.pack(model.tensors[model.head])}
    for i in range(model.architecture.layers):
        for joined, parts in _JOINED.items():
            out[f"blk.{i}.{joined}"] = kernel.pack(torch.cat([t[f"blk.{i}.{part}.weight"] for part in parts]))
        for part in _ALONE:
            out[f"blk.{i}.{part}.weight"] = kernel.pack(t[f"blk.{i}.{part}.weight"])
    return Weights(model, kernel, out)


@dataclass(frozen=True)
class Cache:
    """Keys and values of every layer, each float32 `[slots, context, kv_heads, head_dim]`, and the rotary table.

    `turn` is complex `[context, head_dim / 2]`. A slot belongs to one sequence at a time.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    turn: Tensor


def new_cache(a: Architecture, slots: int, context: int) -> Cache:
    """An empty cache; memory is touched only where a sequence has been."""

    def layer() -> Tensor:
        return torch.zeros(slots, context, a.kv_heads, a.head_dim)

    rates = a.rope_theta ** (-torch.arange(0, a.head_dim, 2, dtype=torch.float32) / a.head_dim)
    angles = torch.arange(context, dtype=torch.float32)[:, None] * rates
    layers = range(a.layers)
    return Cache(
        tuple(layer() for _ in layers), tuple(layer() for _ in layers), torch.complex(angles.cos(), angles.sin())
    )


@dataclass(frozen=True)
class Prompt:
    """A prompt that is read in this step: its slot, its ids, and whether every row's logits are wanted."""

    slot: int
    ids: Sequence[int]
    every: bool


@dataclass(frozen=True)
class Running:
    """An answer that grows by one token: its slot, its last token, the position of that token."""

    slot: int
    token: int
    position: int


@dataclass(frozen=True)
class _Rows:
    """All rows of a step, running answers first: where each goes in the cache, and what its attention sees."""

    slots: Tensor
    positions: Tensor
    turn: Tensor
    running: int
    longest: int
    seen: Tensor
    spans: tuple[tuple[int, int], ...]


def step(
    weights: Weights, cache: Cache, running: Sequence[Running], prompts: Sequence[Prompt]
) -> tuple[Tensor, list[Tensor]]:
    """Logits float32 of the next token: `[running, vocabulary]`, and for each prompt `[1 or length, vocabulary]`.

    What was read stays in the cache. Matrix products are the kernel's, on all rows at once; positions must be below
    the cache's context, prompts not empty.
    """
    with torch.inference_mode():
        model, a = weights.model, weights.model.architecture
        rows = _rows(cache, running, prompts)
        ids = torch.tensor([r.token for r in running] + [i for p in prompts for i in p.ids])
        x = model.tensors["token_embd.weight"][ids]
        for i in range(a.layers):
            block = f"blk.{i}"
            x = x + _attention(weights, cache, i, _norm(x, model, f"{block}.attn_norm.weight"), rows)
            x = x + _feed_forward(weights, block, _norm(x, model, f"{block}.ffn_norm.weight"))
        wanted, counts = _wanted(rows, prompts)
        last = _norm(x if wanted is None else x[wanted], model, "output_norm.weight")
        logits = weights.times(model.head, last).float()
        return logits[: len(running)], list(logits[len(running) :].split(counts))


def _rows(cache: Cache, running: Sequence[Running], prompts: Sequence[Prompt]) -> _Rows:
    positions = [r.position for r in running] + [i for p in prompts for i in range(len(p.ids))]
    slots = [r.slot for r in running] + [p.slot for p in prompts for _ in p.ids]
    where, spans, start = torch.tensor(positions), [], len(running)
    for p in prompts:
        spans.append((start, start + len(p.ids)))
        start += len(p.ids)
    longest = 1 + max((r.position for r in running), default=-1)
    seen = (torch.arange(longest) <= where[: len(running), None])[:, None, None, :]
    return _Rows(torch.tensor(slots), where, cache.turn[where][:, None], len(running), longest, seen, tuple(spans))


def _wanted(rows: _Rows, prompts: Sequence[Prompt]) -> tuple[Tensor | None, list[int]]:
    """Rows whose logits are asked for (None is all), and how many belong to each prompt."""
    counts = [len(p.ids) if p.every else 1 for p in prompts]
    if all(p.every or len(p.ids) == 1 for p in prompts):
        return None, counts
    index = [*range(rows.running)]
    for p, (start, stop) in zip(prompts, rows.spans, strict=True):
        index += range(start if p.every else stop - 1, stop)
    return torch.tensor(index), counts


def _norm(x: Tensor, model: Model, name: str) -> Tensor:
    weight = model.tensors[name]
    return F.rms_norm(x, weight.shape, weight, model.architecture.eps)


def _attention(weights: Weights, cache: Cache, layer: int, x: Tensor, rows: _Rows) -> Tensor:
    a, block = weights.model.architecture, f"blk.{layer}"
    both = weights.times(f"{block}.qkv", x).view(x.shape[0], -1, a.head_dim)
    turned, v = both[:, : a.heads + a.kv_heads], both[:, a.heads + a.kv_heads :]
    pairs = torch.view_as_complex(turned.reshape(*turned.shape[:2], -1, 2))
    turned = torch.view_as_real(pairs * rows.turn).flatten(-2)
    q, k, keys, values = turned[:, : a.heads], turned[:, a.heads :], cache.keys[layer], cache.values[layer]
    keys[rows.slots, rows.positions], values[rows.slots, rows.positions] = k, v
    parts = []
    if rows.running:
        slots = rows.slots[: rows.running]
        old_k, old_v = (t[:, : rows.longest][slots].transpose(1, 2) for t in (keys, values))
        y = F.scaled_dot_product_attention(
            q[: rows.running, :, None], old_k, old_v, attn_mask=rows.seen, enable_gqa=True
        )
        parts.append(y[:, :, 0])
    for start, stop in rows.spans:
        one, its_k, its_v = (t[start:stop].transpose(0, 1)[None] for t in (q, k, v))
        y = F.scaled_dot_product_attention(one, its_k, its_v, is_causal=True, enable_gqa=True)
        parts.append(y[0].transpose(0, 1))
    y = parts[0] if len(parts) == 1 else torch.cat(parts)
    return weights.times(f"{block}.attn_output.weight", y.reshape(x.shape[0], -1))


def _feed_forward(weights: Weights, block: str, x: Tensor) -> Tensor:
    gate, up = weights.times(f"{block}.gate_up", x).chunk(2, -1)
    return weights.times(f"{block}.ffn_down.weight", F.silu(gate) * up)


def perturbed(model: Model, size: float) -> Model:
    """The same model with noise of `size` standard deviations on every matrix, the same noise at every call."""
    noise = torch.Generator().manual_seed(1)
    tensors = dict(model.tensors)
    for name in model.matrices:
        w = tensors[name]
        tensors[name] = w + size * w.std() * torch.randn(w.shape, generator=noise)
    return replace(model, tensors=tensors)
