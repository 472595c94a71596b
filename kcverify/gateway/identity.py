"""Whether two sides may be compared at all: a table of checks, asked before any number is looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kcverify.gateway.observed import Claims


@dataclass(frozen=True)
class Sides:
    """What both sides say of themselves, what they said first in this run, and what the contract wants traced.

    `traced`: fields that this request carries; `asked`: widths of the lists that candidate and reference
    were asked for; `drawn`: what is wrong with the candidate's sampler, empty where nothing is. `prompts`: the ids that each
    side reads the prompt as, empty where it was not asked.
    """

    candidate: Claims
    reference: Claims
    first_candidate: Claims
    first_reference: Claims
    trace: tuple[str, ...] = ()
    traced: frozenset[str] = frozenset()
    asked: tuple[int, int] = (20, 20)
    drawn: str = ""
    prompts: tuple[Sequence[int], Sequence[int]] = ((), ())


def _trace(s: Sides) -> str:
    lacking = [name for name in s.trace if name not in s.traced]
    return f"the contract traces {', '.join(lacking)}, and the request does not carry it" if lacking else ""


def _weights(s: Sides) -> str:
    a, b = s.candidate.weight_version, s.reference.weight_version
    return f"the candidate runs weights {a}, the reference {b}" if a and b and a != b else ""


def _tokenizer(s: Sides) -> str:
    a, b = s.candidate.tokenizer, s.reference.tokenizer
    return f"the candidate's tokenizer is {a[:19]}, the reference's {b[:19]}" if a and b and a != b else ""


def _vocabulary(s: Sides) -> str:
    a, b = s.candidate.vocabulary, s.reference.vocabulary
    return f"vocabularies of {a} and {b} tokens" if a and b and a != b else ""


def _prompt(s: Sides) -> str:
    a, b = (tuple(ids) for ids in s.prompts)
    if not a or not b or a == b:
        return ""
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return (
        f"the candidate reads the prompt as {len(a)} tokens, the reference as {len(b)}; they differ from token {at} on"
    )


def _model(s: Sides) -> str:
    for name, now, first in (
        ("candidate", s.candidate, s.first_candidate),
        ("reference", s.reference, s.first_reference),
    ):
        if now.model and first.model and now.model != first.model:
            return f"the {name} answers as {now.model}, and was {first.model}"
    return ""


def _fingerprint(s: Sides) -> str:
    for name, now, first in (
        ("candidate", s.candidate, s.first_candidate),
        ("reference", s.reference, s.first_reference),
    ):
        if now.fingerprint and first.fingerprint and now.fingerprint != first.fingerprint:
            return f"the {name}'s fingerprint is {now.fingerprint[:40]}, and was {first.fingerprint[:40]}"
    return ""


def _width(s: Sides) -> str:
    for name, side, asked in zip(("candidate", "reference"), (s.candidate, s.reference), s.asked, strict=True):
        wanted = min(asked, side.vocabulary or asked)
        if side.width is not None and side.width < wanted:
            return f"the {name} lists {side.width} tokens a position, {wanted} were asked for"
    return ""


def _sampler(s: Sides) -> str:
    return s.drawn


@dataclass(frozen=True)
class Check:
    """One check: its name in counters, and what it says where it fails (empty: it holds, or a side says nothing).

    `blames`: what answers is not what the contract is about, so that its health suffers; else only the numbers are lost.
    """

    name: str
    ask: Callable[[Sides], str]
    blames: bool = True


CHECKS: tuple[Check, ...] = (
    Check("trace", _trace, False),
    Check("weight_version", _weights),
    Check("tokenizer", _tokenizer),
    Check("vocabulary", _vocabulary),
    Check("prompt", _prompt),
    Check("model", _model),
    Check("fingerprint", _fingerprint),
    Check("top_width", _width, False),
    Check("sampler", _sampler),
)


def checked(sides: Sides) -> tuple[Check, str] | None:
    """The first check that fails and what it says; None where all hold."""
    for check in CHECKS:
        found = check.ask(sides)
        if found:
            return check, found
    return None
