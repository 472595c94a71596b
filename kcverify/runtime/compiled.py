"""The counting of a monitor as compiled graphs, one for each kind of input, so that no mix of inputs exhausts them.

torch keeps the graphs of a function with its code object, and a function compiled as one graph raises an error when it
has been compiled too often (8 times). Here each kind of batch (which optional inputs it has, and the types of its
logits) has a code object of its own, shared by the monitors of one class; within a kind the sizes alone vary.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeAlias

import torch

from kcverify.runtime.tally import Batch

Counting: TypeAlias = Callable[[Any, Batch], None]
_functions: weakref.WeakKeyDictionary[type, dict[Hashable, Counting]] = weakref.WeakKeyDictionary()


class Compiled:
    """Counts as `plain` does, a function of a monitor and a batch, through `torch.compile` with `options`."""

    def __init__(self, plain: Counting, **options: Any) -> None:
        self.plain, self.options = plain, options
        self.graphs: dict[Hashable, Counting] = {}

    def __call__(self, monitor: Any, batch: Batch) -> None:
        """Count a batch; without a graph where torch has compiled this kind of it too often, which it logs."""
        key = kind(batch)
        if key not in self.graphs:
            own = _functions.setdefault(type(monitor), {})
            function = own.setdefault(key, _twin(self.plain))
            self.graphs[key] = torch.compile(function, fullgraph=True, **self.options)
        try:
            self.graphs[key](monitor, batch)
        except torch._dynamo.exc.FailOnRecompileLimitHit:  # raised before anything of the batch is counted
            self.plain(monitor, batch)


def kind(batch: Batch) -> Hashable:
    """What a graph is specialised for beside sizes: the inputs that are there, their types, the device."""
    given = (batch.numbers is None, batch.times is None, batch.inputs.sampled is None)
    masks = tuple(mask is None for mask in batch.masks)
    logits = None if batch.inputs.logits is None else tuple((t.dtype, t.is_contiguous()) for t in batch.inputs.logits)
    return given, masks, logits, frozenset(batch.rows.values), batch.rows.invalid.device


def _twin(function: Counting) -> Counting:
    """The same function with a code object of its own."""
    assert isinstance(function, types.FunctionType)
    return types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
