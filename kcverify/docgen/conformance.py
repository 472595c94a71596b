"""Schema of the answers of `kcverify conformance` and of the entries of its corpus."""

from __future__ import annotations

from typing import Any

from kcverify.codes import Severity

Schema = dict[str, Any]

ANSWERS = {
    "calibration": "kcverify conformance calibrate --format json",
    "conformance_run": "kcverify conformance run FILE --kernel K --format json",
    "conformance_entry": "kcverify conformance record FILE --kernel K --output ENTRY --format json; also the entry's own format",
    "entries_compared": "kcverify conformance compare A B --format json",
    "survey": "kcverify conformance survey --format json",
    "traps": "kcverify conformance traps --format json",
    "kernels": "kcverify conformance kernels --format json",
    "logits": "kcverify conformance logits --format json",
}
"""Definition of each answer -> the command that prints it."""

VERDICTS = ("within_tolerance", "violation", "under_specified", "inconclusive")
"""Of a kernel-level contract."""

_TEXT: Schema = {"type": "string"}
_MAYBE: Schema = {"type": ["string", "null"]}
_NUMBER: Schema = {"type": "number"}
_MAYBE_NUMBER: Schema = {"type": ["number", "null"], "description": "null: not finite, or a formula that says nothing"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_FLAG: Schema = {"type": "boolean"}
_VERDICT: Schema = {"enum": list(VERDICTS)}
_CODE: Schema = {"enum": [0, 1, 2, 3, 4]}


def _object(required: Schema, **optional: Schema) -> Schema:
    return {"type": "object", "required": list(required), "properties": {**required, **optional}}


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def _maybe(item: Schema) -> Schema:
    return {"anyOf": [item, {"type": "null"}]}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def definitions() -> dict[str, Schema]:
    """The definitions of `ANSWERS` and what they are made of."""
    return {**_runs(), **_sampled(), **_tables(), **_surveys()}


def _runs() -> dict[str, Schema]:
    """One kernel under one contract, and the entry that is kept of it."""
    run = {
        "class": _TEXT, "operation": _TEXT, "kernel": _TEXT, "verdict": _VERDICT, "declared": {"type": "object"}, "seed": _COUNT,
        "trials": _COUNT, "draws": _COUNT, "distributions": _list(_TEXT), "worst": _maybe(_ref("kernel_reading")),
        "readings": _list(_ref("kernel_reading")), "findings": _list(_ref("kernel_finding")), "notes": _list(_TEXT),
    }  # fmt: skip
    head = {"kcverify": _TEXT, "exit_code": _CODE}
    about = _object(
        {"name": _TEXT, "version": _TEXT, "file": _TEXT, "trials_asked": _COUNT, "severity": _list(_TEXT)},
        description=_TEXT,
        digest={"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"},
        dtypes=_list(_TEXT),
        shapes={"type": "object", "additionalProperties": {"type": "array", "items": _COUNT}},
    )
    states = _list(_object({"state": _TEXT, "kernel": _TEXT, "verdict": _VERDICT}))
    return {
        "tolerance": _object({"exact": _MAYBE, "value": _MAYBE_NUMBER, "lines": _list(_TEXT)}),
        "kernel_reading": _object(
            {"name": _TEXT, "value": _MAYBE_NUMBER, "where": _TEXT, "slack": _NUMBER, "tolerance": _ref("tolerance"), "verdict": _VERDICT},
            count=_COUNT,
        ),
        "kernel_finding": _object(
            {"code": _TEXT, "slug": _TEXT, "severity": {"enum": [s.value for s in Severity]}, "message": _TEXT, "hint": _TEXT}
        ),
        "machine": _object(
            {
                "processor": _TEXT, "features": _list(_TEXT), "devices": _list(_TEXT), "torch": _TEXT, "python": _TEXT,
                "system": _TEXT, "kcverify": _TEXT,
            }
        ),
        "kernel_run": _object(run),
        "conformance_run": _object(
            {
                **head, "contract": about, **run, "evidence": _maybe(_ref("kernel_evidence")),
                "signatures": _list(_ref("kernel_signature")), "raises": _TEXT, "calibration": states, "machine": _ref("machine"),
            }
        ),
        "conformance_entry": _object(
            {
                "format": {"const": "kcverify-conformance-entry/1"}, "kcverify": _TEXT, "contract": about, "class": _TEXT,
                "operation": _TEXT, "kernel": _TEXT, "declared": {"type": "object"}, "machine": _ref("machine"),
                "tolerance": _maybe(_ref("tolerance")),
                "measurement": _maybe(_object({"name": _TEXT, "value": _MAYBE_NUMBER, "slack": _NUMBER, "where": _TEXT})),
                "readings": _list(_ref("kernel_reading")), "calibration": states, "findings": _list(_ref("kernel_finding")),
                "verdict": _VERDICT, "reproduce": _TEXT,
            },
            evidence=_maybe(_ref("kernel_evidence")), signatures=_list(_ref("kernel_signature")), seed=_COUNT,
            distributions=_list(_TEXT),
        ),
    }  # fmt: skip


def _sampled() -> dict[str, Schema]:
    """Draws and their confidence, and signatures of violations."""
    return {
        "kernel_evidence": _object(
            {
                "asked": _COUNT,
                "draws": _COUNT,
                "confidence": _NUMBER,
                "share": _MAYBE_NUMBER,
                "reached": _MAYBE_NUMBER,
                "met": _FLAG,
            }
        ),
        "kernel_signature": _object(
            {
                "signature": _TEXT,
                "severity": _TEXT,
                "seen": {"type": ["boolean", "null"]},
                "evidence": _TEXT,
                "ladder": _list(
                    _object(
                        {
                            "size": _COUNT,
                            "residual": _MAYBE_NUMBER,
                            "limit": _MAYBE_NUMBER,
                            "coerced": {"type": "object"},
                        }
                    )
                ),
            }
        ),
    }


def _tables() -> dict[str, Schema]:
    """What is about several kernels or entries."""
    head = {"kcverify": _TEXT, "exit_code": _CODE}
    return {
        "entries_compared": _object(
            {
                **head, "contract": _TEXT, "kernel": _TEXT, "same_verdict": _FLAG,
                "differences": _list(_object({"name": _TEXT, "a": {}, "b": {}})),
            }
        ),
        "calibration": _object({**head, "classes": _list(_ref("calibrated_class"))}),
        "calibrated_class": _object(
            {
                "class": _TEXT, "title": _TEXT, "statement": _TEXT, "operation": _TEXT, "tolerance": _TEXT, "calibrated": _FLAG,
                "states": _list(
                    _object(
                        {
                            "state": {"enum": ["baseline", "bad", "good"]}, "kernel": _TEXT, "ordinary": {"enum": ["pass", "fail"]},
                            "verdict": _VERDICT, "worst": _maybe(_ref("kernel_reading")),
                        }
                    )
                ),
            }
        ),
    }  # fmt: skip


def _surveys() -> dict[str, Schema]:
    """What runs all shipped kernels or traps, and what follows for the logits."""
    head = {"kcverify": _TEXT, "exit_code": _CODE}
    return {
        "survey": _object(
            {
                **head, "runs": _list(_ref("kernel_run")), "not_here": _list(_object({"kernel": _TEXT, "reason": _TEXT})),
                "machine": _ref("machine"),
            }
        ),
        "traps": _object(
            {
                **head, "machine": _ref("machine"),
                "traps": _list(
                    _object(
                        {
                            "source": _TEXT, "about": _TEXT, "contract": _TEXT, "kernel": _TEXT, "expected": _TEXT, "found": _TEXT,
                            "not_here": _TEXT, "as_expected": {"type": ["boolean", "null"]}, "worst": _maybe(_ref("kernel_reading")),
                        }
                    )
                ),
            }
        ),
        "logits": _object(
            {
                **head, "reference": _TEXT, "candidate": _TEXT, "looseness": _MAYBE_NUMBER, "follows": _ref("bounds"),
                "attested": _object({"evidence": {"const": "attested"}, "about": _TEXT, "lines": _list(_TEXT), "logit_drift": _NUMBER}),
                "measured": _object(
                    {"evidence": {"const": "measured"}, "about": _TEXT, "head": {"type": ["number", "string"]}, "whole": {"type": ["number", "string"]}, "tokens": _COUNT}
                ),
            }
        ),
        "kernels": _object(
            {
                **head,
                "kernels": _list(
                    _object({"kernel": _TEXT, "operation": _TEXT, "note": _TEXT, "classes": _list(_TEXT), "formats": _TEXT})
                ),
            }
        ),
    }  # fmt: skip


def entry_schema() -> Schema:
    """The schema of one entry of the corpus, whole in itself: `docs/conformance_entry.schema.json`."""
    known = {**_runs(), **_sampled()}
    wanted = ("tolerance", "kernel_reading", "kernel_finding", "kernel_evidence", "kernel_signature", "machine")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An entry of the corpus of kernel measurements, as kcverify conformance record writes it",
        **known["conformance_entry"],
        "$defs": {name: known[name] for name in wanted},
    }
