"""A second solver's opinion on every proved guarantee, from its linear form: cvc5 (an extra) in a child process with a hard stop."""

from __future__ import annotations

from dataclasses import dataclass

import cvc5

from kcverify.elaborate.contract import Contract
from kcverify.prove import corner
from kcverify.prove.check import Checked
from kcverify.prove.encoding import encode
from kcverify.prove.guard import guarded
from kcverify.prove.obligations import (
    Obligation,
    applies,
    atoms,
    certifiable,
    in_graph,
    narrowed,
    obligations,
    whole_piece,
)
from kcverify.prove.slices import inherited
from kcverify.prove.smtlib import smtlib
from kcverify.prove.verdict import Limits, Status


@dataclass(frozen=True)
class Opinion:
    """What the second solver says of a guarantee on a slice: `agrees`, `disagrees`, or `no answer: reason`."""

    guarantee: str
    scope: str
    word: str


def _check(text: str) -> str:
    solver = cvc5.Solver()
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, text, "question")
    symbols = parser.getSymbolManager()
    out = ""
    while not (command := parser.nextCommand()).isNull():
        out = str(command.invoke(solver, symbols)).strip() or out
    return out


def second_opinion(text: str, limits: Limits | None = None) -> str:
    """`sat`, `unsat`, or `unknown: reason` for SMT-LIB text; a crash or a time-out is never an answer."""
    outcome = guarded(_check, text, seconds=(limits or Limits()).solver_s)
    if outcome.value in ("sat", "unsat"):
        return str(outcome.value)
    return f"unknown: {outcome.failure or outcome.value}"


def opinions(checked: Checked, limits: Limits | None = None) -> tuple[Opinion, ...]:
    """One opinion for every guarantee that was proved, from lemma instances at the contract's constants.

    The second solver re-checks the arithmetic between the instances; their constants are those of the enclosures.
    """
    proved = {(v.claim.name, v.scope) for v in checked.verdicts if v.status is Status.PROVED}
    found = []
    contract = inherited(checked.contract)
    for o in obligations(contract):
        within = narrowed(contract, o.claim)
        if (o.claim.name, o.scope) in proved and within is not None:
            answer = second_opinion(_text(within, o), limits)
            word = {"unsat": "agrees", "sat": "disagrees"}.get(answer, f"no answer: {answer.removeprefix('unknown: ')}")
            found.append(Opinion(o.claim.name, o.scope, word))
    return tuple(found)


def _text(contract: Contract, obligation: Obligation) -> str:
    piece = whole_piece(contract, obligation.scope)
    usable = [c for c in contract.clauses if in_graph(c) and applies(c, obligation.scope)]
    counted = [c for c in usable if certifiable(c, usable)]
    boxes = corner.piece_parameters(contract, obligation, piece)
    encoding = encode(piece, boxes, [a for c in counted for a in atoms(c)], obligation.atoms)
    return smtlib(encoding, counted, obligation.atoms)
