"""Real processes for the tests of the gateway: demo servers with a switch for faults, the gateway, a load of requests."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import warm

from kcverify.cli import main

TOKEN = "test-token-0123456789"
CONTRACT = """contract served version "1"
assume { temperature = 1; sampler = full_softmax; vocabulary = 256; traffic = 100 requests/s }
numerical { drift: tv <= 0.1 except 20% -> L3 }
runtime {
  errors: failure_rate <= 20% -> L3
  slow:   p90 latency <= 60 s -> L2
}
observability { trace request_id, prompt_tokens, weight_version; fingerprint weights }
escalate {
  L2 -> guard, false_alarm_every 10_000 requests, dwell 1 s, recover 20 requests
  L3 -> rollback, false_alarm_every 10_000 requests, dwell 1 s, recover 20 requests
}
promote { shadow { mirror 100%, for 1 s, min 60 requests }; canary { traffic 50%, hold 1 s }; full { stable 1 s } }
"""


@dataclass
class Process:
    """A process that printed the URL it serves."""

    process: subprocess.Popen[str]
    url: str
    rest: str = ""

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def command(*words: str) -> list[str]:
    """A command of kcverify, or a script of the tests."""
    script = words[0].endswith(".py")
    return [sys.executable, *([] if script else ["-m", "kcverify"]), *words]


@contextlib.contextmanager
def serving(*words: str, cwd: Path | None = None) -> Iterator[Process]:
    """Run a command until its first line names a URL; ended with the block."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    root = str(Path(__file__).parents[2])
    environment["PYTHONPATH"] = root
    process = warm.Popen(command(*words), stdout=subprocess.PIPE, text=True, env=environment, cwd=cwd)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        match = re.search(r"http://[0-9.:]+[0-9]", line)
        assert match, f"{words}: {line!r}, exit code {process.poll()}"
        yield Process(process, match[0], line[match.end() :].strip(", \n"))
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()
        process.stdout.close()


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return warm.run(command(*words), capture_output=True, text=True, cwd=cwd, env=environment, timeout=120)


def inside(folder: Path, *words: str) -> tuple[int, str]:
    """Exit code and output of a command that is run in this process, which is quick."""
    out = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            main(list(words))
        except SystemExit as stop:
            return int(stop.code or 0), out.getvalue()
    raise AssertionError(words)


def fault(server: Process, *faults: dict[str, Any]) -> None:
    """Put faults in force, or none."""
    answer = httpx.post(
        f"{server.url}/admin/fault", json=list(faults), headers={"authorization": f"Bearer {TOKEN}"}, timeout=60
    )
    assert answer.status_code == 200, answer.text


@dataclass
class Load:
    """Requests of a few clients against a gateway, numbered through."""

    url: str
    number: int = 0

    def one(self, number: int, **more: Any) -> httpx.Response:
        rng = random.Random(number)
        fields = {"model": "demo", "max_tokens": 2, "seed": number, **more}
        prompt = [rng.randrange(97, 123) for _ in range(6)]
        path = "/v1/completions"
        if number % 2:
            fields["messages"] = [{"role": "user", "content": bytes(prompt).decode()}]
            path = "/v1/chat/completions"
        else:
            fields["prompt"] = prompt
        if number % 3 == 0:
            fields["stream"] = True
        return self.client.post(path, json=fields, headers={"x-request-id": f"r{number}"})

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, timeout=120)

    def run(self, count: int, **more: Any) -> list[httpx.Response]:
        """So many requests, four at a time."""
        first, self.number = self.number, self.number + count
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda i: self.one(i, **more), range(first, first + count)))

    def status(self) -> dict[str, Any]:
        answer = self.client.get("/admin/status", headers={"authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == 200, answer.text
        return dict(json.loads(answer.text, parse_constant=str))

    def until(self, wanted: str, most: int = 1200, batch: int = 20) -> int:
        """Requests until the route is as wanted."""
        start = self.number
        while self.number - start < most:
            answers = self.run(batch)
            assert all(whole(a) for a in answers), [a.text[:200] for a in answers if not whole(a)]
            if self.status()["route"]["route"] == wanted:
                return self.number - start
        raise AssertionError(f"not {wanted} after {most} requests: {self.status()['events'][-3:]}")

    def settled(self, seconds: float = 60.0) -> None:
        """Wait until everything that was asked is measured."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            traffic = self.status()["traffic"]
            if not any(traffic[key] for key in ("waiting", "copies", "active", "measuring")):
                return
            time.sleep(0.05)
        raise AssertionError(traffic)


def whole(answer: httpx.Response) -> bool:
    """Whether a client got a complete answer."""
    if answer.status_code != 200:
        return False
    if "event-stream" in answer.headers["content-type"]:
        return answer.text.rstrip().endswith("data: [DONE]") and '"error"' not in answer.text
    return bool(answer.json()["choices"])


def served(answer: httpx.Response) -> dict[str, str]:
    """What `X-Kcverify-Route` says."""
    parts = answer.headers["x-kcverify-route"].split("; ")
    return dict(p.split("=") if "=" in p else (p, "yes") for p in parts)
