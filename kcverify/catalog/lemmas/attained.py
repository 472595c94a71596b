"""What the worst case is at least: values that an explicit process reaches, so that no bound may lie below them.

These rows are no lemmas about a given pair of kernels, and no chain uses them; they say how tight a chain is.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy as sp

from kcverify.catalog.quantities import BY_NAME, HORIZON
from kcverify.enclosure import BinomialTV

_s, _lam = BY_NAME["effective_span"].symbol, BY_NAME["log_ratio"].symbol


@dataclass(frozen=True)
class WorstCase:
    """Some pair that meets `premise` reaches `value` of `conclusion`; the bounds of `bounds` are at least that."""

    name: str
    premise: str
    conclusion: str
    value: sp.Expr
    statement: str
    argument: str
    source: str
    bounds: tuple[str, ...]
    parameters: tuple[str, ...] = ("horizon",)


ROWS: tuple[WorstCase, ...] = (
    WorstCase(
        "attained_worst_case",
        "effective_span",
        "tv_seq",
        BinomialTV(_s / 2, HORIZON),
        "some pair has TV_H >= TV(Bin(H, 1/(1+e^(-s/2))), Bin(H, 1/(1+e^(s/2))))",
        "H independent steps of the two-point pair that attains tv_of_span: responses are told apart by how many lifted tokens they hold",
        "bounds.optimal has the recursion's own policy, which reaches more beyond three steps",
        ("seq_affinity", "seq_tv_optimal", "seq_tv_closed"),
    ),
    WorstCase(
        "attained_log_ratio",
        "log_ratio",
        "tv_seq",
        BinomialTV(_lam, HORIZON),
        "some pair has TV_H = TV(Bin(H, 1/(1+e^-lambda)), Bin(H, 1/(1+e^lambda)))",
        "H independent steps of randomised response",
        "Kairouz, Oh and Viswanath 2015",
        ("seq_log_ratio",),
    ),
)
BY_ROW: dict[str, WorstCase] = {row.name: row for row in ROWS}
