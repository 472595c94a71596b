"""The trust-region family: how far a surrogate objective may be from the true gain, one row each, published beside ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from flint import arb

from kcverify.enclosure import ball, precision, rational

BITS = 128


@dataclass(frozen=True)
class Region:
    """What is known of an update of `length` tokens, each None if it is not.

    `tv`: largest total variation of a token; `kl`: largest KL(rollout || trainer) of a token, nat; `kl_sum`, `tv_sum`:
    expected sums over a response; `span`: effective span of a token, nat; `reward_range`: range of the reward.
    """

    length: int
    tv: Fraction | None = None
    kl: Fraction | None = None
    kl_sum: Fraction | None = None
    tv_sum: Fraction | None = None
    span: Fraction | None = None
    reward_range: Fraction = Fraction(1)


@dataclass(frozen=True)
class Row:
    """One bound on |J(new) - J(rollout) - L(new)|: `body` times the constant `2 Rg` (ours) or `4` (published).

    `needs` names the fields of a Region; `body` is the bound without its constant. `published` is the constant of the
    literature, for rewards in [0, 1]; None for a bound that is our own.
    """

    name: str
    needs: tuple[str, ...]
    statement: str
    order: str
    body: Callable[[Region], arb]
    published: int | None = 4


def _one(x: arb) -> arb:
    return x.min(arb(1))


def _tv(r: Region) -> arb:
    return _one(ball(r.tv or Fraction(0)))


def _token_kl(r: Region) -> arb:
    return _one((ball(r.kl or Fraction(0)) / 2).sqrt())


def coupled(length: int, tv: Fraction) -> Fraction:
    """`sum_(t=1..n) min(1, (t-1) tv)`, exactly."""
    if tv == 0:
        return Fraction(0)
    m = min(length - 1, int(1 / tv))
    return tv * m * (m + 1) / 2 + (length - 1 - m)


def _roots(r: Region) -> arb:
    """`sum_(t=1..n) min(1, sqrt((t-1) kl/2))`."""
    k = (r.kl or Fraction(0)) / 2
    free = r.length - 1 if k == 0 else min(r.length - 1, int(1 / k))
    total = arb(0)
    for t in range(1, free + 1):
        total = total + arb(t).sqrt()
    return total * ball(k).sqrt() + (r.length - 1 - free)


def _prefixes(r: Region) -> arb:
    """`sum_(t=1..n) sqrt(1 - sech(s/4)^(2(t-1)))`."""
    x = 1 / (ball(r.span or Fraction(0)) / 4).cosh()
    power, total = arb(1), arb(0)
    for _ in range(r.length - 1):
        power = power * x * x
        total = total + (1 - power).nonnegative_part().sqrt()
    return total


def _sum(value: Fraction | None, *, kl: bool) -> arb:
    x = ball(value or Fraction(0))
    return _one((x / 2).sqrt() if kl else x)


ROWS: tuple[Row, ...] = (
    Row(
        "classical", ("tv",), "c/2 n (n-1) eps^2", "n^2",
        lambda r: ball(Fraction(r.length * (r.length - 1), 2)) * ball(r.tv or Fraction(0)) * ball(r.tv or Fraction(0)),
    ),
    Row(
        "coupling", ("tv",), "c min(1,eps) sum_t min(1,(t-1) eps)", "n^2, capped",
        lambda r: _tv(r) * ball(coupled(r.length, r.tv or Fraction(0))),
    ),
    Row(
        "pinsker_marginal_kl", ("kl",), "c min(1,sqrt(k/2)) S, S = sum_t min(1,sqrt((t-1)k/2))", "n^1.5",
        lambda r: _token_kl(r) * _roots(r),
    ),
    Row("pinsker_marginal_tv", ("tv", "kl"), "c min(1,eps) S", "n^1.5", lambda r: _tv(r) * _roots(r)),
    Row(
        "mixed_kl", ("kl", "kl_sum"), "c n min(1,sqrt(k/2)) min(1,sqrt(KL_seq/2))", "n",
        lambda r: r.length * _token_kl(r) * _sum(r.kl_sum, kl=True),
    ),
    Row(
        "mixed_tv", ("tv", "tv_sum"), "c n min(1,eps) min(1,TV_seq)", "n",
        lambda r: r.length * _tv(r) * _sum(r.tv_sum, kl=False),
    ),
    Row(
        "hellinger", ("tv", "span"), "c min(1,eps) sum_t sqrt(1 - sech(s/4)^(2(t-1)))", "n^1.5",
        lambda r: _tv(r) * _prefixes(r), published=None,
    ),
)  # fmt: skip
REFERENCE = Region(4096, Fraction(5, 1000), Fraction(1, 10_000), Fraction(1, 100), Fraction(5, 100))


def applies(row: Row, region: Region) -> bool:
    """Whether everything that the row needs is known."""
    return all(getattr(region, name) is not None for name in row.needs)


def tight(row: Row, region: Region) -> Fraction:
    """The bound with our constant `2 Rg`, rounded up.

    The gain is linear in the reward, so the midrange may be subtracted: what remains is at most `Rg/2`, which halves
    the constant 4 that is published for rewards in [0, 1] (rl.md; an adversarial search attains 0.9997 of it).
    """
    with precision(BITS):
        return rational(2 * ball(region.reward_range) * row.body(region), up=True)


def published(row: Row, region: Region) -> Fraction | None:
    """The bound with the constant that is in print, rounded up; None for our own rows."""
    if row.published is None:
        return None
    with precision(BITS):
        return rational(row.published * ball(region.reward_range) * row.body(region), up=True)


def adaptive(region: Region, tvs: Sequence[Fraction]) -> Fraction:
    """`c sum_t D_t min(1, (n-t) eps, sqrt((n-t) k/2))` from measured `D_t = E[TV_t]`, rounded up.

    Raises ValueError unless there is one `D_t` for each token.
    """
    if len(tvs) != region.length:
        raise ValueError(f"{len(tvs)} values for {region.length} tokens")
    with precision(BITS):
        total = arb(0)
        for t, d in enumerate(tvs, start=1):
            rest = arb(1)
            if region.tv is not None:
                rest = rest.min(ball((region.length - t) * region.tv))
            if region.kl is not None:
                rest = rest.min((ball((region.length - t) * region.kl) / 2).sqrt())
            total = total + ball(d) * rest
        return rational(2 * ball(region.reward_range) * total, up=True)


def unified(region: Region) -> tuple[str, Fraction] | None:
    """The smallest applicable bound and its name; None where nothing is known. Improvement is certified when `L` exceeds it."""
    found = [(tight(row, region), row.name) for row in ROWS if applies(row, region)]
    if not found:
        return None
    value, name = min(found)
    return name, value
