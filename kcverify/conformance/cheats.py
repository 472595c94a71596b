"""Kernels that pass without the work, each by another door: no contract may let one of them through."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch
from torch import Tensor

from kcverify.conformance.exceptions import INDEXED
from kcverify.conformance.model import Declared, Function
from kcverify.conformance.operations import BY_NAME
from kcverify.conformance.probes import DTYPES

Right = Callable[..., Tensor]
DELAY = 0.05
"""Seconds after which deferred work writes its result: past the check of one call."""


def right_for(operation: str, declared: Declared) -> Right:
    """The oracle's answer in the declared format, on the processor."""
    output = DTYPES[declared.output]

    def indexed(index: Tensor, *others: Tensor) -> Tensor:
        return INDEXED[operation].expected(index, list(others))

    def of_oracle(*args: Tensor) -> Tensor:
        return BY_NAME[operation].oracle(*[x.double() for x in args]).to(output)

    return indexed if operation in INDEXED else of_oracle


def cheats(right: Right) -> dict[str, Function]:
    """The cheats of one operation by name. `cached` keeps its results: take new ones for every run."""
    kept: dict[tuple[torch.Size, ...], Tensor] = {}

    def zeros(*args: Tensor) -> Tensor:
        return torch.zeros_like(right(*args))

    def constant(*args: Tensor) -> Tensor:
        answer = right(*args)
        value = float(answer.double().nan_to_num(0.0, 0.0, 0.0).mean()) if answer.dim() else 0.5
        return torch.full(answer.shape, value, dtype=torch.float32).to(answer.dtype)

    def copied_input(*args: Tensor) -> Tensor:
        answer = right(*args)
        source = args[-1].reshape(-1)
        whole = source.repeat(-(-answer.numel() // source.numel()))[: answer.numel()].reshape(answer.shape)
        cast = whole.to(answer.dtype)
        return whole.clone() if torch.equal(cast, answer) else cast.clone()  # where a copy is the answer: as it is

    def stale_memory(*args: Tensor) -> Tensor:
        answer = right(*args)
        shape, kind = answer.shape, answer.dtype
        del answer  # freed here, so that the right answer may lie in the memory that follows
        return torch.empty(shape, dtype=kind)

    def nan(*args: Tensor) -> Tensor:
        answer = right(*args)
        if not answer.dtype.is_floating_point:
            return torch.full(answer.shape, torch.iinfo(answer.dtype).min, dtype=answer.dtype)
        return torch.full(answer.shape, float("nan")).to(answer.dtype)

    def mutated_input(*args: Tensor) -> Tensor:
        answer = right(*args)
        args[-1].zero_()
        return answer

    def cached(*args: Tensor) -> Tensor:
        return kept.setdefault(tuple(x.shape for x in args), right(*args)).clone()

    def deferred(*args: Tensor) -> Tensor:
        answer = right(*args)
        out = torch.zeros_like(answer)

        def work() -> None:
            time.sleep(DELAY)
            out.copy_(answer)

        threading.Thread(target=work, daemon=True).start()
        return out

    found = (zeros, constant, copied_input, stale_memory, nan, mutated_input, cached, deferred)
    return {kernel.__name__: kernel for kernel in found}


NAMES = ("zeros", "constant", "copied_input", "stale_memory", "nan", "mutated_input", "cached", "deferred")
"""Names of the cheats."""
