"""`kcverify serve-demo` as processes on loopback: answers that readers take, and starts that go wrong."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

httpx = pytest.importorskip("httpx")
for package in ("torch", "starlette", "uvicorn"):
    pytest.importorskip(package)

from serve_demo_cases import ASK, TOKEN, Run, ask, events, serving  # noqa: E402

from kcverify.cli import main  # noqa: E402
from kcverify.serving.faults import KINDS  # noqa: E402


@pytest.fixture(scope="module")
def served() -> Iterator[httpx.Client]:
    with serving("--admin-token", TOKEN) as client:
        yield client


@pytest.fixture(scope="module")
def int8() -> Iterator[httpx.Client]:
    with serving("--kernel", "int8") as client:
        yield client


@pytest.fixture
def kcverify(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process: exit code, output, standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    return run


def test_models_health_and_answers_say_who_answers(served):
    row = served.get("/v1/models").json()["data"][0]
    assert (row["id"], row["kernel"]) == ("demo", "float32")
    answer = ask(served).json()
    assert answer["weight_version"] == row["weight_version"]
    assert answer["system_fingerprint"].endswith(f"/float32/{row['weight_version']}")
    assert served.get("/health").json() == {"status": "ok"}


@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
def test_a_stream_carries_what_the_whole_answer_carries(served, chat):
    path = "/v1/chat/completions" if chat else "/v1/completions"
    extra = {"messages": [{"role": "user", "content": "hello"}], "logprobs": True, "top_logprobs": 3} if chat else {}
    asked = {**extra, "prompt_logprobs": 2, "max_tokens": 20}
    whole = ask(served, path, **asked).json()
    pieces = events(ask(served, path, stream=True, stream_options={"include_usage": True}, **asked).text)
    assert pieces[-1]["usage"] == whole["usage"]
    choices = [p["choices"][0] for p in pieces[:-1]]
    one = whole["choices"][0]
    assert choices[-1]["finish_reason"] == one["finish_reason"] == "length"
    assert [i for c in choices for i in c.get("token_ids", [])] == one["token_ids"]
    if chat:
        assert "".join(c["delta"].get("content", "") for c in choices) == one["message"]["content"]
        assert [e for c in choices if c["logprobs"] for e in c["logprobs"]["content"]] == one["logprobs"]["content"]
        assert pieces[0]["prompt_logprobs"] == whole["prompt_logprobs"]
    else:
        assert "".join(c["text"] for c in choices) == one["text"]
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [v for c in choices for v in c["logprobs"][key]] == one["logprobs"][key]


def test_stop_texts_end_an_answer_and_never_show(served):
    long = ask(served, temperature=0, max_tokens=60, return_token_ids=False).json()["choices"][0]["text"]
    stop = long[20:23]
    want = long[: long.index(stop)]
    whole = ask(served, temperature=0, max_tokens=60, stop=["\x00never", stop]).json()["choices"][0]
    assert (whole["text"], whole["finish_reason"], whole["stop_reason"]) == (want, "stop", stop)
    pieces = events(ask(served, temperature=0, max_tokens=60, stop=["\x00never", stop], stream=True).text)
    assert "".join(p["choices"][0]["text"] for p in pieces) == want


def test_another_server_rescores_the_same_tokens(served, int8):
    """The candidate's tokens as a prompt of ids: the same server gives its own numbers again, the other one others."""
    whole = ask(int8).json()["choices"][0]
    ids = whole["prompt_token_ids"] + whole["token_ids"]
    again, other = (
        c.post("/v1/completions", json={"prompt": ids, "max_tokens": 0, "prompt_logprobs": 5}).json()["choices"][0]
        for c in (int8, served)
    )

    def scores(choice: dict) -> list[float]:
        return [row[str(i)]["logprob"] for i, row in zip(ids[-8:], choice["prompt_logprobs"][-8:], strict=True)]

    assert scores(again) == pytest.approx(whole["logprobs"]["token_logprobs"], abs=2e-4)
    drift = max(abs(a - b) for a, b in zip(scores(other), scores(again), strict=True))
    assert 1e-4 < drift < 1
    several = int8.post(
        "/v1/completions", json={"prompt": [ids, ids[:3]], "max_tokens": 1, "prompt_logprobs": 0}
    ).json()
    assert [len(c["prompt_logprobs"]) for c in several["choices"]] == [len(ids), 3]


@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
def test_inspect_and_compare_read_saved_answers(served, int8, tmp_path, chat, kcverify):
    """The same tokens on both sides: int8 samples, float32 scores them as a prompt's continuation."""
    files = {"reference": tmp_path / "float32.jsonl", "candidate": tmp_path / "int8.jsonl"}
    lines: dict[str, list[str]] = {"reference": [], "candidate": []}
    for seed in range(6):
        if chat:
            asked = {"messages": [{"role": "user", "content": f"line {seed}"}], "seed": seed, "max_tokens": 12,
                     "temperature": 0, "logprobs": True, "top_logprobs": 4, "return_token_ids": True, "prompt_logprobs": 2}  # fmt: skip
            answers = {
                "reference": served.post("/v1/chat/completions", json=asked),
                "candidate": int8.post("/v1/chat/completions", json=asked),
            }
        else:
            asked = {"prompt": f"line {seed} of", "logprobs": 4, "temperature": 0, "prompt_logprobs": 2}
            answers = {"reference": ask(served, **asked), "candidate": ask(int8, **asked)}
        for side, answer in answers.items():
            lines[side].append(answer.text)
    for side, path in files.items():
        path.write_text("\n".join(lines[side]) + "\n")
        seen = kcverify("inspect", path, "--format", "json")
        assert seen[0] == 0, seen[2]
        found = json.loads(seen[1])
        assert found["counts"]["requests"] == 6
        assert {"token_ids", "logprobs", "top_logprobs"} <= {c["field"] for c in found["carries"]}
        assert found["statuses"]["broken"] == 0
    run = kcverify(
        "compare", files["reference"], files["candidate"], "--declare-a", "positions=all", "--declare-b", "positions=all",
        "--declare-a", "logprobs_mode=raw", "--declare-b", "logprobs_mode=raw", "--format", "json",
    )  # fmt: skip
    assert run[0] in (0, 1), run[2]
    found = json.loads(run[1])
    assert found["exit_code"] == run[0]


def test_several_answers_to_one_prompt_have_seeds_of_their_own(served):
    """The i-th is that of the seed plus i, whole and streamed; the prompt is counted once."""
    whole = ask(served, n=3).json()
    alone = [ask(served, seed=7 + i).json()["choices"][0] for i in range(3)]
    assert [c["index"] for c in whole["choices"]] == [0, 1, 2]
    assert [c["token_ids"] for c in whole["choices"]] == [c["token_ids"] for c in alone]
    assert whole["usage"]["prompt_tokens"] == len(whole["choices"][0]["prompt_token_ids"])
    assert whole["usage"]["completion_tokens"] == 24
    pieces = [p["choices"][0] for p in events(ask(served, n=3, stream=True).text)]
    for i in range(3):
        assert "".join(p["text"] for p in pieces if p["index"] == i) == whole["choices"][i]["text"]


def test_tokenize_in_two_dialects(served):
    def ids(**body: object) -> dict:
        return served.post("/tokenize", json=body).json()

    assert ids(model="demo", prompt="abc") == {"count": 3, "max_model_len": 2048, "tokens": [97, 98, 99]}
    assert ids(content="abc", add_special=True) == {"tokens": [97, 98, 99]}
    messages = [{"role": "user", "content": "hi"}]
    asked = {"messages": messages, "max_tokens": 1, "return_token_ids": True}
    assert (
        ids(messages=messages)["tokens"]
        == ask(served, "/v1/chat/completions", **asked | {"logprobs": False}).json()["prompt_token_ids"]
    )
    assert served.post("/tokenize", json={"prompt": 3}).status_code == 422


BAD = [
    (400, b"{", {}), (400, b"[]", {}), (400, b'{"prompt":"a","temperature":NaN}', {}), (400, b"[" * 100_000, {}),
    (404, None, {"model": "gpt"}), (422, None, {"prompt": None}), (422, None, {"prompt": {"a": 1}}), (400, None, {"prompt": ""}),
    (400, None, {"prompt": [1, 256]}), (400, None, {"prompt": [-1]}), (422, None, {"prompt": [1, "a"]}), (422, None, {"prompt": [True]}),
    (400, None, {"prompt": ["a"] * 65}), (422, None, {"max_tokens": "8"}), (400, None, {"max_tokens": 100_000}),
    (400, None, {"max_tokens": -1}), (400, None, {"max_tokens": 2040}), (400, None, {"temperature": -1}), (400, None, {"temperature": 1e999}),
    (422, None, {"temperature": True}), (400, None, {"top_p": 0}), (400, None, {"top_p": 2}), (422, None, {"seed": 1.5}),
    (400, None, {"n": 65}), (422, None, {"n": "2"}), (400, None, {"n": 0}), (400, None, {"n": 33, "prompt": ["a", "b"]}), (400, None, {"best_of": 2}), (400, None, {"logit_bias": {"1": 2}}), (400, None, {"logprobs": 257}), (422, None, {"stop": 3}),
    (400, None, {"stop": [""]}), (422, None, {"stop_token_ids": "x"}), (422, None, {"stream": 1}), (413, b'{"prompt":"' + b"a" * (1 << 20) + b'"}', {}),
]  # fmt: skip


def test_bad_requests_get_openais_error_and_the_server_goes_on(served):
    for status, raw, changes in BAD:
        body = raw if raw is not None else json.dumps({**ASK, **changes}).encode()
        answer = served.post("/v1/completions", content=body)
        assert answer.status_code == status, (changes, answer.text)
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
    for messages in (None, [], "hi", [{"content": "a"}], [{"role": "user", "content": 3}]):
        assert served.post("/v1/chat/completions", json={"messages": messages}).status_code == 422
    assert served.get("/v1/nothing").status_code == 404
    assert served.get("/v1/completions").status_code == 405
    assert served.post("/admin/fault", json={"name": "slow"}).status_code == 401
    for wrong in (
        {"name": "flood"},
        {"name": "slow", "value": "x"},
        {"name": "kernel", "value": "fp2"},
        {"name": "kernel", "share": 0.5},
        3,
    ):
        assert served.post("/admin/fault", json=wrong, headers={"authorization": f"Bearer {TOKEN}"}).status_code == 400
    assert ask(served).status_code == 200


def test_wrong_starts_are_diagnosed(kcverify):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        cases = {
            "in use": ("--port", port), "no address": ("--host", "nowhere.invalid"), "no kernel": ("--kernel", "int3"), "no fault": ("--fault", "flood"),
            "takes a number": ("--fault", "slow=x"), "all requests or none": ("--fault", "kernel=int4@0.5"), "raw or processed": ("--logprobs-mode", "x"),
        }  # fmt: skip
        for words, arguments in cases.items():
            code, out, err = kcverify("serve-demo", *arguments)
            assert (code, out) == (2, ""), arguments
            assert words in err
            assert "KC418" in err
    code, out, _ = kcverify("serve-demo", "--faults")
    assert code == 0
    assert all(row.name in out for row in KINDS)
