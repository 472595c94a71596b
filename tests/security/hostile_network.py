"""An upstream that attacks and a gateway in front of it, as real servers on loopback."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

httpx = pytest.importorskip("httpx")
for package in ("starlette", "uvicorn", "transitions"):
    pytest.importorskip(package)

TOKEN = "a-token-of-the-tests-0123456789"
CONTRACT = """contract served version "</script><img src=x onerror=alert(1)>"
  "{{7*7}} </script><svg/onload=alert(1)>"
assume { temperature = 1; sampler = full_softmax; vocabulary = 256; traffic = 100 requests/s }
runtime { errors: failure_rate <= 20% -> L3 }
escalate { L3 -> rollback, false_alarm_every 10_000 requests, dwell 1 s, recover 20 requests }
promote { shadow { mirror 100%, for 1 s, min 60 requests }; canary { traffic 50%, hold 1 s }; full { stable 1 s } }
"""
ANSWER = {
    "id": "x",
    "object": "text_completion",
    "model": "m",
    "choices": [{"index": 0, "text": "hello", "finish_reason": "stop"}],
}


@cache
def bomb() -> bytes:
    """64 MiB of zeros, in 64 KiB."""
    return gzip.compress(bytes(64 << 20))


class Hostile(BaseHTTPRequestHandler):
    """An upstream that answers as its name in `behaviour` says, and notes what it was asked."""

    protocol_version = "HTTP/1.1"
    behaviour = "good"
    asked: ClassVar[list[tuple[str, str, dict[str, str], bytes]]] = []
    elsewhere = ""

    def log_message(self, *_: Any) -> None:
        pass

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def _send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def do_GET(self) -> None:
        type(self).asked.append(("GET", self.path, dict(self.headers), b""))
        good = json.dumps({"data": [{"id": "m"}]}).encode()
        match type(self).behaviour:
            case "bomb":
                self._send(200, bomb(), content_encoding="gzip")
            case "packed":
                self._send(200, gzip.compress(good), content_encoding="gzip")
            case "endless":
                self._endless()
            case _:
                self._send(200, good)

    def _endless(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(OSError):
            for _ in range(4096):
                self.wfile.write(b"10000\r\n" + b"a" * 65536 + b"\r\n")
        self.close_connection = True

    def do_POST(self) -> None:
        body = self._body()
        type(self).asked.append(("POST", self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        good = json.dumps(ANSWER).encode()
        match type(self).behaviour:
            case "redirect":
                self._send(307, b"", location=type(self).elsewhere)
            case "bomb":
                self._send(200, bomb(), content_encoding="gzip")
            case "split":
                self.wfile.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nSet-Cookie: owned=1\r\nX-Kcverify-Route: forged\r\n"
                    b"Connection: X-Secret\r\nX-Secret: s\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"
                    % (len(good), good)
                )
            case "headers":
                self.wfile.write(b"HTTP/1.1 200 OK\r\n" + b"X-A: " + b"a" * (1 << 21) + b"\r\n\r\n")
                self.close_connection = True
            case "deep":
                self._send(200, b'{"choices":' + b"[" * 500000)
            case "endless":
                self._endless()
            case _:
                self._send(200, good)


@contextlib.contextmanager
def upstream() -> Iterator[tuple[type[Hostile], str]]:
    kind = type("Kind", (Hostile,), {"asked": [], "behaviour": "good"})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield kind, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class Served:
    """A gateway between two upstreams, all its output kept."""

    def __init__(self, folder: Path, safe: str, candidate: str, *, token: bool = True) -> None:
        (folder / "c.kc").write_text(CONTRACT)
        (folder / "token").write_text(TOKEN)
        words = ["gateway", "c.kc", "--reference", safe, "--candidate", candidate, "--store", "s.db", "--port", "0"]
        words += [
            *(("--admin-token-file", "token") if token else ()),
            "--log",
            "log.jsonl",
            "--limit",
            "first=3",
            "--limit",
            "answer=4000000",
        ]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        self.folder, self.errors = folder, (folder / "stderr").open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kcverify", *words],
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            cwd=folder,
            env=environment,
        )
        assert self.process.stdout is not None
        self.first = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.first)
        assert found, (self.first, (folder / "stderr").read_text())
        self.url, self.port = found[0], int(found[1])
        self.client = httpx.Client(base_url=self.url, timeout=30)

    def raw(self, request: bytes, seconds: float = 5.0) -> bytes:
        """What comes back for bytes, until the gateway closes or for so long."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as connection:
            connection.sendall(request)
            out = b""
            with contextlib.suppress(TimeoutError, ConnectionError):
                connection.settimeout(seconds)
                while part := connection.recv(65536):
                    out += part
            return out

    def ask(self, **headers: str) -> Any:
        return self.client.post("/v1/completions", json={"model": "m", "prompt": "x"}, headers=headers)

    def close(self) -> str:
        """End it; everything that it printed or wrote down."""
        self.client.close()
        self.process.terminate()
        out = self.process.communicate(timeout=30)[0]
        self.errors.close()
        return self.first + out + "".join((self.folder / n).read_text() for n in ("stderr", "log.jsonl"))
