"""A quick check of the prover from many sides: what a seeded fault must not get past. Run by path in a fresh process.

`inconsistencies` returns what showed; empty for the prover as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from fractions import Fraction as F
from random import Random

import random_questions as rq
import sympy as sp
import z3
from flint import arb
from questions import QUESTIONS
from random_contracts import contract_of, near_tight
from worlds import broken, measure

from kcverify.bounds.invert import weakest_premise
from kcverify.catalog.lemmas import BY_NAME as LEMMAS
from kcverify.catalog.quantities import BY_NAME, PARAMETERS, RHO
from kcverify.diagnostics import Report
from kcverify.enclosure import ball, enclose, precision, rational, value_down, value_up
from kcverify.prove import corner, linear
from kcverify.prove.budget import derive, fill
from kcverify.prove.consistency import consistency
from kcverify.prove.encoding import encode, number
from kcverify.prove.obligations import atoms, certifiable, in_graph, obligations, whole_piece
from kcverify.prove.prover import prove
from kcverify.prove.question import Question
from kcverify.prove.question import linear as question_linear
from kcverify.prove.question.peel import span_of_kl
from kcverify.prove.verdict import Limits

Found = Iterator[str]
HEAD = (
    "contract battery\nassume {{ temperature in [0.6, 1.0]; sampler = {sampler}; horizon <= {horizon} tokens; reward in [0, 1];"
    ' advantage in [-1, 1]; score_norm <= 1 }}\nslice a = prompt_tokens >= 10\nslice b = tag("code")\n'
)


def _contract(numerical: str, guarantee: str = "", sampler: str = "full_softmax", horizon: int = 1, more: str = ""):
    head = HEAD.format(sampler=sampler, horizon=horizon)
    body = (
        (f"numerical {{\n{numerical}\n}}\n" if numerical else "")
        + more
        + (f"guarantee {{\n{guarantee}\n}}\n" if guarantee else "")
    )
    return contract_of(head + body)


def roundings() -> Found:
    """Directed values lie on their side, at any width."""
    rng = Random(1)
    for _ in range(12):
        x, bits = F(rng.randint(1, 10**6), 10**6), rng.randint(4, 40)
        with precision(300):
            truth = ball(x).tanh()
            if not ball(rational(truth, up=True, bits=bits)) >= truth >= ball(rational(truth, up=False, bits=bits)):
                yield f"rational({x}, {bits})"
            if not ball(rational(-truth, up=True, bits=bits)) >= -truth >= ball(rational(-truth, up=False, bits=bits)):
                yield f"rational(-{x}, {bits})"
            for up in (True, False):
                s = span_of_kl(x, up=up, bits=8)
                value = _g(s)
                if (value < ball(x)) if up else (value > ball(x)):
                    yield f"span_of_kl({x}, up={up})"
    wide = arb(0.5, 0.25)
    if not (ball(rational(wide, up=True, bits=8)) >= wide and ball(rational(wide, up=False, bits=8)) <= wide):
        yield "rational of a wide ball"
    t = sp.Symbol("t", nonnegative=True)
    for x in (F(1, 40), F(7, 3)):
        with precision(300):
            if not ball(value_up(sp.tanh(t), {t: x})) >= ball(x).tanh() >= ball(value_down(sp.tanh(t), {t: x})):
                yield "value_up, value_down"
    if value_up(t / 3, {t: F(1)}) != F(1, 3):
        yield "an exact rational was widened"


def _g(s: F):
    w = ball(s) / (1 - (-ball(s)).exp())
    return w - 1 - w.log()


def questions() -> Found:
    """The 35 and random near-tight questions at few bits, against their truth."""
    known = [(k.question, k.truth) for k in QUESTIONS if not k.hard]
    rng = Random(11)
    near = [x for x in (rq.near_tight(rng) for _ in range(110)) if x is not None]
    for i, (question, truth) in enumerate([*known, *near]):
        answer = question_linear.linear(question, Limits(constant_bits=6 + i % 7, doublings=0))
        if answer is not None and (answer.status.value == "PROVED") is not truth:
            yield f"{question.name}: {answer.status.value}, truth {truth}"
    box = {rq.d: (F(0), F(1)), rq.T: (F(1, 10), F(2))}
    near_edge = ((rq.d - rq.T / 20,),)
    for goal, hypotheses, truth in (
        (rq.TV - 2, near_edge, True),
        (-2 - rq.TV, near_edge, True),
        (sp.Integer(1), (*near_edge, (2 - rq.TV,)), True),
        (rq.d - rq.T / 20, near_edge, True),
        (rq.d / 3 - rq.T / 60, near_edge, True),
        (rq.T / 20 - rq.d, near_edge, False),
        (-rq.d, ((rq.T / 20 - rq.d,),), True),
        (sp.Rational(1, 50) - rq.d, ((rq.T / 20 - rq.d,),), False),
    ):
        answer = question_linear.linear(Question(box, goal, hypotheses), Limits())
        if answer is None or (answer.status.value == "PROVED") is not truth:
            yield f"{goal} <= 0 under {hypotheses}: {answer and answer.status}"
    sharp = [k for k in QUESTIONS if not k.hard and question_linear.linear(k.question, Limits()) is None]
    yield from (f"{k.question.name}: undecided" for k in sharp)


def links() -> Found:
    """Every lemma instance of some encodings, its bound enclosed again at the instance's own premise."""
    contract = _contract(
        "c: logit_drift <= 0.02 * temperature -> L1\nd: kl(reference || candidate) <= 1e-4 nats -> L1\ne: log_ratio <= 0.1 except 1% -> L1",
        "g: reward_drift <= 0.3\nk: mean tv <= 0.03",
        horizon=4,
    )
    claims = obligations(contract)
    whole = whole_piece(contract, "")
    boxes = corner.piece_parameters(contract, claims[0], whole)
    given = [a for c in contract.clauses if in_graph(c) for a in atoms(c)]
    encoding = encode(whole, boxes, given, [a for o in claims for a in o.atoms])
    seen: dict[str, int] = {}
    for link in encoding.links:
        if link.premise is None:
            if seen.get(link.source.quantity, 0) < 2:
                yield from _linear_row(link, encoding)
            seen[link.source.quantity] = seen.get(link.source.quantity, 0) + 1
            continue
        if link.lemma.name not in seen:
            yield from _formula(link, encoding)
        seen[link.lemma.name] = seen.get(link.lemma.name, 0) + 1
        if link.lemma.special or seen[link.lemma.name] > 12:
            continue
        conclusion, premise = BY_NAME[link.lemma.conclusion], BY_NAME[link.source.quantity]
        at = {PARAMETERS[n]: boxes.box[n] for n in link.lemma.parameters}
        for ends in itertools.product(*at.values()):
            env = {**dict(zip(at, ends, strict=True)), premise.symbol: link.premise, RHO: link.source.rho}
            value = enclose(link.lemma.bound, env, 200)
            if (value > ball(link.conclusion)) if conclusion.upper else (value < ball(link.conclusion)):
                yield f"link {link.lemma.name}: {link.premise} gives more than {link.conclusion}"
    for name, target in (("tv_of_span", F(1, 50)), ("kl_of_span_forward", F(1, 900)), ("bc_of_span", F(99, 100))):
        x = weakest_premise(name, target, (), F(0))
        row = LEMMAS[name]
        value = enclose(row.bound, {BY_NAME[row.premises[0]].symbol: x or F(0)}, 200)
        upper = BY_NAME[row.conclusion].upper
        if x is None or ((value > ball(target)) if upper else (value < ball(target))):
            yield f"weakest_premise({name})"
        elif abs(value - ball(target)) > ball(target / 10**6):
            yield f"weakest_premise({name}) is not the weakest"


def _holds(encoding, formula, values) -> bool:
    at = {**{encoding.symbol(n): x for n, x in values.items()}, "T": encoding.piece.low}
    solver = z3.Solver()
    fixed = "".join(f"(assert (= {name} {number(x)}))" for name, x in at.items())
    solver.from_string("".join(encoding.declarations()) + fixed + f"(assert {formula})")
    return solver.check() == z3.sat


def _formula(link, encoding) -> Found:
    """A link's formula at points on both sides of its constants, as plain logic."""
    up, out_up = BY_NAME[link.source.quantity].upper, BY_NAME[link.target.quantity].upper
    for a, b in itertools.product((F(1, 2), F(1), F(2)), repeat=2):
        x, y = link.premise * a, link.conclusion * b
        within = x <= link.premise if up else x >= link.premise
        reached = y <= link.conclusion if out_up else y >= link.conclusion
        if _holds(encoding, encoding.link_formula(link), {link.source: x, link.target: y}) is not (
            not within or reached
        ):
            yield f"formula of {link.lemma.name}"


def _linear_row(link, encoding) -> Found:
    """The rows that stand as they are: `s = sigma / T` and `sigma <= 2 delta`."""
    top, c = encoding.piece.low, link.conclusion
    for a, b in itertools.product((F(1, 2), F(1), F(5, 4), F(2)), repeat=2):
        if link.source.quantity == "logit_drift":
            x, y = F(1, 10) * a, F(1, 5) * b
            wanted = y <= 2 * x
        else:
            x, y = c * top * a, c * b
            wanted = x > c * top or y <= c
        if _holds(encoding, encoding.link_formula(link), {link.source: x, link.target: y}) is not wanted:
            yield f"formula of {link.lemma.name}"


# clauses, claims, horizon -> claims (with slice) that are true, and that are false; the rest may be either
FIXED: tuple[tuple[str, str, int, str, str], ...] = (
    ("c: logit_span <= 0.1 -> L1", "t: tv <= 0.04164258\nf: tv <= 0.04164257\nm: log_ratio <= 0.1666667", 1, "t m", "f"),
    ("c: logit_span <= 0.1 * temperature -> L1", "t: tv <= 0.024994793\nf: tv <= 0.0249947\nk: logit_span <= 0.1\nn: logit_span <= 0.0999", 1, "t k", "f n"),
    ("c: logit_span <= 0.1 * temperature + 0.01 -> L1", "t: tv <= 0.0292\nf: tv <= 0.0291\nk: tv <= 0.0291 when temperature in [0.7, 1.0]", 1, "t k", "f"),
    ("c: tv <= 0.02 -> L1", "t: tv <= 0.02\nf: tv <= 0.01999\nk: tv <= 0.04 * temperature\nn: tv <= 0.025 * temperature", 1, "t k", "f n"),
    ("c: tv <= 0.02 except 1% -> L1", "t: mean tv <= 0.0298\nf: mean tv <= 0.0297\nk: tv <= 0.02 except 1%\nn: tv <= 0.02 except 0.5%\nm: tv <= 0.5", 1, "t k", "f n m"),
    ("c: tv <= 0.02 except 1% -> L1", "t: tv <= 0.02 except 1%\nf: tv <= 0.02 except 1% on a\nn: mean tv <= 0.03 on a", 1, "t", "f n"),
    ("c: tv <= 0.02 -> L1", "t: tv <= 0.02 on a, b\nk: mean tv <= 0.02 on b", 1, "t k", ""),
    ("c: mean tv <= 0.02 -> L1", "t: mean tv <= 0.02\nf: mean tv <= 0.02 on a\nn: tv <= 0.3", 1, "t", "f n"),
    ("c: tv <= 0.02 on a -> L1", "t: tv <= 0.02 on a\nf: tv <= 0.02\nn: tv <= 0.02 on b", 1, "t", "f n"),
    ("c: kl(candidate || reference) <= 0.01 nats except 1% -> L1", "f: mean kl(candidate || reference) <= 5 nats\nt: mean tv <= 0.0801", 1, "t", "f"),
    ("c: mean kl(candidate || reference) <= 0.01 nats -> L1", "f: mean tv <= 0.08\nn: reward_drift <= 0.08", 1, "", "f n"),
    ("c: importance_ratio <= 1.05 except 1% -> L1\nd: importance_ratio >= 0.95 except 1% -> L1",
     "f: importance_ratio in [0.95, 1.05] except 1%\nt: importance_ratio in [0.95, 1.05] except 2%\nn: log_ratio <= 0.06 except 1%", 1, "t", "f n"),
    ("c: importance_ratio <= 1.05 except 1% -> L1\nd: importance_ratio >= 0.95 except 1% -> L1\ne: logit_span <= 0.5 when temperature in [0.6, 0.8) -> L1",
     "f: importance_ratio in [0.95, 1.05] except 1%", 1, "", "f"),
    ("c: importance_ratio in [0.95, 1.05] except 1% -> L1", "t: importance_ratio in [0.95, 1.05] except 1%\nf: importance_ratio in [0.96, 1.05] except 1%", 1, "t", "f"),
    ("c: logit_span <= 0.1 when temperature in [0.6, 0.8) -> L1\nd: logit_span <= 0.12 when temperature in [0.8, 1.0] -> L1",
     "t: tv <= 0.0417\nf: tv <= 0.0416\nn: logit_span <= 0.11", 1, "t", "f n"),
    ("c: logit_span <= 0.1 when temperature in [0.6, 0.8) -> L1\nd: logit_span <= 0.12 when temperature in [0.9, 1.0] -> L1", "f: tv <= 0.3", 1, "", "f"),
    ("c: logit_span <= 0.1 when temperature in [0.6, 1.0) -> L1", "f: tv <= 0.3", 1, "", "f"),
    ("c: tv <= 0.001 -> L1", "t: reward_drift <= 0.00798\nf: reward_drift <= 0.00797\nk: pg_bias <= 0.01595", 8, "t k", "f"),
    ("c: tv <= 0.001 except 0.1% -> L1", "t: reward_drift <= 0.01598\nf: reward_drift <= 0.0079", 8, "t", "f"),
    ("c: mean tv <= 0.001 -> L1", "t: reward_drift <= 0.008", 8, "t", ""),
    ("c: logit_span <= 0.1 -> L1", "f: reward_drift <= 0.09\nn: ess >= 0.97\nt: ess >= 0.94", 8, "t", "f n"),
    ("c: logit_span(mass = 0.999) <= 0.1 -> L1", "t: tv <= 0.042601\nf: tv <= 0.0425\nk: logit_span(mass = 0.9) <= 0.1\nn: logit_span <= 0.5\nm: logit_span(mass = 0.9999) <= 0.5", 1, "t k", "f n m"),
    ("c: logit_span(mass = 0.6) <= 0.001 -> L1\nd: logit_span(mass = 0.999) <= 1 -> L1", "f: tv <= 0.3\nt: tv <= 0.3955", 1, "t", "f"),
    ("c: logit_span(mass = 0.999) <= 0.1 except 1% -> L1", "t: tv <= 0.042601 except 1%\nf: tv <= 0.042601", 1, "t", "f"),
    ("c: log_ratio <= 0.05 except 1% -> L1", "f: ess >= 0.5\nn: clip_share(clip = 0.2) <= 30%\nt: clip_share(clip = 0.2) <= 26% except 1%", 1, "t", "f n"),
)  # fmt: skip


# clauses on choices, claims -> claims that are true, and that are false
CHOICES: tuple[tuple[str, str, str, str], ...] = (
    ("s: agreement(top = 1) >= 99% -> L1", "t: flip_rate <= 1%\nk: agreement >= 98%\nf: agreement >= 99.5%\nn: flip_rate <= 1% on a\nm: agreement >= 98% on a", "t k", "f n m"),
    ("s: flip_rate(margin = 0.1) <= 1% -> L1", "t: flip_rate(margin = 0.2) <= 1%\nf: flip_rate <= 1%\nn: agreement(top = 1) >= 99%", "t", "f n"),
    ("s: agreement(top = 5) >= 99% -> L1", "f: flip_rate <= 1%\nn: agreement(top = 1) >= 99%", "", "f n"),
    ("s: ece_drift(bins = reference, count = 10) <= 0.01 -> L1", "t: ece_drift(bins = reference, count = 10) <= 0.01\nf: ece_drift(bins = reference, count = 15) <= 0.02\nn: ece_drift(bins = own, count = 10) <= 0.02\nm: ece_drift(bins = reference, count = 5) <= 0.02", "t", "f n m"),
    ("s: ece_drift(bins = own, count = 10) <= 0.01 -> L1", "n: ece_drift(bins = reference, count = 10) <= 0.02", "", "n"),
    ("s: agreement(top = 1) >= 100% -> L1", "f: ece_drift(bins = reference) <= 0.9", "", "f"),
    ("s: perplexity_ratio in [0.9, 1.2] -> L1", "t: perplexity_ratio in [0.9, 1.2]\nf: perplexity_ratio in [0.9, 1.15]\nn: perplexity_ratio in [0.95, 1.2]", "t", "f n"),
)  # fmt: skip


def contracts() -> Found:
    """Fixed contracts: what is true must be proved, what is false must not; no refutation of a truth."""
    fixed = [(_contract(n, g, horizon=h), t, f) for n, g, h, t, f in FIXED]
    fixed += [(_contract("", g, more=f"statistical {{\n{s}\n}}\n"), t, f) for s, g, t, f in CHOICES]
    for contract, true, false in fixed:
        for v in prove(contract):
            name, status = v.claim.name, v.status.value
            if (name in true.split() and status != "PROVED") or (name in false.split() and status == "PROVED"):
                yield f"{contract.clauses[0].text}: {v.claim.text} is {status}"
            yield from _replayed(contract, v)
    for sampler in ("greedy", "top_p(0.9)", "top_k(40)"):
        contract = _contract(
            "c: logit_span <= 0.1 -> L1\nd: tv <= 0.5 -> L1",
            "g: tv <= 0.1\nh: tv <= 0.01\nk: log_ratio <= 0.2",
            sampler=sampler,
        )
        yield from (
            f"{sampler}: {v.claim.text} is {v.status.value}" for v in prove(contract) if v.status.value != "UNKNOWN"
        )


def _binds(clause, temperature) -> bool:
    if clause.band is None:
        return True
    i = clause.band.interval
    above = i.low is None or temperature >= i.low
    return above and (i.high is None or temperature < i.high or (temperature == i.high and not i.open_high))


def _replayed(contract, verdict) -> Found:
    """A counterexample computed again from its logits, in plain floating point."""
    c = verdict.counterexample
    if c is None or c.horizon != 1 or c.exceeding_share:
        return
    t = float(c.temperature)
    values = measure([float(z) for z in c.reference_logits], [float(z) for z in c.candidate_logits], t)
    for clause in (*(k for k in contract.clauses if _binds(k, c.temperature)), verdict.claim):
        for a in atoms(clause):
            name = a.node.quantity
            value = {
                "ratio_above": values["high"] - 1,
                "ratio_below": 1 - values["low"],
                "reward_drift": values["tv"],
                "effective_span": values["logit_span"] / t,
                "clip_share": max(values["high"] - 1, 1 - values["low"]) * 5,
                "pg_bias": 2 * values["tv"],
                "ess": 1 / (1 + values["chi2"]),
            }.get(name, values.get(name))
            if value is None:
                continue
            limit = float(a.at(c.temperature))
            over = value - limit if a.upper else limit - value
            if clause is verdict.claim:
                if len(atoms(clause)) == 1 and over < -1e-12:
                    yield f"the counterexample does not break {clause.text}"
            elif over > 1e-9 and not clause.exception:
                yield f"the counterexample breaks {clause.text}"


def populations() -> Found:
    """Random contracts whose proved claims no population may break."""
    for seed in range(8):
        rng = Random(seed)
        draft = near_tight(rng)
        if draft.claims:
            contract = contract_of(draft.text())
            yield from broken(contract, prove(contract), rng, 4)


def coupled() -> Found:
    """The linear step by itself on claims with a known truth."""
    contract = _contract(
        "c: logit_drift <= 0.02 when temperature in [0.6, 0.8) -> L1\nd: logit_drift <= 0.03 when temperature in [0.8, 1.0] -> L1",
        "t: tv <= 0.018749\nf: tv <= 0.018747\nk: logit_drift <= 0.03\nn: logit_drift <= 0.0299",
    )
    for o in obligations(contract):
        usable = [c for c in contract.clauses if certifiable(c, contract.clauses)]
        whole = whole_piece(contract, "")
        boxes = corner.piece_parameters(contract, o, whole)
        encoding = encode(whole, boxes, [a for c in usable for a in atoms(c)], o.atoms)
        answer = linear.entails(encoding, usable, o.atoms, Limits())
        if answer.proved is not (o.claim.name in "tk"):
            yield f"linear: {o.claim.text} is {answer.proved}"


FINDINGS: tuple[tuple[str, str], ...] = (
    ("c: tv <= 0.02 -> L1\nd: tv <= 0.03 -> L1", "dead d"),
    ("c: tv <= 0.02 -> L1\nd: tv <= 0.02 -> L1", "dead d"),
    ("c: tv <= 0.02 -> L1\nd: tv <= 0.03 except 1% -> L1\ne: mean tv <= 0.02 -> L1", "dead d dead e"),
    ("c: tv <= 0.02 except 1% -> L1\nd: tv <= 0.03 -> L1\ne: mean tv <= 0.0297 -> L1", ""),
    ("c: logit_span <= 0.1 -> L1\nd: tv <= 0.0416 -> L1\ne: tv <= 0.0417 -> L1", "dead e"),
    ("c: tv <= 0.02 on a -> L1\nd: tv <= 0.03 on a, b -> L1", ""),
    ("c: tv <= 0.02 -> L1\nd: tv <= 0.03 on a, b -> L1", "dead d"),
    ("c: importance_ratio <= 1.05 except 1% -> L1\nd: importance_ratio >= 0.95 except 1% -> L1\ne: importance_ratio in [0.9, 1.1] except 1% -> L1\nf: log_ratio <= 0.08 except 1% -> L1", ""),
    ("c: importance_ratio in [0.95, 1.05] except 1% -> L1\ne: importance_ratio in [0.9, 1.1] except 1% -> L1\nf: log_ratio <= 0.08 except 1% -> L1", "dead e dead f"),
    ("c: logit_span <= 0.1 when temperature in [0.6, 0.8) -> L1\nd: logit_span <= 0.1 when temperature in [0.8, 1.0] -> L1\ne: tv <= 0.042 -> L1\nf: logit_span <= 0.1 -> L1", "dead e dead f"),
    ("c: logit_span <= 0.1 when temperature in [0.6, 1.0) -> L1\ne: tv <= 0.042 -> L1", ""),
    ("c: mean tv <= 0.02 -> L1\nd: mean tv >= 0.03 -> L1", "contradictory c"),
    ("c: logit_span <= 0.1 -> L1\nd: mean tv >= 0.0417 -> L1", "contradictory c"),
    ("c: logit_span <= 0.1 -> L1\nd: mean tv >= 0.0416 -> L1", ""),
    ("c: logit_span <= 0.1 * temperature -> L1\nd: mean tv >= 0.025 -> L1", "contradictory c"),
    ("c: logit_span <= 0.1 * temperature -> L1\nd: mean tv >= 0.0249 -> L1", ""),
)  # fmt: skip


def findings() -> Found:
    """Dead and contradictory clauses, exactly those that are."""
    for numerical, wanted in FINDINGS:
        report = Report()
        consistency(_contract(numerical), report, Limits())
        found = sorted(f"{d.code.slug} {d.message.split('`')[1]}" for d in report.diagnostics)
        words = wanted.split()
        if found != sorted(f"{a} {b}" for a, b in zip(words[::2], words[1::2], strict=True)):
            yield f"{numerical!r}: {found}"


def budgets() -> Found:
    """Holes are filled with the largest value that is proved: rounded down, and not far down."""
    for hole, claim, horizon in (
        ("logit_span <= ?", "reward_drift <= 0.1", 1), ("logit_span <= ?", "tv <= 0.03", 1), ("tv <= ?", "reward_drift <= 0.1", 8),
        ("logit_drift <= ? except 0.1%", "mean tv <= 0.04", 1), ("kl(reference || candidate) <= ? nats", "tv <= 0.03", 1),
    ):  # fmt: skip
        contract = _contract(f"c: {hole} -> L1", f"g: {claim}", horizon=horizon)
        filled, failed = derive(contract)
        if failed or len(filled) != 1:
            yield f"{hole} for {claim}: not filled"
            continue
        (b,) = filled
        if not (F(b.decimal) <= b.value and F(b.monitor) <= b.value and b.value - F(b.decimal) <= b.value / 10**5):
            yield f"{hole} for {claim}: {b.decimal} and {b.monitor} are not just below {b.value}"
        if [v.status.value for v in prove(fill(contract, filled))] != ["PROVED"]:
            yield f"{hole} for {claim}: the filled contract is not proved"
        if b.breach <= 0:
            yield f"{hole} for {claim}: the next digit breaks nothing"


CHECKS: tuple[Callable[[], Found], ...] = (
    roundings,
    questions,
    links,
    contracts,
    coupled,
    findings,
    budgets,
    populations,
)


def inconsistencies(names: tuple[str, ...] = ()) -> str:
    """The first inconsistency with the check that found it; empty where there is none. An exception counts as one.

    `names` are the checks to run, all of them where it is empty.
    """
    for check in CHECKS:
        if names and check.__name__ not in names:
            continue
        try:
            for found in check():
                return f"{check.__name__}: {found}"
        except Exception as error:
            return f"{check.__name__}: {type(error).__name__}: {error}"
    return ""
