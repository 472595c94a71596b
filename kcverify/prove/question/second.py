"""A second opinion on a linear form: cvc5 (an extra) in a child process with a hard stop."""

from __future__ import annotations

import cvc5

from kcverify.prove.guard import guarded


def _check(text: str) -> str:
    solver = cvc5.Solver()
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, text, "question")
    symbols = parser.getSymbolManager()
    out = ""
    while not (command := parser.nextCommand()).isNull():
        out = str(command.invoke(solver, symbols)).strip() or out
    return out


def second_opinion(text: str, seconds: float = 10.0) -> str:
    """`sat`, `unsat`, or `unknown: reason` for SMT-LIB text; a crash or a time-out is never an answer."""
    outcome = guarded(_check, text, seconds=seconds)
    if outcome.value in ("sat", "unsat"):
        return str(outcome.value)
    return f"unknown: {outcome.failure or outcome.value}"
