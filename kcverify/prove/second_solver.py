"""A second solver's opinion on every proved guarantee, from the linear form of the contract."""

from __future__ import annotations

from dataclasses import dataclass

from kcverify.elaborate.contract import Contract
from kcverify.prove import corner, linear
from kcverify.prove.check import Checked
from kcverify.prove.obligations import Obligation, applies, atoms, certifiable, in_graph, obligations, whole_piece
from kcverify.prove.question.second import second_opinion
from kcverify.prove.smtlib import smtlib
from kcverify.prove.verdict import Status


@dataclass(frozen=True)
class Opinion:
    """What the second solver says of a guarantee on a slice: `agrees`, `disagrees`, or `no answer: reason`."""

    guarantee: str
    scope: str
    word: str


def opinions(checked: Checked) -> tuple[Opinion, ...]:
    """One opinion for every guarantee that was proved, from lemma instances at the contract's constants.

    The second solver re-checks the arithmetic between the instances; their constants are those of the enclosures.
    """
    proved = {(v.claim.name, v.scope) for v in checked.verdicts if v.status is Status.PROVED}
    found = []
    for o in obligations(checked.contract):
        if (o.claim.name, o.scope) in proved:
            answer = second_opinion(_text(checked.contract, o))
            word = {"unsat": "agrees", "sat": "disagrees"}.get(answer, f"no answer: {answer.removeprefix('unknown: ')}")
            found.append(Opinion(o.claim.name, o.scope, word))
    return tuple(found)


def _text(contract: Contract, obligation: Obligation) -> str:
    piece = whole_piece(contract, obligation.scope)
    usable = [c for c in contract.clauses if in_graph(c) and applies(c, obligation.scope)]
    counted = [c for c in usable if certifiable(c, usable)]
    boxes = corner.piece_parameters(contract, obligation, piece)
    encoding = linear.encode(piece, boxes, [a for c in counted for a in atoms(c)], obligation.atoms)
    return smtlib(encoding, counted, obligation.atoms)
