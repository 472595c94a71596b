"""Faults in the certificate kernel: with each of them some false certificate would pass, and it is refused without."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kcverify.prove import kernel

TEXT = Path(kernel.__file__).read_text(encoding="utf-8")


def module(text):
    """The kernel from changed source text."""
    out = ModuleType("changed_kernel")
    sys.modules[out.__name__] = out
    exec(compile(text, "changed_kernel", "exec"), out.__dict__)
    return out


def document(clauses, steps, said, **more):
    """A certificate of one claim, `(mode, quantity, limit, except, on)` for clauses and claim."""

    def entry(name, mode, quantity, limit, share="0", on=None):
        out = {"name": name, "mode": mode, "limits": {quantity: [limit, "0"]}}
        return out | ({"except": share} if share != "0" else {}) | ({"on": on} if on else {})

    assume = {"sampler": "full_softmax", "temperature": ["0.5", "1"], "horizon": "8", "reward_range": "2"}
    return {
        "format": kernel.FORMAT,
        "contract": {"name": "case", "version": "1", "digest": "sha256:0"},
        "assume": assume,
        "clauses": [entry(f"c{i}", *c) | more.get("clause", {}) for i, c in enumerate(clauses)],
        "claims": [entry("ok", *said) | {"verdict": "PROVED"} | (more.get("claim") or {"proof": [{"from": "0.5", "steps": steps}]})],
    }  # fmt: skip


def by(rule, of, gives, value=None, **more):
    return {"by": rule, "of": of, "gives": gives} | ({} if value is None else {"value": value}) | more


SPAN = by("clause", [0], "logit_span")
INSTANCE = {"temperature": "1", "tokens": 1, "reference": ["0", "0.9"], "candidate": ["0.9", "0"], "lifted": [0]}
KEEPS = INSTANCE | {"reference": ["0", "0.01"], "candidate": ["0.01", "0"]}
TWO = [("point", "tv", "0.1", "0.01"), ("point", "tv", "0.2", "0.01")]
HALVES = [by("clause", [0], "tv"), by("clause", [1], "tv"), by("combine", [0, 1], "tv", weights=["0.5", "0.5"])]
FAULTS = {
    "any value bounds": (
        "(got if isinstance(got, bool) else got == v)", "True",
        document([("point", "logit_span", "0.1")], [SPAN, by("over_temperature", [0], "effective_span", "0.1")], ("point", "effective_span", "0.1")),
    ),
    "false is zero": (
        "(got if isinstance(got, bool) else got == v)", "(got is True or got == v)",
        document([("point", "ratio_above", "0.1")], [by("clause", [0], "ratio_above"), by("ln_above", [0], "kl_reference_candidate", "0")],
                 ("point", "kl_reference_candidate", "0")),
    ),
    "premises where they say most": (
        "return [max((r[3] + r[4] * t) / y", "return [min((r[3] + r[4] * t) / y",
        document([("point", "logit_span", "0.1")], [SPAN, by("over_temperature", [0], "effective_span", "0.1")], ("point", "effective_span", "0.1")),
    ),
    "exceptions lost on the way to responses": (
        "need(not fails or to == mode or mode[0].upper() in modes", "need(True",
        document([("point", "ratio_above", "0.1", "0.01")], [by("clause", [0], "ratio_above"), by("mean", [0], "ratio_above", "0.1")],
                 ("mean", "ratio_above", "0.1")),
    ),
    "exceptions of the claim not compared": (
        'need(sum(fails.values()) <= num(claim.get("except", "0"))', "need(True",
        document([("point", "tv", "0.1", "0.01")], [by("clause", [0], "tv")], ("point", "tv", "0.1")),
    ),
    "exceptions of two clauses taken for one": (
        "need(sum(fails.values()) <=", "need(max(fails.values(), default=Q(0)) <=",
        document(TWO, HALVES, ("point", "tv", "0.15", "0.01")),
    ),
    "weights of any sum": (
        "sum(w) == 1", "sum(w) > 0",
        document([("point", "tv", "0.1")], [by("clause", [0], "tv"), by("combine", [0], "tv", weights=["0.5"])], ("point", "tv", "0.05")),
    ),
    "a clause of another slice": (
        "need(listed and num(low)", "need(num(low)",
        document([("point", "tv", "0.1", "0", ["a"])], [by("clause", [0], "tv")], ("point", "tv", "0.1", "0", "b")),
    ),
    "a clause at other temperatures": (
        "need(listed and num(low) <= ends[0] and inside", "need(listed",
        document([("point", "tv", "0.1")], [by("clause", [0], "tv")], ("point", "tv", "0.1"), clause={"band": ["0.6", "0.9", "closed"]}),
    ),
    "an open end that is covered": (
        'edge == "closed" or not last)', "True)",
        document([("point", "tv", "0.1")], [by("clause", [0], "tv")], ("point", "tv", "0.1"), clause={"band": ["0.5", "1", "open"]}),
    ),
    "pieces that start late": (
        "cuts[0] == p.temperature[0] and ", "",
        document([("point", "tv", "0.1")], [], ("point", "tv", "0.1"), clause={"band": ["0.7", "1", "closed"]},
                 claim={"proof": [{"from": "0.7", "steps": [by("clause", [0], "tv")]}]}),
    ),
    "a claim that is not reached": (
        "need(reached,", "need(True,",
        document([("point", "tv", "0.1")], [by("clause", [0], "tv")], ("point", "tv", "0.05")),
    ),
    "premises of different grades": (
        "if s == shape", 'if s.split("@")[0] == shape.split("@")[0]',
        document([("point", "trimmed_span@0.9", "0.1")],
                 [by("clause", [0], "trimmed_span@0.9"), by("over_temperature", [0], "trimmed_effective_span@0.5", "0.2")],
                 ("point", "trimmed_effective_span@0.5", "0.2")),
    ),
    "a rule on other quantities": (
        "need(mode[0] in modes.lower()", "need(True",
        document([("point", "tv", "0.1")], [by("clause", [0], "tv"), by("double", [0], "tv", "0.2"), by("bc_tv", [0], "bc", "0.9"),
                                            by("same", [0], "chi2", "0.1")], ("point", "chi2", "0.1")),
    ),
    "an instance that breaks a clause": (
        "need(met,", "need(True,",
        document([("point", "logit_span", "0.1")], [], ("point", "tv", "0.1"), claim={"verdict": "REFUTED", "instance": INSTANCE}),
    ),
    "an instance that keeps the claim": (
        "need(any(reading(g) >=", "need(True or any(reading(g) >=",
        document([("point", "logit_span", "0.1")], [], ("point", "tv", "0.1"), claim={"verdict": "REFUTED", "instance": KEEPS}),
    ),
    "an instance at another temperature": (
        "need(t > 0 and (high == 0 or inside)", "need(t > 0",
        document([("point", "logit_span", "2")], [], ("point", "tv", "0.01"),
                 claim={"verdict": "REFUTED", "instance": INSTANCE | {"temperature": "5"}}),
    ),
}  # fmt: skip


def sealed(doc):
    doc = copy.deepcopy(doc)
    return doc | {"seal": kernel.seal(doc)}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_the_fault_would_pass_what_the_kernel_refuses(fault):
    old, new, doc = fault
    assert TEXT.count(old) == 1, "the text to replace is no longer in the kernel; update the table"
    with pytest.raises(kernel.BROKEN):
        kernel.check(sealed(doc))
    assert module(TEXT.replace(old, new)).check(sealed(doc))


@pytest.mark.parametrize("inward", ["Real(-(-min(values) // unit), max(values) // unit)", "Real(min(values) // unit, max(values) // unit)"])  # fmt: skip
def test_rounding_inward_is_noticed(inward):
    old = "Real(min(values) // unit, -(-max(values) // unit))"
    assert TEXT.count(old) == 1
    third = module(TEXT.replace(old, inward)).real(kernel.Q(1, 3))
    assert not (third.lo * 3 <= kernel.ONE <= third.hi * 3)
    third = kernel.real(kernel.Q(1, 3))
    assert third.lo * 3 < kernel.ONE < third.hi * 3
