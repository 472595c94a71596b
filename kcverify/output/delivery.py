"""The answers of the commands about promotion as text: gate, promote, status, history, rollback, rebuild."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from kcverify.output.style import paint, plural, table

ROWS = 1000
"""Events of a history that are printed at once, as soon as they are checked."""


def when(milliseconds: int) -> str:
    """A time in UTC to the second; as a number where the calendar has no such year."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"


def gate(found: Mapping[str, Any], color: bool) -> str:
    """The verdict of a stage with every clause."""
    decision = found["gate"]
    lines = [
        f"{paint(found['contract']['name'], 'bold', color)}: stage {decision['stage']}, {plural(decision['requests'], 'request')}",
        "",
        *_clauses(decision, color),
    ]
    lines += [f"  {reason}" for reason in decision["reasons"]]
    return "\n".join([*lines, "", f"gate: {paint(decision['verdict'], decision['verdict'], color)}"])


def _clauses(decision: Mapping[str, Any], color: bool) -> list[str]:
    rows = []
    for c in decision["clauses"]:
        where = f" on {c['slice']}" if c["slice"] is not None else ""
        word = c["verdict"] + ("" if c["decides"] else " (does not decide)")
        evidence = c["log_e_pass"] if c["log_e_pass_all"] is None else c["log_e_pass_all"]
        told = "" if evidence is None else f"ln e {_number(evidence)} of {_number(c['log_threshold'])}"
        rows.append((f"{c['clause']}{where}", c["severity"], word, plural(c["requests"], "request"), told))
    out = table(rows, indent=2)
    return [*(paint(line, c["verdict"], color) for line, c in zip(out, decision["clauses"], strict=True)), ""]


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float | int) else str(value)


def promote(found: Mapping[str, Any], color: bool) -> str:
    """What a promotion came to."""
    text = gate(found, color)
    if found["promoted"]:
        return f"{text}\npromoted from {found['from']} to {found['state']['position']}"
    return f"{text}\nnot promoted: the candidate stays in {found['from']}"


def status(found: Mapping[str, Any], color: bool) -> str:
    """Where the candidate is."""
    state = found["state"]
    lines = [
        f"{paint(state['contract'], 'bold', color)}: {paint(state['position'], 'bold', color)} since {when(state['stepped'])}",
        f"  route     {state['route']} since {when(state['route_since'])}"
        + (f", after {state['cause']}" if state["cause"] else ""),
        f"  next      {found['next'] or 'nothing: this is the last place'}",
        f"  evidence  {plural(found['requests'], 'request')} in run {state['run']}",
        f"  version   {state['version']}, {plural(state['seq'], 'event')}, head {state['seq']}:{state['hash']}",
    ]
    decided = ", ".join(f"{k} {v}" for k, v in sorted(state["decided"].items()))
    if decided:
        lines.append(f"  decided   {decided}")
    return "\n".join(lines)


def rollback(found: Mapping[str, Any], color: bool) -> str:
    """Where a rollback led."""
    return f"rolled back from {found['from']} to {found['state']['position']}\n" + status(found, color)


def history(found: Mapping[str, Any], color: bool) -> str:
    """Events, oldest first; the head of the store below its last ones."""
    rows = [(str(e["seq"]), when(e["at"]), e["kind"], _told(e), e["hash"][:12]) for e in found["events"]]
    end = [f"every hash holds; head {found['head']}"] if "head" in found else []
    return "\n".join([*table(rows, right=frozenset((0,))), *end])


def _told(event: Mapping[str, Any]) -> str:
    body = event["body"]
    if event["kind"] == "started":
        return f"{body['contract']} {body['digest'][:19]}"
    if event["kind"] in ("promoted", "rolled_back"):
        reason = f" ({body['reason']})" if body.get("reason") else ""
        return f"{body['from']} -> {body['to']}{reason}"
    if event["kind"] == "decided":
        return ", ".join(f"{k} {v}" for k, v in sorted(body["cells"].items()))
    return " ".join(str(body[k]) for k in ("severity", "clean", "reason") if body.get(k))


def rebuild(found: Mapping[str, Any], color: bool) -> str:
    """Whether the events give the state that was kept."""
    if found["equal"]:
        word = "the stored state is what the events give"
    else:
        word = "the stored state was NOT what the events give" + (": replaced" if found["repaired"] else "")
    return f"{plural(found['state']['seq'], 'event')}, every hash holds; {word}\n" + status(found, color)
