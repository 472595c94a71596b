"""The answer of `conformance chain` for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from kcverify.exact import decimal_up, outward
from kcverify.output.allocation import short
from kcverify.output.style import paint, table

_MOST = 8


def _bound(step: Mapping[str, Any], key: str = "value") -> str:
    value = step[key]
    if value is None:
        return "none"
    return f"{step['relation']} {outward(value, step['relation'] == '<=')}{' ' + step['unit'] if step['unit'] else ''}"


def text(answer: Mapping[str, Any], color: bool) -> str:
    """Steps with their evidence, what the contract asks and whether it follows, the layers that move the logits most."""
    kernel, contract, data = answer["kernel_contract"], answer["contract"], answer["data"]
    title = f"{kernel['name']} {kernel['version']} -> {contract['name']} {contract['version']}"
    lines = [
        f"{paint(title, 'bold', color)}: {answer['model']}, {answer['candidate']} against float32",
        f"  {kernel['declared']}; measured on {data['requests']} requests, {data['rows']} rows of {data['source']}",
        "",
    ]
    rows: list[Sequence[str]] = [("  quantity", "bound", "except", "if none exceeds", "evidence", "carries", "by")]
    for s in answer["steps"]:
        share = "" if s["exception"] == "0" or s["value"] is None else percent(s["exception"])
        loose = "" if s["without_exception"] is None else outward(s["without_exception"], s["relation"] == "<=")
        rows.append(
            (
                f"  {s['quantity']}",
                _bound(s),
                share,
                loose,
                s["evidence"],
                s["carried"],
                s["by"] if s["value"] is not None else s["detail"],
            )
        )
    lines += table(rows)
    lines += ["", paint(f"what {contract['name']} asks (evidence: {answer['evidence']})", "bold", color)]
    if not answer["asked"]:
        lines.append("  nothing that the chain speaks about")
    for a in answer["asked"]:
        lines.append(_asked(a, color))
    lines += ["", *_layers(answer, color)]
    lines += [paint(f"  note: {note}", "dim", color) for note in answer["notes"]]
    return "\n".join(lines)


def percent(share: str) -> str:
    """A fraction as a percentage, rounded up."""
    return f"{decimal_up(100 * Fraction(share), 3)} %"


def _asked(a: Mapping[str, Any], color: bool) -> str:
    word = paint("follows", "pass", color) if a["follows"] else paint("does not follow", "inconclusive", color)
    kind = "guarantee" if a["guarantee"] else "clause"
    got = (
        ""
        if a["bound"] is None
        else f"; the chain gives {outward(a['bound'], a['upper'])}"
        + (f" except {a['exception']}" if a["exception"] else "")
    )
    loose = (
        ""
        if a["without_exception"] is None or a["without_exception"] == a["bound"]
        else f", {outward(a['without_exception'], a['upper'])} if no token exceeds"
    )
    return f"  {word}: {kind} {a['text']}{got}{loose}{': ' + a['reason'] if a['reason'] else ''}"


def _layers(answer: Mapping[str, Any], color: bool) -> list[str]:
    found = answer["transfer"]
    head = "one layer alone at its whole tolerance, random signs, and the worst for a pair in the last one: logit span"
    order = sorted(found["layers"], key=lambda r: -r["largest"] if isinstance(r["largest"], float) else float("-inf"))
    rows: list[Sequence[str]] = [("  layer", "tolerance", "largest", "median", "per unit", "worst at")]
    rows += [
        (f"  {r['layer']}", short(r["tolerance"]), short(r["largest"]), short(r["median"]), short(r["per_unit"]), f"{r['request']}, position {r['position']}")
        for r in order[:_MOST]
    ]  # fmt: skip
    whole = f"  all together: largest {short(found['largest'])} at {found['request']}, position {found['position']}; median {short(found['median'])}; "
    whole += f"the shipped kernels: {short(found['shipped_kernels'])}"
    worst = found["extremal"]
    if worst is not None:
        reached = " to ".join(short(worst["reached"][end]) for end in ("least", "most"))
        said = f"  {worst['layer']}: {short(worst['random'])} with random signs, {short(worst['largest'])} with the worst for a pair, "
        whole = f"{said}which reach {reached} of their dual norm\n{whole}"
    more = [f"  and {len(order) - _MOST} more in --format json and the page"] if len(order) > _MOST else []
    return [paint(head, "bold", color), *table(rows), *more, whole]
