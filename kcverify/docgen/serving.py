"""Schema of what `kcverify serve-demo` prints."""

from __future__ import annotations

from kcverify.docgen.words import TEXT, Schema, record

ANSWERS = {
    "serving": "kcverify serve-demo --format json, one line once it answers",
    "serving_faults": "kcverify serve-demo --faults --format json",
}
"""Definition of each answer -> the command that prints it."""


def definitions() -> dict[str, Schema]:
    """The answers, by the name in ANSWERS, and a row of the table of faults."""
    value: Schema = {"type": ["string", "number", "null"], "description": "null: the fault takes no value"}
    return {
        "serving": record({"kcverify": TEXT, "url": TEXT, "model": TEXT, "kernel": TEXT, "weight_version": TEXT, "logprobs_mode": {"enum": ["raw", "processed"]}, "pid": {"type": "integer"}}),
        "serving_faults": record(
            {"kcverify": TEXT, "exit_code": {"const": 0}, "faults": {"type": "array", "items": {"$ref": "#/$defs/serving_fault"}}}
        ),
        "serving_fault": record(
            {"name": TEXT, "meaning": TEXT, "how": TEXT, "takes": TEXT, "default": value, "by_request": {"type": "boolean"}}
        ),
    }  # fmt: skip
