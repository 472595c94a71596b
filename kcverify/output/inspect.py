"""The answer of `inspect`: what a file is, what it carries and lacks, what is assumed, which metrics it can carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from kcverify.output.style import paint, plural, table

WORTHS = ("exact", "bounded", "estimated", "not observed")


def text(found: Mapping[str, Any], color: bool) -> str:
    """The answer for a terminal."""
    counts = found["counts"]
    lines = [
        f"{paint(found['file'], 'bold', color)}: {found['title']}",
        f"  format {found['format']}, {found['container']}, {found['size']:,} bytes; source of the format: {found['source']}",
        f"  {plural(counts['requests'], 'request')}, {plural(counts['tokens'], 'position')}, {counts['counted']} counted; {_sizes(counts)}",
        "",
        *table([("  carries", ", ".join(f["what"] for f in found["carries"]) or "nothing"), ("  lacks", ", ".join(f["what"] for f in found["lacks"]) or "nothing")]),
        "",
    ]  # fmt: skip
    lines += _statuses(found, color)
    lines += _declared(found, color)
    lines += [paint(f"  note: {note}", "dim", color) for note in found["notes"]]
    lines += ["", *_metrics(found["metrics"], color)]
    return "\n".join(lines)


def _sizes(counts: Mapping[str, Any]) -> str:
    parts = [f"{counts['shortest']} to {counts['longest']} a request"]
    if counts["top_k"] is not None:
        low, high = counts["top_k"]
        parts.append(f"top {high}" if low == high else f"top {low} to {high}")
    if counts["vocabulary"] is not None:
        parts.append(f"vocabulary {counts['vocabulary']}")
    elif counts["vocabulary_at_least"] is not None:
        parts.append(f"vocabulary at least {counts['vocabulary_at_least']}")
    return ", ".join(parts)


def _statuses(found: Mapping[str, Any], color: bool) -> list[str]:
    lines = ["  " + ", ".join(f"{n} {name}" for name, n in found["statuses"].items())]
    for row in found["placeholders"]:
        what = f"{row['count']} x {row['value']}: {row['status']}, {row['means']}"
        lines.append(paint(f"    {what}", "inconclusive" if row["status"] != "broken" else "fail", color))
    lines += [paint(f"    {row['count']} {row['what']}", "inconclusive", color) for row in found["suspects"]]
    return [*lines, ""]


def _declared(found: Mapping[str, Any], color: bool) -> list[str]:
    rows = [
        (f"  {r['key']}", r["value"], r["origin"]) for r in found["declared"] if r["key"] not in ("format", "container")
    ]
    lines = table(rows)
    for row in found["undeclared"]:
        lines.append(
            paint(f"  {row['key']} is not known ({row['says']}): --declare {row['key']}=…", "inconclusive", color)
        )
    return lines


def _metrics(rows: Sequence[Mapping[str, Any]], color: bool) -> list[str]:
    """One line for each worth and input, the best first."""
    lines = ["  two such files give"]
    ordered = sorted(rows, key=lambda r: (WORTHS.index(r["worth"]), r["inputs"]))
    for worth, group in groupby(ordered, key=lambda r: r["worth"]):
        if worth == WORTHS[-1]:
            names = ", ".join(r["metric"] for r in group)
            lines.append(paint(f"    {worth}: {names}", "dim", color))
            continue
        for inputs, same in groupby(group, key=lambda r: r["inputs"]):
            names = ", ".join(r["metric"] for r in same)
            lines.append(f"    {paint(worth, 'pass' if worth == 'exact' else 'inconclusive', color)}: {names}")
            lines.append(paint(f"      from {inputs}", "dim", color))
    return lines
