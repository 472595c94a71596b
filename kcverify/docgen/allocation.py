"""Schema of the answers of `allocate`, `map` and `conformance chain`."""

from __future__ import annotations

from kcverify.docgen.words import COUNT, FLAG, MAYBE, MAYBE_NUMBER, NUMBER, TEXT, Schema, listing, maybe, record, ref

ANSWERS = {
    "allocation": "kcverify allocate --format json",
    "drift_map": "kcverify map --format json",
    "kernel_chain": "kcverify conformance chain --format json",
}
"""Definition of each answer -> the command that prints it."""

_READING: Schema = {"anyOf": [MAYBE_NUMBER, {"enum": ["inf", "-inf", "nan"]}]}
_CODE: Schema = {"enum": [0, 1, 2, 3, 4]}
_VERDICT: Schema = {"enum": ["pass", "fail", "inconclusive"]}
_COUNTS: Schema = {"type": "object", "additionalProperties": COUNT, "description": "number of modules by format"}
_EVIDENCE: Schema = {"enum": ["proved", "attested", "measured"]}


def _head(**more: Schema) -> Schema:
    return record({"kcverify": TEXT, "exit_code": _CODE, **more})


def definitions() -> dict[str, Schema]:
    """The definitions of `ANSWERS` and what they are made of."""
    return {**_allocation(), **_map(), **_chain()}


def _allocation() -> dict[str, Schema]:
    clause = {"name": TEXT, "slice": MAYBE, "text": TEXT, "verdict": _VERDICT, "reason": TEXT, "observed": _READING}
    measured = {
        "name": TEXT, "cost": NUMBER, "figures": listing(_READING), "shares": listing(_READING), "rows": COUNT, "invalid": COUNT,
        "verdict": _VERDICT, "within": FLAG, "formats": _COUNTS, "clauses": listing(record(clause)),
    }  # fmt: skip
    gain = {
        "best_uniform": MAYBE, "saving": MAYBE_NUMBER, "tie": FLAG, "equal_cost": maybe(ref("measured_assignment")),
        "equal_cost_shares": maybe(record({"allocated": _READING, "uniform": _READING})), "sentence": TEXT,
    }  # fmt: skip
    unit = {"name": TEXT, "kind": TEXT, "matrices": COUNT, "format": MAYBE}
    one = record({"format": TEXT, "cost": NUMBER, "figures": listing(_READING)})
    attempt = {"scale": NUMBER, "cost": NUMBER, "formats": _COUNTS, "predicted": _READING, "calibration": _READING}
    point = {
        "kind": TEXT,
        "name": TEXT,
        "cost": NUMBER,
        "figures": listing(_READING),
        "share": _READING,
        "formats": _COUNTS,
        "efficient": FLAG,
    }
    return {
        "measured_assignment": record(measured),
        "allocation": _head(
            verdict=_VERDICT, contract=record({"name": TEXT, "version": TEXT, "digest": TEXT}), model=TEXT, reference=TEXT,
            level=TEXT, temperature=NUMBER, cost=record({"name": TEXT, "unit": TEXT, "about": TEXT, "repeatable": FLAG}),
            data=record({"source": TEXT, "window": COUNT, "calibration": COUNT, "held_out": COUNT}),
            budgets=listing(record({"clause": TEXT, "text": TEXT, "figure": TEXT, "limit": NUMBER, "unit": TEXT, "adds": TEXT})),
            binding=MAYBE, units=listing(record({**unit, "sensitivity": listing(one)})),
            attempts=listing(record({**attempt, "held_out": maybe(ref("measured_assignment")), "said": TEXT})), stopped=TEXT,
            uniforms=listing(ref("measured_assignment")), chosen=maybe(ref("measured_assignment")), gain=record(gain),
            pareto=listing(record(point)), notes=listing(TEXT),
        ),
    }  # fmt: skip


def _map() -> dict[str, Schema]:
    kernel = {
        "kernel": TEXT,
        "mean": _READING,
        "largest": _READING,
        "invalid": COUNT,
        "lower": MAYBE_NUMBER,
        "upper": MAYBE_NUMBER,
    }
    cell = {
        "name": TEXT,
        "rows": {"type": ["integer", "null"]},
        "means": {"type": "object", "additionalProperties": _READING},
    }
    question = {
        "slice": TEXT, "kernel": TEXT, "ratio": _READING, "lower": MAYBE_NUMBER, "upper": MAYBE_NUMBER, "requests_inside": COUNT,
        "requests_outside": COUNT, "answer": {"enum": ["yes", "no", "cannot tell"]}, "reason": TEXT,
    }  # fmt: skip
    return {
        "drift_map": _head(
            contract=maybe(record({"name": TEXT, "version": TEXT})), model=TEXT, reference=TEXT, metric=TEXT, unit=TEXT,
            temperature=NUMBER, data=record({"source": TEXT, "window": COUNT, "requests": COUNT, "rows": COUNT}),
            kernels=listing(record(kernel)),
            cuts=listing(record({"name": TEXT, "title": TEXT, "cells": listing(record(cell)), "empty": TEXT})),
            concentration=listing(record(question)),
            interval=record({"method": TEXT, "level": NUMBER, "factor": NUMBER, "questions": COUNT, "family": TEXT}), notes=listing(TEXT),
        ),
    }  # fmt: skip


def _chain() -> dict[str, Schema]:
    step = {
        "quantity": TEXT, "relation": {"enum": ["<=", ">="]}, "value": MAYBE_NUMBER, "unit": TEXT, "evidence": _EVIDENCE, "by": TEXT,
        "detail": TEXT, "exception": TEXT, "without_exception": MAYBE_NUMBER, "carried": _EVIDENCE,
    }  # fmt: skip
    asked = {
        "name": TEXT, "text": TEXT, "guarantee": FLAG, "follows": FLAG, "bound": MAYBE_NUMBER, "limit": MAYBE_NUMBER,
        "exception": MAYBE, "without_exception": MAYBE_NUMBER, "reason": TEXT, "upper": FLAG,
    }  # fmt: skip
    place = {"request": TEXT, "position": COUNT}
    layer = {
        "layer": TEXT,
        "tolerance": NUMBER,
        "largest": _READING,
        "median": _READING,
        "per_unit": _READING,
        **place,
    }
    moved = {
        "layers": listing(record(layer)),
        "largest": _READING,
        "median": _READING,
        "shipped_kernels": _READING,
        "extremal": maybe(
            record(
                {
                    "layer": TEXT,
                    "random": _READING,
                    "largest": _READING,
                    "reached": record({"least": _READING, "most": _READING}),
                }
            )
        ),
        "invalid": COUNT,
        **place,
    }
    return {
        "kernel_chain": _head(
            kernel_contract=record({"name": TEXT, "version": TEXT, "file": TEXT, "declared": TEXT}),
            contract=record({"name": TEXT, "version": TEXT}), kernel=maybe(record({"name": TEXT, "verdict": TEXT})),
            model=TEXT, candidate=TEXT, evidence=_EVIDENCE,
            data=record({"source": TEXT, "window": COUNT, "requests": COUNT, "rows": COUNT}), steps=listing(record(step)),
            asked=listing(record(asked)), transfer=record(moved), derivation=listing(TEXT), notes=listing(TEXT),
        ),
    }  # fmt: skip
