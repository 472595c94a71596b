"""What `inspect` found, as JSON data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kcverify import __version__
from kcverify.readers.inspected_shards import Inspections
from kcverify.readers.inspection import FIELDS, Inspection, meanings, observables, summary
from kcverify.readers.sidecar import KEYS


def data(found: Inspection) -> dict[str, Any]:
    """The answer as JSON: file, counts, statuses, placeholders, declarations, metrics, notes."""
    row, stream = found.format, found.stream
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
        "statuses": _statuses(found.statuses),
        "placeholders": _placeholders([found]),
        "suspects": _suspects(found),
        "declared": [{"key": k, "value": str(d.value), "origin": _origin(d.origin)} for k, d in sorted(stream.declared.items())],
        "undeclared": [{"key": k, "says": KEYS[k][1]} for k in row.asks if k not in stream.declared],
        "error": None if found.error is None else dict(zip(("smallest", "largest"), map(_number, found.error), strict=True)),
        "metrics": [{"metric": o.metric, "worth": o.worth, "inputs": o.inputs} for o in observables(found.carries)],
        "assumptions": found.assumptions,
        "notes": list(stream.notes),
    }  # fmt: skip


def data_of_shards(found: Inspections) -> dict[str, Any]:
    """The answer for a dump in shards: one row a shard, the totals, what they disagree in."""
    rows: list[dict[str, Any]] = [
        {
            "shard": name, "file": str(one.stream.path), "format": one.format.name, "container": one.container,
            "size": one.size, "requests": one.requests, "tokens": one.tokens, "counted": one.counted,
            "statuses": _statuses(one.statuses), "suspects": _suspects(one),
        }
        for name, one in found.shards
    ]  # fmt: skip
    each = [one for _, one in found.shards]
    counts = {key: sum(row[key] for row in rows) for key in ("size", "requests", "tokens", "counted")}
    return {
        "kcverify": __version__, "exit_code": 0, "dump": found.spec, "shards": rows,
        "total": {"shards": len(rows), **counts, "statuses": _statuses(found.statuses)},
        "placeholders": _placeholders(each),
        "disagreements": [
            {
                "what": d.what, "refused": d.refused,
                "values": [{"value": value, "count": len(names), "shards": list(names)} for value, names in d.values],
            }
            for d in found.disagreements
        ],
        "carries": [{"field": name, "what": what} for name, what in FIELDS.items() if name in found.carries],
        "metrics": [{"metric": o.metric, "worth": o.worth, "inputs": o.inputs} for o in observables(found.carries)],
        "assumptions": list(dict.fromkeys(text for one in each for text in one.assumptions)),
        "notes": found.notes,
    }  # fmt: skip


def _statuses(found: Mapping[str, int]) -> dict[str, int]:
    return {name: found.get(name, 0) for name in ("value", "missing", "banned", "placeholder", "broken")}


def _placeholders(found: Sequence[Inspection]) -> list[dict[str, Any]]:
    """Counts of each literal with its meaning, over files whose formats may differ."""
    held: Counter[tuple[str, str, str]] = Counter()
    for one in found:
        says = meanings(one.format)
        for value, count in one.placeholders.items():
            held[value, *says[value]] += count
    return [
        {"value": v, "count": n, "status": status, "means": means} for (v, status, means), n in sorted(held.items())
    ]


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
