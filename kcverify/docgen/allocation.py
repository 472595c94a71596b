"""Schema of the answers of `allocate`, `map` and `conformance chain`."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

ANSWERS = {
    "allocation": "kcverify allocate --format json",
    "drift_map": "kcverify map --format json",
    "kernel_chain": "kcverify conformance chain --format json",
}
"""Definition of each answer -> the command that prints it."""

_TEXT: Schema = {"type": "string"}
_MAYBE: Schema = {"type": ["string", "null"]}
_NUMBER: Schema = {"type": "number"}
_MAYBE_NUMBER: Schema = {"type": ["number", "null"]}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_FLAG: Schema = {"type": "boolean"}
_READING: Schema = {"anyOf": [_MAYBE_NUMBER, {"enum": ["inf", "-inf", "nan"]}]}
_CODE: Schema = {"enum": [0, 1, 2, 3, 4]}
_VERDICT: Schema = {"enum": ["pass", "fail", "inconclusive"]}
_COUNTS: Schema = {"type": "object", "additionalProperties": _COUNT, "description": "number of modules by format"}
_EVIDENCE: Schema = {"enum": ["proved", "attested", "measured"]}


def _object(required: Schema, **optional: Schema) -> Schema:
    return {"type": "object", "required": list(required), "properties": {**required, **optional}}


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def _maybe(item: Schema) -> Schema:
    return {"anyOf": [item, {"type": "null"}]}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _head(**more: Schema) -> Schema:
    return _object({"kcverify": _TEXT, "exit_code": _CODE, **more})


def definitions() -> dict[str, Schema]:
    """The definitions of `ANSWERS` and what they are made of."""
    return {**_allocation(), **_map(), **_chain()}


def _allocation() -> dict[str, Schema]:
    clause = {"name": _TEXT, "slice": _MAYBE, "text": _TEXT, "verdict": _VERDICT, "reason": _TEXT, "observed": _READING}
    measured = {
        "name": _TEXT, "cost": _NUMBER, "figures": _list(_READING), "shares": _list(_READING), "rows": _COUNT, "invalid": _COUNT,
        "verdict": _VERDICT, "within": _FLAG, "formats": _COUNTS, "clauses": _list(_object(clause)),
    }  # fmt: skip
    gain = {
        "best_uniform": _MAYBE, "saving": _MAYBE_NUMBER, "tie": _FLAG, "equal_cost": _maybe(_ref("measured_assignment")),
        "equal_cost_shares": _maybe(_object({"allocated": _READING, "uniform": _READING})), "sentence": _TEXT,
    }  # fmt: skip
    unit = {"name": _TEXT, "kind": _TEXT, "matrices": _COUNT, "format": _MAYBE}
    one = _object({"format": _TEXT, "cost": _NUMBER, "figures": _list(_READING)})
    attempt = {"scale": _NUMBER, "cost": _NUMBER, "formats": _COUNTS, "predicted": _READING, "calibration": _READING}
    point = {
        "kind": _TEXT,
        "name": _TEXT,
        "cost": _NUMBER,
        "figures": _list(_READING),
        "share": _READING,
        "formats": _COUNTS,
        "efficient": _FLAG,
    }
    return {
        "measured_assignment": _object(measured),
        "allocation": _head(
            verdict=_VERDICT, contract=_object({"name": _TEXT, "version": _TEXT, "digest": _TEXT}), model=_TEXT, reference=_TEXT,
            level=_TEXT, temperature=_NUMBER, cost=_object({"name": _TEXT, "unit": _TEXT, "about": _TEXT, "repeatable": _FLAG}),
            data=_object({"source": _TEXT, "window": _COUNT, "calibration": _COUNT, "held_out": _COUNT}),
            budgets=_list(_object({"clause": _TEXT, "text": _TEXT, "figure": _TEXT, "limit": _NUMBER, "unit": _TEXT, "adds": _TEXT})),
            binding=_MAYBE, units=_list(_object({**unit, "sensitivity": _list(one)})),
            attempts=_list(_object({**attempt, "held_out": _maybe(_ref("measured_assignment")), "said": _TEXT})), stopped=_TEXT,
            uniforms=_list(_ref("measured_assignment")), chosen=_maybe(_ref("measured_assignment")), gain=_object(gain),
            pareto=_list(_object(point)), notes=_list(_TEXT),
        ),
    }  # fmt: skip


def _map() -> dict[str, Schema]:
    kernel = {
        "kernel": _TEXT,
        "mean": _READING,
        "largest": _READING,
        "invalid": _COUNT,
        "lower": _MAYBE_NUMBER,
        "upper": _MAYBE_NUMBER,
    }
    cell = {
        "name": _TEXT,
        "rows": {"type": ["integer", "null"]},
        "means": {"type": "object", "additionalProperties": _READING},
    }
    question = {
        "slice": _TEXT, "kernel": _TEXT, "ratio": _READING, "lower": _MAYBE_NUMBER, "upper": _MAYBE_NUMBER, "requests_inside": _COUNT,
        "requests_outside": _COUNT, "answer": {"enum": ["yes", "no", "cannot tell"]}, "reason": _TEXT,
    }  # fmt: skip
    return {
        "drift_map": _head(
            contract=_maybe(_object({"name": _TEXT, "version": _TEXT})), model=_TEXT, reference=_TEXT, metric=_TEXT, unit=_TEXT,
            temperature=_NUMBER, data=_object({"source": _TEXT, "window": _COUNT, "requests": _COUNT, "rows": _COUNT}),
            kernels=_list(_object(kernel)),
            cuts=_list(_object({"name": _TEXT, "title": _TEXT, "cells": _list(_object(cell)), "empty": _TEXT})),
            concentration=_list(_object(question)),
            interval=_object({"method": _TEXT, "level": _NUMBER, "factor": _NUMBER, "questions": _COUNT, "family": _TEXT}), notes=_list(_TEXT),
        ),
    }  # fmt: skip


def _chain() -> dict[str, Schema]:
    step = {
        "quantity": _TEXT, "relation": {"enum": ["<=", ">="]}, "value": _MAYBE_NUMBER, "unit": _TEXT, "evidence": _EVIDENCE, "by": _TEXT,
        "detail": _TEXT, "exception": _TEXT, "without_exception": _MAYBE_NUMBER, "carried": _EVIDENCE,
    }  # fmt: skip
    asked = {
        "name": _TEXT, "text": _TEXT, "guarantee": _FLAG, "follows": _FLAG, "bound": _MAYBE_NUMBER, "limit": _MAYBE_NUMBER,
        "exception": _MAYBE, "without_exception": _MAYBE_NUMBER, "reason": _TEXT,
    }  # fmt: skip
    place = {"request": _TEXT, "position": _COUNT}
    layer = {
        "layer": _TEXT,
        "tolerance": _NUMBER,
        "largest": _READING,
        "median": _READING,
        "per_unit": _READING,
        **place,
    }
    moved = {
        "layers": _list(_object(layer)),
        "largest": _READING,
        "median": _READING,
        "shipped_kernels": _READING,
        "invalid": _COUNT,
        **place,
    }
    return {
        "kernel_chain": _head(
            kernel_contract=_object({"name": _TEXT, "version": _TEXT, "file": _TEXT, "declared": _TEXT}),
            contract=_object({"name": _TEXT, "version": _TEXT}), kernel=_maybe(_object({"name": _TEXT, "verdict": _TEXT})),
            model=_TEXT, candidate=_TEXT, evidence=_EVIDENCE,
            data=_object({"source": _TEXT, "window": _COUNT, "requests": _COUNT, "rows": _COUNT}), steps=_list(_object(step)),
            asked=_list(_object(asked)), transfer=_object(moved), derivation=_list(_TEXT), notes=_list(_TEXT),
        ),
    }  # fmt: skip
