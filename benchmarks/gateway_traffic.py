"""Processes of a benchmark on loopback, and clients whose requests all follow from their numbers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[1]
TOKEN = "benchmark-token-0123456789"
AUTH = {"authorization": f"Bearer {TOKEN}"}


@dataclass
class Process:
    """A command that serves, and its URL."""

    words: Sequence[str]
    folder: Path
    url: str = ""
    process: subprocess.Popen[str] | None = None

    def start(self) -> Process:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, *self.words], stdout=subprocess.PIPE, text=True, env=environment, cwd=self.folder
        )
        assert self.process.stdout is not None
        found = re.search(r"http://[0-9.:]+[0-9]", line := self.process.stdout.readline())
        if found is None:
            raise SystemExit(f"{' '.join(self.words)}: {line!r}, exit code {self.process.poll()}")
        self.url = found[0]
        return self

    def again(self) -> None:
        """Start once more, on the same port."""
        self.end()
        at = list(self.words).index("--port") + 1
        self.words = [*self.words[:at], self.url.rpartition(":")[2], *self.words[at + 1 :]]
        self.start()

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        if self.process is None:
            return
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def server(folder: Path, kernel: str, *more: str) -> Process:
    """A demo server."""
    return Process(
        ["-m", "kcverify", "serve-demo", "--kernel", kernel, "--port", "0", "--admin-token", TOKEN, *more], folder
    )


@contextlib.contextmanager
def ended(*processes: Process) -> Iterator[None]:
    """End them with the block."""
    try:
        yield
    finally:
        for process in processes:
            process.end()


@dataclass(frozen=True)
class Answer:
    """What a client got: its text (None: no whole answer), who served it, in which phase, what went wrong."""

    number: int
    text: str | None
    served: str
    phase: str
    wrong: str = ""


def body_of(number: int, tokens: int) -> tuple[str, dict[str, Any]]:
    """Path and fields of a request: half are chats, a third are streamed; all of it follows from the number."""
    rng = random.Random(number)
    prompt = [rng.randrange(97, 123) for _ in range(6)]
    fields: dict[str, Any] = {"model": "demo", "max_tokens": tokens, "seed": number}
    if number % 2:
        return "/v1/chat/completions", {**fields, "messages": [{"role": "user", "content": bytes(prompt).decode()}]}
    return "/v1/completions", {**fields, "prompt": prompt}


def text_of(answer: httpx.Response) -> tuple[str | None, str]:
    """The text of a whole answer, or None and why there is none."""
    if answer.status_code != 200:
        return None, f"status {answer.status_code}"
    try:
        if "event-stream" not in answer.headers["content-type"]:
            return _piece(answer.json()), ""
        events = [line[5:].strip() for line in answer.text.split("\n") if line.startswith("data:")]
        if not events or events[-1] != "[DONE]" or any('"error"' in e[:9] for e in events):
            return None, "stream cut"
        return "".join(_piece(json.loads(e)) for e in events[:-1]), ""
    except (ValueError, KeyError, IndexError):
        return None, "no answer in it"


def _piece(found: Mapping[str, Any]) -> str:
    choices = found["choices"]
    if not choices:
        return ""
    part = choices[0].get("message") or choices[0].get("delta") or {}
    return str(part.get("content") or choices[0].get("text") or "")


@dataclass
class Traffic:
    """Clients of one gateway, their requests numbered through, and all that they got."""

    url: str
    clients: int = 4
    tokens: int = 2
    number: int = 0
    answers: list[Answer] = field(default_factory=list)

    def run(self, most: int, phase: str, until: Callable[[Mapping[str, Any]], bool] | None = None) -> bool:
        """Requests until a status is as wanted, `most` at most; whether it was."""
        return asyncio.run(self._run(most, phase, until))

    async def _run(self, most: int, phase: str, until: Callable[[Mapping[str, Any]], bool] | None) -> bool:
        numbers, stop = iter(range(self.number, self.number + most)), asyncio.Event()
        async with httpx.AsyncClient(base_url=self.url, timeout=60) as client:

            async def worker() -> None:
                for number in numbers:
                    self.number = max(self.number, number + 1)
                    self.answers.append(await self._one(client, number, phase))
                    if stop.is_set():
                        return

            async def watching() -> None:
                while until is not None and not stop.is_set():
                    await asyncio.sleep(0.1)
                    answer = await client.get("/admin/route", headers=AUTH)
                    if until(answer.json()):
                        stop.set()

            watcher = asyncio.ensure_future(watching())
            await asyncio.gather(*(worker() for _ in range(self.clients)))
            found = stop.is_set()
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
        if until is not None and not found:
            self.settled()
            found = until(httpx.get(f"{self.url}/admin/route", headers=AUTH, timeout=30).json())
        return found

    async def _one(self, client: httpx.AsyncClient, number: int, phase: str) -> Answer:
        path, fields = body_of(number, self.tokens)
        if number % 3 == 0:
            fields["stream"] = True
        try:
            answer = await client.post(path, json=fields, headers={"x-request-id": f"r{number}"})
        except httpx.HTTPError as error:
            return Answer(number, None, "", phase, type(error).__name__)
        text, wrong = text_of(answer)
        told = dict(p.partition("=")[::2] for p in answer.headers.get("x-kcverify-route", "").split("; "))
        return Answer(number, text, told.get("served", ""), phase, wrong)

    def status(self) -> dict[str, Any]:
        """Of the gateway."""
        answer = httpx.get(f"{self.url}/admin/status", headers=AUTH, timeout=60)
        return dict(json.loads(answer.text, parse_constant=str))

    def events(self) -> list[dict[str, Any]]:
        """All that the store holds."""
        return list(httpx.get(f"{self.url}/admin/events", headers=AUTH, timeout=60).json()["events"])

    def settled(self, seconds: float = 60.0) -> dict[str, Any]:
        """The status once all that was asked is measured."""
        end = time.monotonic() + seconds
        while True:
            status = self.status()
            traffic = status["traffic"]
            if time.monotonic() > end or not (traffic["waiting"] or traffic["copies"] or traffic["active"]):
                return status
            time.sleep(0.2)


def switched(candidate: Process, faults: Sequence[Mapping[str, Any]]) -> None:
    """Put faults in force, or none."""
    httpx.post(f"{candidate.url}/admin/fault", json=list(faults), headers=AUTH, timeout=60).raise_for_status()
