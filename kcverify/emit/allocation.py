"""Renders an allocation of formats, a map of drift and a chain from a kernel to the policy gradient as HTML pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from markupsafe import Markup

from kcverify.emit import plots, svg
from kcverify.emit.report import environment
from kcverify.exact import decimal_up, outward

_STYLES = {
    "pass": "pass", "fail": "fail", "inconclusive": "inconclusive", "yes": "fail", "no": "pass", "cannot tell": "inconclusive",
    "proved": "pass", "attested": "pass", "measured": "inconclusive", "declared": "not_enforced", "follows": "pass",
    "does not follow": "inconclusive",
}  # fmt: skip
_NAMED = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def real(value: object) -> float:
    """The number that JSON data stand for: `inf`, `nan` and None too."""
    if value is None:
        return math.nan
    return _NAMED[value] if isinstance(value, str) else float(value)  # type: ignore[arg-type]


def share(fraction: str) -> str:
    """A fraction as a percentage, rounded up."""
    return f"{decimal_up(100 * Fraction(fraction), 3)} %"


def _page(template: str, answer: Mapping[str, Any], **more: Any) -> str:
    pages = environment()
    pages.filters.update(real=real, outward=outward, share=share)
    return pages.get_template(template).render(**answer, **more, style=_STYLES)


def render_allocation(answer: Mapping[str, Any]) -> str:
    """HTML text of the answer of `allocate`; it loads nothing from anywhere and needs no script."""
    points = [
        plots.Point(
            real(p["cost"]), real(p["share"]), "chosen" if p["kind"] == "chosen" else "uniform" if p["kind"] == "uniform" else "front" if p["efficient"] else "other",
            f"{p['name']}: {svg.number(p['cost'])} {answer['cost']['unit']}, {svg.number(p['share'], 3)} of the limit",
            p["name"] if p["kind"] == "uniform" else "chosen" if p["kind"] == "chosen" else "",
        )
        for p in answer["pareto"]
    ]  # fmt: skip
    limit = (1.0, "the contract's limit")
    label = f"{answer['cost']['name']}, {answer['cost']['unit']}"
    picture = plots.scatter(
        "pareto", points, label, "largest share of a limit, held-out prompts", limit, "Cost against drift"
    )
    return _page("allocation.html.j2", answer, picture=picture, heat=_heat(answer))


def _heat(answer: Mapping[str, Any]) -> Markup:
    """Sensitivity of every module in every format, of the first budget."""
    units: Sequence[Mapping[str, Any]] = answer["units"]
    formats = [s["format"] for s in units[0]["sensitivity"]] if units else []
    values = {(u["name"], s["format"]): real(s["figures"][0]) for u in units for s in u["sensitivity"]}
    budget = answer["budgets"][0]
    title = f"{budget['figure']} where one module alone is in a format"
    return plots.shaded("sensitivity", formats, [u["name"] for u in units], values, budget["unit"], title)


def render_map(answer: Mapping[str, Any]) -> str:
    """HTML text of the answer of `map`; it loads nothing from anywhere and needs no script."""
    pictures = []
    kernels = [k["kernel"] for k in answer["kernels"]]
    for cut in answer["cuts"]:
        rows = [cell["name"] for cell in cut["cells"]]
        values = {
            (cell["name"], k): real(v) if v is not None else None
            for cell in cut["cells"]
            for k, v in cell["means"].items()
        }
        title = f"Mean {answer['metric']} {cut['title']}"
        pictures.append(plots.shaded(f"cut-{cut['name']}", kernels, rows, values, answer["unit"], title))
    whole = [plots.Bar(k["kernel"], real(k["mean"]), k["lower"], k["upper"]) for k in answer["kernels"]]
    drawn = plots.bars(
        "kernels", whole, answer["unit"], f"Mean {answer['metric']} by kernel, with intervals over requests"
    )
    return _page("map.html.j2", answer, picture=drawn, pictures=pictures)


def render_chain(answer: Mapping[str, Any]) -> str:
    """HTML text of the answer of `conformance chain`; it loads nothing from anywhere and needs no script."""
    links = [
        {
            "quantity": s["quantity"], "value": outward(s["value"], s["relation"] == "<="), "relation": s["relation"], "unit": s["unit"],
            "exception": "" if s["exception"] == "0" else share(s["exception"]),
            "lemma": s["by"], "detail": f"{s['evidence']}; with all before it {s['carried']}",
        }
        for s in answer["steps"] if s["value"] is not None
    ]  # fmt: skip
    drawn = svg.chain("chain-0", links, "unknown" if answer["exit_code"] else "proved") if links else Markup("")
    layers = [plots.Bar(r["layer"], real(r["largest"])) for r in answer["transfer"]["layers"]]
    picture = plots.bars("transfer", layers, "logits", "Largest logit span from one layer at its tolerance")
    return _page("kernel_chain.html.j2", answer, drawing=drawn, picture=picture)
