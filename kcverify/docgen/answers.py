"""The JSON Schema of what `check --format json` and `diff --format json` print."""

from __future__ import annotations

from typing import Any

from kcverify.codes import Severity
from kcverify.elaborate.refine import Kind
from kcverify.prove.verdict import Status

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_MAYBE: Schema = {"type": ["string", "null"]}
_CODE: Schema = {
    "enum": [0, 1, 2, 3, 4],
    "description": "0 proved; 1 refuted or an error; 2 wrong input; 3 unknown; 4 a fault",
}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def _object(required: Schema, **optional: Schema) -> Schema:
    """An object with these keys; later versions may add others."""
    return {"type": "object", "required": list(required), "properties": {**required, **optional}}


def answers() -> Schema:
    """One schema for both answers. A version of kcverify may add keys, and removes none within a major version."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kcverify answers",
        "description": "What `kcverify check --format json` and `kcverify diff --format json` print.",
        "oneOf": [_ref("check"), _ref("diff")],
        "$defs": {
            "check": _object({"kcverify": _TEXT, "exit_code": _CODE, "files": _list(_ref("file"))}),
            "file": _object(
                {"file": _TEXT, "diagnostics": _list(_ref("diagnostic")), "contracts": _list(_ref("contract"))}
            ),
            "contract": _object(
                {
                    "name": _TEXT, "version": _TEXT, "digest": {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"},
                    "verdicts": _list(_ref("verdict")), "findings": _list(_ref("diagnostic")),
                    "not_enforced": _list(_TEXT), "exit_code": _CODE,
                }
            ),
            "diagnostic": _object(
                {
                    "code": {"type": "string", "pattern": "^KC[0-9]{3}$"}, "slug": _TEXT,
                    "severity": {"enum": [severity.value for severity in Severity]}, "message": _TEXT, "place": _MAYBE,
                    "hint": _TEXT, "related": _list(_object({"place": _TEXT, "label": _TEXT})),
                }
            ),
            "verdict": _object(
                {
                    "name": _TEXT, "claim": _TEXT, "slice": _MAYBE, "verdict": {"enum": [status.value for status in Status]},
                    "bound": _MAYBE, "threshold": _MAYBE, "slack": _MAYBE, "binding": _list(_TEXT),
                    "chain": _list({"type": "object"}), "reason": _TEXT, "counterexample": {"type": ["object", "null"]},
                    "place": _TEXT,
                }
            ),
            "diff": _object({"kcverify": _TEXT, "exit_code": {"enum": [0, 1]}, "contracts": _list(_ref("comparison"))}),
            "comparison": _object(
                {"old": _MAYBE, "new": _MAYBE, "old_digest": _MAYBE, "new_digest": _MAYBE, "changes": _list(_ref("change"))}
            ),
            "change": _object(
                {
                    "kind": {"enum": [kind.value for kind in Kind]}, "weaker": {"type": "boolean"}, "what": _TEXT,
                    "name": _TEXT, "detail": _TEXT, "old": _MAYBE, "new": _MAYBE,
                }
            ),
        },
    }  # fmt: skip
