"""The answers of `allocate` and `map` for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kcverify.output.style import paint, plural, table

_MOST = 40
_STYLE = {
    "pass": "pass",
    "fail": "fail",
    "inconclusive": "inconclusive",
    "yes": "fail",
    "no": "pass",
    "cannot tell": "inconclusive",
}


def short(value: Any) -> str:
    """Three digits; a word as it is."""
    return value if isinstance(value, str) else "-" if value is None else f"{value:.3g}"


def amount(value: float, unit: str) -> str:
    """A cost with its unit."""
    return f"{value:,.0f} {unit}"


def percent(value: Any) -> str:
    """A share as a percentage."""
    return value if isinstance(value, str) else "-" if value is None else f"{100 * value:.3g} %"


def _formats(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {form}" for form, count in counts.items())


def allocation(answer: Mapping[str, Any], color: bool) -> str:
    """Budgets, attempts, the comparison with uniform formats, the assignment, the table of costs."""
    data, cost = answer["data"], answer["cost"]
    head = f"{answer['contract']['name']} {answer['contract']['version']}: formats for {answer['model']}, {len(answer['units'])} modules ({answer['level']})"
    lines = [
        f"{paint(head, 'bold', color)}: {paint(answer['verdict'], _STYLE[answer['verdict']], color)}",
        f"  reference {answer['reference']}, temperature {answer['temperature']:g}; {data['calibration']} calibration and "
        f"{data['held_out']} held-out requests of {data['source']}, up to {data['window']} tokens",
        f"  cost: {cost['about']}",
    ]
    for budget in answer["budgets"]:
        bound = " (binding)" if budget["clause"] == answer["binding"] else ""
        lines.append(
            f"  budget: {budget['text']}: {budget['figure']} <= {budget['limit']:g} {budget['unit']}, {budget['adds']}{bound}"
        )
    lines += ["", paint("attempts", "bold", color)]
    lines += [f"  {i}. {amount(a['cost'], cost['unit'])}: {a['said']}" for i, a in enumerate(answer["attempts"], 1)]
    lines += [f"  stopped: {answer['stopped']}", ""]
    lines += _chosen(answer, color)
    lines += _points(answer, color)
    return "\n".join([*lines, *(paint(f"  note: {note}", "dim", color) for note in answer["notes"])])


def _chosen(answer: Mapping[str, Any], color: bool) -> list[str]:
    chosen, gain, unit = answer["chosen"], answer["gain"], answer["cost"]["unit"]
    if chosen is None:
        return [
            paint("nothing meets the contract: no assignment of these formats, and no uniform one", "fail", color),
            "",
        ]
    name = "the cheapest assignment" if chosen["name"] in ("allocated", "equal cost") else f"uniform {chosen['name']}"
    lines = [paint(f"{name}: {amount(chosen['cost'], unit)}, {gain['sentence']}", "bold", color)]
    for clause in chosen["clauses"]:
        where = f" on {clause['slice']}" if clause["slice"] else ""
        lines.append(
            f"  {paint(clause['verdict'], clause['verdict'], color)}  {clause['text']}{where}: {clause['reason']}"
        )
    both = gain["equal_cost_shares"]
    if both is not None:
        same = both["allocated"] == both["uniform"]
        said = "a tie" if same else f"{percent(both['allocated'])} of the limit against {percent(both['uniform'])}"
        lines.append(f"  at the cost of {gain['best_uniform']}: {said}")
    groups: dict[str, list[str]] = {}
    for one in answer["units"]:
        groups.setdefault(one["format"], []).append(one["name"])
    most = max(groups, key=lambda form: len(groups[form]))
    for form, names in groups.items():
        if form == most and len(groups) > 1:
            lines.append(f"  {form}: the other {plural(len(names), 'module')}")
        else:
            shown = ", ".join(names[:_MOST]) + (f" and {len(names) - _MOST} more" if len(names) > _MOST else "")
            lines.append(f"  {form}: {shown if len(groups) > 1 else 'all modules'}")
    return [*lines, ""]


def _points(answer: Mapping[str, Any], color: bool) -> list[str]:
    unit = answer["cost"]["unit"]
    heads = [f"{b['figure']} ({b['clause']})" for b in answer["budgets"]]
    rows: list[Sequence[str]] = [(f"cost, {unit}", *heads, "of limit", "", "", "formats")]
    for p in answer["pareto"]:
        rows.append(
            (
                f"{p['cost']:,.0f}", *(short(f) for f in p["figures"]), percent(p["share"]), "*" if p["efficient"] else "",
                p["kind"], _formats(p["formats"]),
            )
        )  # fmt: skip
    right = frozenset(range(len(heads) + 2))
    title = "cost against drift, measured on the held-out prompts (* no other point is as cheap and nearer)"
    return [paint(title, "bold", color), *table(rows, indent=2, right=right)]


def drift_map(answer: Mapping[str, Any], color: bool) -> str:
    """Drift by kernel, then cut by slice, position, confidence and layer, and the question of concentration."""
    data, metric, unit = answer["data"], answer["metric"], answer["unit"]
    measure = f"mean {metric}{', ' + unit if unit else ''}"
    lines = [
        paint(
            f"{measure} against {answer['reference']}, {data['requests']} requests, {data['rows']} rows of {data['source']}",
            "bold",
            color,
        ),
    ]
    rows: list[Sequence[str]] = [
        ("kernel", "mean", f"interval ({answer['interval']['level']:g} %)", "largest", "rows without a value")
    ]
    rows += [
        (
            k["kernel"],
            short(k["mean"]),
            f"[{short(k['lower'])}, {short(k['upper'])}]",
            short(k["largest"]),
            str(k["invalid"]),
        )
        for k in answer["kernels"]
    ]
    lines += table(rows, indent=2)
    kernels = [k["kernel"] for k in answer["kernels"]]
    for cut in answer["cuts"]:
        lines += ["", paint(cut["title"], "bold", color)]
        if not cut["cells"]:
            lines.append(f"  {cut['empty']}")
            continue
        rows = [("", "rows", *kernels)]
        rows += [
            (c["name"], "" if c["rows"] is None else str(c["rows"]), *(short(c["means"][k]) for k in kernels))
            for c in cut["cells"]
        ]
        lines += table(rows, indent=2, right=frozenset(range(1, len(kernels) + 2)))
    lines += ["", *_concentration(answer, color)]
    return "\n".join([*lines, *(paint(f"  note: {note}", "dim", color) for note in answer["notes"])])


def _concentration(answer: Mapping[str, Any], color: bool) -> list[str]:
    how = answer["interval"]
    title = f"is drift concentrated on the named slices? (mean on the slice more than {how['factor']:g} times that of the rest)"
    if not answer["concentration"]:
        return [paint(title, "bold", color), "  no slice is named: give a contract with slices"]
    rows = [("  slice", "kernel", "ratio", f"interval ({how['family']})", "requests", "answer")]
    for q in answer["concentration"]:
        ends = "-" if q["lower"] is None else f"[{short(q['lower'])}, {short(q['upper'])}]"
        counts = f"{q['requests_inside']} / {q['requests_outside']}"
        word = paint(q["answer"], _STYLE[q["answer"]], color) + (f": {q['reason']}" if q["reason"] else "")
        rows.append((f"  {q['slice']}", q["kernel"], short(q["ratio"]), ends, counts, word))
    return [paint(title, "bold", color), *table(rows), f"  {how['method']}"]
