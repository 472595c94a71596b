"""The page of a diagnostic code."""

from __future__ import annotations

import difflib

from kcverify.codes import BY_ID, BY_SLUG, ROWS, Code
from kcverify.diagnostics import input_error
from kcverify.output.style import table


def text(wanted: str) -> str:
    """What a code means, why, how to correct it, and its minimal example. Raises InputError: `option_invalid`."""
    if wanted == "list":
        return "\n".join(table([(r.id, r.slug, r.severity.value, r.message) for r in ROWS]))
    row = BY_ID.get(wanted.upper()) or BY_SLUG.get(wanted)
    if row is None:
        near = difflib.get_close_matches(wanted, [*BY_SLUG, *BY_ID], 1)
        hint = f"did you mean `{near[0]}`?" if near else "`kcverify explain list` prints all codes"
        raise input_error("option_invalid", option="CODE", reason=f"no code `{wanted}`", hint=hint)
    return _page(row)


def _page(row: Code) -> str:
    parts = [f"{row.id} {row.slug} ({row.severity.value})", f"  {row.message}", row.why, f"What to do: {row.fix}"]
    for title, example in (("An example that gives it:", row.bad), ("Corrected:", row.good)):
        if example:
            parts.append(title + "\n" + "\n".join("    " + line for line in example.rstrip().splitlines()))
    return "\n\n".join(parts)
