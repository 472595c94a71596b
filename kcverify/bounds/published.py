"""Every lemma with a form in print: that form and ours at one effective span, the premises as the chain gives them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kcverify.bounds.graph import Fact, Node, Parameters, apply, corner_of, lifts, propagate
from kcverify.bounds.special import Effort
from kcverify.bounds.trust_region import Region
from kcverify.catalog.lemmas import ROWS
from kcverify.catalog.model import Lemma, Mode
from kcverify.catalog.quantities import BY_NAME, RHO
from kcverify.enclosure import value_up

HORIZON = 64
"""Tokens of the response at which the rows about whole responses are compared, where no horizon is given."""
_ONE = (Fraction(1), Fraction(1))


@dataclass(frozen=True)
class Compared:
    """A lemma with its published and its tight value, both rounded up, at the same premise."""

    lemma: Lemma
    premise: Fraction
    published: Fraction
    tight: Fraction


def setting(horizon: int, reward: Fraction) -> Parameters:
    """A response of `horizon` tokens, reward from 0 to `reward`, advantage in [-1, 1], score norm 1."""
    h, r = Fraction(horizon), reward
    box = {"horizon": (h, h), "reward_range": (r, r), "advantage": _ONE, "score_norm": _ONE}
    return Parameters(box, effort=Effort(run=True))


def region_of(span: Fraction, length: int, reward: Fraction) -> Region:
    """What an effective span (nat) says about an update of `length` tokens: the largest TV and KL of a token, and sums."""
    best = propagate([Fact(Node("effective_span", Mode.POINT), span)], Parameters({}))
    tv, kl = (best[Node(name, Mode.POINT)].value for name in ("tv", "kl_candidate_reference"))
    return Region(length, tv, kl, length * kl, length * tv, span, reward)


def compared(span: Fraction, horizon: int = HORIZON, reward: Fraction = _ONE[0]) -> list[Compared]:
    """All rows of one premise with a published form, in the order of the table.

    `span` is the effective span of a token, nat; the premise of each row is the strongest that follows from it.
    """
    given = setting(horizon, reward)
    best = propagate([Fact(Node("effective_span", Mode.POINT), span)], given)
    out = []
    for row in ROWS:
        if row.published is None or len(row.premises) != 1:
            continue
        source, target = lifts(row.name)[0]
        premise = best.get(Node(row.premises[0], source))
        corner = corner_of(row, given)
        derived = None if premise is None else apply(row, (premise,), target, given)
        if premise is None or derived is None or corner is None:
            continue
        at = {**dict(corner), RHO: Fraction(0), BY_NAME[row.premises[0]].symbol: premise.value}
        out.append(Compared(row, premise.value, value_up(row.published, at), derived.value))
    return out
