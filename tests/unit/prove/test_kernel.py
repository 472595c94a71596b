"""The trusted core: its enclosures, its rules against the catalogue in both directions, and what it must refuse."""

from __future__ import annotations

import ast
import copy
import json
import random
import subprocess
import sys
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


def document():
    doc = {
        "format": kernel.FORMAT,
        "contract": {"name": "hand", "version": "1", "digest": "sha256:0"},
        "assume": {"sampler": "full_softmax", "temperature": ["0.5", "1"], "horizon": "8", "reward_range": "1"},
        "clauses": [{"name": "d", "mode": "point", "limits": {"logit_span": ["0.1", "0"]}}],
        "claims": [
            {
                "name": "ok",
                "verdict": "PROVED",
                "mode": "sequence",
                "limits": {"reward_drift": ["0.2", "0"]},
                "proof": [
                    {
                        "from": "0.5",
                        "steps": [
                            {"by": "clause", "of": [0], "gives": "logit_span"},
                            {"by": "over_temperature", "of": [0], "gives": "effective_span", "value": "0.2"},
                            {"by": "affinity", "of": [1], "gives": "tv_seq", "value": "0.140688179241883895313135"},
                            {"by": "reward", "of": [2], "gives": "reward_drift", "value": "0.140688179241883895313135"},
                        ],
                    }
                ],
            }
        ],
    }
    return sealed(doc)


def sealed(doc):
    doc["seal"] = kernel.seal(doc)
    return doc


def changed(edit):
    doc = copy.deepcopy(document())
    edit(doc, doc["claims"][0], doc["claims"][0]["proof"][0]["steps"])
    return sealed(doc)


def test_the_hand_written_certificate_states_what_it_proves():
    lines = kernel.check(document())
    assert lines[0] == "contract hand 1, sha256:0"
    assert lines[1].startswith("PROVED ok: reward_drift <= 0.2 [sampler full_softmax; temperature 0.5 to 1; horizon 8;")


FORGERIES = {
    "no proof at all": lambda d, c, s: (d["assume"].update(temperature=["1", "1"]), c.update(proof=[])),
    "no limit": lambda d, c, s: (c.update(limits={}), s.clear()),
    "a shorter range of temperatures": lambda d, c, s: c["proof"][0].update({"from": "0.6"}),
    "a lower temperature": lambda d, c, s: d["assume"].update(temperature=["0.4", "1"]),
    "a longer horizon": lambda d, c, s: d["assume"].update(horizon="9"),
    "a wider reward": lambda d, c, s: d["assume"].update(reward_range="2"),
    "an exception in the clause": lambda d, c, s: d["clauses"][0].update({"except": "0.001"}),
    "a mean in the clause": lambda d, c, s: d["clauses"][0].update(mode="mean"),
    "a clause on a slice": lambda d, c, s: d["clauses"][0].update(on=["code"]),
    "a slice that is no list": lambda d, c, s: d["clauses"][0].update(on="code"),
    "a clause on a band": lambda d, c, s: d["clauses"][0].update(band=["0.5", "1", "open"]),
    "a smaller claim": lambda d, c, s: c.update(limits={"reward_drift": ["0.14", "0"]}),
    "another quantity": lambda d, c, s: c.update(limits={"pass_rate_drift": ["0.2", "0"]}),
    "an unknown quantity": lambda d, c, s: c.update(limits={"clip_room_above": ["0.2", "0"]}),
    "a pointwise response": lambda d, c, s: c.update(mode="point"),
    "an exception of a response": lambda d, c, s: c.update({"except": "0.5"}),
    "a rule from elsewhere": lambda d, c, s: s[3].update(by="clip"),
    "an unknown rule": lambda d, c, s: s[3].update(by="faith"),
    "a step left out": lambda d, c, s: s.pop(1),
    "a step of a later step": lambda d, c, s: s[1].update(of=[3]),
    "a clause that is not there": lambda d, c, s: s[0].update(of=[-1]),
    "a value below the bound": lambda d, c, s: (s[2].update(value="0.14"), s[3].update(value="0.14")),
    "a value rounded too far": lambda d, c, s: (s[2].update(value="0.141"), s[3].update(value="0.141")),
    "more digits than allowed": lambda d, c, s: [x.update(value="0.1406881792418838953131355") for x in s[2:]],
    "a number that is no text": lambda d, c, s: c.update(limits={"reward_drift": [0.2, "0"]}),
    "a slope without temperature": lambda d, c, s: d["assume"].pop("temperature"),
    "another sampler": lambda d, c, s: d["assume"].update(sampler="greedy"),
    "an assumption below zero": lambda d, c, s: d["assume"].update(advantage="-1"),
    "a name with a line break": lambda d, c, s: c.update(name="x\nPROVED everything"),
    "a verdict that it is not": lambda d, c, s: c.update(verdict="REFUTED"),
    "nothing certified": lambda d, c, s: c.update(not_certified="who knows"),
    "another format": lambda d, c, s: d.update(format="kcverify certificate 2"),
}


@pytest.mark.parametrize("edit", FORGERIES.values(), ids=FORGERIES)
def test_forged_certificates_are_rejected(edit):
    with pytest.raises(kernel.BROKEN):
        kernel.check(changed(edit))


def test_a_changed_text_breaks_the_seal():
    doc = document()
    doc["claims"][0]["limits"]["reward_drift"] = ["0.3", "0"]
    with pytest.raises(ValueError, match="seal"):
        kernel.check(doc)
    assert kernel.check(sealed(doc))[1].startswith("PROVED ok: reward_drift <= 0.3")


def two_pieces(band):
    steps = lambda k, v: [  # noqa: E731
        {"by": "clause", "of": [k], "gives": "logit_span"},
        {"by": "over_temperature", "of": [0], "gives": "effective_span", "value": v},
    ]
    doc = document()
    doc["assume"] = {"sampler": "full_softmax", "temperature": ["0.5", "1"]}
    doc["clauses"] = [
        {"name": "a", "mode": "point", "limits": {"logit_span": ["0.05", "0"]}, "band": ["0.5", "0.8", "open"]},
        {"name": "b", "mode": "point", "limits": {"logit_span": ["0.08", "0"]}, "band": band},
    ]
    claim = {"name": "ok", "verdict": "PROVED", "mode": "point", "limits": {"effective_span": ["0.1", "0"]}}
    claim["proof"] = [{"from": "0.5", "steps": steps(0, "0.1")}, {"from": "0.8", "steps": steps(1, "0.1")}]
    doc["claims"] = [claim]
    return sealed(doc)


def test_bands_must_cover_every_temperature_with_its_end():
    assert kernel.check(two_pieces(["0.8", "1", "closed"]))
    for band in (["0.8", "1", "open"], ["0.8000001", "1", "closed"], ["0.8", "0.9", "closed"]):
        with pytest.raises(kernel.BROKEN):
            kernel.check(two_pieces(band))


def test_the_exceptions_of_different_clauses_add_up():
    doc = document()
    doc["assume"] = {"sampler": "full_softmax"}
    doc["clauses"] = [
        {"name": "a", "mode": "point", "except": "0.01", "limits": {"ratio_above": ["0.1", "0"]}},
        {"name": "b", "mode": "point", "except": "0.01", "limits": {"ratio_below": ["0.1", "0"]}},
    ]
    steps = [
        {"by": "clause", "of": [0], "gives": "ratio_above"},
        {"by": "clause", "of": [1], "gives": "ratio_below"},
        {"by": "larger", "of": [0, 1], "gives": "ratio_gap", "value": "0.1"},
    ]
    claim = {"name": "ok", "verdict": "PROVED", "mode": "point", "limits": {"ratio_gap": ["0.1", "0"]}}
    doc["claims"] = [claim | {"except": "0.02", "proof": [{"from": "0", "steps": steps}]}]
    assert kernel.check(sealed(doc))
    doc["claims"] = [claim | {"except": "0.01", "proof": [{"from": "0", "steps": steps}]}]
    with pytest.raises(ValueError, match="more exceptions"):
        kernel.check(sealed(doc))


def refutation():
    doc = document()
    instance = {"temperature": "1", "tokens": 7, "reference": ["0", "0.05"], "candidate": ["0.05", "0"], "lifted": [0]}
    doc["claims"] = [
        {
            "name": "bad",
            "verdict": "REFUTED",
            "mode": "sequence",
            "limits": {"reward_drift": ["0.05", "0"]},
            "instance": instance,
        }
    ]
    return doc


def test_a_counterexample_is_evaluated():
    assert kernel.check(sealed(refutation()))[1].startswith("REFUTED bad: reward_drift <= 0.05")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", "0.1"),
        ("tokens", 9),
        ("tokens", 1),
        ("candidate", ["0.06", "0"]),
        ("candidate", ["0.001", "0.05"]),
        ("lifted", [0, 1]),
        ("lifted", [5]),
        ("lifted", []),
    ],
)
def test_a_counterexample_that_fails_is_rejected(key, value):
    doc = refutation()
    doc["claims"][0]["instance"][key] = value
    with pytest.raises(kernel.BROKEN):
        kernel.check(sealed(doc))


def run(*arguments, path):
    command = [sys.executable, *arguments, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_it_runs_alone_with_the_standard_library(tmp_path):
    good, forged, broken = tmp_path / "good.json", tmp_path / "forged.json", tmp_path / "broken.json"
    good.write_text(json.dumps(document()))
    forged.write_text(json.dumps(changed(FORGERIES["a longer horizon"])))
    broken.write_text("{")
    alone = tmp_path / "alone.py"
    alone.write_text(SOURCE.read_text(encoding="utf-8"))
    for call in (("-I", "-S", str(alone)), ("-I", "-S", str(SOURCE)), ("-m", "kcverify.prove.kernel")):
        accepted = run(*call, path=good)
        assert accepted.returncode == 0 and "PROVED ok" in accepted.stdout, accepted.stderr
        rejected = run(*call, path=forged)
        assert rejected.returncode == 1 and "rejected: " in rejected.stdout
        assert run(*call, path=broken).returncode == 2
        assert run(*call, path=tmp_path / "absent.json").returncode == 2


def test_it_imports_the_standard_library_only():
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert {n.split(".")[0] for n in names} <= set(sys.stdlib_module_names)
    code = "import sys, kcverify.prove.kernel; print(sorted(m for m in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not any(f"'{m}'" in loaded for m in ("sympy", "z3", "flint", "lark", "numpy", "kcverify.prove.prover"))


@pytest.mark.parametrize(
    ("tokens", "x"), [(1, F(1, 3)), (7, F(1, 3)), (256, F(1, 2)), (1024, F(51, 100)), (9, F(999, 1000))]
)
def test_the_event_of_a_counterexample_has_its_true_probability(tokens, x):
    got = kernel.most(kernel.real(x), tokens)
    with precision(500):
        m, tokens = (tokens + 1) // 2, tokens - 1 + tokens % 2
        true = arb.beta_lower(ball(x), arb(m), arb(tokens - m + 1), regularized=True) * arb(2) ** kernel.BITS
        assert not true < arb(got.lo) and not true > arb(got.hi)
    assert got.hi - got.lo < 1 << 40
