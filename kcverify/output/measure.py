"""The answer of `measure`: a verdict per clause and slice with its evidence and its worst case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from kcverify.emit.visible import visible
from kcverify.exact import decimal_up
from kcverify.output.causes import attribution
from kcverify.output.style import paint, table


def text(result: Mapping[str, Any], color: bool) -> str:
    """The result for a terminal."""
    measured, data = result["measured"], result["data"]
    lines = [
        f"{paint(result['contract']['name'], 'bold', color)}: {result['pair']['candidate']} against {result['pair']['reference']}, "
        f"{data['measured requests']} requests, {measured['rows']['total']} rows, temperature {measured['temperature']:g}"
        + (", one look" if measured["looks"] == "one look" else "")
    ]
    if not result["complete"]:
        lines.append(
            paint(
                f"INCOMPLETE: {_why(result)} after {data['measured requests']} of {data['requests']} requests",
                "fail",
                color,
            )
        )
    if "shards" in result:
        lines.append(_shards(result["shards"]))
    lines += _identity(measured["rows"])
    lines.append("")
    for clause in measured["clauses"]:
        if clause["verdict"] != "not_enforced":
            lines += _clause(clause, color)
    skipped = {c["name"]: c["reason"] for c in measured["clauses"] if c["verdict"] == "not_enforced"}
    lines += [paint(f"  not enforced: {name} ({reason})", "dim", color) for name, reason in skipped.items()]
    lines += [f"  note: {note}" for note in measured["notes"]]
    guarantees = ", ".join(f"{g['name']} {paint(g['verdict'], g['verdict'], color)}" for g in result["guarantees"])
    if guarantees:
        lines.append(f"  guarantees, if every clause holds: {guarantees}")
    lines += _measured(result["measured_guarantees"], color)
    lines += attribution(result, color)
    lines.append(f"\nverdict: {paint(result['verdict'], result['verdict'], color)}")
    return "\n".join(lines)


def _why(result: Mapping[str, Any]) -> str:
    lost = result.get("shards", {}).get("lost", ())
    return f"{len(lost)} shards lost" if lost else "interrupted"


def _shards(shards: Mapping[str, Any]) -> str:
    return f"  {shards['measured']} of {shards['total']} shards, matched by {shards['matched_by']}"


def _measured(found: Mapping[str, Any], color: bool) -> list[str]:
    """What the measurement says about the guarantees, next to what was proved."""
    if not found["statements"]:
        return []
    lines = [f"  measured: {s['sentence']}" for s in found["statements"]]
    return [*lines, paint(f"    {found['about']}", "dim", color)]


def _identity(rows: Mapping[str, Any]) -> list[str]:
    out = []
    for key, what in (
        ("support_reference_only", "the reference gives mass to tokens that the candidate bans"),
        ("support_candidate_only", "the candidate gives mass to tokens that the reference bans"),
    ):
        if rows[key]:
            out.append(f"  support mismatch on {rows[key]} rows: {what}")
    return out


def _clause(clause: Mapping[str, Any], color: bool) -> list[str]:
    where = f" on {clause['slice']}" if clause["slice"] else ""
    lines = [
        f"  {paint(clause['verdict'], clause['verdict'], color)}  {paint(clause['name'], 'bold', color)}{where} -> {clause['severity']}: {_limit(clause)}"
    ]
    if clause["reason"]:
        lines.append(f"      {clause['reason']}")
    evidence, rows = clause["evidence"], []
    for key, name in (
        ("requests", "requests"),
        ("rows", "rows"),
        ("exceeding_rows", "exceeding rows"),
        ("exceeding_requests", "exceeding requests"),
        ("observed", "observed"),
    ):
        if evidence.get(key) is not None:
            name = evidence.get("observed_is") or name if key == "observed" else name
            rows.append(f"{name} {_number(evidence[key])}")
    if evidence.get("at_most") is not None:
        limit = decimal_up(Fraction(evidence["at_most"]), 4)
        rows.append(f"at most {limit} with confidence {clause['confidence']:.6g}")
    if rows:
        lines.append("      " + ", ".join(rows))
    quantiles = [f"{name} <= {_number(hi)}" for name, (_, hi) in clause["quantiles"].items()]
    if quantiles:
        lines.append(
            "      "
            + "  ".join(quantiles)
            + (f"  {_worst(clause)} {_number(clause['max']['value'])}" if clause["max"] else "")
        )
    lines += _witness(clause)
    return lines


def _worst(clause: Mapping[str, Any]) -> str:
    """What the worst value is: the largest one where only an upper limit makes it the worst."""
    return "max" if clause["limit"]["lower"] is None else "worst"


def _limit(clause: Mapping[str, Any]) -> str:
    return str(clause["text"]).split(":", 1)[-1].split("->")[0].strip()


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _witness(clause: Mapping[str, Any]) -> list[str]:
    worst = clause["max"]
    if not worst:
        return []
    text = f"      worst: request {worst['request']}"
    position = worst.get("position", worst.get("row"))
    text += "" if position is None else f", position {position}"
    if worst.get("token_text"):
        text += f", token {visible(worst['token_text'], spaces=True)!r}"
    if worst.get("context"):
        text += f", after {visible(worst['context']['before'][-24:])!r}"
    return [text]


def rows_table(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line a candidate: verdict, and each enforced clause's exceeding rows and quantiles."""
    rows = [("candidate", "verdict", "clause", "exceeding rows", "p50", "p99", "max")]
    for r in results:
        for c in r["measured"]["clauses"]:
            if c["verdict"] == "not_enforced":
                continue
            q, e = c["quantiles"], c["evidence"]
            rows.append(
                (
                    r["pair"]["candidate"], c["verdict"], c["name"], f"{e['exceeding_rows']}/{e['rows']}" if e["exceeding_rows"] is not None else "",
                    _number(q["p50"][1]) if q else "", _number(q["p99"][1]) if q else "", _number(c["max"]["value"]) if c["max"] else "",
                )
            )  # fmt: skip
    return table(rows, indent=2, right=frozenset((3, 4, 5, 6)))


def sentence(result: Mapping[str, Any]) -> str:
    """The verdict and the reason of the clause that decided it, in one line."""
    enforced = [c for c in result["measured"]["clauses"] if c["verdict"] != "not_enforced"]
    decisive = next((c for c in enforced if c["verdict"] == result["verdict"]), enforced[0] if enforced else None)
    return str(result["verdict"]) + (f", {decisive['name']}: {decisive['reason']}" if decisive else "")
