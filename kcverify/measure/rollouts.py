"""Rollouts of the demo model in the files of an engine and a trainer, with faults planted on request."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from kcverify.measure.sides import KernelSide, open_pair

PROMPT = 16
"""Tokens of the text that each request starts with."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with a rollout file: `top_p` cuts the sampler's support, `reported` scales its log-probabilities.

    `reported` is the temperature at which the engine scores what it sampled at `Plan.temperature`.
    """

    name: str
    top_p: float = 1.0
    reported: float | None = None


FAULTS = (Fault("int8"), Fault("temperature", reported=1.0), Fault("top_p", top_p=0.8))
"""A real kernel's drift alone, and on top of it a temperature that only one side applies, and a cut support."""


@dataclass(frozen=True)
class Plan:
    """Sizes and setting of the rollouts: requests, sampled tokens of each, sampling temperature, seed, kernels."""

    requests: int = 40
    tokens: int = 20
    temperature: float = 0.8
    seed: int = 0
    trainer: str = "demo:float32"
    engine: str = "demo:int8"


def write_rollouts(folder: Path, text: Path, plan: Plan = Plan()) -> list[tuple[Fault, Path, Path]]:
    """Sample from the engine's kernel, and write for each fault the trainer's verl batch and the engine's vLLM answers.

    Returns `(fault, verl file, vLLM file)`. Raises OSError where the folder cannot be written.
    """
    trainer, engine = open_pair(plan.trainer, plan.engine)
    assert isinstance(trainer, KernelSide) and isinstance(engine, KernelSide)
    out, drawn = [], {}
    for fault in FAULTS:
        if fault.top_p not in drawn:
            torch.manual_seed(plan.seed)
            drawn[fault.top_p] = _sampled(engine, _prompts(text, plan), plan, fault.top_p)
        ids, rollout = drawn[fault.top_p]
        scored = _scores(trainer, ids, plan.temperature)[:, -plan.tokens :]
        if fault.reported is not None:
            rollout = _scores(engine, ids, fault.reported)[:, -plan.tokens :]
        batch, answers = folder / f"verl-{fault.name}.safetensors", folder / f"vllm-{fault.name}.jsonl"
        _write_verl(batch, ids[:, -plan.tokens :], scored)
        _write_vllm(answers, ids[:, -plan.tokens :], rollout)
        out.append((fault, batch, answers))
    return out


def _prompts(text: Path, plan: Plan) -> Tensor:
    """Stretches of the text as bytes, int64 `[requests, PROMPT]`."""
    data = text.read_bytes()
    step = max(1, (len(data) - PROMPT) // plan.requests)
    return torch.tensor([list(data[i * step : i * step + PROMPT]) for i in range(plan.requests)])


def _sampled(side: KernelSide, ids: Tensor, plan: Plan, top_p: float) -> tuple[Tensor, Tensor]:
    """Token ids `[requests, PROMPT + tokens]` and the log-probabilities `[requests, tokens]` they were sampled with."""
    scores = []
    for _ in range(plan.tokens):
        with torch.no_grad():
            last = side.logits(ids)[:, -1].double() / plan.temperature
        log_p = torch.log_softmax(_cut(last, top_p), -1)
        token = torch.multinomial(log_p.exp(), 1)
        scores.append(log_p.gather(1, token))
        ids = torch.cat((ids, token), 1)
    return ids, torch.cat(scores, 1)


def _cut(logits: Tensor, top_p: float) -> Tensor:
    """Logits with the tokens outside the smallest set of mass `top_p` at minus infinity."""
    if top_p >= 1.0:
        return logits
    p, order = torch.softmax(logits, -1).sort(-1, descending=True)
    outside = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, order, p.cumsum(-1) - p >= top_p)
    return logits.masked_fill(outside, -torch.inf)


def _scores(side: KernelSide, ids: Tensor, temperature: float) -> Tensor:
    """Log-probability of each token but the first given those before it, float64 `[requests, length - 1]`."""
    with torch.no_grad():
        log_p = torch.log_softmax(side.logits(ids)[:, :-1].double() / temperature, -1)
    return log_p.gather(2, ids[:, 1:, None])[:, :, 0]


def _write_verl(path: Path, ids: Tensor, scores: Tensor) -> None:
    """A batch as a verl trainer holds it."""
    mask = torch.ones_like(ids)
    save_file(
        {"responses": ids.contiguous(), "response_mask": mask, "old_log_probs": scores.float().contiguous()}, path
    )


def _write_vllm(path: Path, ids: Tensor, scores: Tensor) -> None:
    """One completion a line, as vLLM answers with `return_token_ids`."""
    lines = []
    for index, (tokens, values) in enumerate(zip(ids.tolist(), scores.tolist(), strict=True)):
        texts = [bytes([t]).decode("latin-1") for t in tokens]
        logprobs = {
            "text_offset": list(range(len(texts))),
            "token_logprobs": [float(v) for v in values],
            "tokens": texts,
            "top_logprobs": None,
        }
        choice = {
            "index": 0,
            "text": "".join(texts),
            "logprobs": logprobs,
            "finish_reason": "length",
            "token_ids": tokens,
        }
        body = {"id": f"cmpl-{index}", "object": "text_completion", "model": "demo", "choices": [choice]}
        lines.append(json.dumps(body))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
