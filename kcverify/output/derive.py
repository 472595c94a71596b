"""The answer of `derive`: each hole's budget with its working."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from kcverify import __version__
from kcverify.catalog.quantities import BY_NAME
from kcverify.elaborate import form
from kcverify.elaborate.contract import Clause
from kcverify.exact import decimal_down, decimal_near, decimal_up
from kcverify.output import chain
from kcverify.output import check as check_output
from kcverify.output.style import paint, table
from kcverify.prove.budget import Budget, Demand


def _unit(b: Budget) -> str:
    return b.clause.metric.dimension.value


def _metric(clause: Clause) -> str:
    """The metric with the arguments that differ from their defaults."""
    usual = {(a.name, a.default) for a in clause.metric.arguments}
    return form.metric(replace(clause, arguments=tuple(a for a in clause.arguments if a not in usual)))


def budget_data(b: Budget) -> dict[str, Any]:
    """A budget as plain data."""
    return {
        "clause": b.clause.name, "metric": b.clause.metric.name, "relation": "<=" if b.upper else ">=", "decimal": b.decimal, "exact": str(b.value),
        "double": b.monitor, "unit": _unit(b), "binding": b.binding.claim.name, "share": str(b.share),
        "demands": [{"guarantee": d.claim.name, "value": str(d.value), "chain": chain_data(d)} for d in b.demands],
        "one_digit_more_breaks_it_by": decimal_up(b.breach, 3),
    }  # fmt: skip


def chain_data(d: Demand) -> list[dict[str, Any]]:
    """The chain from a hole to a guarantee at the budget."""
    return chain.links(d.chain[-1]) if d.chain else []


def data(derived: Any) -> dict[str, Any]:
    """The whole answer as plain data."""
    return {
        "kcverify": __version__, "contract": derived.contract.name, "exit_code": derived.exit_code,
        "budgets": [budget_data(b) for b in derived.budgets],
        "diagnostics": [check_output.diagnostic_data(d) for d in derived.report.diagnostics],
        "check": check_output.contract_data(derived.checked) if derived.checked else None,
    }  # fmt: skip


def text(derived: Any, color: bool) -> str:
    """The whole answer for a terminal."""
    parts = [paint(derived.contract.name, "bold", color)]
    parts += [_budget(b, color) for b in derived.budgets]
    if derived.checked is not None:
        words = ", ".join(
            f"{v.claim.name} {paint(v.status.value, v.status.value, color)}" for v in derived.checked.verdicts
        )
        parts.append(f"  with these numbers: {words}")
    return "\n\n".join(parts)


def _budget(b: Budget, color: bool) -> str:
    relation = "<=" if b.upper else ">="
    unit = f" {_unit(b)}" if _unit(b) else ""
    head = f"{b.clause.name}: {_metric(b.clause)} {relation} {b.decimal}{unit}"
    if b.clause.exception:
        head += f" except {chain.percent(b.clause.exception)}"
    lines = [f"  {paint(head, 'bold', color)}"]
    lines += table(
        [
            ("as a fraction", short(b.value)),
            ("as the double that a monitor compares with", repr(b.monitor)),
            ("binding guarantee", b.binding.claim.name),
        ],
        indent=4,
    )
    if b.share != 1:
        lines.append(f"    from {chain.percent(b.share)} of each guarantee's tolerance, since several holes share it")
    lines.append("    working, from the guarantee back to the clause:")
    for d in b.demands:
        lines += _working(d, b)
    if b.breach > 0:
        ending = f"would break `{b.binding.claim.name}` by {decimal_up(b.breach, 3)}"
    else:
        ending = "is within the resolution of the recursion (0.2%), and not proved"
    lines.append(f"    one more unit in the last digit {ending}")
    return "\n".join(lines)


def _working(d: Demand, b: Budget) -> list[str]:
    """The budget of every quantity on the way back, each rounded to the safe side."""
    rows = []
    for f in reversed(d.chain):
        upper = BY_NAME[f.node.quantity].upper
        value = decimal_down(f.value, 6) if upper else decimal_up(f.value, 6)
        if f is d.chain[-1]:
            value = decimal_near(f.value, 6)
        unit = f.quantity.dimension.value
        text = f"{f.node.quantity} {'<=' if upper else '>='} {value}" + (
            f" {unit}" if unit not in ("", "reward") else ""
        )
        rows.append((d.claim.name if f is d.chain[-1] else "", text, f.lemma.statement if f.lemma else "the hole"))
    return table(rows, indent=6)


def short(x: Fraction, digits: int = 40) -> str:
    """A fraction in full where it is short; a dyadic one as `numerator / 2^k`."""
    text = str(x)
    if len(text) <= digits:
        return text
    d = x.denominator
    return f"{x.numerator}/2^{d.bit_length() - 1}" if d & (d - 1) == 0 else text
