"""Contracts from a few lines, and their verdicts, for the tests of the prover."""

from __future__ import annotations

from kcverify.driver import load_source
from kcverify.elaborate.contract import Clause, Contract
from kcverify.prove.prover import prove
from kcverify.prove.verdict import Verdict
from kcverify.source import Source

ASSUME = "temperature in [0.6, 1.0]; sampler = full_softmax; horizon <= 1 tokens; reward in [0, 1]"


def contract(numerical: str = "", guarantee: str = "", assume: str = ASSUME, more: str = "") -> Contract:
    """The contract of these blocks, with slices `a` and `b`; fails on any fault of the text."""
    slices = 'slice a = prompt_tokens >= 10\nslice b = tag("code")\n'
    blocks = f"numerical {{\n{numerical}\n}}\n" if numerical else ""
    claims = f"guarantee {{\n{guarantee}\n}}\n" if guarantee else ""
    loaded = load_source(Source("t", f"contract t\nassume {{ {assume} }}\n{slices}{blocks}{more}{claims}"))
    assert not loaded.report.errors, [d.message for d in loaded.report.errors]
    (out,) = loaded.contracts
    return out


def clause(line: str, **rest: str) -> Clause:
    """One measured clause."""
    return contract(f"c: {line} -> L1", **rest).clauses[0]


def verdicts(numerical: str, guarantee: str, assume: str = ASSUME, more: str = "") -> dict[str, Verdict]:
    """Claim (with its slice, where it names one) -> verdict."""
    found = prove(contract(numerical, guarantee, assume, more))
    return {v.claim.name + (f"@{v.scope}" if v.scope else ""): v for v in found}


def statuses(numerical: str, guarantee: str, assume: str = ASSUME, more: str = "") -> dict[str, str]:
    """The verdict words alone."""
    return {k: v.status.value for k, v in verdicts(numerical, guarantee, assume, more).items()}
