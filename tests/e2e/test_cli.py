"""The command line as a user types it, in a process of its own (`warm`: `test_readme` and `test_tutorial` start Python)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import warm

ROOT = Path(__file__).parents[2]
CONTRACTS = ROOT / "contracts"
GOOD = """contract c
assume { temperature = 1; sampler = full_softmax; horizon <= 4 tokens; reward in [0, 1] }
numerical { drift: logit_span <= 0.5 except 1% -> L2 }
guarantee { safe: reward_drift <= 0.6 }
"""


def run(*arguments: str, stdin: str | bytes | None = None, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    text = stdin is None or isinstance(stdin, str)
    done = warm.run(
        [sys.executable, "-m", "kcverify", *arguments], input=stdin, capture_output=True, text=text, cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}, timeout=240,
    )  # fmt: skip
    if not text:
        done = subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode != 4, done.stderr
    return done


def test_first_example_proves_what_its_comments_say():
    done = run("check", str(CONTRACTS / "rl_rollout.kc"))
    assert done.returncode == 0
    for text in ("PROVED reward_safe", "PROVED grad_safe", "PROVED clip_room", "0.375474", "7.50948", "0.434521"):
        assert text in done.stdout
    assert "warning[" not in done.stdout
    assert "error[" not in done.stdout


def test_one_percent_expects_exceedances_and_says_what_would_do(tmp_path):
    text = (CONTRACTS / "rl_rollout.kc").read_text(encoding="utf-8").replace("0.05 except 0.02%", "0.05 except 1%")
    done = run("check", "-", stdin=text)
    assert done.returncode == 3
    assert "256 tokens at a rate of 1% expect 2.56 exceedances" in done.stdout
    assert "would do" in done.stdout
    assert "<stdin>" not in done.stderr


def test_json_is_the_same_answer():
    done = run("check", str(CONTRACTS / "rl_rollout.kc"), "--format", "json")
    answer = json.loads(done.stdout)
    (contract,) = answer["files"][0]["contracts"]
    assert answer["exit_code"] == done.returncode == 0
    assert [v["verdict"] for v in contract["verdicts"]] == ["PROVED"] * 3
    first = contract["verdicts"][0]
    assert first["binding"] == ["drift"]
    assert float(first["bound"]) <= 0.375474
    assert float(first["slack"]) > 0
    assert contract["digest"].startswith("sha256:")


@pytest.mark.parametrize(
    ("text", "slug", "word"),
    [
        ("", "file_empty", "is empty"),
        (GOOD.replace("logit_span", "logit_spam"), "unknown_metric", "logit_span"),
        (GOOD.replace("<= 0.5 except", "<= 0.5 ms except"), "", "ms"),
        ("contract c\nruntime { a: p99 latency <= 0.12 -> L1 }\n", "", "ms"),
        (GOOD.replace("reward in [0, 1]", "reward in [1, 0]"), "", "[1, 0]"),
        (GOOD.replace("<= 0.5 except", "<= nan except"), "", "nan"),
        (GOOD.replace("<= 0.5 except", "<= inf except"), "", "inf"),
        (GOOD.replace("logit_span <= 0.5 except 1%", "kl <= 0.5 nats"), "", "kl(candidate || reference)"),
        (GOOD.replace("-> L2 }", "-> L2; drift: tv <= 0.1 -> L1 }"), "", "drift"),
        (GOOD.replace("except 1%", "except 1% on nowhere"), "", "nowhere"),
        (GOOD.replace("numerical {", "numerical"), "", "numerical"),
    ],
    ids=["empty", "metric", "unit", "missing unit", "reversed", "nan", "inf", "bare kl", "twice", "slice", "brace"],
)
def test_bad_contracts_get_a_code_a_place_and_a_hint(text, slug, word):
    done = run("check", "-", stdin=text)
    assert done.returncode == 2
    assert "error[KC" in done.stdout
    assert slug in done.stdout
    assert word in done.stdout
    assert "hint:" in done.stdout


def test_several_errors_in_one_run():
    done = run("check", "-", stdin=GOOD.replace("logit_span", "logit_spam").replace("reward_drift", "reward_drft"))
    assert done.stdout.count("error[KC") >= 2


def test_not_text_and_missing_files():
    assert "not_text" in run("check", "-", stdin=b"contract \xff\xfe c\n").stdout
    done = run("check", "no/such.kc", str(CONTRACTS / "rl_rollout.kc"))
    assert done.returncode == 2
    assert "file_unreadable" in done.stdout
    assert "PROVED reward_safe" in done.stdout


def test_several_contracts_need_a_name():
    text = GOOD + GOOD.replace("contract c", "contract d")
    done = run("derive", "-", stdin=text)
    assert done.returncode == 2
    assert "`c`, `d`" in done.stderr
    assert run("check", "-", "--contract", "d", stdin=text).returncode in (0, 1, 3)


def test_bounds_keys_and_reasons():
    done = run(
        "bounds", "--given", "logit_drift=0.05", "--assume", "temperature=0.7", "horizon=1024", "reward=0..1", "advantage=5",
        "score_norm=2", "exceedance=0.00001", "--format", "json",
    )  # fmt: skip
    answer = json.loads(done.stdout)
    assert list(answer) == [
        "logit_span",
        "log_ratio",
        "tv",
        "kl",
        "chi2",
        "bc",
        "tv_seq",
        "reward_drift",
        "pg_bias",
        "ess",
    ]
    for key, line in answer.items():
        assert {"bound", "attained", "lemma", "unit"} <= set(line)
        assert (line["bound"] is None) == ("reason" in line), key
    assert answer["ess"]["bound"] is None
    assert answer["tv_seq"]["bound"] < 0.8642
    for bad in (["--given", "tv=2"], ["--given", "nope=1"], ["--given", "tv=0.1", "--assume", "horizon=0"], []):
        assert run("bounds", *bad).returncode == 2


def test_compile_writes_an_identical_inert_module(tmp_path):
    first, second = tmp_path / "a.py", tmp_path / "b.py"
    for path in (first, second):
        assert run("compile", str(CONTRACTS / "rl_rollout.kc"), "-o", str(path)).returncode == 0
    text = first.read_text(encoding="utf-8")
    assert text == second.read_text(encoding="utf-8")
    for word in ("sha256:", "reward_safe PROVED", "from kcverify.runtime import", "ContractMonitor"):
        assert word.lower() in text.lower()
    assert "sympy" not in text
    assert run("compile", str(CONTRACTS / "rl_rollout.kc"), "-o", str(tmp_path / "no" / "c.py")).returncode == 2


@pytest.mark.needs("torch")
def test_measure_gives_a_verdict_and_a_report(tmp_path):
    report = tmp_path / "out.html"
    done = run(
        "measure", str(CONTRACTS / "deploy_int8.kc"), "--reference", "demo:float32", "--candidate", "demo:int4",
        "--data", str(ROOT / "kcverify" / "data" / "heldout.txt"), "--window", "16", "--limit", "48", "--report", str(report),
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "fail  drift" in done.stdout
    page = report.read_text(encoding="utf-8")
    assert "<svg" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("change", "slug"),
    [
        ({"--candidate": "demo:nothing"}, "side_unknown"),
        ({"--candidate": "no_module:f"}, "side_failed"),
        ({"--data": "no-such-file.txt"}, "file_unreadable"),
        ({"--window": "0"}, "option_invalid"),
        ({"--report": "no/such/dir/out.html"}, "file_unwritable"),
        ({"--temperature": "0"}, "option_invalid"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else x,
)
def test_measure_refuses_what_it_cannot_use(change, slug):
    options = {
        "--reference": "demo:float32", "--candidate": "demo:int8", "--data": str(ROOT / "kcverify/data/heldout.txt"), "--limit": "2",
    } | change  # fmt: skip
    done = run("measure", str(CONTRACTS / "deploy_int8.kc"), *(x for kv in options.items() for x in kv))
    assert done.returncode == 2
    assert slug in done.stderr


@pytest.mark.needs("torch")
def test_interrupted_measure_reports_what_it_has(tmp_path):
    command = [
        sys.executable, "-m", "kcverify", "measure", str(CONTRACTS / "deploy_int8.kc"), "--reference", "demo:float32",
        "--candidate", "demo:int8", "--data", str(ROOT / "kcverify/data/heldout.txt"), "--format", "json", "--batch", "1",
    ]  # fmt: skip
    process = warm.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert "Traceback" not in err
    if process.returncode == 0:
        pytest.skip("the run was over before the interrupt")
    assert process.returncode == (3 if out else 130), err
    if out:
        answer = json.loads(out)
        assert answer["complete"] is False
        assert answer["verdict"] != "pass"


def test_version_help_and_colour():
    assert run("--version").stdout.startswith("kcverify ")
    for command in ("check", "derive", "bounds", "compile", "measure", "demo", "explain"):
        help_text = run(command, "--help").stdout
        assert "Example" in help_text
    assert "\x1b[" not in run("check", str(CONTRACTS / "rl_rollout.kc")).stdout
    assert "KC202" in run("explain", "dead").stdout
    assert run("explain", "deda").returncode == 2


@pytest.mark.parametrize("words", [("--given", "tv=0.1"), ("--inverse", "reward_drift=0.1")])
def test_the_calculator_refuses_an_option_that_is_given_twice(words):
    done = run("bounds", *words, *words)
    assert done.returncode == 2 and f"{words[0]}: it is given twice" in done.stderr


@pytest.mark.parametrize("value", ["1e400", "1e-400"])
def test_the_calculator_refuses_sizes_that_no_double_holds(value):
    assume = ("--assume", "temperature=1", "horizon=4", "reward=0..1")
    for words in (("--given", f"logit_drift={value}"), ("--inverse", f"reward_drift={value}")):
        done = run("bounds", *words, *assume, "--format", "json")
        assert done.returncode == 2 and "not between 1e-100 and 1e100" in done.stderr


def test_generated_pages_need_a_folder_that_can_be_made(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    done = run("catalogue", "--pages", str(tmp_path / "file" / "docs"))
    assert done.returncode == 2 and "error[KC403 file_unwritable]" in done.stderr


def test_a_budget_shows_the_arguments_of_its_metric():
    text = GOOD.replace("logit_span <= 0.5 except 1%", "logit_span(mass = 0.99) <= ?")
    assert "drift: logit_span(mass = 0.99) <= " in run("derive", "-", stdin=text).stdout
    text = GOOD.replace("logit_span <= 0.5 except 1%", "logit_span <= ?")
    assert "drift: logit_span <= " in run("derive", "-", stdin=text).stdout


@pytest.mark.parametrize("option", ["--certificate", "--coq"])
def test_a_proof_goes_to_a_file_of_its_own(option, tmp_path):
    (tmp_path / "c.kc").write_text(GOOD, encoding="utf-8")
    done = run("check", "c.kc", option, "-", cwd=tmp_path)
    assert done.returncode == 2 and "name a file" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["c.kc"]


def test_a_certificate_may_come_from_standard_input(tmp_path):
    assert run("check", "-", "--certificate", str(tmp_path / "c.json"), stdin=GOOD).returncode == 0
    done = run("certificate", "check", "-", stdin=(tmp_path / "c.json").read_text(encoding="utf-8"))
    assert done.returncode == 0 and done.stdout.startswith("-: accepted")


def test_a_kernel_contract_names_the_command_that_runs_it():
    path = str(CONTRACTS / "published" / "p10_fp8_roundoff.kc")
    done = run("check", path)
    assert done.returncode == 0 and done.stdout.endswith("1 kernel contract: read and checked, not run\n")
    assert "kcverify conformance run FILE" in done.stdout and "not enforced yet" not in done.stdout
    refused = run("derive", path)
    assert refused.returncode == 2 and "kernel contracts only" in refused.stderr and "conformance run" in refused.stderr


def test_what_other_commands_enforce_is_named_with_them():
    done = run("check", str(CONTRACTS / "rl_rollout.kc"))
    assert "observability (measure, gate), escalate (gateway), promote (gate, promote)" in done.stdout
