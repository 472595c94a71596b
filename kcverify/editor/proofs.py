"""What the checker finds in an open contract, in a process that an editor's server asks and may end at any time.

`python -m kcverify.editor.proofs` reads one question a line (JSON: `uri`, `text`, `encoding`) and answers each with a
line: the diagnostics of the protocol, or `{"fault": ...}` where the checker failed.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from lsprotocol import types as lsp
from pygls.workspace import PositionCodec, TextDocument

from kcverify.editor.protocol import diagnostics, read_document, to_data, verdict_diagnostics
from kcverify.prove.check import check
from kcverify.prove.verdict import Limits

EFFORT = Limits(solver_ms=500, candidates=16, remedy_steps=8)


def findings(document: TextDocument) -> list[lsp.Diagnostic]:
    """Findings and open verdicts of the contracts of a document; none where its text has an error."""
    read = read_document(document)
    found: list[lsp.Diagnostic] = []
    for contract in () if read.report.errors else read.found.contracts:
        checked = check(contract, EFFORT)
        found += diagnostics(checked.report.diagnostics, document)
        found += verdict_diagnostics(checked.verdicts, document)
    return found


def answer(question: dict[str, Any]) -> Any:
    """The findings about one question as JSON data."""
    codec = PositionCodec(question["encoding"])
    document = TextDocument(question["uri"], question["text"], position_codec=codec)
    try:
        return to_data(findings(document))
    except Exception as error:
        return {"fault": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Answer questions until there are no more."""
    for line in sys.stdin.buffer:
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
