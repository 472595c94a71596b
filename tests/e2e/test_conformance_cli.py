"""`kcverify conformance` through the command line: text, exit codes, entries that validate and compare."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import jsonschema
import pytest

from kcverify.cli import main

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "contracts" / "kernels"
SCHEMA = json.loads((ROOT / "docs" / "answers.schema.json").read_text(encoding="utf-8"))


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["conformance", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert "Traceback" not in err + out
    return stop.value.code, out, err


def test_the_matrix_of_some_classes(capsys):
    code, out, _ = run(capsys, "calibrate", "--class", "C-PRC-02", "--class", "C-EXC-02")
    assert code == 0
    assert "fail / violation" in out
    assert "pass / violation" in out
    assert "pass / within_tolerance" in out
    assert "every class tells its kernels apart" in out


def test_a_user_kernel_in_a_process_of_its_own(capsys, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("import torch\ndef product(a, b):\n    return torch.matmul(a, b)\n")
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "run", KERNELS / "accumulator_bf16.kc", "--kernel", "mine:product")
    assert code == 0
    assert "within_tolerance" in out
    assert "gamma(" in out
    assert "calibration: bad kernel matmul_narrow: violation" in out


def test_a_contract_that_cannot_run_is_wrong_input_in_any_process(capsys, tmp_path):
    text = (KERNELS / "int8_product.kc").read_text(encoding="utf-8")
    path = tmp_path / "a.kc"
    path.write_text(text.replace("finite(a)", "k > 100000"), encoding="utf-8")
    for more in ((), ("--same-process",)):
        code, _, err = run(capsys, "run", path, "--kernel", "int_mm", *more)
        assert code == 2
        assert "keeps `requires`" in err


def test_published_bounds_are_found_wanting(capsys):
    code, out, _ = run(
        capsys, "run", ROOT / "contracts/published/p9_reduction_order.kc", "--kernel", "sum.bfloat16", "--same-process"
    )
    assert code == 1
    assert "768 against 8" in out
    code, out, _ = run(
        capsys, "run", ROOT / "contracts/published/p10_fp8_roundoff.kc", "--kernel", "cast.e4m3", "--same-process"
    )
    assert code == 1
    assert "0.125 against 0.0625" in out


def test_an_entry_fits_the_schema_and_compares_with_another_machine(capsys, tmp_path):
    path, other = tmp_path / "a.json", tmp_path / "b.json"
    code, out, _ = run(
        capsys, "record", KERNELS / "int8_product.kc", "--kernel", "int_mm", "--same-process", "-o", path
    )
    assert (code, "within_tolerance" in out) == (0, True)
    entry = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator({**SCHEMA, "oneOf": [{"$ref": "#/$defs/conformance_entry"}]}).validate(entry)
    assert entry["reproduce"].startswith("kcverify conformance run ")
    entry["machine"]["processor"], entry["verdict"] = "another", "violation"
    other.write_text(json.dumps(entry), encoding="utf-8")
    code, out, _ = run(capsys, "compare", path, other)
    assert code == 1
    assert "another verdict" in out
    assert run(capsys, "compare", path, path)[0] == 0


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": "kcverify-conformance-entry/1"}', "{" * 5000, '{"format": 1}'], ids=range(6)
)
def test_what_is_no_entry_is_wrong_input(capsys, tmp_path, text):
    path = tmp_path / "a.json"
    path.write_text(text, encoding="utf-8")
    code, _, err = run(capsys, "compare", path, path)
    assert code == 2
    assert "KC716" in err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("run", KERNELS / "int8_product.kc", "--kernel", "no.such:kernel"), "KC701"),
        (("run", KERNELS / "int8_product.kc", "--kernel", "int_mm", "--contract", "other"), "KC702"),
        (("run", ROOT / "contracts" / "budget.kc", "--kernel", "int_mm"), "KC702"),
        (("run", "missing.kc", "--kernel", "int_mm"), "KC4"),
        (("calibrate", "--class", "C-XXX-01"), "one of C-PRC-01"),
        (("survey", "--kernel", "nothing"), "KC701"),
        (("compare", "missing.json", "missing.json"), "KC716"),
        (("logits", "--reference", "demo:float32", "--candidate", "demo:fp8", "--limit", "1"), "KC717"),
        (("logits", "--reference", "demo:float32", "--candidate", "torch:matmul"), "KC717"),
    ],
)
def test_wrong_input_is_named(capsys, arguments, code):
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert code in err


def test_the_chain_from_the_accumulator_to_the_policy_gradient(capsys):
    code, out, _ = run(
        capsys, "logits", "--reference", "demo:float32", "--candidate", "demo:bfloat16", "--limit", "1",
        "--assume", "temperature=1", "horizon=1", "reward=0..1", "advantage=1", "score_norm=1",
    )  # fmt: skip
    assert code == 0
    assert "attested: logit_drift <= 0.263" in out
    assert "measured:" in out
    assert "pg_bias" in out
    assert "none" not in out.split("pg_bias")[1].splitlines()[0]


def whole(page):
    """The text of a report that loads nothing and runs nothing."""
    html = page.read_text(encoding="utf-8")
    assert "<script" not in html
    assert "http" not in html.replace("http://www.w3.org", "").replace("http-equiv", "")
    assert "src=" not in html
    assert "kcverify conformance run " in html
    return html


SAMPLES = "kcverify.conformance.samples:"


@pytest.mark.parametrize(
    ("contract", "kernel", "says"),
    [
        (
            "accumulator_bf16",
            f"{SAMPLES}matmul_narrow",
            (
                "residual grows with k",
                "within what sums in tfloat32, bfloat16",
                "raises L3",
                "Silent precision coercion",
                "<svg",
            ),
        ),
        (
            "shapes_and_memory",
            f"{SAMPLES}matmul_tiled_only",
            ("held-out shapes pass", "first failing m=1, n=2, k=2", "raises L"),
        ),
        ("shapes_and_memory", f"{SAMPLES}matmul_reused", ("result_cached", "raises L")),
        ("out_of_range", "indexing", ("100 indices out of range, declared RAISE", "first", "raises L")),
    ],
    ids=["coerced sums", "one benchmarked shape", "reused memory", "negative indices"],
)
def test_each_incident_has_a_report(capsys, tmp_path, contract, kernel, says):
    page = tmp_path / "r.html"
    code, _, _ = run(capsys, "run", KERNELS / f"{contract}.kc", "--kernel", kernel, "--same-process", "--html", page)
    assert code == 1
    html = whole(page)
    for text in says:
        assert text in html, text


def test_what_a_kernel_says_is_escaped_in_its_report(capsys, tmp_path, monkeypatch):
    (tmp_path / "odd.py").write_text("def kernel(a, b):\n    raise ValueError('<script>alert(1)</script>')\n")
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "r.html"
    code, _, _ = run(
        capsys, "run", KERNELS / "int8_product.kc", "--kernel", "odd:kernel", "--same-process", "--html", page
    )
    assert code == 1
    assert "&lt;script&gt;alert(1)" in whole(page)


def test_the_command_of_an_entry_gives_its_verdict_again(capsys, tmp_path):
    path = tmp_path / "a.json"
    for kernel, options in (("matmul.int8", ()), ("int_mm", ("--trials", "3"))):
        code, _, _ = run(
            capsys, "record", KERNELS / "int8_product.kc", "--kernel", kernel, "--same-process", *options, "-o", path
        )
        entry = json.loads(path.read_text(encoding="utf-8"))
        words = shlex.split(entry["reproduce"])
        assert words[:2] == ["kcverify", "conformance"]
        again, out, _ = run(capsys, *words[2:], "--same-process", "--format", "json")
        found = json.loads(out)
        assert (again, found["verdict"]) == (code, entry["verdict"])
        assert found["worst"]["value"] == entry["measurement"]["value"]


@pytest.mark.skipif(__import__("torch").cuda.is_available(), reason="says what a machine without a GPU says")
def test_without_a_gpu_nothing_of_it_passes(capsys):
    code, out, _ = run(capsys, "run", KERNELS / "fp8_product.kc", "--kernel", "scaled_mm.cuda")
    assert code == 3
    assert "no CUDA device" in out
    assert "inconclusive" in out
    code, out, _ = run(capsys, "survey", "--kernel", "scaled_mm.cuda")
    assert code == 3
    assert "no CUDA device" in out
    code, out, _ = run(capsys, "traps", "--only", "on a GPU")
    assert code == 3
    assert "no CUDA device" in out
    assert "as expected" not in out.splitlines()[1]


def test_known_traps_by_name(capsys):
    code, out, _ = run(capsys, "traps", "--only", "wraps modulo")
    assert code == 0
    assert "as expected" in out
