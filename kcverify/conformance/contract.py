"""A kernel contract on a kernel: the contract's declaration and limits, and whether the contract itself can be trusted."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from torch import Tensor

from kcverify.conformance import answer, order, samples, shapes
from kcverify.conformance import tolerances as t
from kcverify.conformance.exceptions import POLICIES, RANGES
from kcverify.conformance.kernels import BY_NAME as SHIPPED
from kcverify.conformance.kernels import find
from kcverify.conformance.model import Declared, Derivation, Function, Protocol, Run, Verdict
from kcverify.conformance.operations import BY_NAME, base
from kcverify.conformance.probes import DISTRIBUTIONS, DTYPES
from kcverify.conformance.table import BY_ID, KernelClass
from kcverify.diagnostics import input_error
from kcverify.elaborate.kernel import KernelContract, Tolerance
from kcverify.elaborate.words import Apply, Binary, Condition, Symbol, Term

WORDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "denormals": ("denormals", ("preserve", "flush")), "exceptions": ("exceptions", POLICIES),
    "out_of_range": ("out_of_range", RANGES), "determinism": ("determinism", ("bitwise", "run_to_run", "none")),
    "summation": ("summation", ("sequential", "pairwise")),
}  # fmt: skip
"""What a postcondition `function(out) == word` declares: field of the declaration and its words."""

MOST_TRIALS = 8
"""Trials of one distribution here: a contract's `trials` counts draws of all of them."""

LOOSE = Fraction(3, 2)
"""A limit that many times the derived one is reported."""


def class_of(contract: KernelContract, file: str) -> KernelClass:
    """The row of the contract's class. Raises InputError: `kernel_contract_missing`."""
    row = BY_ID.get(contract.class_name)
    if row is None:
        raise _missing(file, f"class `{contract.class_name}` is none of {', '.join(BY_ID)}")
    if base(contract.scope.operation) not in row.operations:
        reason = f"{row.id} is about {', '.join(row.operations)}, not `{contract.scope.operation}`"
        raise _missing(file, reason)
    for name in (*contract.scope.inputs[:1], contract.scope.output):
        if name and name not in DTYPES:
            raise _missing(file, f"no operands of format `{name}` can be drawn here")
    return row


def _missing(file: str, reason: str) -> Exception:
    return input_error("kernel_contract_missing", file=file, reason=reason)


def select(contracts: tuple[KernelContract, ...], name: str | None, file: str) -> KernelContract:
    """The named kernel contract, or the only one. Raises InputError: `kernel_contract_missing`."""
    kept = [c for c in contracts if name is None or c.name == name]
    if len(kept) != 1:
        known = ", ".join(c.name for c in contracts) or "none"
        raise _missing(file, f"{len(kept)} fit{'' if name is None else f' the name `{name}`'}; there are: {known}")
    return kept[0]


def accumulator_of(one: Tolerance) -> str | None:
    """The format of a limit's first `gamma(n, format)`; of a spread without one, of its first `unit_roundoff(format)`."""
    found = _named(one.bound, "gamma")
    return found or (_named(one.bound, "unit_roundoff") if one.error in order.SPREADS else None)


def _named(term: Term, function: str) -> str | None:
    match term:
        case Apply(name, (*_, Symbol(kind))) if name == function:
            return kind
        case Apply(_, arguments):
            return next((found for one in arguments if (found := _named(one, function))), None)
        case Binary(_, left, right):
            return _named(left, function) or _named(right, function)
    return None


def declared(contract: KernelContract, file: str) -> Declared:
    """What the contract declares the kernel to be. Raises InputError: `kernel_contract_missing` for an unknown word."""
    inputs = contract.scope.inputs[0] if contract.scope.inputs else "float32"
    output = contract.scope.output or inputs
    named = next((kind for one in contract.tolerances if (kind := accumulator_of(one))), None)
    whole = inputs in t.EXACT_FORMATS
    found = Declared(inputs, named or ("int32" if whole else "float32"), output)
    for one in contract.ensures:
        match one:
            case Condition(Apply(function, _), "==", Symbol(word)) if function in WORDS:
                field, words = WORDS[function]
                if word not in words:
                    raise _missing(file, f"`{function}` is one of {', '.join(words)}, not `{word}`")
                found = replace(found, **{field: word})
    return found


def protocol(contract: KernelContract, row: KernelClass) -> Protocol:
    """Trials, distributions, seed, confidence, shapes and preconditions of the contract, the class's where it has none."""
    p, q = contract.protocol, row.protocol
    names = tuple(n for n in p.distributions if n in DISTRIBUTIONS) or q.distributions
    trials = min(max(-(-p.trials // len(names)), 2), MOST_TRIALS) if p.trials else q.trials
    return Protocol(trials, names, p.seed or q.seed, p.confidence, contract.scope.shapes or q.shapes, contract.requires)


def prepared(contract: KernelContract, file: str) -> tuple[KernelClass, Declared, Protocol]:
    """Class, declaration and protocol. Raises InputError `kernel_contract_missing` for what cannot run."""
    row = class_of(contract, file)
    given, how = declared(contract, file), protocol(contract, row)
    operation = BY_NAME.get(contract.scope.operation)
    if operation is not None and shapes.unreachable(operation, how):
        raise _missing(file, "no shape that is drawn from `shapes` keeps `requires`")
    return row, given, how


def run_contract(contract: KernelContract, kernel: str, file: str) -> dict[str, Any]:
    """The kernel under the contract, and the contract under its class's calibration, as data. Raises InputError."""
    row, given, how = prepared(contract, file)
    function = find(kernel)
    shipped = SHIPPED.get(kernel)
    own = shipped.operation if shipped is not None and base(shipped.operation) == contract.scope.operation else ""
    run = _limited(row, function, contract, given, how, own)
    verdict = run.verdict
    calibrated = judge(row, contract, given, how, run)
    if verdict is not Verdict.VIOLATION and any(d.code.slug in _UNDER for d in run.findings):
        verdict = Verdict.UNDER_SPECIFIED
    if any(d.code.slug in ("tolerance_refuted", "tolerance_fails_closed", "good_fails") for d in run.findings):
        verdict = Verdict.UNDER_SPECIFIED  # a violation of a false bound says nothing about the kernel
    found = answer.data(run, row.id, kernel, verdict)
    names = {"name": contract.name, "version": contract.version}
    asked = {"trials_asked": contract.protocol.trials, "severity": [v.severity for v in contract.violations]}
    return {
        "contract": {**names, "file": file, **asked},
        **found,
        "calibration": calibrated,
        "machine": answer.machine(),
    }


_UNDER = ("fault_passes", "nothing_decided")


def _limited(
    row: KernelClass, kernel: Function, contract: KernelContract, given: Declared, how: Protocol, operation: str = ""
) -> Run:
    """The class's check. A shipped kernel of a format keeps its own oracle: what its codes and scales stand for."""
    run = Run(kernel, given, how, operation or contract.scope.operation, contract.tolerances)
    row.check(run)
    if run.powerless and not run.powered:
        run.find("nothing_decided")
    return run


def judge(row: KernelClass, contract: KernelContract, given: Declared, how: Protocol, run: Run) -> list[dict[str, Any]]:
    """Findings about the contract: limits that say nothing, that conforming sums break, that are loose, that faults pass."""
    _closed(run)
    _loose(run, given, contract)
    if row.id == "C-ORD-01":
        count = shapes.ranges(BY_NAME["sum"], how)["n"][1]
        broken = order.refuted(run, min(count, 1024))
        if broken is not None:
            _, value, limit = broken
            run.find(
                "tolerance_refuted",
                value=t.shown(value),
                limit=t.shown(limit.value or Fraction(0)),
                dims=f"n={min(count, 1024)}",
            )
    states = []
    bad, good = _pair(row, contract.scope.operation, given)
    blind = (Verdict.WITHIN, Verdict.INCONCLUSIVE)
    for name, kernel, wrong, slug in (
        ("bad", bad, blind, "fault_passes"),
        ("good", good, (Verdict.VIOLATION,), "good_fails"),
    ):
        if kernel is None:
            continue
        verdict = _limited(row, kernel, contract, given, how).verdict
        states.append({"state": name, "kernel": kernel.__name__, "verdict": verdict.value})
        if verdict in wrong:
            run.find(slug, class_name=row.id, what=f"{kernel.__name__} is {verdict.value}")
    return states


def _pair(row: KernelClass, operation: str, given: Declared) -> tuple[Function | None, Function | None]:
    """Bad and good kernel of a class for an operation; for narrow operands both work in float32 and wider."""
    found = (row.bad, row.good) if operation == row.operations[0] else samples.PAIRS.get((row.id, operation))
    if found is None:
        return None, None
    roundoff = t.unit_roundoff(given.inputs)
    if operation not in BY_NAME or 0 < roundoff <= t.unit_roundoff("bfloat16"):
        return found
    bad = found[0]
    faulty, output = bad, DTYPES[given.output]

    def bad_wide(*args: Tensor) -> Tensor:
        out: Tensor = faulty(*[x.float() for x in args])
        return out.to(output)

    def good_wide(*args: Tensor) -> Tensor:
        return BY_NAME[operation].oracle(*[x.double() for x in args]).to(output)

    bad_wide.__name__, good_wide.__name__ = f"{bad.__name__} in float32", "the oracle, rounded"
    return bad_wide, good_wide


def _closed(run: Run) -> None:
    for one in run.readings:
        if one.tolerance.value is None:
            run.find(
                "tolerance_fails_closed",
                dims=one.where,
                reason=one.tolerance.lines[-1] if one.tolerance.lines else "no value",
            )
            return


def _loose(run: Run, given: Declared, contract: KernelContract) -> None:
    """A limit on roundings of single elements that is well above the derived one."""
    operation = BY_NAME.get(contract.scope.operation)
    if operation is None or operation.reduced:
        return
    derived: Derivation = operation.tolerance([], given)
    dims = {name: high for name, _, high in contract.scope.shapes}
    for one in contract.tolerances:
        limit = t.evaluate(one.bound, dims)
        if one.error in ("backward_error", "relative_error", "forward_error") and limit.value and derived.value:
            factor = limit.value / derived.value
            if factor > LOOSE:
                run.find(
                    "tolerance_loose",
                    factor=t.shown(factor),
                    limit=t.shown(limit.value),
                    derived=t.shown(derived.value),
                    dims=f"{dims}",
                )
