"""Attributes a pair's drift to modules: swaps one at a time from the reference's kernel to the candidate's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kcverify.diagnostics import InputError, input_error
from kcverify.measure.data import Request
from kcverify.measure.model import Swappable
from kcverify.measure.options import MeasureOptions
from kcverify.measure.run import Rows, default_batch, pair_rows
from kcverify.measure.sides import Basis, FileSide, KernelSide, Side, model_logits
from kcverify.runtime.report import number
from kcverify.runtime.rows import RowPlan, row_statistics

DEFAULT_ROWS = 1024
_KL = "kl_reference_candidate"
_PLAN = RowPlan(frozenset({_KL}))


@dataclass(frozen=True)
class Unit:
    """Matrices that are swapped together."""

    name: str
    kind: str
    matrices: tuple[str, ...]


@dataclass(frozen=True)
class Level:
    """One way to cut a model into units: every matrix that it multiplies with is in exactly one of them."""

    name: str
    title: str
    unit_of: Callable[[Swappable, str], str]


_KINDS = (("attention", ("attn", "attention")), ("MLP", ("mlp", "ffn", "feed_forward")))
"""Kinds of a matrix, and what its name then holds."""


def kind_of(model: Swappable, matrix: str) -> str:
    """`attention`, `MLP` or `head`, by the matrix's name; `other` where it tells none."""
    if matrix == model.head:
        return "head"
    return next((kind for kind, words in _KINDS if any(word in matrix.lower() for word in words)), "other")


def _block_of(model: Swappable, matrix: str) -> str:
    """The name up to its first number; without one, that of the module around the layer."""
    if matrix == model.head:
        return "head"
    parts = matrix.removesuffix(".weight").split(".")
    end = next((i + 1 for i, part in enumerate(parts) if part.isdecimal()), max(1, len(parts) - 1))
    return ".".join(parts[:end])


def _matrix_of(model: Swappable, matrix: str) -> str:
    return f"head ({matrix})" if matrix == model.head else matrix.removesuffix(".weight")


LEVELS: tuple[Level, ...] = (
    Level("kind", "by kind", kind_of),
    Level("block", "by block", _block_of),
    Level("matrix", "by matrix", _matrix_of),
)


def units_of(level: Level, model: Swappable) -> list[Unit]:
    """The units of a level, in the order in which the model uses them; `kind` is `block` for mixed ones."""
    groups: dict[str, list[str]] = {}
    for matrix in model.matrices:
        groups.setdefault(level.unit_of(model, matrix), []).append(matrix)
    out = []
    for name, members in groups.items():
        kinds = {kind_of(model, matrix) for matrix in members}
        out.append(Unit(name, kinds.pop() if len(kinds) == 1 else "block", tuple(members)))
    return out


@dataclass(frozen=True)
class _Batch:
    """What one batch gave: sum and maximum of KL of the whole, then of every unit; kept only when all units have seen it."""

    rows: int
    requests: int
    equal: int
    sums: tuple[float, ...]
    largest: tuple[float, ...]


def _batch(rows: Rows, values: Sequence[Tensor]) -> _Batch:
    """`values`: float64 `[N]` of the whole and of every unit; a row without a value counts as infinite."""
    finite = [v.nan_to_num(math.inf, math.inf) for v in values]
    equal = int((rows.reference == rows.candidate).all(-1).sum())
    sums, largest = tuple(float(v.sum()) for v in finite), tuple(float(v.max()) for v in finite)
    return _Batch(len(rows.request_ids), len(rows.requests), equal, sums, largest)


@dataclass(frozen=True)
class _Figure:
    """KL of the whole or of one unit over all kept batches; NaN without any."""

    mean: float
    largest: float


def _figures(batches: Sequence[_Batch], count: int) -> list[_Figure]:
    rows = sum(batch.rows for batch in batches)
    if not rows:
        return [_Figure(math.nan, math.nan)] * count
    return [
        _Figure(math.fsum(b.sums[i] for b in batches) / rows, max(b.largest[i] for b in batches)) for i in range(count)
    ]


def require_models(reference: Side, candidate: Side) -> tuple[Basis, Basis]:
    """What both sides multiply with. Raises InputError (`option_invalid`) unless both are one model under two formats."""
    found = []
    for side in (reference, candidate):
        if not isinstance(side, KernelSide) or side.basis is None:
            what = "a file of logits" if isinstance(side, FileSide) else "a function"
            raise _refused(f"{side.name} is {what}: it has no modules to swap")
        found.append(side.basis)
    if reference.fingerprint.get("weights") != candidate.fingerprint.get("weights"):
        raise _refused(f"{reference.name} and {candidate.name} are different models: no module of one fits the other")
    return found[0], found[1]


def check_by_layer(reference: Side, candidate: Side, options: MeasureOptions) -> None:
    """Raise InputError (`option_invalid`) where `--by-layer` or `--rows` asks for what cannot be done."""
    if options.rows is not None and not options.by_layer:
        raise input_error("option_invalid", option="--rows", reason="nothing reads it", hint="add `--by-layer`")
    if options.rows is not None and options.rows < 1:
        raise input_error("option_invalid", option="--rows", reason=f"{options.rows} is not a positive number of rows")
    if options.by_layer:
        require_models(reference, candidate)


def _refused(reason: str) -> InputError:
    hint = "use two formats of one model, as in demo:float32 and demo:int8, or module:function:float32 and module:function:int8 for a torch module"
    return input_error("option_invalid", option="--by-layer", reason=reason, hint=hint)


def chosen(requests: Sequence[Request], rows: int) -> list[Request]:
    """The first requests that have at most `rows` rows together, one at least."""
    out: list[Request] = []
    left = rows
    for request in requests:
        if out and len(request.token_ids) > left:
            break
        out.append(request)
        left -= len(request.token_ids)
    return out


def by_layer(
    reference: Side, candidate: Side, requests: Sequence[Request], temperature: float, options: MeasureOptions
) -> dict[str, Any]:
    """KL of the reference and itself with one unit's products done by the candidate's kernel, for every unit.

    Nats at `temperature`, mean over rows. Norms, attention scores and the embedding are the same on both sides, so all
    units swapped at once are the candidate. Ctrl-C keeps the batches that all units have seen, with `complete` False.
    Raises InputError as `require_models` and `pair_rows`.
    """
    bases = require_models(reference, candidate)
    assert isinstance(reference, KernelSide)
    model = bases[0].model
    units = [(level.name, unit) for level in LEVELS for unit in units_of(level, model)]
    picked = chosen(requests, options.rows or DEFAULT_ROWS)
    batches: list[_Batch] = []
    done, complete = 0, bool(picked)
    size = options.batch or default_batch(picked, reference.vocabulary)
    try:
        for rows in pair_rows(reference, candidate, picked, batch=size):
            ids = torch.tensor([request.token_ids for request in rows.requests])
            values = [_kl(rows.reference, rows.candidate, temperature)]
            for index, logits in enumerate(_swapped(reference, bases, units, ids)):
                values.append(_kl(rows.reference, logits, temperature))
                if options.progress is not None:
                    options.progress(done * len(units) + (index + 1) * len(ids), len(picked) * len(units))
            batches.append(_batch(rows, values))
            done += len(ids)
    except KeyboardInterrupt:
        complete = False
    whole, *found = _figures(batches, 1 + len(units))
    seen = sum(batch.rows for batch in batches)
    return {
        "complete": complete,
        "requests": sum(batch.requests for batch in batches),
        "rows": seen,
        "temperature": temperature,
        "bit_exact": 0 < seen == sum(batch.equal for batch in batches),
        "whole": {"kl_mean": number(whole.mean), "kl_max": number(whole.largest)},
        "levels": [_level(level, units, found, whole) for level in LEVELS],
    }


def mixed(name: str, reference: KernelSide, basis_of: Callable[[str], Basis]) -> KernelSide:
    """The reference's model with each matrix multiplied by the kernel of `basis_of(matrix)`: a side without one format."""
    if reference.basis is None:
        raise _refused(f"{reference.name} shows no weights: it has no modules to swap")
    logits = model_logits(name, reference.basis.model, reference.device, basis_of)
    return replace(reference, name=name, fingerprint={**reference.fingerprint, "side": name}, logits=logits, basis=None)


def swapped(reference: KernelSide, base: Basis, candidate: Basis, unit: Unit) -> KernelSide:
    """The reference with the candidate's kernel in one unit."""
    inside = frozenset(unit.matrices)
    return mixed(reference.name, reference, lambda name: candidate if name in inside else base)


def _swapped(
    reference: KernelSide, bases: tuple[Basis, Basis], units: Sequence[tuple[str, Unit]], ids: Tensor
) -> Iterator[Tensor]:
    """Logits `[rows, vocabulary]` of the reference with the candidate's kernel in one unit, for each unit."""
    for _, unit in units:
        logits = swapped(reference, *bases, unit).logits(ids)
        yield logits.reshape(-1, logits.shape[-1])


def _kl(reference: Tensor, candidate: Tensor, temperature: float) -> Tensor:
    return row_statistics(reference, candidate, _PLAN, temperature=temperature).values[_KL].cpu()


def _level(
    level: Level, units: Sequence[tuple[str, Unit]], figures: Sequence[_Figure], whole: _Figure
) -> dict[str, Any]:
    """The units of one level, the largest share first, and what their single swaps add up to."""
    mine = [(unit, one) for (name, unit), one in zip(units, figures, strict=True) if name == level.name]
    mine.sort(key=lambda pair: 0.0 if math.isnan(pair[1].mean) else -pair[1].mean)
    added = math.fsum(one.mean for _, one in mine)
    return {
        "name": level.name,
        "title": level.title,
        "additivity": _ratio(added, whole.mean),
        "units": [
            {
                "name": unit.name, "kind": unit.kind, "matrices": len(unit.matrices), "kl_mean": number(one.mean),
                "kl_max": number(one.largest), "share": _ratio(one.mean, whole.mean),
            }
            for unit, one in mine
        ],
    }  # fmt: skip


def _ratio(part: float, whole: float) -> float | None:
    """Part over whole, None where the whole is zero or either is not finite."""
    return part / whole if 0 < whole < math.inf and math.isfinite(part) else None
