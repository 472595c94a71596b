"""From a kernel's tolerance to logit drift: a norm bound for the head that holds for every input, and what is measured.

After an RMS norm the hidden state is `x = g * n` with `‖n‖ <= sqrt(K)`. A head kernel with tolerance t, weights W' in its
format and operands rounded by at most v (relative) gives, for every token v of the vocabulary,

    |z' - x W| <= Σ_k |x_k| ((t (1 + v) + v) S_vk + |W'_vk - W_vk|) <= sqrt(K) ‖g * ((t (1 + v) + v) S_v + |W'_v - W_v|)‖

(Cauchy and Schwarz), S = |W'|, or the parts that a zero point cancels. The norms are computed in float64 and moved up by more than their rounding: this is `attested`, of the
weights alone. What the layers below add is `measured`, on given tokens, and bounds nothing elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kcverify.conformance import tolerances as t
from kcverify.conformance.model import Declared, Derivation
from kcverify.conformance.operations import BY_NAME, weight_size
from kcverify.diagnostics import input_error
from kcverify.exact import decimal_up
from kcverify.measure.data import load_data
from kcverify.measure.kernels import multiply
from kcverify.measure.model import Model
from kcverify.measure.sides import Basis, FileSide, KernelSide, open_pair
from kcverify.resources import data_path
from kcverify.runtime.report import number

_UP = 1 + 2.0**-30
"""Above the rounding of a float64 sum of up to 2^20 terms."""

OPERANDS = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "int8": "float32",
    "int4": "float32",
    "int8_bf16": "bfloat16",
    "int4_bf16": "bfloat16",
}
"""Format that a head kernel takes its operands in; formats that quantise operands by their peak have no norm bound here."""


@dataclass(frozen=True)
class Attested:
    """A bound on the drift of every logit, for every token and every hidden state after the norm."""

    value: Fraction
    lines: tuple[str, ...]


def coefficient(kernel: str, terms: int, declared: Declared | None = None) -> Derivation:
    """`t (1 + v) + v` of a head kernel: as `declared`, or with float32 sums. Raises InputError: `head_unbounded`."""
    if kernel not in OPERANDS:
        raise input_error(
            "head_unbounded", kernel=kernel, reason="its operands are quantised by their peak, which no norm bounds"
        )
    operands = OPERANDS[kernel]
    packed = kernel not in ("float32", "bfloat16")
    sums, output = ("float32", operands) if declared is None else (declared.accumulator, declared.output)
    inner = t.rounded_to(t.gamma(terms + (4 if packed else 0), sums), output)
    v = Fraction(0) if operands == "float32" else t.unit_roundoff(operands)
    if inner.value is None:
        raise input_error("head_unbounded", kernel=kernel, reason=inner.lines[-1])
    value = inner.value * (1 + v) + v
    return Derivation(value, (*inner.lines, f"operands rounded by {t.shown(v)}: t (1 + v) + v = {t.shown(value)}"))


def _stored(basis: Basis) -> Tensor:
    """What the head kernel multiplies with, float64 `[V, K]`; scales of bfloat16 kernels are rounded."""
    weight: Tensor = basis.kernel.weights(basis.model.tensors[basis.model.head])
    return weight.double()


def attested(basis: Basis, declared: Declared | None = None) -> Attested:
    """How far the head kernel's logits lie from the exact ones. Raises InputError: `head_unbounded`.

    `declared` is what a kernel contract says of the product; without one, float32 sums rounded to the operands' format.
    """
    model = basis.model
    gain, weight = model.tensors["output_norm.weight"].double(), model.tensors[model.head].double()
    terms = weight.shape[1]
    factor = coefficient(basis.kernel.name, terms, declared)
    stored = _stored(basis)
    assert factor.value is not None
    rounded = weight_size(basis.kernel, model.tensors[model.head])
    size = (gain * rounded).norm(dim=1) * (float(factor.value) * _UP) + (gain * (stored - weight)).norm(dim=1)
    if not bool(torch.isfinite(size).all()):
        broken = int((~torch.isfinite(size)).sum())
        reason = f"{broken} of {len(size)} rows of the head, or the norm's gain, hold a NaN or an infinity"
        raise input_error("head_unbounded", kernel=basis.kernel.name, reason=reason)
    peak = Fraction(float(size.max()) * _UP)
    norm = BY_NAME["rms_norm"].tolerance([torch.zeros(1, terms)], Declared())
    if norm.value is None:
        raise input_error("head_unbounded", kernel=basis.kernel.name, reason=norm.lines[-1])
    room = (1 + norm.value) * (1 + t.unit_roundoff("float32"))
    root = t.root_up(Fraction(terms))
    assert root is not None
    value = peak * root * room + (terms + 2) * t.smallest_normal("float32")
    lines = (
        *factor.lines, f"largest row of the head, with the norm's gain: {shown_up(peak)}",
        f"sqrt({terms}) and the rounding of the norm: {shown_up(value)} logits",
    )  # fmt: skip
    return Attested(value, lines)


def shown_up(value: Fraction) -> str:
    """Four digits, rounded up."""
    return decimal_up(value, 4)


@dataclass(frozen=True)
class Measured:
    """Largest drifts on given tokens: of the head alone on equal hidden states, and of the whole model.

    A token whose logits are not finite is counted in `invalid`, and makes its figure infinite.
    """

    tokens: int
    head: float
    whole: float
    invalid: int = 0


def measured(reference: KernelSide, candidate: KernelSide, batches: Sequence[Tensor]) -> Measured:
    """Drift of the logits on token ids `[1, seq]`: head swapped alone, everything swapped."""
    one, other = _basis(reference), _basis(candidate)
    head = whole = 0.0
    tokens = invalid = 0
    for ids in batches:
        found: dict[str, Tensor] = {}

        def linear(name: str, x: Tensor, found: dict[str, Tensor] = found) -> Tensor:
            if name == one.model.head:
                found["x"] = x
            return multiply(one.kernel, x, one.packed[name])

        with torch.no_grad():
            base = one.model.logits(linear, ids).double()
            swapped = multiply(other.kernel, found["x"], other.packed[other.model.head]).double()
            every = candidate.logits(ids).double()
        one_, all_ = ((x - base).abs().amax(-1).nan_to_num(torch.inf, torch.inf) for x in (swapped, every))
        head, whole = max(head, float(one_.max())), max(whole, float(all_.max()))
        invalid += int((one_.isinf() | all_.isinf()).sum())
        tokens += ids.numel()
    return Measured(tokens, head, whole, invalid)


def _basis(side: KernelSide) -> Basis:
    if side.basis is None or not isinstance(side.basis.model, Model):
        reason = "only the shipped models show the norm before their head"
        raise input_error("head_unbounded", kernel=side.name, reason=reason)
    return side.basis


def drift(reference: KernelSide, candidate: KernelSide, batches: Sequence[Tensor]) -> Mapping[str, Any]:
    """Both bounds added, the measurement beside them, and how loose the bound is. Raises InputError: `head_unbounded`."""
    parts = [attested(_basis(side)) for side in (reference, candidate)]
    value = parts[0].value + parts[1].value
    seen = measured(reference, candidate, batches)
    invalid = f"; {seen.invalid} of them have logits that are not finite" if seen.invalid else ""
    return {
        "attested": {
            "evidence": "attested", "about": "the head alone, every token of every text, for kernels that keep C-PRC-01", "value": value,
            "lines": [f"{side.name}: {line}" for side, part in zip((reference, candidate), parts, strict=True) for line in part.lines],
        },
        "measured": {
            "evidence": "measured", "about": f"{seen.tokens} tokens; bounds nothing on other text{invalid}",
            "head": number(seen.head), "whole": number(seen.whole), "tokens": seen.tokens,
        },
        "looseness": float(value) / seen.head if 0 < seen.head < float("inf") else None,
    }  # fmt: skip


def of_formats(reference: str, candidate: str, data: str | None, limit: int, gguf: str | None) -> dict[str, Any]:
    """`drift` of two formats of one shipped model, on a text (the shipped one if None). Raises InputError."""
    one, other = open_pair(reference, candidate, gguf=None if gguf is None else Path(gguf))
    if isinstance(one, FileSide) or isinstance(other, FileSide):
        raise input_error("head_unbounded", kernel=f"{reference}, {candidate}", reason="a file shows no weights")
    left, right = _basis(one).model.tensors, _basis(other).model.tensors
    if left.keys() != right.keys() or not all(torch.equal(left[name], right[name]) for name in left):
        raise input_error("head_unbounded", kernel=candidate, reason="it is another model than the reference's")
    text = data or str(data_path("heldout.txt"))
    requests = load_data(text, window=256, tokenizer=one.tokenizer, vocabulary=one.vocabulary, limit=limit)
    return dict(drift(one, other, [torch.tensor([r.token_ids]) for r in requests]))
