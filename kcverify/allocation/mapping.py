"""`map`: where drift is, by kernel, slice, position, confidence of the reference and layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kcverify import __version__
from kcverify.allocation.concentration import METHOD, Floats, Sums, ask, mean_interval
from kcverify.allocation.sensitivity import remembered
from kcverify.diagnostics import input_error
from kcverify.elaborate.contract import Contract
from kcverify.measure.data import Request, load_data
from kcverify.measure.figures import FIGURES, Figure
from kcverify.measure.kernels import BY_NAME
from kcverify.measure.layers import LEVELS, chosen, swapped, units_of
from kcverify.measure.run import Rows, default_batch, pair_rows
from kcverify.measure.session import masks
from kcverify.measure.sides import KernelSide, Models, model_named, open_side
from kcverify.resources import data_path
from kcverify.runtime.report import number
from kcverify.runtime.rows import RowPlan, row_statistics

DEFAULT_KERNELS = ("bfloat16", "int8_bf16", "w8a8", "fp8", "int4_bf16")
LEVEL = 0.95
"""Confidence of all answers about slices together."""

STRATA = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99)
"""Lower ends of the strata of the reference's largest probability."""


@dataclass
class MapOptions:
    """What is mapped and on what; `rows` is the largest number of rows for the layers, 0 leaves them out."""

    model: str = "demo"
    reference: str = "float32"
    kernels: tuple[str, ...] = DEFAULT_KERNELS
    metric: str = "tv"
    data: str | None = None
    window: int = 64
    limit: int = 256
    rows: int = 512
    factor: Fraction = Fraction(5, 4)
    seed: int = 0
    temperature: Fraction | None = None
    device: str = "cpu"
    gguf: Path | None = None


@dataclass(frozen=True)
class Place:
    """What every row is, the same for all kernels: request, position, largest probability of the reference, slices.

    A slice that the data does not decide is None.
    """

    requests: Tensor
    positions: Tensor
    confidence: Tensor
    slices: Mapping[str, Tensor | None]


def check_options(options: MapOptions) -> Figure:
    """The figure that is mapped. Raises InputError: `option_invalid`."""
    for option, value, least in (
        ("--window", options.window, 1),
        ("--limit", options.limit, 1),
        ("--rows", options.rows, 0),
    ):
        if value < least:
            raise input_error(
                "option_invalid", option=option, reason=f"{value} is below {least}", hint=f"give {least} or more"
            )
    named = {f.name: f for f in FIGURES}
    for option, word, known in (
        *model_named(options.model), ("--metric", options.metric, tuple(named)),
        *(("--kernel", k, tuple(BY_NAME)) for k in options.kernels), ("--reference", options.reference, tuple(BY_NAME)),
    ):  # fmt: skip
        if word not in known:
            raise input_error("option_invalid", option=option, reason=f"no `{word}`", hint=f"one of {', '.join(known)}")
    if options.factor <= 0:
        raise input_error(
            "option_invalid", option="--factor", reason=f"{options.factor} is not above 0", hint="--factor 1.25"
        )
    names = [BY_NAME[k].name for k in options.kernels]
    if len(set(names)) < len(names):
        raise input_error(
            "option_invalid", option="--kernel", reason="each format is named once", hint="--kernel int8 --kernel fp8"
        )
    if not -(2**63) <= options.seed < 2**63 or options.seed < 0:
        raise input_error(
            "option_invalid", option="--seed", reason=f"{options.seed} is not in [0, 2^63)", hint="--seed 0"
        )
    return named[options.metric]


def heat_of(contract: Contract | None, asked: Fraction | None) -> float:
    """The temperature of the run: the one asked for, else 1, or the lowest one that the contract assumes where 1 is not."""
    assumed = None if contract is None else contract.assumptions.temperature
    low, high = (None, None) if assumed is None else (assumed.low, assumed.high)
    found = asked if asked is not None else Fraction(1)
    outside = (low is not None and found < low) or (high is not None and found > high)
    if outside and asked is None and low:
        return float(low)
    if outside or found <= 0:
        raise input_error(
            "option_invalid",
            option="--temperature",
            reason=f"{float(found):g} is not what the contract assumes",
            hint="leave it out",
        )
    return float(found)


def drift_map(contract: Contract | None, options: MapOptions) -> dict[str, Any]:
    """The answer of `kcverify map` as JSON data. Raises InputError for options, sides and data that are not usable."""
    figure = check_options(options)
    temperature = heat_of(contract, options.temperature)
    models: Models = {}

    def side(form: str) -> KernelSide:
        found = open_side(f"{options.model}:{form}", device=options.device, gguf=options.gguf, models=models)
        assert isinstance(found, KernelSide)
        return found

    reference = side(options.reference)
    text = options.data or str(data_path("heldout.txt"))
    requests = load_data(
        text, window=options.window, tokenizer=reference.tokenizer, vocabulary=reference.vocabulary, limit=options.limit
    )
    reference = remembered(reference)
    kernels = [BY_NAME[k].name for k in options.kernels]
    place: Place | None = None
    values: dict[str, Tensor] = {}
    invalid: dict[str, int] = {}
    layers: dict[str, dict[str, dict[str, float]]] = {}
    for kernel in kernels:
        candidate = side(kernel)
        values[kernel], invalid[kernel], place = _rows(
            reference, candidate, requests, contract, figure, temperature, place
        )
        if options.rows:
            layers[kernel] = _layers(reference, candidate, chosen(requests, options.rows), figure, temperature)
    assert place is not None
    assert reference.basis is not None
    found = _answer(contract, options, figure, temperature, requests, place, values, invalid, layers)
    return {**found, "notes": [*reference.basis.model.notes, *found["notes"]]}


def _values(reference: Tensor, candidate: Tensor, figure: Figure, temperature: float) -> tuple[Tensor, int]:
    """The figure of each row, float64 `[N]`, and the rows without a value: 1 for a total variation, infinite for others."""
    plan = RowPlan(frozenset({figure.statistic}))
    found = row_statistics(reference, candidate, plan, temperature=temperature)
    worst = 1.0 if figure.name == "tv" else math.inf
    return found.values[figure.statistic].nan_to_num(worst, worst).cpu(), int(found.invalid.sum())


def _rows(
    reference: KernelSide, candidate: KernelSide, requests: Sequence[Request], contract: Contract | None, figure: Figure,
    temperature: float, known: Place | None,
) -> tuple[Tensor, int, Place]:  # fmt: skip
    """Values of all rows, the number without one, and what the rows are (found once)."""
    values: list[Tensor] = []
    index: list[Tensor] = []
    positions: list[Tensor] = []
    confidence: list[Tensor] = []
    names = [s.name for s in contract.slices] if contract is not None else []
    inside: dict[str, list[Tensor | None]] = {name: [] for name in names}
    invalid = done = 0
    for rows in pair_rows(reference, candidate, requests, batch=default_batch(requests, reference.vocabulary)):
        found, bad = _values(rows.reference, rows.candidate, figure, temperature)
        values.append(found)
        invalid += bad
        if known is None:
            index.append(rows.request_index + done)
            positions.append(rows.positions)
            confidence.append(_confidence(rows, temperature))
            decided = masks(contract, rows) if contract is not None else {}
            for name in names:
                inside[name].append(decided.get(name))
        done += len(rows.requests)
    if known is not None:
        return torch.cat(values), invalid, known
    slices: dict[str, Tensor | None] = {}
    for name, parts in inside.items():
        kept = [part for part in parts if part is not None]
        slices[name] = torch.cat(kept) if len(kept) == len(parts) and parts else None
    return torch.cat(values), invalid, Place(torch.cat(index), torch.cat(positions), torch.cat(confidence), slices)


def _confidence(rows: Rows, temperature: float) -> Tensor:
    return (rows.reference.double() / temperature).softmax(-1).amax(-1).cpu()


def _layers(
    reference: KernelSide, candidate: KernelSide, requests: Sequence[Request], figure: Figure, temperature: float
) -> dict[str, dict[str, float]]:
    """Mean of the figure with one unit swapped at a time, by level and unit."""
    base, other = reference.basis, candidate.basis
    assert base is not None
    assert other is not None
    out: dict[str, dict[str, float]] = {}
    for level in LEVELS[:2]:
        out[level.name] = {}
        for unit in units_of(level, base.model):
            parts = [
                _values(rows.reference, rows.candidate, figure, temperature)[0]
                for rows in pair_rows(
                    reference,
                    swapped(reference, base, other, unit),
                    requests,
                    batch=default_batch(requests, reference.vocabulary),
                )
            ]
            out[level.name][unit.name] = float(torch.cat(parts).mean())
    return out


Cells = list[tuple[str, Tensor]]


def _position_cells(place: Place) -> Cells:
    cells, low = [], 0
    last = int(place.positions.max()) if len(place.positions) else -1
    while low <= last:
        high = max(2 * low, low + 1)
        name = f"position {low}" if high == low + 1 else f"positions {low} to {min(high - 1, last)}"
        cells.append((name, (place.positions >= low) & (place.positions < high)))
        low = high
    return cells


def _strata(place: Place) -> Cells:
    cells = []
    for low, high in zip(STRATA, (*STRATA[1:], math.inf), strict=True):
        name = f"largest probability below {high:g}" if not low else f"{low:g} to {min(high, 1.0):g}"
        cells.append((name, (place.confidence >= low) & (place.confidence < high)))
    return cells


def _slice_cells(place: Place) -> Cells:
    return [
        (name, mask if mask is not None else torch.zeros_like(place.positions, dtype=torch.bool))
        for name, mask in place.slices.items()
    ]


def _cut(name: str, title: str, cells: Cells, values: Mapping[str, Tensor], empty: str = "") -> dict[str, Any]:
    def mean(value: Tensor, mask: Tensor) -> Any:
        return number(float(value[mask].mean())) if bool(mask.any()) else None

    rows = [
        {"name": cell, "rows": int(mask.sum()), "means": {k: mean(v, mask) for k, v in values.items()}}
        for cell, mask in cells
    ]
    return {"name": name, "title": title, "cells": rows, "empty": empty}


def _layer_cut(level: str, title: str, layers: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, Any]:
    first = next(iter(layers.values()))[level]
    cells = [
        {"name": unit, "rows": None, "means": {k: number(found[level][unit]) for k, found in layers.items()}}
        for unit in first
    ]
    return {"name": f"layer_{level}", "title": title, "cells": cells, "empty": ""}


def _by_request(values: Tensor, place: Place, mask: Tensor, count: int) -> tuple[Floats, Floats]:
    """Sum of the values and number of rows of each request, within the mask."""
    total = torch.zeros(count, dtype=torch.float64).index_add(0, place.requests[mask], values[mask])
    rows = torch.bincount(place.requests[mask], minlength=count).double()
    return np.asarray(total.numpy(), dtype=np.float64), np.asarray(rows.numpy(), dtype=np.float64)


def _answer(
    contract: Contract | None, options: MapOptions, figure: Figure, temperature: float, requests: Sequence[Request], place: Place,
    values: Mapping[str, Tensor], invalid: Mapping[str, int], layers: Mapping[str, Mapping[str, Mapping[str, float]]],
) -> dict[str, Any]:  # fmt: skip
    undecided = [name for name, mask in place.slices.items() if mask is None]
    cuts = [
        _cut("slice", "by slice", _slice_cells(place), values, "no slice is named: give a contract with slices"),
        _cut("position", "by position", _position_cells(place), values),
        _cut("confidence", "by the reference's largest probability", _strata(place), values),
    ]
    if layers:
        cuts += [
            _layer_cut("kind", "by kind of layer, one swapped at a time", layers),
            _layer_cut("block", "by layer, one swapped at a time", layers),
        ]
    questions = max(len(values) * len(place.slices), 1)
    asked = [
        q
        for k, v in values.items()
        for q in _questions(k, v, options, place, len(requests), 1 - (1 - LEVEL) / questions)
    ]
    notes = [f"slice {name}: the data does not have the fields that it is chosen by" for name in undecided]
    notes += [
        f"slice {name} is empty in this data"
        for name, mask in place.slices.items()
        if mask is not None and not bool(mask.any())
    ]
    notes += [_invalid_note(k, n, figure) for k, n in invalid.items() if n]
    return {
        "kcverify": __version__, "exit_code": 0,
        "contract": None if contract is None else {"name": contract.name, "version": contract.version},
        "model": options.model, "reference": options.reference, "metric": figure.name, "unit": figure.unit, "temperature": temperature,
        "data": {
            "source": options.data or "the shipped text", "window": options.window, "requests": len(requests), "rows": len(place.positions),
        },
        "kernels": [_kernel(k, v, invalid[k], options, place, len(requests)) for k, v in values.items()],
        "cuts": cuts, "concentration": asked,
        "interval": {
            "method": METHOD, "level": 100 * LEVEL, "factor": float(options.factor), "questions": len(asked),
            "family": f"{100 * LEVEL:g} % for all {len(asked)} answers together",
        },
        "notes": notes,
    }  # fmt: skip


def _invalid_note(kernel: str, count: int, figure: Figure) -> str:
    counted = "1, the largest value there is" if figure.name == "tv" else "infinite"
    return f"{kernel}: {count} rows have no value (NaN, +inf, or a side without any token); they count as {counted}"


def _kernel(kernel: str, values: Tensor, invalid: int, options: MapOptions, place: Place, count: int) -> dict[str, Any]:
    everything = torch.ones_like(values, dtype=torch.bool)
    ends = mean_interval(*_by_request(values, place, everything, count), LEVEL, options.seed)
    return {
        "kernel": kernel, "mean": number(float(values.mean())), "largest": number(float(values.max())), "invalid": invalid,
        "lower": None if ends is None else ends[0], "upper": None if ends is None else ends[1],
    }  # fmt: skip


def _questions(
    kernel: str, values: Tensor, options: MapOptions, place: Place, count: int, level: float
) -> list[dict[str, Any]]:
    out = []
    for name, mask in place.slices.items():
        inside = mask if mask is not None else torch.zeros_like(place.positions, dtype=torch.bool)
        sums = Sums(*_by_request(values, place, inside, count), *_by_request(values, place, ~inside, count))
        found = ask(sums, float(options.factor), level, options.seed)
        reason = "the data does not have the fields that it is chosen by" if mask is None else found.reason
        ratio = None if found.ratio is None else number(found.ratio)
        out.append(
            {
                "slice": name, "kernel": kernel, "ratio": None if mask is None else ratio, "lower": found.lower, "upper": found.upper,
                "requests_inside": found.requests_inside, "requests_outside": found.requests_outside, "answer": found.answer, "reason": reason,
            }
        )  # fmt: skip
    return out
