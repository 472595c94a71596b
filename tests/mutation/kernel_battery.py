"""A quick check of kernel contracts from many sides: what a seeded fault must not get past. Run by path in a fresh process.

`inconsistencies` returns what showed; empty for the code as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction as F

import torch

torch.set_num_threads(1)

from kcverify.conformance import cheats as c  # noqa: E402
from kcverify.conformance import contract as run  # noqa: E402
from kcverify.conformance import errors, samples, signatures  # noqa: E402
from kcverify.conformance import tolerances as t  # noqa: E402
from kcverify.conformance.calibrate import calibrate_class, told_apart  # noqa: E402
from kcverify.conformance.isolate import contract_here, kernels_of  # noqa: E402
from kcverify.conformance.model import Declared, Derivation, Protocol, Reading, Run, Verdict  # noqa: E402
from kcverify.conformance.sampling import AS_WRITTEN, Effort  # noqa: E402
from kcverify.conformance.table import BY_ID, run_class  # noqa: E402

Found = Iterator[str]
TEXT = """kernel contract c version "1"
  class {row}
scope {{ op {op}; dtypes {dtypes}; shapes m in [1, 12], n in [2, 12], k in [2, 512] }}
requires {{ finite(a) }}
ensures {{ finite(out) }}
tolerance {{ {tolerance} }}
oracle {{ {op} in float64 }}
measure {{ trials 8; distributions normal; seed 3; confidence 95% }}
violation {{ {violation} }}
"""
PLAIN = {
    "row": "C-PRC-01", "op": "matmul", "dtypes": "float32 -> float32", "tolerance": "backward_error <= derived(float32)", "violation": "residual exceeds tolerance -> L2",
}  # fmt: skip


def _contract(kernel, effort: Effort = AS_WRITTEN, **more):
    name = kernel if isinstance(kernel, str) else kernel.__name__
    (one,) = kernels_of(TEXT.format(**{**PLAIN, **more}), "c.kc")
    return run.run_contract(one, name, "c.kc", effort, None if isinstance(kernel, str) else kernel)


def limits() -> Found:
    """Roundings that all go one way reach the bound of a sum nearly, and never pass it."""
    u, n = F(1, 2**11), 40
    reached, bound = (1 + u) ** n - 1, t.gamma(n, "float16").value
    if not F(95, 100) * bound <= reached <= bound:
        yield f"gamma(40, float16) is {float(bound):.3g}, {float(reached):.3g} is reached"
    two = errors.exponential(F(1, 64), "x").value
    if not F(98, 100) * two <= F(157477085863, 10**13) <= two:
        yield f"exp(1/64) - 1 = 0.015748, the bound says {float(two):.3g}"
    cast = Declared("float32", "float32", "float8_e4m3fn")
    row = BY_ID["C-PRC-01"]
    for kernel, verdict in ((samples.cast_truncating, Verdict.VIOLATION), (samples.cast_good, Verdict.WITHIN)):
        if run_class(row, kernel, cast, operation="cast").verdict is not verdict:
            yield f"{kernel.__name__} is not {verdict.value}"
    held = _contract("matmul.float32", row="C-CMP-03", tolerance="backward_error <= 2^-60")
    if not any("no draw passes" in reading["name"] for reading in held["readings"]):
        yield "a limit that no kernel keeps is kept at held-out shapes"


def verdicts() -> Found:
    """The four verdicts of a reading, and of kernels that are known."""
    limit = Derivation(F(1), ())
    for value, slack, verdict in (
        (F(2), F(0), Verdict.VIOLATION), (None, F(0), Verdict.VIOLATION), (F(1, 2), F(0), Verdict.WITHIN),
        (F(9, 10), F(1, 5), Verdict.INCONCLUSIVE), (F(11, 10), F(1, 5), Verdict.INCONCLUSIVE),
    ):  # fmt: skip
        if Reading("", value, limit, slack=slack).verdict is not verdict:
            yield f"{value} against 1, slack {slack}, is not {verdict.value}"
    if Reading("", F(0), Derivation(None, ())).verdict is not Verdict.UNDER_SPECIFIED:
        yield "a limit that says nothing says something"
    for row in ("C-PRC-01", "C-CMP-02", "C-EXC-01", "C-EXC-02"):
        if not told_apart(calibrate_class(BY_ID[row])):
            yield f"{row} does not tell its kernels apart"
    if _contract("matmul.float32")["verdict"] != "within_tolerance":
        yield "torch's own product is not within its tolerance"


def harness() -> Found:
    """Every way to pass without work is named or measured."""
    row, quick = BY_ID["C-PRC-01"], Protocol(2, ("normal",))
    right = c.right_for("matmul", row.declared)
    for name in c.NAMES:
        found = run_class(row, c.cheats(right)[name], protocol=quick)
        slugs = {d.code.slug for d in found.findings}
        wanted = {"mutated_input": "inputs_changed", "cached": "result_cached"}.get(name)
        if found.verdict is not Verdict.VIOLATION or (wanted and wanted not in slugs):
            yield f"{name} is {found.verdict.value}, with {sorted(slugs)}"
    owed: list[tuple[torch.Tensor, torch.Tensor]] = []

    def later(a, b):
        for out, answer in owed:
            out.copy_(answer)
        owed[:] = [(torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype), a @ b)]
        return owed[0][0]

    if "output_deferred" not in {d.code.slug for d in run_class(row, later, protocol=quick).findings}:
        yield "work after the check is not named"
    zeros = Run(samples.matmul_good, Declared(), Protocol(2, ("zeros",)))
    row.check(zeros)
    alone = Run(samples.matmul_good, Declared(), Protocol(), readings=zeros.readings[:2], powerless=zeros.powerless)
    if not zeros.powerless or alone.verdict is not Verdict.UNDER_SPECIFIED:
        yield "a check that zeros pass has power"


def confidence() -> Found:
    """Fewer draws than the contract asks for decide nothing, and say what they reach."""
    found = _contract("matmul.float32", Effort(trials=3))
    if found["verdict"] != "inconclusive" or "confidence_not_met" not in {d["slug"] for d in found["findings"]}:
        yield f"3 of 8 draws are {found['verdict']}"
    if not found["evidence"]["reached"] < 0.95:
        yield "3 of 8 draws reach the confidence"
    if _contract("matmul.float32")["evidence"]["draws"] < 8:
        yield "the declared draws are not made"
    if t.rate_decision(58, 58, F(95, 100), F(95, 100)) is not None or not t.rate_decision(
        59, 59, F(95, 100), F(95, 100)
    ):
        yield "58 or 59 clean trials"
    if signatures.replicates(F(95, 100)) != 3 or signatures.replicates(F(99, 100)) != 5:
        yield "draws that decide growth"


def signals() -> Found:
    """A signature that is seen is a violation; one that is not is not seen."""
    narrow, wrong = (f"kcverify.conformance.samples:{n}" for n in ("matmul_narrow", "wrong_sign"))
    for kernel, seen in ((narrow, True), (wrong, False)):
        text = TEXT.format(**{**PLAIN, "violation": "residual grows with k -> L3"})
        found = contract_here(text, "c.kc", None, kernel)
        if found["signatures"][0]["seen"] is not seen:
            yield f"growth of {kernel}: {found['signatures'][0]['evidence']}"

    def cut_off(a, b):
        return (samples.matmul_by_rows(a, b).view(torch.int32) & ~0xF).view(torch.float32)

    found = _contract(cut_off, row="C-ORD-02", tolerance="backward_error <= 2^-18", violation="output is biased -> L1")
    slugs = {d["slug"] for d in found["findings"]}
    if (found["verdict"], found["raises"]) != ("violation", "L1") or "signature_seen" not in slugs:
        yield f"results that are cut off: {found['verdict']}, raises {found['raises']!r}, {sorted(slugs)}"


def calibration() -> Found:
    """A contract that a fault passes, or that no right kernel keeps, says so."""
    more = {
        "op": "cast",
        "dtypes": "float32 -> float8_e4m3fn",
        "tolerance": "relative_error <= 4 * unit_roundoff(float8_e4m3fn)",
    }
    loose = _contract("cast.e4m3", **more)
    if loose["verdict"] != "under_specified" or not {"fault_passes", "tolerance_loose"} <= {
        d["slug"] for d in loose["findings"]
    }:
        yield f"a limit of four roundings of a cast is {loose['verdict']}"
    tight = _contract("kcverify.conformance.samples:matmul_narrow", tolerance="backward_error <= 2^-60")
    if tight["verdict"] != "under_specified":
        yield f"a limit that no kernel keeps is {tight['verdict']}"


CHECKS: dict[str, Callable[[], Found]] = {
    "limits": limits, "verdicts": verdicts, "harness": harness, "confidence": confidence, "signals": signals,
    "calibration": calibration,
}  # fmt: skip


def inconsistencies(checks: tuple[str, ...] = ()) -> str:
    """The first inconsistency of the named checks (all if none is named), as `check: what`."""
    for name in checks or CHECKS:
        try:
            for found in CHECKS[name]():
                return f"{name}: {found}"
        except Exception as error:
            return f"{name}: {type(error).__name__}: {error}"
    return ""
