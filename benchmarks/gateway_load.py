"""What the gateway adds to an answer: latency p50 and p99, requests per second, memory over time.

`wrk` asks an upstream alone, then the gateway in front of it; without `wrk` a loop of raw sockets does. The trivial
upstream is a process that answers from memory, so that what is added is the gateway's own; the demo server shows the
share of a real answer. `safe`: answers pass through (stage shadow, 1 % mirrored); `candidate`: every answer is the
candidate's, asked for log-probabilities, stripped of them, and scored on the reference beside the traffic. Latency is
that of one client that asks without a pause, and (`paced`) of one that asks 20 times a second, as far as measuring then
delays it.
`--minutes N` is the time of the memory run (10), `--quick` takes 20 s for everything, `--json` prints the numbers alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

SERVED = """contract load version "1"
assume {{ temperature = 1; traffic = 1000 requests/s }}
numerical {{ drift: tv <= 0.1 except 1% -> L2 }}
runtime {{ errors: failure_rate <= 1% -> L3; slow: p99 latency <= 2 s -> L1 }}
escalate {{ L2 -> guard, dwell 1 s, recover 200 requests; L3 -> rollback, dwell 1 s, recover 200 requests }}
promote {{ {stage} full {{ stable 1 d }} }}
"""
STAGES = {
    "safe": "shadow { mirror 1%, for 1 d }; canary { traffic 50% };",
    "candidate": "canary { traffic 100%, hold 1 d };",
}
BODY = {"model": "demo", "prompt": list(range(97, 113)), "max_tokens": 4, "temperature": 1, "seed": 1}
TOKENS = 8
PACED = 0
"""The key of the run at 20 requests a second, beside those of 1 and 16 clients without a pause."""
_LATENCY = re.compile(r"^\s+(50|99)(?:\.\d+)?%\s+([0-9.]+)(us|ms|s|m)\s*$", re.MULTILINE)
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}


# -- the trivial upstream ----------------------------------------------------------------------------------------------


def _answers() -> tuple[bytes, bytes]:
    """A completion with log-probabilities, and an answer with those of a prompt."""
    row = {f"token_id:{i}": -0.5 - i for i in range(20)}
    logprobs = {"tokens": ["token_id:0"] * TOKENS, "token_logprobs": [-0.5] * TOKENS, "top_logprobs": [row] * TOKENS}
    choice = {
        "index": 0,
        "text": "x" * TOKENS,
        "finish_reason": "length",
        "token_ids": [0] * TOKENS,
        "logprobs": logprobs,
    }
    head = {"id": "x", "object": "text_completion", "created": 1, "model": "demo"}
    whole = {**head, "choices": [{**choice, "prompt_token_ids": BODY["prompt"]}]}
    rows = [{str(i): {"logprob": -0.5 - i, "rank": i + 1} for i in range(20)}] * (len(BODY["prompt"]) + TOKENS)  # type: ignore[arg-type]
    return json.dumps(whole).encode(), json.dumps({**head, "choices": [{"text": "", "prompt_logprobs": rows}]}).encode()


class Trivial(asyncio.Protocol):
    """Answers whatever comes, pipelined or not, from two prepared bodies."""

    def __init__(self, answers: tuple[bytes, bytes]) -> None:
        heads = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self.models = b'{"data": [{"id": "demo", "vocabulary": 256}]}'
        self.models = heads % len(self.models) + self.models
        self.whole, self.scored = (heads % len(a) + a for a in answers)
        self.rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.rest += data
        while True:
            end = self.rest.find(b"\r\n\r\n")
            if end < 0:
                return
            found = re.search(rb"content-length: *([0-9]+)", self.rest[:end], re.IGNORECASE)
            size = end + 4 + (int(found[1]) if found else 0)
            if len(self.rest) < size:
                return
            request, self.rest = self.rest[:size], self.rest[size:]
            asked = (
                self.models
                if request.startswith(b"GET")
                else self.scored
                if b'"prompt_logprobs"' in request
                else self.whole
            )
            self.transport.write(asked)


async def trivial() -> None:
    answers = _answers()
    server = await asyncio.get_running_loop().create_server(lambda: Trivial(answers), "127.0.0.1", 0, backlog=1024)
    print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


# -- the load ----------------------------------------------------------------------------------------------------------


@dataclass
class Load:
    """Seconds at the median and the 99th percentile, requests a second, answers that were none."""

    p50: float
    p99: float
    rate: float
    failed: int


def wrk(url: str, connections: int, seconds: float, folder: Path) -> Load:
    """One thread of wrk."""
    script = folder / "post.lua"
    body = json.dumps(BODY)
    script.write_text(f"wrk.method = 'POST'\nwrk.body = [[{body}]]\nwrk.headers['content-type'] = 'application/json'\n")
    words = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--latency", "-s", str(script)]
    out = subprocess.run([*words, f"{url}/v1/completions"], capture_output=True, text=True, check=True).stdout
    times = {m[1]: float(m[2]) * _UNITS[m[3]] for m in _LATENCY.finditer(out)}
    rate = re.search(r"Requests/sec:\s+([0-9.]+)", out)
    failed = [int(n) for n in re.findall(r"(?:Non-2xx or 3xx responses|timeout|read|write|connect):? (\d+)", out)]
    assert rate is not None, out
    return Load(times.get("50", math.nan), times.get("99", math.nan), float(rate[1]), sum(failed))


def sockets(url: str, connections: int, seconds: float, folder: Path, pace: float = 0.0) -> Load:
    """The same from here, where wrk is not installed; with `pace` seconds from one request of a client to its next."""
    host, _, port = url.removeprefix("http://").partition(":")
    body = json.dumps(BODY).encode()
    request = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body  # fmt: skip
    times: list[float] = []
    failed = 0

    async def client(end: float) -> None:
        nonlocal failed
        reader, writer = await asyncio.open_connection(host, int(port))
        while time.perf_counter() < end:
            start = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            found = re.search(rb"content-length: *([0-9]+)", head, re.IGNORECASE)
            await reader.readexactly(int(found[1]) if found else 0)
            failed += not head.startswith(b"HTTP/1.1 200")
            times.append(time.perf_counter() - start)
            await asyncio.sleep(max(0.0, pace - times[-1]))
        writer.close()

    async def clients() -> None:
        await asyncio.gather(*(client(time.perf_counter() + seconds) for _ in range(connections)))

    asyncio.run(clients())
    times.sort()
    return Load(times[len(times) // 2], times[len(times) * 99 // 100], len(times) / seconds, failed)


# -- the runs ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(words: list[str], folder: Path) -> Iterator[tuple[str, int, float]]:
    """URL, process id and seconds until it listened."""
    start = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=folder)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = re.search(r"http://[0-9.:]+[0-9]", line)
        assert found, line
        yield found[0], process.pid, time.perf_counter() - start
    finally:
        process.terminate()
        process.wait(30)


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "kcverify", *words]


def gateway(kind: str, reference: str, candidate: str, folder: Path, number: int) -> list[str]:
    (folder / f"{kind}.kc").write_text(SERVED.format(stage=STAGES[kind]))
    return command("gateway", f"{kind}.kc", "--reference", reference, "--candidate", candidate, "--port", "0",
                   "--store", f"{kind}{number}.db")  # fmt: skip


def resident(pid: int) -> int:
    """KiB of memory that are in use."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) if found else 0


def memory(url: str, pid: int, seconds: float, folder: Path, ask) -> list[int]:  # type: ignore[no-untyped-def]
    """KiB after each tenth of a steady load."""
    found = []
    for _ in range(10):
        ask(url, 4, seconds / 10, folder)
        found.append(resident(pid))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-demo", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--upstream", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.upstream:
        asyncio.run(trivial())
        return
    ask = wrk if shutil.which("wrk") else sockets
    seconds, minutes = (1.5, 0.1) if options.quick else (10.0, options.minutes)
    out: dict[str, object] = {"load": ask.__name__}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        own = [sys.executable, str(Path(__file__).resolve()), "--upstream"]
        servers = {"trivial": [stack.enter_context(serving(own, folder))[0] for _ in range(2)]}
        if not options.no_demo:
            servers["demo"] = [
                stack.enter_context(serving(command("serve-demo", "--kernel", kernel), folder))[0]
                for kernel in ("float32", "bf16")
            ]
        for number, (upstream, (reference, candidate)) in enumerate(servers.items()):
            alone = {c: ask(candidate, c, seconds, folder) for c in (1, 16)}
            alone[PACED] = sockets(candidate, 1, seconds, folder, 0.05)
            for kind in STAGES:
                with serving(gateway(kind, reference, candidate, folder, number), folder) as (url, pid, start):
                    ask(url, 4, 1, folder)
                    time.sleep(seconds / 5)  # until what waits is measured
                    through = {PACED: sockets(url, 1, seconds, folder, 0.05)}
                    through |= {c: ask(url, c, seconds, folder) for c in (1, 16)}
                    row = _row(alone, through) | {"start_seconds": start}
                    if upstream == "trivial" and kind == "candidate":
                        row["memory_kib"] = memory(url, pid, 60 * minutes, folder, ask)
                    out[f"{upstream}, {kind}"] = row
                    if not options.json:
                        _print(upstream, kind, row)
    if options.json:
        print(json.dumps(out))


def _row(alone: dict[int, Load], through: dict[int, Load]) -> dict[str, object]:
    return {
        "added_p50_ms": 1000 * (through[1].p50 - alone[1].p50),
        "added_p99_ms": 1000 * (through[1].p99 - alone[1].p99),
        "paced_p50_ms": 1000 * (through[PACED].p50 - alone[PACED].p50),
        "paced_p99_ms": 1000 * (through[PACED].p99 - alone[PACED].p99),
        "rate_alone": alone[16].rate,
        "rate_through": through[16].rate,
        "failed": sum(load.failed for load in through.values()),
        "alone": {c: asdict(load) for c, load in alone.items()},
        "through": {c: asdict(load) for c, load in through.items()},
    }


def _print(upstream: str, kind: str, row: dict[str, object]) -> None:
    alone, through = row["rate_alone"], row["rate_through"]
    assert isinstance(alone, float) and isinstance(through, float)
    print(
        f"{upstream:8} {kind:10} added p50 {row['added_p50_ms']:.2f} ms, p99 {row['added_p99_ms']:.2f} ms, "
        f"paced {row['paced_p50_ms']:.2f} and {row['paced_p99_ms']:.2f} ms; 16 clients: "
        f"{through:,.0f} of {alone:,.0f} requests/s ({through / alone:.1%}); {row['failed']} failed; starts in {row['start_seconds']:.1f} s",
        flush=True,
    )
    if "memory_kib" in row:
        kib = row["memory_kib"]
        assert isinstance(kib, list)
        print(
            f"{'':19} memory after each tenth of the run: {', '.join(f'{k / 1024:.0f}' for k in kib)} MiB", flush=True
        )


if __name__ == "__main__":
    main()
