"""Concrete pairs of kernels: explicit logits at every step, and every quantity of the bound graph on them, enclosed."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from flint import arb

from kcverify.catalog.model import Mode
from kcverify.enclosure import ball
from kcverify.reference import metrics

_FAR = Fraction(1000)
_OF_LOGITS = ("logit_drift", "logit_span", "effective_span")
TOKEN_QUANTITIES = frozenset((*_OF_LOGITS, *metrics.TOKEN))
"""Quantities of one token that an instance evaluates."""


@dataclass(frozen=True)
class Step:
    """One context: exact logits of both sides over the same tokens; `lifted` are the tokens that gain mass."""

    reference: tuple[Fraction, ...]
    candidate: tuple[Fraction, ...]
    lifted: tuple[int, ...]

    @property
    def errors(self) -> tuple[Fraction, ...]:
        """Candidate minus reference logits."""
        return tuple(b - a for a, b in zip(self.reference, self.candidate, strict=True))


@dataclass(frozen=True)
class Instance:
    """Responses of `horizon` independent steps `good`; a share `bad_share` of them starts with a disjoint step.

    `reward` is the assumed range; the reward is high on responses with few lifted tokens.
    """

    good: Step
    temperature: Fraction
    horizon: int
    bad_share: Fraction = Fraction(0)

    @cached_property
    def bad(self) -> Step:
        """The step at which the two sides are all but disjoint."""
        far = _FAR * self.temperature
        return Step((Fraction(0), -far), (-far, Fraction(0)), (1,))

    @cached_property
    def p(self) -> list[arb]:
        """Reference distribution of a good step."""
        return metrics.softmax(self.good.reference, self.temperature)

    @cached_property
    def q(self) -> list[arb]:
        """Candidate distribution of a good step."""
        return metrics.softmax(self.good.candidate, self.temperature)

    @cached_property
    def token_share(self) -> Fraction:
        """Expected share of a response's tokens that are disjoint steps."""
        return self.bad_share / self.horizon

    def _exact(self, quantity: str, step: Step) -> Fraction:
        if quantity == "logit_drift":
            return max(abs(e) for e in step.errors)
        span = max(step.errors) - min(step.errors)
        return span if quantity == "logit_span" else span / self.temperature

    def token_value(self, quantity: str, mode: Mode, rho: Fraction) -> arb | Fraction:
        """A token quantity, outside the worst share `rho` or on average; exact for what is read off the logits."""
        clean = self.bad_share == 0 or (mode is Mode.POINT and self.token_share <= rho)
        if quantity in _OF_LOGITS:
            good, bad = (self._exact(quantity, step) for step in (self.good, self.bad))
            if clean:
                return good
            return (1 - self.token_share) * good + self.token_share * bad if mode is Mode.MEAN else max(good, bad)
        near = metrics.TOKEN[quantity](self.p, self.q)
        if clean:
            return near
        sides = [metrics.softmax(z, self.temperature) for z in (self.bad.reference, self.bad.candidate)]
        far = metrics.TOKEN[quantity](sides[0], sides[1])
        if mode is Mode.MEAN:
            share = ball(self.token_share)
            return (1 - share) * near + share * far
        return near.min(far) if quantity == "bc" else near.max(far)

    @cached_property
    def tv_seq(self) -> arb:
        """Total variation of whole responses: a ball from the value of a threshold test to the affinity bound."""
        n = self.horizon
        a, b = (metrics.total([side[i] for i in self.good.lifted]) for side in (self.p, self.q))
        if n == 1:
            clean = metrics.tv(self.p, self.q)
        else:
            m = n // 2 + 1
            low = _upper_tail(b, m, n) - _upper_tail(a, m, n)
            high = (1 - metrics.bc(self.p, self.q) ** (2 * n)).nonnegative_part().sqrt()
            clean = low.union(high)
        bad = ball(self.bad_share)
        return bad * (1 - 2 * ball(-_FAR).exp()).union(arb(1)) + (1 - bad) * clean

    def chi2_seq(self) -> arb:
        """Chi-squared of whole responses, `+inf` in effect where a share of them is disjoint."""
        one = (1 + metrics.chi2(self.p, self.q)) ** self.horizon
        return one - 1 if self.bad_share == 0 else arb("inf")


def _upper_tail(a: arb, m: int, n: int) -> arb:
    return arb.beta_lower(a, arb(m), arb(n - m + 1), regularized=True)


def two_point(span: Fraction, temperature: Fraction, theta_logit: Fraction | None = None, copies: int = 2) -> Step:
    """`copies` equal lifted tokens beside one other; the lifted set's logit against the rest is `theta_logit`.

    None is the choice that maximises total variation (the sides are mirror images). Two copies keep the arg-max in place.
    """
    gap = -span / 2 if theta_logit is None else theta_logit
    shift = _log_copies(copies) * temperature
    low = tuple(gap - shift for _ in range(copies))
    high = tuple(gap - shift + span / 2 for _ in range(copies))
    return Step((*low, Fraction(0)), (*high, -span / 2), tuple(range(copies)))


def _log_copies(copies: int) -> Fraction:
    """`ln copies` to nine digits: any rational will do, since the instance is evaluated as it stands."""
    return Fraction(0) if copies == 1 else Fraction(int((arb(copies).log() * 10**9).floor().unique_fmpz()), 10**9)
