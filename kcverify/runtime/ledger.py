"""Per-request sums of the requests that are still open.

Bookkeeping of request ids is done on the host (one transfer of the ids an update where they are on another device);
the sums themselves stay on the device and are exact integers, so they add up in any order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import torch

from kcverify.runtime.errors import option_error, shape_error

RequestIds: TypeAlias = "torch.Tensor | Sequence[str | int]"


class Ledger:
    """Open requests: key -> slot, with `sums` int64 `[slots, columns]`.

    An integer id is its own key; the key of a string is the first 8 bytes of its BLAKE2b digest, so that shards agree
    without exchanging names.
    """

    def __init__(self, columns: int) -> None:
        self.slots: dict[int, int] = {}
        self.names: dict[int, str] = {}
        self.lengths: dict[int, int] = {}
        self.sums = torch.zeros(0, columns, dtype=torch.int64)

    def enter(
        self, ids: RequestIds, count: int, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Slots, keys and row numbers within the request of `count` rows, each int64 `[count]` on `device`."""
        keys = self.keys(ids, count)
        slots, numbers = [], []
        for key in keys:
            slot = self.slots.get(key)
            if slot is None:
                slot = self.slots[key] = len(self.slots)
            number = self.lengths.get(key, 0)
            self.lengths[key] = number + 1
            slots.append(slot)
            numbers.append(number)
        self._grow(len(self.slots), device)
        packed = torch.tensor([slots, keys, numbers], dtype=torch.int64).to(device)
        return packed[0], packed[1], packed[2]

    def keys(self, ids: RequestIds, count: int) -> list[int]:
        """Keys of `count` ids; `MonitorInputError` for a wrong number or type, or two names of one digest."""
        if isinstance(ids, torch.Tensor):
            if tuple(ids.shape) != (count,):
                raise shape_error("request_ids", list(ids.shape), f"[{count}]")
            if ids.dtype.is_floating_point or ids.dtype == torch.bool:
                raise option_error("request_ids", f"dtype {ids.dtype} is not an integer type")
            return [int(i) for i in ids.tolist()]
        if len(ids) != count:
            raise shape_error("request_ids", [len(ids)], f"[{count}]")
        return [self.key(i) for i in ids]

    def key(self, name: str | int) -> int:
        """Key of one id."""
        if isinstance(name, int) and not isinstance(name, bool):
            if not -(2**63) <= name < 2**63:
                raise option_error("request_ids", f"{name} does not fit 64 bits")
            return name
        if not isinstance(name, str):
            raise option_error("request_ids", f"{type(name).__name__} is neither a string nor an integer")
        key = int.from_bytes(
            hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), signed=True
        )
        if self.names.setdefault(key, name) != name:
            raise option_error("request_ids", f"{name!r} and {self.names[key]!r} share a digest")
        return key

    def add(self, slots: torch.Tensor, columns: torch.Tensor) -> None:
        """Add `columns` int64 `[N, columns]` to the requests of the rows."""
        self.sums.index_add_(0, slots, columns)

    def merge(self, other: Ledger) -> None:
        """Add the open requests of another ledger; a request that both hold is one request."""
        for key, name in other.names.items():
            self.names.setdefault(key, name)
        keys = list(other.slots)
        for key in keys:
            self.slots.setdefault(key, len(self.slots))
            self.lengths[key] = self.lengths.get(key, 0) + other.lengths[key]
        self._grow(len(self.slots), self.sums.device)
        if keys:
            mine = torch.tensor([self.slots[k] for k in keys], device=self.sums.device)
            theirs = torch.tensor([other.slots[k] for k in keys], device=other.sums.device)
            self.sums.index_add_(0, mine, other.sums[theirs].to(self.sums.device))

    def take(self, keys: Iterable[int]) -> tuple[list[int], torch.Tensor]:
        """Remove the requests `keys` (unknown ones are ignored); return their keys and sums `[k, columns]`."""
        closing = [k for k in dict.fromkeys(keys) if k in self.slots]
        rows = self.sums[torch.tensor([self.slots[k] for k in closing], dtype=torch.int64, device=self.sums.device)]
        gone = set(closing)
        kept = [k for k in self.slots if k not in gone]
        index = torch.tensor([self.slots[k] for k in kept], dtype=torch.int64, device=self.sums.device)
        self.sums = self.sums[index]
        self.slots = {k: i for i, k in enumerate(kept)}
        self.lengths = {k: self.lengths[k] for k in kept}
        return closing, rows

    def used(self) -> tuple[list[int], torch.Tensor]:
        """Keys and sums `[open, columns]` of the open requests."""
        return list(self.slots), self.sums[: len(self.slots)]

    def state(self) -> dict[str, object]:
        """Plain containers and one tensor, for a checkpoint."""
        keys, sums = self.used()
        lengths = [self.lengths[k] for k in keys]
        return {"keys": keys, "lengths": lengths, "names": dict(self.names), "sums": sums.clone()}

    def load(self, state: dict[str, object]) -> None:
        """Restore what `state` returned."""
        keys, lengths, names, sums = state["keys"], state["lengths"], state["names"], state["sums"]
        assert isinstance(keys, list) and isinstance(lengths, list) and isinstance(names, dict)
        assert isinstance(sums, torch.Tensor)
        self.slots = {k: i for i, k in enumerate(keys)}
        self.lengths = dict(zip(keys, lengths, strict=True))
        self.names = dict(names)
        self.sums = sums.clone().to(self.sums.device)

    def _grow(self, needed: int, device: torch.device) -> None:
        if needed <= self.sums.shape[0] and self.sums.device == device:
            return
        grown = torch.zeros(
            max(needed, 2 * self.sums.shape[0], 64), self.sums.shape[1], dtype=torch.int64, device=device
        )
        grown[: self.sums.shape[0]] = self.sums
        self.sums = grown
