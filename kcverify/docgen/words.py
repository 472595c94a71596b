"""Words that the schemas of all answers are written with."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
MAYBE: Schema = {"type": ["string", "null"]}
NUMBER: Schema = {"type": "number"}
MAYBE_NUMBER: Schema = {"type": ["number", "null"]}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}


def record(required: Schema, **optional: Schema) -> Schema:
    """An object with these keys; later versions may add others."""
    return {"type": "object", "required": list(required), "properties": {**required, **optional}}


def mapping(item: Schema) -> Schema:
    """An object with names of the contract's as its keys."""
    return {"type": "object", "additionalProperties": item}


def listing(item: Schema) -> Schema:
    """A list of one kind."""
    return {"type": "array", "items": item}


def maybe(item: Schema) -> Schema:
    """It, or null."""
    return {"anyOf": [item, {"type": "null"}]}


def ref(name: str) -> Schema:
    """A definition of the same schema."""
    return {"$ref": f"#/$defs/{name}"}
