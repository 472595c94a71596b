"""What `inspect` found, as JSON data."""

from __future__ import annotations

import math
from typing import Any

from kcverify import __version__
from kcverify.readers.inspection import FIELDS, Inspection, meanings, observables, summary
from kcverify.readers.sidecar import KEYS


def data(found: Inspection) -> dict[str, Any]:
    """The answer as JSON: file, counts, statuses, placeholders, declarations, metrics, notes."""
    row, stream = found.format, found.stream
    says = meanings(row)
    return {
        "kcverify": __version__,
        "exit_code": 0,
        "file": str(stream.path),
        "format": row.name,
        "title": row.title,
        "container": found.container,
        "source": row.source,
        "size": found.size,
        "counts": {"requests": found.requests, "tokens": found.tokens, "counted": found.counted, **summary(found)},
        "carries": [{"field": name, "what": what} for name, what in FIELDS.items() if name in found.carries],
        "lacks": [{"field": name, "what": FIELDS[name]} for name in found.lacks],
        "statuses": {name: found.statuses.get(name, 0) for name in ("value", "missing", "banned", "placeholder", "broken")},
        "placeholders": [
            {"value": value, "count": count, "status": says[value][0], "means": says[value][1]}
            for value, count in sorted(found.placeholders.items())
        ],
        "suspects": _suspects(found),
        "declared": [{"key": k, "value": str(d.value), "origin": _origin(d.origin)} for k, d in sorted(stream.declared.items())],
        "undeclared": [{"key": k, "says": KEYS[k][1]} for k in row.asks if k not in stream.declared],
        "error": None if found.error is None else dict(zip(("smallest", "largest"), map(_number, found.error), strict=True)),
        "metrics": [{"metric": o.metric, "worth": o.worth, "inputs": o.inputs} for o in observables(found.carries)],
        "assumptions": found.assumptions,
        "notes": list(stream.notes),
    }  # fmt: skip


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _origin(origin: str) -> str:
    return {"assumed": "assumed: the format's default"}.get(origin, origin)


def _suspects(found: Inspection) -> list[dict[str, Any]]:
    """Numbers that are no placeholder by themselves and yet need a second look."""
    rows = (
        (found.positive, "log-probabilities above 0: no distribution has them"),
        (found.zeros, f"log-probabilities of exactly 0.0 counted: {found.format.zero}"),
        (len(found.versions) if len(found.versions) > 1 else 0, "versions of the weights in one file"),
        (found.repeated, "lists of most probable tokens with one token twice, with one number"),
    )
    return [{"count": count, "what": what} for count, what in rows if count]
