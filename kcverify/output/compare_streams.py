"""The answer of `compare` for a terminal: what is not drift first, then drift, witnesses, and the projects' names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kcverify.output.style import paint, plural, table

_STYLE = {"error": "fail", "warning": "inconclusive", "note": "dim"}
_WORST = 5
_BRIEF = ("k3", "mean |d|", "ESS")


def number(value: Any, digits: int = 4) -> str:
    """A number as the tables show it; `-` for none, texts as they are."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return str(value) if isinstance(value, int) else f"{value:.{digits}g}"


_UNKNOWN = ("-inf", "nan", "0.0", "-1.0")
"""Lower ends of intervals without an upper one: nothing is known but the range of the number."""


def interval(row: Mapping[str, Any]) -> str:
    """`[lower, upper]`, empty where it says nothing."""
    low, high = row.get("lower"), row.get("upper")
    if low is None or high is None or (str(low) in _UNKNOWN and str(high) in ("inf", "nan")):
        return ""
    return f"[{number(low)}, {number(high)}]"


def text(found: Mapping[str, Any], color: bool) -> str:
    """The whole answer."""
    parts = [_head(found, color), _findings(found, color)]
    for key in ("drift", "explained"):
        if found[key] is not None:
            parts.append(_drift(found[key], key == "drift", color))
    parts.append(
        "\n".join(f"  left out: {r['rows']} of {r['of']} rows of {r['family']}: {r['slug']}" for r in found["left_out"])
    )
    if found["estimators"]:
        parts.append(_estimators(found, color))
    if found["sequences"]:
        parts.append(_sequences(found["sequences"]))
    if found["project"] is not None and found["project"]["numbers"]:
        parts.append(_project(found["project"], color))
    parts.append("\n".join(paint(f"  assumed: {line}", "dim", color) for line in found["assumptions"]))
    parts.append(_close(found, color))
    return "\n\n".join(part for part in parts if part)


def _head(found: Mapping[str, Any], color: bool) -> str:
    rows = [
        (f"  {role}", found[role]["path"], f"({found[role]['format']})", ", ".join(found[role]["carries"]))
        for role in ("reference", "candidate")
    ]
    counts = found["requests"]
    line = f"  {plural(counts['pairs'], 'request')} on both sides, {counts['tokens']} sampled tokens compared{_shards(found)}"
    return "\n".join([paint("compare", "bold", color), *table(rows), line])


def _shards(found: Mapping[str, Any]) -> str:
    """How many shards, how they were matched, and which are missing."""
    told = found.get("shards")
    if told is None:
        return ""
    line = f"\n  {told['compared']} of {plural(told['total'], 'shard')}, matched by {told['matched_by']}"
    if told["across"]:
        line += f"; {plural(told['across'], 'request')} paired across shards"
    return line + "".join(f"\n  shard {row['shard']} is missing: {row['reason']}" for row in told["lost"])


def _findings(found: Mapping[str, Any], color: bool) -> str:
    if not found["findings"]:
        return f"  identity: {paint('no finding', 'pass', color)}"
    lines = []
    for row in found["findings"]:
        label = paint(f"{row['severity']}[{row['code']} {row['slug']}]", _STYLE[row["severity"]], color)
        lines += [f"  {label}: {row['message']}", f"    cause: {row['cause']}"]
        first = row["evidence"].get("first")
        if first:
            lines.append(f"    first: request {first['request']}, position {first['position']}")
        lines.append(f"    hint: {row['hint']}")
    return "\n".join(lines)


def _drift(numbers: Mapping[str, Any], is_drift: bool, color: bool) -> str:
    if not numbers["table"] and not numbers["bounds"]:
        return ""
    title = "drift" if is_drift else "not drift: what the findings above explain"
    lines = [paint(f"  {title}", "bold" if is_drift else "inconclusive", color)]
    if numbers["table"]:
        rows = [("  metric", "mean", "95% interval", "p99", "max", "rows")]
        rows += [
            (f"  {r['metric']}", number(r["mean"]), interval(r), number(r["quantiles"]["p99"]), number(r["max"]), str(r["rows"]))
            for r in numbers["table"]
        ]  # fmt: skip
        lines += table(rows, indent=2, right=frozenset((1, 3, 4, 5)))
        for row in numbers["table"]:
            if row["stored"] is not None:
                lines.append(f"    {row['metric']} of the engine's own rows: mean in {interval(row['stored'])}")
        worst = next((r for r in numbers["table"] if r["metric"] == "TV"), numbers["table"][0])
        lines += ["", f"    worst rows by {worst['metric']}", *(_witness(w) for w in worst["worst"][:_WORST])]
    for part in numbers["bounds"]:
        lines += _bounds(part)
    return "\n".join([*lines, *(f"    note: {note}" for note in numbers["notes"])])


def _witness(row: Mapping[str, Any]) -> str:
    token = "" if row["token"] is None else f", token {row['token']}"
    return f"      {number(row['value'])}  request {row['request']}, position {row['position']}{token}"


def _bounds(part: Mapping[str, Any]) -> list[str]:
    head = (
        f"    TV in [{number(part['lower'])}, {number(part['upper'])}] on the mean token, from {part['basis']} "
        f"({part['rows']} rows); one token at least {number(part['lower_max'])}"
    )
    lines = ["", head]
    for row in part["requests"][:_WORST]:
        lines.append(
            f"      request {row['request']}: TV in [{number(row['lower'])}, {number(row['upper'])}] on {row['rows']} rows"
        )
    return [*lines, *(_token_bounds(w) for w in part["largest_lower"][:_WORST])]


def _token_bounds(row: Mapping[str, Any]) -> str:
    token = "" if row["token"] is None else f", token {row['token']}"
    ends = f"TV in [{number(row['value'])}, {number(row['upper'])}]"
    return f"      request {row['request']}, position {row['position']}{token}: {ends}"


def _estimators(found: Mapping[str, Any], color: bool) -> str:
    void = found["void"].get("sampled")
    title = "  from sampled tokens" + (f" (no drift: {', '.join(void)})" if void else "")
    rows = [(title, "value", "95% interval", "largest token", "estimates")]
    alone = "none: 1 request" if found["sequences"]["count"] == 1 else ""
    for row in found["estimators"]:
        share = row["largest_token"]
        value = number(row["value"]) if row["value"] != "inf" else f"e^{number(row['log_mean'])}"
        part = "-" if share is None else f"{share['share']:.0%}"
        ends = "" if row["lower"] is None else interval(row) or alone
        rows.append((f"  {row['name']}", value, ends, part, row["estimates"]))
    return "\n".join(table(rows, right=frozenset((1, 3))))


def _sequences(found: Mapping[str, Any]) -> str:
    low, high = found["log_weight_range"]
    lines = [
        f"  {plural(found['count'], 'sequence')}: median weight {number(found['median_weight'])} (log {number(found['median_log_weight'])}), "
        f"log weights from {number(low)} to {number(high)}; {found['bad']} bad ({found['bad_share']:.3f})"
    ]
    for row in found["worst"][:_WORST]:
        lines.append(
            f"    #{row['index']} request {row['request']}: mean |d| {number(row['mean_abs'])}, max {number(row['max_abs'])}, "
            f"log weight {number(row['log_weight'])}, {row['tokens']} tokens"
        )
    return "\n".join(lines)


def _project(found: Mapping[str, Any], color: bool) -> str:
    rows = [(f"  as {found['name']} names it", "value", "formula", "here")]
    notes = []
    for row in found["numbers"]:
        rows.append((f"  {row['name']}", number(row["value"], 6), row["formula"], row["entry"] or ""))
        if row["misleads"]:
            notes.append(paint(f"    {row['name']}: {row['misleads']}", "dim", color))
    return "\n".join([*table(rows, right=frozenset((1,))), *notes])


def _close(found: Mapping[str, Any], color: bool) -> str:
    style = {"comparable": "pass", "partly_comparable": "fail", "not_comparable": "fail"}.get(
        found["verdict"], "inconclusive"
    )
    return f"  verdict: {paint(found['verdict'].replace('_', ' '), style, color)}"


def brief(found: Mapping[str, Any]) -> list[str]:
    """The answer in a few lines: which files, every finding, else how far apart the sampled tokens are."""
    names = [Path(found[role]["path"]).name for role in ("reference", "candidate")]
    lines = [f"  {names[0]}  {names[1]}: {found['verdict'].replace('_', ' ')}"]
    lines += [f"    {f['slug']}: {f['message']}" for f in found["findings"]]
    if not found["findings"]:
        numbers = {row["name"]: row for row in found["estimators"]}
        shown = [
            f"{name} {number(numbers[name]['value'])} {interval(numbers[name])}".rstrip()
            for name in _BRIEF
            if name in numbers
        ]
        lines.append(f"    drift: {', '.join(shown)}")
    return lines
