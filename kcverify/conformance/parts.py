"""Parts of a kernel contract that contradict each other, and parts that a run does not check: neither may be passed over."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kcverify.conformance import shapes
from kcverify.conformance.exceptions import POLICIES, RANGES
from kcverify.conformance.model import Protocol
from kcverify.conformance.operations import BY_NAME, Operation, base, result
from kcverify.conformance.order import SPREADS
from kcverify.conformance.tolerances import EXACT_FORMATS, unit_roundoff
from kcverify.elaborate.kernel import KernelContract
from kcverify.elaborate.words import Apply, Binary, Condition, Constant, Sequence, Symbol, Term

WORDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "denormals": ("denormals", ("preserve", "flush")), "exceptions": ("exceptions", POLICIES),
    "out_of_range": ("out_of_range", RANGES), "determinism": ("determinism", ("bitwise", "run_to_run", "none")),
    "summation": ("summation", ("sequential", "pairwise", "online", "cascade")),
}  # fmt: skip
"""What a postcondition `function(out) == word` declares: field of the declaration and its words."""


@dataclass(frozen=True)
class Fault:
    """Why a contract cannot run, the word of its text that says so, and what to write instead."""

    reason: str
    word: str = ""
    hint: str = ""


def contradiction(contract: KernelContract) -> Fault | None:
    """Why the parts of a contract do not fit each other, None where they do."""
    operation = BY_NAME.get(contract.scope.operation)
    return (
        _of_oracle(contract)
        or _of_formats(contract)
        or _of_postconditions(contract)
        or (None if operation is None else _of_shape(contract, operation) or _of_dimensions(contract, operation))
    )


def _of_oracle(contract: KernelContract) -> Fault | None:
    (named, precision), operation = contract.oracle, contract.scope.operation
    right = f"write `{operation} in float64`"
    if named and base(named) != base(operation):
        return Fault(f"its oracle is `{named}`, its operation `{operation}`", "oracle", right)
    output = contract.scope.output or "float32"
    finer = precision in EXACT_FORMATS if output in EXACT_FORMATS else _finer(precision, output)
    if named and precision != "float64" and not finer:
        return Fault(f"its oracle in {precision} is no finer than results in {output}", "oracle", right)
    return None


def _finer(precision: str, output: str) -> bool:
    return precision not in EXACT_FORMATS and unit_roundoff(precision) < unit_roundoff(output)


FLOATING = ("C-PRC-03", "C-PRC-04", "C-EXC-01")
"""Classes about what whole numbers have not: denormals, exponents, NaN and infinities."""


def _of_formats(contract: KernelContract) -> Fault | None:
    whole = [name for name in contract.scope.inputs if name in EXACT_FORMATS]
    if whole and contract.class_name in FLOATING:
        said = f"{contract.class_name} is about floating-point numbers, and `{whole[0]}` holds whole ones"
        return Fault(said, "dtypes", "take a floating-point format, or C-PRC-01 for whole numbers")
    return None


NUMBERS = {"block": "terms", "lanes": "lanes", "base": ""}
"""Functions that are declared with `==` and a number, and what they count."""

_EXPONENTIAL = ("softmax", "logsumexp", "attention", "causal_attention", "kl")
_MOMENTS = ("variance", "layer_norm")
_ABOUT: dict[str, tuple[str, ...]] = {"online": _EXPONENTIAL, "cascade": _MOMENTS, "base": _EXPONENTIAL}
"""Operations that a word of `summation` or a number can be about."""
_NEEDS = {"block": ("online", "pairwise", "cascade"), "lanes": ("cascade",)}
"""Words of `summation` without one of which a number says nothing."""
LANES = 64
"""Most interleaved sums of a cascade: registers of 64 bytes of single bytes."""


def _of_postconditions(contract: KernelContract) -> Fault | None:
    said: dict[str, str] = {}
    for one in contract.ensures:
        match one:
            case Condition(Apply(function, _), "==", (Symbol() | Constant()) as right) if function in WORDS:
                wrong = _of_word(function, right)
            case Condition(Apply(function, _), operator, right) if function in NUMBERS:
                wrong = _of_number(function, operator, right)
            case _:
                continue
        value = _value(right)
        if said.setdefault(function, value) != value:
            return Fault(f"`{function}` is `{said[function]}` and `{value}`", function, "keep one of the two lines")
        if wrong is not None:
            return wrong
    return _of_structure(said, base(contract.scope.operation))


def _value(right: Term | None) -> str:
    return right.name if isinstance(right, Symbol) else str(right.value) if isinstance(right, Constant) else ""


def _of_word(function: str, right: Symbol | Constant) -> Fault | None:
    known, value = WORDS[function][1], _value(right)
    if value in known:
        return None
    listed = ", ".join(known)
    return Fault(f"`{function}` is one of {listed}, not `{value}`", function, f"choose one of {listed}")


def _of_number(function: str, operator: str, right: Term | None) -> Fault | None:
    value = right.value if isinstance(right, Constant) and operator == "==" else Fraction(0)
    hint = f"write `{function}(out) == {2 if function == 'base' else 16}`, or leave it out"
    if function == "base":
        said = "`base` is `==` 2, or not said where exponentials are natural"
        return None if value == 2 else Fault(said, function, hint)
    whole = value >= 1 and value.denominator == 1
    return (
        None
        if whole
        else Fault(f"`{function}` is `==` a whole number of {NUMBERS[function]}, 1 or more", function, hint)
    )


def _of_structure(said: dict[str, str], operation: str) -> Fault | None:
    """Words and numbers about a structure that the operation has not, or that another word is needed for."""
    for name in (said.get("summation", ""), *(n for n in NUMBERS if n in said)):
        if name in _ABOUT and operation not in _ABOUT[name]:
            return Fault(f"`{name}` is about {', '.join(_ABOUT[name])}, not `{operation}`", name, "leave it out")
        if name in said and name in _NEEDS and said.get("summation") not in _NEEDS[name]:
            needed = f"`summation(out) == {_NEEDS[name][0]}`"
            return Fault(f"`{name}` says nothing without {needed}", name, f"add {needed}, or leave it out")
    if int(said.get("lanes", "1")) > LANES:
        return Fault(f"`lanes` is at most {LANES}", "lanes", f"take {LANES} or fewer")
    return None


def _of_shape(contract: KernelContract, operation: Operation) -> Fault | None:
    right = result(operation)
    for one in contract.ensures:
        match one:
            case Condition(Apply("shape", (Symbol("out"),)), "==", Sequence(items)):
                named = tuple(str(getattr(i, "name", "")) for i in items)
                if named != right and all(name in operation.dims for name in named):
                    shown = f"`shape(out) == [{', '.join(right)}]`"
                    return Fault(
                        f"the shape of `{operation.name}` is [{', '.join(right)}], not [{', '.join(named)}]",
                        "shape",
                        f"write {shown}",
                    )
    return None


def _of_dimensions(contract: KernelContract, operation: Operation) -> Fault | None:
    known = ", ".join(operation.dims)
    for one in contract.requires:
        strange = (_loose(one.left) | _loose(one.right)) - set(operation.dims)
        if one.right is not None and strange:
            said = f"`requires` names `{min(strange)}`, which is no dimension of `{operation.name}`: it has {known}"
            return Fault(said, min(strange), f"use {known}")
    return None


def _loose(value: Term | None) -> set[str]:
    """Names of a condition that are no arguments of a function."""
    match value:
        case Symbol(name):
            return {name}
        case Binary(_, left, right):
            return _loose(left) | _loose(right)
    return set()


MOST_DRAWS = 1_000_000
"""Trials that a contract may ask for: the check of more takes days."""


def size_fault(contract: KernelContract, protocol: Protocol) -> Fault | None:
    """Why no shape of the contract can be drawn, or not as often as it asks; None where it can."""
    if contract.protocol.trials > MOST_DRAWS:
        return Fault(
            f"it asks for {contract.protocol.trials} trials; at most {MOST_DRAWS} are made",
            "trials",
            "ask for fewer trials",
        )
    operation = BY_NAME.get(contract.scope.operation)
    if operation is None:
        return None
    count = shapes.too_large(operation, protocol)
    if count:
        said = f"an operand of its smallest shape has {float(count):.3g} elements; at most {shapes.LARGEST_OPERAND} are drawn"
        return Fault(said, "shapes", "begin the ranges of `shapes` at smaller sizes")
    if shapes.unreachable(operation, protocol):
        said = "no shape that is drawn from `shapes` keeps `requires`"
        return Fault(said, "requires", "widen `shapes`, or drop a condition of `requires`")
    return None


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
    found += [f"{one.subject} {one.verb}" for one in contract.violations if one.subject not in _SUBJECTS]
    for part, kept in checks:
        texts = lines.get(part, ())
        if len(texts) == len(kept):
            found += [text for text, checked in zip(texts, kept, strict=True) if not checked]
    return found


_SUBJECTS = ("residual", "output")
"""What a signature of a violation can be about."""


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
        case Condition(Apply(function, _), "==", Symbol(word)) if function in WORDS:
            return _is_looked_at(contract, function, word)
        case Condition(Apply(function, _), "==", Constant(_)) if function in NUMBERS:
            return True
        case Condition(Apply("shape", (Symbol("out"),)), "==", Sequence(items)):
            operation = BY_NAME.get(contract.scope.operation)
            return operation is not None and tuple(str(getattr(i, "name", "")) for i in items) == result(operation)
    return False


_OF_CLASS = {"exceptions": "C-EXC-01", "out_of_range": "C-EXC-02", "determinism": "C-ORD-02"}
"""Words that one class alone looks at; the others enter the derivation."""


def _is_looked_at(contract: KernelContract, function: str, word: str) -> bool:
    if function == "summation" and word == "pairwise":
        return contract.class_name == "C-ORD-01" or base(contract.scope.operation) in _MOMENTS
    return _OF_CLASS.get(function, contract.class_name) == contract.class_name
