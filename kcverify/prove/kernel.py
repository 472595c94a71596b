"""Checks a certificate with the standard library alone: the trusted core, to be read whole in one sitting.

One enclosure of exp, one interval type and one table of lemmas carry everything. A row of the table reads "if the
premises are at most u (and w) on all but a share rho of the contexts, then the conclusion is at most v"; for the
quantities in LOWER read "at least". Why a row may be used at one corner: every bound of the table grows (for LOWER:
shrinks) with each premise, with the horizon and with rho, and the temperature enters through `over_temperature` alone;
so a premise's limit, the horizon and the ends of the temperatures in their places can only weaken the conclusion. A
number that had to be rounded is the nearest one of DIGITS significant digits on the safe side; no other is accepted.
Exit codes of `python -m kcverify.prove.kernel FILE...`: 0 accepted, 1 rejected, 2 unreadable. Format and trusted base
are in docs/certificates.md.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction as Q
from math import comb, log
from pathlib import Path
from types import SimpleNamespace
from typing import Any

FORMAT, DIGITS, BITS, ONE = "kcverify certificate 1", 24, 320, 1 << 320
WAYS, LOWER = ("reference_candidate", "candidate_reference"), frozenset(("bc", "bc_seq", "ess"))
RESPONSE = LOWER - {"bc"} | {f"kl_seq_{w}" for w in WAYS}
RESPONSE |= {"chi2_seq", "tv_seq", "ratio_gap_seq", "perplexity_factor", "reward_drift", "pass_rate_drift", "pg_bias"}
TOKEN = {"bc", "chi2", "tv", "log_ratio", "clip_share", "effective_span", "logit_drift", "logit_span"}
TOKEN |= {"ratio_above", "ratio_below", "ratio_gap"} | {f"kl_{w}" for w in WAYS}
COUNTING = ("mix", "union", "affinity", "binomial", "optimal")  # rules that charge for the exceptions of their premise
BROKEN = (ArithmeticError, AttributeError, IndexError, KeyError, StopIteration, TypeError, ValueError)
Row = tuple[str, str, dict[int, Q], Q, Q]  # quantity, mode, exception by clause, limit, its slope in the temperature


def need(condition: object, reason: str) -> None:
    """Raise ValueError with the reason unless the condition holds: the certificate then proves nothing."""
    if not condition:
        raise ValueError(reason)


def num(text: Any) -> Q:
    """An exact number, always written as text: a JSON number would not be the one that is printed."""
    need(isinstance(text, str), "a number that is not written as text")
    return Q(text)


# fmt: off
@dataclass(frozen=True)
class Real:
    """All reals x with `lo <= x 2^BITS <= hi`. Operations round outward; `<=` and `>=` hold for all members."""

    lo: int
    hi: int

    def __add__(self, other: Any) -> Real:
        return Real(self.lo + wrap(other).lo, self.hi + wrap(other).hi)

    def __mul__(self, other: Any) -> Real:
        ends = [x * y for x in (self.lo, self.hi) for y in (wrap(other).lo, wrap(other).hi)]
        return Real(min(ends) >> BITS, -(-max(ends) >> BITS))

    def __sub__(self, other: Any) -> Real:
        return self + wrap(other) * -1

    def __rsub__(self, other: Any) -> Real:
        return wrap(other) + self * -1

    def __rtruediv__(self, other: Any) -> Real:
        need(self.lo > 0, "a division by zero")
        return Real(ONE * ONE // self.hi, -(-ONE * ONE // self.lo)) * wrap(other)

    def __pow__(self, n: int) -> Real:
        return (self * self) ** (n // 2) * (self if n % 2 else 1) if n else Real(ONE, ONE)

    def __le__(self, other: Any) -> bool:
        return self.hi <= wrap(other).lo

    def __ge__(self, other: Any) -> bool:
        return wrap(other).hi <= self.lo

    __radd__, __rmul__ = __add__, __mul__


def wrap(x: Any) -> Real:
    """A rational as the smallest interval around it."""
    if isinstance(x, Real):
        return x
    return Real((x.numerator << BITS) // x.denominator, -((-x.numerator << BITS) // x.denominator))


def exp(x: Any) -> Real:
    """Encloses exp: the Taylor series at x/2^k < 1/2, whose rest is below its last term, squared k times."""
    if isinstance(x, Real):
        return Real(exp(Q(x.lo, ONE)).lo, exp(Q(x.hi, ONE)).hi)
    if x <= 0:
        return 1 / exp(-x) if x else Real(ONE, ONE)
    need(x < 8192, "an exponent beyond 8192")
    k = int(2 * x).bit_length()
    y, n, low, high, a, b = wrap(Q(x) / 2**k), 1, ONE, ONE, ONE, ONE
    while b > 1:
        a, b = (a * y.lo >> BITS) // n, -((-b * y.hi >> BITS) // n)
        n, low, high = n + 1, low + a, high + b
    return Real(low, high + 1) ** (1 << k)


def ln(x: Any) -> Real:
    """Encloses ln by exp: ln x = y + ln(1 + t) with t = x exp(-y) - 1, and t - t^2 <= ln(1 + t) <= t for |t| <= 1/2."""
    if isinstance(x, Real):
        return Real(ln(Q(x.lo, ONE)).lo, ln(Q(x.hi, ONE)).hi)
    y = Q(log(x))
    for _ in range(3):
        y += Q((exp(-y) * x - 1).lo, ONE)
    t = exp(-y) * x - 1
    need(t >= Q(-1, 2) and t <= Q(1, 2), "a logarithm that does not converge")
    return Real((t - t * t).lo, t.hi) + y


def total(values: Iterable[Real]) -> Real:
    """Sum of intervals."""
    return sum(values, Real(0, 0))


def top(values: list[Real]) -> Real:
    """Largest of intervals."""
    return Real(max(x.lo for x in values), max(x.hi for x in values))


def sech(x: Q) -> Real:
    """Encloses 1/cosh."""
    return 2 / (exp(x) + exp(-x))


def odds(x: Real, n: int) -> Real:
    """(1+x)^n TV(Bin(n, 1/(1+x)), Bin(n, x/(1+x))), which is the sum over k > n/2 of C(n,k) (x^(n-k) - x^k)."""
    need(n <= 4096, "a binomial sum of more than 4096 tokens")
    return total(comb(n, k) * x ** (n - k) * (1 - x ** (2 * k - n)) for k in range(n // 2 + 1, n + 1))


# Rule -> modes of the premise (p point, m mean, s sequence) : premises > conclusion, ~ for either direction; formula.
# A formula says whether v is a valid conclusion, or else is the conclusion itself, an exact rational.
RULES: dict[str, tuple[str, Any]] = {
    "double": ("pm:logit_drift>logit_span", lambda p, v, u: 2 * u),
    "over_temperature": ("pm:logit_span>effective_span", lambda p, v, u: u),
    "drift_over_temperature": ("pm:logit_drift>effective_span", lambda p, v, u: 2 * u),
    "same": ("pm:effective_span>log_ratio s:tv_seq>pass_rate_drift", lambda p, v, u: u),
    "exp": ("p:effective_span>ratio_above p:log_ratio>ratio_above p:effective_span>ratio_gap p:log_ratio>ratio_gap",
            lambda p, v, u: exp(u) <= 1 + v),
    "exp_below": ("pm:effective_span>ratio_below pm:log_ratio>ratio_below", lambda p, v, u: 1 - v <= exp(-u)),
    "tanh_quarter": ("pm:effective_span>tv", lambda p, v, u: exp(u / 2) * (1 - v) <= 1 + v),
    "tanh_half": ("pm:log_ratio>tv", lambda p, v, u: exp(u) * (1 - v) <= 1 + v),
    "kl_span": ("p:effective_span>kl_~",
                lambda p, v, u: exp((w := u / (1 - exp(-u))) - (1 + v)) <= w if u else v >= 0),
    "kl_log_ratio": ("p:log_ratio>kl_~", lambda p, v, u: u * (exp(u) - 1) <= v * (exp(u) + 1)),
    "sech_quarter": ("p:effective_span>bc", lambda p, v, u: v <= sech(u / 4)),
    "sinh_half": ("p:effective_span>chi2", lambda p, v, u: (exp(u / 2) - exp(-u / 2)) ** 2 <= 4 * v),
    "ln_ratio": ("p:ratio_above,ratio_below>log_ratio", lambda p, v, u, w: 1 + u <= exp(v) and exp(-v) <= 1 - w),
    "larger": ("p:ratio_above,ratio_below>ratio_gap", lambda p, v, u, w: max(u, w)),
    "tv_ratio": ("p:ratio_above,ratio_below>tv", lambda p, v, u, w: u * w / (u + w) if u * w else Q(0)),
    "kl_ratio_f": ("p:ratio_above,ratio_below>kl_reference_candidate", lambda p, v, u, w:
                   ln(1 + u) * (w * (1 + u)) + ln(1 - w) * (u * (1 - w)) <= v * (u + w)),
    "kl_ratio_r": ("p:ratio_above,ratio_below>kl_candidate_reference", lambda p, v, u, w:
                   ln(1 + u) * -w - ln(1 - w) * u <= v * (u + w)),
    "pinsker": ("pm:kl_~>tv s:kl_seq_~>tv_seq", lambda p, v, u: v >= 1 or u <= 2 * v * v),
    "bretagnolle_huber": ("pm:kl_~>tv s:kl_seq_~>tv_seq", lambda p, v, u: 1 - v * v <= exp(-u)),
    "bc_tv": ("pm:tv>bc", lambda p, v, u: 1 - min(u, 1)),
    "bc_kl": ("pm:kl_~>bc", lambda p, v, u: v <= exp(-u / 2)),
    "le_cam": ("p:bc>tv s:bc_seq>tv_seq", lambda p, v, u: 1 - u * u <= v * v),
    "chi2_root": ("pm:chi2>tv s:chi2_seq>tv_seq", lambda p, v, u: v >= 1 or u <= 4 * v * v),
    "mean": ("p:*>*", lambda p, v, u: u),
    "mix": ("p:tv>tv p:ratio_below>ratio_below", lambda p, v, u: u + p.rho * (1 - u)),
    "union": ("p:tv>tv_seq", lambda p, v, u:
              v >= 1 or (u <= 1 and 1 - (v - p.horizon * p.rho) <= wrap(1 - u) ** p.horizon)),
    "affinity": ("p:effective_span>tv_seq", lambda p, v, u:
                 v >= 1 or (v >= (x := p.horizon * p.rho) and 1 - (v - x) ** 2 <= sech(u / 4) ** (2 * p.horizon))),
    "binomial": ("p:log_ratio>tv_seq", lambda p, v, u:
                 v >= 1 or odds(exp(-u), p.horizon) <= (v - p.horizon * p.rho) * (1 + exp(-u)) ** p.horizon),
    "power": ("p:bc>bc_seq", lambda p, v, u: v <= wrap(min(u, 1)) ** p.horizon),
    "chi2_power": ("p:chi2>chi2_seq", lambda p, v, u: wrap(1 + u) ** p.horizon <= 1 + v),
    "sum": ("m:tv>tv_seq", lambda p, v, u: min(Q(1), p.horizon * u)),
    "chain": ("p:kl_~>kl_seq_~ m:kl_candidate_reference>kl_seq_candidate_reference", lambda p, v, u: p.horizon * u),
    "nll": ("pm:log_ratio>perplexity_factor", lambda p, v, u: exp(u) <= v),
    "gap_power": ("p:ratio_above,ratio_below>ratio_gap_seq", lambda p, v, u, w:
                  wrap(1 + u) ** p.horizon <= 1 + v and (v >= 1 or 1 - v <= wrap(1 - min(w, 1)) ** p.horizon)),
    "ess_span": ("p:effective_span>ess", lambda p, v, u: v <= sech(u / 2) ** (2 * p.horizon)),
    "ess_chi2": ("s:chi2_seq>ess", lambda p, v, u: 1 / (1 + u)),
    "reward": ("s:tv_seq>reward_drift", lambda p, v, u: p.reward_range * u),
    "reward_chi2": ("s:chi2_seq>reward_drift", lambda p, v, u: p.reward_range**2 * u <= 4 * v * v),
    "gradient": ("s:tv_seq>pg_bias", lambda p, v, u: 2 * p.advantage * p.score_norm * u),
    "gradient_tokens": ("s:tv_seq>pg_bias", lambda p, v, u: 2 * p.advantage * p.horizon * p.token_score_norm * u),
    "gradient_gap": ("s:ratio_gap_seq>pg_bias", lambda p, v, u: p.advantage * p.score_norm * u),
    "clip": ("pm:ratio_gap>clip_share", lambda p, v, u: u / p.clip),
}
# fmt: on


def sign(quantity: str) -> int:
    """1 where limits are upper ones, -1 where they are lower ones."""
    return -1 if quantity in LOWER else 1


def side(row: Row, t: Q) -> Q:
    """The limit at a temperature, its sign such that a smaller number says more."""
    return (row[3] + row[4] * t) * sign(row[0])


def limits(x: Any, key: int = 0) -> list[Row]:
    """What a clause (with its number) or a claim bounds, one row for each quantity."""
    rho, mode, found = num(x.get("except", "0")), x["mode"], x["limits"].items()
    need(0 <= rho <= (mode == "point") and mode in ("point", "mean", "sequence"), "an exception out of place")
    need(found and all(q in (RESPONSE if mode == "sequence" else TOKEN) for q, _ in found), "a quantity out of place")
    return [(q, mode, {key: rho} if rho else {}, num(v[0]), num(v[1])) for q, v in found]


def given(x: Any, key: int, gives: str, on: str, ends: list[Q], last: bool) -> Row:
    """A clause as a row, where it speaks of every context of the slice `on` at every temperature of the piece."""
    row = next(r for r in limits(x, key) if r[0] == gives)
    whole = "on" not in x and (on == "" or row[1:3] == ("point", {}))
    need(whole or (isinstance(x["on"], list) and on in x["on"]), "a clause on other contexts")
    low, high, end = x.get("band", ("0", str(ends[1]), "closed"))
    need(num(low) <= ends[0] and ends[1] <= num(high), "a clause at other temperatures")
    need(ends[1] < num(high) or end == "closed" or not last, "a band that leaves its end open")
    return row


def weakest(by: str, used: list[Row], ends: list[Q]) -> list[Q]:
    """The premises of a step where they say least, over the temperature for the one rule that divides by it."""
    scale = ends if by.endswith("over_temperature") else [Q(1), Q(1)]
    return [max(side(r, t) / y for t, y in zip(ends, scale, strict=True)) * sign(r[0]) for r in used]


def conclude(x: Any, rows: list[Row], p: Any, ends: list[Q]) -> Row:
    """The row that one step of a proof adds to those before it."""
    by, gives, used = x["by"], x["gives"], [rows[i] for i in x["of"]]
    mode, fails = used[0][1], {k: v for r in used for k, v in r[2].items()}
    need(all(r[1] == mode for r in used), "premises of different modes")
    if by == "combine":
        w = [num(v) for v in x["weights"]]
        need(min(w) >= 0 and sum(w) == 1 and {r[0] for r in used} == {gives}, "no convex combination")
        pairs = list(zip(w, used, strict=True))
        return gives, mode, fails, sum((a * r[3] for a, r in pairs), Q(0)), sum((a * r[4] for a, r in pairs), Q(0))
    need(by in p.rules, f"no rule `{by}` here")
    kinds, formula = p.rules[by]
    shapes = [k.replace("~", w).replace("*", gives).split(":") for k in kinds.split() for w in WAYS]
    shape = ",".join(r[0] for r in used) + ">" + gives
    need(any(mode[0] in modes and shape == s for modes, s in shapes), f"`{by}` does not give {shape}")
    to = "sequence" if gives in RESPONSE else "mean" if by in ("mean", "mix") else mode
    need(not fails or to == mode or by in COUNTING, f"`{by}` admits no exception")
    p.rho, v = sum(fails.values(), Q(0)), num(x["value"])
    u = weakest(by, used, ends)
    need(min(u) >= 0, "a premise below zero")
    got = formula(p, v, *u)
    if isinstance(got, bool):
        unit = Q(10) ** (Decimal(x["value"]).adjusted() - DIGITS + 1)
        nearer = v - unit * sign(gives)
        need(got and v >= 0, f"{x['value']} does not bound {gives}")
        need(v % unit == 0 and (nearer < 0 or not formula(p, nearer, *u)), f"{x['value']} is not rounded as it must be")
    else:
        need(v == got, f"{gives} is {got}, not {x['value']}")
    return gives, to, fails if to == mode else {}, v, Q(0)


def prove(claim: Any, clauses: list[Any], p: Any) -> None:
    """Check the proof of a claim: pieces that cover the temperatures, half-open but the last, each with its steps."""
    cuts = [*(num(x["from"]) for x in claim["proof"]), p.temperature[1]]
    covered = len(cuts) > 1 and cuts[0] == p.temperature[0] and cuts == sorted(cuts)
    need(covered, "pieces that do not cover the temperatures")
    for i, piece in enumerate(claim["proof"]):
        ends, rows, goals = cuts[i : i + 2], list[Row](), limits(claim)
        for x in piece["steps"]:
            if x["by"] == "clause":
                (k,), last = x["of"], i == len(claim["proof"]) - 1
                need(k in range(len(clauses)), "no such clause")
                rows.append(given(clauses[k], k, x["gives"], claim.get("on", ""), ends, last))
            else:
                rows.append(conclude(x, rows, p, ends))
        fails = {k: v for r in rows[-len(goals) :] for k, v in r[2].items()}
        need(sum(fails.values()) <= num(claim.get("except", "0")), "more exceptions than the claim allows")
        need(ends[1] > 0 or not any(r[4] for r in rows + goals), "a limit that varies with a temperature not assumed")
        for row, goal in zip(rows[-len(goals) :], goals, strict=True):
            need(row[:2] == goal[:2] and all(side(row, t) <= side(goal, t) for t in ends), f"{goal[0]} is not reached")


def most(x: Real, n: int) -> Real:
    """P(Bin(n, x) > n/2), from terms relative to the one at the mean so that none of them is lost to rounding."""
    odd, even, mean = x * (1 / (1 - x)), (1 - x) * (1 / x), n * x.lo >> BITS
    terms = {mean: Real(ONE, ONE)}
    for k in range(mean, n):
        terms[k + 1] = terms[k] * odd * Q(n - k, k + 1)
    for k in range(mean, 0, -1):
        terms[k - 1] = terms[k] * even * Q(k, n - k + 1)
    return total(v for k, v in terms.items() if 2 * k > n) * (1 / total(terms.values()))


def measure(t: Q, z: list[Q], y: list[Q], lifted: list[int], n: int, p: Any) -> dict[str, Any]:
    """Every quantity of n independent tokens with logits z (reference) and y (candidate).

    Of responses: what the event shows that most of the tokens are `lifted`; reward and score may follow that event.
    """
    a, b = ([wrap(x / t) - ln(total(exp(w / t) for w in s)) for x in s] for s in (z, y))
    r, errors = [u - v for u, v in zip(a, b, strict=True)], [v - u for u, v in zip(z, y, strict=True)]
    ps, qs, back = [exp(u) for u in a], [exp(v) for v in b], [x * -1 for x in r]
    masses = [total(s[i] for i in lifted) for s in (ps, qs)]
    upper = [most(x, n) for x in masses]
    above, below, span = exp(top(r)) - 1, 1 - exp(top(back) * -1), max(errors) - min(errors)
    gap, moved = top([above, below]), top([upper[0] - upper[1], upper[1] - upper[0]])
    return {
        "logit_drift": max(abs(x) for x in errors), "logit_span": span, "effective_span": span / t,
        "tv": total(top([u - v, v - u]) for u, v in zip(ps, qs, strict=True)) * Q(1, 2),
        "kl_reference_candidate": total(u * x for u, x in zip(ps, r, strict=True)),
        "kl_candidate_reference": total(v * x for v, x in zip(qs, back, strict=True)),
        "chi2": total(u * exp(x) for u, x in zip(ps, r, strict=True)) - 1,
        "bc": total(exp((u + v) * Q(1, 2)) for u, v in zip(a, b, strict=True)),
        "log_ratio": top(r + back), "ratio_above": above, "ratio_below": below, "ratio_gap": gap,
        "clip_share": gap * (1 / p.clip) if hasattr(p, "clip") else None,
        "tv_seq": Real(moved.lo, ONE), "pass_rate_drift": moved,
        "reward_drift": moved * p.reward_range if hasattr(p, "reward_range") else None,
        "pg_bias": moved * (2 * p.advantage * p.score_norm) if hasattr(p, "score_norm") else None,
    }  # fmt: skip


def refute(claim: Any, clauses: list[Any], p: Any) -> None:
    """Check a counterexample: at its logits and temperature it meets every clause and breaks the claim."""
    x, (low, high) = claim["instance"], p.temperature
    t, n, lifted = num(x["temperature"]), x["tokens"], sorted(set(x["lifted"]))
    need(t > 0 and (high == 0 or low <= t <= high), "an instance at another temperature")
    need(1 <= n <= min(getattr(p, "horizon", 1), 4096), "an instance of too many tokens")
    need(lifted == [i for i in range(len(x["reference"])) if i in lifted], "no such token")
    m = measure(t, [num(v) for v in x["reference"]], [num(v) for v in x["candidate"]], lifted, n, p)
    for c in clauses:
        start, end, edge = c.get("band", ("0", str(t), "closed"))
        if num(start) <= t < num(end) or (t == num(end) and edge == "closed"):
            met = all(m[r[0]] * sign(r[0]) <= side(r, t) for r in limits(c))
            need(met, f"the instance breaks `{c['name']}`")
    broken = any(m[g[0]] * sign(g[0]) >= side(g, t) + Q(1, 10**60) for g in limits(claim))
    need(broken, "the instance keeps the claim")


def words(x: Any) -> str:
    """What a clause or a claim says."""
    slopes = {q: f" + {v[1]} T" if num(v[1]) else "" for q, v in x["limits"].items()}
    atoms = [f"{q} {'>=' if q in LOWER else '<='} {v[0]}{slopes[q]}" for q, v in x["limits"].items()]
    rest = [f"{w} {x[k]}" for k, w in (("except", "except"), ("on", "on"), ("band", "for T in")) if k in x]
    return " ".join([*(["mean"] if x["mode"] == "mean" else []), " and ".join(atoms), *rest])


def seal(doc: Any) -> str:
    """SHA-256 of everything but the seal: it tells damage, not forgery."""
    body = {k: v for k, v in doc.items() if k != "seal"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def setting(facts: dict[str, Any], more: Any = None) -> Any:
    """The assumptions as numbers, beside the rules that a proof may use."""
    low, high = (num(x) for x in facts.get("temperature", ("0", "0")))
    texts = {k: v for k, v in facts.items() if k not in ("temperature", "sampler")}
    numbers = {k: int(v) if k == "horizon" else num(v) for k, v in texts.items()}
    need(facts["sampler"] == "full_softmax", "no rule is about another sampler")
    need(min(0, low, high, *numbers.values()) == 0, "an assumption below zero")
    return SimpleNamespace(temperature=[low, high], rules=RULES | (more or {}), **numbers)


def verify(claim: Any, doc: Any, more: Any) -> str:
    """The statement of one claim after a check of its evidence."""
    facts = doc["assume"] | claim.get("within", {})
    {"PROVED": prove, "REFUTED": refute}[claim["verdict"]](claim, doc["clauses"], setting(facts, more))
    used = {x["of"][0] for piece in claim.get("proof", ()) for x in piece["steps"] if x["by"] == "clause"}
    rests = [c for k, c in enumerate(doc["clauses"]) if k in used or claim["verdict"] == "REFUTED"]
    free = [f"any {name}" for name in claim.get("free", ())] + [
        f"{k} {v}" for k, v in claim.get("instance", {}).items()
    ]
    assumed = [f"{k} {' to '.join(v) if k == 'temperature' else v}" for k, v in facts.items()]
    under = [*assumed, *(f"{c['name']}: {words(c)}" for c in rests), *free]
    return f"{claim['verdict']} {claim['name']}: {words(claim)} [{'; '.join(under)}]"


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
