"""What the text says of causes and layers beside the figures."""

from __future__ import annotations

from typing import Any

from kcverify.emit.causes import shown, state
from kcverify.output.causes import attribution, percent, short

THREE = {"mean": 1.0, "p99.9": 2.0, "max": "inf"}
FIGURES = {"kl": THREE, "tv": THREE, "logit_span": THREE}
WHOLE: dict[str, Any] = {"rows": 10, "invalid": 0, "bit_exact_rows": 0, "bit_exact": False, "figures": FIGURES}


def part(name: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "title": name, "observable": True, "reason": ""} | WHOLE | changes


def hidden(name: str, reason: str) -> dict[str, Any]:
    return {"name": name, "title": name, "observable": False, "reason": reason}


NOISE = {"title": "run noise", "observable": False, "reason": "a file", "variations": []}
CAUSES: dict[str, Any] = {
    "rows": 10, "temperature": 1.0, "whole": WHOLE, "noise": NOISE, "adding_up": None, "clauses_below_noise": [],
    "notes": [], "parts": [part("format"), hidden("kernel", "unknown"), part("reference_kernel", bit_exact=True)],
}  # fmt: skip


def test_what_stands_beside_the_figures() -> None:
    assert state(WHOLE) == ""
    assert state(part("x", bit_exact=True, within_noise=True)) == "bit-exact: all logits equal"
    assert state(part("x", bit_exact_rows=3, within_noise=True)) == "3 of 10 rows bit-exact; within run noise"
    assert state(part("x", invalid=2)) == "2 rows invalid, taken as infinite"


def test_a_float32_reference_has_no_line_of_its_own() -> None:
    assert [line["title"] for line in shown(CAUSES)] == ["format", "kernel", "run noise", "whole"]
    inexact = CAUSES | {"parts": [part("format"), part("reference_kernel")]}
    assert [line["title"] for line in shown(inexact)] == ["format", "reference_kernel", "run noise", "whole"]


def test_what_is_not_observable_says_why_and_shows_no_number() -> None:
    text = "\n".join(attribution({"causes": CAUSES}, color=False))
    assert "kernel: not observable, because unknown" in text
    assert "run noise: not observable, because a file" in text
    assert "inf" in text
    assert attribution({}, color=False) == []


def test_nothing_measured_is_said() -> None:
    text = "\n".join(attribution({"causes": CAUSES | {"rows": 0}}, color=False))
    assert "no row was measured" in text
    layers = {"rows": 0, "complete": False, "temperature": 1.0, "bit_exact": False, "levels": [], "whole": {}}
    assert "INCOMPLETE" in "\n".join(attribution({"by_layer": layers}, color=False))


def test_long_levels_are_cut_and_counted() -> None:
    units = [{"name": f"m{i}", "kind": "MLP", "share": 0.04, "kl_mean": 1e-6} for i in range(25)]
    level = {"name": "matrix", "title": "by matrix", "additivity": 1.0, "units": units}
    layers = {
        "rows": 5, "complete": True, "temperature": 1.0, "bit_exact": False, "levels": [level],
        "whole": {"kl_mean": 1e-4, "kl_max": 2e-4},
    }  # fmt: skip
    text = "\n".join(attribution({"by_layer": layers}, color=False))
    assert "m19" in text
    assert "m20" not in text
    assert "20.0 %  in 5 more" in text


def test_numbers() -> None:
    assert (short(1.23456e-7), short("inf"), percent(None), percent(0.1234)) == ("1.23e-07", "inf", "-", "12.3 %")
