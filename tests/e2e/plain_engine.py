"""The demo server as an engine without `prompt_logprobs`: it lists the most probable next tokens and no more."""

from __future__ import annotations

import sys
from typing import Any

from kcverify.cli import main
from kcverify.serving import answers
from kcverify.serving.asked import Asked
from kcverify.serving.engine import Sequence


def _without(asked: Asked, s: Sequence) -> dict[str, Any]:
    return {"prompt_token_ids": s.ids} if asked.ids_wanted else {}


answers._prompt_keys = _without
main(["serve-demo", *sys.argv[1:]])
