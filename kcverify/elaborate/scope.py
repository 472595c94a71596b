"""What an expression may refer to, and where its faults are reported."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from kcverify.catalog.model import Dimension
from kcverify.diagnostics import Related, Report
from kcverify.source import Span


class RefusedError(Exception):
    """The statement cannot be used; its fault is in the report already."""


@dataclass(frozen=True)
class Param:
    """A `param` with its value in the canonical unit of its dimension (`NONE`: a pure number)."""

    value: Fraction
    dimension: Dimension


@dataclass(frozen=True)
class Scope:
    """Names that numbers of one contract may use.

    `params` have a value; `fixed` are assumptions of one value; `free` are assumptions with a range.
    """

    report: Report
    params: dict[str, Param] = field(default_factory=dict)
    fixed: dict[str, Fraction] = field(default_factory=dict)
    free: frozenset[str] = frozenset()

    def refuse(
        self, slug: str, span: Span, *, hint: str = "", related: Iterable[Related] = (), **holes: object
    ) -> RefusedError:
        """Reports the fault and returns the exception to raise."""
        self.report.add(slug, span, hint=hint, related=related, **holes)
        return RefusedError(slug)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean ...?` with the nearest of the known words, else nothing."""
    near = difflib.get_close_matches(word[:60], list(known), n=1, cutoff=0.6)
    return f"did you mean `{near[0]}`?" if near and near[0] != word else ""


def choose(word: str, known: Iterable[str], prefix: str = "use one of") -> str:
    """`did you mean ...?`, or the whole list where nothing is near."""
    words = list(known)
    return did_you_mean(word, words) or f"{prefix}: {', '.join(words)}"


def report_duplicates(report: Report, what: str, named: Iterable[tuple[str, Span]]) -> set[int]:
    """Reports each name that occurs again, with both places; returns the positions of the later ones."""
    first: dict[str, Span] = {}
    again: set[int] = set()
    for index, (name, span) in enumerate(named):
        if name in first:
            again.add(index)
            report.add("duplicate", span, related=[Related(first[name], "first declared here")], what=what, name=name)
        else:
            first[name] = span
    return again
