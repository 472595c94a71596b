"""Tokenizers of the demo models: plain bytes, and byte-level BPE from the vocabulary and merges of a GGUF file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kcverify.diagnostics import input_error


@dataclass(frozen=True)
class Tokenizer:
    """`encode(bytes) -> ids` (UnicodeDecodeError where text must be UTF-8) and `decode(ids) -> text` for display."""

    name: str
    vocabulary: int
    encode: Callable[[bytes], list[int]]
    decode: Callable[[Sequence[int]], str]


def _decode_bytes(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", "replace")


BYTES = Tokenizer("bytes", 256, list, _decode_bytes)
"""One token a byte; any file is text to it."""

# SmolLM's pre-tokenizer: each digit alone, then GPT-2's pattern. Letters and digits are those of Python's `re`, which
# differ from \p{L} and \p{N} only in rare numerals.
_PIECES = re.compile(r"\d|[^\d]+")
_WORDS = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")


def _byte_letters() -> dict[int, str]:
    """GPT-2's letter for each byte: printable Latin-1 stands for itself, the rest for U+0100 onwards."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}


def _merge(word: str, ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """Parts of `word` after all merges, the lowest rank first."""
    parts = list(word)
    while len(parts) > 1:
        best = min(pairwise(parts), key=lambda pair: ranks.get(pair, len(ranks)))
        if best not in ranks:
            break
        merged: list[str] = []
        for part in parts:
            if merged and merged[-1] == best[0] and part == best[1]:
                merged[-1] = best[0] + best[1]
            else:
                merged.append(part)
        parts = merged
    return parts


def bpe_tokenizer(metadata: Mapping[str, Any], path: str) -> Tokenizer:
    """Byte-level BPE of a GGUF file's `tokenizer.ggml.tokens` and `.merges`; no token is added at the start.

    Raises InputError (`model_invalid`) where the lists are missing or a merge makes no token.
    """
    tokens, merges = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.merges")
    if not isinstance(tokens, list) or not isinstance(merges, list) or not all(isinstance(t, str) for t in tokens):
        raise input_error("model_invalid", path=path, reason="it holds no BPE vocabulary and merges")
    ids = {token: i for i, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in merges if isinstance(merge, str)]
    ranks = {(pair[0], pair[1]): i for i, pair in enumerate(pairs) if len(pair) == 2}
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    if len(ranks) != len(merges) or any(a + b not in ids for a, b in ranks) or unknown not in range(len(tokens)):
        raise input_error("model_invalid", path=path, reason="its BPE merges do not fit its vocabulary")
    letters = _byte_letters()
    values = {letter: byte for byte, letter in letters.items()}
    seen: dict[str, list[int]] = {}

    def word_ids(word: str) -> list[int]:
        if word not in seen:
            parts = _merge("".join(letters[byte] for byte in word.encode("utf-8")), ranks)
            seen[word] = [ids.get(part, unknown) for part in parts]  # a control byte may have no token of its own
        return seen[word]

    def encode(text: bytes) -> list[int]:
        pieces = _PIECES.findall(text.decode("utf-8"))
        return [i for piece in pieces for word in _WORDS.findall(piece) for i in word_ids(word)]

    def decode(token_ids: Sequence[int]) -> str:
        raw = bytes(values.get(letter, 63) for i in token_ids for letter in tokens[i])
        return raw.decode("utf-8", "replace")

    return Tokenizer("bpe", len(tokens), encode, decode)
