"""The block `assume`, and the pair of kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from kcverify.catalog.model import Dimension
from kcverify.diagnostics import Report
from kcverify.elaborate import numbers
from kcverify.elaborate.contract import Assumptions, Interval, Role, Sampler
from kcverify.elaborate.scope import RefusedError, Scope, choose, report_duplicates
from kcverify.source import Span
from kcverify.syntax import tree

ROLES = ("reference", "candidate", "guarded", "safe")
STORAGE = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
SAMPLERS = ("full_softmax", "greedy", "top_p", "top_k")

_Reader = Callable[[Scope, tree.Assumption], Any]
_Range = Callable[[Scope, tree.Assumption], Interval]


@dataclass(frozen=True)
class _Form:
    """How one assumption is written and read."""

    form: str
    kind: str
    read: _Reader


def _scalar(dimension: Dimension, wanted: str, fits: Callable[[Fraction], bool]) -> _Reader:
    def read(scope: Scope, node: tree.Assumption) -> Fraction:
        assert node.value is not None
        number = numbers.constant(scope, node.value, dimension, node.name.text)
        return numbers.in_range(scope, node.value.span, number, node.name.text, wanted, ok=fits(number))

    return read


def _whole(dimension: Dimension, low: int) -> _Reader:
    read = _scalar(dimension, f"a whole number of at least {low}", lambda n: n.denominator == 1 and n >= low)
    return lambda scope, node: int(read(scope, node))


def _ranged(dimension: Dimension, wanted: str = "", fits: Callable[[Fraction], bool] | None = None) -> _Range:
    """A closed range; `fits` is asked of its lower end. `name = number` is the range of that one number."""

    def read(scope: Scope, node: tree.Assumption) -> Interval:
        if node.range is None:
            assert node.value is not None
            low = high = numbers.constant(scope, node.value, dimension, node.name.text)
            span = node.value.span
        else:
            ends = numbers.interval(scope, numbers.closed(scope, node.range), dimension, node.name.text)
            low, high, span = ends.low or Fraction(0), ends.high or Fraction(0), node.range.low.span
        numbers.in_range(scope, span, low, node.name.text, wanted, ok=fits is None or fits(low))
        return Interval(low, high)

    return read


def _advantage(scope: Scope, node: tree.Assumption) -> Fraction:
    ends = _ranged(Dimension.NONE)(scope, node)
    return max(abs(end) for end in (ends.low, ends.high) if end is not None)


def _word(scope: Scope, node: tree.Assumption, kind: str, known: tuple[str, ...]) -> str:
    assert node.value is not None
    word = node.value.expression
    if isinstance(word, tree.Name) and word.text in known and node.value.unit is None:
        return word.text
    text = node.value.span.text
    raise scope.refuse("unknown_word", node.value.span, kind=kind, name=text[:60], hint=choose(text, known))


def _storage(scope: Scope, node: tree.Assumption) -> str:
    return _word(scope, node, "storage format", STORAGE)


def _sampler(scope: Scope, node: tree.Assumption) -> Sampler:
    assert node.value is not None
    call = node.value.expression
    if not isinstance(call, tree.Call):
        kind = _word(scope, node, "sampler", SAMPLERS)
        if kind in ("top_p", "top_k"):
            form = "sampler = top_p(0.95)" if kind == "top_p" else "sampler = top_k(50)"
            raise scope.refuse("assumption_form", node.value.span, form=form)
        return Sampler(kind)
    kind = call.function.text
    if kind not in ("top_p", "top_k") or len(call.arguments) != 1:
        hint = choose(kind, SAMPLERS)
        raise scope.refuse("unknown_word", node.value.span, kind="sampler", name=node.value.span.text[:60], hint=hint)
    argument = call.arguments[0]
    number = numbers.constant(scope, tree.Value(argument.span, argument, None), Dimension.NONE, kind)
    if kind == "top_p":
        numbers.in_range(scope, argument.span, number, kind, "above 0 and at most 1", ok=0 < number <= 1)
    else:
        ok = number.denominator == 1 and number >= 1
        numbers.in_range(scope, argument.span, number, kind, "a whole number of at least 1", ok=ok)
    return Sampler(kind, number)


_NOT_NEGATIVE = "0 or more"

FORMS: dict[str, _Form] = {
    "temperature": _Form("temperature in [0.6, 1.0]", "range", _ranged(Dimension.NONE, "above 0", lambda low: low > 0)),
    "sampler": _Form("sampler = full_softmax", "=", _sampler),
    "horizon": _Form("horizon <= 256 tokens", "<=", _whole(Dimension.TOKEN, 1)),
    "reward": _Form("reward in [0, 1]", "range", _ranged(Dimension.REWARD)),
    "advantage": _Form("advantage in [-5, 5]", "range", _advantage),
    "score_norm": _Form("score_norm <= 2.0", "<=", _scalar(Dimension.NONE, _NOT_NEGATIVE, lambda n: n >= 0)),
    "token_score_norm": _Form(
        "token_score_norm <= 0.1", "<=", _scalar(Dimension.NONE, _NOT_NEGATIVE, lambda n: n >= 0)
    ),
    "log_ratio_sd": _Form("log_ratio_sd = 0.05", "=", _scalar(Dimension.NONE, _NOT_NEGATIVE, lambda n: n >= 0)),
    "vocabulary": _Form("vocabulary = 151936", "=", _whole(Dimension.NONE, 2)),
    "logit_range": _Form("logit_range in [-40, 40]", "range", _ranged(Dimension.LOGIT)),
    "storage": _Form("storage = float32", "=", _storage),
    "traffic": _Form("traffic = 20 requests/s", "=", _scalar(Dimension.REQUEST_RATE, "above 0", lambda n: n > 0)),
}
"""Every assumption: its form as a message shows it, what must stand after its name, and how it is read."""


def _kind(node: tree.Assumption) -> str:
    if node.range is not None:
        return "range"
    if node.value is None:
        return "independent"
    return node.operator.text if node.operator else "="


def _one(scope: Scope, node: tree.Assumption) -> tuple[str, Any]:
    """Name of the field and its value. Raises RefusedError."""
    name, kind = node.name.text, _kind(node)
    if kind == "independent":
        if name != "tokens":
            raise scope.refuse("assumption_form", node.span, form="independent tokens")
        return "independent_tokens", True
    if name not in FORMS:
        hint = choose(name, [*FORMS, "independent tokens"], "assumptions are")
        raise scope.refuse("unknown_assumption", node.name.span, name=name, hint=hint)
    form = FORMS[name]
    if kind != form.kind and not (kind == "=" and form.kind in ("range", "<=") and name != "advantage"):
        raise scope.refuse("assumption_form", node.span, form=form.form, hint=f"write `{form.form}`")
    return name, form.read(scope, node)


def assumptions(scope: Scope, nodes: tuple[tree.Assumption, ...]) -> Assumptions:
    """The typed assumptions; those with a fault are reported and left out."""
    again = report_duplicates(scope.report, "the assumption", [(node.name.text, node.span) for node in nodes])
    values: dict[str, Any] = {}
    spans: dict[str, Span] = {}
    for index, node in enumerate(nodes):
        if index in again:
            continue
        try:
            name, value = _one(scope, node)
        except RefusedError:
            continue
        values[name], spans[name] = value, node.span
    return Assumptions(**values, spans=spans)


def fixed_and_free(
    found: Assumptions, nodes: tuple[tree.Assumption, ...]
) -> tuple[dict[str, Fraction], frozenset[str]]:
    """Assumptions that a threshold may name: those with one value, and those with a range or a bound."""
    fixed: dict[str, Fraction] = {}
    free: set[str] = set()
    exact = {node.name.text for node in nodes if _kind(node) == "="}
    for name in ("temperature", "horizon", "score_norm", "token_score_norm", "log_ratio_sd", "vocabulary", "traffic"):
        value = getattr(found, name)
        if value is None:
            continue
        if isinstance(value, Interval):
            if value.low is not None and value.low == value.high:
                fixed[name] = value.low
            else:
                free.add(name)
        elif name in exact:
            fixed[name] = Fraction(value)
        else:
            free.add(name)
    return fixed, frozenset(free)


def roles(report: Report, pair: tree.Pair) -> tuple[Role, ...]:
    """The members of the pair; unknown, repeated and missing roles are reported."""
    known: list[Role] = []
    again = report_duplicates(report, "the role", [(role.role.text, role.role.span) for role in pair.roles])
    again |= report_duplicates(report, "the kernel", [(role.alias.text, role.alias.span) for role in pair.roles])
    unknown = False
    for index, role in enumerate(pair.roles):
        if role.role.text not in ROLES:
            hint = choose(role.role.text, ROLES, "roles are")
            report.add("unknown_role", role.role.span, name=role.role.text, hint=hint)
            unknown = True
        elif index not in again:
            known.append(Role(role.role.text, role.alias.text, role.kernel.value, role.span))
    for needed in ROLES[:2]:
        if not unknown and needed not in {role.role for role in known}:
            head = Span(pair.span.source, pair.span.start, pair.span.start + len("pair"))
            report.add("pair_incomplete", head, role=needed, hint=f'add `{needed} NAME = "..."`')
    return tuple(known)
