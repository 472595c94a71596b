"""The trusted core: its enclosures, its rules against the catalogue in both directions, and what it must refuse."""

from __future__ import annotations

import ast
import copy
import json
import subprocess
import sys
from fractions import Fraction as F
from pathlib import Path

import pytest
from flint import arb

from kcverify.enclosure import ball, precision
from kcverify.prove import kernel

SOURCE = Path(kernel.__file__)


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
