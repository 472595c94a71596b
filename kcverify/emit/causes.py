"""What the text and the HTML page say alike of `measure --causes`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def state(part: Mapping[str, Any]) -> str:
    """What is to be said of a measured step beside its figures."""
    said = []
    if part["bit_exact"]:
        said.append("bit-exact: all logits equal")
    elif part["bit_exact_rows"]:
        said.append(f"{part['bit_exact_rows']:,} of {part['rows']:,} rows bit-exact")
    if part.get("within_noise") and not part["bit_exact"]:
        said.append("within run noise")
    if part["invalid"]:
        said.append(f"{part['invalid']:,} rows invalid, taken as infinite")
    return "; ".join(said)


def shown(causes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Lines of the table: `title`, `figures` (None where not observable), `state`, `reason`; the whole comes last.

    A kernel error of the reference is left out where it is exactly zero, as it is for a float32 reference, and where
    it is not observable, which its run noise says already.
    """
    lines = []
    for part in causes["parts"]:
        if part["name"] == "reference_kernel" and (not part["observable"] or part["bit_exact"]):
            continue
        seen = part["observable"]
        lines.append(
            _line(part["title"], part["figures"] if seen else None, state(part) if seen else "", part["reason"])
        )
    noise = causes["noise"]
    exact = "bit-exact: all logits equal" if noise.get("bit_exact") else "noise floor"
    lines.append(_line(noise["title"], noise.get("floor"), exact if noise["observable"] else "", noise["reason"]))
    return [*lines, _line("whole", causes["whole"]["figures"], state(causes["whole"]), "")]


def _line(title: str, figures: Any, state: str, reason: str) -> dict[str, Any]:
    return {"title": title, "figures": figures, "state": state, "reason": reason}
