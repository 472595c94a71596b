"""Chains for certificates: a search over the rules of the kernel, and the steps with the one value that it accepts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import cache
from itertools import combinations, product
from types import SimpleNamespace
from typing import Any

from kcverify.bounds.graph import (
    Fact,
    Node,
    Parameters,
    apply,
    exceptions,
    joint_exception,
    steps,
    stronger,
    usable,
)
from kcverify.bounds.optimal_recheck import cells_for, coarse_upper, composed_upper
from kcverify.catalog.lemmas import BY_NAME as LEMMAS
from kcverify.catalog.model import Lemma, Mode
from kcverify.catalog.quantities import BY_NAME
from kcverify.elaborate.contract import Clause, Contract
from kcverify.prove import kernel
from kcverify.prove.corner import counted, piece_parameters
from kcverify.prove.obligations import Atom, Obligation, Piece, atoms

# Lemma of the catalogue -> rule of the kernel. A lemma is here or in WITHOUT_RULE.
RULE_OF: dict[str, str] = {
    "span_of_drift": "double", "effective_span": "over_temperature", "log_ratio_of_span": "same", "pass_rate_of_tv": "same",
    "trimmed_of_span": "same", "topk_of_margin": "same", "trimmed_effective_span": "over_temperature",
    "ratio_above_of_span": "exp", "ratio_above_of_log_ratio": "exp", "gap_of_span": "exp", "gap_of_log_ratio": "exp",
    "ratio_below_of_span": "exp_below", "ratio_below_of_log_ratio": "exp_below", "tv_of_span": "tanh_quarter",
    "tv_of_log_ratio": "tanh_half", "tv_of_trimmed_span": "tanh_kept", "tv_of_span_confident": "confident",
    "bc_of_span": "sech_quarter", "chi2_of_span": "sinh_half", "log_ratio_of_ratio": "ln_ratio", "kl_of_ratio_above": "ln_above",
    "gap_of_ratio": "larger", "tv_of_ratio": "tv_ratio", "kl_of_ratio_forward": "kl_ratio_f", "kl_of_ratio_reverse": "kl_ratio_r",
    "chi2_of_ratio": "chi2_ratio", "entropy_of_tv": "entropy", "ece_of_tv": "calibration",
    "tv_of_bc": "le_cam", "seq_tv_of_bc": "le_cam", "tv_of_chi2": "chi2_root", "seq_tv_of_chi2": "chi2_root",
    "exceedance_mix_tv": "mix", "exceedance_mix_ratio_below": "mix", "seq_tv_union": "union", "seq_affinity": "affinity",
    "seq_log_ratio": "binomial", "seq_bc_product": "power", "seq_chi2_product": "chi2_power", "seq_tv_expected": "sum",
    "ess_of_span": "ess_span", "ess_of_chi2": "ess_chi2", "reward_of_tv": "reward", "reward_of_chi2": "reward_chi2",
    "pg_bias_of_tv": "gradient", "pg_bias_of_tokens": "gradient_tokens", "clip_share_of_gap": "clip", "seq_tv_optimal": "optimal",
    "bc_of_tv": "bc_tv", "nll_max": "nll", "nll_mean": "nll", "seq_ratio_gap": "gap_power", "pg_bias_of_ratio": "gradient_gap",
    "disagreement_of_changes": "same", "flips_of_disagreement": "same", "nll_floor": "nll_floor",
    "perplexity_of_ratio_above": "perplexity_above", "perplexity_of_ratio_below": "perplexity_below", "seq_tv_closed": "closed", "tis_bias_of_ratio": "truncated_gap", "tis_bias_of_tv": "truncated_tv",
    "clip_room_above_of_gap": "room_above", "clip_room_below_of_gap": "room_below",
} | {
    f"{lemma}_{way}": rule
    for way in ("forward", "reverse")
    for lemma, rule in {
        "kl_of_span": "kl_span", "kl_of_log_ratio": "kl_log_ratio", "pinsker": "pinsker", "bc_of_kl": "bc_kl", "bretagnolle_huber": "bretagnolle_huber",
        "seq_kl_chain": "chain", "seq_pinsker": "pinsker", "seq_bretagnolle_huber": "bretagnolle_huber",
    }.items()
} | {name: "mean" for name in LEMMAS if name.startswith("mean_of_max_")}  # fmt: skip
WITHOUT_RULE: dict[str, str] = {}
"""Lemmas that no certificate uses, each with its reason."""


LONGEST = {"seq_tv_optimal": 1 << 17, "seq_tv_closed": 512, "seq_log_ratio": 1 << 17}
"""Tokens up to which the checker repeats a sum or a recursion."""
ONE_GRID = 512
OPTIMAL, CLOSED = "seq_tv_optimal", "seq_tv_closed"


class NotCertifiedError(Exception):
    """A verdict that no certificate can carry; the text is the reason."""


def cells_of(horizon: int) -> int:
    """Cells per span of the coarse grid: as fine as the prover's own where that takes half a second."""
    return 64 if horizon <= 24 else cells_for(horizon)


@cache
def coarse(span: Fraction, horizon: int) -> Fraction:
    """The integer recursion's bound, kept for the claims of one contract that share it; composed of blocks beyond 512 tokens."""
    return coarse_upper(span, horizon, cells_of(horizon)) if horizon <= ONE_GRID else composed_upper(span, horizon)


def optimal_value(p: Any, v: Fraction, u: Fraction) -> Fraction:
    """The optimal sequence bound on the coarse integer grid, rounded up to 12 digits, with the exceptions' share."""
    horizon: int = p.horizon
    share: Fraction = horizon * p.rho
    kernel.need(horizon <= LONGEST[OPTIMAL], f"the coarse grid is for at most {LONGEST[OPTIMAL]} tokens")
    value = coarse(u, horizon) if 0 < u <= 64 else Fraction(u > 0)
    return min(Fraction(1), share + Fraction(-(-value.numerator * 10**12 // value.denominator), 10**12))


EXTRA = {"optimal": ("P:effective_span>tv_seq", optimal_value)}


def number(x: Fraction) -> str:
    """An exact number as text: a decimal where it ends and is not longer than the fraction."""
    rest, twos, fives = x.denominator, 0, 0
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    if rest > 1:
        return str(x)
    k = max(twos, fives)
    digits = tuple(int(d) for d in str(abs(x.numerator) * 10**k // x.denominator))
    decimal = str(Decimal((int(x < 0), digits, -k)))
    return decimal if len(decimal) <= len(str(x)) + 2 else str(x)


def rounded(x: Fraction, *, up: bool) -> Fraction:
    """The nearest number of `kernel.DIGITS` significant digits on one side of `x >= 0`."""
    if x == 0:
        return x
    unit = Fraction(10) ** ((Decimal(x.numerator) / Decimal(x.denominator)).adjusted() - kernel.DIGITS + 1)
    return unit * (-(-x.numerator * unit.denominator // (x.denominator * unit.numerator)) if up else x // unit)


def name_of(node: Node) -> str:
    """A quantity as the kernel writes it: with its grade where it has one."""
    return f"{node.quantity}@{number(node.grade)}" if BY_NAME[node.quantity].graded else node.quantity


def is_known(node: Node) -> bool:
    """Whether the kernel speaks about a quantity."""
    return node.quantity + "@" * BY_NAME[node.quantity].graded in kernel.TOKEN | kernel.RESPONSE


@dataclass(frozen=True)
class Line(Fact):
    """A fact whose limit is a line in the temperature: of a clause, or with `weights` a mixture of its premises."""

    constant: Fraction = Fraction(0)
    slope: Fraction = Fraction(0)
    weights: tuple[Fraction, ...] = ()


def lines(clauses: Iterable[Clause], piece: Piece) -> list[Line]:
    """The clauses' usable limits on a piece of temperatures."""
    out = []
    for a in (a for c in clauses if c.argument("clip") is None for a in atoms(c)):
        if a.upper is BY_NAME[a.node.quantity].upper and is_known(a.node):
            weakest = (max if a.upper else min)(a.at(piece.low), a.at(piece.high))
            out.append(Line(a.node, weakest, None, (), a.clause, a.constant, a.slope))
    return out


def mixtures(found: list[Line], goals: Iterable[Atom], piece: Piece) -> Iterator[Line]:
    """Convex combinations of two limits of one quantity: through the origin, level, or below a claim at both ends."""
    for x, y in combinations(found, 2):
        if replace(x.node, rho=y.node.rho) != y.node or x.slope == y.slope:
            continue
        wanted = [y.constant / (y.constant - x.constant)] if x.constant != y.constant else []
        wanted.append(y.slope / (y.slope - x.slope))
        for g in (g for g in goals if g.node.quantity == x.node.quantity):
            for t in (piece.low, piece.high):
                step = x.constant - y.constant + (x.slope - y.slope) * t
                wanted += [(g.at(t) - y.constant - y.slope * t) / step] if step else []
        for w in (w for w in wanted if 0 < w < 1):
            c, s = w * x.constant + (1 - w) * y.constant, w * x.slope + (1 - w) * y.slope
            worst = (max if x.quantity.upper else min)(c + s * piece.low, c + s * piece.high)
            node = replace(x.node, rho=joint_exception((x, y)))
            yield Line(node, worst, None, (x, y), "", c, s, (w, 1 - w))


def spans(found: Iterable[Line], piece: Piece) -> Iterator[Fact]:
    """Effective spans of limits that vary with the temperature: the quotient is largest at an end. Tails by definition."""
    for x in found:
        if x.node.quantity == "trimmed_span" and x.node.mode is Mode.POINT:
            yield Fact(replace(x.node, quantity="tail_mass"), 1 - x.node.grade, None, (x,))
        if x.slope and x.node.quantity == "trimmed_span":
            value = max(x.constant / t + x.slope for t in (piece.low, piece.high))
            yield Fact(replace(x.node, quantity="trimmed_effective_span"), value, None, (x,))
        if x.slope and x.node.quantity in ("logit_span", "logit_drift"):
            factor = 2 if x.node.quantity == "logit_drift" else 1
            value = max(factor * (x.constant / t + x.slope) for t in (piece.low, piece.high))
            yield Fact(Node("effective_span", x.node.mode, x.node.rho), value, None, (x,))


def closure(base: Iterable[Fact], parameters: Parameters, known: frozenset[str]) -> dict[Node, Fact]:
    """The strongest fact about every node that the lemmas named in `known` reach."""
    best: dict[Node, Fact] = {}
    work: deque[Fact] = deque()

    def offer(fact: Fact) -> None:
        old = best.get(fact.node)
        if fact.value >= 0 and (old is None or stronger(fact.quantity, fact.value, old.value)):
            best[fact.node] = fact
            work.append(fact)

    for fact in base:
        offer(fact)
    while work:
        fact = work.popleft()
        for row, modes in steps().get(fact.node.quantity, ()):
            for source, target in modes:
                fits = row.name in known and source is fact.node.mode and usable(row, source, target, fact.node.rho)
                fits = fits and _in_reach(row.name, parameters)
                for facts in _beside(best, row, fact) if fits and best[fact.node] is fact else ():
                    conclude = _optimal if row.name == OPTIMAL else apply
                    derived = conclude(row, facts, target, parameters)
                    if derived is not None and derived.node.rho < 1:
                        offer(derived)
    return best


def _optimal(row: Lemma, facts: tuple[Fact, ...], target: Mode, parameters: Parameters) -> Fact | None:
    """The optimal sequence bound as the checker repeats it; None without a horizon."""
    (fact,) = facts
    horizon = parameters.box.get("horizon")
    if horizon is None:
        return None
    p = SimpleNamespace(horizon=int(horizon[1]), rho=fact.node.rho)
    return Fact(Node(row.conclusion, target), optimal_value(p, Fraction(0), fact.value), row, facts)


def _in_reach(name: str, parameters: Parameters) -> bool:
    """Whether the checker goes as far as the horizon with a lemma that it repeats token by token."""
    horizon = parameters.box.get("horizon")
    return name not in LONGEST or horizon is None or horizon[1] <= LONGEST[name]


def _beside(best: dict[Node, Fact], row: Lemma, fact: Fact) -> list[tuple[Fact, ...]]:
    """`fact` with every known fact about the row's other premises."""
    sides = [
        [fact] if q == fact.node.quantity else
        [f for n, f in best.items() if (n.quantity, n.mode, n.grade) == (q, fact.node.mode, fact.node.grade)]
        for q in row.premises
    ]  # fmt: skip
    return [facts for facts in product(*sides) if len(exceptions(facts)) <= 2]


def reaches(fact: Fact, goal: Atom, piece: Piece) -> bool:
    """Whether a fact gives the goal on the whole piece."""
    free = fact.lemma is not None and not any(f.quantity.graded for f in fact.premises)
    node = replace(fact.node, rho=goal.node.rho, grade=goal.node.grade if free else fact.node.grade)
    if node != goal.node or fact.node.rho > goal.node.rho or fact.node.grade < goal.node.grade:
        return False
    c, s = (fact.constant, fact.slope) if isinstance(fact, Line) else (fact.value, Fraction(0))
    gaps = [goal.at(t) - c - s * t for t in (piece.low, piece.high)]
    return min(gaps) >= 0 if goal.upper else max(gaps) <= 0


def _graded(fact: Fact, goal: Atom) -> Fact:
    """The fact at the goal's grade: a premise without a grade gives every grade."""
    return fact if fact.node.grade == goal.node.grade else replace(fact, node=replace(fact.node, grade=goal.node.grade))


def facts_for(contract: Contract, obligation: Obligation, piece: Piece, known: frozenset[str]) -> list[Fact] | None:
    """Facts that give the obligation's atoms, together failing on no more contexts than it allows; None without."""
    clauses = counted(contract, piece)
    for chosen in (clauses, *((c,) for c in clauses if len(clauses) > 1)):
        found = lines(chosen, piece)
        found += mixtures(found, obligation.atoms, piece)
        every = (*found, *spans(found, piece))
        best = closure(every, piece_parameters(contract, obligation, piece), known)
        picked = [next((f for f in (*best.values(), *found) if reaches(f, g, piece)), None) for g in obligation.atoms]
        facts = [_graded(f, g) for f, g in zip(picked, obligation.atoms, strict=True) if f is not None]
        pointwise = obligation.atoms[0].node.mode is Mode.POINT
        fails = joint_exception(facts) if pointwise else Fraction(0)
        if len(facts) == len(picked) and fails <= obligation.atoms[0].node.rho:
            return facts
    return None


@dataclass
class Draft:
    """Steps of a proof on one piece, each checked by the kernel as it is written; `places` are clauses by name."""

    setting: Any
    ends: list[Fraction]
    entries: list[dict[str, Any]]
    places: dict[str, int]
    scope: str
    last: bool
    rows: list[kernel.Row] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    done: dict[int, int] = field(default_factory=dict)
    grade: Fraction = Fraction(1)


def write_step(draft: Draft, step: dict[str, Any]) -> int:
    """Append a step that the kernel accepts; its place."""
    if step["by"] == "clause":
        (k,) = step["of"]
        row = kernel.given(draft.entries[k], k, step["gives"], draft.scope, draft.ends, draft.last)
    else:
        row = kernel.conclude(step, draft.rows, draft.setting, draft.ends)
    draft.rows.append(row)
    draft.steps.append(step)
    return len(draft.rows) - 1


def write_fact(draft: Draft, fact: Fact) -> int:
    """Append the steps that lead to a fact; the place of the last. Raises NotCertifiedError, or BROKEN of the kernel."""
    if id(fact) in draft.done:
        return draft.done[id(fact)]
    of = [write_fact(draft, f) for f in fact.premises]
    gives = name_of(fact.node)
    if fact.lemma is not None:
        rule = RULE_OF[fact.lemma.name]
    elif isinstance(fact, Line):
        rule = "combine" if fact.weights else "clause"
    elif fact.node.quantity == "tail_mass":
        rule = "tail"
    else:
        rule = "drift_over_temperature" if fact.premises[0].node.quantity == "logit_drift" else "over_temperature"
    step: dict[str, Any] = {"by": rule, "of": of or [draft.places[fact.label]], "gives": gives}
    if isinstance(fact, Line) and fact.weights:
        step["weights"] = [number(w) for w in fact.weights]
    elif rule != "clause":
        draft.grade = fact.node.grade
        step["value"] = value_text(draft, rule, gives, of, fact.value)
    draft.done[id(fact)] = write_step(draft, step)
    return draft.done[id(fact)]


def value_text(draft: Draft, rule: str, gives: str, of: list[int], guess: Fraction) -> str:
    """The one value that the kernel accepts: nearest to the safe side of the bound, found from a value near it."""
    used, p = [draft.rows[i] for i in of], draft.setting
    premises, formula = kernel.weakest(rule, used, draft.ends), p.rules[rule][1]
    p.rho, p.grade = sum({k: v for r in used for k, v in r[2].items()}.values(), Fraction(0)), number(draft.grade)
    if rule not in kernel.BOUND:
        return number(formula(p, Fraction(0), *premises))
    sign = kernel.sign(gives)

    def holds(x: Fraction) -> bool:
        return bool(x >= 0 and formula(p, x, *premises))

    if sign > 0 and holds(Fraction(0)):
        return "0"
    good, bad = _bracket(holds, rounded(guess, up=sign > 0), sign)
    while True:
        v = rounded((good + bad) / 2, up=sign > 0)
        if v in (good, bad):
            break
        good, bad = (v, bad) if holds(v) else (good, v)
    v = rounded(good, up=sign > 0)
    unit = sign * Fraction(10) ** (Decimal(number(v)).adjusted() - kernel.DIGITS + 1)
    while holds(v - unit):
        v -= unit
    return number(v)


def _bracket(holds: Callable[[Fraction], bool], guess: Fraction, sign: int) -> tuple[Fraction, Fraction]:
    """A value that holds and one that does not, as near to the guess as doubled steps find them. Raises NotCertifiedError."""
    step = (abs(guess) or Fraction(1)) / 10 ** (kernel.DIGITS - 1)
    way = -sign if holds(guess) else sign
    last = guess
    for k in range(2 * 4 * kernel.DIGITS):
        x = guess + way * step * 2**k
        if x < 0:
            return (last, Fraction(0)) if sign > 0 else (Fraction(0), last)
        if holds(x) is (way == sign):
            return (x, last) if way == sign else (last, x)
        last = x
    raise NotCertifiedError(f"no value of {kernel.DIGITS} digits was found")
