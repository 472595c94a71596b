"""llama.cpp's 16-bit rows: decoded to the last bit, and the truth always inside the error and the floor."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_files import DATA, SHARED, kld, requests

from kcverify.diagnostics import InputError
from kcverify.readers.answer import data
from kcverify.readers.inspection import inspect
from kcverify.readers.opening import open_stream
from kcverify.readers.stream import Status

FILES = ("ref", "q8_0", "q3_k_s")


@pytest.mark.parametrize("name", FILES)
def test_every_entry_is_scale_times_code_plus_minimum(name: str) -> None:
    path = DATA / f"llamacpp_{name}.kld"
    (a,) = requests(path)
    raw = path.read_bytes()
    width = 49152
    for t in range(2):
        at = 20 + 24 + t * 2 * (width + 4)
        scale, minimum = struct.unpack("<ff", raw[at : at + 8])
        codes = np.frombuffer(raw, "<u2", width, at + 8)
        assert np.array_equal(a.logits[t], scale * codes.astype(np.float64) + minimum)
        assert a.floor[t] == minimum
    assert a.token_ids.tolist() == list(struct.unpack("<6i", raw[20:44]))[4:]
    assert np.all(a.error < 1.5e-4)
    assert np.array_equal(a.logprobs, a.logits[np.arange(2), a.token_ids])


def normalised(rows: np.ndarray) -> np.ndarray:
    high = rows.max(axis=1, keepdims=True)
    return rows - high - np.log(np.exp(rows - high).sum(axis=1, keepdims=True))


@pytest.mark.parametrize(("key", "name"), [("q8", "q8_0"), ("q3", "q3_k_s")])
def test_the_statistics_of_the_case(key: str, name: str) -> None:
    folder = SHARED / "llamacpp"
    if not folder.is_dir():
        pytest.skip("needs ../shared/cases/llamacpp")
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))[key]
    both = [normalised(np.concatenate([r.logits for r in requests(folder / f"{n}.kld")])) for n in ("ref", name)]
    ref, candidate = both
    assert ref.shape == (expected["rows"], expected["vocabulary"])
    kl = (np.exp(ref) * (ref - candidate)).sum(axis=1)
    tv = np.abs(np.exp(ref) - np.exp(candidate)).sum(axis=1) / 2
    assert kl.mean() == pytest.approx(expected["mean_kl"], rel=1e-12)
    assert kl.max() == pytest.approx(expected["max_kl"], rel=1e-12)
    assert tv.mean() == pytest.approx(expected["mean_tv"], rel=1e-12)
    assert np.mean(ref.argmax(axis=1) == candidate.argmax(axis=1)) == expected["top1_equal"]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 1e-3, 0.1, 1.0, 3.0, 12.0]),
    st.floats(-300.0, 300.0),
    st.integers(2, 400),
)
def test_the_truth_is_inside_error_and_floor(tmp_path_factory, seed, spread, centre, width) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    rows = [(rng.normal(size=width) * spread + centre).astype(np.float32) for _ in range(2)]
    tokens = rng.integers(0, width, size=(1, 6))
    path = kld(tmp_path_factory.mktemp("kld") / "a.kld", tokens, [rows])
    (a,) = requests(path)
    truth = normalised(np.stack(rows).astype(np.float64))
    above = a.logits > a.floor[:, None]
    assert np.all(np.abs(a.logits - truth)[above] <= np.broadcast_to(a.error[:, None], above.shape)[above])
    assert np.all(truth[~above] <= np.broadcast_to((a.floor + a.error)[:, None], above.shape)[~above])
    picked = a.status == Status.VALUE
    assert np.all(np.abs(a.logprobs - truth[np.arange(2), a.token_ids])[picked] <= a.error[picked])


def test_a_clipped_token_is_no_number(tmp_path) -> None:  # type: ignore[no-untyped-def]
    rows = [np.array([0.0, -40.0, 1.0], dtype=np.float32)] * 2
    (a,) = requests(kld(tmp_path / "a.kld", np.array([[0, 0, 0, 0, 1, 2]]), [rows]))
    assert a.status.tolist() == [Status.PLACEHOLDER, Status.VALUE]
    assert a.fields["placeholders"] == {"clipped": 1}


def test_equal_logits_have_scale_zero(tmp_path) -> None:  # type: ignore[no-untyped-def]
    rows = [np.zeros(4, dtype=np.float32)] * 2
    (a,) = requests(kld(tmp_path / "a.kld", np.array([[0, 0, 0, 0, 1, 2]]), [rows]))
    assert a.logits == pytest.approx(np.full((2, 4), -np.log(4)), abs=1e-6)
    assert np.all(a.floor == -np.inf)


def fault(path, raw: bytes) -> str:  # type: ignore[no-untyped-def]
    path.write_bytes(raw)
    with pytest.raises(InputError) as caught:
        list(open_stream(path).requests())
    return caught.value.diagnostics[0].message


def test_files_that_do_not_keep_to_their_head(tmp_path) -> None:  # type: ignore[no-untyped-def]
    raw = (DATA / "llamacpp_ref.kld").read_bytes()
    path = tmp_path / "a.kld"
    assert "0 chunks are whole" in fault(path, raw[:-1])
    assert "follow the last row" in fault(path, raw + b"x")
    assert "ends inside its head" in fault(path, raw[:12])
    assert "nothing to read" in fault(path, raw[:8] + struct.pack("<iii", -1, 5, 1) + raw[20:])
    assert "token id 99999 is outside" in fault(path, raw[:36] + struct.pack("<i", 99999) + raw[40:])
    assert "more than 16 nats" in fault(path, raw[:44] + struct.pack("<f", 3.0) + raw[48:])


def test_a_row_with_nan_is_broken(tmp_path) -> None:  # type: ignore[no-untyped-def]
    raw = (DATA / "llamacpp_ref.kld").read_bytes()
    path = tmp_path / "a.kld"
    path.write_bytes(raw[:44] + struct.pack("<f", float("nan")) + raw[48:])
    (a,) = requests(path)
    assert a.status.tolist() == [Status.BROKEN, Status.VALUE]
    found = data(inspect(path))
    assert [p["value"] for p in found["placeholders"]] == ["broken row"]
    assert found["error"]["largest"] == "inf"
