"""Recorded sides that do not fit: other formats, ids on one side alone, numbers that are no logits, data that is cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from kcverify import driver
from kcverify.cli.measurement import measure
from kcverify.diagnostics import Diagnostic, InputError
from kcverify.measure.options import MeasureOptions
from kcverify.measure.sides import FILE_ENDINGS, open_side

CONTRACT = """contract c
assume { temperature = 1
 sampler = full_softmax
 storage = float32 }
numerical { drift: logit_span <= 0.6 -> L2 }
"""
ROWS = np.random.default_rng(0).normal(size=(12, 8)).astype(np.float32)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.kc").write_text(CONTRACT)
    np.save("plain.npy", ROWS)
    save_file({"logits": ROWS, "token_ids": np.arange(12) % 8}, "ids.safetensors")


def measured(reference: str, candidate: str, data: str | None = None, **options: Any) -> dict[str, Any]:
    [contract] = driver.load("c.kc")
    return driver.measure(contract, [reference], [candidate], data, MeasureOptions(window=4, **options))


def refused(side: str) -> Diagnostic:
    with pytest.raises(InputError) as caught:
        open_side(side)
    [found] = caught.value.diagnostics
    return found


@pytest.mark.parametrize("name", ["x.npz", "x.pt", "c.kc"])
def test_a_file_of_another_format_is_told_what_a_side_takes(name: str) -> None:
    np.savez("x.npz", logits=ROWS)
    torch.save(torch.from_numpy(ROWS), "x.pt")
    found = refused(name)
    assert found.code.slug == "side_unknown" and "it is a file" in found.message
    assert all(ending in found.message and ending in found.hint for ending in FILE_ENDINGS)
    assert ("kcverify inspect" in found.hint) == (name != "c.kc")


def test_a_side_that_is_not_there_is_told_what_a_side_takes() -> None:
    found = refused("none.bin")
    assert found.message.endswith("it names no kernel and no file")
    assert all(word in found.hint for word in ("demo:FORMAT", "module:function", *FILE_ENDINGS))


def test_the_help_names_every_format_of_the_table() -> None:
    told = str(measure.__annotations__["reference"])
    assert all(ending in told for ending in FILE_ENDINGS)


@pytest.mark.parametrize("pair", [("plain.npy", "ids.safetensors"), ("ids.safetensors", "plain.npy")])
@pytest.mark.parametrize("executor", [None, "serial"])
def test_ids_on_one_side_alone_are_noted(pair: tuple[str, str], executor: str | None) -> None:
    """Which side has them changes nothing: the rows are compared, and what was not checked is said."""
    found = measured(*pair, executor=executor)
    note = "plain.npy has no token ids, ids.safetensors has: that both scored the same tokens is assumed, not checked"
    assert note in found["measured"]["notes"]
    assert found["complete"] and found["data"]["measured rows"] == 12
    alone = measured("plain.npy", "plain.npy", executor=executor)
    assert not any("token ids" in told for told in alone["measured"]["notes"])


def test_a_file_of_integers_is_told_what_logits_are() -> None:
    np.save("codes.npy", (ROWS * 10).astype(np.int32))
    found = refused("codes.npy")
    assert found.code.slug == "logits_invalid" and "it holds int32, not floating-point logits" in found.message
    assert "function" not in found.hint and "floating-point" in found.hint


def test_a_file_that_is_cut_short_is_told_by_how_much() -> None:
    Path("cut.npy").write_bytes(Path("plain.npy").read_bytes()[:-100])
    found = refused("cut.npy")
    assert (
        found.code.slug == "logits_invalid" and "needs 384 bytes, and 284 are there: it is cut short" in found.message
    )
    assert "function" not in found.hint


@pytest.mark.parametrize("executor", [None, "serial"])
def test_a_limit_that_cuts_the_data_is_named(executor: str | None) -> None:
    lines = [json.dumps({"request_id": f"r{i}", "token_ids": [1, 2, 3, 4]}) for i in range(3)]
    Path("d.jsonl").write_text("\n".join(lines))
    assert measured("plain.npy", "plain.npy", "d.jsonl", executor=executor)["complete"]
    with pytest.raises(InputError, match="12 rows, the data has 8 positions") as caught:
        measured("plain.npy", "plain.npy", "d.jsonl", limit=2, executor=executor)
    assert "`--limit 2`" in caught.value.diagnostics[0].hint
    Path("d.jsonl").write_text(lines[0])
    with pytest.raises(InputError, match="12 rows, the data has 4 positions") as caught:
        measured("plain.npy", "plain.npy", "d.jsonl", executor=executor)
    assert "--limit" not in caught.value.diagnostics[0].hint
