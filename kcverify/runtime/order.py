"""Row statistics about choices: ranks, margins, flips, confidence, the given token, and the span of a kept mass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from kcverify.runtime.workspace import Workspace

TRIMMED = "trimmed_span:"
_SLACK = 1e-12
"""What a sum of probabilities may be off by: a kept set must hold this much more, so that rounding never lends mass."""


@dataclass
class _Tile:
    """A tile of rows `z`, `w` `[n, V]` with the tokens `ids` int64 `[n]`; `scale` is 1/T. Pieces are found once."""

    z: torch.Tensor
    w: torch.Tensor
    ids: torch.Tensor | None
    scale: float

    @cached_property
    def z_top(self) -> torch.Tensor:
        """Largest reference logit, `[n, 1]`."""
        return self.z.amax(-1, keepdim=True)

    @cached_property
    def w_top(self) -> torch.Tensor:
        """Largest candidate logit, `[n, 1]`."""
        return self.w.amax(-1, keepdim=True)

    @cached_property
    def choice(self) -> torch.Tensor:
        """Candidate logit of the reference's choice, the best one where the reference ties, `[n, 1]`."""
        return self.w.masked_fill(self.z != self.z_top, -torch.inf).amax(-1, keepdim=True)

    @cached_property
    def flip(self) -> torch.Tensor:
        """Whether no token is largest on both sides, bool `[n]`."""
        return (self.choice < self.w_top)[:, 0]

    @cached_property
    def margin(self) -> torch.Tensor:
        """Gap between the reference's two largest logits, float64 `[n]`; infinite where only one token is present."""
        if self.z.shape[1] < 2:
            return torch.full_like(self.z_top[:, 0], torch.inf, dtype=torch.float64)
        two = self.z.topk(2, -1).values.double()
        return two[:, 0] - two[:, 1]

    @cached_property
    def log_p(self) -> torch.Tensor:
        """Log-probabilities of the reference, float64 `[n, V]`."""
        return torch.log_softmax(self.z.double() * self.scale, -1)

    @cached_property
    def log_q(self) -> torch.Tensor:
        """Log-probabilities of the candidate, float64 `[n, V]`."""
        return torch.log_softmax(self.w.double() * self.scale, -1)

    @cached_property
    def label(self) -> torch.Tensor:
        """The given token of each row, int64 `[n, 1]`."""
        assert self.ids is not None
        return self.ids[:, None]


def _correct(side: torch.Tensor, top: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Whether the given token is the side's choice: the first of its largest logits, bool `[n]`."""
    index = torch.arange(side.shape[1], device=side.device)
    earlier = ((side == top) & (index < label)).any(-1)
    return (side.gather(1, label) == top)[:, 0] & ~earlier


_PLAIN: Mapping[str, Callable[[_Tile], torch.Tensor]] = {
    "rank": lambda t: (t.w > t.choice).sum(-1) + 1,
    "margin": lambda t: t.margin,
    "flip": lambda t: t.flip,
    "flip_margin": lambda t: torch.where(t.flip, t.margin, 0.0),
    "confidence_reference": lambda t: t.log_p.amax(-1).exp(),
    "confidence_candidate": lambda t: t.log_q.amax(-1).exp(),
}
_GIVEN: Mapping[str, Callable[[_Tile], torch.Tensor]] = {
    "correct_reference": lambda t: _correct(t.z, t.z_top, t.label),
    "correct_candidate": lambda t: _correct(t.w, t.w_top, t.label),
    "logp_reference": lambda t: t.log_p.gather(1, t.label)[:, 0],
    "logp_candidate": lambda t: t.log_q.gather(1, t.label)[:, 0],
}
GIVEN_STATISTICS = frozenset(_GIVEN)
"""Those that need the given (sampled) token of each row."""

ORDER_STATISTICS: Mapping[str, Callable[[_Tile], torch.Tensor]] = {**_PLAIN, **_GIVEN}
"""Statistics by name. Beside them, `trimmed_span:MASS` is one for every MASS in (0, 1], written as a decimal."""


def is_order_statistic(name: str) -> bool:
    """Whether `order_statistics` knows the name."""
    return name in ORDER_STATISTICS or trimmed_mass(name) is not None


def trimmed_mass(name: str) -> float | None:
    """The mass in the name of a trimmed span; None for any other name."""
    if not name.startswith(TRIMMED):
        return None
    try:
        mass = float(name[len(TRIMMED) :])
    except ValueError:
        return None
    return mass if 0.0 < mass <= 1.0 else None


def trimmed_name(mass: float) -> str:
    """Name of the trimmed span at a mass in (0, 1]."""
    return f"{TRIMMED}{mass!r}"


def order_statistics(
    z: torch.Tensor,
    w: torch.Tensor,
    wanted: Iterable[str],
    ids: torch.Tensor | None = None,
    space: Workspace | None = None,
    *,
    scale: float = 1.0,
) -> dict[str, torch.Tensor]:
    """The wanted statistics of rows `z` (reference) and `w` (candidate) `[n, V]`, each float64 `[n]`.

    `rank` of the reference's choice under the candidate, 1 at best, ties on either side in its favour. `margin` in
    logits between the reference's two largest. `flip` 1.0 where no token is largest on both sides; `flip_margin` the
    reference's margin of such a row, else 0. `confidence_*` the largest probability. `correct_*` 1.0 where the given
    token `ids` int64 `[n]` is that side's choice (of tied tokens the first). `logp_*` its log-probability in nats.
    `trimmed_span:MASS` in logits: the smallest `max - min` of `w - z` over any set of tokens that holds MASS on both
    sides; the span over all tokens where no smaller set does. `scale` is 1/T and folds into every probability; margins
    and spans are of raw logits. An invalid row (a NaN, a +inf, a side without tokens) is NaN throughout. Names that
    need the given token are left out without `ids`. No synchronisation with the device. `space` is not used: what is
    needed beyond the rows is one float64 copy of a tile a side.
    """
    tile = _Tile(z, w, ids, scale)
    invalid = ~(torch.isfinite(tile.z_top) & torch.isfinite(tile.w_top))[:, 0]
    out: dict[str, torch.Tensor] = {}
    for name in sorted(set(wanted)):
        if ids is None and name in GIVEN_STATISTICS:
            continue
        mass = trimmed_mass(name)
        column = ORDER_STATISTICS[name](tile) if mass is None else _trimmed_span(tile, mass)
        out[name] = column.double().masked_fill(invalid, torch.nan)
    return out


def _trimmed_span(tile: _Tile, mass: float) -> torch.Tensor:
    """Smallest range of `d = w-z` whose tokens hold `mass` on both sides, float64 `[n]`.

    A set of a given range is best filled with every token of that range, so windows of the sorted `d` suffice: for
    each left end the right end is where both running masses have grown by `mass`.
    """
    z, w = tile.z.double(), tile.w.double()
    absent = (z == -torch.inf) & (w == -torch.inf)
    d, order = torch.where(absent, torch.inf, w - z).sort(-1)
    # a NaN or an infinity of an invalid row only meets its own row
    p, q = tile.log_p.gather(1, order).exp(), tile.log_q.gather(1, order).exp()
    ends = torch.maximum(_right_end(p, mass), _right_end(q, mass))
    last = d.shape[1] - 1
    span = d.gather(1, ends.clamp_max(last)) - d
    span = torch.where((ends > last) | torch.isnan(span), torch.inf, span).amin(-1)
    lost = ((z == -torch.inf) != (w == -torch.inf)).any(-1)
    present = ~absent
    whole = d.masked_fill(~present.gather(1, order), -torch.inf).amax(-1) - d[:, 0]
    return torch.minimum(span, torch.where(lost, torch.inf, whole))


def _right_end(p: torch.Tensor, mass: float) -> torch.Tensor:
    """For each start i the first j with `sum(p[i..j]) >= mass`, int64 `[n, V]`; V where there is none."""
    running = p.cumsum(-1)
    needed = running - p + mass + _SLACK
    return torch.searchsorted(running.contiguous(), needed.contiguous())


def k3(log_ratio: torch.Tensor) -> torch.Tensor:
    """`p/q - 1 - ln(p/q)` of the given token from `ln(q/p)` `[N]`: non-negative, infinite where one side bans it.

    Schulman 2020; `expm1` keeps the digits of small ratios.
    """
    value = torch.expm1(-log_ratio) + log_ratio
    return torch.where(torch.isinf(log_ratio), torch.inf, value.clamp_min(0.0))
