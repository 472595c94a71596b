"""What each engine's reader makes of a small file: ids, numbers, statuses, lists of most probable tokens."""

from __future__ import annotations

import json

import numpy as np
import pytest
from stream_files import DATA, SHARED, lines, requests

from kcverify.readers.opening import open_stream
from kcverify.readers.stream import Status

V, M, B, P, X = Status.VALUE, Status.MISSING, Status.BANNED, Status.PLACEHOLDER, Status.BROKEN


def test_vllm_completions() -> None:
    a, b = requests(DATA / "vllm_completions.jsonl")
    assert (a.request_id, b.request_id) == ("prompt-0", "prompt-1")
    assert a.token_ids.tolist() == [7042, 30, 198]
    assert a.tokens == (" Paris", ".", "\n")
    assert a.logprobs.tolist() == [-0.25, -0.5, -3.75]
    assert a.mask.all()
    # the sampled token that vLLM appended to the two most probable ones is not one of them
    assert a.top_tokens == ((" Paris", " the"), (".", ","), (" It", " The"))
    assert a.top_logprobs.tolist() == [[-0.25, -2.75], [-0.5, -1.5], [-0.75, -1.25]]
    assert b.status.tolist() == [V, P]
    assert np.isnan(b.logprobs[1])
    assert b.fields["placeholders"] == {"-9999.0": 1}
    assert b.top_tokens == ((" a", " the"), (" c",))


def test_chat_with_ids_and_prompt_logprobs() -> None:
    path = DATA / "vllm_chat.jsonl"
    (a,) = requests(path)
    assert a.token_ids.tolist() == [1, 11, 5010, 30]
    assert a.status.tolist() == [M, V, V, V]
    assert a.mask.tolist() == [False, False, True, True]
    assert a.top_ids.tolist() == [[-1, -1], [5, -1], [5010, 2071], [30, 17]]
    (p,) = requests(path, "positions=prompt")
    assert p.mask.tolist() == [True, True, False, False]
    (both,) = requests(path, "positions=all")
    assert both.mask.all()


def test_chat_without_ids() -> None:
    stream = open_stream(DATA / "chat_texts.json")
    (a,) = stream.requests()
    assert a.token_ids is None
    assert a.top_ids is None
    assert a.tokens == ("Yes", ".")
    assert a.status.tolist() == [V, P]
    assert "token_ids" not in stream.carries
    assert "without ids" in stream.notes[0]


def test_vllm_outputs_with_both_layouts() -> None:
    a, b = requests(DATA / "vllm_outputs.jsonl")
    assert a.token_ids.tolist() == [504, 3575, 282, 4649, 314]
    assert a.status.tolist() == [M, V, V, V, V]
    assert a.logprobs[1] == -6.5
    assert a.top_ids[1].tolist() == [253, -1]  # rank 112 is no top-2
    assert b.token_ids.tolist() == [990, 271]
    assert b.status.tolist() == [V, B]
    assert b.top_ids[1].tolist() == [5, 6]


def test_sglang_in_three_forms() -> None:
    a, b = requests(DATA / "sglang_triples.jsonl")
    assert a.token_ids.tolist() == [504, 3575, 7042, 30]
    assert a.mask.tolist() == [False, False, True, True]
    assert a.status.tolist() == [M, V, V, V]
    assert a.fields["weight_version"] == "step-12"
    assert b.status.tolist() == [B]
    for name in ("sglang_objects.jsonl", "sglang_parallel.jsonl"):
        (c,) = requests(DATA / name)
        assert c.token_ids.tolist() == [7042, 30]
        assert c.logprobs.tolist() == [-0.25, -0.5]
    assert c.top_ids.tolist() == [[7042, 260], [30, 28]]
    assert c.top_logprobs.tolist() == [[-0.25, -2.75], [-0.5, -1.5]]


@pytest.mark.parametrize("name", ["comp_q4_1", "comp_q3_k_s", "native_q4_1", "native_q3_k_s"])
def test_llama_server(name: str) -> None:
    path = DATA / f"llama_server_{name}.json"
    stream = open_stream(path)
    (a,) = stream.requests()
    raw = json.loads(path.read_text(encoding="utf-8"))
    items = raw["choices"][0]["logprobs"]["content"] if "choices" in raw else raw["completion_probabilities"]
    assert a.token_ids.tolist() == [i["id"] for i in items]
    assert a.logprobs.tolist() == [i["logprob"] for i in items]
    assert a.top_ids.tolist() == [[e["id"] for e in i["top_logprobs"]] for i in items]
    assert stream.value("logprobs_mode") == "raw"
    if "choices" not in raw:
        assert stream.declared["temperature"].origin == "file"
    if (SHARED / "llama_server").is_dir():
        assert path.read_bytes() == (SHARED / "llama_server" / f"{name}.json").read_bytes()


def test_llama_server_probabilities_become_logarithms(tmp_path) -> None:  # type: ignore[no-untyped-def]
    item = {
        "id": 3,
        "token": "a",
        "prob": 0.5,
        "top_probs": [{"id": 3, "token": "a", "prob": 0.5}, {"id": 4, "token": "b", "prob": 0.0}],
    }
    doc = {"completion_probabilities": [item], "generation_settings": {"post_sampling_probs": True, "temperature": 0.7}}
    stream = open_stream(lines(tmp_path / "a.json", doc))
    (a,) = stream.requests()
    assert a.logprobs[0] == pytest.approx(np.log(0.5))
    assert a.top_ids.tolist() == [[3]]
    assert stream.value("logprobs_mode") == "processed"


def test_prime_rl_has_two_sides() -> None:
    path = DATA / "prime_rl.jsonl"
    a, b = requests(path)
    assert a.request_id == "3-0-0"
    assert a.mask.tolist() == [False, False, True, True]
    assert a.status.tolist() == [M, M, V, V]
    assert b.status.tolist() == [M, M, V]
    assert a.fields["env_name"] == "math"
    a, b = requests(path, "side=trainer")
    assert a.logprobs.tolist() == [-5.5, -6.25, -0.3125, -0.5]
    assert b.logprobs.tolist() == [-2.5, -0.75, -1.25]


def test_prime_rl_samples_say_their_temperature() -> None:
    stream = open_stream(DATA / "prime_rl_samples.jsonl")
    (a,) = stream.requests()
    assert stream.value("temperature") == 0.7
    assert a.token_ids.tolist() == [504, 7042, 30]
    (r,) = requests(DATA / "prime_rl_samples.jsonl", "side=reference")
    assert r.logprobs.tolist() == [-4.0, -0.375, -0.5]


def test_nemo_rl_lines_have_no_ids() -> None:
    (a,) = requests(DATA / "nemo_rl.jsonl")
    assert a.token_ids is None
    assert a.mask.tolist() == [False, False, True, True, False]


def test_a_response_of_zeros_is_a_placeholder(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """vllm#53488: every log-probability 0.0 means that none was written."""
    outputs = [{"token_ids": [1, 2, 3, 4], "logprobs": [{str(t): {"logprob": 0.0}} for t in (1, 2, 3, 4)]}]
    (a,) = requests(lines(tmp_path / "a.jsonl", {"outputs": outputs}))
    assert a.status.tolist() == [P] * 4
    assert a.fields["placeholders"] == {"row of 0.0": 4}


def test_one_zero_is_a_number(tmp_path) -> None:  # type: ignore[no-untyped-def]
    outputs = [{"token_ids": [1, 2], "logprobs": [{"1": {"logprob": 0.0}}, {"2": {"logprob": -0.5}}]}]
    (a,) = requests(lines(tmp_path / "a.jsonl", {"outputs": outputs}))
    assert a.status.tolist() == [V, V]


def test_several_choices_are_several_requests(tmp_path) -> None:  # type: ignore[no-untyped-def]
    choice = {"logprobs": {"content": [{"token": "a", "logprob": -1.0, "top_logprobs": []}]}}
    found = requests(lines(tmp_path / "a.jsonl", {"id": "x", "choices": [choice, choice]}))
    assert [r.request_id for r in found] == ["x#0", "x#1"]


def test_non_finite_numbers_of_python_json_have_a_status(tmp_path) -> None:  # type: ignore[no-untyped-def]
    text = '{"outputs":[{"token_ids":[1,2,3,4],"logprobs":[{"1":NaN},{"2":-Infinity},{"3":Infinity},{"4":1e999}]}]}'
    path = tmp_path / "a.json"
    path.write_text(text, encoding="utf-8")
    (a,) = requests(path)
    assert a.status.tolist() == [X, B, X, X]
    assert a.fields["placeholders"] == {"nan": 1, "-inf": 1, "inf": 2}


def test_repeated_most_probable_tokens_stay_for_the_identity_check(tmp_path) -> None:  # type: ignore[no-untyped-def]
    meta = {
        "output_token_logprobs": [[-0.1, 7, None]],
        "output_top_logprobs": [[[-0.1, 7, None], [-0.1, 7, None], [-2.4, 9, None]]],
    }
    (a,) = requests(lines(tmp_path / "a.jsonl", {"meta_info": meta}))
    assert a.top_ids.tolist() == [[7, 7, 9]]


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_a_clamped_minus_infinity_is_a_banned_token(kind: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """SGLang clamps the logarithm of 0 to the smallest number of its type."""
    least = float(np.finfo(kind).min)
    (a,) = requests(
        lines(tmp_path / "a.jsonl", {"meta_info": {"output_token_logprobs": [[least, 3, None], [-1.0, 4, None]]}})
    )
    assert a.status.tolist() == [B, V]
