"""The answers of `measure --causes` and `--by-layer`: what drifts because of the format, the kernel and the run, and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kcverify.emit.causes import shown
from kcverify.output.style import paint, plural, table

FIGURES = (("kl", "KL"), ("tv", "TV"), ("logit_span", "span"))
NUMBERS = ("mean", "p99.9", "max")
MOST_UNITS = 20


def attribution(result: Mapping[str, Any], color: bool) -> list[str]:
    """Lines of both sections where the result has them, each after an empty line."""
    lines: list[str] = []
    if "causes" in result:
        lines += ["", *_causes(result["causes"], color)]
    if "by_layer" in result:
        lines += ["", *_layers(result["by_layer"], color)]
    return lines


def short(value: Any) -> str:
    """A number with three digits; a word (`inf`) as it is."""
    return f"{value:.3g}" if isinstance(value, float | int) else str(value)


def percent(share: float | None) -> str:
    """A share of one as a percentage with one digit, `-` where there is none."""
    return "-" if share is None else f"{100 * share:.1f} %"


def _figures(figures: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [short(figures[name][number]) for name, _ in FIGURES for number in NUMBERS]


def _causes(causes: Mapping[str, Any], color: bool) -> list[str]:
    head = f"three causes, {plural(causes['rows'], 'row')}, temperature {causes['temperature']:g}"
    head += ": mean over rows, 99.9 % quantile and largest of KL(p||q) in nats, TV and logit span"
    if not causes["rows"]:
        return [paint(head, "bold", color), "  no row was measured"]
    rows: list[Sequence[str]] = [("", *(title if n == "mean" else n for _, title in FIGURES for n in NUMBERS), "")]
    hidden = []
    for line in shown(causes):
        if line["figures"] is None:
            hidden.append(f"  {line['title']}: not observable, because {line['reason']}")
        else:
            rows.append((line["title"], *_figures(line["figures"]), line["state"]))
    lines = [paint(head, "bold", color), *table(rows, indent=2, right=frozenset(range(1, 10))), *hidden]
    lines += _noise(causes["noise"]) + _adding(causes["adding_up"])
    lines += [paint(f"  {found['text']}", "inconclusive", color) for found in causes["clauses_below_noise"]]
    return lines + [paint(f"  {note}", "dim", color) for note in causes["notes"]]


def _noise(noise: Mapping[str, Any]) -> list[str]:
    """One line that names the variations, with the largest logit span of each."""
    if not noise["observable"]:
        return []
    said = []
    for one in noise["variations"]:
        if not one["observable"]:
            said.append(f"{one['title']}: not run ({one['reason']})")
        elif one["bit_exact"]:
            said.append(f"{one['title']}: bit-exact")
        else:
            said.append(f"{one['title']}: span up to {short(one['figures']['logit_span']['max'])}")
    return ["  the reference against itself: " + "; ".join(said)]


def _adding(adding: Mapping[str, Any] | None) -> list[str]:
    if adding is None:
        return []
    lines = ["  sum of the parts' means over the whole's mean (run noise is no part):"]
    for name, title in FIGURES:
        ratio = adding[name]["ratio"]
        lines.append(f"    {title} {'-' if ratio is None else f'{ratio:.3f}'}: {adding[name]['rule']}")
    return lines


def _layers(layers: Mapping[str, Any], color: bool) -> list[str]:
    head = f"by layer, one swap at a time, {plural(layers['rows'], 'row')}, temperature {layers['temperature']:g}"
    lines = [paint(head, "bold", color)]
    if not layers["complete"] or not layers["rows"]:
        lines.append(
            paint("  INCOMPLETE: interrupted; figures are of the rows that every swap has seen", "fail", color)
        )
    if not layers["rows"]:
        return lines
    lines.append(f"  whole: KL mean {short(layers['whole']['kl_mean'])} nats, max {short(layers['whole']['kl_max'])}")
    if layers["bit_exact"]:
        return [*lines, "  bit-exact: all logits equal, nothing to attribute"]
    for level in layers["levels"]:
        added = level["additivity"]
        lines.append(f"  {level['title']}: the single swaps' KL sum to {percent(added)} of the whole")
        units = level["units"]
        rows = [
            (percent(u["share"]), u["name"], u["kind"] if level["name"] == "matrix" else "", short(u["kl_mean"]))
            for u in units[:MOST_UNITS]
        ]
        lines += table(rows, indent=4, right=frozenset({0, 3}))
        if len(units) > MOST_UNITS:
            rest = [u["share"] for u in units[MOST_UNITS:]]
            together = None if None in rest else sum(rest)
            lines.append(f"    {percent(together)}  in {len(rest)} more, each less than these (see --format json)")
    return lines
