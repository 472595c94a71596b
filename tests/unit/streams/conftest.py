"""Logits of the demo model under its kernels, computed once."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture(scope="session")
def demo_logits() -> dict[str, np.ndarray]:
    """float64 `[1024, 256]` by format: 16 windows of 64 tokens of the held-out text."""
    torch = pytest.importorskip("torch")
    from kcverify.measure.kernels import BY_NAME
    from kcverify.measure.sides import MODELS, model_logits, pack_all
    from kcverify.resources import data_path

    model = MODELS["demo"](None).model
    raw = np.frombuffer(data_path("heldout.txt").read_bytes()[: 16 * 64], dtype=np.uint8).reshape(16, 64)
    tokens = torch.tensor(raw.astype(np.int64))
    out = {}
    for name in ("float32", "bfloat16", "int8", "fp8", "int4"):
        basis = pack_all(model, BY_NAME[name])
        run = model_logits(name, model, torch.device("cpu"), lambda _, basis=basis: basis)
        out[name] = run(tokens).double().numpy().reshape(-1, 256)
    return out
