"""Formatting keeps the tree and the comments, and done twice it changes nothing, for whatever parses."""

from __future__ import annotations

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from strategies import contracts_of, mutated

from kcverify.diagnostics import Report
from kcverify.source import Source, Span
from kcverify.syntax import comments, expressions, parse, tree
from kcverify.syntax.printer import formatted, pretty

SETTINGS = settings(max_examples=100, deadline=10_000, suppress_health_check=list(HealthCheck))
NOWHERE = Span(Source("x", ""), 0, 0)
NAMES = st.sampled_from(["a", "temperature", "in", "unit", "p99", "contract", "except"])
NAME = NAMES.map(lambda text: tree.Name(NOWHERE, text))
NUMBER = st.sampled_from(["0", "0.1", "1_000", "1e-5"]).map(lambda text: tree.Number(NOWHERE, text))
UNIT = st.none() | st.sampled_from(["%", "ms", "tokens/s"]).map(lambda text: tree.Unit(NOWHERE, text))


def _parse(text: str) -> tuple[tree.File, Report]:
    report = Report()
    return parse(Source("x.kc", text), report), report


def _chains(parts: st.SearchStrategy[tree.Expression], signs: str) -> st.SearchStrategy[tree.Expression]:
    rest = st.lists(st.tuples(st.sampled_from(list(signs)), parts), min_size=1, max_size=3).map(tuple)
    return st.builds(tree.Chain, st.just(NOWHERE), parts, rest)


EXPRESSIONS = st.recursive(
    NUMBER | NAME,
    lambda parts: (
        _chains(parts, "+-")
        | _chains(parts, "*/")
        | parts.map(lambda part: tree.Negative(NOWHERE, part))
        | st.builds(tree.Power, st.just(NOWHERE), parts, parts, st.booleans())
        | st.builds(tree.Call, st.just(NOWHERE), NAME, st.lists(parts, min_size=1, max_size=2).map(tuple))
    ),
    max_leaves=8,
)
VALUES = st.builds(tree.Value, st.just(NOWHERE), EXPRESSIONS, UNIT)
RANGES = st.builds(tree.Range, st.just(NOWHERE), VALUES, VALUES, st.booleans(), st.booleans(), UNIT)
TEXTS = st.sampled_from(["", "#", "x y", "{"]).map(lambda text: tree.Text(NOWHERE, text))
OPERATORS = st.sampled_from(["<=", ">=", "==", "!=", "<", ">"]).map(lambda text: tree.Name(NOWHERE, text))
PREDICATES = st.recursive(
    st.builds(tree.Comparison, st.just(NOWHERE), NAME, OPERATORS, VALUES | TEXTS)
    | st.builds(tree.Membership, st.just(NOWHERE), NAME, RANGES)
    | st.builds(tree.Tagged, st.just(NOWHERE), NAME, TEXTS),
    lambda parts: (
        parts.map(lambda part: tree.Not(NOWHERE, part))
        | st.builds(
            tree.Junction,
            st.just(NOWHERE),
            st.sampled_from(["and", "or"]),
            st.lists(parts, min_size=2, max_size=3).map(tuple),
        )
    ),
    max_leaves=6,
)


@SETTINGS
@given(VALUES)
def test_a_number_keeps_its_tree(value: tree.Value) -> None:
    file, report = _parse(f"contract c\nparam a = {expressions.value(value)}\n")
    assert report.diagnostics == []
    [item] = file.contracts[0].items
    assert isinstance(item, tree.Param)
    assert item.value == value


@SETTINGS
@given(PREDICATES)
def test_a_predicate_keeps_its_tree(predicate: tree.Predicate) -> None:
    file, report = _parse(f"contract c\nslice a = {expressions.predicate(predicate)}\n")
    assert report.diagnostics == []
    [item] = file.contracts[0].items
    assert isinstance(item, tree.Slice)
    assert item.predicate == predicate


def _check(text: str, file: tree.File) -> None:
    after = formatted(file)
    again, report = _parse(after)
    assert report.diagnostics == []
    assert again == file
    assert formatted(again) == after
    assert _parse(pretty(file))[0] == tree.File(file.source, file.uses, file.contracts)
    kept = [span.text.rstrip() for span in comments(Source("x.kc", after))]
    assert kept == [span.text.rstrip() for span in comments(Source("x.kc", text))]


@SETTINGS
@given(contracts_of(), st.data())
def test_a_generated_contract_with_comments(generated: tuple[str, object], data: st.DataObject) -> None:
    lines = []
    for line in generated[0].split("\n"):
        space = data.draw(st.sampled_from(["", "", " ", "\t"]))
        comment = data.draw(st.sampled_from(["", "", "", "#", "# note", "\n# own", "\n\n\n  # far\n"]))
        lines.append(f"{space}{line}{' ' if comment else ''}{comment}")
    text = "\n".join(lines)
    file, report = _parse(text)
    assert report.diagnostics == []
    _check(text, file)


@SETTINGS
@given(mutated())
def test_whatever_parses_is_formatted(text: str) -> None:
    file, report = _parse(text)
    assume(not report.diagnostics)
    _check(text, file)
