"""Server-sent events of an answer: split as they come, read and stripped one by one, put together at the end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

DONE = b"[DONE]"
_LARGEST_EVENT = 4 << 20


class Events:
    """Cuts a stream of bytes into events; bytes that are no complete event yet are kept."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, part: bytes) -> list[bytes]:
        """Complete events, each with its blank line. Raises ValueError for one that never ends."""
        new = max(0, len(self._rest) - 3)  # an end may have begun before
        self._rest += part
        if self._rest.find(b"\n\n", new) < 0 and self._rest.find(b"\r\n\r\n", new) < 0:
            if len(self._rest) > _LARGEST_EVENT:
                raise ValueError("an event does not end")
            return []
        *whole, rest = bytes(self._rest).replace(b"\r\n", b"\n").split(b"\n\n")
        self._rest = bytearray(rest)
        return [event + b"\n\n" for event in whole]

    @property
    def rest(self) -> bytes:
        """What came after the last complete event."""
        return bytes(self._rest)


def content(event: bytes) -> bytes | None:
    """The data of an event; None for comments and keep-alives."""
    lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


class Gathered:
    """Puts the events of one answer together into the shape of an answer that was not streamed."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.head: dict[str, Any] = {}
        self.choices: dict[int, dict[str, Any]] = {}
        self.done = False
        self.size = 0

    def add(self, found: Mapping[str, Any]) -> None:
        """One event's object."""
        for key in ("id", "model", "created", "system_fingerprint", "weight_version", "usage", "prompt_token_ids"):
            if found.get(key) is not None:
                self.head[key] = found[key]
        for choice in found.get("choices") or ():
            if isinstance(choice, dict):
                self._choice(choice)

    def _choice(self, choice: Mapping[str, Any]) -> None:
        index = choice.get("index", 0)
        kept = self.choices.setdefault(index if isinstance(index, int) else 0, {"text": "", "token_ids": []})
        delta = choice.get("delta")
        text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
        if isinstance(text, str):
            kept["text"] += text
        if isinstance(choice.get("token_ids"), list):
            kept["token_ids"] += choice["token_ids"]
        for key in ("finish_reason", "prompt_token_ids"):
            if choice.get(key) is not None:
                kept[key] = choice[key]
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, dict):
            lists = kept.setdefault("logprobs", {})
            for key, value in logprobs.items():
                if isinstance(value, list):
                    lists.setdefault(key, []).extend(value)

    def answer(self) -> dict[str, Any]:
        """The whole answer."""
        choices = []
        for index, kept in sorted(self.choices.items()):
            row = {**kept, "index": index}
            if not row["token_ids"]:
                del row["token_ids"]
            if self.kind == "chat":
                row["message"] = {"role": "assistant", "content": row["text"]}
            choices.append(row)
        return {**self.head, "choices": choices}


def strip(found: dict[str, Any], injected: Mapping[str, Any]) -> dict[str, Any]:
    """The same answer or event without what the client did not ask for."""
    found.pop("prompt_token_ids", None)
    for choice in found.get("choices") or ():
        if isinstance(choice, dict):
            choice.pop("token_ids", None)
            choice.pop("prompt_token_ids", None)
            if "logprobs" in injected and "logprobs" in choice:
                choice["logprobs"] = None
    return found


def unnumbered(found: Mapping[str, Any]) -> bool:
    """Whether a token of an answer or event has null for its log-probability: what computed it was no number."""
    for choice in found.get("choices") or ():
        lists = choice.get("logprobs") if isinstance(choice, dict) else None
        if not isinstance(lists, dict):
            continue
        content, values = lists.get("content"), lists.get("token_logprobs")
        rows = (
            [row.get("logprob", 0.0) for row in content if isinstance(row, dict)] if isinstance(content, list) else []
        )
        if None in rows or (isinstance(values, list) and None in values):
            return True
    return False


def dumped(found: Mapping[str, Any]) -> bytes:
    """An object as compact JSON; half of a surrogate pair stays escaped."""
    try:
        return json.dumps(found, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(found, separators=(",", ":")).encode()


def event_of(found: Mapping[str, Any]) -> bytes:
    """An object as an event."""
    return b"data: " + dumped(found) + b"\n\n"
