"""Checks a certificate with the standard library alone. It runs from this one file: `python kernel.py FILE...`.

Between the first two marks is the trusted core: arithmetic and proof checking. EXACT and BOUND have one line a lemma: "if
the premises are at most u (and w) on all but a share rho of the contexts, then the conclusion is at most v"; for LOWER
read "at least". READINGS has one line a quantity of a counterexample. The rest reads, prints, and refuses numbers that
are true and not as short as they could be. A rule may be used at one corner: every bound grows (for LOWER: shrinks) with
each premise, the horizon and rho, and the temperature enters through `over_temperature` alone. Exit codes: 0 accepted, 1
rejected, 2 unreadable. Format, trusted base and how lines are counted: docs/certificates.md.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction as Q
from math import factorial, log
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

FORMAT, DIGITS, BITS, ONE = "kcverify certificate 1", 24, 320, 1 << 320
WAYS = ("reference_candidate", "candidate_reference")
# fmt: off
LOWER = frozenset(("bc", "bc_seq", "ess", "clip_room_above", "clip_room_below", "perplexity_floor"))
TOKEN = {"logit_drift", "logit_span", "effective_span", "trimmed_span@", "trimmed_effective_span@", "tail_mass@", "tv", "bc"}
TOKEN |= {"log_ratio", "ratio_above", "ratio_below", "ratio_gap", "chi2", "entropy_drift", "thin_margin", "choice_changes"}
TOKEN |= {"disagreement", "ranking_changes", "flips@", "clip_share", "clip_room_above", "clip_room_below"} | {f"kl_{w}" for w in WAYS}
RESPONSE = {"tv_seq", "bc_seq", "chi2_seq", "ess", "ratio_gap_seq", "perplexity_factor", "perplexity_floor", "ece_drift@"}
RESPONSE |= {"mean_perplexity_factor", "reward_drift", "reward_delta", "pass_rate_drift", "pg_bias", "tis_bias"} | {f"kl_seq_{w}" for w in WAYS}
KNOWN = {"point": TOKEN, "mean": TOKEN, "sequence": RESPONSE}
BROKEN = (ArithmeticError, AttributeError, IndexError, KeyError, StopIteration, TypeError, ValueError)
Row: TypeAlias = tuple[str, str, dict[int, Q], Q, Q]  # quantity, mode, exception by clause, sign * (limit, its slope)



# ---- the trusted core begins ----------------------------------------------------------------------------------------
def need(condition: object, reason: str) -> None:
    """Raise ValueError with the reason unless the condition holds: the certificate then proves nothing."""
    if not condition:
        raise ValueError(reason)

def num(text: Any) -> Q:
    """An exact number, always written as text: a JSON number would not be the one that is printed."""
    need(isinstance(text, str) and len(text.lower().partition("e")[2]) < 6, "a number that is no text, or too long")
    return Q(text)

@dataclass(frozen=True)
class Real:
    """All reals x with `lo <= x 2^BITS <= hi`. Operations round outward; `<=` and `>=` hold for all members."""

    lo: int
    hi: int
    __add__ = __radd__ = lambda a, b: Real(a.lo + real(b).lo, a.hi + real(b).hi)
    __mul__ = __rmul__ = lambda a, b: outward([x * y for r in (real(b),) for x in (a.lo, a.hi) for y in (r.lo, r.hi)], ONE)
    __sub__, __rsub__ = (lambda a, b: a + real(b) * -1), (lambda a, b: real(b) + a * -1)
    __rtruediv__ = lambda a, b: Real(ONE * ONE // a.hi, -(-ONE * ONE // max(0, a.lo))) * b  # noqa: E731
    __pow__ = lambda a, n: a * (a * a) ** (n // 2) if n % 2 else (a * a) ** (n // 2) if n else real(1)  # noqa: E731
    __le__, __ge__ = (lambda a, b: a.hi <= real(b).lo), (lambda a, b: real(b).hi <= a.lo)

def outward(values: list[int], unit: int) -> Real:
    """The smallest interval around integers over a unit."""
    return Real(min(values) // unit, -(-max(values) // unit))

def real(x: Any) -> Real:
    """A rational as the smallest interval around it."""
    return x if isinstance(x, Real) else outward([x.numerator * ONE], x.denominator)

TAYLOR = [outward([ONE], factorial(n)) for n in range(14, -1, -1)]

def exp(x: Any) -> Real:
    """Encloses exp: the Taylor series at y = x/2^k < 2^-20, whose rest is below y^15/15! < 2^-BITS, squared k times."""
    k = max(0, max(abs(real(x).lo), abs(real(x).hi)).bit_length() - BITS + 20)
    need(k <= 33, "an exponent beyond 8192")
    y, found = real(x) * Q(1, 2**k), real(0)
    for c in TAYLOR:
        found = found * y + c
    return (found + Real(-1, 1)) ** (1 << k) if x else found

def ln(x: Any) -> Real:
    """Encloses ln by exp: ln x = y + ln(1 + t) with t = x exp(-y) - 1, and t - t^2 <= ln(1 + t) <= t for |t| <= 1/2."""
    y = Q(log(real(x).lo / ONE))
    for _ in range(3):
        y += Q((exp(-y) * x - 1).lo, ONE)
    t = exp(-y) * x - 1
    need(t >= Q(-1, 2) and t <= Q(1, 2), "a logarithm that does not converge")
    return Real((t - t * t).lo, t.hi) + y

def sign(quantity: str) -> int:
    """1 where limits are upper ones, -1 where they are lower ones."""
    return -1 if quantity in LOWER else 1

def limits(x: Any, key: int = 0) -> list[Row]:
    """What a clause (with its number) or a claim bounds, one row for each quantity."""
    rho, mode, found = num(x.get("except", "0")), x["mode"], x["limits"]
    known = {q[: q.find("@") + 1] or q for q in found} <= KNOWN[mode]
    need(0 <= rho <= (mode == "point") and found and known, "a quantity or an exception out of place")
    return [(q, mode, {key: rho} if rho else {}, sign(q) * num(c), sign(q) * num(s)) for q, (c, s) in found.items()]

def given(x: Any, key: int, gives: str, on: str, ends: list[Q], last: bool) -> Row:
    """A clause as a row, where it speaks of every context of the slice `on` at every temperature of the piece."""
    row = next(r for r in limits(x, key) if r[0] == gives)
    listed = isinstance(x["on"], list) and on in x["on"] if "on" in x else on == "" or row[1:3] == ("point", {})
    low, high, edge = x.get("band", ("0", str(ends[1]), "closed"))
    inside = ends[1] < num(high) or (ends[1] == num(high) and (edge == "closed" or not last))
    need(listed and num(low) <= ends[0] and inside, "a clause on other contexts or at other temperatures")
    return row

def weakest(by: str, used: list[Row], ends: list[Q]) -> list[Q]:
    """The premises of a step where they say least, over the temperature for the one rule that divides by it."""
    scale = ends if by.endswith("over_temperature") else [Q(1), Q(1)]
    return [max((r[3] + r[4] * t) / y for t, y in zip(ends, scale, strict=True)) * sign(r[0]) for r in used]

def conclude(x: Any, rows: list[Row], p: Any, ends: list[Q]) -> Row:
    """The row that one step of a proof adds to those before it."""
    by, gives, used = x["by"], x["gives"], [rows[i] for i in x["of"]]
    (mode,), fails = {r[1] for r in used}, {k: v for r in used for k, v in r[2].items()}
    if by == "combine":
        w = [num(v) for v in x["weights"]]
        need(min(w) >= 0 and sum(w) == 1 and {r[0] for r in used} == {gives}, "no convex combination")
        c, s = (sum((a * r[k] for a, r in zip(w, used, strict=True)), Q(0)) for k in (3, 4))
        return gives, mode, fails, c, s
    (kinds, formula), shape = p.rules[by], ",".join(r[0] for r in used) + ">" + gives
    grade = next((q[q.index("@") :] for q in (*(r[0] for r in used), gives) if "@" in q), "@")
    found = [k.replace("@", grade).replace("~", w).replace("*", gives).split(":") for k in kinds.split() for w in WAYS]
    modes = "".join(m for m, s in found if s == shape)  # a capital letter: the formula charges for exceptions
    to = "sequence" if (gives[: gives.find("@") + 1] or gives) in RESPONSE else "mean" if by in ("mean", "mix") else mode
    need(mode[0] in modes.lower(), f"`{by}` does not give {shape}")
    need(not fails or to == mode or mode[0].upper() in modes, f"`{by}` admits no exception")
    u, v, p.rho, p.grade = weakest(by, used, ends), num(x["value"]), sum(fails.values(), Q(0)), grade[1:]
    got = formula(p, v, *u)
    need(min(v, *u) >= 0 and (got if isinstance(got, bool) else got == v), f"{x['value']} does not bound {gives}")
    return gives, to, fails if to == mode else {}, sign(gives) * v, Q(0)

def prove(claim: Any, clauses: list[Any], p: Any) -> list[Any]:
    """Check a proof: pieces that cover the temperatures, half-open but the last. The steps, each with what it used."""
    cuts, done = [*(num(x["from"]) for x in claim["proof"]), p.temperature[1]], []
    need(cuts[1:] and cuts[0] == p.temperature[0] and cuts == sorted(cuts), "pieces that leave temperatures out")
    for i, piece in enumerate(claim["proof"]):
        ends, rows, goals = cuts[i : i + 2], list[Row](), limits(claim)
        last = i == len(cuts) - 2 and claim.get("temperature_end") != "open"
        for x in piece["steps"]:
            done.append((x, list(rows), p, ends))
            k, on = x["of"][0], claim.get("on", "")
            rows.append(given(dict(enumerate(clauses))[k], k, x["gives"], on, ends, last)
                        if x["by"] == "clause" else conclude(*done[-1]))
        fails = {k: v for r in rows[-len(goals) :] for k, v in r[2].items()}
        need(sum(fails.values()) <= num(claim.get("except", "0")), "more exceptions than the claim allows")
        need(ends[1] > 0 or not any(r[4] for r in rows + goals), "a limit that varies with a temperature not assumed")
        for r, goal in zip(rows[-len(goals) :], goals, strict=True):
            reached = r[:2] == goal[:2] and all(r[3] + r[4] * t <= goal[3] + goal[4] * t for t in ends)
            need(reached, f"{goal[0]} is not reached")
    return done

def setting(facts: dict[str, Any], more: Any = None) -> Any:
    """The assumptions as numbers, beside the rules that a proof may use."""
    low, high = (num(x) for x in facts.get("temperature", ("0", "0")))
    texts = {k: v for k, v in facts.items() if k not in ("temperature", "sampler")}
    numbers = {k: int(v) if k == "horizon" else num(v) for k, v in texts.items()}
    need(facts["sampler"] == "full_softmax", "no rule is about another sampler")
    need(min(0, low, high, *numbers.values()) == 0, "an assumption below zero")
    return SimpleNamespace(temperature=[low, high], rules=RULES | (more or {}), **numbers)

def accept(claim: Any, doc: Any, more: Any) -> Any:
    """Decide one claim: without an exception it is accepted. The steps of its proof."""
    p = setting(doc["assume"] | claim.get("within", {}), more)
    return {"PROVED": prove, "REFUTED": refute}[claim["verdict"]](claim, doc["clauses"], p)
# ---- the trusted core ends, the rules begin -------------------------------------------------------------------------

def sech(x: Q) -> Any:
    """Encloses 1/cosh."""
    return 2 / (exp(x) + exp(-x))

def most(x: Real, n: int) -> Real:
    """P(Bin(n, x) > n/2) for n odd (an even n loses its last trial): x + sum over j of C(2j-1, j) (x(1-x))^j (2x-1)."""
    need(n <= 1 << 17, "a binomial sum of more than 131072 tokens")
    term, found = x * (1 - x), x
    for j in range(1, (n + 1) // 2):
        found, term = found + term * (2 * x - 1), term * (x * (1 - x)) * Q(4 * j + 2, j + 1)
    return found

def tanh(v: Q, x: Q) -> Any:
    """Whether tanh(x) <= v."""
    return exp(2 * x) * (1 - v) <= 1 + v

def gain(v: Q, theta: Q, u: Q) -> Any:
    """Whether a set of mass theta whose logits are lifted by u against the rest gains at most v."""
    return (exp(u) - 1) * (theta * (1 - theta - v)) <= v

def merged(v: Q, u: Q, n: int) -> bool:
    """Whether v >= 0 bounds n steps of span u, the last k of them taken as one step of span S >= ku, for some k, S."""
    need(n <= 512, "the closed form is for at most 512 tokens")
    cosh = (exp(u / 4) + exp(-u / 4)) * Q(1, 2)
    grow, fall, up, down, rest = exp(u / 2), exp(-u / 2), real(1), real(1), 2 * sech(u / 4) ** n
    for _ in range(min(n, n // 3 + 2) + 1 if v >= 0 else 0):
        if up * (1 - v) + down * (1 + v) <= rest or (rest * (up + down) <= 4 and 4 - 4 * v * v <= rest * rest):
            return True
        up, down, rest = up * grow, down * fall, rest * cosh
    return u == 0 <= v

# Rule -> modes : premises > conclusion; formula, of EXACT the conclusion, of BOUND whether v is a valid one. Modes: point,
# mean, sequence, a capital where the formula charges for exceptions; ~ is either direction of a divergence.
EXACT: dict[str, tuple[str, Any]] = {
    "double": ("pm:logit_drift>logit_span", lambda p, v, u: 2 * u),
    "over_temperature": ("pm:logit_span>effective_span pm:trimmed_span@>trimmed_effective_span@", lambda p, v, u: u),
    "drift_over_temperature": ("pm:logit_drift>effective_span", lambda p, v, u: 2 * u),
    "same": ("pm:effective_span>log_ratio s:tv_seq>pass_rate_drift pm:logit_span>trimmed_span@ m:thin_margin>choice_changes m:choice_changes>disagreement m:disagreement>flips@", lambda p, v, u: u),
    "tail": ("p:trimmed_span@>tail_mass@", lambda p, v, u: 1 - num(p.grade)),
    "larger": ("p:ratio_above,ratio_below>ratio_gap", lambda p, v, u, w: max(u, w)),
    "tv_ratio": ("p:ratio_above,ratio_below>tv", lambda p, v, u, w: u * w / (u + w) if u * w else Q(0)),
    "chi2_ratio": ("p:ratio_above,ratio_below>chi2", lambda p, v, u, w: u * w),
    "bc_tv": ("pm:tv>bc", lambda p, v, u: 1 - min(u, 1)),
    "mean": ("p:*>*", lambda p, v, u: u),
    "mix": ("P:tv>tv P:ratio_below>ratio_below", lambda p, v, u: u + p.rho * (1 - u)),
    "sum": ("m:tv>tv_seq", lambda p, v, u: min(Q(1), p.horizon * u)),
    "chain": ("p:kl_~>kl_seq_~ m:kl_candidate_reference>kl_seq_candidate_reference", lambda p, v, u: p.horizon * u),
    "ess_chi2": ("s:chi2_seq>ess", lambda p, v, u: 1 / (1 + u)),
    "reward": ("s:tv_seq>reward_drift", lambda p, v, u: p.reward_range * u),
    "gradient": ("s:tv_seq>pg_bias", lambda p, v, u: 2 * p.advantage * p.score_norm * u),
    "gradient_tokens": ("s:tv_seq>pg_bias", lambda p, v, u: 2 * p.advantage * p.horizon * p.token_score_norm * u),
    "gradient_gap": ("s:ratio_gap_seq>pg_bias", lambda p, v, u: p.advantage * p.score_norm * u),
    "truncated_gap": ("s:ratio_gap_seq>tis_bias", lambda p, v, u: p.advantage * p.score_norm * max(0, 1 - p.cap / (1 + u))),
    "truncated_tv": ("s:tv_seq>tis_bias", lambda p, v, u: p.advantage * p.score_norm * (u + max(0, 1 - p.cap))),
    "perplexity_above": ("p:ratio_above>perplexity_factor", lambda p, v, u: 1 + u),
    "perplexity_below": ("p:ratio_below>perplexity_floor", lambda p, v, u: max(Q(0), 1 - u)),
    "clip": ("pm:ratio_gap>clip_share", lambda p, v, u: u / p.clip),
    "room_above": ("pm:ratio_gap>clip_room_above", lambda p, v, u: max(Q(0), (1 + p.clip) / (1 + u) - 1)),
    "room_below": ("p:ratio_gap>clip_room_below", lambda p, v, u: 1 - (1 - p.clip) / (1 - u) if u < p.clip else Q(0)),
    "calibration": ("m:tv,choice_changes>ece_drift@", lambda p, v, u, w: min(Q(1), u + w)),
}
BOUND: dict[str, tuple[str, Any]] = {
    "exp": ("p:effective_span>ratio_above p:log_ratio>ratio_above p:effective_span>ratio_gap p:log_ratio>ratio_gap", lambda p, v, u: exp(u) <= 1 + v),
    "exp_below": ("pm:effective_span>ratio_below pm:log_ratio>ratio_below", lambda p, v, u: 1 - v <= exp(-u)),
    "tanh_quarter": ("pm:effective_span>tv", lambda p, v, u: tanh(v, u / 4)),
    "tanh_half": ("pm:log_ratio>tv", lambda p, v, u: tanh(v, u / 2)),
    "tanh_kept": ("p:trimmed_effective_span@,tail_mass@>tv", lambda p, v, u, w: w >= 1 <= v or (w < 1 and tanh((v - w) / (1 - w), u / 4))),
    "confident": ("p:effective_span>tv", lambda p, v, u: gain(v, p.confidence, u) and (gain(v, 1 - p.confidence, u) if (1 - p.confidence) * (1 + exp(u / 2)) <= 1 else tanh(v, u / 4))),
    "entropy": ("p:tv>entropy_drift", lambda p, v, u: u == 0 or (t := min(u, 1 - 1 / p.vocabulary)) * (ln(p.vocabulary - 1) - ln(t)) - (1 - t) * ln(1 - t) <= v),
    "kl_span": ("p:effective_span>kl_~", lambda p, v, u: exp((w := u / (1 - exp(-u))) - (1 + v)) <= w if u else v >= 0),
    "kl_log_ratio": ("p:log_ratio>kl_~", lambda p, v, u: u * (exp(u) - 1) <= v * (exp(u) + 1)),
    "sech_quarter": ("p:effective_span>bc", lambda p, v, u: v <= sech(u / 4)),
    "sinh_half": ("p:effective_span>chi2", lambda p, v, u: (exp(u / 2) - exp(-u / 2)) ** 2 <= 4 * v),
    "ln_ratio": ("p:ratio_above,ratio_below>log_ratio", lambda p, v, u, w: 1 + u <= exp(v) and exp(-v) <= 1 - w),
    "ln_above": ("pm:ratio_above>kl_reference_candidate", lambda p, v, u: 1 + u <= exp(v)),
    "kl_ratio_f": ("p:ratio_above,ratio_below>kl_reference_candidate", lambda p, v, u, w: ln(1 + u) * (w * (1 + u)) + ln(1 - w) * (u * (1 - w)) <= v * (u + w)),
    "kl_ratio_r": ("p:ratio_above,ratio_below>kl_candidate_reference", lambda p, v, u, w: ln(1 + u) * -w - ln(1 - w) * u <= v * (u + w)),
    "pinsker": ("pm:kl_~>tv s:kl_seq_~>tv_seq", lambda p, v, u: v >= 1 or u <= 2 * v * v),
    "bretagnolle_huber": ("pm:kl_~>tv s:kl_seq_~>tv_seq", lambda p, v, u: 1 - v * v <= exp(-u)),
    "bc_kl": ("pm:kl_~>bc", lambda p, v, u: v <= exp(-u / 2)),
    "le_cam": ("p:bc>tv s:bc_seq>tv_seq", lambda p, v, u: 1 - u * u <= v * v),
    "chi2_root": ("pm:chi2>tv s:chi2_seq>tv_seq", lambda p, v, u: v >= 1 or u <= 4 * v * v),
    "union": ("P:tv>tv_seq", lambda p, v, u: v >= 1 or (u <= 1 and 1 - (v - p.horizon * p.rho) <= real(1 - u) ** p.horizon)),
    "affinity": ("P:effective_span>tv_seq", lambda p, v, u: v >= 1 or (v >= (x := p.horizon * p.rho) and 1 - (v - x) ** 2 <= sech(u / 4) ** (2 * p.horizon))),
    "closed": ("P:effective_span>tv_seq", lambda p, v, u: v >= 1 or merged(v - p.horizon * p.rho, u, p.horizon)),
    "binomial": ("P:log_ratio>tv_seq", lambda p, v, u: v >= 1 or 2 * most(1 / (1 + exp(-u)), p.horizon) - 1 <= v - p.horizon * p.rho),
    "power": ("p:bc>bc_seq", lambda p, v, u: v <= real(min(u, 1)) ** p.horizon),
    "chi2_power": ("p:chi2>chi2_seq", lambda p, v, u: real(1 + u) ** p.horizon <= 1 + v),
    "nll": ("p:log_ratio>perplexity_factor m:log_ratio>mean_perplexity_factor", lambda p, v, u: exp(u) <= v),
    "nll_floor": ("p:log_ratio>perplexity_floor", lambda p, v, u: v <= exp(-u)),
    "gap_power": ("p:ratio_above,ratio_below>ratio_gap_seq", lambda p, v, u, w: real(1 + u) ** p.horizon <= 1 + v and (v >= 1 or 1 - v <= real(1 - min(w, 1)) ** p.horizon)),
    "ess_span": ("p:effective_span>ess", lambda p, v, u: v <= sech(u / 2) ** (2 * p.horizon)),
    "reward_chi2": ("s:chi2_seq>reward_drift", lambda p, v, u: p.reward_range**2 * u <= 4 * v * v),
}
RULES = EXACT | BOUND
# ---- the rules end, the evaluation of counterexamples begins --------------------------------------------------------
def top(values: list[Real]) -> Real:
    """The largest of intervals."""
    return Real(max(x.lo for x in values), max(x.hi for x in values))

def step(t: Q, z: list[Q], y: list[Q], lifted: set[int], n: int) -> Any:
    """One context with logits z (reference) and y (candidate), `moved` the event that most of n tokens are `lifted`."""
    a, b = ([real(x / t) - ln(sum(exp(w / t) for w in s)) for x in s] for s in (z, y))
    r, e = [u - v for u, v in zip(a, b, strict=True)], [v - u for u, v in zip(z, y, strict=True)]
    ps, qs = [exp(u) for u in a], [exp(v) for v in b]
    up, down = (most(real(sum(x for i, x in enumerate(s) if i in lifted)), n) for s in (ps, qs))
    order = all((z[i] < z[j]) == (y[i] < y[j]) for i in range(len(z)) for j in range(len(z)))
    return SimpleNamespace(t=t, a=a, b=b, r=r, e=e, ps=ps, qs=qs, n=n, moved=top([up - down, down - up]), flips=not order)

# Quantity -> its value: exact, or enclosed. Of responses what the event shows; reward and score may follow the event.
READINGS: dict[str, Any] = {
    "logit_drift": lambda i, p: max(abs(x) for x in i.e),
    "logit_span": lambda i, p: max(i.e) - min(i.e),
    "trimmed_span": lambda i, p: max(i.e) - min(i.e),
    "effective_span": lambda i, p: (max(i.e) - min(i.e)) / i.t,
    "tv": lambda i, p: sum(top([u - v, v - u]) for u, v in zip(i.ps, i.qs, strict=True)) * Q(1, 2),
    "kl_reference_candidate": lambda i, p: sum(u * x for u, x in zip(i.ps, i.r, strict=True)),
    "kl_candidate_reference": lambda i, p: sum(v * x for v, x in zip(i.qs, i.r, strict=True)) * -1,
    "chi2": lambda i, p: sum(u * exp(x) for u, x in zip(i.ps, i.r, strict=True)) - 1,
    "bc": lambda i, p: sum(exp((u + v) * Q(1, 2)) for u, v in zip(i.a, i.b, strict=True)),
    "log_ratio": lambda i, p: top([x * s for x in i.r for s in (1, -1)]),
    "ratio_above": lambda i, p: exp(top(i.r)) - 1,
    "ratio_below": lambda i, p: 1 - exp(top([x * -1 for x in i.r]) * -1),
    "ratio_gap": lambda i, p: top([READINGS["ratio_above"](i, p), READINGS["ratio_below"](i, p)]),
    "clip_share": lambda i, p: READINGS["ratio_gap"](i, p) * (1 / p.clip),
    **dict.fromkeys(("choice_changes", "disagreement", "flips", "ranking_changes"), lambda i, p: Real(0, ONE) if i.flips else Q(0)),
    "ece_drift": lambda i, p: Real(0, (READINGS["tv"](i, p) + READINGS["disagreement"](i, p)).hi),
    "tv_seq": lambda i, p: Real(i.moved.lo, ONE),
    "pass_rate_drift": lambda i, p: i.moved,
    "reward_drift": lambda i, p: i.moved * p.reward_range,
    "reward_delta": lambda i, p: i.moved * p.reward_range if p.rewarded else Q(0),
    "pg_bias": lambda i, p: i.moved * (2 * p.advantage * p.score_norm),
    "ess": lambda i, p: 1 / (1 + READINGS["chi2"](i, p)) ** i.n if p.alone else None,
}

def refute(claim: Any, clauses: list[Any], p: Any) -> None:
    """Check a counterexample: it meets every clause and breaks the claim; a share of the responses starts with `far`."""
    x, (low, high) = claim["instance"], p.temperature
    t, n, share = num(x["temperature"]), x["tokens"], num(x.get("share", "0"))
    inside = low <= t and (t < high or (t == high and claim.get("temperature_end") != "open"))
    need(t > 0 and (high == 0 or inside) and 0 <= share <= 1, "an instance at another temperature")
    need(type(n) is int and 1 <= n <= getattr(p, "horizon", 1), "an instance of too many tokens")
    p.alone, p.rewarded = not share, bool({"reward_drift", "pass_rate_drift", "pg_bias"} & set(claim["limits"]))
    need(set(x["lifted"]) <= set(range(len(x["reference"]))), "no such token")
    need(not any("@" in q for q in claim["limits"]), "a claim about what is read from above only")
    near = step(t, [num(z) for z in x["reference"]], [num(z) for z in x["candidate"]], set(x["lifted"]), n)
    far = step(t, [Q(0), -1000 * t], [-1000 * t, Q(0)], {1}, 1) if share else near

    def reading(r: Row) -> Any:
        a, b = (READINGS[r[0].partition("@")[0]](i, p) * sign(r[0]) for i in (near, far))
        weight = share if r[1] == "sequence" else share / n
        if r[1] == "point":
            return a if weight <= sum(r[2].values()) else top([real(a), real(b)])
        return a * (1 - weight) + b * weight

    for c in clauses:
        start, end, edge = c.get("band", ("0", str(t), "closed"))
        binds = num(start) <= t and (t < num(end) or (t == num(end) and edge == "closed"))
        met = not binds or all(reading(r) <= r[3] + r[4] * t for r in limits(c))
        need(met, f"the instance breaks `{c['name']}`")
    need(any(reading(g) >= g[3] + g[4] * t + Q(1, 10**60) for g in limits(claim)), "the instance keeps the claim")
# ---- the evaluation of counterexamples ends -------------------------------------------------------------------------
# fmt: on


def tidy(x: Any, rows: list[Row], p: Any, ends: list[Q]) -> None:
    """Refuse a true number that is no nearest one of DIGITS digits on the safe side, so that no digit is free."""
    if x["by"] in BOUND:
        v, unit = num(x["value"]), Q(10) ** (Decimal(x["value"]).adjusted() - DIGITS + 1)
        need(v % unit == 0, f"{x['value']} has more than {DIGITS} digits")
        try:
            conclude(x | {"value": str(v - unit * sign(x["gives"]))}, rows, p, ends)
        except ValueError:
            return
        raise ValueError(f"{x['value']} is not rounded as it must be")


def words(x: Any) -> str:
    """What a clause or a claim says."""
    slopes = {q: f" + {v[1]} T" if num(v[1]) else "" for q, v in x["limits"].items()}
    atoms = [f"{q} {'>=' if q in LOWER else '<='} {v[0]}{slopes[q]}" for q, v in x["limits"].items()]
    rest = [f"{'for T in' if k == 'band' else k} {x[k]}" for k in ("except", "on", "band", "temperature_end") if k in x]
    return " ".join([*(["mean"] if x["mode"] == "mean" else []), " and ".join(atoms), *rest])


def seal(doc: Any) -> str:
    """SHA-256 of everything but the seal: it tells damage, not forgery."""
    body = {k: v for k, v in doc.items() if k != "seal"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def verify(claim: Any, doc: Any, more: Any) -> str:
    """The statement of one claim after a check of its evidence, with all that it rests on."""
    steps = accept(claim, doc, more) or []
    for one in steps:
        tidy(*one)
    used = {x["of"][0] for x, *_ in steps if x["by"] == "clause"} if steps else range(len(doc["clauses"]))
    free = [*(f"any {n}" for n in claim.get("free", ())), *(f"{k} {v}" for k, v in claim.get("instance", {}).items())]
    facts = (doc["assume"] | claim.get("within", {})).items()
    assumed = [f"{k} {' to '.join(v) if k == 'temperature' else v}" for k, v in facts]
    rests = [f"{c['name']}: {words(c)}" for k, c in enumerate(doc["clauses"]) if k in used]
    under = "; ".join([*assumed, *rests, *free])
    rules = ", ".join(dict.fromkeys(x["by"] for x, *_ in steps if x["by"] != "clause"))
    return f"{claim['verdict']} {claim['name']}: {words(claim)} [{under}]{rules and f' by {rules}'}"


def check(doc: Any, more: Any = None) -> list[str]:
    """What a certificate says, in words. Raises one of BROKEN where it fails. `more`: further rules, as in RULES."""
    need(doc["format"] == FORMAT and doc["seal"] == seal(doc), "the seal does not fit: the text was changed")
    out = [f"contract {doc['contract']['name']} {doc['contract']['version']}, {doc['contract']['digest']}"]
    for claim in doc["claims"]:
        missing = set(claim.get("beyond", ())) - set(more or {})
        if missing:
            out.append(f"not checked here: {claim['name']} rests on {', '.join(sorted(missing))}")
        elif "not_certified" in claim:
            out.append(f"not certified: {claim['name']}, {claim['verdict']}: {claim['not_certified']}")
        else:
            out.append(verify(claim, doc, more))
    need(all(line.isprintable() for line in out), "a name that would not print as it is")
    need(any(line.split()[0] in ("PROVED", "REFUTED") for line in out), "no claim is certified")
    return out


def main(paths: list[str]) -> int:
    """Check certificate files and print what each of them proves; the exit code."""
    code = 0
    for path in paths:
        try:
            found = json.loads(Path(path).read_bytes())
            docs = found if isinstance(found, list) else [found]
            need(docs and all(isinstance(d, dict) and "format" in d for d in docs), "no certificate")
        except (OSError, RecursionError, ValueError) as error:
            print(f"{path}: unreadable: {error}")
            code = 2
            continue
        try:
            print("\n  ".join([f"{path}: accepted", *(line for doc in docs for line in check(doc))]))
        except BROKEN as error:
            print(f"{path}: rejected: {error if type(error) is ValueError else f'malformed: {error!r}'}")
            code = max(code, 1)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
