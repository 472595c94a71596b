"""Reading text and JSON lines, and every way in which they can be wrong."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcverify.diagnostics import InputError
from kcverify.measure.data import Request, load_data, text_around
from kcverify.measure.tokenizer import BYTES


def write(folder: Path, name: str, content: bytes | str) -> str:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def line(**values: object) -> str:
    return json.dumps(values) + "\n"


def test_text_is_cut_into_windows_and_the_last_is_shorter(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", bytes(range(10, 20)))
    requests = load_data(path, window=4, tokenizer=BYTES)
    assert [r.token_ids for r in requests] == [(10, 11, 12, 13), (14, 15, 16, 17), (18, 19)]
    assert [r.request_id for r in requests] == ["window-0", "window-1", "window-2"]
    assert requests[2].fields == {"window": 2, "offset": 8}


@given(st.binary(min_size=1, max_size=200).filter(bytes.strip), st.integers(1, 50))
def test_windows_lose_no_byte(content: bytes, window: int) -> None:
    reader = SimpleNamespace(buffer=io.BytesIO(b"x" + content))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", reader)
        requests = load_data("-", window=window, tokenizer=BYTES)
    assert bytes(i for r in requests for i in r.token_ids) == b"x" + content


def test_limit_counts_requests(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", b"x" * 100)
    assert len(load_data(path, window=10, tokenizer=BYTES, limit=3)) == 3


def test_json_lines_carry_ids_text_tags_and_fields(tmp_path: Path) -> None:
    content = (
        line(request_id="a", token_ids=[1, 2], tags=["safety"], prompt_tokens=7, region="eu", nested={"x": 1})
        + "\n"
        + line(request_id=5, text="hé")
    )
    first, second = load_data(write(tmp_path, "a.jsonl", content), window=9, tokenizer=BYTES)
    assert first == Request("a", (1, 2), frozenset({"safety"}), {"prompt_tokens": 7, "region": "eu"})
    assert second == Request("5", tuple("hé".encode()))


def test_a_byte_order_mark_and_windows_line_ends_are_no_fault(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf" + line(request_id="a", token_ids=[1]).strip().encode() + b"\r\n"
    assert load_data(write(tmp_path, "a.jsonl", content), window=1, tokenizer=None)[0].token_ids == (1,)


def test_standard_input_is_told_by_its_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(line(request_id="a", token_ids=[3]).encode())))
    assert load_data("-", window=9, tokenizer=None)[0].token_ids == (3,)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"{ plain text")))
    assert load_data("-", window=99, tokenizer=BYTES)[0].token_ids == tuple(b"{ plain text")


GOOD = line(request_id="a", token_ids=[1])
BAD_LINES = [
    ("not JSON\n", r":2: not JSON: Expecting value at column 1"),
    ("[1]\n", r":2: a list, not an object"),
    (line(token_ids=[1]), r":2: `request_id` is missing"),
    (line(request_id=True, token_ids=[1]), r":2: `request_id` is True"),
    (line(request_id="", token_ids=[1]), r":2: `request_id` is ''"),
    (line(request_id="b"), r":2: it has neither `token_ids` nor `text`"),
    (line(request_id="b", token_ids=[]), r":2: it has no tokens"),
    (line(request_id="b", text=""), r":2: it has no tokens"),
    (line(request_id="b", token_ids=[1, 2.0]), r":2: `token_ids` is not a list of integers"),
    (line(request_id="b", token_ids=[True]), r":2: `token_ids` is not a list of integers"),
    (line(request_id="b", token_ids="12"), r":2: `token_ids` is not a list of integers"),
    (line(request_id="b", token_ids=[1, 256]), r":2: token id 256 is outside the vocabulary of 256"),
    (line(request_id="b", token_ids=[-1]), r":2: token id -1 is outside the vocabulary"),
    (line(request_id="b", token_ids=[1], tags="x"), r":2: `tags` is not a list of texts"),
    (line(request_id="b", token_ids=[1], prompt_tokens=-3), r":2: `prompt_tokens` is -3, not a count"),
    (line(request_id="b", token_ids=[1], prompt_tokens="9"), r":2: `prompt_tokens` is '9', not a count"),
    (line(request_id="b", text="\ud800"), r":2: `text` holds half of a surrogate pair"),
    (line(request_id="b", token_ids=[1], x=float("nan")), r":2: not JSON: NaN is not a JSON number"),
    ('{"request_id": "b", "request_id": "c", "token_ids": [1]}\n', r":2: not JSON: key 'request_id' occurs twice"),
    ("\n" + GOOD, r":3: request_id 'a' is that of line 1 too"),
    ('{"request_id": "' + "[" * 9 + "\n", r":2: not JSON: Unterminated string|:2: not JSON: Invalid control"),
    ("[" * 100_000 + "\n", r":2: not JSON: .*recursion"),
]


@pytest.mark.parametrize(("bad", "message"), BAD_LINES, ids=[m for _, m in BAD_LINES])
def test_a_bad_line_is_named_with_file_and_line(tmp_path: Path, bad: str, message: str) -> None:
    path = write(tmp_path, "a.jsonl", GOOD + bad)
    with pytest.raises(InputError, match="a.jsonl" + message):
        load_data(path, window=9, tokenizer=BYTES, vocabulary=256)


def test_a_line_that_is_not_utf_8(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", GOOD.encode() + b'{"request_id": "\xff"}\n')
    with pytest.raises(InputError, match=r"a.jsonl:2: not UTF-8 \(byte 16 of the line\)"):
        load_data(path, window=9, tokenizer=BYTES)


@pytest.mark.parametrize("content", [b"", b" \n\n"])
def test_an_empty_file_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InputError, match=r"a.txt is empty"):
        load_data(write(tmp_path, "a.txt", content), window=9, tokenizer=BYTES)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_data(str(tmp_path / "none.txt"), window=9, tokenizer=BYTES)
    with pytest.raises(InputError, match="Is a directory"):
        load_data(str(tmp_path), window=9, tokenizer=BYTES)


def test_text_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs a side with a tokenizer"):
        load_data(write(tmp_path, "a.txt", b"text"), window=9, tokenizer=None)
    with pytest.raises(InputError, match=r"a.jsonl:1: `text` needs a side with a tokenizer"):
        load_data(write(tmp_path, "a.jsonl", line(request_id="a", text="x")), window=9, tokenizer=None)


@pytest.mark.parametrize(("options", "name"), [({"window": 0}, "--window"), ({"window": 4, "limit": 0}, "--limit")])
def test_options_are_checked(tmp_path: Path, options: dict[str, int], name: str) -> None:
    with pytest.raises(InputError, match=name):
        load_data(write(tmp_path, "a.txt", b"text"), tokenizer=BYTES, **options)


def test_text_around_a_position() -> None:
    request = Request("a", tuple(b"hello world"))
    assert text_around(request, 4, BYTES, tokens=3) == ("llo", " ")
    assert text_around(request, 10, BYTES, tokens=3) == ("rld", "")


def test_an_array_of_token_ids_is_cut_into_windows_or_read_by_row(tmp_path: Path) -> None:
    path = str(tmp_path / "ids.npy")
    np.save(path, np.arange(5, dtype=np.uint8))
    found = load_data(path, window=2, tokenizer=None, vocabulary=5)
    assert [r.token_ids for r in found] == [(0, 1), (2, 3), (4,)]
    np.save(path, np.arange(6).reshape(2, 3))
    found = load_data(path, window=2, tokenizer=None)
    assert [(r.request_id, r.token_ids) for r in found] == [("row-0", (0, 1, 2)), ("row-1", (3, 4, 5))]
    with pytest.raises(InputError, match=r"ids.npy:2: token id 4 is outside the vocabulary of 4"):
        load_data(path, window=2, tokenizer=None, vocabulary=4)


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.ones(3), r"float64 \[3\], not integer token ids"),
        (np.zeros((2, 0), dtype=np.int64), r"int64 \[2, 0\], not integer"),
        (np.zeros((1, 1, 1), dtype=np.int64), r"int64 \[1, 1, 1\], not integer"),
        (np.array([-1]), "token id -1 is outside"),
        (np.array([{}], dtype=object), "not a usable .npy file"),
    ],
)
def test_an_array_of_anything_else_is_refused(tmp_path: Path, array: np.ndarray, reason: str) -> None:
    path = tmp_path / "ids.npy"
    np.save(path, array, allow_pickle=True)
    with pytest.raises(InputError, match=reason):
        load_data(str(path), window=2, tokenizer=None)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"ids.npy:1: "):
        load_data(str(path), window=2, tokenizer=None)
