"""`kcverify serve-demo` as processes on loopback: every fault of the table, and ends of every kind."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator

import pytest

httpx = pytest.importorskip("httpx")
for package in ("torch", "starlette", "uvicorn"):
    pytest.importorskip(package)

from serve_demo_cases import ASK, TOKEN, ask, put, serving, start  # noqa: E402

from kcverify.serving.app import CRASHED  # noqa: E402
from kcverify.serving.faults import KINDS  # noqa: E402


@pytest.fixture(scope="module")
def served() -> Iterator[httpx.Client]:
    with serving("--admin-token", TOKEN) as client:
        yield client


def _numbers(answer: httpx.Response) -> list:
    return answer.json()["choices"][0]["logprobs"]["token_logprobs"]


def _shifted(client, clean):
    answer = ask(client)
    assert answer.json()["system_fingerprint"] == clean.json()["system_fingerprint"]
    assert answer.json()["weight_version"] == clean.json()["weight_version"]
    assert _numbers(answer) != _numbers(clean)


def _reported(client, clean):
    version = ask(client).json()["weight_version"]
    assert version != clean.json()["weight_version"]
    assert client.get("/v1/models").json()["data"][0]["weight_version"] == version


def _nan(client, clean):
    for path in ("/v1/completions", "/v1/chat/completions"):
        chat = (
            {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 2}
            if "chat" in path
            else {}
        )
        answer = ask(client, path, prompt_logprobs=2, **chat)
        assert "NaN" not in answer.text
        choice = answer.json()["choices"][0]
        assert choice["token_ids"] == [0] * 8
        listed = [e["logprob"] for e in choice["logprobs"]["content"]] if chat else choice["logprobs"]["token_logprobs"]
        assert listed == [None] * 8
        assert "NaN" not in ask(client, path, prompt_logprobs=2, stream=True, **chat).text


def _hotter(client, clean):
    assert ask(client, temperature=0.0).json()["choices"] == ask(client, temperature=0.0).json()["choices"]
    cold = [ask(client, temperature=0.05, seed=s).json()["choices"][0]["token_ids"] for s in range(4)]
    assert len({tuple(ids) for ids in cold}) > 1  # at 0.05 the seeds agree, at twenty times of it they do not


def _slow(client, clean):
    start = time.monotonic()
    ask(client, stream=True)
    assert time.monotonic() - start > 8 * 0.03


def _hang(client, clean):
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/completions", json=ASK, timeout=0.5)
    assert client.get("/health").status_code == 200


def _truncated(client, clean):
    for stream in (False, True):
        with pytest.raises(httpx.RemoteProtocolError):
            ask(client, stream=stream)
    put(client, {"name": "truncated", "value": "done"})
    text = ask(client, stream=True).text
    assert "[DONE]" not in text
    assert text.startswith("data: ")
    with pytest.raises(ValueError, match=r"Expecting|Unterminated|delimiter"):
        ask(client).json()


def _error(client, clean):
    answer = ask(client)
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")


def _clock(client, clean):
    assert ask(client).json()["created"] < clean.json()["created"] - 3000


def _garbage(client, clean):
    answer = ask(client)
    assert answer.status_code == 200
    with pytest.raises(json.JSONDecodeError):
        answer.json()
    line = ask(client, stream=True).text.split("\n\n")[0].removeprefix("data: ")
    with pytest.raises(json.JSONDecodeError):
        json.loads(line)


SEEN = {
    "kernel": (None, _shifted), "stale_weights": (None, _shifted), "other_weights": (None, _reported), "nan_logits": (None, _nan),
    "wrong_temperature": (20, _hotter), "scaled_logits": (None, _shifted), "slow": (30, _slow), "hang": (None, _hang), "crash": (None, None),
    "truncated": (None, _truncated), "error_500": (None, _error), "clock_step": (None, _clock), "garbage_json": (None, _garbage),
}  # fmt: skip


def test_every_fault_does_what_its_row_says_and_can_be_taken_back(served):
    assert set(SEEN) == {row.name for row in KINDS}
    clean = ask(served)
    for name, (value, see) in SEEN.items():
        if see is None:
            continue
        put(served, {"name": name} if value is None else {"name": name, "value": value})
        see(served, clean)
        put(served, {})
        after = ask(served).json()
        for key in ("choices", "weight_version", "system_fingerprint"):
            assert after[key] == clean.json()[key], name


def test_a_share_of_requests_is_struck(served):
    put(served, [{"name": "error_500", "share": 0.3}, {"name": "clock_step", "value": 5}])
    codes = [ask(served, max_tokens=0).status_code for _ in range(40)]
    put(served, {})
    assert 4 <= codes.count(500) <= 20
    assert set(codes) == {200, 500}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_crash_ends_the_server_in_the_middle_of_an_answer(stream):
    running, facts = start("--fault", "crash=2")
    with httpx.Client(base_url=facts["url"], timeout=60) as client, pytest.raises(httpx.RemoteProtocolError):
        ask(client, stream=stream)
    assert running.wait(timeout=30) == CRASHED
    assert running.communicate()[1] == ""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -9)])
def test_ends_during_an_answer(number, code):
    """A wanted end waits for nobody who hangs; a kill breaks the answer off, and the client sees it."""
    running, facts = start("--fault", "slow=200")
    seen: list[str] = []

    def client() -> None:
        try:
            with httpx.stream(
                "POST", facts["url"] + "/v1/completions", json={**ASK, "max_tokens": 600, "stream": True}, timeout=60
            ) as r:
                for text in r.iter_text():
                    seen.append(text)
        except httpx.HTTPError as error:
            seen.append(type(error).__name__)

    thread = threading.Thread(target=client)
    thread.start()
    while not seen:
        time.sleep(0.02)
    running.send_signal(number)
    out, err = running.communicate(timeout=30)
    thread.join(timeout=30)
    assert (running.returncode, out, err) == (code, "", "")
    assert "[DONE]" not in "".join(seen)
