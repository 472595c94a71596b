"""The page of everything that `check` can find: a table, and one contract with its answer for each."""

from __future__ import annotations

from collections.abc import Iterable

from kcverify.codes import Code
from kcverify.output import check as output
from kcverify.prove.check import Checked

_HEAD = """# What `kcverify check` finds

Errors make the exit code 1, warnings do not change it, notes carry their weight in the verdict (`REFUTED` 1, `UNKNOWN` 3).
Every line has a stable code and a page: `kcverify explain dead` or `kcverify explain KC202`.
Thresholds of well-known projects with what is found in them are in `contracts/published/`; each says so in its first line.

| code | finding | severity | meaning |
|---|---|---|---|
"""

_LEFT_OUT = ("  no guarantee is claimed", output.ELSEWHERE)


def page(examples: Iterable[tuple[Code, str, Checked | None]]) -> str:
    """The page in Markdown from rows, the text of each row's example and its answer (None: no contract gives it)."""
    rows = list(examples)
    table = [f"| {row.id} | [`{row.slug}`](#{row.slug}) | {row.severity.value} | {row.why} |" for row, _, _ in rows]
    sections = [_section(row, text, answer) for row, text, answer in rows]
    return _HEAD + "\n".join(table) + "\n\n" + "\n\n".join(sections) + "\n"


def _section(row: Code, text: str, answer: Checked | None) -> str:
    parts = [f"## {row.slug}", f"{row.id}, {row.severity.value}. {row.why} What to do: {row.fix}."]
    if answer is not None:
        answered = output.text(answer, False).split("\n\n")[1:]
        body = "\n\n".join(part for part in answered if not part.startswith(_LEFT_OUT))
        parts += [f"```\n{text.rstrip()}\n```", "gives", f"```\n{body.rstrip()}\n```"]
    return "\n\n".join(parts)
