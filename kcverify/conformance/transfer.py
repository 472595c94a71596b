"""From a kernel contract to the logits of a model: the head attested, the layers below it measured at their tolerance.

With h the hidden state before the head, `z' - z = (head'(h') - W h') + (W h' - W h) + (W h - head(h))`: the outer terms are
attested for every hidden state (`head`), the one between is measured on given requests, and spans add up. There the candidate is a
model whose every other product is off by its whole tolerance, `y + t Σ|x||w|` with random signs: as far as the contract
allows, though not in the worst direction. From the last product on, all but a norm is linear: there one more probe takes the signs
of the dual norm (`extremal`), which no other signs exceed for its pair of tokens, to first order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from kcverify.conformance import extremal
from kcverify.conformance import tolerances as t
from kcverify.conformance.head import OPERANDS, attested
from kcverify.conformance.model import Declared, Derivation
from kcverify.conformance.operations import base, weight_size
from kcverify.diagnostics import input_error
from kcverify.elaborate.kernel import KernelContract
from kcverify.measure.data import Request
from kcverify.measure.kernels import BY_NAME, multiply
from kcverify.measure.model import Model, forward
from kcverify.measure.sides import Basis

CONFIDENCE = 0.95
"""Of the share of requests that exceed the largest measured drift."""

_FLOAT32 = Declared()


@dataclass(frozen=True)
class Plan:
    """A declared product on a model: the format, and the derived tolerance of every matrix against `Σ|x||w|`."""

    basis: Basis
    declared: Declared
    tolerances: Mapping[str, Derivation]


@dataclass(frozen=True)
class Layer:
    """Logit span with one matrix alone at its tolerance: largest over rows with its place, median over rows."""

    layer: str
    tolerance: Fraction
    largest: float
    median: float
    request: str
    position: int


@dataclass(frozen=True)
class Extremal:
    """The last product before the head alone: largest logit span under random signs, and under those of the dual norm.

    `least` and `most` are the smallest and the largest of what the rows reach of `Σ|c| t Σ|x||w|`, c the pair's gradient.
    """

    layer: str
    random: float
    largest: float
    least: float
    most: float


@dataclass(frozen=True)
class Rest:
    """What the layers below the head add: largest logit span over all rows, with every matrix at its tolerance, and by layer.

    `actual` is the largest with the format's shipped kernels, `extremal` the last product alone under extremal signs.
    """

    largest: float
    median: float
    actual: float
    invalid: int
    requests: int
    rows: int
    layers: tuple[Layer, ...]
    witness: tuple[str, int]
    extremal: Extremal | None = None


def format_of(contract: KernelContract, declared: Declared, model: str) -> str:
    """The shipped format that a declaration is about: that of `linear:FORMAT`, else that of its operands.

    Raises InputError: `chain_unusable`.
    """
    _, _, named = contract.scope.operation.partition(":")
    found = named or declared.inputs
    if found not in BY_NAME:
        reason = f"no model here multiplies operands in {found}"
        raise input_error("chain_unusable", kernel=contract.name, model=model, reason=reason)
    return found


def plan(contract: KernelContract, declared: Declared, basis: Basis, model: str) -> Plan:
    """The tolerance of every product of the model. Raises InputError: `chain_unusable`."""

    def unusable(reason: str) -> Exception:
        return input_error("chain_unusable", kernel=contract.name, model=model, reason=reason)

    if base(contract.scope.operation) not in ("matmul", "linear"):
        raise unusable(f"`{contract.scope.operation}` is no matrix product")
    if basis.kernel.name not in OPERANDS:
        raise unusable(f"{basis.kernel.name} quantises its operands by their peak, which no norm bounds")
    named = contract.scope.operation.partition(":")[2]
    operands = OPERANDS[basis.kernel.name]
    if named and named != basis.kernel.name:
        raise unusable(f"it is about the format {named}, not {basis.kernel.name}")
    if not named and (declared.formats or declared.inputs != operands or (basis.kernel.name != operands)):
        formats = " and ".join(declared.formats or (declared.inputs,))
        raise unusable(f"it is about operands in {formats}, and the products of {basis.kernel.name} have others")
    low, high = next(((a, b) for name, a, b in contract.scope.shapes if name == "k"), (1, 2**31))
    packed = 4 if basis.kernel.name not in ("float32", "bfloat16") else 0
    found = {}
    for name in basis.model.matrices:
        terms = basis.model.tensors[name].shape[1]
        if not low <= terms <= high:
            raise unusable(f"`{name}` has {terms} inputs, and the contract is about k in [{low}, {high}]")
        found[name] = t.rounded_to(t.gamma(terms + packed, declared.accumulator), declared.output)
        if found[name].value is None:
            raise unusable(found[name].lines[-1])
    return Plan(basis, declared, found)


def format_named(name: str) -> str:
    """The format's own name. Raises InputError: `option_invalid`."""
    if name not in BY_NAME:
        raise input_error(
            "option_invalid", option="--candidate", reason=f"no format `{name}`", hint=f"one of {', '.join(OPERANDS)}"
        )
    return BY_NAME[name].name


Product = Callable[[str, Tensor], Tensor]


def exact_logits(model: Model, product: Product, ids: Tensor) -> Tensor:
    """Logits `[seq, vocabulary]` float64 of ids `[1, seq]`: the head multiplied in float64, every other matrix by `product`."""
    head = model.tensors[model.head].double()

    def linear(name: str, x: Tensor) -> Tensor:
        return x.double() @ head.mT if name == model.head else product(name, x)

    with torch.no_grad():
        return forward(model, linear, ids, torch.float32).reshape(-1, head.shape[0])


def perturbed(
    plan: Plan,
    seed: int,
    inside: frozenset[str] | None = None,
    stored: bool = True,
    chosen: Mapping[str, Tensor] | None = None,
) -> Product:
    """The format's products in float32 arithmetic, those of `inside` (None: all) off by their whole tolerance.

    `stored` False multiplies with the model's own float32 weights: then nothing but the tolerance is off. Signs are `chosen`, of
    the result's shape, where a product is named there, else random.
    """
    kernel, tensors = plan.basis.kernel, plan.basis.model.tensors
    g = torch.Generator().manual_seed(seed)
    kept: dict[str, tuple[Tensor, Tensor]] = {}

    def product(name: str, x: Tensor) -> Tensor:
        if name not in kept:
            weight = tensors[name]
            kept[name] = (kernel.weights(weight) if stored else weight), weight_size(kernel, weight).float()
        weight, size = kept[name]
        operand = kernel.inputs(x.reshape(-1, x.shape[-1]).float()).reshape(x.shape) if stored else x
        y = operand @ weight.mT
        if inside is not None and name not in inside:
            return y
        tolerance = plan.tolerances[name].value
        assert tolerance is not None
        signs = (torch.randint(0, 2, y.shape, generator=g) * 2 - 1).to(y)
        if chosen is not None and name in chosen:
            signs = chosen[name].reshape(y.shape).to(y)
        return y + float(tolerance) * signs * (operand.abs() @ size.mT)

    return product


def shipped(basis: Basis) -> Product:
    """What the format's own kernel multiplies."""
    return lambda name, x: multiply(basis.kernel, x, basis.packed[name])


def rest(plan: Plan, base: Basis, requests: Sequence[Request], seed: int = 0) -> Rest:
    """Measure on the requests, against the reference's own kernels."""
    reference = base.model
    assert isinstance(reference, Model)  # the chain opens no other
    plain, actual = shipped(base), shipped(plan.basis)
    below = [name for name in reference.matrices if name != reference.head]
    every = perturbed(plan, seed)
    single = {name: perturbed(plan, seed + 1 + i, frozenset({name}), stored=False) for i, name in enumerate(below)}
    last = _Last(plan, below[-1], seed, plain) if below else None
    all_rows: list[Tensor] = []
    real_rows: list[Tensor] = []
    by_layer: dict[str, list[Tensor]] = {name: [] for name in below}
    places: list[tuple[str, int]] = []
    for request in requests:
        ids = torch.tensor([request.token_ids])
        zero = exact_logits(reference, plain, ids)
        whole = _span(zero, exact_logits(reference, every, ids))
        real_rows.append(_span(zero, exact_logits(reference, actual, ids)))
        for name in below:
            moved = exact_logits(reference, single[name], ids)
            by_layer[name].append(_span(zero, moved))
            if last is not None and name == last.name:
                alone, joint = last.probe(reference, ids, zero, moved)
                by_layer[name][-1] = torch.maximum(by_layer[name][-1], alone)
                whole = torch.maximum(whole, joint)
        all_rows.append(whole)
        places += [(request.request_id, i) for i in range(len(request.token_ids))]
    rows = torch.cat(all_rows)
    layers = tuple(_layer(name, plan, torch.cat(found), places) for name, found in by_layer.items())
    return Rest(
        float(rows.max()), float(rows.median()), float(torch.cat(real_rows).max()), int(rows.isinf().sum()), len(requests), len(rows), layers,
        places[int(rows.argmax())], None if last is None else last.found(),
    )  # fmt: skip


class _Last:
    """The last product before the head under the signs of the dual norm, alone and beside random errors of all others."""

    def __init__(self, plan: Plan, name: str, seed: int, plain: Product) -> None:
        tolerance = plan.tolerances[name].value
        assert tolerance is not None
        self.name, self.plain, self.tolerance = name, plain, float(tolerance)
        self.size = weight_size(plan.basis.kernel, plan.basis.model.tensors[name])
        self.signs: dict[str, Tensor] = {}
        self.alone = perturbed(plan, seed, frozenset({name}), stored=False, chosen=self.signs)
        self.joint = perturbed(plan, seed, chosen=self.signs)
        self.random = self.largest = 0.0
        self.reached: list[Tensor] = []

    def probe(self, reference: Model, ids: Tensor, zero: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
        """Spans of the rows, alone and together, for the pairs that random signs (`moved`) took furthest apart."""
        worst = extremal.worst(reference, self.plain, ids, self.name, moved - zero)
        self.signs[self.name] = worst.signs
        after = exact_logits(reference, self.alone, ids)
        alone = _span(zero, after)
        self.random = max(self.random, float(_span(zero, moved).max()))
        self.largest = max(self.largest, float(alone.max()))
        share = worst.apart(zero, after) / worst.norm(self.tolerance, self.size)
        self.reached.append(share[torch.isfinite(share)])
        return alone, _span(zero, exact_logits(reference, self.joint, ids))

    def found(self) -> Extremal:
        """Over all requests."""
        shares = torch.cat(self.reached)
        least, most = (float(shares.min()), float(shares.max())) if len(shares) else (0.0, 0.0)
        return Extremal(self.name.removesuffix(".weight"), self.random, self.largest, least, most)


def _span(a: Tensor, b: Tensor) -> Tensor:
    """Logit span of each row, infinite where a logit is not finite."""
    d = b - a
    return (d.amax(-1) - d.amin(-1)).nan_to_num(math.inf, math.inf, math.inf)


def _layer(name: str, plan: Plan, rows: Tensor, places: Sequence[tuple[str, int]]) -> Layer:
    tolerance = plan.tolerances[name].value
    assert tolerance is not None
    request, position = places[int(rows.argmax())]
    return Layer(name.removesuffix(".weight"), tolerance, float(rows.max()), float(rows.median()), request, position)


def exceeding(requests: int) -> Fraction:
    """Share of requests that exceeds the largest of so many, at most, with confidence 95 %: `1 - 0.05^(1/n)`, rounded up.

    For requests drawn alike and independently (Wilks 1941). Their rows exceed it in no larger a share.
    """
    return min(Fraction(1), Fraction(math.ceil((1 - (1 - CONFIDENCE) ** (1 / requests)) * 10**6) + 1, 10**6))


def total(plan: Plan, reference: Basis, measured: Rest) -> tuple[Fraction | None, dict[str, Any]]:
    """Logit span of the whole model: twice the drift of both heads, plus what was measured below; and its parts.

    None where a row was not finite. Raises InputError: `head_unbounded`.
    """
    candidate, other = attested(plan.basis, plan.declared), attested(reference, _FLOAT32)
    head = 2 * (candidate.value + other.value)
    below = None if math.isinf(measured.largest) else Fraction(measured.largest) * (1 + Fraction(1, 2**30))
    lines = [*(f"candidate: {line}" for line in candidate.lines), *(f"reference: {line}" for line in other.lines)]
    return None if below is None else head + below, {"head": head, "rest": below, "lines": lines}
