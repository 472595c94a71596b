"""Rows of the table: float64 products, grouped products, 4-bit weights under quantised inputs, Linear8bitLt, compiled kernels."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kcverify.conformance import adapters, doubled, dynamic4, grouped, harness, isolate, probes, sampling  # noqa: E402
from kcverify.conformance.contract import prepared  # noqa: E402
from kcverify.conformance.kernels import BY_NAME  # noqa: E402
from kcverify.conformance.later import missing  # noqa: E402
from kcverify.conformance.model import Verdict  # noqa: E402
from kcverify.conformance.operations import BY_NAME as OPERATIONS  # noqa: E402
from kcverify.conformance.table import BY_ID, run_class  # noqa: E402

ROOT = Path(__file__).parents[3]


def run(name, class_id="C-PRC-01", kernel=None):
    row, shipped = BY_ID[class_id], BY_NAME[name]
    return run_class(row, kernel or shipped.kernel, shipped.declared, shipped.protocol(row), shipped.operation)


def test_doubled_sums_give_what_float64_leaves_out():
    g = torch.Generator().manual_seed(1)
    a, b = (torch.randn(s, generator=g, dtype=torch.float64) for s in ((3, 40), (40, 2)))
    b[20:] = -b[:20] * (1 + 2.0**-30)
    rest = doubled.beyond(a, b)
    for i in range(3):
        for j in range(2):
            terms = [Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a[i], b[:, j], strict=True)]
            true = sum(terms) - Fraction(float((a @ b)[i, j]))
            size = sum(abs(x) for x in terms)
            assert abs(Fraction(float(rest[i, j])) - true) <= Fraction(41, 2**53) ** 2 * 2 * size + abs(true) / 2**53


@pytest.mark.parametrize("name", ["matmul.float64", "linear.float64"])
@pytest.mark.parametrize("class_id", ["C-PRC-01", "C-PRC-04", "C-EXC-01"])
def test_a_float64_product_is_judged(name, class_id):
    found = run(name, class_id)
    assert found.verdict is Verdict.WITHIN
    assert found.draws


@pytest.mark.parametrize("by", ["sums in float32", "a few units in the last place"])
def test_a_float64_product_that_is_off_is_found(by):
    def narrow(a, b):
        return (a.float() @ b.float()).double()

    def moved(a, b):
        y = a @ b
        return y + 2.0**-44 * (a.abs() @ b.abs())

    found = run("matmul.float64", kernel=narrow if by.startswith("sums") else moved)
    assert found.verdict is Verdict.VIOLATION
    assert not [r for r in found.readings if r.verdict is Verdict.INCONCLUSIVE]


def test_plain_float64_could_not_judge_it():
    operation = OPERATIONS["matmul"]
    args = probes.draw("normal", ((4, 64), (64, 5)), "float64", probes.generator(1))
    limit, plain = (
        operation.tolerance(args, BY_NAME["matmul.float64"].declared).value,
        harness.oracle_slack(operation, args),
    )
    assert plain > limit > 10**6 * harness.oracle_slack(operation, args, fine=True)


@pytest.mark.parametrize(
    "name", ["grouped_mm.float32", "grouped_mm.bfloat16", "dyn_quant_4bit.groups", "dyn_quant_4bit.rows"]
)
@pytest.mark.parametrize("class_id", ["C-PRC-01", "C-CMP-03"])
def test_kernels_of_torch_keep_their_tolerance(name, class_id):
    if BY_NAME[name].needs():
        pytest.skip(BY_NAME[name].needs())
    assert run(name, class_id).verdict is Verdict.WITHIN


def test_another_groups_weight_is_found():
    def first_weight(a, b):
        ends = grouped._ends(a.shape[0], 1)
        return grouped._back(a @ grouped._weights(b, len(ends))[0], ends)

    assert run("grouped_mm.float32", kernel=first_weight).verdict is Verdict.VIOLATION


def test_groups_cover_all_rows_and_move_back():
    a, b = torch.randn(7, 5), torch.randn(5, 4)
    for rows, step in ((7, 1), (2, 1), (1, 1), (48, 16), (40, 16)):
        ends = grouped._ends(rows, step)
        assert ends[-1] == rows
        assert ends == sorted(set(ends))
        assert all(end % step == 0 for end in ends[:-1])
    ends = grouped._ends(7, 1)
    parts = torch.cat([x @ w for x, w in zip(a.tensor_split(ends[:-1]), grouped._weights(b, len(ends)), strict=True)])
    assert torch.allclose(grouped._back(parts, ends), a @ b, atol=1e-6)


def test_a_kernel_that_torch_has_for_gpus_alone_is_skipped_by_name():
    row = BY_NAME["scaled_grouped_mm"]
    if not row.needs():
        assert run("scaled_grouped_mm").verdict is Verdict.WITHIN
        return
    assert row.needs() == "torch has no processor kernel of _scaled_grouped_mm: it needs a GPU"
    assert BY_NAME["scaled_grouped_mm.cuda"].declared.device == "cuda"
    text = (ROOT / "contracts" / "kernels" / "fp8_product.kc").read_text(encoding="utf-8")
    (contract,) = isolate.kernels_of(text, "a.kc")
    found = isolate.contract_apart(contract, text, "a.kc", "scaled_grouped_mm")
    assert found["verdict"] == "inconclusive"
    assert "it needs a GPU" in found["findings"][0]["message"]


def test_a_zero_point_that_is_forgotten_is_found():
    def shifted(x, w):
        a, b = dynamic4.inputs("groups", x), dynamic4.weights("groups", w)
        return ((a + a.abs().amax(1, keepdim=True) / 127) @ b.mT).float()

    assert run("dyn_quant_4bit.groups", kernel=shifted).verdict is Verdict.VIOLATION


def test_inputs_of_the_4_bit_kernel_are_within_half_a_step():
    x = torch.randn(9, 64, generator=torch.Generator().manual_seed(4)) * 3 + 1
    step = (x.amax(1).clamp_min(0) - x.amin(1).clamp_max(0)) / 255
    assert bool(((dynamic4.inputs("rows", x) - x).abs() <= 1.02 * step[:, None]).all())


@pytest.mark.skipif(bool(missing("bitsandbytes")), reason="bitsandbytes is not installed")
def test_linear8bitlt_is_off_by_its_rounded_constant_and_by_nothing_else():
    row = BY_NAME["bitsandbytes.linear8"]

    def put_right(x, w):
        return row.kernel(x, w) * (1 / 127**2 / 6.200124e-05)

    off = run("bitsandbytes.linear8")
    assert off.verdict is Verdict.VIOLATION
    assert 1.7e-5 < float(off.worst().value) < 2e-5
    assert run("bitsandbytes.linear8", kernel=put_right).verdict is Verdict.WITHIN


@pytest.mark.skipif(bool(missing("bitsandbytes")), reason="bitsandbytes is not installed")
def test_linear8bitlt_with_outliers_apart_is_off_by_that_constant_in_its_codes_alone():
    row, name = BY_NAME["bitsandbytes.linear8_outliers"], "linear:bitsandbytes_linear8_outliers"
    many = replace(row.protocol(BY_ID["C-PRC-01"]), distributions=("lognormal", "outliers", "structured"), trials=2)

    def put_right(x, w):
        columns = (x.half().abs() >= 6).any(0)
        stored = OPERATIONS[name].oracle(torch.eye(x.shape[1]) * 8, w).mT.double() / 8
        apart = torch.where(columns, x.double(), 0.0) @ stored.mT
        return (apart + (row.kernel(x, w).double() - apart) * (1 / 127**2 / 6.200124e-05)).float()

    def forgotten(x, w):
        return row.kernel(x.clamp(-5.9, 5.9), w)

    found = [run_class(BY_ID["C-PRC-01"], k, row.declared, many, name) for k in (row.kernel, put_right, forgotten)]
    assert [r.verdict for r in found] == [Verdict.VIOLATION, Verdict.WITHIN, Verdict.VIOLATION]
    assert float(found[0].worst().value) < 2e-5 < float(found[2].worst().value)
    assert not OPERATIONS[name].rowwise, "an outlier in one row moves the codes of all"


def test_five_operations_are_compiled():
    rows = {name.removesuffix(".compiled"): row for name, row in BY_NAME.items() if name.endswith(".compiled")}
    assert set(rows) == {"linear", "softmax", "layer_norm", "rms_norm", "attention"} == set(adapters.COMPILED)
    assert all(row.risky and row.classes == ("C-CMP-01",) for row in rows.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", list(adapters.COMPILED))
def test_what_is_compiled_agrees_with_its_steps(name):
    row = BY_NAME[f"{name}.compiled"]
    if row.needs():
        pytest.skip(row.needs())
    found = isolate.survey_one(row, BY_ID["C-CMP-01"])
    assert found["verdict"] == "within_tolerance", found["findings"]


@pytest.mark.parametrize(
    ("kernel", "left"),
    [
        ("int_mm", {"subnormal"}),
        ("scaled_mm", set()),
        ("scaled_mm.e4m3", set(probes.SAMPLED) - {"normal", "cancellation"}),
    ],
)
def test_narrow_kernels_draw_all_that_makes_sense(kernel, left):
    names = BY_NAME[kernel].protocol(BY_ID["C-PRC-01"]).distributions
    assert set(probes.SAMPLED) - set(names) == left


def test_what_a_contract_cannot_draw_is_left_out_with_the_reason():
    path = ROOT / "contracts" / "kernels" / "int8_product.kc"
    text = path.read_text(encoding="utf-8").replace("distributions normal,", "distributions subnormal, normal,")
    (contract,) = isolate.kernels_of(text, path.name)
    _, given, how = prepared(contract, path.name)
    assert "subnormal" not in how.distributions
    assert sampling.left_out(contract, given) == ["subnormal is not drawn: whole numbers have no smallest normal one"]
    found = isolate.contract_here(text, path.name, None, "int_mm")
    assert "subnormal is not drawn: whole numbers have no smallest normal one" in found["notes"]


def test_every_reason_is_in_the_page():
    page = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    for role, kind, name in probes.UNFIT:
        said = next(line for line in page.splitlines() if line.startswith(f"| `{name}` | {kind} {role}"))
        assert probes.UNFIT[role, kind, name] in said


def test_whole_numbers_follow_their_distribution():
    drawn = {
        name: probes.draw(name, ((40, 64),), "int8", probes.generator(5))[0].int() for name in probes.DISTRIBUTIONS
    }
    assert all(int(x.abs().max()) <= 127 for x in drawn.values())
    assert int(drawn["near_overflow"].abs().min()) >= 124
    assert len(drawn["near_overflow"].sign().unique()) == 2
    assert int(drawn["lognormal"].min()) >= 0
    assert int(drawn["lognormal"].median()) < 16 < int(drawn["lognormal"].max())
    assert set(drawn["cancellation"].sum(-1).tolist()) == {1}
    assert set(drawn["identical"].unique().tolist()) == {1}
    assert int(drawn["zeros"].abs().max()) == 0


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2"])
def test_one_byte_floats_come_near_their_largest_number(kind):
    (x,) = probes.draw("near_overflow", ((64, 64),), kind, probes.generator(6))
    largest = torch.finfo(probes.DTYPES[kind]).max
    assert largest / 2 < float(x.float().abs().max()) < largest
