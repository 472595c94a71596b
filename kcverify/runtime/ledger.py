"""Per-request sums of the requests that are still open.

Bookkeeping of request ids is done on the host, from host ids; the sums themselves stay on the device and are exact
integers, so they add up in any order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

from kcverify.runtime.errors import option_error, shape_error
from kcverify.runtime.given import check_integers

RequestIds: TypeAlias = "torch.Tensor | Sequence[str | int]"
SMALLEST = 64


class Entry(NamedTuple):
    """Where the rows of an update belong, int64 `[N]` each: slots in the ledger's sums, and keys of their requests."""

    slots: torch.Tensor
    keys: torch.Tensor


class Ledger:
    """Open requests: key -> slot, with `sums` int64 `[slots, columns]`; column 0 counts the rows of the request.

    An integer id is its own key; the key of a string is the first 8 bytes of its BLAKE2b digest, so that shards agree
    without exchanging names. The slot of a closed request is zeroed and used again, so the table is as long as the
    most requests that were open at once, and keeps its shape from update to update.
    """

    def __init__(self, columns: int) -> None:
        self.slots: dict[int, int] = {}
        self.names: dict[int, str] = {}
        self.free: list[int] = []
        self.sums = torch.zeros(0, columns, dtype=torch.int64, device="cpu")

    def enter(self, keys: Sequence[int], device: torch.device) -> Entry:
        """Slots and keys of one row each, on `device`; requests that are new are opened.

        The copy to another device is from pinned memory and does not wait for it.
        """
        for key in dict.fromkeys(keys):
            if key not in self.slots:
                self.slots[key] = self.free.pop() if self.free else len(self.slots)
        self._grow(len(self.slots) + len(self.free), device)
        packed = torch.tensor([[self.slots[k] for k in keys], keys], dtype=torch.int64, device="cpu")
        if device.type == "cuda":
            packed = packed.pin_memory().to(device, non_blocking=True)
        return Entry(*packed.to(device).unbind(0))

    def keys(self, ids: RequestIds, count: int | None = None) -> list[int]:
        """Keys of `count` ids (None: of any number); `MonitorInputError` for a wrong number or type, or two names of one digest.

        Ids in a tensor on another device cost a copy that waits for the device.
        """
        if isinstance(ids, str | bytes) or not isinstance(ids, torch.Tensor | Sequence):
            hint = "give one id a row, in a list or a tensor"
            raise option_error("request_ids", f"{type(ids).__name__} is no sequence of ids: {hint}")
        if isinstance(ids, torch.Tensor):
            check_integers("request_ids", ids, "request ids")
            if ids.dim() != 1 or count not in (None, len(ids)):
                raise shape_error("request_ids", list(ids.shape), f"[{'N' if count is None else count}]")
            return [int(i) for i in ids.tolist()]
        if count not in (None, len(ids)):
            raise shape_error("request_ids", [len(ids)], f"[{count}]")
        for kind in set(map(type, ids)):
            if not issubclass(kind, str | int) or issubclass(kind, bool):
                raise option_error("request_ids", f"{kind.__name__} is neither a string nor an integer")
        known = {i: self.key(i) for i in dict.fromkeys(ids)}
        return [known[i] for i in ids]

    def key(self, name: str | int) -> int:
        """Key of one id."""
        if isinstance(name, int):
            if not -(2**63) <= name < 2**63:
                raise option_error("request_ids", f"{name} does not fit 64 bits")
            return name
        key = digest_key(name.encode("utf-8", "surrogatepass"))
        if self.names.setdefault(key, name) != name:
            raise option_error("request_ids", f"{name!r} and {self.names[key]!r} share a digest")
        return key

    def merge(self, other: Ledger) -> None:
        """Add the open requests of another ledger; a request that both hold is one request."""
        for key, name in other.names.items():
            self.names.setdefault(key, name)
        keys, theirs = other.used()
        if keys:
            entry = self.enter(keys, self.sums.device)
            self.sums.index_add_(0, entry.slots, theirs.to(self.sums.device))

    def take(self, keys: Iterable[int]) -> tuple[list[int], torch.Tensor]:
        """Remove the requests `keys` (unknown ones are ignored); return their keys and sums `[k, columns]`."""
        closing = [k for k in dict.fromkeys(keys) if k in self.slots]
        places = [self.slots.pop(k) for k in closing]
        index = torch.tensor(places, dtype=torch.int64, device=self.sums.device)
        rows = self.sums[index]
        self.sums.index_fill_(0, index, 0)
        self.free.extend(places)
        return closing, rows

    def used(self) -> tuple[list[int], torch.Tensor]:
        """Keys and sums `[open, columns]` of the open requests (a copy)."""
        index = torch.tensor(list(self.slots.values()), dtype=torch.int64, device=self.sums.device)
        return list(self.slots), self.sums[index]

    def forget(self, witnesses: Iterable[int]) -> None:
        """Drop the names of requests that are neither open nor in `witnesses`, so that names do not pile up."""
        kept = self.slots.keys() | set(witnesses)
        self.names = {key: name for key, name in self.names.items() if key in kept}

    def clear(self) -> None:
        """Forget every request; the table keeps its size."""
        self.slots, self.names, self.free = {}, {}, []
        self.sums.zero_()

    def state(self) -> dict[str, object]:
        """Plain containers and one tensor, for a checkpoint."""
        keys, sums = self.used()
        return {"keys": keys, "names": dict(self.names), "sums": sums}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        keys, names, sums = state["keys"], state["names"], state["sums"]
        if sums.shape != (len(keys), self.sums.shape[1]):
            raise option_error("state", f"{len(keys)} open requests with sums of shape {list(sums.shape)}")
        self.clear()
        self.names = dict(names)
        entry = self.enter(keys, self.sums.device)
        self.sums.index_copy_(0, entry.slots, sums.to(self.sums.device))

    def _grow(self, needed: int, device: torch.device) -> None:
        have = self.sums.shape[0]
        if needed <= have and self.sums.device == device:
            return
        rows = have if needed <= have else max(needed, 2 * have, SMALLEST)
        grown = torch.zeros(rows, self.sums.shape[1], dtype=torch.int64, device=device)
        grown[:have] = self.sums
        self.sums = grown


def digest_key(name: bytes) -> int:
    """The first 8 bytes of the BLAKE2b digest as a signed integer."""
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), signed=True)
