"""What every command prints with `--format json` fits docs/answers.schema.json, which names every key that is printed."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import typer
from promotion_cases import TEXT as LIFT
from promotion_cases import result

from kcverify.cli import app, main

ROOT = Path(__file__).resolve().parents[2]
CONTRACTS = ROOT / "contracts"
SCHEMA = json.loads((ROOT / "docs" / "answers.schema.json").read_text(encoding="utf-8"))
ASSUME = "assume { temperature in [0.6, 1.0]; sampler = full_softmax; horizon <= 8 tokens; reward in [0, 1] }\n"
REFUTED = f"contract bad\n{ASSUME}numerical {{ tail: tv <= 0.5 -> L2 }}\nguarantee {{ safe: reward_drift <= 0.01 }}\n"
APART = "contract apart\nnumerical { low: tv <= 0.1 -> L1; high: tv >= 0.2 -> L1 }\nguarantee { g: tv <= 0.3 }\n"
BROKEN = "contract broken\nnumerical { a: tv <= nan -> L1; b: tv <= 0.1 -> L1; b: tv <= 0.2 -> L1 }\n"
OPEN = f"contract open\n{ASSUME}numerical {{ a: logit_span <= ? except 50% -> L1 }}\nguarantee {{ g: reward_drift <= 0.001 }}\n"
STRICT = """contract strict
assume { temperature in [0.6, 1.0] }
slice long = prompt_tokens >= 8192
numerical {
  drift: logit_span <= 0.0001                          -> L2
  mean:  mean kl(candidate || reference) <= 1e-9 nats  -> L1
  far:   tv <= 0.01 except 1% on long                  -> L3
  cool:  tv <= 0.01 when temperature in [0.6, 0.7)     -> L1
}
runtime { slow: p99 latency <= 1 ms -> L1 }
"""
ONE = f"contract one\n{ASSUME}guarantee {{ safe: reward_drift <= 0.01 }}\n"
SMALL = ("--level", "kind", "--calibration", "1", "--limit", "3", "--window", "4", "--points", "1")
EASY = """contract easy
assume { temperature = 1; sampler = full_softmax; horizon <= 1 tokens; reward in [0, 1] }
numerical { drift: logit_span <= 2 except 30% -> L2 }
guarantee { safe: reward_drift <= 0.9 }
"""
WEIGHTS = str(ROOT / "kcverify" / "data" / "tinylm.safetensors")
MODEL = ("--reference", "demo:float32", "--data", "text.txt", "--limit", "3")


def closed(schema: Any) -> Any:
    """The schema with no key allowed that it does not name."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: closed(value) for key, value in schema.items()}
    if "properties" in out and isinstance(out.get("required"), list):
        out["additionalProperties"] = False
    return out


TORCH = ("serve-demo", "measure", "conformance", "allocate", "map", "replay", "attest", "verify")
CLOSED = jsonschema.Draft202012Validator(closed(SCHEMA))

STREAMS = ROOT / "tests" / "data" / "streams"

CASES: dict[str, list[tuple[tuple[str, ...], int]]] = {
    "check": [
        ((str(CONTRACTS / "rl_rollout.kc"), "--explain"), 0),
        (("bad.kc", "apart.kc", "broken.kc", "open.kc", "missing.kc", "--all-cores"), 2),
        (("bad.kc", "--set", "x=1"), 2),
    ],
    "derive": [((str(CONTRACTS / "budget.kc"),), 0), (("open.kc",), 1)],
    "bounds": [
        (("--given", "logit_drift=0.05", "--assume", "temperature=0.7", "horizon=1024", "reward=0..1"), 0),
        (("--given", "tv=0.1"), 0),
        (("--inverse", "reward_drift=0.02", "--assume", "temperature=0.7", "horizon=256", "reward=0..1"), 0),
        (("--inverse", "reward_drift=0", "--assume", "horizon=256", "reward=0..1"), 1),
        (("--compare", "published"), 0),
        (("--compare", "published", "--given", "logit_span=0.2", "--assume", "tv=0.1", "horizon=8"), 0),
    ],
    "compile": [((str(CONTRACTS / "rl_rollout.kc"),), 0), ((str(CONTRACTS / "rl_rollout.kc"), "-o", "m.py"), 0)],
    "measure": [
        ((str(CONTRACTS / "deploy_int8.kc"), *MODEL, "--candidate", "demo:int8", "--causes", "--by-layer", "--fixed-sample"), 3),
        (("strict.kc", *MODEL, "--candidate", "demo:int4", "--temperature", "0.8"), 1),
        (("strict.kc", "--reference", "dump", "--candidate", "dump", "--executor", "serial"), 3),
    ],
    "certificate check": [(("good.json", "--contract", str(CONTRACTS / "rl_rollout.kc")), 0), (("good.json", "text.txt", "no"), 2)],
    "diff": [((str(CONTRACTS / "rl_rollout.kc"), "bad.kc"), 1), (("bad.kc", "bad.kc"), 0)],
    "inspect": [
        ((str(ROOT / "tests" / "data" / "streams" / name), "--declare", "weights=a"), 0)
        for name in ("sglang_triples.jsonl", "llamacpp_ref.kld", "hf_generate.safetensors", "llamacpp_*.kld")
    ],
    "compare": [
        ((f"{STREAMS}/llamacpp_ref.kld", f"{STREAMS}/llamacpp_q8_0.kld", "--as", "verl", "--window", "0.9,1.1"), 0),
        ((f"{STREAMS}/llama_server_comp_q4_1.json", f"{STREAMS}/llama_server_comp_q3_k_s.json"), 0),
        ((*[f"{STREAMS}/hf_generate.safetensors"] * 2, "--declare-a", "logprobs_mode=raw", "--declare-b", "logprobs_mode=processed"), 1),
        ((f"{STREAMS}/llamacpp_ref.kld", f"{STREAMS}/sglang_triples.jsonl"), 3),
    ],
    "gate": [
        (("lift.kc", "--stage", "offline", "--evidence", "result.json"), 0),
        (("lift.kc", "--stage", "shadow", "--evidence", "failing.json"), 1),
        (("lift.kc", "--store", "lift.db"), 3),
    ],
    "promote": [(("lift.kc", "--store", "new.db", "--evidence", "result.json"), 0), (("lift.kc", "--store", "lift.db"), 3)],
    "status": [(("--store", "lift.db"), 0)],
    "history": [(("--store", "lift.db"), 0)],
    "emit": [(("--list",), 0)],
    "route": [(("http-route", "lift.kc", "--store", "lift.db"), 0)],
    "rebuild": [(("--store", "lift.db"), 0), (("--store", "lift.db", "--repair"), 0)],
    "rollback": [(("--store", "lift.db", "--reason", "a test"), 0)],
    "conformance calibrate": [(("--class", "C-PRC-03", "--class", "C-EXC-02"), 0)],
    "conformance run": [
        ((f"{CONTRACTS}/kernels/int8_product.kc", "--kernel", "matmul.int8", "--same-process"), 1),
        ((f"{CONTRACTS}/published/p9_reduction_order.kc", "--kernel", "sum.bfloat16", "--same-process"), 1),
        ((f"{CONTRACTS}/kernels/int8_weight_shapes.kc", "--kernel", "weight_int8pack.unpadded"), 1),
    ],
    "conformance record": [((f"{CONTRACTS}/kernels/out_of_range.kc", "--kernel", "gather", "--same-process", "-o", "entry.json"), 0)],
    "conformance compare": [(("gather.json", "indexing.json"), 1), (("gather.json", "gather.json"), 0)],
    "conformance survey": [(("--class", "C-EXC-02", "--kernel", "indexing", "--kernel", "scaled_mm.cuda"), 1)],
    "conformance kernels": [((), 0)],
    "conformance traps": [(("--only", "wraps modulo"), 0)],
    "conformance logits": [
        (("--reference", "demo:float32", "--candidate", "demo:int8", "--limit", "1", "--assume", "temperature=1", "horizon=4"), 0)
    ],
    "conformance chain": [
        ((f"{CONTRACTS}/kernels/accumulator_bf16.kc", "one.kc", "--limit", "2", "--window", "4"), 3),
    ],
    "allocate": [(("strict.kc", *SMALL, "--formats", "float32,int8_bf16", "--clause", "drift"), 3)],
    "map": [(("strict.kc", "--kernel", "int8_bf16", "--limit", "3", "--rows", "0"), 0), (("--kernel", "bf16", "--limit", "2", "--window", "4"), 0)],
    "fingerprint": [(("--kernel", "demo:int8", "-o", "fp.json"), 0), (("--compare", "fp.json", "fp.json"), 0)],
    "replay": [(("worst.jsonl",), 0)],
    "attest": [(("easy.kc", "--result", "easy.json", "--weights", WEIGHTS, "--key", "k.key", "-o", "k.intoto.jsonl"), 0)],
    "verify": [
        (("k.intoto.jsonl", "--public-key", "k.key.pub", "--weights", WEIGHTS, "--contract", "easy.kc"), 0),
        (("k.intoto.jsonl", "--public-key", "k.key.pub"), 1),
        (("text.txt", "--public-key", "k.key.pub"), 1),
    ],
    "catalogue": [((), 0), (("units", "codes"), 0)],
    "serve-demo": [(("--faults",), 0)],
}  # fmt: skip
"""Arguments of each command that prints JSON, and the exit code that they give."""


def entry(name: str) -> str:
    """An entry as a machine of its own would have written it."""
    verdict = "violation" if name == "indexing" else "within_tolerance"
    parts: dict[str, Any] = {
        "format": "kcverify-conformance-entry/1", "kcverify": "0.1.0", "class": "C-EXC-02", "operation": "embedding",
        "kernel": "gather", "declared": {}, "tolerance": None, "measurement": None, "readings": [], "calibration": [],
        "contract": {"name": "out_of_range"}, "machine": {"processor": name}, "findings": [], "verdict": verdict, "reproduce": "",
    }  # fmt: skip
    return json.dumps(parts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("answers")
    for name, text in (
        ("bad", REFUTED),
        ("apart", APART),
        ("broken", BROKEN),
        ("open", OPEN),
        ("strict", STRICT),
        ("easy", EASY),
        ("one", ONE),
    ):
        (where / f"{name}.kc").write_text(text, encoding="utf-8")
    (where / "text.txt").write_text((ROOT / "README.md").read_text(encoding="utf-8")[:2000], encoding="utf-8")
    (where / "dump").mkdir()
    for i in range(2):
        np.save(where / "dump" / f"part-{i}.npy", np.arange(12, dtype=np.float32).reshape(4, 3))
    (where / "lift.kc").write_text(LIFT, encoding="utf-8")
    (where / "result.json").write_text(result(50), encoding="utf-8")
    for name in ("gather", "indexing"):
        (where / f"{name}.json").write_text(entry(name), encoding="utf-8")
    (where / "failing.json").write_text(result(50, bad=True), encoding="utf-8")
    for arguments in (
        ["check", str(CONTRACTS / "rl_rollout.kc"), "--certificate", str(where / "good.json")],
        [
            "promote",
            str(where / "lift.kc"),
            "--store",
            str(where / "lift.db"),
            "--evidence",
            str(where / "result.json"),
        ],
    ):
        with pytest.raises(SystemExit):
            main(arguments)
    _attestable(where)
    return where


def _attestable(where: Path) -> None:
    """A key, and a result with its witnesses; without torch neither of the latter."""
    with pytest.raises(SystemExit):
        main(["keygen", str(where / "k.key")])
    sides = [
        "--reference",
        "demo:float32",
        "--candidate",
        "demo:int8",
        "--data",
        str(where / "text.txt"),
        "--window",
        "32",
    ]
    more = ["--limit", "12", "--fixed-sample", "--witnesses", str(where / "worst.jsonl"), "--format", "json"]
    with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit):
        main(["measure", str(where / "easy.kc"), *sides, *more])
    (where / "easy.json").write_text(printed.getvalue(), encoding="utf-8")


def _commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def test_every_command_that_prints_json_is_here() -> None:
    found = _commands(typer.main.get_command(app))
    assert {n for n, c in found if any("--format" in p.opts for p in c.params)} == set(CASES)


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(
    ("command", "arguments", "code"),
    [
        pytest.param(
            name,
            *case,
            marks=pytest.mark.needs("torch") if name.split()[0] in TORCH else (),
        )
        for name, cases in CASES.items()
        for case in cases
    ],
)
def test_an_answer_fits_the_schema(
    command: str, arguments: tuple[str, ...], code: int, folder: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(SystemExit) as stop:
        main([*command.split(), *arguments, "--format", "json"])
    out, err = capsys.readouterr()
    assert stop.value.code == code, err
    assert "Traceback" not in err
    answer = json.loads(out)
    jsonschema.Draft202012Validator(SCHEMA).validate(answer)
    CLOSED.validate(answer)
    assert answer.get("exit_code", code) == code


def test_the_second_solver_speaks_json_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("cvc5")
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit):
        main(["check", str(CONTRACTS / "reward_only.kc"), "--second-solver", "--format", "json"])
    answer = json.loads(capsys.readouterr().out)
    CLOSED.validate(answer)
    assert all("second_solver" in c for f in answer["files"] for c in f["contracts"])
