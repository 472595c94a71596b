"""Schema of what `measure --causes` and `--by-layer` add to the answer of `measure`."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_FLAG: Schema = {"type": "boolean"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_SHARE: Schema = {"type": ["number", "null"]}
_READING: Schema = {"type": ["number", "string", "null"], "description": "a number, or `inf`, `-inf`, `nan`"}


def _object(required: Schema, **optional: Schema) -> Schema:
    return {"type": "object", "required": list(required), "properties": {**required, **optional}}


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def definitions() -> dict[str, Schema]:
    """The definitions `causes` and `by_layer`, and what they are made of."""
    three = _object({"mean": _READING, "max": _READING, "p99.9": _READING})
    figures = _object({"kl": three, "tv": three, "logit_span": three})
    tally = {"rows": _COUNT, "invalid": _COUNT, "bit_exact_rows": _COUNT, "bit_exact": _FLAG, "figures": figures}
    step = {"name": _TEXT, "title": _TEXT, "observable": _FLAG, "reason": _TEXT}
    added = _object({"sum": _READING, "whole": _READING, "ratio": _SHARE, "rule": _TEXT})
    return {
        "causes": _object(
            {
                "rows": _COUNT, "temperature": {"type": "number"}, "whole": _object(tally),
                "parts": _list(_object({**step, "about": _TEXT}, within_noise={"type": ["boolean", "null"]}, **tally)),
                "noise": _object(
                    {"title": _TEXT, "about": _TEXT, "observable": _FLAG, "reason": _TEXT, "variations": _list(_object(step, **tally))},
                    bit_exact=_FLAG, floor=figures,
                ),
                "adding_up": {"anyOf": [_object({"kl": added, "tv": added, "logit_span": added}), {"type": "null"}]},
                "clauses_below_noise": _list(
                    _object(
                        {
                            "clause": _TEXT, "slice": {"type": ["string", "null"]}, "limit": _READING, "floor": _READING,
                            "variation": _TEXT, "beyond_share": {"type": "number"}, "text": _TEXT,
                        }
                    )
                ),
                "notes": _list(_TEXT),
            }
        ),
        "by_layer": _object(
            {
                "complete": _FLAG, "requests": _COUNT, "rows": _COUNT, "temperature": {"type": "number"}, "bit_exact": _FLAG,
                "whole": _object({"kl_mean": _READING, "kl_max": _READING}), "levels": _list(_level()),
            }
        ),
    }  # fmt: skip


def _level() -> Schema:
    unit = {"name": _TEXT, "kind": _TEXT, "matrices": _COUNT, "kl_mean": _READING, "kl_max": _READING, "share": _SHARE}
    return _object({"name": _TEXT, "title": _TEXT, "additivity": _SHARE, "units": _list(_object(unit))})
