"""Every row of the tables of metrics and units."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from flint import arb, ctx, fmpq

from kcverify.catalog import metrics, units
from kcverify.catalog.model import Dimension, Family, Metric, Statistic
from kcverify.catalog.quantities import BY_NAME as QUANTITIES
from kcverify.diagnostics import Report
from kcverify.elaborate import elaborate
from kcverify.source import Source
from kcverify.syntax import parse

BLOCK = {Family.CLAIM: "guarantee"}


def _clause(row: Metric, number: Fraction) -> str:
    """A clause of the metric with a threshold of `number` canonical units."""
    needed = [argument for argument in row.arguments if argument.default is None]
    arguments = ", ".join(f"{argument.name} = {argument.values[0] if argument.values else 1}" for argument in needed)
    name = row.name + (f"({arguments})" if arguments else "")
    unit = "" if row.dimension in (Dimension.NONE, *units.UNIT_OPTIONAL) else f" {row.dimension.value}"
    value = f"{number.numerator} / {number.denominator}{unit}"
    test = f"in [{value}, {value}]" if row.direction.value == "in" else f"{row.direction.value} {value}"
    statistic = "mean " if row.statistic is None else ""
    severity = "" if row.family is Family.CLAIM else " -> L1"
    return f"contract c\n{BLOCK.get(row.family, row.family.value)} {{\n  a: {statistic}{name} {test}{severity}\n}}\n"


def test_names_and_aliases_are_unique() -> None:
    names = [name for row in metrics.ROWS for name in (row.name, *row.aliases)]
    assert len(names) == len(set(names)) == len(metrics.BY_NAME)


@pytest.mark.parametrize("row", metrics.ROWS, ids=lambda row: row.name)
def test_a_row_is_complete(row: Metric) -> None:
    assert row.title
    assert row.definition
    assert row.source
    assert row.carriers
    low, high = row.range
    assert low is not None
    assert high is None or low < high
    two_sided = row.quantity in ("importance_ratio", "perplexity_ratio")  # split into one quantity a side
    assert row.quantity is None or row.quantity in QUANTITIES or two_sided
    assert row.statistic is None or row.statistic in metrics.statistics_of(row)
    for argument in row.arguments:
        if isinstance(argument.default, Fraction):
            assert argument.low is None or argument.low <= argument.default
            assert argument.high is None or argument.default <= argument.high
        else:
            assert argument.default is None or argument.default in argument.values


@pytest.mark.parametrize("row", metrics.ROWS, ids=lambda row: row.name)
def test_a_clause_of_the_metric_elaborates(row: Metric) -> None:
    low, high = row.range
    number = (low or Fraction(0)) + Fraction(1, 7) * ((high or Fraction(7)) - (low or Fraction(0)))
    report = Report()
    [contract] = elaborate(parse(Source("x.kc", _clause(row, number)), report), report, parameters={})
    assert report.diagnostics == []
    [clause] = contract.guarantees if row.family is Family.CLAIM else contract.clauses
    assert clause.metric is row
    bound = clause.limit.upper or clause.limit.lower
    assert bound is not None
    assert bound.constant == number
    assert clause.statistic is (row.statistic or Statistic.MEAN)


def test_only_directed_names_hold_a_direction() -> None:
    assert frozenset({"kl"}) == metrics.DIRECTED
    assert all(re.fullmatch(r"[a-z_0-9]+", row.name.partition("(")[0]) for row in metrics.ROWS)


@pytest.mark.parametrize("row", units.ROWS, ids=lambda row: row.name)
def test_a_unit_has_a_positive_factor(row: units.Unit) -> None:
    assert 0 < row.low <= row.high
    assert row.exact or row.name == "bits"


def test_every_dimension_with_units_has_its_canonical_one() -> None:
    for dimension in {row.dimension for row in units.ROWS} - {Dimension.NONE}:
        assert units.BY_NAME[dimension.value].low == 1


def test_a_bit_is_enclosed() -> None:
    row = units.BY_NAME["bits"]
    ctx.prec = 400
    ln2 = arb(2).log()
    assert arb(fmpq(row.low.numerator, row.low.denominator)) < ln2
    assert ln2 < arb(fmpq(row.high.numerator, row.high.denominator))
    assert units.canonical_low(Fraction(-1), row) < units.canonical_high(Fraction(-1), row)


def test_foreign_spellings_lead_to_units_and_are_none() -> None:
    assert all(target in units.BY_NAME for target, _ in units.FOREIGN.values())
    assert not set(units.FOREIGN) & set(units.BY_NAME)


@pytest.mark.parametrize(
    ("value", "dimension", "wanted"),
    [
        (Fraction(12, 100), Dimension.SECOND, (Fraction(120), "ms")),
        (Fraction(7200), Dimension.SECOND, (Fraction(2), "h")),
        (Fraction(1, 10**9), Dimension.SECOND, (Fraction(1, 1000), "us")),
        (Fraction(40 * 2**30), Dimension.BYTE, (Fraction(40), "GiB")),
        (Fraction(5), Dimension.REWARD, (Fraction(5), "")),
    ],
)
def test_readable(value: Fraction, dimension: Dimension, wanted: tuple[Fraction, str]) -> None:
    assert units.readable(value, dimension) == wanted
