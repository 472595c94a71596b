"""The lemma table: every bound that a chain may use, declared once."""

from __future__ import annotations

from kcverify.catalog.lemmas import gradient, outcome, refined, sequence, token
from kcverify.catalog.model import Lemma

ROWS: tuple[Lemma, ...] = (*token.ROWS, *refined.ROWS, *sequence.ROWS, *outcome.ROWS, *gradient.ROWS)
BY_NAME: dict[str, Lemma] = {row.name: row for row in ROWS}

__all__ = ["BY_NAME", "ROWS"]
