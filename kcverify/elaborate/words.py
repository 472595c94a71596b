"""Expressions and conditions of kernel contracts, read from the words of one line."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kcverify.elaborate.scope import RefusedError, Scope, choose
from kcverify.exact import NumberError, parse_decimal
from kcverify.source import Span
from kcverify.syntax import tree


@dataclass(frozen=True)
class Constant:
    """An exact number."""

    value: Fraction


@dataclass(frozen=True)
class Symbol:
    """A dimension, an operand or a number format."""

    name: str


@dataclass(frozen=True)
class Apply:
    """`function(arguments)`."""

    function: str
    arguments: tuple[Term, ...]


@dataclass(frozen=True)
class Binary:
    """`left operator right`, the operator one of `+ - * / % ^`."""

    operator: str
    left: Term
    right: Term


@dataclass(frozen=True)
class Sequence:
    """`[a, b]`."""

    items: tuple[Term, ...]


Term = Constant | Symbol | Apply | Binary | Sequence


@dataclass(frozen=True)
class Condition:
    """`left operator right`; without an operator, a test such as `finite(a)`."""

    left: Term
    operator: str = ""
    right: Term | None = None


FUNCTIONS: dict[str, int] = {
    "finite": 1, "shape": 1, "rank": 1, "contiguous": 1, "gamma": 2, "derived": 1, "unit_roundoff": 1, "abs": 1, "sqrt": 1,
    "log2": 1, "max": 2, "min": 2, "norm": 1, "denormals": 1, "exceptions": 1, "out_of_range": 1, "determinism": 1, "summation": 1,
    "block": 1, "lanes": 1, "base": 1,
}  # fmt: skip
"""Functions of kernel contracts and how many arguments each takes. `gamma(k, format)` is `k u / (1 - k u)`; `derived(format)`
is the operation's derived tolerance with sums in the format. The last eight are declared with `==` and a word:
`denormals(out) == preserve`, `block(out) == 512`, `lanes` and `base` with a number."""

TESTS = frozenset({"finite", "contiguous"})
"""Functions that are true or false."""

_SUMS, _PRODUCTS = ("+", "-"), ("*", "/", "%")
COMPARISONS = ("<=", ">=", "==", "!=", "<", ">")


@dataclass
class Words:
    """The words of one line and how far they have been read. Every method raises RefusedError at a fault."""

    scope: Scope
    line: tuple[tree.Name, ...]
    form: str
    at: int = 0

    @property
    def span(self) -> Span:
        """The whole line."""
        return Span(self.line[0].span.source, self.line[0].span.start, self.line[-1].span.end)

    @property
    def text(self) -> str:
        """The next word, empty at the end."""
        return self.line[self.at].text if self.at < len(self.line) else ""

    def refuse(self) -> RefusedError:
        """The fault of a line that has another form."""
        span = self.line[self.at].span if self.at < len(self.line) else self.span
        return self.scope.refuse("kernel_form", span, form=self.form, hint=f"write `{self.form}`")

    def take(self, *wanted: str) -> tree.Name:
        """The next word, which must be one of those wanted if any are."""
        if self.at >= len(self.line) or (wanted and self.text not in wanted):
            raise self.refuse()
        self.at += 1
        return self.line[self.at - 1]

    def name(self) -> tree.Name:
        """The next word, which must be a name."""
        if not self.text[:1].isidentifier():
            raise self.refuse()
        return self.take()

    def one_of(self, kind: str, known: tuple[str, ...]) -> str:
        """The next word, which must be one of a closed set."""
        word = self.name()
        if word.text not in known:
            raise self.scope.refuse("unknown_word", word.span, kind=kind, name=word.text, hint=choose(word.text, known))
        return word.text

    def number(self) -> Fraction:
        """The next word, with a sign before it and `%` after it where they stand."""
        negative = self.text == "-"
        if negative:
            self.take()
        word = self.take()
        try:
            value = parse_decimal(word.text)
        except NumberError as error:
            raise self.scope.refuse("number_invalid", word.span, reason=str(error)) from error
        if self.text == "%":
            self.take()
            value /= 100
        return -value if negative else value

    def end(self) -> None:
        """Nothing may follow."""
        if self.at < len(self.line):
            raise self.refuse()

    def listed(self) -> tuple[str, ...]:
        """Names between commas."""
        names = [self.name().text]
        while self.text == ",":
            self.take()
            names.append(self.name().text)
        return tuple(names)


def condition(words: Words) -> Condition:
    """A comparison or a test."""
    left = term(words)
    if words.text in COMPARISONS:
        operator = words.take().text
        return Condition(left, operator, term(words))
    if isinstance(left, Apply) and left.function in TESTS:
        return Condition(left)
    raise words.refuse()


def term(words: Words) -> Term:
    """A sum of products."""
    total = _product(words)
    while words.text in _SUMS:
        operator = words.take().text
        total = Binary(operator, total, _product(words))
    return total


def _product(words: Words) -> Term:
    total = _power(words)
    while words.text in _PRODUCTS:
        operator = words.take().text
        total = Binary(operator, total, _power(words))
    return total


def _power(words: Words) -> Term:
    negative = words.text == "-"
    if negative:
        words.take()
    base = _atom(words)
    if words.text == "^":
        words.take()
        base = Binary("^", base, Constant(words.number()))
    return Binary("-", Constant(Fraction(0)), base) if negative else base


def _atom(words: Words) -> Term:
    text = words.text
    if text[:1].isdigit():
        return Constant(words.number() if _is_share(words) else _plain(words))
    if text in ("(", "["):
        words.take()
        inside = _list(words, ")" if text == "(" else "]")
        if text == "[":
            return Sequence(inside)
        if len(inside) != 1:
            raise words.refuse()
        return inside[0]
    name = words.name()
    if words.text != "(":
        return Symbol(name.text)
    words.take()
    arguments = _list(words, ")")
    if name.text not in FUNCTIONS:
        hint = choose(name.text, FUNCTIONS)
        raise words.scope.refuse("unknown_word", name.span, kind="function", name=name.text, hint=hint)
    if len(arguments) != FUNCTIONS[name.text]:
        raise words.scope.refuse(
            "kernel_arguments", name.span, name=name.text, wanted=FUNCTIONS[name.text], found=len(arguments)
        )
    return Apply(name.text, arguments)


def _is_share(words: Words) -> bool:
    """Whether the number is followed by `%` that ends it, and not by `%` and an operand."""
    after = words.line[words.at + 1 : words.at + 3]
    return (
        bool(after)
        and after[0].text == "%"
        and (len(after) == 1 or not (after[1].text[:1].isalnum() or after[1].text == "("))
    )


def _plain(words: Words) -> Fraction:
    word = words.take()
    try:
        return parse_decimal(word.text)
    except NumberError as error:
        raise words.scope.refuse("number_invalid", word.span, reason=str(error)) from error


def _list(words: Words, closing: str) -> tuple[Term, ...]:
    found: list[Term] = []
    while words.text != closing:
        if found:
            words.take(",")
        found.append(term(words))
    words.take(closing)
    return tuple(found)


def symbols(value: Term) -> frozenset[str]:
    """Names that a term reads."""
    if isinstance(value, Symbol):
        return frozenset({value.name})
    if isinstance(value, Binary):
        return symbols(value.left) | symbols(value.right)
    parts = value.arguments if isinstance(value, Apply) else value.items if isinstance(value, Sequence) else ()
    return frozenset().union(*(symbols(part) for part in parts))
