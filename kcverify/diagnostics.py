"""Diagnostics with a code, a place and a hint, and the report that collects them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kcverify.codes import BY_SLUG, Code, Severity
from kcverify.source import Span


@dataclass(frozen=True)
class Related:
    """A second place that a diagnostic points at, with what it is."""

    span: Span
    label: str


@dataclass(frozen=True)
class Diagnostic:
    """One finding: the row of its code, the message with its holes filled, the place, a hint."""

    code: Code
    message: str
    span: Span | None = None
    hint: str = ""
    related: tuple[Related, ...] = ()

    @property
    def severity(self) -> Severity:
        """Severity of the code's row."""
        return self.code.severity


def diagnosis(
    slug: str,
    holes: Mapping[str, object],
    span: Span | None = None,
    *,
    hint: str = "",
    related: Iterable[Related] = (),
) -> Diagnostic:
    """A diagnostic of the row `slug` with the named holes of its message filled in.

    Raises KeyError for a slug or a hole that the table does not know: a fault of kcverify, never of the user.
    """
    code = BY_SLUG[slug]
    return Diagnostic(code, code.message.format(**holes), span, hint or code.fix, tuple(related))


def diagnose(
    slug: str, span: Span | None = None, *, hint: str = "", related: Iterable[Related] = (), **holes: object
) -> Diagnostic:
    """`diagnosis` with the holes as keywords."""
    return diagnosis(slug, holes, span, hint=hint, related=related)


class InputError(Exception):
    """The user's input is wrong; carries the diagnostics that the command prints before it exits with 2."""

    def __init__(self, *diagnostics: Diagnostic) -> None:
        super().__init__("; ".join(d.message for d in diagnostics))
        self.diagnostics = diagnostics


def input_error(slug: str, span: Span | None = None, *, hint: str = "", **holes: object) -> InputError:
    """`InputError` with one diagnostic of the row `slug`."""
    return InputError(diagnosis(slug, holes, span, hint=hint))


@dataclass
class Report:
    """Diagnostics in the order in which the phases found them."""

    diagnostics: list[Diagnostic] = field(default_factory=list)

    def add(
        self, slug: str, span: Span | None = None, *, hint: str = "", related: Iterable[Related] = (), **holes: object
    ) -> None:
        """Append a diagnostic of the row `slug`."""
        self.diagnostics.append(diagnosis(slug, holes, span, hint=hint, related=related))

    @property
    def errors(self) -> list[Diagnostic]:
        """Those of severity error."""
        return [d for d in self.diagnostics if d.severity is Severity.ERROR]

    @property
    def input_faults(self) -> list[Diagnostic]:
        """Errors that make the input unusable (exit code 2)."""
        return [d for d in self.errors if d.code.input_fault]
