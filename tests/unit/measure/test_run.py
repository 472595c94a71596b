"""Rows in the order of the data, identity before numbers, and Ctrl-C."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from kcverify.diagnostics import InputError
from kcverify.measure.data import Request
from kcverify.measure.run import default_batch, file_requests, locate, run_pair
from kcverify.measure.sides import KernelSide, open_pair, open_side

CPU = torch.device("cpu")


def request(name: str, *ids: int) -> Request:
    return Request(name, ids)


REQUESTS = [request("a", 1, 2, 3), request("b", 4, 5, 6), request("c", 7), request("d", 8, 9), request("e", 1, 1)]


def echo(width: int, calls: list | None = None) -> KernelSide:
    """Logits that spell their own input: one-hot of each id."""

    def logits(ids: torch.Tensor) -> torch.Tensor:
        if calls is not None:
            calls.append(tuple(ids.shape))
        return torch.nn.functional.one_hot(ids, width).float()

    return KernelSide(f"echo{width}", {}, logits, CPU)


@pytest.mark.parametrize("batch", [1, 2, 16, None])
def test_rows_follow_the_data_whatever_the_batch(batch: int | None) -> None:
    chunks = []
    seen = []
    outcome = run_pair(
        echo(10), echo(10), REQUESTS, on_rows=chunks.append, batch=batch, progress=lambda *p: seen.append(p)
    )
    assert (outcome.complete, outcome.requests, outcome.rows) == (True, 5, 11)
    assert seen[-1] == (5, 5)
    assert torch.cat([c.reference for c in chunks]).argmax(-1).tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 1]
    assert [i for c in chunks for i in c.request_ids] == list("aaabbbcddee")
    assert torch.cat([c.positions for c in chunks]).tolist() == [0, 1, 2, 0, 1, 2, 0, 0, 1, 0, 1]
    assert torch.cat([c.next_ids for c in chunks]).tolist() == [2, 3, -1, 5, 6, -1, -1, 9, -1, 1, -1]
    assert [c.requests[i].request_id for c in chunks for i in c.request_index] == list("aaabbbcddee")


def test_only_neighbours_of_one_length_share_a_call() -> None:
    calls: list = []
    run_pair(echo(10, calls), echo(10), REQUESTS, on_rows=lambda rows: None, batch=8)
    assert calls == [(2, 3), (1, 1), (2, 2)]


def test_files_give_the_rows_of_the_kernel_that_wrote_them(tmp_path: Path) -> None:
    reference, candidate = open_pair("demo:float32", "demo:bfloat16")
    kept = []
    run_pair(reference, candidate, REQUESTS, on_rows=kept.append)
    ids = torch.tensor([i for r in REQUESTS for i in r.token_ids])
    np.save(tmp_path / "r.npy", torch.cat([k.reference for k in kept]).numpy())
    save_file({"logits": torch.cat([k.candidate for k in kept]), "token_ids": ids}, tmp_path / "c.safetensors")
    sides = (open_side(str(tmp_path / "r.npy")), open_side(str(tmp_path / "c.safetensors")))
    again = []
    run_pair(*sides, REQUESTS, on_rows=again.append, batch=2)
    run_pair(reference, sides[1], REQUESTS, on_rows=again.append, batch=16)
    run_pair(sides[0], candidate, REQUESTS, on_rows=again.append, batch=16)
    for side in ("reference", "candidate"):
        want = torch.cat([getattr(k, side) for k in kept])
        assert torch.allclose(torch.cat([getattr(k, side) for k in again]), want.repeat(3, 1), atol=1e-5)


def files(folder: Path, rows: int, width: int, token_ids: list[int] | None = None):
    path = folder / f"{rows}x{width}{'' if token_ids is None else 'ids'}.safetensors"
    tensors = {"logits": torch.zeros(rows, width)}
    save_file(tensors if token_ids is None else tensors | {"token_ids": torch.tensor(token_ids)}, path)
    return open_side(str(path))


def never(rows: object) -> None:
    raise AssertionError("a number was taken before identity was known")


def test_identity_comes_before_numbers(tmp_path: Path) -> None:
    same = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 1]
    cases = [
        (files(tmp_path, 11, 10), files(tmp_path, 11, 12), "reference has 10 vocabulary entries, candidate 12"),
        (files(tmp_path, 11, 10), files(tmp_path, 9, 10), "reference has 11 rows, candidate 9"),
        (files(tmp_path, 9, 10), echo(10), r"reference .* has 9 rows, the data has 11 positions"),
        (
            echo(10),
            files(tmp_path, 11, 10, [*same[:4], 0, *same[5:]]),
            r"row 4 \(request b, position 1\) is token 0 in .* and token 5 in the data",
        ),
        (echo(10), echo(12), "reference has 10 vocabulary entries, candidate 12"),
        (open_side("demo:float32"), files(tmp_path, 11, 10), "reference has 256 vocabulary entries, candidate 10"),
    ]
    for reference, candidate, message in cases:
        with pytest.raises(InputError, match=message):
            run_pair(reference, candidate, REQUESTS, on_rows=never)


def test_a_batch_below_one_is_refused() -> None:
    with pytest.raises(InputError, match="--batch"):
        run_pair(echo(10), echo(10), REQUESTS, on_rows=never, batch=0)


def test_an_interrupt_while_rows_are_taken_in_waits_for_them() -> None:
    taken = []

    def on_rows(rows) -> None:
        if len(taken) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        taken.append(rows)

    before = signal.getsignal(signal.SIGINT)
    outcome = run_pair(echo(10), echo(10), REQUESTS, on_rows=on_rows, batch=1)
    assert (outcome.complete, outcome.requests, outcome.rows, len(taken)) == (False, 2, 6, 2)
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_inside_a_kernel_keeps_what_was_taken_in() -> None:
    def logits(ids: torch.Tensor) -> torch.Tensor:
        if int(ids[0, 0]) == 7:
            raise KeyboardInterrupt
        return torch.zeros(*ids.shape, 10)

    outcome = run_pair(KernelSide("user", {}, logits, CPU), echo(10), REQUESTS, on_rows=lambda rows: None, batch=1)
    assert (outcome.complete, outcome.requests, outcome.rows) == (False, 2, 6)


def test_an_error_while_rows_are_taken_in_is_not_hidden() -> None:
    with pytest.raises(AssertionError):
        run_pair(echo(10), echo(10), REQUESTS, on_rows=never)


def test_rows_are_located_in_their_request() -> None:
    assert locate(REQUESTS, 0) == (REQUESTS[0], 0)
    assert locate(REQUESTS, 5) == (REQUESTS[1], 2)
    assert locate(REQUESTS, 10) == (REQUESTS[4], 1)
    with pytest.raises(IndexError):
        locate(REQUESTS, 11)


def test_files_without_data_are_cut_into_requests_of_rows(tmp_path: Path) -> None:
    side = files(tmp_path, 5, 4)
    requests = file_requests(side, 2)
    assert [(r.request_id, len(r.token_ids)) for r in requests] == [("rows-0", 2), ("rows-2", 2), ("rows-4", 1)]
    outcome = run_pair(side, side, requests, on_rows=lambda rows: None)
    assert outcome.rows == 5


def test_the_default_batch_bounds_memory() -> None:
    short, long = [request("a", *range(64))], [request("a", *range(256))]
    assert default_batch(short, 256) == 16
    assert default_batch(long, 49_152) == 1
    assert default_batch(short, 49_152) == 2
    assert default_batch([], None) >= 1
