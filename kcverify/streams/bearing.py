"""What a finding means for the numbers: which it voids, and which stay without the rows that it is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kcverify.streams.finding import Finding

ROWS, LISTS, SAMPLED = "rows", "lists", "sampled"
FAMILIES = (ROWS, LISTS, SAMPLED)
"""Numbers from whole rows, from lists of most probable tokens, from sampled tokens alone."""

FEW = 0.01
"""Share of a family's rows that may be left out: what is left of more is a selection, and no sample of the traffic."""


@dataclass(frozen=True)
class Bearing:
    """`voids`: families whose numbers mean nothing after the finding, however rare it is.

    `most`: the share of a family's rows that the finding may be about (its `left_out`) before it voids that family too:
    0 voids it with the first one, 1 never.
    """

    voids: tuple[str, ...] = ()
    most: float = 1.0


ALL = Bearing(FAMILIES)
"""The sides scored different things, or by different policies."""

SOME = Bearing(most=FEW)
"""A few rows have no number: they are left out and counted."""

TOUCHED = Bearing(most=0.0)
"""Numbers of a kind are broken: of that kind none is trusted."""

OF_SAMPLED = Bearing((SAMPLED,))
NONE = Bearing()
"""It says something else than that numbers are wrong."""


def voided(found: Iterable[Finding], bearings: Mapping[str, Bearing], kept: Mapping[str, int]) -> dict[str, list[str]]:
    """Families whose numbers are void, each with the findings that void it. `kept`: rows of each family that count."""
    out: dict[str, list[str]] = {}
    for finding in found:
        bearing = bearings.get(finding.slug, NONE)
        for family in FAMILIES:
            gone = finding.left_out.get(family, 0)
            many = gone > bearing.most * (gone + kept.get(family, 0))
            if family in bearing.voids or family in finding.voids or many:
                out.setdefault(family, []).append(finding.slug)
    return {family: list(dict.fromkeys(slugs)) for family, slugs in out.items()}


def parted(numbers: Mapping[str, Any], void: Mapping[str, Any]) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The numbers that stand, and those that findings explain; None for none of them."""
    if not void:
        return dict(numbers), None
    standing, rest = _of(numbers, set(FAMILIES) - set(void)), _of(numbers, set(void))
    return (standing if standing["table"] or standing["bounds"] else None), rest


def _of(numbers: Mapping[str, Any], families: set[str]) -> dict[str, Any]:
    return {
        "table": numbers["table"] if ROWS in families else [],
        "bounds": [part for part in numbers["bounds"] if part["family"] in families],
        "notes": numbers["notes"],
    }
