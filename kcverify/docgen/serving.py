"""Schema of what `kcverify serve-demo` prints."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

ANSWERS = {
    "serving": "kcverify serve-demo --format json, one line once it answers",
    "serving_faults": "kcverify serve-demo --faults --format json",
}
"""Definition of each answer -> the command that prints it."""

_TEXT: Schema = {"type": "string"}


def _object(required: Schema) -> Schema:
    return {"type": "object", "required": list(required), "properties": required}


def definitions() -> dict[str, Schema]:
    """The answers, by the name in ANSWERS, and a row of the table of faults."""
    value: Schema = {"type": ["string", "number", "null"], "description": "null: the fault takes no value"}
    return {
        "serving": _object({"kcverify": _TEXT, "url": _TEXT, "model": _TEXT, "kernel": _TEXT, "weight_version": _TEXT, "logprobs_mode": {"enum": ["raw", "processed"]}, "pid": {"type": "integer"}}),
        "serving_faults": _object(
            {"kcverify": _TEXT, "exit_code": {"const": 0}, "faults": {"type": "array", "items": {"$ref": "#/$defs/serving_fault"}}}
        ),
        "serving_fault": _object(
            {"name": _TEXT, "meaning": _TEXT, "how": _TEXT, "takes": _TEXT, "default": value, "by_request": {"type": "boolean"}}
        ),
    }  # fmt: skip
