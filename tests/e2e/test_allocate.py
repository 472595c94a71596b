"""`allocate`, `map` and `conformance chain` through the command line, on the demo model with its real kernels."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("scipy")

from kcverify.cli import main  # noqa: E402
from kcverify.measure.data import load_data  # noqa: E402
from kcverify.measure.kernels import BY_NAME, multiply  # noqa: E402
from kcverify.measure.model import forward  # noqa: E402
from kcverify.measure.sides import open_side  # noqa: E402
from kcverify.measure.tokenizer import BYTES  # noqa: E402
from kcverify.output import kernel_chain  # noqa: E402
from kcverify.resources import data_path  # noqa: E402

ROOT = Path(__file__).parents[2]
ASSUME = "assume { temperature = 1; sampler = full_softmax; horizon <= 1 tokens; reward in [0, 1] }\n"
BUDGET = f"contract budget\n{ASSUME}numerical {{ drift: logit_span <= 1.2 except 5% -> L2 }}\n"
TIGHT = f"contract tight\n{ASSUME}numerical {{ drift: logit_span <= 0.001 except 5% -> L2 }}\n"
NONE = f"contract none\n{ASSUME}slice s = position < 2\nnumerical {{ drift: tv <= 0.1 on s -> L2 }}\n"
SLICES = f"""contract slices
{ASSUME}slice start = position < 2
slice code = tag("code")
slice nowhere = position >= 9999
numerical {{ near: mean tv <= 0.05 on start, code, nowhere -> L2 }}
observability {{ trace tags }}
"""
SMALL = (
    "--formats",
    "float32,int8_bf16,int4_bf16",
    "--window",
    "8",
    "--calibration",
    "16",
    "--limit",
    "176",
    "--points",
    "1",
    "--level",
    "block",
)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, text in (("budget", BUDGET), ("tight", TIGHT), ("none", NONE), ("slices", SLICES)):
        (tmp_path / f"{name}.kc").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return stop.value.code, out, err


def _self_contained(page: Path) -> str:
    html = page.read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)=|url\(|@import|<script|https?://(?!www\.w3\.org)""", html)
    pictures = re.findall(r"<svg[^>]*>", html)
    assert pictures
    assert all('role="img"' in p and "aria-labelledby" in p for p in pictures)
    assert len(set(re.findall(r'id="([^"]+)"', html))) == len(re.findall(r'id="([^"]+)"', html))
    return html


def _span(assignment: dict[str, str], window: int, skip: int, limit: int) -> float:
    """The 95 % quantile of the logit span of an assignment by block, computed without the package's measurement."""
    reference = open_side("demo:float32")
    model = reference.basis.model
    formats = {
        f: {m: BY_NAME[f].pack(model.tensors[m]) for m in model.matrices}
        for f in set(assignment.values()) | {"float32"}
    }

    def logits(ids, form_of):
        return forward(
            model, lambda name, x: multiply(BY_NAME[form_of(name)], x, formats[form_of(name)][name]), ids, torch.float32
        )

    requests = load_data(str(data_path("heldout.txt")), window=window, tokenizer=BYTES, limit=limit)[skip:]
    ids = torch.tensor([r.token_ids for r in requests])
    block = lambda name: "head" if name == model.head else ".".join(name.split(".")[:2])  # noqa: E731
    d = (logits(ids, lambda name: assignment[block(name)]) - logits(ids, lambda name: "float32")).double()
    rows = (d.amax(-1) - d.amin(-1)).flatten().sort(descending=True).values
    return float(rows[int(0.05 * len(rows))])


def test_the_assignment_beats_the_best_uniform_format_and_measures_as_it_says(capsys, folder):
    code, out, _ = run(capsys, "allocate", "budget.kc", *SMALL, "--format", "json", "-o", "page.html")
    answer = json.loads(out)
    assert (code, answer["verdict"], answer["binding"]) == (0, "pass", "drift")
    uniform = {u["name"]: u for u in answer["uniforms"]}
    assert uniform["int8_bf16"]["verdict"] == "pass"
    assert uniform["int4_bf16"]["verdict"] == "fail"
    assert answer["gain"]["best_uniform"] == "int8_bf16"
    assert answer["chosen"]["cost"] < uniform["int8_bf16"]["cost"]
    assert answer["gain"]["saving"] > 0
    assert not answer["gain"]["tie"]
    assignment = {u["name"]: u["format"] for u in answer["units"]}
    assert sum(answer["chosen"]["formats"].values()) == len(assignment) == 5
    assert _span(assignment, 8, 16, 176) == pytest.approx(answer["chosen"]["figures"][0], rel=1e-3)
    html = _self_contained(folder / "page.html")
    assert "blk.0" in html
    again = run(capsys, "allocate", "budget.kc", *SMALL, "--format", "json")
    assert json.loads(again[1]) == answer


def test_where_nothing_meets_the_contract_it_is_said(capsys, folder):
    few = ("--formats", "int8_bf16,int4_bf16", *SMALL[2:6], "--limit", "32", "--points", "0", "--level", "kind")
    code, out, _ = run(capsys, "allocate", "tight.kc", *few)
    assert code == 1
    assert "nothing meets the contract" in out
    assert "no assignment of these formats fits the budget" in out


def test_a_tie_is_a_tie_and_time_is_said_to_be_measured(capsys, folder):
    few = ("--formats", "int8_bf16", *SMALL[2:6], "--limit", "96", "--points", "0", "--level", "kind", "--cost", "time")
    code, out, _ = run(capsys, "allocate", "budget.kc", *few)
    assert code == 0
    assert "a tie: no assignment was found" in out
    assert "another run gives another number" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("none.kc",), "KC751"),
        (("budget.kc", "--limit", "10", "--calibration", "10"), "KC752"),
        (("budget.kc", "--formats", "bf17"), "no `bf17`"),
        (("budget.kc", "--formats", "bf16,bfloat16"), "each format is named once"),
        (("budget.kc", "--cost", "money"), "one of bytes, time"),
        (("budget.kc", "--clause", "other"), "no clause `other`"),
        (("budget.kc", "--model", "smollm2"), "KC419"),
        (("budget.kc", "--window", "0"), "--window"),
        (("budget.kc", "--reference", "bf17"), "--reference: no `bf17`"),
        (("budget.kc", "--model", "absent_model:logits"), "KC411"),
        (("budget.kc", "--temperature", "1e400"), "--temperature: 1e400 is not between"),
        (("missing.kc",), "KC401"),
    ],
)
def test_wrong_input_is_named(capsys, folder, arguments, words):
    code, _, err = run(capsys, "allocate", *arguments)
    assert code == 2
    assert words in err


@pytest.mark.parametrize(
    ("option", "value"), [("--factor", "1e400"), ("--factor", "1e-400"), ("--temperature", "1e400")]
)
def test_a_map_of_numbers_that_no_double_holds_is_refused(capsys, folder, option, value):
    code, _, err = run(capsys, "map", "--kernel", "int8", option, value)
    assert code == 2
    assert f"{option}: {value} is not between 1e-100 and 1e100" in err


@pytest.mark.parametrize(("limit", "chosen"), [("1e-200", "float32"), ("1e308", "int4")])
def test_limits_at_the_ends_of_the_doubles_are_kept_like_others(capsys, folder, limit, chosen):
    (folder / "far.kc").write_text(BUDGET.replace("<= 1.2 except 5%", f"<= {limit}"), encoding="utf-8")
    small = ("--window", "2", "--calibration", "4", "--limit", "68", "--points", "0", "--level", "kind")
    code, out, _ = run(capsys, "allocate", "far.kc", "--formats", "float32,int4", *small, "--format", "json")
    assert code == 0
    answer = json.loads(out)
    assert answer["attempts"][0]["formats"] == {chosen: 3}
    assert len({(p["kind"], str(p["formats"])) for p in answer["pareto"]}) == len(answer["pareto"])


def test_a_map_answers_for_each_slice(capsys, folder):
    lines = [
        {"request_id": f"r{i}", "text": data_path("heldout.txt").read_text(encoding="utf-8", errors="ignore")[9 * i : 9 * i + 8].encode("ascii", "replace").decode(),
         "tags": ["code"] if i % 2 else []} for i in range(60)
    ]  # fmt: skip
    (folder / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    kernels = ("--kernel", "int4_bf16", "--kernel", "float32", "--rows", "16", "--data", "data.jsonl")
    code, out, _ = run(capsys, "map", "slices.kc", *kernels, "--format", "json", "-o", "map.html")
    answer = json.loads(out)
    assert code == 0
    asked = {(q["slice"], q["kernel"]): q for q in answer["concentration"]}
    assert (
        asked["start", "int4_bf16"]["lower"]
        < asked["start", "int4_bf16"]["ratio"]
        < asked["start", "int4_bf16"]["upper"]
    )
    assert (asked["code", "int4_bf16"]["requests_inside"], asked["code", "int4_bf16"]["requests_outside"]) == (30, 30)
    assert asked["nowhere", "int4_bf16"]["answer"] == "cannot tell"
    assert (asked["start", "float32"]["answer"], asked["start", "float32"]["reason"]) == ("no", "no row drifts at all")
    assert "slice nowhere is empty in this data" in answer["notes"]
    by_cut = {c["name"]: c for c in answer["cuts"]}
    assert (
        sum(c["rows"] for c in by_cut["position"]["cells"])
        == sum(c["rows"] for c in by_cut["confidence"]["cells"])
        == 480
    )
    assert [c["name"] for c in by_cut["layer_block"]["cells"]] == ["blk.0", "blk.1", "blk.2", "blk.3", "head"]
    html = _self_contained(folder / "map.html")
    assert "Is drift concentrated on the named slices?" in html


def test_one_request_and_no_contract(capsys, folder):
    code, out, _ = run(capsys, "map", "--kernel", "fp8", "--limit", "1", "--window", "8", "--rows", "0")
    assert code == 0
    assert "no slice is named: give a contract with slices" in out
    code, out, _ = run(capsys, "map", "slices.kc", "--kernel", "fp8", "--limit", "1", "--window", "8", "--rows", "0")
    assert "1 requests on one side, 20 are needed on each" in out
    assert run(capsys, "map", "--kernel", "fp9")[0] == 2
    assert run(capsys, "map", "--metric", "speed")[0] == 2


def test_rows_without_a_value_are_counted(capsys, folder, monkeypatch):
    from kcverify.measure import kernels

    row = kernels.BY_NAME["int8_bf16"]

    def broken(x, packed):
        out = row.apply(x, packed)
        return torch.where(torch.arange(len(out))[:, None] == 3, torch.nan, out)

    from dataclasses import replace

    monkeypatch.setitem(kernels.BY_NAME, "int8_bf16", replace(row, apply=broken))
    for metric, counted in (("tv", "count as 1, the largest value there is"), ("kl", "count as infinite")):
        code, out, _ = run(
            capsys, "map", "--kernel", "int8_bf16", "--limit", "2", "--window", "8", "--rows", "0", "--metric", metric
        )
        assert code == 0
        assert "rows have no value" in out
        assert counted in out


CHAIN = ("--limit", "24", "--window", "8")


def test_one_report_from_the_accumulator_to_the_policy_gradient(capsys, folder):
    (folder / "linear.kc").write_text(
        (ROOT / "contracts" / "kernels" / "accumulator_bf16.kc")
        .read_text(encoding="utf-8")
        .replace("bfloat16", "float32"),
        encoding="utf-8",
    )
    extra = "advantage in [-1, 1]; score_norm <= 1.0 }\nguarantee { reward_safe: reward_drift <= 0.2; grad_safe: pg_bias <= 0.4; hard: reward_drift <= 0.01 }\n"
    (folder / "all.kc").write_text("contract all\n" + ASSUME.replace("}", f"; {extra}"), encoding="utf-8")
    code, out, _ = run(
        capsys, "conformance", "chain", "linear.kc", "all.kc", *CHAIN, "--format", "json", "-o", "chain.html"
    )
    answer = json.loads(out)
    assert code == 3
    steps = {s["quantity"]: s for s in answer["steps"]}
    carried = [s["carried"] for s in answer["steps"]]
    assert carried == ["attested"] * 2 + ["measured"] * (len(carried) - 2)
    assert steps["tv"]["evidence"] == "proved"
    assert 0 < steps["accumulator"]["value"] < 1e-4
    assert steps["pg_bias"]["value"] is not None
    assert {a["name"]: a["follows"] for a in answer["asked"]} == {"reward_safe": True, "grad_safe": True, "hard": False}
    share = 1 - 0.05 ** (1 / 24)
    assert answer["asked"][0]["bound"] == pytest.approx(steps["tv"]["value"] * (1 - share) + share, rel=1e-3)
    printed = {
        line.split()[0]: line.split()[1:3]
        for line in kernel_chain.text(answer, False).splitlines()
        if re.search(" [<>]= ", line)
    }
    for name in ("accumulator", "tv", "kl", "chi2", "bc", "reward_drift", "pg_bias"):
        relation, shown = printed[name]
        exact = Fraction(steps[name]["value"])
        assert (Fraction(shown) >= exact) if relation == "<=" else (Fraction(shown) <= exact), name
    assert Fraction(printed["bc"][1]) < 1
    _self_contained(folder / "chain.html")
    (folder / "asks_nothing.kc").write_text(
        "contract a\n" + ASSUME + "runtime { r: p99 latency <= 9 s -> L1 }\n", encoding="utf-8"
    )
    assert run(capsys, "conformance", "chain", "linear.kc", "asks_nothing.kc", *CHAIN)[0] == 3


@pytest.mark.parametrize(
    ("kernel", "more", "words"),
    [
        ("int8_product.kc", (), "KC753"),
        ("logsumexp_f16.kc", (), "KC753"),
        ("accumulator_bf16.kc", ("--candidate", "int8"), "KC753"),
        ("accumulator_bf16.kc", ("--candidate", "what"), "no format `what`"),
        ("accumulator_bf16.kc", ("--model", "gpt"), "no `gpt`"),
        ("accumulator_bf16.kc", ("--seed", "9" * 20), "--seed: 99999999999999999999 is not in [0, 2^62)"),
        ("accumulator_bf16.kc", ("--seed", "-1"), "--seed: -1 is not in [0, 2^62)"),
    ],
)
def test_a_chain_that_cannot_be_is_refused(capsys, folder, kernel, more, words):
    code, _, err = run(capsys, "conformance", "chain", ROOT / "contracts" / "kernels" / kernel, "budget.kc", *more)
    assert code == 2
    assert words in err
