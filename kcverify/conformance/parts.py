"""Parts of a kernel contract that contradict each other, and parts that a run does not check: neither may be passed over."""

from __future__ import annotations

from kcverify.conformance import shapes
from kcverify.conformance.exceptions import POLICIES, RANGES
from kcverify.conformance.model import Protocol
from kcverify.conformance.operations import BY_NAME, Operation, base
from kcverify.conformance.order import SPREADS
from kcverify.conformance.tolerances import EXACT_FORMATS
from kcverify.elaborate.kernel import KernelContract
from kcverify.elaborate.words import Apply, Binary, Condition, Constant, Sequence, Symbol, Term

WORDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "denormals": ("denormals", ("preserve", "flush")), "exceptions": ("exceptions", POLICIES),
    "out_of_range": ("out_of_range", RANGES), "determinism": ("determinism", ("bitwise", "run_to_run", "none")),
    "summation": ("summation", ("sequential", "pairwise", "online")),
}  # fmt: skip
"""What a postcondition `function(out) == word` declares: field of the declaration and its words."""


def contradiction(contract: KernelContract) -> str:
    """Why the parts of a contract do not fit each other, empty where they do."""
    operation = BY_NAME.get(contract.scope.operation)
    return (
        _of_oracle(contract)
        or _of_formats(contract)
        or _of_postconditions(contract)
        or ("" if operation is None else _of_dimensions(contract, operation))
    )


def _of_oracle(contract: KernelContract) -> str:
    named = contract.oracle[0]
    if named and base(named) != base(contract.scope.operation):
        return f"its oracle is `{named}`, its operation `{contract.scope.operation}`"
    return ""


FLOATING = ("C-PRC-03", "C-PRC-04", "C-EXC-01")
"""Classes about what whole numbers have not: denormals, exponents, NaN and infinities."""


def _of_formats(contract: KernelContract) -> str:
    whole = [name for name in contract.scope.inputs if name in EXACT_FORMATS]
    if whole and contract.class_name in FLOATING:
        return f"{contract.class_name} is about floating-point numbers, and `{whole[0]}` holds whole ones"
    return ""


def _of_postconditions(contract: KernelContract) -> str:
    said: dict[str, str] = {}
    for one in contract.ensures:
        match one:
            case Condition(Apply(function, _), "==", Symbol(word)) if function in WORDS:
                known = WORDS[function][1]
                if word not in known:
                    return f"`{function}` is one of {', '.join(known)}, not `{word}`"
                if said.setdefault(function, word) != word:
                    return f"`{function}` is `{said[function]}` and `{word}`"
            case Condition(Apply("block", _), operator, right):
                if (
                    operator != "=="
                    or not isinstance(right, Constant)
                    or right.value < 1
                    or right.value.denominator != 1
                ):
                    return "`block` is `==` a whole number of terms, 1 or more"
    return ""


def _of_dimensions(contract: KernelContract, operation: Operation) -> str:
    known = ", ".join(operation.dims)
    for one in contract.requires:
        strange = (_loose(one.left) | _loose(one.right)) - set(operation.dims)
        if one.right is not None and strange:
            return f"`requires` names `{min(strange)}`, which is no dimension of `{operation.name}`: it has {known}"
    return ""


def _loose(value: Term | None) -> set[str]:
    """Names of a condition that are no arguments of a function."""
    match value:
        case Symbol(name):
            return {name}
        case Binary(_, left, right):
            return _loose(left) | _loose(right)
    return set()


def size_fault(contract: KernelContract, protocol: Protocol) -> str:
    """Why no shape of the contract can be drawn, empty where one can."""
    operation = BY_NAME.get(contract.scope.operation)
    if operation is None:
        return ""
    count = shapes.too_large(operation, protocol)
    if count:
        return f"an operand of its smallest shape has {float(count):.3g} elements; at most {shapes.LARGEST_OPERAND} are drawn"
    return "no shape that is drawn from `shapes` keeps `requires`" if shapes.unreachable(operation, protocol) else ""


def unchecked(contract: KernelContract) -> list[str]:
    """Conditions and limits that a run neither keeps nor checks, in the words of the language."""
    lines = dict(contract.lines)
    checks = (
        ("requires", [_is_kept(contract, one) for one in contract.requires]),
        ("ensures", [_is_checked(contract, one) for one in contract.ensures]),
        ("tolerance", [one.error not in SPREADS or contract.class_name == "C-ORD-01" for one in contract.tolerances]),
    )
    operation = BY_NAME.get(contract.scope.operation)
    dims = () if operation is None else operation.dims
    found = [f"{n} in [{low}, {high}]" for n, low, high in contract.scope.shapes if dims and n not in dims]
    for part, kept in checks:
        texts = lines.get(part, ())
        if len(texts) == len(kept):
            found += [text for text, checked in zip(texts, kept, strict=True) if not checked]
    return found


def _is_kept(contract: KernelContract, one: Condition) -> bool:
    """Operands are finite and contiguous as they are drawn; shapes keep what is said about dimensions."""
    if one.right is None:
        return True
    operation = BY_NAME.get(contract.scope.operation)
    return operation is not None and shapes.keeps(one, dict.fromkeys(operation.dims, 16)) is not None


def _is_checked(contract: KernelContract, one: Condition) -> bool:
    """A word of a class, a finite result (an error that is not finite keeps no tolerance), and the result's shape."""
    match one:
        case Condition(Apply("finite", (Symbol("out"),)), ""):
            return True
        case Condition(Apply(function, _), "==", Symbol(_)) if function in WORDS:
            return True
        case Condition(Apply("block", _), "==", Constant(_)):
            return True
        case Condition(Apply("shape", (Symbol("out"),)), "==", Sequence(items)):
            operation = BY_NAME.get(contract.scope.operation)
            return operation is not None and tuple(str(getattr(i, "name", "")) for i in items) == _result(operation)
    return False


def _result(operation: Operation) -> tuple[str, ...]:
    """Dimensions of the result by name: rows, then the last dimension of the last operand that is not summed over."""
    if operation.name == "sum":
        return ()
    if operation.name in ("logsumexp", "variance", "kl"):
        return ("m",)
    return ("m", "k") if operation.name.endswith("attention") else ("m", "n")
