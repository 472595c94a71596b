"""Forward pass of a small Llama-style language model whose every matrix product goes through one pluggable function."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kcverify.diagnostics import input_error

Linear = Callable[[str, Tensor], Tensor]
"""`linear(name, x[..., in]) -> y[..., out]`: the product of `x` with the matrix called `name`."""


class Swappable(Protocol):
    """A model whose matrix products can be done by another kernel, each by the matrix's name."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The matrices among others, float32 `[out, in]`."""

    @property
    def matrices(self) -> tuple[str, ...]:
        """Names of all matrices that it multiplies with, in the order of their use."""

    @property
    def head(self) -> str:
        """The matrix whose product is the logits; empty where none is."""

    @property
    def vocabulary(self) -> int:
        """Logits of a row."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said of its swaps."""

    def on(self, device: torch.device) -> Swappable:
        """The model with its tensors on the device."""

    def logits(self, linear: Linear, token_ids: Tensor) -> Tensor:
        """Logits `[batch, seq, vocabulary]` of ids `[batch, seq]`, every matrix product by `linear`."""


@dataclass(frozen=True)
class Architecture:
    """Sizes of a Llama-style model: grouped-query attention, SwiGLU, RMS norms, rotary pairs (2i, 2i + 1)."""

    vocabulary: int
    dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    rope_theta: float
    eps: float


@dataclass(frozen=True)
class Model:
    """Sizes and float32 tensors under the names of a GGUF file (`blk.0.attn_q.weight` ...).

    Without a tensor `output.weight` the head is the transposed embedding (tied).
    """

    architecture: Architecture
    tensors: Mapping[str, Tensor]

    @property
    def head(self) -> str:
        """Name of the matrix that maps the last hidden state to logits."""
        return "output.weight" if "output.weight" in self.tensors else "token_embd.weight"

    @property
    def matrices(self) -> tuple[str, ...]:
        """Names of all matrices that `forward` multiplies with, in the order of their use."""
        return (*(f"blk.{i}.{part}.weight" for i in range(self.architecture.layers) for part in _PARTS), self.head)

    @property
    def vocabulary(self) -> int:
        """Logits of a row."""
        return self.architecture.vocabulary

    @property
    def notes(self) -> tuple[str, ...]:
        """None: all of its matrices are swapped."""
        return ()

    def on(self, device: torch.device) -> Model:
        """The model with its tensors on the device."""
        return Model(self.architecture, {name: t.to(device) for name, t in self.tensors.items()})

    def logits(self, linear: Linear, token_ids: Tensor) -> Tensor:
        """As `forward`, activations in float32."""
        return forward(self, linear, token_ids, torch.float32)


_PARTS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
_NORMS = ("attn_norm", "ffn_norm")


def _shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    parts = {
        "attn_q": (q, a.dim), "attn_k": (kv, a.dim), "attn_v": (kv, a.dim), "attn_output": (a.dim, q),
        "ffn_gate": (a.ffn, a.dim), "ffn_up": (a.ffn, a.dim), "ffn_down": (a.dim, a.ffn),
        "attn_norm": (a.dim,), "ffn_norm": (a.dim,),
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        f"blk.{i}.{part}.weight": parts[part] for i in range(a.layers) for part in (*_PARTS, *_NORMS)
    }
    return shapes | {"token_embd.weight": (a.vocabulary, a.dim), "output_norm.weight": (a.dim,)}


def check_shapes(model: Model, path: str) -> Model:
    """`model` itself when every tensor that `forward` reads is there with the shape that the sizes ask for.

    Raises InputError (`side_failed`, `shape_invalid`) that names the file and the tensor.
    """
    a = model.architecture
    if a.layers > len(model.tensors):  # a damaged count must not become a list of that length
        raise input_error("side_failed", side=path, reason=f"{a.layers} layers, but only {len(model.tensors)} tensors")
    expected = _shapes(a)
    if "output.weight" in model.tensors:
        expected["output.weight"] = (a.vocabulary, a.dim)
    for name, shape in expected.items():
        if name not in model.tensors:
            raise input_error("side_failed", side=path, reason=f"tensor `{name}` is missing")
        if tuple(model.tensors[name].shape) != shape:
            raise input_error(
                "shape_invalid", what=f"`{name}` of {path}", shape=list(model.tensors[name].shape), expected=list(shape)
            )
    return model


def load_safetensors(path: Path) -> Model:
    """Model of a safetensors file whose metadata key `config` holds the sizes as JSON.

    Raises InputError: `file_unreadable`, `side_failed` (no usable `config`), `shape_invalid`.
    """
    try:
        with safe_open(path, framework="pt") as handle:
            metadata = handle.metadata() or {}
            tensors = {name: handle.get_tensor(name).float() for name in handle.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise input_error("file_unreadable", path=path, reason=error) from error
    try:
        c = json.loads(metadata["config"])
        architecture = Architecture(
            int(c["vocab"]), int(c["dim"]), int(c["layers"]), int(c["heads"]), int(c["kv_heads"]),
            int(c["head_dim"]), int(c["ffn"]), float(c["rope_theta"]), float(c["eps"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise input_error("side_failed", side=path, reason=f"metadata `config` is not usable: {error!r}") from error
    return check_shapes(Model(architecture, tensors), str(path))


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return scaled.to(x.dtype) * weight.to(x.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def _attention(a: Architecture, linear: Linear, block: str, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    batch, length, _ = x.shape

    def heads(part: str) -> Tensor:
        return linear(f"{block}.{part}.weight", x).view(batch, length, -1, a.head_dim).transpose(1, 2)

    q, k = _rotate(heads("attn_q"), cos, sin), _rotate(heads("attn_k"), cos, sin)
    repeats = a.heads // a.kv_heads
    k, v = k.repeat_interleave(repeats, 1), heads("attn_v").repeat_interleave(repeats, 1)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return linear(f"{block}.attn_output.weight", y.transpose(1, 2).reshape(batch, length, -1))


def _feed_forward(linear: Linear, block: str, x: Tensor) -> Tensor:
    gate = F.silu(linear(f"{block}.ffn_gate.weight", x))
    return linear(f"{block}.ffn_down.weight", gate * linear(f"{block}.ffn_up.weight", x))


def forward(model: Model, linear: Linear, token_ids: Tensor, stream: torch.dtype) -> Tensor:
    """Logits `[batch, seq, vocabulary]` of the next token at every position; ids are `[batch, seq]` int64.

    `stream` is the dtype of the activations between the products; norms accumulate in float32. Every matrix product
    (projections, feed-forward, head) is `linear`'s; attention scores are torch's scaled_dot_product_attention.
    """
    a, tensors = model.architecture, model.tensors
    device = token_ids.device
    rates = a.rope_theta ** (-torch.arange(0, a.head_dim, 2, dtype=torch.float32, device=device) / a.head_dim)
    angles = torch.arange(token_ids.shape[1], dtype=torch.float32, device=device)[:, None] * rates
    cos, sin = angles.cos().to(stream), angles.sin().to(stream)
    x = tensors["token_embd.weight"][token_ids].to(stream)
    for i in range(a.layers):
        block = f"blk.{i}"
        x = x + _attention(a, linear, block, _norm(x, tensors[f"{block}.attn_norm.weight"], a.eps), cos, sin)
        x = x + _feed_forward(linear, block, _norm(x, tensors[f"{block}.ffn_norm.weight"], a.eps))
    return linear(model.head, _norm(x, tensors["output_norm.weight"], a.eps))
