"""Slices: decided by z3, held against brute force over small traces."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kcverify.diagnostics import Diagnostic, Report
from kcverify.elaborate import elaborate
from kcverify.elaborate.contract import (
    Conjunction,
    Disjunction,
    FieldCompare,
    FieldWithin,
    HasTag,
    Interval,
    Negation,
    Predicate,
    SliceDef,
)
from kcverify.elaborate.membership import belongs
from kcverify.prove.slices import Pairs, _satisfiable, excludes, includes, is_empty, overlaps, slice_findings
from kcverify.prove.verdict import Limits
from kcverify.source import Source, Span
from kcverify.syntax import parse

OBSERVED = "observability { trace region, load }\n"


def _predicate(text: str) -> Predicate:
    report = Report()
    (contract,) = elaborate(
        parse(Source("x.kc", f"contract c\n{OBSERVED}slice s = {text}\n"), report), report, parameters={}
    )
    assert report.diagnostics == []
    return contract.slices[0].predicate


@pytest.mark.parametrize(
    ("text", "empty"),
    [
        ("prompt_tokens >= 10 and prompt_tokens < 5", True),
        ("prompt_tokens > 5 and prompt_tokens < 6", True),
        ("load > 5 and load < 6", False),
        ("prompt_tokens < 0", True),
        ("prompt_tokens <= 0", False),
        ("prompt_tokens == 1/2", True),
        ("load == 1/3", False),
        ('region == "a" and region == "b"', True),
        ('region != "a" and region != "b"', False),
        ('region == "a" and region > 5', True),
        ('tag("x") and not tag("x")', True),
        ('tag("x") and not tag("y")', False),
        ("prompt_tokens in [5, 5]", False),
        ("load in [5, 6) and load in [6, 7)", True),
        ("load in [5, 6] and load in [6, 7)", False),
    ],
)
def test_emptiness(text: str, empty: bool) -> None:
    assert is_empty(_predicate(text)) is empty


@pytest.mark.parametrize(
    ("outer", "inner", "answer"),
    [
        ("prompt_tokens >= 1024", "prompt_tokens >= 8192", True),
        ("prompt_tokens >= 8192", "prompt_tokens >= 1024", False),
        ("prompt_tokens > 5", "prompt_tokens >= 6", True),
        ("load > 5", "load >= 6", True),
        ("load >= 6", "load > 5", False),
        ('region != "a"', 'region == "b"', True),
        ('tag("x") or tag("y")', 'tag("x")', True),
        ('not (tag("x") and load > 5)', 'not tag("x")', True),
    ],
)
def test_inclusion(outer: str, inner: str, answer: bool) -> None:
    assert includes(_predicate(outer), _predicate(inner)) is answer


def test_overlap_and_exclusion() -> None:
    long, middle = _predicate("prompt_tokens >= 8192"), _predicate("prompt_tokens in [1024, 8192)")
    assert overlaps(long, middle) is False
    assert overlaps(long, _predicate('tag("x")')) is True
    assert excludes(long, {"prompt_tokens": 5}) is True
    assert excludes(long, {"load": 5}) is False
    assert excludes(_predicate('tag("x")'), {}) is True
    assert excludes(_predicate('tag("x") and region == "eu"'), {"region": "us"}, {"x"}) is True
    assert excludes(_predicate('region == "eu"'), {"region": 3}) is True


def test_a_solver_that_gives_up_says_so() -> None:
    hard = Conjunction(tuple(
        Disjunction((FieldCompare(f"f{i}", ">", Fraction(i)), FieldCompare(f"f{(i * 7) % 60}", "<", Fraction(i, 3))))
        for i in range(400)
    ))  # fmt: skip
    assert is_empty(hard, Limits(solver_ms=1)) in (None, True, False)


FIELDS = {
    "prompt_tokens": [0, 1, 2, 3],
    "load": [Fraction(0), Fraction(1, 2), Fraction(1), Fraction(3)],
    "region": ["a", "b", "z"],
}
TAGS = ["x", "y"]
NUMBER = st.sampled_from([Fraction(-1), Fraction(0), Fraction(1, 2), Fraction(1), Fraction(2), Fraction(3)])
LEAVES = (
    st.builds(FieldCompare, st.sampled_from(["prompt_tokens", "load"]), st.sampled_from(["<=", ">=", "<", ">", "==", "!="]), NUMBER)
    | st.builds(FieldCompare, st.just("region"), st.sampled_from(["==", "!="]), st.sampled_from(["a", "b"]))
    | st.builds(lambda low, size, half: FieldWithin("load", Interval(low, low + size, half)), NUMBER, NUMBER.map(abs).filter(bool), st.booleans())
    | st.sampled_from(TAGS).map(HasTag)
)  # fmt: skip
PREDICATES = st.recursive(
    LEAVES,
    lambda parts: (
        parts.map(Negation)
        | st.lists(parts, min_size=2, max_size=3).map(lambda found: Conjunction(tuple(found)))
        | st.lists(parts, min_size=2, max_size=3).map(lambda found: Disjunction(tuple(found)))
    ),
    max_leaves=5,
)
TRACES = [
    (dict(zip(FIELDS, values, strict=True)), {tag for tag, on in zip(TAGS, flags, strict=True) if on})
    for values in product(*FIELDS.values())
    for flags in product([False, True], repeat=2)
]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(PREDICATES, PREDICATES)
def test_no_trace_contradicts_an_answer(a: Predicate, b: Predicate) -> None:
    inside = [(belongs(a, fields, tags), belongs(b, fields, tags)) for fields, tags in TRACES]
    if any(x for x, _ in inside):
        assert is_empty(a) is not True
    if any(y and not x for x, y in inside):
        assert includes(a, b) is not True
    if any(x and y for x, y in inside):
        assert overlaps(a, b) is not False
    for fields, tags in TRACES[::37]:
        assert excludes(a, fields, tags) is not belongs(a, fields, tags)


def _findings(text: str) -> list[Diagnostic]:
    report = Report()
    (contract,) = elaborate(parse(Source("x.kc", f"contract c\n{text}"), report), report, parameters={})
    assert report.errors == []
    found = Report()
    slice_findings(contract, found)
    return found.diagnostics


@pytest.mark.parametrize("slug", ["slice_empty", "slice_conflict", "slice_covered", "slice_unused"])
def test_the_contracts_of_the_code_table(slug: str) -> None:
    from kcverify.codes import BY_SLUG

    row = BY_SLUG[slug]
    assert [d.code.slug for d in _findings(row.bad.removeprefix("contract c\n"))] == [slug]
    assert _findings(row.good.removeprefix("contract c\n")) == []


SLICES = "slice long = prompt_tokens >= 8192\nslice wide = prompt_tokens >= 1024\n"


@pytest.mark.parametrize(
    ("lines", "slugs"),
    [
        ("a: tv <= 0.02 on long -> L1; b: tv <= 0.01 except 1% on wide -> L1", []),
        ("a: tv <= 0.02 except 1% on long -> L1; b: tv <= 0.02 on wide -> L1", ["slice_covered"]),
        ("a: mean tv <= 0.02 on long -> L1; b: mean tv <= 0.01 on wide -> L1", []),
        ("a: tv <= 0.02 on long -> L1; b: tv <= 0.02 on wide -> L1", []),
        ("a: tv <= 0.01 on wide -> L1; b: tv <= 0.02 on long -> L1", ["slice_covered"]),
        ("a: tv <= 0.02 on long, wide -> L1; b: tv <= 0.01 on long -> L1", []),
        ("a: importance_ratio in [0.9, 0.95] on long -> L1; b: importance_ratio in [0.96, 0.99] on wide -> L1",
         ["slice_conflict"]),
    ],
)  # fmt: skip
def test_findings(lines: str, slugs: list[str]) -> None:
    assert [d.code.slug for d in _findings(f"{SLICES}numerical {{ {lines} }}\n")] == slugs


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(PREDICATES, PREDICATES)
def test_what_is_known_of_each_slice_alone_decides_as_the_solver_does(a: Predicate, b: Predicate) -> None:
    span = Span(Source("x.kc", ""), 0, 0)
    pairs = Pairs({"a": SliceDef("a", a, span, ()), "b": SliceDef("b", b, span, ())}, Limits())
    for question in (includes, overlaps):
        assert pairs.ask(question, "a", "b") is (question(a, b) is True)


def _tagged(count: int, clause: str) -> str:
    slices = "".join(f'slice s{i} = tag("s{i}")\n' for i in range(count))
    return f"{slices}numerical {{ {'; '.join(clause.format(i=i, s=f's{i % count}') for i in range(2 * count))} }}\n"


def test_slices_of_different_tags_are_not_asked_about_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A contract of many slices took a question of the solver for each pair of them."""
    asked: list[int] = []

    def counted(*arguments: Any) -> bool | None:
        asked.append(1)
        return _satisfiable(*arguments)

    monkeypatch.setattr("kcverify.prove.slices._satisfiable", counted)
    assert _findings(_tagged(30, "c{i}: tv <= 0.0{i} on {s} -> L1").replace("0.00", "0.001")) == []
    assert len(asked) <= 4 * 30


def test_findings_of_many_clauses_stand_in_the_order_of_the_clauses() -> None:
    lines = "; ".join(
        f"c{i}: tv <= 0.{40 - i} on {'wide' if i % 2 else 'long'} -> L1; f{i}: importance_ratio >= 0.{50 + i} on long -> L1"
        for i in range(4)
    )
    found = _findings(f"{SLICES}numerical {{ {lines}; r: importance_ratio <= 0.52 on wide -> L1 }}\n")
    named = [(d.code.slug, d.related[0].label) for d in found]
    assert named == [
        ("slice_covered", "`c1` is tighter"),
        ("slice_covered", "`c3` is tighter"),
        ("slice_covered", "`c3` is tighter"),
        ("slice_conflict", "`f3` on `long`"),
    ]
