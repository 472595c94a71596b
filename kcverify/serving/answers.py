"""Shapes of answers: OpenAI's completion and chat objects with the keys that vLLM adds, whole and in pieces."""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

from kcverify.serving.asked import Asked
from kcverify.serving.engine import Sequence
from kcverify.serving.sampling import Scored

FLOOR = -9999.0
"""What vLLM writes for a log-probability of minus infinity, which JSON cannot hold."""

TEXTS = tuple(chr(i) if i < 128 else f"bytes:\\x{i:02x}" for i in range(256))
"""A token as a text of its own; bytes that are none stand as OpenAI writes them."""

AS_IDS = tuple(f"token_id:{i}" for i in range(256))


@dataclass(frozen=True)
class Identity:
    """What every answer says of the server."""

    id: str
    created: int
    model: str
    fingerprint: str
    weights: str

    def data(self, object: str) -> dict[str, Any]:
        """The head of an answer of this kind."""
        return {
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "system_fingerprint": self.fingerprint, "weight_version": self.weights,
        }  # fmt: skip


def dumps(value: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def whole(asked: Asked, identity: Identity) -> dict[str, Any]:
    """The whole answer of finished sequences."""
    choose = _chat_choice if asked.chat else _choice
    data = identity.data("chat.completion" if asked.chat else "text_completion")
    data["choices"] = [choose(asked, s, i) for i, s in enumerate(asked.sequences)]
    data["usage"] = usage(asked)
    if asked.chat:
        data |= _prompt_keys(asked, asked.sequences[0])
    return data


def usage(asked: Asked) -> dict[str, int]:
    """Tokens of prompts, each once, and answers."""
    prompt, new = sum(len(s.ids) for s in asked.sequences[:: asked.n]), sum(len(s.tokens) for s in asked.sequences)
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


def _text(raw: bytes | bytearray) -> str:
    return raw.decode("utf-8", "replace")


def _choice(asked: Asked, s: Sequence, index: int) -> dict[str, Any]:
    text, tokens, start = _text(s.raw[: s.visible]), s.tokens, 0
    if asked.echo:
        before = _text(bytes(s.ids))
        text, start = before + text, 0
        tokens = [*_echoed(s), *tokens]
    out = {
        "index": index, "text": text, "logprobs": _parallel(asked, tokens, start), "finish_reason": s.finish,
        "stop_reason": s.stop_reason,
    }  # fmt: skip
    if asked.ids_wanted:
        out["token_ids"] = [t.token for t in tokens]
    return out | _prompt_keys(asked, s)


def _echoed(s: Sequence) -> list[Scored]:
    """The prompt's tokens as `echo` shows them; the first has no log-probability."""
    rest = s.prompt or [Scored(token, float("nan")) for token in s.ids[1:]]
    return [Scored(s.ids[0], float("nan")), *rest]


def _prompt_keys(asked: Asked, s: Sequence) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if asked.prompt_logprobs is not None:
        out["prompt_logprobs"] = [None, *(_entry(t) for t in s.prompt)]
    if asked.ids_wanted:
        out["prompt_token_ids"] = s.ids
    return out


def _entry(t: Scored) -> dict[str, Any] | None:
    """One position as vLLM writes it: the token itself, then the most probable; null where the row was NaN."""
    if t.rank == 0:
        return None
    out: dict[str, Any] = {
        str(t.token): {"logprob": _finite(t.logprob), "rank": t.rank, "decoded_token": TEXTS[t.token]}
    }
    for rank, (token, logprob) in enumerate(t.top, 1):
        if token != t.token:
            out[str(token)] = {"logprob": logprob, "rank": rank, "decoded_token": TEXTS[token]}
    return out


def _finite(value: float) -> float | None:
    """JSON's number of a log-probability: null for NaN, as engines answer, and vLLM's floor for minus infinity."""
    return None if value != value else max(value, FLOOR)


def _parallel(asked: Asked, tokens: Many[Scored], start: int) -> dict[str, Any] | None:
    """The parallel lists of a completions answer; `start` is the place of the first token in the text."""
    if asked.logprobs is None:
        return None
    names = AS_IDS if asked.as_ids else TEXTS
    offsets: list[int] = []
    for t in tokens:
        offsets.append(start)
        start += len(TEXTS[t.token]) if t.token < 128 else 1
    return {
        "tokens": [names[t.token] for t in tokens], "token_logprobs": [_finite(t.logprob) for t in tokens],
        "top_logprobs": [_listed(names, t) for t in tokens] if asked.logprobs else None, "text_offset": offsets,
    }  # fmt: skip


def _listed(names: Many[str], t: Scored) -> dict[str, float | None] | None:
    """The most probable tokens and the token itself; null where the row was NaN."""
    if t.rank == 0:
        return None
    out: dict[str, float | None] = {names[i]: v for i, v in t.top}
    out[names[t.token]] = _finite(t.logprob)
    return out


def _content(asked: Asked, tokens: Many[Scored]) -> dict[str, Any] | None:
    """`logprobs.content` of a chat answer."""
    if asked.logprobs is None:
        return None
    names = AS_IDS if asked.as_ids else TEXTS

    def item(token: int, logprob: float | None) -> dict[str, Any]:
        return {"token": names[token], "logprob": logprob, "bytes": [token]}

    return {
        "content": [
            item(t.token, _finite(t.logprob)) | {"top_logprobs": [item(i, v) for i, v in t.top]} for t in tokens
        ]
    }


def _chat_choice(asked: Asked, s: Sequence, index: int) -> dict[str, Any]:
    out = {
        "index": index, "message": {"role": "assistant", "content": _text(s.raw[: s.visible])},
        "logprobs": _content(asked, s.tokens), "finish_reason": s.finish, "stop_reason": s.stop_reason,
    }  # fmt: skip
    if asked.ids_wanted:
        out["token_ids"] = [t.token for t in s.tokens]
    return out


class Pieces:
    """The pieces of one streamed sequence: text that can no longer turn out to be a stop text, and its tokens."""

    def __init__(self, asked: Asked, s: Sequence, index: int, identity: Identity) -> None:
        self._asked, self._s, self._index = asked, s, index
        self._head = identity.data("chat.completion.chunk" if asked.chat else "text_completion")
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = max((len(end) for end in s.stop), default=1) - 1
        self._bytes = self._tokens = self._offset = 0
        self._first = True

    def opening(self) -> bytes | None:
        """What comes before the first token, where something does."""
        keys = _prompt_keys(self._asked, self._s)
        if self._asked.chat:
            choice = {
                "index": self._index,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
            return self._event(choice, keys)
        if not self._asked.echo:
            return None
        tokens, text = _echoed(self._s), _text(bytes(self._s.ids))
        choice = {
            "index": self._index,
            "text": text,
            "logprobs": _parallel(self._asked, tokens, 0),
            "finish_reason": None,
        }
        self._offset = len(text)
        return self._event(choice, {})

    def next(self, upto: int) -> bytes | None:
        """The tokens up to number `upto` that were not sent yet, as one event; None where there is nothing to say."""
        s, asked = self._s, self._asked
        done = s.finish is not None and upto >= len(s.tokens)
        tokens = s.tokens[self._tokens : upto]
        if not tokens and not done:
            return None
        stop = s.visible if done else min(upto, max(s.visible - self._held, self._bytes))
        text = self._decoder.decode(bytes(s.raw[self._bytes : stop]), done)
        self._bytes, self._tokens = max(stop, self._bytes), upto
        choice: dict[str, Any] = {"index": self._index}
        if asked.chat:
            choice |= {"delta": {"content": text}, "logprobs": _content(asked, tokens)}
        else:
            choice |= {"text": text, "logprobs": _parallel(asked, tokens, self._offset)}
            self._offset += len(tokens)
        choice |= {"finish_reason": s.finish if done else None, "stop_reason": s.stop_reason if done else None}
        if asked.ids_wanted:
            choice["token_ids"] = [t.token for t in tokens]
        if self._first and not asked.chat:
            choice |= _prompt_keys(asked, s)
        self._first = False
        return self._event(choice, {})

    def _event(self, choice: dict[str, Any], keys: dict[str, Any]) -> bytes:
        return event(dumps(self._head | {"choices": [choice]} | keys))

    def usage(self) -> bytes:
        """The last event, where the client asked for it."""
        return event(dumps(self._head | {"choices": [], "usage": usage(self._asked)}))


DONE = b"data: [DONE]\n\n"


def event(data: bytes) -> bytes:
    """A server-sent event."""
    return b"data: " + data + b"\n\n"


def spoilt(data: bytes) -> bytes:
    """An answer of the right media type that no JSON parser takes."""
    return data[: max(1, len(data) * 2 // 3)] + b'"\x00}]'
