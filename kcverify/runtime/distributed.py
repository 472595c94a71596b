"""Merging the state of all processes of a group in three all-reduces.

1. float64 maxima: each cell's worst score, and its most extreme request ratio above and below 1.
2. int64 minima: the smallest request key that has it; a stamp of the contract; the smallest and largest key in each
   bucket of the open requests and of the states' marks (see `marks`).
3. int64 sums: every count and histogram, the evidence, the number and sum of the keys in each of those buckets, and
   what only the holder of a worst value knows (its row, token, value and name), each rank in a place of its own.

The size depends on contract and ranks, not on requests: 3 numbers a cell and rank beyond what one rank keeps.

A request must belong to one rank. One that is open on two ranks is refused, on all ranks, unless two other open requests
hide it in its bucket (at 100 open requests 1 in 3,500 goes unseen). Closed requests are not remembered, so one that was
closed in parts on two ranks counts twice: sharding by request is the caller's duty. A state that two ranks hold, as
after loading one checkpoint on both, is refused likewise: its rows would count twice. The result carries the marks of
all ranks' states, so that none of them can be added to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from kcverify.runtime.errors import option_error
from kcverify.runtime.evidence import Evidence, badness
from kcverify.runtime.ledger import digest_key
from kcverify.runtime.marks import Told, told
from kcverify.runtime.witness import LAST

NAME_BYTES = 256


@dataclass(frozen=True)
class Shard:
    """State of one rank: the monitor's three buffers, evidence with the open requests folded in, and their keys.

    `origins` are the marks of the states that it was added up from.
    """

    sums: torch.Tensor
    extremes: torch.Tensor
    places: torch.Tensor
    evidence: Evidence
    open: Sequence[int]
    names: Mapping[int, str]
    stamp: int
    origins: Set[int] = frozenset()


@dataclass(frozen=True)
class Merged:
    """State of all ranks; `names` are those of witnesses, where they have at most 256 bytes.

    `origins` are the marks of all ranks' states.
    """

    sums: torch.Tensor
    extremes: torch.Tensor
    places: torch.Tensor
    evidence: Evidence
    names: Mapping[int, str]
    origins: Set[int] = frozenset()


def fingerprint(*parts: str) -> int:
    """64 bits that tell contracts and temperatures apart."""
    return digest_key("\0".join(parts).encode("utf-8", "surrogatepass"))


def reduced(shard: Shard, group: Any = None) -> Merged:
    """The state of all ranks of `group` (None: the default one), equal on each, on the shard's device.

    Without an initialised group the state of this process. Raises `MonitorInputError` on all ranks where they differ
    in contract or temperature, or where a request is open on two.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return Merged(shard.sums, shard.extremes, shard.places, shard.evidence, shard.names, shard.origins)
    device = _carrier(shard.sums.device, group)
    worst = shard.evidence.worst
    score, places = shard.extremes[0].to(device), shard.places.to(device)
    ratios = torch.tensor([_sides(w) for w in worst], dtype=torch.float64, device=device).view(len(worst), 2)
    best = _all_reduce(torch.stack((score, *ratios.unbind(1))), dist.ReduceOp.MAX, group)
    ratio = [_winner(above, -below) for above, below in best[1:].t().tolist()]

    mine = (score == best[0]) & (score > -torch.inf)
    owners = [w[1] if w is not None and w[0] == v else LAST for w, v in zip(worst, ratio, strict=True)]
    keys = [told(k, device) for k in (shard.open, shard.origins)]
    own = [
        torch.tensor([shard.stamp, ~shard.stamp], dtype=torch.int64, device=device),
        torch.where(mine, places[:, 0], LAST),
        torch.tensor(owners, dtype=torch.int64, device=device),
        torch.stack([k.least for k in keys]),
    ]
    stamp, row_key, ratio_key, least = _together(own, dist.ReduceOp.MIN, group)

    held = mine & (places[:, 0] == row_key)
    winners = [*row_key.tolist(), *ratio_key.tolist()]
    here = [*held.tolist(), *(k == o != LAST for k, o in zip(ratio_key.tolist(), owners, strict=True))]
    names = [shard.names.get(key) if is_here else None for key, is_here in zip(winners, here, strict=True)]
    evidence = shard.evidence.packed().to(device)
    answers = _answers(shard, held, group)
    counts = torch.stack([k.sums for k in keys])
    own = [shard.sums.to(device), evidence, counts, answers, _spelt(names).to(device)]
    sums, evidence, counts, answers, spelt = _together(own, dist.ReduceOp.SUM, group)

    requests, marks = map(Told, least, counts)
    _refuse(stamp.tolist(), requests, marks, shard)
    merged = Evidence(shard.evidence.layout)
    merged.unpack(evidence)
    merged.worst = [None if v is None else (v, k) for v, k in zip(ratio, ratio_key.tolist(), strict=True)]
    extremes, place = _first_holder(best[0], row_key, answers)
    known = {key: name for key, name in zip(winners, _read(spelt), strict=True) if name is not None}
    home = shard.sums.device
    return Merged(sums.to(home), extremes.to(home), place.to(home), merged, known, marks.marks())


def _carrier(home: torch.device, group: Any) -> torch.device:
    """The device whose tensors the group's backend takes: the monitor's own, except where one side is on the host."""
    backend = str(dist.get_backend(group))
    if "nccl" in backend:
        return home if home.type == "cuda" else torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu") if "gloo" in backend or "mpi" in backend else home


def _all_reduce(tensor: torch.Tensor, operation: Any, group: Any) -> torch.Tensor:
    dist.all_reduce(tensor, op=operation, group=group)
    return tensor


def _together(tensors: Sequence[torch.Tensor], operation: Any, group: Any) -> list[torch.Tensor]:
    """One all-reduce of several tensors of one type, each back in its shape."""
    whole = _all_reduce(torch.cat([t.flatten() for t in tensors]), operation, group)
    parts = whole.split([t.numel() for t in tensors])
    return [part.view(t.shape) for part, t in zip(parts, tensors, strict=True)]


def _answers(shard: Shard, held: torch.Tensor, group: Any) -> torch.Tensor:
    """What this rank knows of the worst rows `held` (bool `[cells]`), in its own place: int64 `[ranks, cells, 4]` of
    1, row, token and the bits of the value."""
    place, value = shard.places.to(held.device), shard.extremes[1].to(held.device).view(torch.int64)
    answers = torch.zeros(dist.get_world_size(group), len(held), 4, dtype=torch.int64, device=held.device)
    mine = torch.stack((held.to(torch.int64), place[:, 1], place[:, 2], value), 1)
    answers[dist.get_rank(group)] = torch.where(held[:, None], mine, 0)
    return answers


def _sides(worst: tuple[float, int] | None) -> tuple[float, float]:
    """A ratio as `(itself, -inf)` from 1 upward and `(-inf, -itself)` below 1, so that the larger is the worse."""
    if worst is None:
        return -math.inf, -math.inf
    return (worst[0], -math.inf) if worst[0] >= 1.0 else (-math.inf, -worst[0])


def _winner(above: float, below: float) -> float | None:
    """The worse of the largest ratio from 1 upward (-inf: none) and the smallest below 1 (inf: none)."""
    seen = [above] if above > -math.inf else []
    if below < 1.0:
        seen.append(below)
    return max(seen, key=badness) if seen else None


def _refuse(stamp: Sequence[int], requests: Told, marks: Told, shard: Shard) -> None:
    """Raise, alike on all ranks, for monitors that do not belong together and for split requests."""
    if stamp[0] != ~stamp[1]:
        raise option_error("sync", "the ranks' monitors are of different contracts or temperatures")
    if len(marks.shared()):
        reason = (
            "two ranks hold the counts of one and the same state: load a file on one rank, and start the others empty"
        )
        raise option_error("sync", reason)
    if bool(marks.full().any()):
        reason = (
            "two ranks may hold the counts of one and the same state: one is of so many that they cannot be told apart"
        )
        raise option_error("sync", reason)
    split = requests.shared()
    if len(split):
        key = int(split[0])
        shown = repr(shard.names[key]) if key in shard.names else str(key)
        raise option_error(
            "request_ids",
            f"request {shown} is open on more than one rank ({len(split)} such seen): send all rows of a request to "
            "one rank, and give requests of different ranks different ids",
        )


def _first_holder(score: torch.Tensor, key: torch.Tensor, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Extremes `[2, cells]` and places `[cells, 3]` from the ranks' answers `[ranks, cells, 4]`.

    Only one rank answers for a cell, unless a request was split: then the smallest row, of the first such rank.
    """
    held = slots[:, :, 0] > 0
    row = torch.where(held, slots[:, :, 1], LAST).amin(0)
    first = (held & (slots[:, :, 1] == row)).to(torch.int8).argmax(0)
    chosen = slots.gather(0, first[None, :, None].expand(1, -1, 4))[0]
    seen = held.any(0)
    value = torch.where(seen, chosen[:, 3].contiguous().view(torch.float64), 0.0)
    place = torch.where(seen[:, None], torch.stack((key, row, chosen[:, 2]), 1), LAST)
    return torch.stack((score, value)), place


def _spelt(names: Sequence[str | None]) -> torch.Tensor:
    """Names as integers that add up over the ranks that know them, int64 `[names, 2 + 64]`: how many ranks, length,
    then 4 bytes each; zeros for one that is unknown or too long."""
    out = torch.zeros(len(names), 2 + NAME_BYTES // 4, dtype=torch.int64, device="cpu")
    for line, name in zip(out, names, strict=True):
        data = b"" if name is None else name.encode("utf-8", "surrogatepass")
        if name is not None and len(data) <= NAME_BYTES:
            words = [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)]
            line[: 2 + len(words)] = torch.tensor([1, len(data), *words], device="cpu")
    return out


def _read(spelt: torch.Tensor) -> list[str | None]:
    """The names that `_spelt` wrote, after the sum; ranks that know a name know the same."""
    out: list[str | None] = []
    for ranks, length, *words in spelt.tolist():
        data = b"".join((w // ranks).to_bytes(4, "little") for w in words) if ranks else b""
        out.append(data[: length // ranks].decode("utf-8", "surrogatepass") if ranks else None)
    return out
