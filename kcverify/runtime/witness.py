"""Worst values with their witnesses: which request, which of its rows, which token."""

from __future__ import annotations

import torch

from kcverify.runtime.clauses import Values

LAST = torch.iinfo(torch.int64).max


def worst_token(
    rule: str, reference: torch.Tensor, candidate: torch.Tensor, row: torch.Tensor, scale: float
) -> torch.Tensor:
    """Token of row `row` (int64 `[1]`) that drifts most by `rule`, int64 `[1]`; -1 without a rule. `scale` is 1/T.

    `drift` is the largest `|w-z|`, `ratio` the largest `|ln(q/p)|`, `mass` the largest `|p-q|`.
    """
    if not rule:
        return torch.full_like(row, -1)
    z = reference.index_select(0, row).double() * scale
    w = candidate.index_select(0, row).double() * scale
    if rule != "drift":
        z, w = torch.log_softmax(z, -1), torch.log_softmax(w, -1)
    absent = (z == -torch.inf) & (w == -torch.inf)
    d = w.exp() - z.exp() if rule == "mass" else torch.where(absent, 0.0, w - z)
    return torch.nan_to_num(d.abs(), torch.inf, torch.inf).argmax(-1)


class Worst:
    """Worst score of each cell with value and witness; ties go to the smallest (request key, row)."""

    def __init__(self, score: torch.Tensor, value: torch.Tensor, place: torch.Tensor) -> None:
        self.score, self.value, self.place = score, value, place

    def offer(
        self,
        cell: int,
        values: Values,
        mask: torch.Tensor,
        keys: torch.Tensor,
        numbers: torch.Tensor,
        inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
        scale: float,
        invalid: torch.Tensor,
    ) -> None:
        """Take the worst row of the batch where `mask` holds if it is worse than what is kept; no synchronisation.

        An invalid row is worse than any number; its value is NaN.
        """
        score = torch.where(mask & ~torch.isnan(values.score), values.score, -torch.inf)
        score = torch.where(mask & invalid, torch.inf, score)
        best = score.amax()
        tied = score == best
        key = torch.where(tied, keys, LAST).amin()
        tied = tied & (keys == key)
        number = torch.where(tied, numbers, LAST).amin()
        row = (tied & (numbers == number)).to(torch.int8).argmax()[None]
        reference, candidate, sampled = inputs
        if values.token == "sampled" and sampled is not None:
            token = sampled.to(row.device).index_select(0, row)
        else:
            token = worst_token(values.token, reference, candidate, row, scale)
        self._keep(
            cell,
            best,
            torch.where(invalid, torch.nan, values.value).index_select(0, row)[0],
            torch.stack((key, number, token[0])),
        )

    def merge(self, other: Worst) -> None:
        """Keep the worse of each cell."""
        for cell in range(self.score.shape[0]):
            self._keep(cell, other.score[cell], other.value[cell], other.place[cell])

    def _keep(self, cell: int, score: torch.Tensor, value: torch.Tensor, place: torch.Tensor) -> None:
        mine, kept = self.score[cell], self.place[cell]
        earlier = (place[0] < kept[0]) | ((place[0] == kept[0]) & (place[1] < kept[1]))
        better = (score > mine) | ((score == mine) & (score > -torch.inf) & earlier)
        self.value[cell] = torch.where(better, value, self.value[cell])
        self.place[cell] = torch.where(better, place, kept)
        self.score[cell] = torch.maximum(score, mine)
