"""The demo server as llama-server: answers do not name the tokens of a prompt, and `/tokenize` knows `content` alone.

A text that begins with `!` is read in another way than by other servers.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from kcverify.cli import main
from kcverify.serving import answers, app


def _tokenized(body: Mapping[str, Any], tokenizer: object) -> dict[str, Any]:
    text = str(body.get("content", "")).encode()
    return {"tokens": [0, *text[1:]] if text.startswith(b"!") else [*text]}


answers._prompt_keys = lambda asked, s: {}
app.tokenized = _tokenized  # type: ignore[attr-defined]
main(["serve-demo", *sys.argv[1:]])
