"""`kcverify compare` from files to exit code: text, JSON by its schema, HTML, wrong input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from made_streams import drawn, log_softmax
from safetensors.numpy import save_file

from kcverify.cli import main
from kcverify.docgen.answers import answers

SCHEMA = answers()


@pytest.fixture
def run(capsys):
    def call(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main([str(w) for w in words])
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return call


def verl(path: Path, logprobs: np.ndarray, tokens: np.ndarray, side: str) -> Path:
    """A batch as verl holds it, `[requests, tokens]`."""
    np.savez(path, responses=tokens, response_mask=np.ones_like(tokens), **{side: logprobs.astype(np.float32)})
    return path


def vllm(path: Path, logits: np.ndarray, tokens: np.ndarray, k: int = 20) -> Path:
    """Answers of a completions endpoint with the `k` most probable tokens, one a line."""
    lines = []
    for request, row in zip(logits, tokens, strict=True):
        lp = log_softmax(request)
        best = np.argsort(-lp, axis=1)[:, :k]
        top = [{f"token_id:{i}": float(lp[t, i]) for i in ids} for t, ids in enumerate(best)]
        sampled = [float(lp[t, i]) for t, i in enumerate(row)]
        choice = {
            "index": 0, "text": "", "token_ids": row.tolist(), "finish_reason": "length",
            "logprobs": {"tokens": [f"token_id:{i}" for i in row], "token_logprobs": sampled, "top_logprobs": top, "text_offset": []},
        }  # fmt: skip
        lines.append(json.dumps({"id": f"cmpl-{len(lines)}", "object": "text_completion", "choices": [choice]}))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def rollouts():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(12, 40, 64)) * 2.5
    noisy = logits + 0.02 * rng.normal(size=logits.shape)
    tokens = np.stack([drawn(x, rng) for x in noisy])
    return logits, noisy, tokens


def picked(logits: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    return np.take_along_axis(log_softmax(logits), tokens[..., None], 2)[..., 0]


def validate(answer) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator({**SCHEMA, "oneOf": [{"$ref": "#/$defs/compare"}]}).validate(answer)


def test_two_lists_of_twenty_give_bounds_on_tokens_and_requests(run, tmp_path, rollouts) -> None:
    logits, noisy, tokens = rollouts
    a, b = vllm(tmp_path / "a.jsonl", logits, tokens), vllm(tmp_path / "b.jsonl", noisy, tokens)
    code, out, _ = run("compare", a, b)
    assert code == 0 and "TV in [" in out and "request cmpl-0" in out and "verdict: comparable" in out
    code, out, _ = run("compare", a, b, "--format", "json")
    answer = json.loads(out)
    validate(answer)
    part = answer["drift"]["bounds"][0]
    true = np.abs(np.exp(log_softmax(logits)) - np.exp(log_softmax(noisy))).sum(2).mean() / 2
    assert part["basis"].startswith("lists") and part["lower"] <= true <= part["upper"]
    assert part["upper"] - part["lower"] < 0.2 and len(part["requests"]) == 10


def test_trainer_against_engine_from_sampled_tokens(run, tmp_path, rollouts) -> None:
    logits, noisy, tokens = rollouts
    a = verl(tmp_path / "a.npz", picked(logits, tokens), tokens, "old_log_probs")
    b = verl(tmp_path / "b.npz", picked(noisy, tokens), tokens, "rollout_log_probs")
    page = tmp_path / "out.html"
    code, out, _ = run("compare", a, b, "--as", "verl", "--html", page)
    assert code == 0 and "rollout_corr/k3_kl" in out and f"report: {page}" in out
    html = page.read_text()
    assert "rollout_corr/kl" in html and "<script" not in html and "http" not in html.replace("http-equiv", "")


def test_a_planted_temperature_gives_exit_code_one_and_no_drift(run, tmp_path, rollouts) -> None:
    logits, noisy, tokens = rollouts
    a, b = vllm(tmp_path / "a.jsonl", logits, tokens), vllm(tmp_path / "b.jsonl", noisy * 0.7, tokens)
    code, out, _ = run("compare", a, b, "--format", "json", "--html", tmp_path / "o.html")
    answer = json.loads(out)
    validate(answer)
    assert code == 1 and answer["drift"] is None
    assert [f["slug"] for f in answer["findings"]] == ["temperature_mismatch"]
    assert answer["findings"][0]["evidence"]["fitted_ratio"] == pytest.approx(0.7, rel=0.01)
    assert run("compare", a, b, "--fail-on", "never")[0] == 0
    assert run("compare", a, b, "--fail-on", "support_mismatch")[0] == 0
    assert run("compare", a, b, "--fail-on", "temperature_mismatch")[0] == 1


def test_nothing_in_common_is_not_observable(run, tmp_path, rollouts) -> None:
    logits, _, tokens = rollouts
    a, b = vllm(tmp_path / "a.jsonl", logits, tokens), vllm(tmp_path / "b.jsonl", logits, (tokens + 1) % 64)
    b.write_text(b.read_text().replace("cmpl-", "other-"))
    code, out, _ = run("compare", a, b)
    assert code == 3 and "verdict: unobservable" in out
    validate(json.loads(run("compare", a, b, "--format", "json")[1]))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--as", "ppo"), "is none of verl, trl"),
        (("--window", "1.1"), "is not LOW,HIGH"),
        (("--window", "1.1,0.9"), "is no window"),
        (("--fail-on", "everything"), "--fail-on"),
        (("--sampled-by", "me"), "neither reference nor candidate"),
        (("--min-kept-share", "7"), "is no share"),
        (("--declare-a", "nonsense"), "--declare"),
        (("--html", "/nowhere/at/all.html"), "cannot write"),
        (("--format", "yaml"), "--format"),
    ],
)
def test_wrong_options_are_said(run, tmp_path, rollouts, words, said) -> None:
    logits, _, tokens = rollouts
    a = vllm(tmp_path / "a.jsonl", logits[:2], tokens[:2])
    code, _, err = run("compare", a, a, *words)
    assert code == 2 and said in err and "Traceback" not in err


def test_a_missing_file(run, tmp_path) -> None:
    code, _, err = run("compare", tmp_path / "none.npz", tmp_path / "none.npz")
    assert code == 2 and "KC401" in err


def test_ids_on_one_side_alone_are_an_assumption(run, tmp_path) -> None:
    """Rows without ids are compared in their order; that they are of the same tokens is said, not passed over."""
    rows = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
    np.save(tmp_path / "plain.npy", rows)
    save_file({"logits": rows, "token_ids": np.arange(6)}, tmp_path / "ids.safetensors")
    note = "both sides scored the same tokens: the {} has no token ids"
    for pair, role in (
        (("plain.npy", "ids.safetensors"), "reference"),
        (("ids.safetensors", "plain.npy"), "candidate"),
    ):
        code, out, _ = run("compare", *(tmp_path / name for name in pair), "--format", "json")
        found = json.loads(out)
        assert (code, found["verdict"]) == (0, "comparable") and note.format(role) in found["assumptions"]
    _, out, _ = run("compare", tmp_path / "plain.npy", tmp_path / "plain.npy", "--format", "json")
    assert not any("no token ids" in told for told in json.loads(out)["assumptions"])
