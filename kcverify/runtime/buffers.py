"""The integer and floating-point state of a monitor: three buffers, one a kind of reduction."""

from __future__ import annotations

import functools
import math
import sys
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

from kcverify.runtime.clauses import Layout
from kcverify.runtime.witness import LAST, Worst

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="Buffers")


def alone(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """A method that one thread at a time runs, without gradients and outside inference mode, whose tensors could not
    be counted into afterwards.

    Called from a function under `torch.compile` it is one break of that graph: nothing in it is compiled, so that no
    request id and no open request becomes a condition of a graph.
    """
    outside: list[Callable[Concatenate[S, P], T]] = []

    def guarded(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if "torch._dynamo" in sys.modules and not outside:
            outside.append(torch.compiler.disable(method))
        with self.lock, torch.inference_mode(False), torch.no_grad():
            return (outside or [method])[0](self, *args, **kwargs)

    functools.update_wrapper(guarded, method)
    return guarded


class Buffers(torch.nn.Module):  # type: ignore[misc]
    """`sums` int64 (the tables of `Layout.sections`, end to end), `extremes` float64 `[2, cells]` (each cell's worst
    score, and its value), `places` int64 `[cells, 3]` (its request key, row, token).

    They move between devices with the module; a change of the floating-point type, which would round, is ignored.
    """

    layout: Layout
    lock: threading.RLock
    sums: torch.Tensor
    extremes: torch.Tensor
    places: torch.Tensor

    def allocate_buffers(self, device: torch.device) -> None:
        """New buffers that have counted nothing."""
        cells, size = len(self.layout.cells), sum(math.prod(s) for s in self.layout.sections.values())
        self.register_buffer("sums", torch.empty(size, dtype=torch.int64, device=device))
        self.register_buffer("extremes", torch.empty(2, cells, dtype=torch.float64, device=device))
        self.register_buffer("places", torch.empty(cells, 3, dtype=torch.int64, device=device))
        self.clear_buffers()

    def clear_buffers(self) -> None:
        """Forget what was counted; the buffers stay where they are."""
        self.sums.zero_()
        self.extremes.zero_()
        self.extremes[0].fill_(-torch.inf)
        self.places.fill_(LAST)

    def _apply(self, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        kept = self.extremes
        with torch.inference_mode(False):
            out = super()._apply(function, recurse)
        if self.extremes.dtype != kept.dtype:
            self.extremes = kept.to(self.extremes.device)
        return out

    def _section(self, name: str) -> torch.Tensor:
        start = 0
        for other, shape in self.layout.sections.items():
            size = math.prod(shape)
            if other == name:
                return self.sums[start : start + size].view(shape)
            start += size
        raise KeyError(name)

    @property
    def counts(self) -> torch.Tensor:
        """Rows, invalid rows, rows with reference-only and with candidate-only tokens: int64 `[4]`."""
        return self._section("counts")

    @property
    def slice_counts(self) -> torch.Tensor:
        """Per slice: rows, invalid rows, rows of unknown membership: int64 `[slices, 3]`."""
        return self._section("slice_counts")

    @property
    def cell_counts(self) -> torch.Tensor:
        """Per cell: exceeding rows, rows whose inputs were missing: int64 `[cells, 2]`."""
        return self._section("cell_counts")

    @property
    def histograms(self) -> torch.Tensor:
        """Log histograms of the values: int64 `[histograms, bins]`."""
        return self._section("histograms")

    @property
    def observed(self) -> torch.Tensor:
        """Per cell what `observe` counted, int64 `[cells, 7]`: see `observations`."""
        return self._section("observed")

    @property
    def calibration(self) -> torch.Tensor:
        """Bins of all calibration cells, int64 `[bins, 4]`: see `calibration`."""
        return self._section("calibration")

    @property
    def worst_score(self) -> torch.Tensor:
        """Worst score of each cell (-inf: nothing seen)."""
        return self.extremes[0]

    @property
    def worst_value(self) -> torch.Tensor:
        """The value that has it."""
        return self.extremes[1]

    @property
    def worst_place(self) -> torch.Tensor:
        """Its request key, row within the request, and token (-1: none)."""
        return self.places

    @property
    def worst(self) -> Worst:
        """View of the worst values."""
        return Worst(self.extremes, self.places)
