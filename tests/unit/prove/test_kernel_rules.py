"""The kernel's rules against the catalogue: enclosures, corners, monotonicity, which lemmas have a rule."""

from __future__ import annotations

import random
from fractions import Fraction as F
from pathlib import Path
from types import SimpleNamespace

import pytest
from flint import arb

from kcverify.bounds.graph import lifts
from kcverify.bounds.shape import lemma_shape
from kcverify.bounds.special import SPECIALS, TABLE
from kcverify.catalog.lemmas import ROWS
from kcverify.catalog.quantities import BY_NAME, PARAMETERS, QUANTITIES, RHO
from kcverify.enclosure import ball, precision, value_down, value_up
from kcverify.prove import kernel
from kcverify.prove.certificate_steps import EXTRA, RULE_OF, WITHOUT_RULE

SOURCE = Path(kernel.__file__)
COVERED = [row for row in ROWS if row.name in RULE_OF and RULE_OF[row.name] in kernel.RULES]
NUMBERS = {
    "horizon": F(37),
    "reward_range": F(2),
    "advantage": F(5),
    "score_norm": F(3, 2),
    "token_score_norm": F(1, 10),
    "clip": F(1, 5),
    "temperature": F(7, 10),
    "confidence": F(4, 5),
    "vocabulary": F(32000),
    "cap": F(21, 20),
}


def setting(rho):
    values = {k: int(v) if k == "horizon" else v for k, v in NUMBERS.items()}
    return SimpleNamespace(rho=rho, **values)


def inside(x, value):
    return F(x.lo, kernel.ONE) <= value <= F(x.hi, kernel.ONE)


def narrow(x):
    return x.hi - x.lo <= (abs(x.hi) >> 200) + (1 << 80)


@pytest.mark.parametrize("name", ["exp", "ln"])
def test_enclosures_hold_the_true_value_and_are_narrow(name):
    rng = random.Random(name)
    for _ in range(300):
        x = F(rng.randint(-(10**6), 10**6), rng.choice((10**4, 10**5, 10**7, 10**12)))
        x = abs(x) + F(1, 10**15) if name == "ln" else x
        got = getattr(kernel, name)(x)
        with precision(600):
            true = ball(x).exp() if name == "exp" else ball(x).log()
            scaled = true * arb(2) ** kernel.BITS
            assert scaled >= arb(got.lo) and scaled <= arb(got.hi), x
        assert narrow(got), x


def test_interval_operations_hold_the_true_value():
    rng = random.Random(1)
    for _ in range(500):
        a, b = (F(rng.randint(-(10**9), 10**9), rng.randint(1, 10**6)) for _ in range(2))
        x, y = kernel.real(a), kernel.real(b)
        assert inside(x + y, a + b) and inside(x - y, a - b) and inside(x * y, a * b) and inside(a - y, a - b)
        n = rng.randint(0, 9)
        assert inside(x**n, a**n)
        if b > 0:
            assert inside(a / y, a / b)
        assert not (x <= y) or a <= b
        assert not (x >= y) or a >= b


def samples(row):
    rng = random.Random(row.name)
    for i in range(25):
        scale = F(1, rng.choice((1, 1, 20, 1000)))
        values = []
        for name in row.premises:
            x = F(rng.randint(1, 900), 1000) * scale
            values.append(1 - x if name in kernel.LOWER else x)
        free = RHO in row.bound.free_symbols
        yield values, F(rng.randint(1, 20), 10**4) if free and i % 2 else F(0)


@pytest.mark.parametrize("row", COVERED, ids=lambda r: r.name)
def test_rule_and_catalogue_agree_in_both_directions(row):
    """The formula accepts a value just on the safe side of the catalogue's bound, and none on the other side."""
    _, formula = kernel.RULES[RULE_OF[row.name]]
    upper = BY_NAME[row.conclusion].upper
    for values, rho in samples(row):
        env = {BY_NAME[n].symbol: v for n, v in zip(row.premises, values, strict=True)}
        env |= {PARAMETERS[n]: NUMBERS[n] for n in row.parameters} | {RHO: rho}
        if row.special:
            bound = SPECIALS[row.name].value(values[0], env, TABLE)
        else:
            bound = (value_up if upper else value_down)(row.bound, env)
        premises = [values[0] / NUMBERS["temperature"]] if RULE_OF[row.name] == "over_temperature" else values
        p = setting(rho)
        got = formula(p, F(0), *premises)
        if not isinstance(got, bool):
            assert got == bound
            continue
        tiny = F(1, 10 ** (11 if row.special else 25))
        safe, false = (bound * (1 + tiny), bound * (1 - tiny)) if upper else (bound * (1 - tiny), bound * (1 + tiny))
        assert formula(p, safe, *premises)
        if 0 < bound < 1 or not upper or BY_NAME[row.conclusion].high is None:
            assert not formula(p, false, *premises)


@pytest.mark.parametrize("row", COVERED, ids=lambda r: r.name)
def test_the_corner_that_the_kernel_uses_is_the_weakest(row):
    """Signs found by the sign rules of the catalogue: every premise, the horizon and rho weaken; temperature at its low end."""
    signs = lemma_shape(row).signs
    weaker = 1 if BY_NAME[row.conclusion].upper else -1
    for name in row.premises:
        assert signs[BY_NAME[name].symbol] == (weaker if BY_NAME[name].upper else -weaker)
    if "horizon" in row.parameters:
        assert signs[PARAMETERS["horizon"]] == weaker
    assert ("temperature" in row.parameters) == (RULE_OF[row.name] == "over_temperature")
    assert signs.get(RHO, 1) == 1


@pytest.mark.parametrize("row", COVERED, ids=lambda r: r.name)
def test_rules_are_monotone_at_samples(row):
    _, formula = kernel.RULES[RULE_OF[row.name]]
    for values, rho in samples(row):
        p = setting(rho)
        got = formula(p, F(1, 3), *values)
        less = [
            x * F(99, 100) if n not in kernel.LOWER else x * F(100, 99)
            for n, x in zip(row.premises, values, strict=True)
        ]
        less = [min(x, F(1)) if n in kernel.LOWER else x for n, x in zip(row.premises, less, strict=True)]
        better = formula(p, F(1, 3), *less)
        if isinstance(got, bool):
            assert better or not got
        else:
            assert better <= got if BY_NAME[row.conclusion].upper else better >= got


def signatures():
    out = set()
    for rule, (kinds, _) in kernel.RULES.items():
        for kind in kinds.split():
            modes, shape = kind.split(":")
            for way in kernel.WAYS:
                for mode in modes.lower():
                    out.add((rule, mode, shape.replace("~", way)))
    return out


def graded(name):
    return name + "@" * BY_NAME[name].graded


BY_DEFINITION = ("mean", "drift_over_temperature", "tail")
"""Rules that stand for no one lemma: the mean of every quantity, two lemmas at once, the mass outside a trimmed span."""


def test_every_signature_is_a_row_of_the_catalogue():
    known = set()
    for row in COVERED:
        for source, _ in lifts(row.name):
            shape = ",".join(map(graded, row.premises)) + ">" + graded(row.conclusion)
            known.add((RULE_OF[row.name], source.value[0], shape))
    extra = {s for s in signatures() if s not in known and s[0] not in BY_DEFINITION}
    assert not extra, "a shape that no lemma of the catalogue has"
    missing = {k for k in known if k not in signatures() and k[0] != "mean"}
    assert not missing


def test_every_lemma_has_a_rule_or_a_reason():
    """A row that is added to the catalogue gets a rule of the kernel, or an entry that says why no certificate uses it."""
    rules = set(kernel.RULES) | set(EXTRA)
    assert {r.name for r in ROWS} == set(RULE_OF) | set(WITHOUT_RULE)
    assert not set(RULE_OF) & set(WITHOUT_RULE)
    assert set(RULE_OF.values()) <= rules
    assert rules == set(RULE_OF.values()) | set(BY_DEFINITION)
    assert all(len(reason) > 10 for reason in WITHOUT_RULE.values())


def test_every_quantity_of_the_catalogue_is_known_to_the_kernel():
    for q in QUANTITIES:
        assert graded(q.name) in (kernel.RESPONSE if q.sequence else kernel.TOKEN), q.name
        assert kernel.sign(graded(q.name)) == (1 if q.upper else -1)
    beside = (kernel.TOKEN | kernel.RESPONSE) - {graded(q.name) for q in QUANTITIES}
    assert beside == {"reward_delta", "ranking_changes"}, (
        "only what no rule concludes and no rule reads may be beside the catalogue"
    )
    assert not any(q in kinds for q in beside for kinds, _ in kernel.RULES.values())


def test_exceptions_leave_pointwise_bounds_only_by_rules_that_count_them():
    named = {RULE_OF[r.name] for r in COVERED if RHO in r.bound.free_symbols} | set(EXTRA)
    charged = {rule for rule, (kinds, _) in (kernel.RULES | EXTRA).items() if kinds.partition(":")[0].isupper()}
    assert named == charged
    for kinds, _ in (kernel.RULES | EXTRA).values():
        assert {k.partition(":")[0].isupper() for k in kinds.split()} in ({True}, {False})


# ---- whole certificates -------------------------------------------------------------------------------------------
