"""The parser: every form of the language, places, several errors in one run, limits."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kcverify.diagnostics import Report
from kcverify.forms.read import read
from kcverify.source import Source
from kcverify.syntax import LIMITS, comments, parse, tree

EXAMPLES = ("rl_rollout.kc", "hole.kc", "fp8_gemm.kc", "more_syntax.kc")


def _parse(text: str) -> tuple[tree.File, list[str]]:
    report = Report()
    file = parse(Source("x.kc", text), report)
    return file, [diagnostic.code.slug for diagnostic in report.diagnostics]


def _clause(line: str, block: str = "numerical") -> tree.Clause:
    file, slugs = _parse(f"contract c\n{block} {{\n  {line}\n}}\n")
    assert slugs == []
    [item] = file.contracts[0].items
    assert isinstance(item, tree.Clauses)
    return item.clauses[0]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_parse(name: str, data: Path) -> None:
    file, slugs = _parse((data / name).read_text(encoding="utf-8"))
    assert slugs == []
    assert len(file.contracts) == 1


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_node_covers_its_text(name: str, data: Path) -> None:
    file, _ = _parse((data / name).read_text(encoding="utf-8"))
    seen = 0

    def visit(node: object) -> None:
        nonlocal seen
        if isinstance(node, tuple):
            for part in node:
                visit(part)
        elif isinstance(node, tree.Node):
            seen += 1
            assert node.span.end > node.span.start
            if isinstance(node, tree.Name | tree.Number):
                assert node.span.text == node.text
            for part in vars(node).values():
                visit(part)

    visit(file.contracts)
    assert seen > 15


def test_a_clause_in_all_its_parts() -> None:
    clause = _clause(
        "a: p99.9 kl(rollout || trainer) <= 2^-8 + x * 3 nats except 0.1% on s, t at confidence 99% over 10 minutes "
        "unit token when temperature in [0.6, 0.8) -> L2"
    )
    assert clause.name.text == "a"
    assert clause.statistic is not None
    assert clause.statistic.text == "p99.9"
    assert isinstance(clause.metric.arguments[0], tree.Directed)
    assert [modifier.keyword for modifier in clause.modifiers] == ["except", "on", "at", "over", "unit", "when"]
    assert [name.text for name in clause.modifiers[1].names] == ["s", "t"]
    band = clause.modifiers[5].range
    assert band is not None
    assert (band.open_low, band.open_high) == (False, True)
    assert clause.severity is not None
    assert clause.severity.text == "L2"
    assert isinstance(clause.test, tree.Compared)
    assert isinstance(clause.test.value, tree.Value)
    assert clause.test.value.unit is not None
    assert clause.test.value.unit.text == "nats"


def test_words_of_the_grammar_are_still_names_where_a_name_stands() -> None:
    text = "contract contract\nslice slice = on >= 1\nnumerical { except: unit(at = 1) <= pair on slice -> when }\n"
    file, slugs = _parse(text)
    assert slugs == []
    assert file.contracts[0].header.name.text == "contract"


def test_a_unit_of_two_words_and_a_division() -> None:
    clause = _clause("a: throughput >= 3000 / 2 tokens / s -> L1", "runtime")
    assert isinstance(clause.test, tree.Compared)
    assert isinstance(clause.test.value, tree.Value)
    assert isinstance(clause.test.value.expression, tree.Chain)
    assert clause.test.value.unit is not None
    assert clause.test.value.unit.text == "tokens/s"


def test_precedence() -> None:
    clause = _clause("a: tv <= -1 + 2 * 3 ^ -2 -> L1")
    assert isinstance(clause.test, tree.Compared)
    assert isinstance(clause.test.value, tree.Value)
    chain = clause.test.value.expression
    assert isinstance(chain, tree.Chain)
    assert isinstance(chain.first, tree.Negative)
    [(operator, product)] = chain.rest
    assert operator == "+"
    assert isinstance(product, tree.Chain)
    power = product.rest[0][1]
    assert isinstance(power, tree.Power)
    assert power.minus


def test_and_binds_tighter_than_or() -> None:
    file, _ = _parse('contract c\nslice s = a > 1 or b > 1 and not tag("x")\n')
    [item] = file.contracts[0].items
    assert isinstance(item, tree.Slice)
    assert isinstance(item.predicate, tree.Junction)
    assert item.predicate.operator == "or"
    assert isinstance(item.predicate.parts[1], tree.Junction)


@pytest.mark.parametrize(
    "text",
    [
        "contract c;numerical{a:tv<=0.01->L1;b:tv<=0.02->L2;}",
        "\n\n  contract c # x\n\n;;\nnumerical # y\n{ # z\n\n a: tv <= 0.01 -> L1 # w\n # v\n }",
        "\ufeffcontract c\r\nnumerical {\r\n  a: tv <= 0.01 -> L1\r\n}\r\n",
        "contract c\nnumerical { }\nassume {\n}\n",
        "contract c\ncontract d\n",
    ],
    ids=["one line", "comments", "windows", "empty blocks", "two contracts"],
)
def test_layout_is_free(text: str) -> None:
    file, slugs = _parse(text.replace("numerical # y\n{", "numerical {"))
    assert slugs == []
    assert file.contracts


def test_equality_ignores_places_and_layout() -> None:
    one, _ = _parse("contract c\nnumerical {\n  a: tv <= 0.01 -> L1 # note\n}\n")
    other, _ = _parse("contract c; numerical { a:  tv<=0.01->L1 }")
    assert one == other
    assert one != _parse("contract c; numerical { a: tv <= 0.02 -> L1 }")[0]


def test_comments_are_kept() -> None:
    source = Source("x.kc", 'contract c # one\n"a # b"\n  # two\nslice s = tag("#") # three')
    assert [span.text for span in comments(source)] == ["# one", "# two", "# three"]


def test_several_errors_are_reported_and_the_rest_is_kept() -> None:
    clauses_text = " a: tv <= -> L1\n b: tv <= 0.1 -> L1\n c tv <= 1 -> L1\n"
    text = f"contract c\nnumerical {{\n{clauses_text}}}\nruntme {{ x }}\nslice s = a > 1\n"
    file, slugs = _parse(text)
    assert slugs == ["unexpected", "unexpected", "unknown_block"]
    [clauses, item] = file.contracts[0].items
    assert isinstance(clauses, tree.Clauses)
    assert [clause.name.text for clause in clauses.clauses] == ["b"]
    assert isinstance(item, tree.Slice)


def test_a_missing_brace_is_one_error() -> None:
    _, slugs = _parse("contract c\nnumerical {\n a: tv <= 0.1 -> L1\nruntime {\n b: p99 latency <= 1 s -> L1\n}\n")
    assert slugs == ["unclosed_block"]
    assert _parse("contract c\npromote {\n full {\n stable 24 h")[1] == ["unclosed_block", "unclosed_block"]


def test_a_broken_header_does_not_orphan_its_blocks() -> None:
    _, slugs = _parse("contract my-contract version 1\nnumerical { a: tv <= 0.1 -> L1 }\n")
    assert slugs == ["unexpected"]


@pytest.mark.parametrize("text", ["", "\n", "  # nothing\n", ";;;"])
def test_an_empty_file_holds_no_contract(text: str) -> None:
    assert _parse(text)[1] == ["no_contract"]


@pytest.mark.parametrize(
    "text", ["}", "{", "}}}}", "{{{{", "contract", "contract c\n}", '"', '""', "contract c {", "\x00", "\ud800"]
)
def test_rubbish_is_a_diagnostic(text: str) -> None:
    assert _parse(text)[1]


@pytest.mark.parametrize(
    "text",
    [
        "contract c\nparam a = " + "(" * 100_000 + "1" + ")" * 100_000,
        "contract c\nslice a = " + "(" * 100_000,
        "contract c\n" + "numerical {" * 100_000,
        "contract c\nparam a = " + "-" * 100_000 + "1",
        "contract c\nparam a = " + " " * 100_000 + "&",
        "contract c\nparam a = 1" + "\t  " * 30_000 + "é # x",
        "contract c\nslice a = " + "not " * 100_000 + "b > 1",
        "contract c\nparam a = " + "2^" * 100_000 + "2",
        "x" * 10_000_000,
        "contract c\n" + "numerical { a: tv <= 0.1 -> L1 }\n" * 320_000,
    ],
    ids=[
        "brackets",
        "open brackets",
        "blocks",
        "minus",
        "spaces",
        "blanks",
        "not",
        "powers",
        "10 MB word",
        "10 MB contract",
    ],
)
def test_excess_is_answered_quickly(text: str) -> None:
    start = time.perf_counter()
    assert _parse(text)[1]
    assert time.perf_counter() - start < 5


def test_a_long_sum_is_no_problem() -> None:
    assert _parse("contract c\nparam a = " + "1 + " * 10_000 + "1\n")[1] == []


def test_errors_are_counted_and_cut() -> None:
    _, slugs = _parse("contract c\nnumerical {\n" + " a: -> L1\n" * 500 + "}\n")
    assert slugs.count("unexpected") == LIMITS.errors
    assert slugs[-1] == "more_errors"


def test_the_long_example_parses_fast(data: Path) -> None:
    text = (data / "rl_rollout.kc").read_text(encoding="utf-8")
    _parse(text)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        _parse(text)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.05


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("contract c\rnumerical {\r  a: tv <= 0.01 -> L1\r}\r", "x.kc:1:11"),
        ("contract c\r\nnumerical { # hidden\r  a: tv <= 0.01 -> L1\r\n}\r\n", "x.kc:2:21"),
        ("contract c\r\r\n", "x.kc:1:11"),
    ],
)
def test_a_lone_carriage_return_is_refused(text: str, place: str) -> None:
    report = Report()
    assert not parse(Source("x.kc", text), report).contracts
    [found] = report.diagnostics
    assert found.code.slug == "lone_return" and found.span is not None and found.span.place == place


@pytest.mark.parametrize("form", ["c.yaml", "c.json"])
def test_a_lone_carriage_return_is_refused_in_every_form(form: str) -> None:
    text = '{"language": "1.0",\r"contracts": []}' if form == "c.json" else 'language: "1.0"\rcontracts: []\n'
    report = Report()
    read(Source(form, text), report)
    assert [d.code.slug for d in report.diagnostics] == ["lone_return"]


def test_a_name_beyond_the_limit_is_refused_at_once() -> None:
    name = "a" * LIMITS.name
    assert _parse(f"contract {name}\n")[1] == []
    start = time.perf_counter()
    for text in (f"contract {name}b\n", f"contract c\nnumerical {{ {name * 1000}: tv <= 0.1 -> L1 }}\n"):
        assert _parse(text)[1] == ["name_too_long"]
    assert time.perf_counter() - start < 2
    assert _parse(f'contract c version "{name * 3}"  # {name * 3}\n')[1] == []


def test_a_name_beyond_the_limit_is_refused_in_yaml() -> None:
    name = "a" * (LIMITS.name + 1)
    head = 'language: "1.0"\ncontracts:\n  - name: c\n    numerical:\n'
    for line in (
        f"      {name}: {{metric: tv, at_most: 0.1, severity: L1}}\n",
        f"      a: {{metric: {name}, at_most: 0.1, severity: L1}}\n",
    ):
        report = Report()
        read(Source("c.yaml", head + line), report)
        assert [d.code.slug for d in report.diagnostics] == ["name_too_long"]


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("numerical { a: tv ≤ 0.1 -> L1 }", "write `<=`"),
        ("numerical { a: tv <= 0.1 → L1 }", "write `->`"),
        ("numerical { a:\u00a0tv <= 0.1 -> L1 }", "write a plain space"),
        ("numerical { a: tv <= .25 -> L1 }", "write `0.25`"),
        ("numerical { a: tv <= 0,25 -> L1 }", "write `0.25`: decimals follow a point"),
        ("numerical { dérive: tv <= 0.1 -> L1 }", "names have the letters a to z and A to Z, digits and `_`"),
        ("numerical { a-b: tv <= 0.1 -> L1 }", "names have the letters a to z and A to Z, digits and `_`"),
        ("contract a-b", "names have the letters a to z and A to Z, digits and `_`"),
        ("contract a version 1.0", 'write `"1.0"`'),
        ("contract a version “1.0”", 'write `"`'),
        ("numerical { a: tv <= 0.1 & -> L1 }", "remove the character"),
    ],
)
def test_a_form_of_elsewhere_is_told_how_it_is_written_here(line: str, hint: str) -> None:
    report = Report()
    parse(Source("x.kc", f"contract c\n{line}\n"), report)
    assert [d.hint for d in report.diagnostics] == [hint]
