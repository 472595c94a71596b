"""The worst signs for the last product before the head: behind it a row depends on its own errors alone, and all but a norm is linear.

For a pair of tokens the logits' difference moves by `c . e` to first order, c its gradient; with `|e_k| <= b_k` that is at most
`Σ |c_k| b_k`, the dual of the largest-element norm with weights b, and `e_k = sign(c_k) b_k` reaches it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kcverify.measure.model import Model, forward


@dataclass(frozen=True)
class Worst:
    """Of every row: the pair's tokens, the gradient of their difference `[rows, width]`, and the product's operand."""

    first: Tensor
    second: Tensor
    gradient: Tensor
    operand: Tensor

    @property
    def signs(self) -> Tensor:
        """Those that move the pair apart furthest; 1 where nothing moves."""
        return torch.where(self.gradient < 0, -1.0, 1.0)

    def norm(self, tolerance: float, size: Tensor) -> Tensor:
        """`Σ |c| t Σ|x||w|` of every row, `size` being |w| `[width, inputs]`."""
        room = tolerance * (self.operand.abs().double() @ size.double().mT)
        return (self.gradient.abs().double() * room).sum(-1)

    def apart(self, before: Tensor, after: Tensor) -> Tensor:
        """How far the pair's difference moved between two tensors of logits `[rows, vocabulary]`."""
        moved = after - before
        return (moved.gather(1, self.first[:, None]) - moved.gather(1, self.second[:, None]))[:, 0]


def worst(model: Model, product: Callable[[str, Tensor], Tensor], ids: Tensor, last: str, moved: Tensor) -> Worst:
    """For the pair that `moved`, a difference of logits `[rows, vocabulary]`, takes furthest apart in each row."""
    first, second = moved.argmax(-1), moved.argmin(-1)
    head = model.tensors[model.head].double()
    kept: list[Tensor] = []

    def linear(name: str, x: Tensor) -> Tensor:
        if name == model.head:
            return x.double() @ head.mT
        y = product(name, x)
        if name == last:
            y = y.detach().requires_grad_()
            kept[:] = [x.detach(), y]
        return y

    with torch.enable_grad():
        logits = forward(model, linear, ids, torch.float32).reshape(-1, head.shape[0])
        chosen = logits.gather(1, first[:, None]) - logits.gather(1, second[:, None])
        (gradient,) = torch.autograd.grad(chosen.sum(), kept[1])
    operand = kept[0].reshape(-1, kept[0].shape[-1])
    return Worst(first, second, gradient.reshape(-1, gradient.shape[-1]), operand)
