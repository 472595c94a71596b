"""What the tests of `kcverify serve-demo` share: a server as a process, questions, the switch of its faults."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import jsonschema
import warm

TOKEN = "t0ken"
SCHEMA = jsonschema.Draft202012Validator(
    json.loads((Path(__file__).parents[2] / "docs" / "answers.schema.json").read_text(encoding="utf-8"))
)
ENV = os.environ | {"OMP_NUM_THREADS": "1"}
ASK = {
    "model": "demo",
    "prompt": "The hacker said that",
    "max_tokens": 8,
    "seed": 7,
    "logprobs": 3,
    "return_token_ids": True,
}


def start(*arguments: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    command = [sys.executable, "-m", "kcverify", "serve-demo", "--format", "json", *arguments]
    running = warm.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV)
    line = running.stdout.readline()
    if not line:
        raise AssertionError(running.communicate()[1])
    facts = json.loads(line)
    SCHEMA.validate(facts)
    assert facts["pid"] == running.pid
    return running, facts


@contextlib.contextmanager
def serving(*arguments: str) -> Iterator[httpx.Client]:
    running, facts = start(*arguments)
    try:
        with httpx.Client(base_url=facts["url"], timeout=60) as client:
            yield client
        running.terminate()
        out, err = running.communicate(timeout=30)
        assert (running.returncode, out, err) == (0, "", "")
    finally:
        running.kill()
        running.communicate()


def ask(client: httpx.Client, path: str = "/v1/completions", **changes: object) -> httpx.Response:
    return client.post(path, json={**ASK, **changes})


def put(client: httpx.Client, fault: object) -> None:
    answer = client.post("/admin/fault", json=fault, headers={"authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200, answer.text


def events(text: str) -> list[dict]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


Run = Callable[..., tuple[int, str, str]]
