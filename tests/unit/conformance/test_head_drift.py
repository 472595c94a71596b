"""From a tolerance to logit drift: the bound holds for every hidden state, and is printed with how loose it is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from kcverify.conformance import head  # noqa: E402
from kcverify.diagnostics import InputError  # noqa: E402
from kcverify.measure.kernels import BY_NAME, multiply  # noqa: E402
from kcverify.measure.model import Architecture, Model  # noqa: E402
from kcverify.measure.sides import Basis, open_pair, pack_all  # noqa: E402


def small(seed: int, kernel: str, terms: int = 32, vocabulary: int = 16) -> Basis:
    g = torch.Generator().manual_seed(seed)
    gain, weight = torch.randn(terms, generator=g), torch.randn(vocabulary, terms, generator=g)
    model = Model(
        Architecture(vocabulary, terms, 0, 1, 1, terms, 1, 1.0, 1e-5),
        {"token_embd.weight": weight, "output_norm.weight": gain},
    )
    return pack_all(model, BY_NAME[kernel])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(sorted(head.OPERANDS)), st.floats(-3, 3))
def test_no_hidden_state_after_the_norm_breaks_the_bound(seed, kernel, size):
    basis = small(seed, kernel)
    gain, weight = basis.model.tensors["output_norm.weight"], basis.model.tensors["token_embd.weight"]
    x = torch.randn(24, 32, generator=torch.Generator().manual_seed(seed + 1)) * 10.0**size
    x[0], x[1:17] = 0.0, gain * weight.sign() / gain.abs().clamp_min(1e-3)  # towards the worst direction of every row
    hidden = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * gain
    exact = hidden.double() @ weight.double().mT
    error = (multiply(basis.kernel, hidden, basis.packed["token_embd.weight"]).double() - exact).abs().max()
    assert float(error) <= float(head.attested(basis).value)


@pytest.mark.parametrize(("kernel", "most"), [("bfloat16", 8), ("int8", 8), ("int4", 16)])
def test_the_demo_model_stays_within_and_near(kernel, most):
    one, other = open_pair("demo:float32", f"demo:{kernel}")
    found = head.drift(one, other, [torch.arange(96)[None] % 256])
    assert found["measured"]["head"] <= float(found["attested"]["value"])
    assert found["measured"]["head"] > 0
    assert 1 <= found["looseness"] < most
    assert found["measured"]["tokens"] == 96


def test_the_derivation_is_printed():
    lines = head.attested(small(1, "bfloat16")).lines
    assert lines[0].startswith("gamma(32, float32)")
    assert "logits" in lines[-1]


@pytest.mark.parametrize("kernel", ["w8a8", "fp8"])
def test_operands_quantised_by_their_peak_have_no_norm_bound(kernel):
    with pytest.raises(InputError) as stop:
        head.attested(small(1, kernel))
    assert stop.value.diagnostics[0].code.slug == "head_unbounded"
