"""Requests of several choices, and prompts that are text, in front of a candidate that does not name their tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_cases import CONTRACT, TOKEN, Load, serving, whole

pytestmark = [pytest.mark.needs("torch"), pytest.mark.slow]

TEXT = CONTRACT.replace("drift: tv", "whole: sequence_ratio <= 3 except 40% -> L2\n drift: tv")
TOKENS = 3


def ask(load: Load, number: int, **fields: Any) -> httpx.Response:
    body = {"model": "demo", "max_tokens": TOKENS, "seed": 100 * number, **fields}
    return load.client.post("/v1/completions", json=body, headers={"x-request-id": f"r{number}"})


def test_all_choices_of_a_request_are_measured_and_both_sides_must_read_its_prompt_alike(tmp_path: Path) -> None:
    (tmp_path / "served.kc").write_text(TEXT, encoding="utf-8")
    (tmp_path / "token").write_text(TOKEN, encoding="utf-8")
    engine = str(Path(__file__).with_name("llama_engine.py"))
    with serving("serve-demo", "--kernel", "float32") as exact, serving(engine, "--kernel", "bf16") as fast:
        words = ("gateway", "served.kc", "--reference", exact.url, "--candidate", fast.url, "--store", "s.db", "--port", "0",
                 "--admin-token-file", "token", "--limit", "choices=3")  # fmt: skip
        with serving(*words, cwd=tmp_path) as process:
            load = Load(process.url)
            counts = _measured(load)
            _told(load)
            before = load.status()["sampler"]
            process.kill()
        with serving(*words, cwd=tmp_path) as process:
            assert Load(process.url).status()["sampler"] == before and before["seen"] == counts + 1


def _measured(load: Load) -> int:
    """Every shape of a request: its tokens are all there, and it is one request."""
    shapes: list[dict[str, Any]] = [
        {"prompt": [97, 98]}, {"prompt": [97, 98], "n": 3}, {"prompt": "hello"}, {"prompt": "hello", "n": 2},
        {"prompt": "hello", "n": 2, "stream": True}, {"prompt": [97, 98], "n": 3, "stream": True},
    ]  # fmt: skip
    answers = [ask(load, i, **fields) for i, fields in enumerate(shapes)]
    assert all(whole(a) for a in answers)
    assert [c["index"] for c in answers[1].json()["choices"]] == [0, 1, 2]
    pieces = [json.loads(line[6:]) for line in answers[5].text.split("\n\n") if line.startswith("data: {")]
    assert {c["index"] for p in pieces for c in p["choices"]} == {0, 1, 2}
    load.settled()
    status = load.status()
    cells = {c["clause"]: c for c in status["evidence"]}
    assert cells["drift"]["rows"] == TOKENS * sum(f.get("n", 1) for f in shapes), status["unobservable"]
    assert cells["drift"]["requests"] == cells["whole"]["requests"] == cells["whole"]["rows"] == len(shapes)
    assert cells["drift"]["missing"] == cells["whole"]["missing"] == cells["drift"]["invalid"] == 0
    assert status["traffic"]["void"] == status["traffic"]["dropped"] == {}
    assert {w["choice"] for w in status["witnesses"]["drift"]} > {None}
    return len(shapes)


def _told(load: Load) -> None:
    """More choices than are scored, and a prompt that the sides read in two ways."""
    assert whole(ask(load, 20, prompt=[97], n=4)) and whole(ask(load, 21, prompt="!hello"))
    load.settled()
    status = load.status()
    reasons = " ".join(status["unobservable"]["drift"])
    assert "4 choices, and more than 3 are not scored: --limit choices=N" in reasons
    assert "the candidate reads the prompt as 6 tokens, the reference as 6; they differ from token 0 on" in reasons
    assert status["traffic"]["void"] == {"prompt": 1}
    assert next(c for c in status["evidence"] if c["clause"] == "drift")["missing"] == 2
