"""A kernel contract on a kernel: the contract's declaration and limits, and whether the contract itself can be trusted."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from functools import wraps
from typing import Any

from torch import Tensor

from kcverify.conformance import answer, harness, order, parts, samples, sampling, shapes, signatures, tampering
from kcverify.conformance import tolerances as t
from kcverify.conformance.kernels import BY_NAME as SHIPPED
from kcverify.conformance.kernels import find, left
from kcverify.conformance.model import Declared, Derivation, Function, Protocol, Run, Verdict
from kcverify.conformance.operations import BY_NAME, base
from kcverify.conformance.parts import WORDS, Fault
from kcverify.conformance.probes import DTYPES
from kcverify.conformance.sampling import AS_WRITTEN, Effort
from kcverify.conformance.table import BY_ID, KernelClass
from kcverify.diagnostics import input_error
from kcverify.elaborate.kernel import KernelContract, Tolerance
from kcverify.elaborate.words import Apply, Binary, Condition, Constant, Symbol, Term
from kcverify.source import Span

LOOSE = Fraction(3, 2)
"""A limit that many times the derived one is reported."""


def class_of(contract: KernelContract, file: str) -> KernelClass:
    """The row of the contract's class. Raises InputError: `kernel_contract_missing`."""
    row = BY_ID.get(contract.class_name)
    scope = contract.scope
    if row is None:
        named = f"class `{contract.class_name}` is none of" if contract.class_name else "it names no class; there are"
        raise _refused(file, contract, Fault(f"{named} {', '.join(BY_ID)}", "class"))
    if base(scope.operation) not in row.operations:
        known = ", ".join(row.operations)
        raise _refused(
            file,
            contract,
            Fault(
                f"{row.id} is about {known}, not `{scope.operation}`", "op", f"take one of {known}, or another class"
            ),
        )
    for name in (*scope.inputs, scope.output):
        if name and name not in DTYPES:
            hint = f"take one of {', '.join(DTYPES)}"
            raise _refused(file, contract, Fault(f"no operands of format `{name}` can be drawn here", "dtypes", hint))
    formats, count = len(set(scope.inputs)), operands(scope.operation)
    if formats > 1 and len(scope.inputs) != count:
        raise _refused(
            file,
            contract,
            Fault(
                f"`dtypes` names one format for all operands or {count}, one for each", "dtypes", f"name 1 or {count}"
            ),
        )
    return row


def operands(operation: str) -> int:
    """How many operands an operation has in a format; 1 for those without a row."""
    row = BY_NAME.get(operation)
    return 1 if row is None else len(row.shapes(dict.fromkeys(row.dims, 16)))


def _missing(file: str, reason: str) -> Exception:
    return input_error("kernel_contract_missing", file=file, reason=reason)


def _refused(file: str, contract: KernelContract, fault: Fault) -> Exception:
    """With the place of the fault's word behind the contract's header, or of the header."""
    header = contract.span
    hit = (
        re.compile(rf"^[^#\n]*?\b({re.escape(fault.word)})\b", re.MULTILINE).search(header.source.text, header.end)
        if fault.word
        else None
    )
    span = header if hit is None else Span(header.source, hit.start(1), hit.end(1))
    return input_error("kernel_contract_missing", span, hint=fault.hint, file=file, reason=fault.reason)


def select(contracts: tuple[KernelContract, ...], name: str | None, file: str) -> KernelContract:
    """The named kernel contract, or the only one. Raises InputError: `kernel_contract_missing`."""
    kept = [c for c in contracts if name is None or c.name == name]
    if len(kept) != 1:
        known = ", ".join(c.name for c in contracts) or "none"
        raise _missing(file, f"{len(kept)} fit{'' if name is None else f' the name `{name}`'}; there are: {known}")
    return kept[0]


def accumulator_of(one: Tolerance) -> str | None:
    """The format of a limit's first `gamma(n, format)` or `derived(format)`; of a spread, else, of `unit_roundoff(format)`."""
    found = _named(one.bound, "gamma") or _named(one.bound, "derived")
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
    """What the contract declares the kernel to be. Raises InputError: `kernel_contract_missing` where parts contradict."""
    wrong = parts.contradiction(contract)
    if wrong is not None:
        raise _refused(file, contract, wrong)
    formats = contract.scope.inputs if len(set(contract.scope.inputs)) > 1 else ()
    inputs = max(contract.scope.inputs, key=t.unit_roundoff, default="float32")
    output = contract.scope.output or inputs
    named = next((kind for one in contract.tolerances if (kind := accumulator_of(one))), None)
    whole = inputs in t.EXACT_FORMATS
    if named in t.EXACT_FORMATS and not whole:
        said = f"sums of {inputs} operands are not whole numbers, and its tolerance declares them in {named}"
        raise _refused(file, contract, Fault(said, "tolerance", "write `derived(float32)`"))
    found = Declared(inputs, named or ("int32" if whole else "float32"), output, formats=formats)
    for one in contract.ensures:
        match one:
            case Condition(Apply(function, _), "==", Symbol(word)) if function in WORDS:
                change: dict[str, Any] = {WORDS[function][0]: word}
                found = replace(found, **change)
            case Condition(Apply(function, _), "==", Constant(value)) if function in parts.NUMBERS:
                change = {function: str(value) if function == "base" else int(value)}
                found = replace(found, **change)
    return found


def prepared(
    contract: KernelContract, file: str, effort: Effort = AS_WRITTEN
) -> tuple[KernelClass, Declared, Protocol]:
    """Class, declaration and protocol. Raises InputError `kernel_contract_missing` for what cannot run."""
    row = class_of(contract, file)
    given = declared(contract, file)
    how = sampling.protocol(contract, row.protocol, effort, given)
    wrong = parts.size_fault(contract, how)
    if wrong is not None:
        raise _refused(file, contract, wrong)
    return row, replace(given, device=effort.device or given.device), how


def run_contract(
    contract: KernelContract, kernel: str, file: str, effort: Effort = AS_WRITTEN, function: Function | None = None
) -> dict[str, Any]:
    """The kernel under the contract, and the contract under its class's calibration, as data. Raises InputError.

    `function` is the callable where it is at hand; else `kernel` is looked for.
    """
    row, given, how = prepared(contract, file, effort)
    shipped = SHIPPED.get(kernel)
    if shipped is not None and not effort.device:
        given = replace(given, device=shipped.declared.device)
    own = shipped.operation if shipped is not None and base(shipped.operation) == contract.scope.operation else ""
    foreign = shipped is None and function is None
    called = function or find(kernel)
    with tampering.watching(foreign):
        run = limited(row, called, contract, given, how, own)
        if foreign:
            _foreign(run, kernel)
        signals = signatures.evaluate(run, contract.violations)
    _shown(run, signals)
    for one in parts.unchecked(contract):
        run.find("part_unchecked", part=one)
    verdict = run.verdict
    calibrated = judge(row, contract, replace(given, device="cpu"), sampling.calibrating(how), run)
    if verdict is not Verdict.VIOLATION and any(d.code.slug in _UNDER for d in run.findings):
        verdict = Verdict.UNDER_SPECIFIED
    if any(d.code.slug in ("tolerance_refuted", "tolerance_fails_closed", "good_fails") for d in run.findings):
        verdict = Verdict.UNDER_SPECIFIED  # a violation of a false bound says nothing about the kernel
    found = answer.data(run, row.id, kernel, verdict)
    about = answer.contract(contract, file)
    return {
        "contract": about, **found, "evidence": sampling.evidence(run), "signatures": [s.data() for s in signals],
        "raises": signatures.severity(signals, verdict), "calibration": calibrated, "machine": answer.machine(),
    }  # fmt: skip


def _foreign(run: Run, kernel: str) -> None:
    """What is asked of a kernel from elsewhere beside its class's check."""
    harness.alone(run)
    said = left(kernel)
    if said:
        run.notes.append(f"the kernel's module changes the process at import: {said}; kept from the oracle")


_UNDER = ("fault_passes", "nothing_decided")


def _shown(run: Run, signals: tuple[signatures.Signal, ...]) -> None:
    """A signature that is seen is a violation, whatever the tolerance says; too few draws are said so."""
    for one in signals:
        if one.seen and run.verdict is not Verdict.VIOLATION:
            run.find("signature_seen", signature=one.text, evidence=one.evidence)
    if run.verdict is Verdict.INCONCLUSIVE and run.draws < run.protocol.asked:
        reached = sampling.evidence(run)["reached"]
        run.find(
            "confidence_not_met", draws=run.draws, asked=run.protocol.asked, reached=f"{reached:.1%}",
            confidence=f"{float(run.protocol.confidence):.4g}",
        )  # fmt: skip


def limited(
    row: KernelClass, kernel: Function, contract: KernelContract, given: Declared, how: Protocol, operation: str = ""
) -> Run:
    """The class's check. A shipped kernel of a format keeps its own oracle: what its codes and scales stand for."""
    run = Run(kernel, given, how, operation or contract.scope.operation, contract.tolerances)
    run.notes += sampling.left_out(contract, given)
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
        verdict = limited(row, kernel, contract, given, how).verdict
        states.append({"state": name, "kernel": kernel.__name__, "verdict": verdict.value})
        if verdict in wrong:
            run.find(slug, class_name=row.id, what=f"{kernel.__name__} is {verdict.value}")
    return states


def _pair(row: KernelClass, operation: str, given: Declared) -> tuple[Function | None, Function | None]:
    """Bad and good kernel of a class for an operation; for narrow operands both work in float32 and wider."""
    found = (row.bad, row.good) if operation == row.operations[0] else samples.PAIRS.get((row.id, operation))
    if found is None:
        return None, None
    found = _fault_here(row, found, given)
    roundoff = t.unit_roundoff(given.inputs)
    fits = given.output == given.inputs and not given.formats
    if operation not in BY_NAME or (0 < roundoff <= t.unit_roundoff("bfloat16") and fits):
        return found
    bad = found[0]
    faulty, output = bad, DTYPES[given.output]

    @wraps(faulty)  # with its schedules
    def bad_wide(*args: Tensor, **named: Any) -> Tensor:
        out: Tensor = faulty(*[x.float() for x in args], **named)
        return out.to(output)

    def good_wide(*args: Tensor) -> Tensor:
        return BY_NAME[operation].oracle(*[x.double() for x in args]).to(output)

    bad_wide.__name__, good_wide.__name__ = f"{bad.__name__} in float32", "the oracle, rounded"
    return bad_wide, good_wide


def _fault_here(row: KernelClass, pair: tuple[Function, Function], d: Declared) -> tuple[Function, Function]:
    """The pair with another bad kernel where the declaration allows what the shipped one does."""
    bad, good = pair
    if row.id == "C-PRC-01" and t.unit_roundoff(d.accumulator) >= t.unit_roundoff("bfloat16"):
        return samples.narrower(bad), good
    if bad is samples.attention_narrow and t.unit_roundoff(d.inputs) >= t.unit_roundoff("bfloat16"):
        return samples.attention_coarse, good
    if bad is samples.matmul_by_batch and (
        d.determinism != "bitwise" or t.unit_roundoff(d.output) > t.unit_roundoff("float32")
    ):
        return samples.matmul_short_batch, good if d.determinism == "bitwise" else samples.matmul_good
    if bad is samples.matmul_loss_scaled and t.smallest_normal(d.inputs) >= t.smallest_normal("float16"):
        return samples.matmul_clipped, good
    return pair


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
                    dims=shapes.named(dims),
                )
