"""How much of the kernel a reader must trust: counted, kept apart, and run on its own."""

from __future__ import annotations

import ast
from fractions import Fraction
from pathlib import Path

import pytest

from kcverify.prove import kernel

SOURCE = Path(kernel.__file__)
MARKS = ("the trusted core begins", "the trusted core ends", "the rules end", "the evaluation of counterexamples ends")
SHARED = {"sech", "most", "tanh", "gain", "merged"}
"""Formulas that several rules use."""


def parts():
    """Core, rules and counterexamples: numbers of their lines of code, and their definitions.

    A line counts where it holds code: no blank line, no comment, no line of a docstring.
    """
    text = SOURCE.read_text(encoding="utf-8")
    lines, tree = text.splitlines(), ast.parse(text)
    silent = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            silent |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    places = [next(i for i, x in enumerate(lines, 1) if x.startswith("# ----") and mark in x) for mark in MARKS]
    out = []
    for low, high in zip(places, places[1:], strict=False):
        code = [i for i in range(low, high) if lines[i - 1].strip() and lines[i - 1].strip()[0] != "#"]
        out.append(([i for i in code if i not in silent], [n for n in tree.body if low < n.lineno < high]))
    return out


def functions(nodes):
    return {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}


def names(nodes):
    return {n.id for part in nodes for n in ast.walk(part) if isinstance(n, ast.Name)}


def test_the_trusted_core_stays_below_a_hundred_lines():
    (core, _), (rules, inside), (counterexamples, _) = parts()
    assert len(core) < 100
    assert len(counterexamples) <= 56
    assert functions(inside) == SHARED
    rows = [n.value for n in inside if isinstance(n, ast.AnnAssign)]
    entries = [(k, v) for table in rows for k, v in zip(table.keys, table.values, strict=True)]
    assert all(k.lineno == v.end_lineno for k, v in entries), "one line for every rule"
    assert len(entries) == len(kernel.RULES) <= 60
    assert len(rules) - len(entries) <= 30, "what the rules share stays short"


def test_no_line_is_packed():
    """The count means something only where a line is a line: one statement each, none of more than 125 characters."""
    text = SOURCE.read_text(encoding="utf-8").splitlines()
    core = parts()[0][0]
    assert all(len(text[i - 1]) <= 125 and ";" not in text[i - 1] for i in core)


def test_the_core_uses_nothing_of_what_is_outside():
    """It reads its own names, the tables, constants, the standard library, and `refute` for the other verdict."""
    everything = functions(ast.parse(SOURCE.read_text(encoding="utf-8")).body)
    core, rules, counterexamples = (nodes for _, nodes in parts())
    assert names(core) & everything <= functions(core) | {"refute"}
    assert names(rules) & everything <= functions(core) | functions(rules)
    assert names(counterexamples) & everything <= functions(core) | functions(rules) | functions(counterexamples)


def test_the_page_states_these_numbers():
    page = (Path(__file__).parents[3] / "docs" / "certificates.md").read_text(encoding="utf-8")
    (core, _), (rules, _), (counterexamples, _) = parts()
    assert f"**The core: {len(core)} lines of code**" in page
    assert f"**The rules**: {len(kernel.RULES)} of them" in page
    assert f"({len(rules) - len(kernel.RULES)} lines with those that open and close the tables)" in page
    assert f"For `REFUTED` alone: {len(counterexamples)} lines more" in page


@pytest.mark.parametrize("text", ["1e99999999999", "1E-99999999999", "0e1000000"])
def test_a_number_that_would_take_all_memory_is_refused_at_once(text):
    with pytest.raises(ValueError, match="too long"):
        kernel.num(text)
    assert kernel.num("1E-400") == Fraction(1, 10**400)
