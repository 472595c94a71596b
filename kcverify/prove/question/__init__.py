"""Questions about expressions over a box of exact rationals, decided in five steps; only enclosures and `unsat` prove."""

from __future__ import annotations

from kcverify.prove.question.decide import decide, decide_within
from kcverify.prove.question.model import Answer, Question

__all__ = ["Answer", "Question", "decide", "decide_within"]
