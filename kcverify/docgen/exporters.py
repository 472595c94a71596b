"""The page of the targets of `emit`, and the JSON Schema of its list, from the table of targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kcverify.exporters import names
from kcverify.exporters.table import ROWS, Target

Schema = dict[str, Any]

ANSWERS = {"targets": "kcverify emit --list --format json"}
"""Definition of the answer -> the command that prints it."""

ABOUT = (
    "`kcverify emit TARGET [CONTRACT] [-o FILE]` writes what another system reads. It feeds these systems and replaces none. "
    "A verdict has three values wherever it goes: that nothing failed is no pass."
)
_OPTIONS = {
    "contract": "the contract's file",
    "result": "`--result FILE`: an answer of `measure` or `gate` in JSON",
    "store": "`--store DB`: the store of a candidate",
    "gateway": "`--gateway URL`: the address that is asked",
    "endpoint": "`--endpoint URL`: a collector",
    "findings": "the proofs of the contract, which are run",
}
_METRICS = (
    (names.OBSERVATIONS, "counter", "requests that the clause was asked about (tokens, for a clause `unit token`)"),
    (names.EXCEEDANCES, "counter", "those that exceeded; of a share or mean clause, requests with any value above 0"),
    (names.INVALID, "counter", "values that are not finite; one makes the clause fail"),
    (names.MISSING, "counter", "inputs or memberships that were not given; one keeps the clause from passing"),
    (
        names.LOG_WEALTH,
        "gauge",
        "share and mean clauses: the record's log wealths, by `side` (above, below) and `bet` (0 to 15)",
    ),
)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def parts() -> list[str]:
    """The sections of the page below its first words."""
    verdicts = [(f"`{r.name}`", r.passes, r.fails, r.undecided) for r in ROWS]
    metrics = [(f"`{name}`", kind, what) for name, kind, what in _METRICS]
    hooks = [
        (f"`POST {names.HOOKS}/{h.type}?stage=`", h.about, str(names.OK), f"{names.FAILED} or {names.UNDECIDED}")
        for h in names.HOOK_ROWS
    ]
    asked = (
        f"`POST {names.GATE}`, with the operator's token",
        "`gate`: the decision of `kcverify gate --format json` about the current stage",
        "200, whatever the verdict is",
        "",
    )
    return [
        "## What each system does with a verdict",
        _table(("target", "pass", "fail", "neither"), verdicts),
        *(_target(row) for row in ROWS),
        "## What the gateway's metrics are",
        f"Labels of each: `{'`, `'.join(names.LABELS)}`; `slice` is empty for a clause about all traffic.",
        _table(("metric", "kind", "what it counts"), metrics),
        "## What the gateway is asked",
        _table(("address", "for", "status where it lets through", "otherwise"), [asked, *hooks]),
    ]


def _target(row: Target) -> str:
    reads = [f"{_OPTIONS[part]} (needed)" for part in row.needs]
    reads += [_OPTIONS[part] + (" (one of them)" if part in row.any_of else "") for part in row.takes]
    facts = [
        f"- reads: {'; '.join(reads)}",
        f"- tests hold it against {row.checked}",
        *(f"- {limit}" for limit in row.limits),
    ]
    return "\n\n".join(
        [f"## `{row.name}`", f"{row.title[:1].upper()}{row.title[1:]} (`{row.file}`). {row.gives}", "\n".join(facts)]
    )


def definitions() -> dict[str, Schema]:
    """The answer of the list."""
    text: Schema = {"type": "string"}
    texts: Schema = {"type": "array", "items": text}
    lists = ("needs", "takes", "any_of", "limits")
    words = ("name", "title", "file", "checked", "gives", "passes", "fails", "undecided")
    properties = {**dict.fromkeys(words, text), **dict.fromkeys(lists, texts)}
    row = {"type": "object", "required": list(properties), "properties": properties}
    answer = {"kcverify": text, "exit_code": {"const": 0}, "targets": {"type": "array", "items": row}}
    return {"targets": {"type": "object", "required": list(answer), "properties": answer}}
