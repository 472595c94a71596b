"""Schema of what `measure --causes` and `--by-layer` add to the answer of `measure`."""

from __future__ import annotations

from kcverify.docgen.words import COUNT, FLAG, TEXT, Schema, listing, record

_SHARE: Schema = {"type": ["number", "null"]}
_READING: Schema = {"type": ["number", "string", "null"], "description": "a number, or `inf`, `-inf`, `nan`"}


def definitions() -> dict[str, Schema]:
    """The definitions `causes` and `by_layer`, and what they are made of."""
    three = record({"mean": _READING, "max": _READING, "p99.9": _READING})
    figures = record({"kl": three, "tv": three, "logit_span": three})
    tally = {"rows": COUNT, "invalid": COUNT, "bit_exact_rows": COUNT, "bit_exact": FLAG, "figures": figures}
    step = {"name": TEXT, "title": TEXT, "observable": FLAG, "reason": TEXT}
    added = record({"sum": _READING, "whole": _READING, "ratio": _SHARE, "rule": TEXT})
    return {
        "causes": record(
            {
                "rows": COUNT, "temperature": {"type": "number"}, "whole": record(tally),
                "parts": listing(record({**step, "about": TEXT}, within_noise={"type": ["boolean", "null"]}, **tally)),
                "noise": record(
                    {"title": TEXT, "about": TEXT, "observable": FLAG, "reason": TEXT, "variations": listing(record(step, **tally))},
                    bit_exact=FLAG, floor=figures,
                ),
                "adding_up": {"anyOf": [record({"kl": added, "tv": added, "logit_span": added}), {"type": "null"}]},
                "clauses_below_noise": listing(
                    record(
                        {
                            "clause": TEXT, "slice": {"type": ["string", "null"]}, "limit": _READING, "floor": _READING,
                            "variation": TEXT, "beyond_share": {"type": "number"}, "text": TEXT,
                        }
                    )
                ),
                "notes": listing(TEXT),
            }
        ),
        "by_layer": record(
            {
                "complete": FLAG, "requests": COUNT, "rows": COUNT, "temperature": {"type": "number"}, "bit_exact": FLAG,
                "whole": record({"kl_mean": _READING, "kl_max": _READING}), "levels": listing(_level()),
            }
        ),
    }  # fmt: skip


def _level() -> Schema:
    unit = {"name": TEXT, "kind": TEXT, "matrices": COUNT, "kl_mean": _READING, "kl_max": _READING, "share": _SHARE}
    return record({"name": TEXT, "title": TEXT, "additivity": _SHARE, "units": listing(record(unit))})
