"""`measure --causes` and `--by-layer` through the command line: text, JSON and the HTML report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kcverify.cli import main

pytestmark = pytest.mark.needs("torch")
ROOT = Path(__file__).parents[2]
DATA = str(ROOT / "kcverify" / "data" / "heldout.txt")
STRICT = """contract strict
assume { temperature = 1
  sampler = full_softmax
  horizon <= 1 tokens
  reward in [0, 1] }
numerical { step: tv <= 1e-12 -> L2 }
"""


@pytest.fixture(autouse=True)
def _one_thread():
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["measure", *arguments, "--data", DATA, "--window", "13", "--limit", "4"])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def pair(candidate: str, contract: str = str(ROOT / "contracts" / "deploy_int8.kc")) -> tuple[str, ...]:
    return contract, "--reference", "demo:float32", "--candidate", candidate


def test_text_and_report_carry_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "out.html"
    code, out, _ = run(capsys, *pair("demo:fp8"), "--causes", "--by-layer", "--rows", "20", "--report", str(page))
    assert code in (1, 3)
    for words in ("three causes, 52 rows", "format error", "kernel error", "run noise", "by layer, one swap at a time, 13 rows",
                  "KL is not additive", "without each request's last token", "by kind", "head (output.weight)"):  # fmt: skip
        assert words in out, words
    html = page.read_text(encoding="utf-8")
    for words in ('id="causes"', 'id="layers"', "format error", "kernel error", "run noise", "blk.0.ffn_down"):
        assert words in html, words


def test_json_carries_both(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, *pair("demo:int8"), "--causes", "--by-layer", "--format", "json")
    answer = json.loads(out)
    parts = {p["name"]: p for p in answer["causes"]["parts"]}
    assert parts["format"]["figures"]["kl"]["mean"] > 1e3 * parts["kernel"]["figures"]["kl"]["mean"] > 0
    assert parts["reference_kernel"]["bit_exact"]
    assert [level["name"] for level in answer["by_layer"]["levels"]] == ["kind", "block", "matrix"]
    assert answer["by_layer"]["rows"] == answer["causes"]["rows"] == 52


def test_without_the_flags_nothing_is_added(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, *pair("demo:int8"), "--format", "json")
    assert not {"causes", "by_layer"} & set(json.loads(out))


def test_a_pair_without_drift_is_bit_exact(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, *pair("demo:float32"), "--causes", "--by-layer")
    assert "bit-exact: all logits equal, nothing to attribute" in out
    assert out.count("bit-exact: all logits equal") >= 4


def test_a_limit_below_the_noise_floor_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "strict.kc").write_text(STRICT, encoding="utf-8")
    (tmp_path / "shaky.py").write_text(
        "import torch\n\ndef f(ids):\n    return torch.nn.functional.one_hot(ids, 256).float() * (2 + len(ids))\n",
        encoding="utf-8",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        patch.syspath_prepend(str(tmp_path))
        contract = str(tmp_path / "strict.kc")
        where = ("--reference", "shaky:f", "--candidate", "shaky:f", "--causes")
        ids = tmp_path / "ids.jsonl"
        ids.write_text("".join(json.dumps({"request_id": i, "token_ids": [i, 1, 2]}) + "\n" for i in range(3)))
        with pytest.raises(SystemExit):
            main(["measure", contract, *where, "--data", str(ids)])
    out = capsys.readouterr().out
    assert "clause step: limit 1e-12 is below the noise floor" in out
    assert "it fails without any fault" in out
    assert "format error: not observable, because shaky:f is a function" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("--rows", "5"), "nothing reads it"), (("--by-layer", "--rows", "0"), "not a positive number of rows")],
)
def test_what_cannot_be_done_is_refused(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, *pair("demo:int8"), *arguments)
    assert code == 2
    assert words in err
