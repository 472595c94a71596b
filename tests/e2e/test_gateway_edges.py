"""What a gateway refuses, and how: options, requests, tokens; it stops cleanly and never answers with a traceback."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import httpx
import pytest
from gateway_cases import CONTRACT, TOKEN, Load, inside, served, serving, whole

from kcverify.cli import main

NOBODY = "http://127.0.0.1:9"
"""The discard port: nothing answers there."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "served.kc").write_text(CONTRACT, encoding="utf-8")
    (tmp_path / "token").write_text(TOKEN, encoding="utf-8")
    (tmp_path / "short").write_text("secret", encoding="utf-8")
    return tmp_path


def options(*more: str, reference: str = NOBODY, candidate: str = "http://127.0.0.1:10") -> tuple[str, ...]:
    return (
        "gateway",
        "served.kc",
        "--reference",
        reference,
        "--candidate",
        candidate,
        "--store",
        "s.db",
        "--port",
        "0",
        *more,
    )


WRONG = [
    (("gateway", "served.kc", "--store", "s.db"), "--reference: it is needed"),
    (("gateway", "served.kc", "--reference", NOBODY, "--store", "s.db"), "--candidate: it is needed"),
    (options()[:6], "--store: it is needed"),
    (options(reference="ftp://x"), "no URL of a server"),
    (options(reference="http://u:p@127.0.0.1:1"), "must not hold a password"),
    (options(candidate=NOBODY), "the candidate's own URL"),
    (options("--host", "0.0.0.0"), "can be reached from other machines"),
    (options("--admin-token-file", "short"), "at least 16"),
    (options("--admin-token-file", "missing"), "cannot be read"),
    (options("--limit", "speed=3"), "it is no limit"),
    (options("--limit", "queue=0.5"), "no whole number"),
    (options("--measure", "120%"), "--measure"),
    (options("--logprobs", "cooked"), "not raw or processed"),
    (options("--log", "no/such/folder/log"), "no such file"),
    (("gate", "served.kc", "--gateway", NOBODY), "KC615"),
    (("gate", "served.kc", "--gateway", NOBODY, "--store", "s.db"), "its own store"),
    (("route", "nginx", "served.kc", "--store", "s.db"), "holds no store yet"),
]


def test_wrong_options_are_told_and_exit_with_2(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    for words, told in WRONG:
        with pytest.raises(SystemExit) as stop:
            main(list(words))
        shown = capsys.readouterr().err.replace("\n", " ")
        assert (stop.value.code, told in shown) == (2, True), (words, shown)


def test_a_keep_alive_commits_to_nothing(folder: Path) -> None:
    """A candidate that sends comments and breaks off before its first event: the client gets the other's answer."""
    (folder / "served.kc").write_text(
        CONTRACT.replace("shadow { mirror 100%, for 1 s, min 60 requests }; canary { traffic 50%, hold 1 s }; ", "")
    )
    script = str(Path(__file__).with_name("streaming_upstream.py"))
    with (
        serving(script, "whole") as good,
        serving(script, "pings") as bad,
        serving(*options(reference=good.url, candidate=bad.url), cwd=folder) as process,
    ):
        answer = httpx.post(
            f"{process.url}/v1/completions", json={"model": "m", "prompt": [1], "stream": True}, timeout=60
        )
    assert served(answer) == {"version": served(answer)["version"], "side": "candidate", "served": "guarded"}
    assert whole(answer) and "whole" in answer.text and ": ping" not in answer.text


def test_a_request_that_the_candidate_alone_refuses_is_its_failure(folder: Path) -> None:
    """The next upstream answers it; where that refuses it too, the client was wrong, and nothing is counted."""
    text = CONTRACT.replace("shadow { mirror 100%, for 1 s, min 60 requests }; canary { traffic 50%, hold 1 s }; ", "")
    (folder / "served.kc").write_text(text, encoding="utf-8")
    script = str(Path(__file__).with_name("streaming_upstream.py"))
    with (
        serving(script, "whole") as good,
        serving(script, "refuses") as bad,
        serving(*options("--admin-token-file", "token", reference=good.url, candidate=bad.url), cwd=folder) as process,
    ):
        load = Load(process.url)
        body = {"model": "m", "prompt": [1], "stream": True}
        answer = load.client.post("/v1/completions", json=body)
        assert whole(answer) and served(answer)["side"] == "candidate" and served(answer)["served"] == "guarded"
        wrong = load.client.post("/v1/completions", json={**body, "wrong": 1})
        assert (wrong.status_code, wrong.json()) == (400, {"error": {"message": "no"}})
        load.settled()
        status = load.status()
    errors = next(c for c in status["evidence"] if c["clause"] == "errors")
    assert (errors["requests"], errors["exceeding"], status["traffic"]["dropped"]) == (1, 1, {})
    assert (
        status["upstreams"]["candidate"]["failures"] == 1
        and "refused" in status["upstreams"]["candidate"]["last_fault"]
    )


def test_requests_that_are_refused_and_a_clean_end(folder: Path) -> None:
    """No upstream answers here at all: what comes back is an error that clients can read."""
    with serving(*options("--admin-token-file", "token", "--limit", "body=2000"), cwd=folder) as process:
        client = httpx.Client(base_url=process.url, timeout=30)
        good = {"model": "m", "prompt": [1]}
        cases = [
            ("POST", "/v1/completions", {"json": good}, 502, "upstreams_failed"),
            ("POST", "/v1/chat/completions", {"json": {"model": "m", "messages": [], "stream": True}}, 502, "upstreams_failed"),
            ("POST", "/v1/completions", {"content": b"x" * 3000}, 413, "body_too_large"),
            ("POST", "/v1/completions", {"content": iter([b"x" * 1500, b"y" * 1500])}, 413, "body_too_large"),
            ("POST", "/v1/completions", {"content": b"{"}, 400, "body_invalid"),
            ("POST", "/v1/completions", {"content": b"[1]"}, 400, "body_invalid"),
            ("POST", "/v1/completions", {"content": b"[" * 1900}, 400, "body_invalid"),
            ("POST", "/v1/completions", {"json": good, "headers": {"x-request-id": "a b"}}, 400, "request_id_invalid"),
            ("GET", "/v1/completions", {}, 405, "method"),
            ("DELETE", "/admin/status", {}, 405, "method"),
            ("GET", "/<script>alert(1)</script>", {}, 404, "not_found"),
            ("GET", "/admin/status", {}, 401, "unauthorized"),
            ("GET", "/admin/events", {"headers": {"authorization": "Bearer wrong"}}, 401, "unauthorized"),
            ("POST", "/admin/rollback", {"headers": {"authorization": f"Basic {TOKEN}"}}, 401, "unauthorized"),
            ("GET", "/v1/models", {}, 502, "upstreams_failed"),
        ]  # fmt: skip
        for method, path, more, status, code in cases:
            answer = client.request(method, path, **more)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), (method, path, answer.text)
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        auth = {"authorization": f"Bearer {TOKEN}"}
        status = client.get("/admin/status", headers=auth).json()
        assert status["traffic"]["requests"] == 2 and status["upstreams"]["safe"]["failures"] == 2
        assert status["unobservable"] == {} and status["stage"] == "shadow"
        assert client.get("/admin/events?after=x", headers=auth).json()["events"][0]["kind"] == "started"
        refused = client.post("/admin/rollback", json={"to": "full"}, headers=auth)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "refused")
        assert client.get("/healthz").json()["status"] == "ok"
        assert "kcverify_requests_total" in client.get("/metrics").text
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(30) == 0
    assert inside(folder, "rebuild", "--store", "s.db")[0] == 0
    printed = inside(folder, "route", "http-route", "served.kc", "--store", "s.db", "--name", "llm", "--format", "json")
    backends = json.loads(printed[1])["documents"][0]["spec"]["rules"][0]["backendRefs"]
    assert [(b["name"], b["weight"]) for b in backends] == [("candidate", 0), ("safe", 1)]
