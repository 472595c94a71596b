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


def shards(found: Mapping[str, Any], color: bool) -> str:
    """The answer for a dump in shards."""
    total = found["total"]
    rows = [
        (
            row["shard"], row["format"], row["container"], f"{row['size']:,}", f"{row['requests']:,}", f"{row['tokens']:,}",
            f"{row['counted']:,}", *(str(row["statuses"][name]) for name in _ODD),
        )
        for row in (*found["shards"], {"shard": "total", "format": "", "container": "", **total})
    ]  # fmt: skip
    head = ("shard", "format", "container", "bytes", "requests", "positions", "counted", *_ODD)
    lines = [
        paint(f"{found['dump']}: {plural(total['shards'], 'shard')}", "bold", color),
        "",
        *table([head, *rows], indent=2, right=frozenset(range(3, len(head)))),
        "",
    ]
    for row in found["placeholders"]:
        lines.append(f"    {row['count']} x {row['value']}: {row['status']}, {row['means']}")
    lines += [_disagreement(row, color) for row in found["disagreements"]]
    if not found["disagreements"]:
        lines.append("  all shards agree in format, fields and declarations")
    lines.append(f"  every shard carries {', '.join(f['what'] for f in found['carries']) or 'nothing'}")
    lines += [paint(f"  assumed: {text}", "inconclusive", color) for text in found["assumptions"]]
    lines += [paint(f"  note: {note}", "dim", color) for note in found["notes"]]
    lines += ["", *_metrics(found["metrics"], color)]
    return "\n".join(lines)


_ODD = ("missing", "banned", "placeholder", "broken")
_SHOWN = 3


def _disagreement(row: Mapping[str, Any], color: bool) -> str:
    told = []
    for part in row["values"]:
        names = ", ".join(part["shards"][:_SHOWN]) + (", …" if part["count"] > _SHOWN else "")
        told.append(f"{part['value']} in {plural(part['count'], 'shard')} ({names})")
    more = "; `compare` refuses them as one dump" if row["refused"] else ""
    return paint(
        f"  {row['what']} differs: {'; '.join(told)}{more}", "fail" if row["refused"] else "inconclusive", color
    )


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
