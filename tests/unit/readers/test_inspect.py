"""`inspect` over every format: golden answers, and the table of what a metric needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warm
from stream_files import DATA, batch, safetensors

from kcverify.catalog.metrics import ROWS as METRICS
from kcverify.output.inspect import WORTHS, text
from kcverify.readers import table
from kcverify.readers.answer import data
from kcverify.readers.inspection import FIELDS, NEEDS, inspect, observables
from kcverify.readers.sidecar import KEYS
from kcverify.readers.stream import KNOWLEDGE, Status

ROOT = Path(__file__).resolve().parents[3]

MADE: dict[str, dict[str, np.ndarray]] = {
    "verl": {"responses": batch()["ids"], "response_mask": batch()["mask"], "rollout_log_probs": batch()["rollout"], "old_log_probs": batch()["trainer"]},
    "trl": {"completion_ids": batch()["ids"], "completion_mask": batch()["mask"], "sampling_per_token_logps": batch()["rollout"]},
    "nemo-rl": {"input_ids": batch()["ids"], "token_mask": batch()["mask"], "generation_logprobs": batch()["rollout"], "prev_logprobs": batch()["trainer"]},
    "openrlhf": {"sequences": batch()["ids"], "action_mask": batch()["mask"], "rollout_log_probs": batch()["rollout"], "action_log_probs": batch()["trainer"]},
    "slime": {"tokens": batch()["ids"], "loss_masks": batch()["mask"], "rollout_log_probs": batch()["rollout"]},
    "logits": {"logits": np.array([[1.0, -np.inf, 0.5], [np.nan, 0.0, 0.0]], dtype=np.float32), "token_ids": np.array([1, 2])},
}  # fmt: skip


def answer(path: Path, *declare: str) -> dict[str, Any]:
    found = data(inspect(path, list(declare)))
    return found | {"file": path.name}


def upper_half(found: dict[str, Any]) -> str:
    """What is printed about the file; the metrics, whose table grows, are tested below."""
    return text(found, color=False).partition("  two such files give")[0].rstrip() + "\n"


@pytest.mark.parametrize("name", sorted(p.name for p in DATA.iterdir() if p.suffix != ".md"))
def test_files(name: str, golden) -> None:  # type: ignore[no-untyped-def]
    golden(upper_half(answer(DATA / name)))


@pytest.mark.parametrize("name", MADE)
def test_tensors(name: str, golden, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    found = answer(safetensors(tmp_path / "a.safetensors", MADE[name]))
    assert found["format"] == name
    golden(upper_half(found))


def test_every_row_of_the_table_has_a_golden_answer() -> None:
    seen = {answer(p)["format"] for p in DATA.iterdir() if p.suffix != ".md"} | set(MADE)
    assert seen == set(table.BY_NAME)


def test_rows_of_the_table() -> None:
    assert len(table.BY_NAME) == len(table.ROWS)
    for row in table.ROWS:
        assert set(row.assumed) | set(row.asks) <= set(KNOWLEDGE)
        assert row.title
        assert row.source
        assert all(m.means and m.status is not Status.VALUE for m in row.meanings)
        assert all(
            c in (table.JSON, table.SAFETENSORS, table.NPY, table.NPZ, table.PARQUET, table.TORCH, table.KLD)
            for c in row.containers
        )


def test_every_placeholder_of_the_brief_has_a_meaning_in_every_format() -> None:
    for row in table.ROWS:
        if row.name != "llama.cpp-kld":
            assert {m.value for m in row.meanings} >= {"null", "-9999.0", "-1000.0", "-100.0", "-inf", "nan"}
        assert row.zero


def test_every_input_of_a_metric_has_a_row() -> None:
    assert {c.inputs for m in METRICS for c in m.carriers} == set(NEEDS)
    assert {n for sets in NEEDS.values() for s in sets for n in s} <= set(FIELDS)
    assert {o.worth for o in observables(set())} == {"not observed"}
    assert {o.worth for o in observables(set(FIELDS))} <= set(WORTHS)


def worth(carries: set[str], metric: str) -> str:
    return next(o.worth for o in observables(carries) if o.metric == metric)


def test_what_a_file_of_samples_a_list_and_full_rows_is_worth() -> None:
    assert worth({"logprobs"}, "tv") == "bounded"
    assert worth({"logprobs"}, "sequence_ratio") == "exact"
    assert worth({"logprobs"}, "agreement") == "not observed"
    assert worth({"logprobs", "top_logprobs"}, "agreement") == "exact"
    assert worth({"logits"}, "tv") == "exact"
    assert worth({"logits"}, "logit_drift") == "exact"
    # llama.cpp's rows are log-probabilities with a storage error: nothing is exact, and the logits' constant is lost
    assert worth({"row_logprobs", "logprobs", "error"}, "tv") == "bounded"
    assert worth({"row_logprobs", "logprobs", "error"}, "logit_drift") == "not observed"


def test_suspects_are_counted(tmp_path: Path) -> None:
    columns = MADE["verl"] | {
        "rollout_log_probs": np.array([[0.5, 0.0, -1.0, 0.0], [-1.0, -1.0, 0.0, 0.0]], dtype=np.float32)
    }
    found = answer(safetensors(tmp_path / "a.safetensors", columns))
    assert [(s["count"], s["what"].split(":")[0]) for s in found["suspects"]] == [
        (1, "log-probabilities above 0"),
        (1, "log-probabilities of exactly 0.0 counted"),
    ]


def test_undeclared_is_said_until_it_is_declared() -> None:
    path = DATA / "vllm_outputs.jsonl"
    assert [u["key"] for u in answer(path)["undeclared"]] == ["temperature", "weights"]
    found = answer(path, "temperature=0.7", "weights=a")
    assert found["undeclared"] == []
    assert {d["key"]: d["origin"] for d in found["declared"]}["temperature"] == "flag"
    assert any("logprobs_mode = raw" in a for a in found["assumptions"])
    assert set(KEYS) >= {d["key"] for d in found["declared"]} - {"container"}


def test_inspect_needs_no_torch() -> None:
    code = (
        "import sys\nfrom kcverify.readers.inspection import inspect\n"
        "inspect('tests/data/streams/hf_generate.safetensors')\n"
        "print([m for m in ('torch', 'pyarrow', 'z3', 'transformers', 'safetensors') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout.strip() == "[]"


def test_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from kcverify.cli import main

    with pytest.raises(SystemExit) as stop:
        main(["inspect", str(DATA / "sglang_triples.jsonl")])
    assert stop.value.code == 0
    assert "SGLang /generate" in capsys.readouterr().out
    (tmp_path / "a").write_text("{", encoding="utf-8")
    with pytest.raises(SystemExit) as stop:
        main(["inspect", str(tmp_path / "a")])
    assert stop.value.code == 2
    assert "KC441" in capsys.readouterr().err


@pytest.mark.parametrize("shape", ["text", "json"])
def test_half_a_surrogate_pair_is_no_fault(shape: str, tmp_path: Path) -> None:
    """A text of the file that UTF-8 cannot hold ended the command with an internal error."""
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"meta_info":{"weight_version":"\\ud800\\u0007","output_token_logprobs":[[-1.0,3,null]]}}', encoding="ascii"
    )
    run = warm.run(
        [sys.executable, "-m", "kcverify", "inspect", str(path), "--format", shape], capture_output=True, check=False
    )
    assert run.returncode == 0
    assert "\ufffd" in run.stdout.decode("utf-8")
