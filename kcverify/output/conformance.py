"""The answers of `kcverify conformance` for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kcverify.exact import outward
from kcverify.output.style import paint, plural, table

_STYLE = {
    "within_tolerance": "pass", "violation": "fail", "under_specified": "fail", "inconclusive": "inconclusive",
    "error": "fail", "warning": "inconclusive", "note": "dim",
}  # fmt: skip
_SHOWN = 12


def number(value: Any) -> str:
    """A reading: three digits, `not finite` for none."""
    return "not finite" if value is None else f"{value:.3g}"


def limit(value: Any) -> str:
    """A tolerance: three digits, `none` where its formula says nothing."""
    return "none" if value is None else f"{value:.3g}"


def _reading(value: Any) -> str:
    """Four digits; a word (`inf`) as it is."""
    return value if isinstance(value, str) else f"{value:.4g}"


def verdict(word: str, color: bool) -> str:
    """The word in its colour."""
    return paint(word, _STYLE.get(word, ""), color)


def run(found: Mapping[str, Any], color: bool) -> str:
    """One kernel under one contract."""
    head = found["contract"]
    title = f"{head['name']} {head['version']} ({found['class']}) on {found['kernel']}"
    lines = [f"{paint(title, 'bold', color)}: {verdict(found['verdict'], color)}"]
    rows = [("  reading", "measured", "tolerance", "times", "")]
    order = sorted(found["readings"], key=lambda r: r["verdict"] == "within_tolerance")
    rows += [
        (f"  {r['name']}", number(r["value"]), limit(r["tolerance"]["value"]), str(r["count"]), r["verdict"])
        for r in order[:_SHOWN]
    ]
    lines += table(rows) if order else []
    if len(order) > _SHOWN:
        lines.append(f"  and {plural(len(order) - _SHOWN, 'reading')} more, all within tolerance or in --format json")
    lines += _derivation(found)
    lines += _sampled(found)
    for one in found["signatures"]:
        word = {True: "seen", False: "not seen", None: "does not apply"}[one["seen"]]
        lines.append(f"  signature {one['signature']} -> {one['severity']}: {word} ({one['evidence']})")
    if found["raises"]:
        lines.append(f"  raises {found['raises']}")
    for state in found["calibration"]:
        lines.append(f"  calibration: {state['state']} kernel {state['kernel']}: {state['verdict']}")
    lines += findings(found["findings"], color)
    lines += [paint(f"  note: {text}", "dim", color) for text in found["notes"]]
    return "\n".join(lines)


def _derivation(found: Mapping[str, Any]) -> list[str]:
    worst = found["worst"]
    if worst is None:
        return []
    where = f": {worst['where']}" if worst["where"] else ""
    return [f"  worst: {worst['name']}{where}", *(f"    {line}" for line in worst["tolerance"]["lines"])]


def _sampled(found: Mapping[str, Any]) -> list[str]:
    """Draws made, and the confidence that they reach."""
    e = found["evidence"]
    if not e or not e["asked"]:
        return []
    said = f"  {plural(e['draws'], 'draw')} that tell something, {e['asked']} are needed: "
    if not e["met"]:
        return [f"{said}{e['reached']:.1%} reached of a confidence of {e['confidence']:.4g}"]
    if found["verdict"] != "within_tolerance":
        return [f"{said}enough for a confidence of {e['confidence']:.4g}"]
    return [f"{said}at confidence {e['confidence']:.4g}, less than {e['share']:.2%} of such draws exceed the tolerance"]


def traps(found: Mapping[str, Any], color: bool) -> str:
    """The catalogue of traps: expected and found."""
    rows = [("trap", "contract", "kernel", "expected", "found", "")]
    for row in found["traps"]:
        word = {True: "as expected", False: "NOT AS EXPECTED", None: row["not_here"] or "nothing is claimed here"}[
            row["as_expected"]
        ]
        rows.append((row["about"], row["contract"], row["kernel"], row["expected"], row["found"], word))
    bad = sum(row["as_expected"] is False for row in found["traps"])
    absent = sum(bool(row["not_here"]) for row in found["traps"])
    end = f"{plural(len(found['traps']), 'trap')}, {bad} not as expected, {absent} not at hand here"
    return "\n".join([*table(rows), "", paint(end, "fail" if bad else "pass", color)])


def findings(rows: Sequence[Mapping[str, Any]], color: bool) -> list[str]:
    """Findings with their hints."""
    lines = []
    for row in rows:
        label = paint(f"{row['severity']}[{row['code']} {row['slug']}]", _STYLE[row["severity"]], color)
        lines += [f"  {label}: {row['message']}", f"    hint: {row['hint']}"]
    return lines


def calibration(found: Mapping[str, Any], color: bool) -> str:
    """The matrix of the twelve classes: each state in an ordinary test and under the contract."""
    rows = [("class", "", *(f"{state}: ordinary / contract" for state in ("baseline", "bad", "good")), "")]
    for row in found["classes"]:
        cells = [f"{s['ordinary']} / {s['verdict']}" for s in row["states"]]
        rows.append((row["class"], row["title"], *cells, "told apart" if row["calibrated"] else "UNDER-SPECIFIED"))
    bad = [row["class"] for row in found["classes"] if not row["calibrated"]]
    end = (
        f"{', '.join(bad)}: the contract does not tell its kernels apart"
        if bad
        else "every class tells its kernels apart"
    )
    return "\n".join([*table(rows), "", paint(end, "fail" if bad else "pass", color)])


def survey(found: Mapping[str, Any], color: bool) -> str:
    """What the shipped kernels do under every class that can be about them."""
    faults = [r for r in found["runs"] if r["verdict"] != "within_tolerance"]
    lines = [paint("kernels that leave their declaration", "bold", color)] if faults else []
    for row in faults:
        worst = row["worst"]
        measured = (
            ""
            if worst is None
            else f"{worst['name']}: {number(worst['value'])} against {limit(worst['tolerance']['value'])}"
        )
        said = row["findings"][0]["message"] if row["findings"] else measured
        lines.append(f"  {row['kernel']}  {row['class']}  {verdict(row['verdict'], color)}  {said}")
    lines += [paint(f"  not here: {row['kernel']}: {row['reason']}", "dim", color) for row in found["not_here"]]
    machine = found["machine"]
    lines.append(
        f"{plural(len(found['runs']), 'check')}, {len(faults)} outside; torch {machine['torch']}, {machine['processor']} "
        f"({', '.join(machine['features']) or 'no features of note'})"
    )
    return "\n".join(lines)


def kernels(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table of shipped kernels."""
    head = ("kernel", "operation", "formats", "classes", "")
    return "\n".join(
        table([head, *((r["kernel"], r["operation"], r["formats"], ", ".join(r["classes"]), r["note"]) for r in rows)])
    )


def entries(found: Mapping[str, Any], color: bool) -> str:
    """Two entries of the corpus side by side."""
    lines = [paint(f"{found['kernel']} under {found['contract']}", "bold", color)]
    rows = [("  ", "a", "b")]
    rows += [(f"  {r['name']}", _side(r["a"]), _side(r["b"])) for r in found["differences"]]
    lines += table(rows) if found["differences"] else ["  the same machine, tolerance and verdict"]
    return "\n".join([*lines, "same verdict" if found["same_verdict"] else paint("another verdict", "fail", color)])


def _side(value: Any) -> str:
    """A value of an entry in a cell; `-` where it has none."""
    if isinstance(value, list):
        return ", ".join(str(one) for one in value) or "-"
    return "-" if value is None else str(value)


def logits(found: Mapping[str, Any], follows: str, color: bool) -> str:
    """Attested bound of the head with its derivation, the measurement beside it, and what follows from the bound."""
    bound, seen = found["attested"], found["measured"]
    loose = "" if found["looseness"] is None else f"; the bound is {found['looseness']:.3g} times that"
    return "\n".join(
        [
            paint(f"{found['reference']} against {found['candidate']}", "bold", color),
            f"  attested: logit_drift <= {outward(bound['logit_drift'], True)} logits ({bound['about']})",
            *(f"    {line}" for line in bound["lines"]),
            f"  measured: {_reading(seen['head'])} by the head alone, {_reading(seen['whole'])} by the whole model ({seen['about']}){loose}",
            "",
            paint("what follows from the attested drift of the head; the layers below it are not in it", "bold", color),
            follows,
        ]
    )
