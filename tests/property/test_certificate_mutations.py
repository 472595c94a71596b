"""Thousands of changed certificates: each is rejected, or says something else that is still true.

Unsealed, every change is rejected. With the seal made anew, a change of one digit must be rejected or must change the
statement that is printed, and that statement must follow by the prover's own engine, which shares nothing with the
kernel. A change of structure that is accepted must leave a statement that follows.
"""

from __future__ import annotations

import copy
import random
from fractions import Fraction as F
from functools import cache
from itertools import product

import pytest

from kcverify import driver
from kcverify.bounds.graph import Fact, Node, Parameters, best_for, propagate
from kcverify.catalog.model import Mode
from kcverify.enclosure import ball, precision
from kcverify.prove import kernel
from kcverify.prove.certificate import certificate
from kcverify.prove.certificate_steps import Draft, number, value_text, write_step
from kcverify.prove.check import check
from kcverify.prove.replay import Setting, reading
from kcverify.reference.instance import Instance, Step
from kcverify.resources import contracts_dir
from kcverify.source import Source

HEAD = 'contract case version "1.0"\n  "A case"\nassume {\n  temperature in [0.5, 1.0]\n  sampler = full_softmax\n'
HEAD += "  horizon <= 24 tokens\n  reward in [-1, 1]\n  advantage in [-2, 2]\n  score_norm <= 1.5\n}\n"
WRITTEN = {
    "two sides": "numerical { w: importance_ratio in [0.9, 1.1] except 1% -> L2 }\nguarantee { ok: tv <= 0.0501 except 1% }",
    "binomial": "numerical { r: log_ratio <= 0.05 except 0.01% -> L2 }\nguarantee { ok: reward_drift <= 0.35 }",
    "means": "numerical { m: mean tv <= 0.001 -> L2 }\nguarantee { ok: pass_rate_drift <= 0.032 }",
    "divergence": "numerical { k: kl(reference || candidate) <= 1e-4 nats -> L2 }\nguarantee { ok: pg_bias <= 0.35 }",
    "bands": "numerical {\n  a: logit_span <= 0.05 when temperature in [0.5, 0.8) -> L2\n"
    "  b: logit_span <= 0.08 when temperature in [0.8, 1.0] -> L2\n}\nguarantee { ok: tv <= 0.025 }",
    "mixture": "numerical {\n  a: logit_span <= 0.05 -> L2\n  b: logit_span <= 0.3 * temperature - 0.112 -> L2\n}\n"
    "guarantee { ok: tv <= 0.0232 }",
    "trimmed": "numerical { d: logit_span(mass = 0.99) <= 0.05 except 1% -> L2 }\nguarantee { ok: tv <= 0.036 except 1% }",
    "flips": "statistical { a: agreement(top = 1) >= 99% -> L2 }\nguarantee { ok: flip_rate <= 1% }",
    "perplexity": "numerical { d: logit_span <= 0.05 -> L2 }\nguarantee { ok: perplexity_ratio in [0.9, 1.11] }",
    "chi-squared": "numerical { w: importance_ratio in [0.9, 1.1] -> L2 }\nguarantee { ok: chi2 <= 0.011 }",
    "exceeding": "numerical { m: mean tv <= 0.01 -> L2 }\nstatistical { a: agreement(top = 1) >= 97% -> L2 }\n"
    "guarantee { bad: reward_drift <= 0.2 }",
    "refuted": "numerical { d: logit_span <= 0.1 -> L2 }\nguarantee { bad: tv <= 0.01 }",
}  # fmt: skip
SHIPPED = ("deploy_int8", "fp8_deployment", "int4_edge", "reward_only", "rl_rollout", "budget")


TEMPERED = {"temperature": ["0.5", "1"]}
SPAN = ("clause", [0], "logit_span"), ("over_temperature", [0], "effective_span")
POLICY = {"horizon": "8", "advantage": "1.5", "score_norm": "2.5", "cap": "1.05"}
# Lemmas that no metric of the language reaches yet: assumptions, limits of the clauses, steps after them.
BY_HAND = {
    "confident": (TEMPERED | {"confidence": "0.93"}, [("point", {"logit_span": "0.35"})], [*SPAN, ("confident", [1], "tv")]),
    "not so confident": (TEMPERED | {"confidence": "0.51"}, [("point", {"logit_span": "0.35"})], [*SPAN, ("confident", [1], "tv")]),
    "entropy": ({"vocabulary": "32000"}, [("point", {"tv": "0.012"})], [("clause", [0], "tv"), ("entropy", [0], "entropy_drift")]),
    "truncated by ratio": (POLICY, [("point", {"ratio_above": "0.013", "ratio_below": "0.012"})], [
        ("clause", [0], "ratio_above"), ("clause", [0], "ratio_below"), ("gap_power", [0, 1], "ratio_gap_seq"),
        ("truncated_gap", [2], "tis_bias"),
    ]),
    "truncated": (TEMPERED | POLICY, [("point", {"logit_span": "0.035"})],
        [*SPAN, ("affinity", [1], "tv_seq"), ("truncated_tv", [2], "tis_bias")]),
    "closed form": (TEMPERED | {"horizon": "5"}, [("point", {"logit_span": "0.35"})], [*SPAN, ("closed", [1], "tv_seq")]),
    "room above": (TEMPERED | {"clip": "0.28"}, [("point", {"logit_span": "0.035"})],
        [*SPAN, ("exp", [1], "ratio_gap"), ("room_above", [2], "clip_room_above")]),
    "room below": ({"clip": "0.28"}, [("point", {"ratio_gap": "0.036"})],
        [("clause", [0], "ratio_gap"), ("room_below", [0], "clip_room_below")]),
    "calibration": ({}, [("mean", {"tv": "0.013"}), ("mean", {"thin_margin": "0.027"})], [
        ("clause", [0], "tv"), ("clause", [1], "thin_margin"), ("same", [1], "choice_changes"),
        ("calibration", [0, 2], "ece_drift@1/15"),
    ]),
    "perplexity of a mean": ({}, [("mean", {"log_ratio": "0.0135"})], [("clause", [0], "log_ratio"), ("nll", [0], "mean_perplexity_factor")]),
}  # fmt: skip


ASSUMED = POLICY | {
    "reward_range": "2",
    "token_score_norm": "0.15",
    "clip": "0.28",
    "confidence": "0.93",
    "vocabulary": "320",
}


def one_step(rule):
    """The same with one rule and clauses about its premises."""
    kinds, formula = kernel.RULES[rule]
    modes, shape = kinds.split()[0].replace("~", kernel.WAYS[0]).replace("@", "@0.9").replace("*", "tv").split(":")
    premises, gives = shape.split(">")
    mode = {"p": "point", "m": "mean", "s": "sequence"}[modes[0].lower()]
    clauses = [(mode, {q: "0.9871" if q in kernel.LOWER else "0.0135"}) for q in premises.split(",")]
    steps = [("clause", [i], q) for i, q in enumerate(premises.split(","))]
    assume = {k: v for k, v in ASSUMED.items() if k in formula.__code__.co_names}
    assume |= {"temperature": ["0.5", "1"]} if rule.endswith("over_temperature") else {}
    return assume, clauses, [*steps, (rule, list(range(len(steps))), gives)]


COVERED = {s[0] for *_, steps in BY_HAND.values() for s in steps}
BY_HAND |= {f"rule {rule}": one_step(rule) for rule in kernel.RULES if rule not in COVERED}


def by_hand(name):
    """A certificate whose last step gives its claim with one per cent to spare."""
    assume, limits, steps = BY_HAND[name]
    assume = {"sampler": "full_softmax"} | assume
    clauses = [
        {"name": f"c{i}", "mode": mode, "limits": {q: [v, "0"] for q, v in found.items()}}
        for i, (mode, found) in enumerate(limits)
    ]
    p = kernel.setting(assume)
    draft = Draft(p, p.temperature if p.temperature[1] else [F(0), F(0)], clauses, {}, "", True)
    for by, of, gives in steps:
        draft.grade = F(gives.partition("@")[2] or 1)
        value = {} if by == "clause" else {"value": value_text(draft, by, gives, of, F(1, 10))}
        write_step(draft, {"by": by, "of": of, "gives": gives} | value)
    quantity, mode, _, last, _ = draft.rows[-1]
    limit = number(F(f"{float(abs(last) * (1 + F(kernel.sign(quantity), 100))):.4g}"))
    claim = {"name": "ok", "verdict": "PROVED", "mode": mode, "limits": {quantity: [limit, "0"]}}
    start = assume.get("temperature", ["0"])[0]
    return sealed(
        {
            "format": kernel.FORMAT,
            "contract": {"name": "case", "version": "1", "digest": "sha256:0"},
            "assume": assume,
            "clauses": clauses,
            "claims": [claim | {"proof": [{"from": start, "steps": draft.steps}]}],
        }
    )


@cache
def original(name):
    if name in BY_HAND:
        return by_hand(name)
    if name in WRITTEN:
        source = Source("case.kc", HEAD + WRITTEN[name])
    else:
        path = next(contracts_dir().rglob(f"{name}.kc"))
        source = Source(path.name, path.read_text(encoding="utf-8"))
    (contract,) = driver.load_source(source).contracts
    doc = certificate(check(contract))
    doc["claims"] = [c for c in doc["claims"] if "beyond" not in c]  # the second check of those takes a second each
    return sealed(doc)


def numbers(doc, path=()):
    """Paths of all texts and whole numbers with a digit, beside the seal."""
    items = doc.items() if isinstance(doc, dict) else enumerate(doc) if isinstance(doc, list) else ()
    for key, value in items:
        if isinstance(value, dict | list):
            yield from numbers(value, (*path, key))
        elif (*path, key) != ("seal",) and any(c.isdigit() for c in str(value)):
            yield (*path, key), value


def others(digit, rng):
    """The digits next to a digit, and one of the rest."""
    beside = [str((int(digit) + by) % 10) for by in (-1, 1)]
    return [*beside, rng.choice([d for d in "0123456789" if d not in (digit, *beside)])]


def put(doc, path, value):
    out = copy.deepcopy(doc)
    inner = out
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return out


def sealed(doc):
    return {**doc, "seal": kernel.seal(doc)}


def lines(doc):
    """The statements, or None where the kernel rejects."""
    try:
        return kernel.check(doc)
    except kernel.BROKEN:
        return None


def follows(doc):
    """Whether every statement of the certificate follows by the lemma table and its ball arithmetic."""
    for claim in doc["claims"]:
        if "not_certified" in claim:
            continue
        if claim["verdict"] == "REFUTED":
            if not breaks(doc, claim):
                return False
            continue
        facts = doc["assume"] | claim.get("within", {})
        box = {k: (F(v), F(v)) for k, v in facts.items() if k not in ("sampler", "temperature")}
        if "temperature" in facts:
            box["temperature"] = (F(facts["temperature"][0]), F(facts["temperature"][1]))
        given = []
        for c, q, limit in ((c, *x) for c in doc["clauses"] for x in c["limits"].items()):  # noqa: B020
            node = node_of(q, c)
            given.append(Fact(node, F(limit[0]), label=c["name"]))
            if node.quantity == "trimmed_span":
                tail = Node("tail_mass", Mode.POINT, grade=node.grade)
                given.append(Fact(tail, 1 - node.grade, label=c["name"]))
        best = propagate(given, Parameters(box))
        for quantity, limit in claim["limits"].items():
            node, sign = node_of(quantity, claim), kernel.sign(quantity)
            fact = best_for(best, node.quantity, node.mode, node.rho, node.grade)
            if fact is None or sign * fact.value > sign * F(limit[0]) * (1 + sign * F(1, 10**20)):
                return False
    return True


def node_of(text, x):
    """A quantity of a certificate, with its grade, as a node of the bound graph."""
    name, _, grade = text.partition("@")
    return Node(name, Mode(x["mode"]), F(x.get("except", 0)), F(grade or 1))


def seen(instance, quantity, mode, rho, setting):
    """A quantity of the instance; changes of the ranking are read off the logits."""
    if quantity in ("disagreement", "ranking_changes"):
        ranks = [sorted(range(len(z)), key=z.__getitem__) for z in (instance.good.reference, instance.good.candidate)]
        return instance.token_share if ranks[0] == ranks[1] else F(1)
    return reading(instance, quantity, mode, rho, setting)


def breaks(doc, claim):
    """Whether the instance meets every clause and breaks the claim by the reference metrics."""
    facts, given = doc["assume"] | claim.get("within", {}), claim["instance"]
    logits = [tuple(F(x) for x in given[side]) for side in ("reference", "candidate")]
    step = Step(logits[0], logits[1], tuple(given["lifted"]))
    instance = Instance(step, F(given["temperature"]), given["tokens"], F(given.get("share", 0)))
    gradient = F(facts["advantage"]) * F(facts["score_norm"]) if "score_norm" in facts else None
    setting = Setting(F(facts["reward_range"]) if "reward_range" in facts else None, gradient, None)
    with precision(192):
        values = {
            id(x): [
                (seen(instance, q, Mode(x["mode"]), F(x.get("except", 0)), setting), v) for q, v in x["limits"].items()
            ]
            for x in (*doc["clauses"], claim)
        }
        limit = lambda v: F(v[0]) + F(v[1]) * instance.temperature  # noqa: E731
        wide = F(10**30 + 1, 10**30)
        met = all(as_ball(r) <= ball(limit(v) * wide) for c in doc["clauses"] for r, v in values[id(c)])
        return met and any(as_ball(r) > ball(limit(v)) for r, v in values[id(claim)])


def as_ball(value):
    return ball(value) if isinstance(value, F) else value


def plain(doc):
    """Whether `follows` can read the certificate: no bands, no proof with limits that vary with the temperature."""
    if all(c["verdict"] == "REFUTED" for c in doc["claims"]):
        return True
    limits = [v for c in (*doc["clauses"], *doc["claims"]) for v in c.get("limits", {}).values()]
    return not any("band" in c for c in doc["clauses"]) and all(F(v[1]) == 0 for v in limits)


def is_weaker(before, after, path):
    """Whether the change makes the whole statement weaker: a larger claim, or a clause that binds on a wider band."""
    if "band" in path:
        return F(after) < F(before) if path[-1] == 0 else F(after) > F(before)
    return path[0] == "claims" and ("limits" in path or path[-1] == "except") and F(after) > F(before)


@pytest.mark.parametrize("name", [*SHIPPED, *WRITTEN, *BY_HAND])
def test_one_digit_is_never_lost(name):
    doc = original(name)
    stated = lines(doc)
    assert stated is not None
    seen = accepted = 0
    rng = random.Random(name)
    for path, value in numbers(doc):
        text = str(value)
        places = [i for i, c in enumerate(text) if c.isdigit()]
        if path[-1] == "digest" or "instance" in path:
            places = rng.sample(places, min(len(places), 8))
        for i, digit in [(place, d) for place in places for d in others(text[place], rng)]:
            if isinstance(value, int) and i == 0 and digit == "0" and len(text) > 1:
                continue
            after = type(value)(text[:i] + digit + text[i + 1 :])
            changed = put(doc, path, after)
            seen += 1
            assert lines(changed) is None, "the seal holds a changed number"
            said = lines(sealed(changed))
            if said is None:
                continue
            accepted += 1
            assert said != stated, (path, value, after)
            if path[0] == "contract" or "name" in path:
                continue
            if plain(changed):
                assert follows(changed), (path, value, after)
            elif "temperature" not in path:
                assert is_weaker(value, after, path), (path, value, after)
    assert seen >= (16 if name in BY_HAND else 80) and accepted <= seen * (
        F(3, 4) if name.startswith("rule") else F(1, 2)
    )


def structures(doc, rng):
    """Changes of structure: steps, rules, quantities, modes, keys."""
    out = copy.deepcopy(doc)
    claims = [c for c in out["claims"] if "proof" in c]
    if not claims:
        return None
    claim = rng.choice(claims)
    steps = rng.choice(claim["proof"])["steps"]
    step, other = rng.choice(steps), rng.choice(steps)
    kind = rng.randrange(12)
    if kind == 0:
        steps.remove(step)
    elif kind == 1:
        steps.insert(rng.randrange(len(steps) + 1), copy.deepcopy(step))
    elif kind == 2:
        i, j = rng.randrange(len(steps)), rng.randrange(len(steps))
        steps[i], steps[j] = steps[j], steps[i]
    elif kind == 3:
        step["by"] = rng.choice([*kernel.RULES, "clause", "combine"])
    elif kind == 4:
        step["gives"] = rng.choice(sorted(kernel.TOKEN | kernel.RESPONSE))
    elif kind == 5:
        step["of"] = [rng.randrange(-2, len(steps)) for _ in step["of"]]
    elif kind == 6 and "value" in step and "value" in other:
        step["value"], other["value"] = other["value"], step["value"]
    elif kind == 7:
        target = rng.choice([*out["clauses"], *claims])
        target["mode"] = rng.choice(["point", "mean", "sequence"])
    elif kind == 8:
        target = rng.choice([out["assume"], *out["clauses"], *claims, step])
        target.pop(rng.choice(sorted(set(target) - {"name"})))
    elif kind == 9:
        target = rng.choice([*out["clauses"], *claims])
        quantities = sorted(kernel.TOKEN | kernel.RESPONSE)
        target["limits"] = {rng.choice(quantities): next(iter(target["limits"].values()))}
    elif kind == 10:
        target = rng.choice([*out["clauses"], *claims])
        target["except"] = rng.choice(["0", "0.0001", "0.01", "0.5", "1"])
    elif kind == 11:
        target = rng.choice([out["assume"], *claims])
        target["horizon" if target is out["assume"] else "on"] = rng.choice(["1", "2", "1000"])
    return None if out == doc else sealed(out)


@pytest.mark.parametrize(
    "name",
    [
        n
        for n in (*SHIPPED, *WRITTEN, *BY_HAND)
        if n[:5] != "rule " and n not in ("refuted", "exceeding", "bands", "mixture")
    ],
)
def test_changes_of_structure_are_rejected_or_true(name):
    doc, rng = original(name), random.Random(name + " structure")
    accepted = tried = 0
    for _ in range(500):
        changed = structures(doc, rng)
        if changed is None:
            continue
        tried += 1
        if lines(changed) is None:
            continue
        accepted += 1
        assert follows(changed), changed
    assert tried >= 200 and accepted < tried / 2


def test_swapping_limits_between_contracts_is_detected():
    """A proof of one guarantee is none of another with a smaller limit, however the numbers are moved about."""
    docs = [original(n) for n in SHIPPED]
    for a, b in product(docs, docs):
        if a is b:
            continue
        moved = copy.deepcopy(a)
        for claim, other in zip(moved["claims"], b["claims"], strict=False):
            if "limits" in claim and "limits" in other:
                claim["limits"] = copy.deepcopy(other["limits"])
        if moved == a:
            continue
        said = lines(sealed(moved))
        assert said is None or said == lines(a) or follows(moved)
