"""The linear form of a contract as SMT-LIB text, for a second solver: `unsat` says that the clauses imply the claims."""

from __future__ import annotations

from collections.abc import Iterable

from kcverify.elaborate.contract import Clause
from kcverify.prove.encoding import Encoding
from kcverify.prove.linear import tracked
from kcverify.prove.obligations import Atom


def smtlib(encoding: Encoding, clauses: Iterable[Clause], claims: Iterable[Atom]) -> str:
    """Background, lemma links, clauses and the negated claims of `linear.entails`, in QF_LRA."""
    text, names = tracked(encoding, clauses, claims)
    on = [f"(assert |{name}|)" for name in names]
    return "\n".join(["(set-logic QF_LRA)", *text, *on, "(check-sat)", ""])
