"""Worst values with their witnesses: which request, which of its rows, which token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kcverify.runtime.clauses import Values

LAST = torch.iinfo(torch.int64).max


def worst_token(
    rule: str, reference: torch.Tensor, candidate: torch.Tensor, row: torch.Tensor, scale: float
) -> torch.Tensor:
    """Token of row `row` (int64 `[1]`) that drifts most by `rule`, int64 `[1]`. `scale` is 1/T.

    `drift` is the largest `|w-z|`, `ratio` the largest `|ln(q/p)|`, `mass` the largest `|p-q|`.
    """
    z = reference.index_select(0, row).double() * scale
    w = candidate.index_select(0, row).double() * scale
    if rule != "drift":
        z, w = torch.log_softmax(z, -1), torch.log_softmax(w, -1)
    absent = (z == -torch.inf) & (w == -torch.inf)
    d = w.exp() - z.exp() if rule == "mass" else torch.where(absent, 0.0, w - z)
    return torch.nan_to_num(d.abs(), torch.inf, torch.inf).argmax(-1)


@dataclass(frozen=True)
class Inputs:
    """What names the worst token of a row: the logits `[N, V]` (None: not at hand), sampled ids `[N]`, and 1/T."""

    logits: tuple[torch.Tensor, torch.Tensor] | None
    sampled: torch.Tensor | None
    scale: float

    def token(self, rule: str, row: torch.Tensor) -> torch.Tensor:
        """Worst token of row `row` (int64 `[1]`), int64 `[1]`; -1 where the rule or its input is missing."""
        if rule == "sampled" and self.sampled is not None:
            return self.sampled.to(row.device, torch.int64).index_select(0, row)
        if not rule or rule == "sampled" or self.logits is None:
            return torch.full_like(row, -1)
        return worst_token(rule, *self.logits, row, self.scale)


class Worst:
    """Worst score of each cell with value and witness; ties go to the smallest (request key, row).

    `table` float64 `[2, cells]` holds scores (-inf: nothing seen) and values, `place` int64 `[cells, 3]` key, row and
    token.
    """

    def __init__(self, table: torch.Tensor, place: torch.Tensor) -> None:
        self.table, self.place = table, place

    def offer(
        self,
        offers: Sequence[tuple[Values, torch.Tensor] | None],
        keys: torch.Tensor,
        numbers: torch.Tensor,
        invalid: torch.Tensor,
        inputs: Inputs,
    ) -> None:
        """Take each cell's worst row of the batch if it is worse than what is kept; no synchronisation.

        `offers` has, per cell, the values and the rows that count, bool `[N]`, or None. An invalid row is worse than
        any number; its value is NaN.
        """
        nothing = torch.full(invalid.shape, -torch.inf, dtype=torch.float64, device=invalid.device)
        scores, values = [], []
        for offer in offers:
            if offer is None:
                scores.append(nothing)
                values.append(nothing)
                continue
            found, mask = offer
            score = torch.where(mask & ~torch.isnan(found.score), found.score, -torch.inf)
            scores.append(torch.where(mask & invalid, torch.inf, score))
            values.append(torch.where(invalid, torch.nan, found.value))
        if not scores:
            return
        score = torch.stack(scores)
        best = score.amax(1)
        tied = score == best[:, None]
        key = torch.where(tied, keys, LAST).amin(1)
        tied = tied & (keys == key[:, None])
        number = torch.where(tied, numbers, LAST).amin(1)
        tied = tied & (numbers == number[:, None])
        order = torch.arange(invalid.shape[0], device=invalid.device)
        row = torch.where(tied, order, invalid.shape[0] - 1).amin(1)
        token = torch.cat([inputs.token("" if o is None else o[0].token, row[i : i + 1]) for i, o in enumerate(offers)])
        value = torch.stack(values).gather(1, row[:, None])[:, 0]
        self._keep(torch.stack((best, value)), torch.stack((key, number, token), 1))

    def merge(self, other: Worst) -> None:
        """Keep the worse of each cell."""
        self._keep(other.table, other.place)

    def _keep(self, table: torch.Tensor, place: torch.Tensor) -> None:
        score, mine, kept = table[0], self.table[0], self.place
        earlier = (place[:, 0] < kept[:, 0]) | ((place[:, 0] == kept[:, 0]) & (place[:, 1] < kept[:, 1]))
        better = (score > mine) | ((score == mine) & (score > -torch.inf) & earlier)
        self.table.copy_(torch.where(better, table, self.table))
        self.place.copy_(torch.where(better[:, None], place, kept))
