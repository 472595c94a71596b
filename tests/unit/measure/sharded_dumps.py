"""Dumps in several files, and how the tests of sharded runs measure them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from kcverify import driver
from kcverify.elaborate.contract import Contract
from kcverify.executors.pool import Answer
from kcverify.measure.options import MeasureOptions
from kcverify.measure.sharded import measure_shards

ROOT = Path(__file__).parents[3]
TEXT = """contract c
assume { temperature = 1; sampler = full_softmax; horizon <= 4 tokens; reward in [0, 1] }
slice early = position < 8
numerical {
  drift: logit_span <= 0.12 except 1% -> L2
  far: tv <= 0.05 except 1% -> L1
  soon: mean kl(candidate || reference) <= 1 nats on early -> L1
}
guarantee { safe: reward_drift <= 0.6 }
"""
ROWS = (40, 33, 8, 50, 17)
WIDTH = 64


def written(folder: Path, *, ids: bool = False, endings: tuple[str, str] = (".npy", ".safetensors")) -> Path:
    """Five shards a side; row 20 of shard 3 is not finite on one side."""
    generator = torch.Generator().manual_seed(4)
    for side in ("ref", "cand"):
        (folder / side).mkdir(parents=True, exist_ok=True)
    for i, rows in enumerate(ROWS):
        reference = 3 * torch.randn(rows, WIDTH, generator=generator)
        candidate = reference + 0.03 * torch.randn(rows, WIDTH, generator=generator)
        tokens = torch.randint(0, WIDTH, (rows,), generator=generator)
        if i == 3:
            candidate[20, 5] = torch.nan
        for side, ending, logits in zip(("ref", "cand"), endings, (reference, candidate), strict=True):
            path = folder / side / f"part-{i}{ending}"
            if ending == ".npy":
                np.save(path, logits.numpy())
            else:
                save_file({"logits": logits} | ({"token_ids": tokens} if ids else {}), path)
    return folder


def run(
    contract: Contract, dump: Path, data: str | None = None, executor: str = "serial", **options: Any
) -> dict[str, Any]:
    chosen = MeasureOptions(window=16, executor=executor, **options)
    return driver.measure(contract, str(dump / "ref"), str(dump / "cand"), data, chosen)


def text(result: dict[str, Any]) -> str:
    """Everything but the mark of the run, which no other run has."""
    return json.dumps({key: value for key, value in result.items() if key != "run"}, allow_nan=False)


class Shuffled:
    """Serial in an order of its own."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def map(self, function: Callable[[Any], Any], jobs: Sequence[Any]) -> Iterator[Answer]:
        order = random.Random(self.seed).sample(range(len(jobs)), len(jobs))
        for index in order:
            yield Answer(index, function(jobs[index]))


def through(contract: Contract, dump: Path, executor: Any, **options: Any) -> dict[str, Any]:
    checked, source = driver.check(contract), driver.emit_monitor(contract)
    chosen = MeasureOptions(window=16, **options)
    chosen.watch = driver.watch(chosen, {})
    return measure_shards(checked, source, str(dump / "ref"), str(dump / "cand"), None, chosen, executor)
