"""Reads the data of a measurement: text cut into windows, or JSON lines, one request each."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from kcverify.diagnostics import InputError, input_error
from kcverify.measure.tokenizer import Tokenizer

STANDARD_INPUT = "-"
_JSON_LINES = (".jsonl", ".ndjson", ".json")
_ARRAY = ".npy"
_COUNTS = ("prompt_tokens", "output_tokens")


@dataclass(frozen=True)
class Request:
    """One request: its token ids in order, its tags, and the trace fields that slices are predicates over.

    `traced`: the keys that its line has, whatever their values.
    """

    request_id: str
    token_ids: tuple[int, ...]
    tags: frozenset[str] = frozenset()
    fields: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    traced: frozenset[str] = field(default=frozenset(), compare=False)


@dataclass(frozen=True)
class Line:
    """Where a JSON line stands, and the rules its ids are held to."""

    path: str
    number: int
    tokenizer: Tokenizer | None = None
    vocabulary: int | None = None

    def fault(self, reason: str) -> InputError:
        """`data_invalid` at this line."""
        return input_error("data_invalid", path=self.path, line=self.number, reason=reason)


LARGEST = 512 << 20
"""Bytes of a file of requests or observations that are read."""
_TOO_LARGE = f"it is larger than {LARGEST >> 20} MiB"


def read_bytes(path: str) -> bytes:
    """Content of the file, or of standard input for `-`, at most `LARGEST` bytes.

    Raises InputError: `file_unreadable`, `file_empty`.
    """
    try:
        if path == STANDARD_INPUT:
            content = sys.stdin.buffer.read(LARGEST + 1)
        elif Path(path).stat().st_size > LARGEST:
            raise input_error("file_unreadable", path=path, reason=_TOO_LARGE)
        else:
            with Path(path).open("rb") as file:
                content = file.read(LARGEST + 1)
    except OSError as error:
        raise input_error("file_unreadable", path=path, reason=error.strerror or error) from error
    if len(content) > LARGEST:
        raise input_error("file_unreadable", path=_shown(path), reason=_TOO_LARGE)
    if not content.strip():
        raise input_error("file_empty", path=_shown(path))
    return content


def _shown(path: str) -> str:
    return "standard input" if path == STANDARD_INPUT else path


def _is_json_lines(path: str, content: bytes) -> bool:
    """By the file's ending; standard input has none, so there by its first line being a JSON object."""
    if path != STANDARD_INPUT:
        return Path(path).suffix.lower() in _JSON_LINES
    try:
        return isinstance(json.loads(content.lstrip().split(b"\n", 1)[0]), dict)
    except (ValueError, RecursionError):
        return False


def _windows(path: str, content: bytes, window: int, tokenizer: Tokenizer) -> Iterator[Request]:
    try:
        ids = tokenizer.encode(content)
    except UnicodeDecodeError as error:
        raise input_error("not_text", path=_shown(path), offset=error.start) from error
    yield from _cut(ids, window)


def _cut(ids: Sequence[int], window: int) -> Iterator[Request]:
    for index, start in enumerate(range(0, len(ids), window)):
        yield Request(f"window-{index}", tuple(ids[start : start + window]), fields={"window": index, "offset": start})


def _array(path: str, content: bytes, window: int, vocabulary: int | None) -> Iterator[Request]:
    """Requests of an array of token ids: of one axis cut into windows, of two axes one request a row."""
    try:
        ids = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, OverflowError, MemoryError, SyntaxError) as error:
        raise Line(path, 1).fault("not a usable .npy file: write integers with `numpy.save`") from error
    if not isinstance(ids, np.ndarray) or ids.dtype.kind not in "iu" or ids.ndim not in (1, 2) or not ids.size:
        found = f"{ids.dtype} {list(ids.shape)}" if isinstance(ids, np.ndarray) else "several arrays"
        raise Line(path, 1).fault(f"it holds {found}, not integer token ids [tokens] or [requests, tokens]")
    flat = ids.reshape(-1)
    outside = (flat < 0) | (flat >= (vocabulary or 1 << 62))
    if outside.any():
        at = int(outside.argmax())
        size = "" if vocabulary is None else f" of {vocabulary}"
        raise Line(path, 1 + at // ids.shape[-1] * (ids.ndim - 1)).fault(
            f"token id {flat[at]} is outside the vocabulary{size}"
        )
    if ids.ndim == 1:
        yield from _cut(ids.tolist(), window)
        return
    for index, row in enumerate(ids.tolist()):
        yield Request(f"row-{index}", tuple(row), fields={"offset": index * len(row)})


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) != len(keys):
        raise ValueError(f"key {next(k for k in keys if keys.count(k) > 1)!r} occurs twice")
    return dict(pairs)


def json_object(line: Line, raw: bytes) -> dict[str, Any]:
    """The JSON object of a line. Raises InputError: `data_invalid`."""
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        raise line.fault(f"not UTF-8 (byte {error.start} of the line)") from error
    except json.JSONDecodeError as error:
        raise line.fault(f"not JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:
        raise line.fault(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise line.fault(f"a {type(value).__name__}, not an object")
    return value


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def request_name(line: Line, value: object) -> str:
    """The request's id as text. Raises InputError: `data_invalid`."""
    if isinstance(value, str) and value:
        return value
    if _is_integer(value):
        return str(value)
    raise line.fault("`request_id` is missing" if value is None else f"`request_id` is {value!r}, no text or integer")


def _token_ids(line: Line, value: Mapping[str, Any]) -> tuple[int, ...]:
    ids = value.get("token_ids")
    if ids is None and isinstance(value.get("text"), str):
        if line.tokenizer is None:
            raise line.fault("`text` needs a side with a tokenizer; give `token_ids`")
        try:
            ids = line.tokenizer.encode(value["text"].encode("utf-8"))
        except UnicodeEncodeError as error:
            raise line.fault("`text` holds half of a surrogate pair") from error
    if ids is None:
        raise line.fault("it has neither `token_ids` nor `text`")
    if not isinstance(ids, list) or not all(_is_integer(i) for i in ids):
        raise line.fault("`token_ids` is not a list of integers")
    if not ids:
        raise line.fault("it has no tokens")
    limit = line.vocabulary
    outside = next((i for i in ids if i < 0 or (limit is not None and i >= limit)), None)
    if outside is not None:
        size = "" if limit is None else f" of {limit}"
        raise line.fault(f"token id {outside} is outside the vocabulary{size}")
    return tuple(ids)


def request_tags(line: Line, value: object) -> frozenset[str]:
    """The request's tags. Raises InputError: `data_invalid`."""
    if value is None:
        return frozenset()
    if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
        raise line.fault("`tags` is not a list of texts")
    return frozenset(value)


def _fields(line: Line, value: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """Every scalar beside the known keys; nested values are no trace fields."""
    for key in _COUNTS:
        if key in value and (not _is_integer(value[key]) or value[key] < 0):
            raise line.fault(f"`{key}` is {value[key]!r}, not a count")
    when = value.get("time_s")
    if when is not None and (isinstance(when, bool) or not isinstance(when, int | float) or not _is_finite(when)):
        raise line.fault("`time_s` is no number of seconds")
    known = ("request_id", "token_ids", "text", "tags")
    return {key: item for key, item in value.items() if key not in known and isinstance(item, (str, int, float, bool))}


def numbered(content: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines of a JSON lines file that hold anything, with their numbers."""
    for number, raw in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if raw.strip():
            yield number, raw


def _json_lines(
    path: str, content: bytes, tokenizer: Tokenizer | None, vocabulary: int | None
) -> Iterator[tuple[Line, Request]]:
    for number, raw in numbered(content):
        line = Line(_shown(path), number, tokenizer, vocabulary)
        value = json_object(line, raw)
        request_id = request_name(line, value.get("request_id"))
        ids = _token_ids(line, value)
        traced = frozenset(key for key, item in value.items() if item is not None)
        yield line, Request(request_id, ids, request_tags(line, value.get("tags")), _fields(line, value), traced)


def _distinct(lines: Iterable[tuple[Line, Request]]) -> Iterator[Request]:
    first: dict[str, int] = {}
    for line, request in lines:
        if request.request_id in first:
            raise line.fault(f"request_id {request.request_id!r} is that of line {first[request.request_id]} too")
        first[request.request_id] = line.number
        yield request


def load_data(
    path: str, *, window: int, tokenizer: Tokenizer | None, vocabulary: int | None = None, limit: int | None = None
) -> list[Request]:
    """Requests of a text file (windows of `window` tokens, the last shorter), of JSON lines or of token ids; `-` is standard input.

    JSON lines are told by the ending .jsonl, .ndjson or .json (standard input: by its first line), an array of token ids
    by .npy (one axis: windows; two: a request a row); anything else is text and needs a tokenizer. `vocabulary` bounds the ids; `limit` is the largest number of requests.
    Raises InputError: `file_unreadable`, `file_empty`, `not_text`, `data_invalid` (file and line), `option_invalid`.
    """
    if window < 1:
        raise input_error("option_invalid", option="--window", reason=f"{window} is not a positive number of tokens")
    if limit is not None and limit < 1:
        raise input_error("option_invalid", option="--limit", reason=f"{limit} is not a positive number of requests")
    content = read_bytes(path)
    requests: Iterable[Request]
    if _is_json_lines(path, content):
        requests = _distinct(_json_lines(path, content, tokenizer, vocabulary))
    elif Path(path).suffix.lower() == _ARRAY:
        requests = _array(path, content, window, vocabulary)
    elif tokenizer is None:
        reason = "text needs a side with a tokenizer; give token ids: JSON lines with `token_ids`, or integers in a .npy file"
        hint = "a torch module of your own brings a `tokenizer` with `encode(text)` and `decode(ids)`, as its attribute or beside its function"
        raise input_error("option_invalid", option="--data", reason=reason, hint=hint)
    else:
        requests = _windows(path, content, window, tokenizer)
    return [request for _, request in zip(range(limit or sys.maxsize), requests, strict=False)]


def text_around(request: Request, position: int, tokenizer: Tokenizer, tokens: int = 40) -> tuple[str, str]:
    """Text of the `tokens` tokens up to and including `position`, and of the token that follows (empty at the end)."""
    ids: Sequence[int] = request.token_ids
    before = tokenizer.decode(ids[max(0, position + 1 - tokens) : position + 1])
    return before, tokenizer.decode(ids[position + 1 : position + 2])
