"""What a hostile client or upstream on the network can do to the gateway and the demo server: get an error, or nothing."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile_network import CONTRACT, TOKEN, Hostile, Served, upstream
from hostile_words import WORDS, unprintable

httpx = pytest.importorskip("httpx")
for package in ("starlette", "uvicorn", "transitions"):
    pytest.importorskip(package)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, type[Hostile], type[Hostile]]]:
    with upstream() as (safe, safe_url), upstream() as (other, other_url):
        other.elsewhere = other_url + "/v1/completions"
        gateway = Served(tmp_path_factory.mktemp("gateway"), safe_url, "http://127.0.0.1:9")
        safe.elsewhere = other_url + "/v1/completions"
        try:
            yield gateway, safe, other
        finally:
            written = gateway.close()
            assert TOKEN not in written, "the admin token was printed or logged"
            assert not unprintable(written)
            assert "Traceback" not in written, written


JSON = b"Content-Type: application/json\r\n"
BODY = b'{"model":"m","prompt":"x"}'
SMUGGLED = b"POST /admin/rollback HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
AMBIGUOUS = {
    "length twice": b"Content-Length: 26\r\nContent-Length: 5\r\n\r\n" + BODY,
    "length and chunks": b"Content-Length: 26\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "negative length": b"Content-Length: -1\r\n\r\n" + BODY,
    "length in words": b"Content-Length: 26abc\r\n\r\n" + BODY,
    "plus length": b"Content-Length: +26\r\n\r\n" + BODY,
    "huge length": b"Content-Length: 99999999999999999999999\r\n\r\n" + BODY,
    "arabic length": "Content-Length: ٢٦\r\n\r\n".encode() + BODY,
    "strange coding": b"Transfer-Encoding: xchunked\r\n\r\n" + BODY,
    "two codings": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n" + BODY,
    "bad chunk": b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + BODY + b"\r\n0\r\n\r\n",
    "negative chunk": b"Transfer-Encoding: chunked\r\n\r\n-1\r\n" + BODY + b"\r\n0\r\n\r\n",
    "space in name": b"Content-Length : 26\r\n\r\n" + BODY,
    "folded header": b"X-A: a\r\n b\r\nContent-Length: 5\r\n\r\n{",
    "null in header": b"X-A: a\x00b\r\nContent-Length: 26\r\n\r\n" + BODY,
    "huge header": b"X-A: " + b"a" * (1 << 20) + b"\r\n\r\n",
    "many headers": b"X-A: a\r\n" * 50_000 + b"\r\n",
}  # fmt: skip


def test_ambiguous_requests_reach_no_upstream_and_smuggle_nothing(served: Any) -> None:
    gateway, safe, _ = served
    safe.behaviour = "good"
    for name, rest in AMBIGUOUS.items():
        before = len(safe.asked)
        with contextlib.suppress(ConnectionError):
            out = gateway.raw(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + JSON + rest, 4.0)
            statuses = re.findall(rb"HTTP/1\.1 (\d+)", out)
            assert len(statuses) <= 1, (name, out)
            assert not statuses or statuses[0] in (b"400", b"408", b"413", b"431", b"411", b"501"), (name, out[:200])
        assert len(safe.asked) == before, name
    admin = {"authorization": f"Bearer {TOKEN}"}
    assert [e["kind"] for e in gateway.client.get("/admin/events", headers=admin).json()["events"]] == ["started"]
    assert gateway.client.get("/healthz").status_code == 200


def test_nothing_in_a_request_changes_the_upstream(served: Any) -> None:
    gateway, safe, other = served
    safe.behaviour, elsewhere = "good", other.elsewhere.removesuffix("/v1/completions").removeprefix("http://")
    before = len(other.asked)
    for headers in (
        {"Host": elsewhere}, {"X-Forwarded-Host": elsewhere}, {"Forwarded": f"host={elsewhere}"}, {"X-Original-URL": other.elsewhere},
        {"X-Upstream": other.elsewhere}, {"X-Kcverify-Route": "side=candidate"}, {"X-Kcverify-Tags": f"../../, {other.elsewhere}"},
    ):  # fmt: skip
        assert gateway.ask(**headers).status_code == 200, headers
    for fields in (
        {"model": other.elsewhere},
        {"base_url": other.elsewhere},
        {"api_base": other.elsewhere},
        {"metadata": {"url": other.elsewhere}},
    ):
        assert gateway.client.post("/v1/completions", json={"prompt": "x", "model": "m", **fields}).status_code == 200
    for target in (
        other.elsewhere,
        f"//{elsewhere}/v1/completions",
        "/v1/../v1/completions",
        "/v1/completions/../../admin/status",
        "/v1/completions?u=" + other.elsewhere,
    ):
        gateway.raw(
            f"POST {target} HTTP/1.1\r\nHost: {elsewhere}\r\nConnection: close\r\nContent-Length: 26\r\n\r\n".encode()
            + BODY,
            4.0,
        )
    assert len(other.asked) == before
    assert {path for _, path, _, _ in safe.asked} <= {"/v1/completions", "/v1/models"}


def test_a_redirect_is_not_followed(served: Any) -> None:
    gateway, safe, other = served
    safe.behaviour, before = "redirect", len(other.asked)
    answer = gateway.ask()
    safe.behaviour = "good"
    assert len(other.asked) == before
    assert answer.status_code == 502 and "location" not in answer.headers
    assert gateway.ask().status_code == 200


def test_headers_between_hops_and_secrets_do_not_pass(served: Any) -> None:
    gateway, safe, _ = served
    safe.behaviour = "split"
    sent = {"Connection": "keep-alive, X-Private", "X-Private": "p", "Cookie": "c=1", "TE": "trailers", "Proxy-Authorization": "Basic eA==",
            "Upgrade": "h2c", "X-Forwarded-For": "1.2.3.4", "Authorization": "Bearer of-the-client"}  # fmt: skip
    answer = gateway.ask(**sent)
    safe.behaviour = "good"
    assert answer.status_code == 200
    asked = safe.asked[-1][2]
    assert not {"x-private", "cookie", "te", "proxy-authorization", "upgrade", "x-forwarded-for"} & set(asked)
    assert asked["authorization"] == "Bearer of-the-client"
    assert not {"set-cookie", "x-secret", "connection"} & set(answer.headers)
    assert answer.headers["x-kcverify-route"] != "forged"


@pytest.mark.parametrize("behaviour", ["bomb", "endless", "packed"])
def test_a_list_of_models_is_bounded_and_never_unpacked(behaviour: str) -> None:
    import asyncio
    import resource

    from kcverify.gateway.settings import Limits
    from kcverify.gateway.upstream import Fault, Upstream

    async def learn(url: str) -> str:
        server = Upstream.at("safe", url, Limits())
        try:
            await server.learn()
        except Fault as fault:
            return fault.kind
        finally:
            await server.client.aclose()
        return f"learned {server.models}"

    with upstream() as (kind, url):
        kind.behaviour, before = behaviour, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert asyncio.run(learn(url)) in ("too_large", "invalid"), behaviour
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000, behaviour


@pytest.mark.parametrize("behaviour", ["bomb", "endless"])
def test_an_answer_to_a_question_of_ours_is_bounded(behaviour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from kcverify.diagnostics import InputError
    from kcverify.gateway import client

    monkeypatch.setattr(client, "LARGEST", 1 << 20)
    with upstream() as (kind, url):
        kind.behaviour = behaviour
        with pytest.raises(InputError, match=r"ReadError|without JSON"):
            client.send(url, "/admin/gate", {}, None)


def test_no_other_protocol_is_spoken(served: Any) -> None:
    gateway, _, _ = served
    head = b"GET /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\n"
    for asked in (
        b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
    ):
        assert gateway.raw(head + asked, 1.0).startswith(b"HTTP/1.1 405")


def test_a_body_nested_beyond_reason_is_refused(served: Any) -> None:
    gateway, safe, _ = served
    safe.behaviour, before = "good", len(safe.asked)
    for depth in (150, 900, 100_000):
        deep = b'{"prompt": "x", "model": "m", "a": ' + b"[" * depth + b"]" * depth + b"}"
        answer = gateway.client.post("/v1/completions", content=deep)
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "body_invalid", depth
    assert len(safe.asked) == before


@pytest.mark.parametrize("behaviour", ["bomb", "headers", "deep", "endless"])
def test_an_upstream_that_attacks_becomes_an_error(served: Any, behaviour: str) -> None:
    gateway, safe, _ = served
    safe.behaviour = behaviour
    answer = gateway.ask()
    safe.behaviour = "good"
    assert answer.status_code == 502 and answer.json()["error"]["code"] == "upstreams_failed"
    for line in Path(f"/proc/{gateway.process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            assert int(line.split()[1]) < 600_000, line
    for _ in range(60):
        if gateway.ask().status_code == 200:
            return
        time.sleep(0.1)
    raise AssertionError("the upstream did not come back")


def test_names_of_requests_inject_nothing_into_log_and_headers(served: Any) -> None:
    gateway, safe, _ = served
    safe.behaviour = "good"
    time.sleep(1.5)  # what the tests before asked is written down once a second
    before = len((gateway.folder / "log.jsonl").read_text().splitlines())
    accepted = 0
    for word in WORDS:
        value = word.encode("utf-8", "replace")[:4000].replace(b"\r", b"").replace(b"\n", b"")
        request = (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Request-Id: "
            + value
            + b"\r\nX-Kcverify-Tags: "
            + value
        )
        out = gateway.raw(request + b"\r\nContent-Length: 26\r\n\r\n" + BODY, 5.0)
        status = out.split(b" ", 2)[1:2]
        assert status in ([b"200"], [b"400"]), (word, out[:300])
        accepted += status == [b"200"]
        assert b"\r\nset-cookie" not in out.lower() and out.count(b"HTTP/1.1") == 1
    time.sleep(1.5)
    lines = (gateway.folder / "log.jsonl").read_text().splitlines()[before:]
    assert len(lines) == accepted
    assert all(isinstance(json.loads(line), dict) and line.isascii() and line.isprintable() for line in lines)
    metrics = gateway.client.get("/metrics").text
    assert not unprintable(metrics) and "<img" not in metrics


def test_the_token_opens_admin_and_nothing_else_does(served: Any) -> None:
    gateway, _, _ = served
    for given in ("", "Bearer", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, "Bearer \xff\xfe"):
        answer = gateway.client.get("/admin/status", headers={"authorization": given.encode("latin-1")})
        assert answer.status_code == 401 and TOKEN not in answer.text, given
    assert gateway.client.get("/admin/status", params={"token": TOKEN}).status_code == 401
    assert gateway.client.get("/admin/status", headers={"cookie": f"token={TOKEN}"}).status_code == 401
    admin = {"authorization": f"Bearer {TOKEN}"}
    assert TOKEN not in gateway.client.get("/admin/status", headers=admin).text
    form = gateway.client.post("/admin/pause", content=b"reason=x", headers={**admin, "content-type": "text/plain"})
    assert form.status_code == 409
    source = (Path(__file__).parents[2] / "kcverify" / "gateway" / "admin.py").read_text()
    assert "hmac.compare_digest" in source


def test_pages_of_the_gateway_hold_no_word_as_markup(served: Any) -> None:
    gateway, _, _ = served
    admin = {"authorization": f"Bearer {TOKEN}"}
    for path in ("/dashboard", "/dashboard/data", "/admin/status", "/<svg/onload=alert(1)>", "/metrics", "/healthz"):
        answer = gateway.client.get(path, headers=admin)
        if "html" in answer.headers.get("content-type", ""):
            assert "<img src=x" not in answer.text and "<svg/onload" not in answer.text
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert not unprintable(answer.text)
        assert TOKEN not in answer.text


def test_slow_clients_do_not_stop_the_others(served: Any) -> None:
    gateway, safe, _ = served
    safe.behaviour = "good"
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 26\r\n\r\n{"
    slow = []
    try:
        for i in range(100):
            connection = socket.create_connection(("127.0.0.1", gateway.port), timeout=10)
            connection.sendall(head if i % 2 else head[:30])
            slow.append(connection)
        began = time.monotonic()
        assert gateway.ask().status_code == 200
        assert time.monotonic() - began < 3
        slow[1].settimeout(10)
        assert b"408" in slow[1].recv(4096)
        slow[0].settimeout(10)
        assert slow[0].recv(4096) == b"", "a head that does not end is waited for"
    finally:
        for connection in slow:
            connection.close()


def refused(folder: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-m", "kcverify", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=60,
    )
    assert done.returncode == 2, (done.stdout, done.stderr)
    return done.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_other_machines_need_a_token(tmp_path: Path, host: str) -> None:
    (tmp_path / "c.kc").write_text(CONTRACT)
    told = refused(
        tmp_path, "gateway", "c.kc", "--reference", "http://127.0.0.1:9", "--candidate", "http://127.0.0.1:10", "--store", "s.db",
        "--port", "0", "--host", host,
    )  # fmt: skip
    assert "there is no token" in told


def test_a_page_whose_name_points_here_does_not_get_into_admin(tmp_path: Path) -> None:
    """Without a token the admin endpoints answer to loopback's own names alone."""
    with upstream() as (_, url):
        gateway = Served(tmp_path, url, "http://127.0.0.1:9", token=False)
        try:
            for host, status in (
                ("evil.example", 401),
                (f"evil.example:{gateway.port}", 401),
                (f"localhost:{gateway.port}", 200),
            ):
                assert gateway.client.get("/admin/status", headers={"host": host}).status_code == status, host
                answer = gateway.client.post("/admin/pause", json={}, headers={"host": host})
                assert answer.status_code == status, host
        finally:
            gateway.close()


@pytest.mark.needs("torch")
def test_the_demo_server_takes_no_ambiguous_request(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    running = subprocess.Popen(
        [sys.executable, "-m", "kcverify", "serve-demo", "--admin-token", TOKEN], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=environment,
    )  # fmt: skip
    try:
        assert running.stdout is not None
        first = running.stdout.readline()
        port = int(re.search(r":(\d+)", first)[1])  # type: ignore[index]
        for name, rest in AMBIGUOUS.items():
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), timeout=4) as connection,
            ):
                connection.sendall(b"POST /admin/fault HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + rest)
                connection.shutdown(socket.SHUT_WR)
                out = b""
                with contextlib.suppress(TimeoutError):
                    while part := connection.recv(65536):
                        out += part
                assert b"HTTP/1.1 200" not in out and out.count(b"HTTP/1.1") <= 1, (name, out[:200])
        client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
        for word in WORDS:
            body = {"model": word, "prompt": word, "max_tokens": 1, "stop": [word], "user": word}
            answer = client.post(
                "/v1/completions", content=json.dumps(body), headers={"content-type": "application/json"}
            )
            assert answer.status_code in (200, 400, 404), (word, answer.text)
        assert client.post("/v1/completions", content=b"x" * (2 << 20)).status_code == 413
        assert client.get("/admin/fault").status_code == 401
        assert client.get("/health").json() == {"status": "ok"}
        running.terminate()
        out, err = running.communicate(timeout=30)
        assert TOKEN not in first + out + err and not err
    finally:
        running.kill()
        running.wait()
