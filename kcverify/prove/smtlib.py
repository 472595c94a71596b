"""The linear form of a contract as SMT-LIB text, for a second solver: `unsat` says that the clauses imply the claims."""

from __future__ import annotations

from collections.abc import Iterable

import z3

from kcverify.elaborate.contract import Clause
from kcverify.prove.linear import Encoding, bound_to_band
from kcverify.prove.obligations import Atom, atoms


def smtlib(encoding: Encoding, clauses: Iterable[Clause], claims: Iterable[Atom]) -> str:
    """Background, lemma links, clauses and the negated claims of `linear.entails`, in QF_LRA."""
    solver = z3.SolverFor("QF_LRA")
    solver.add([encoding.link_formula(link) for link in encoding.links])
    solver.add([encoding.joint_formula(given, derived) for given, derived in encoding.joints])
    for clause in clauses:
        found = [encoding.atom_formula(a) for a in atoms(clause)]
        solver.add(bound_to_band(encoding, clause, z3.And(found)))
    solver.add(z3.Not(z3.And([encoding.atom_formula(a) for a in claims])))
    solver.add(encoding.background())
    return "(set-logic QF_LRA)\n" + str(solver.to_smt2())
