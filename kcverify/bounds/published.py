"""Every lemma with a form in print: that form and ours at one effective span, the premises as the chain gives them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kcverify.bounds.graph import Fact, Node, Parameters, apply, corner_of, lifts, propagate
from kcverify.catalog.lemmas import ROWS
from kcverify.catalog.model import Lemma, Mode
from kcverify.catalog.quantities import BY_NAME, RHO
from kcverify.enclosure import value_up

HORIZON = 64
"""Tokens of the response at which the rows about whole responses are compared."""
_ONE = (Fraction(1), Fraction(1))
SETTING = Parameters(
    {"horizon": (Fraction(HORIZON), Fraction(HORIZON)), "reward_range": _ONE, "advantage": _ONE, "score_norm": _ONE}
)
"""Reward in [0, 1], advantage in [-1, 1], score norm 1."""


@dataclass(frozen=True)
class Compared:
    """A lemma with its published and its tight value, both rounded up, at the same premise."""

    lemma: Lemma
    premise: Fraction
    published: Fraction
    tight: Fraction


def compared(span: Fraction) -> list[Compared]:
    """All rows of one premise with a published form, in the order of the table.

    `span` is the effective span of a token, nat; the premise of each row is the strongest that follows from it.
    """
    best = propagate([Fact(Node("effective_span", Mode.POINT), span)], SETTING)
    out = []
    for row in ROWS:
        if row.published is None or len(row.premises) != 1:
            continue
        source, target = lifts(row.name)[0]
        premise = best.get(Node(row.premises[0], source))
        corner = corner_of(row, SETTING)
        derived = None if premise is None else apply(row, (premise,), target, SETTING)
        if premise is None or derived is None or corner is None:
            continue
        at = {**dict(corner), RHO: Fraction(0), BY_NAME[row.premises[0]].symbol: premise.value}
        out.append(Compared(row, premise.value, value_up(row.published, at), derived.value))
    return out
