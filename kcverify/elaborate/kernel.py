"""Kernel contracts: the eight parts, from syntax to typed records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from kcverify.diagnostics import Report
from kcverify.elaborate.assumptions import STORAGE
from kcverify.elaborate.clauses import SEVERITIES
from kcverify.elaborate.scope import RefusedError, Scope, choose, report_duplicates
from kcverify.elaborate.words import Apply, Binary, Condition, Symbol, Term, Words, condition, symbols, term
from kcverify.source import Span
from kcverify.syntax import expressions, tree

DTYPES = (*STORAGE, "tfloat32", "float4_e2m1", "int8", "int4", "int32")
"""Number formats that a kernel contract may name."""

ERRORS = (
    "backward_error", "forward_error", "relative_error", "absolute_error", "ulp_error", "mismatch_rate", "spread", "spread_max",
)  # fmt: skip
"""What a tolerance may limit."""

DISTRIBUTIONS = (
    "normal", "lognormal", "uniform", "cancellation", "outliers", "zeros", "subnormal", "identical", "near_overflow", "structured",
)  # fmt: skip
"""Distributions of operands that a protocol may draw from."""

SIGNATURES: dict[str, str] = {
    "grows": "residual grows with k -> L3",
    "exceeds": "residual exceeds tolerance -> L3",
    "differs": "output differs between runs -> L2",
    "depends": "output depends on batch -> L2",
    "is": "output is biased -> L2",
}
"""Verb of a violation's signature, and its form."""

_ENDINGS = {"differs": ("between", "runs"), "depends": ("on", "batch"), "exceeds": ("tolerance",), "is": ("biased",)}

_Dimensions = frozenset[str] | None  # names that `shapes` declares; None where there is no scope to look in

PARTS = ("scope", "requires", "ensures", "tolerance", "oracle", "measure", "violation")
"""The parts below the identifier."""


@dataclass(frozen=True)
class KernelScope:
    """What the contract is about: operation, number formats of operands and result, ranges of dimensions."""

    operation: str = ""
    inputs: tuple[str, ...] = ()
    output: str = ""
    shapes: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True)
class Tolerance:
    """An error and its bound from the declared precision."""

    error: str
    bound: Term


@dataclass(frozen=True)
class Protocol:
    """How the kernel is measured."""

    trials: int = 0
    distributions: tuple[str, ...] = ()
    seed: int = 0
    confidence: Fraction = Fraction(95, 100)


@dataclass(frozen=True)
class Signature:
    """What a violation looks like and what it raises: `subject verb [with dimension]`."""

    subject: str
    verb: str
    dimension: str
    severity: str


@dataclass(frozen=True)
class KernelContract:
    """One kernel contract; `lines` are its parts as the language writes them."""

    name: str
    version: str
    description: str
    span: Span
    class_name: str = ""
    scope: KernelScope = field(default_factory=KernelScope)
    requires: tuple[Condition, ...] = ()
    ensures: tuple[Condition, ...] = ()
    tolerances: tuple[Tolerance, ...] = ()
    oracle: tuple[str, str] = ("", "")
    protocol: Protocol = field(default_factory=Protocol)
    violations: tuple[Signature, ...] = ()
    lines: tuple[tuple[str, tuple[str, ...]], ...] = ()


def kernel(node: tree.Contract, report: Report) -> KernelContract:
    """The typed kernel contract; lines with a fault are reported and left out, missing parts are reported."""
    sections = {item.keyword.text: item for item in node.items if isinstance(item, tree.KernelSection)}
    scope = Scope(report)
    for part in PARTS:
        if part not in sections:
            report.add("kernel_part_missing", node.header.span, part=part, hint=f"add `{part} {{ ... }}`")
    dimensions: _Dimensions = None
    found: dict[str, Any] = {}
    if "scope" in sections:
        found["scope"] = _scope(scope, sections["scope"])
        dimensions = frozenset(name for name, _, _ in found["scope"].shapes)
    for part, (target, line) in _LINES.items():
        if part in sections:
            found[target] = _each(scope, sections[part], line, dimensions)
    if "oracle" in sections:
        found["oracle"] = _oracle(scope, sections["oracle"])
    if "measure" in sections:
        found["protocol"] = Protocol(**_fields(scope, sections["measure"], _MEASURES))
    header = node.header
    docs = [item.text.value for item in node.items if isinstance(item, tree.Doc)]
    classes = [item.text for item in node.items if isinstance(item, tree.KernelClass)]
    return KernelContract(
        header.name.text,
        header.version.value if header.version else "",
        docs[0] if docs else "",
        header.span,
        classes[0] if classes else "",
        lines=tuple((name, tuple(_text(line) for line in item.items)) for name, item in sections.items()),
        **found,
    )


def _text(line: tuple[tree.Name, ...]) -> str:
    return expressions.words([word.text for word in line])


def _each(
    scope: Scope, section: tree.KernelSection, read: Callable[[Words, _Dimensions], Any], dimensions: _Dimensions
) -> tuple[Any, ...]:
    """The lines of a part, each read alone."""
    found = []
    for line in section.items:
        words = Words(scope, line, _FORMS[section.keyword.text])
        try:
            found.append(read(words, dimensions))
            words.end()
        except RefusedError:
            continue
    return tuple(found)


def _fields(scope: Scope, section: tree.KernelSection, rows: dict[str, tuple[str, Callable[[Words], Any]]]) -> Any:
    """Lines of the form `name value` as a mapping from the fields that they set."""
    again = report_duplicates(scope.report, "the field", [(line[0].text, line[0].span) for line in section.items])
    values = {}
    for index, line in enumerate(section.items):
        words = Words(scope, line, _FORMS[section.keyword.text])
        try:
            name = words.name()
            if name.text not in rows:
                hint = choose(name.text, rows, "fields are")
                where = f"`{section.keyword.text}`"
                raise scope.refuse("unknown_field", name.span, name=name.text, where=where, hint=hint)
            target, read = rows[name.text]
            value = read(words)
            words.end()
        except RefusedError:
            continue
        if index not in again:
            values[target] = value
    return values


def _scope(scope: Scope, section: tree.KernelSection) -> KernelScope:
    values = _fields(scope, section, _SCOPES)
    formats = values.pop("formats", None)
    if formats is not None:
        values["inputs"], values["output"] = formats
    if "operation" not in values and not any(line[0].text == "op" for line in section.items):
        scope.report.add("kernel_part_missing", section.keyword.span, part="op", hint="add `op matmul` to `scope`")
    return KernelScope(**values)


def _formats(words: Words) -> tuple[tuple[str, ...], str]:
    inputs = [words.one_of("number format", DTYPES)]
    while words.text == ",":
        words.take()
        inputs.append(words.one_of("number format", DTYPES))
    words.take("->")
    return tuple(inputs), words.one_of("number format", DTYPES)


def _shapes(words: Words) -> tuple[tuple[str, int, int], ...]:
    found: list[tuple[str, int, int]] = []
    while not found or words.text == ",":
        if found:
            words.take()
        name = words.name()
        words.take("in")
        start = words.take("[")
        low = words.number()
        words.take(",")
        high = words.number()
        words.take("]")
        ok = low.denominator == high.denominator == 1 and 1 <= low <= high
        if not ok or name.text in {known for known, _, _ in found}:
            wanted = "a range of whole numbers from 1 up, once for each dimension"
            shown = f"[{low}, {high}]"
            raise words.scope.refuse("number_range", start.span, what=name.text, wanted=wanted, value=shown)
        found.append((name.text, int(low), int(high)))
    return tuple(found)


def _whole(words: Words, least: int) -> int:
    span = words.line[words.at].span if words.at < len(words.line) else words.span
    value = words.number()
    if value.denominator != 1 or value < least:
        wanted = f"a whole number of at least {least}"
        raise words.scope.refuse("number_range", span, what=words.line[0].text, wanted=wanted, value=value)
    return int(value)


def _confidence(words: Words) -> Fraction:
    value = words.number()
    if not 0 < value < 1:
        wanted = "above 0% and below 100%"
        raise words.scope.refuse(
            "number_range", words.span, what="a confidence", wanted=wanted, value=f"{value * 100}%"
        )
    return value


def _distributions(words: Words) -> tuple[str, ...]:
    found = [words.one_of("distribution", DISTRIBUTIONS)]
    while words.text == ",":
        words.take()
        found.append(words.one_of("distribution", DISTRIBUTIONS))
    return tuple(found)


def _condition(words: Words, dimensions: _Dimensions) -> Condition:
    return condition(words)


def _tolerance(words: Words, dimensions: _Dimensions) -> Tolerance:
    error = words.one_of("error", ERRORS)
    words.take("<=")
    start = words.at
    bound = term(words)
    known = {*(dimensions or ()), *DTYPES}
    for word in words.line[start : words.at] if dimensions is not None else ():
        if word.text in symbols(bound) and word.text not in known:
            hint = "declare it in `shapes` of `scope`"
            raise words.scope.refuse("unknown_name", word.span, name=word.text, hint=hint)
    for one in _formats_in(bound):
        if not isinstance(one, Symbol):
            raise words.refuse()
        if one.name not in DTYPES:
            span = next(w.span for w in reversed(words.line[start : words.at]) if w.text == one.name)
            hint = choose(one.name, DTYPES)
            raise words.scope.refuse("unknown_word", span, kind="number format", name=one.name, hint=hint)
    return Tolerance(error, bound)


def _formats_in(bound: Term) -> list[Term]:
    """What stands where a number format belongs: the last argument of a roundoff."""
    match bound:
        case Apply(function, arguments):
            inner = [found for one in arguments for found in _formats_in(one)]
            return [*inner, *(arguments[-1:] if function in _OF_FORMATS else ())]
        case Binary(_, left, right):
            return [*_formats_in(left), *_formats_in(right)]
    return []


_OF_FORMATS = ("gamma", "derived", "unit_roundoff")


def _oracle(scope: Scope, section: tree.KernelSection) -> tuple[str, str]:
    for line in section.items[:1]:
        words = Words(scope, line, _FORMS["oracle"])
        try:
            operation = words.name().text
            words.take("in")
            precision = words.one_of("number format", DTYPES)
            words.end()
        except RefusedError:
            break
        return operation, precision
    return "", ""


def _violation(words: Words, dimensions: _Dimensions) -> Signature:
    subject = words.name().text
    verb = words.one_of("signature", tuple(SIGNATURES))
    words.form = SIGNATURES[verb]
    dimension = ""
    if verb == "grows":
        words.take("with")
        word = words.name()
        dimension = word.text
        if dimensions is not None and dimension not in dimensions:
            hint = "declare it in `shapes` of `scope`"
            raise words.scope.refuse("unknown_name", word.span, name=dimension, hint=hint)
    for word_text in _ENDINGS.get(verb, ()):
        words.take(word_text)
    words.take("->")
    return Signature(subject, verb, dimension, words.one_of("severity", SEVERITIES))


_FORMS = {
    "scope": "shapes m in [1, 4096], k in [64, 16384]",
    "requires": "finite(a)` or `k % 16 == 0",
    "ensures": "finite(out)` or `shape(out) == [m, n]",
    "tolerance": "backward_error <= gamma(k, float32) + unit_roundoff(bfloat16)",
    "oracle": "matmul in float64",
    "measure": "trials 200",
    "violation": SIGNATURES["grows"],
}
"""Form of a line of each part, as a hint shows it."""

_LINES: dict[str, tuple[str, Callable[[Words, _Dimensions], Any]]] = {
    "requires": ("requires", _condition),
    "ensures": ("ensures", _condition),
    "tolerance": ("tolerances", _tolerance),
    "violation": ("violations", _violation),
}
_SCOPES: dict[str, tuple[str, Callable[[Words], Any]]] = {
    "op": ("operation", lambda words: words.name().text),
    "dtypes": ("formats", _formats),
    "shapes": ("shapes", _shapes),
}
_MEASURES: dict[str, tuple[str, Callable[[Words], Any]]] = {
    "trials": ("trials", lambda words: _whole(words, 1)),
    "distributions": ("distributions", _distributions),
    "seed": ("seed", lambda words: _whole(words, 0)),
    "confidence": ("confidence", _confidence),
}
