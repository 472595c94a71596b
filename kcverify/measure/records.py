"""A monitor's state as bytes, for the records of finished shards (see `executors.records`)."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import torch


def packed(state: Mapping[str, Any]) -> bytes:
    """A monitor's `state_dict` as bytes."""
    out = io.BytesIO()
    torch.save(dict(state), out)
    return out.getvalue()


def unpacked(state: bytes) -> dict[str, Any]:
    """What `packed` wrote."""
    found: dict[str, Any] = torch.load(io.BytesIO(state), map_location="cpu", weights_only=True)
    return found
