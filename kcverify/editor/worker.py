"""Asks for proofs beside the server's loop: one process, the last text of each document, stale questions ended."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

from lsprotocol import types as lsp
from pygls.workspace import TextDocument

from kcverify.editor.protocol import from_data

WAIT = 0.4
"""Seconds without a change after which the proofs of a text are asked for."""

LONGEST = 60.0
"""Seconds after which a question is given up."""

_TOP = lsp.Range(lsp.Position(0, 0), lsp.Position(0, 0))


def note(text: str) -> list[lsp.Diagnostic]:
    """One line at the top of a document that says why its proofs are missing."""
    return [
        lsp.Diagnostic(
            _TOP, f"the proofs were not checked: {text}", lsp.DiagnosticSeverity.Information, source="kcverify"
        )
    ]


class Prover:
    """A process of `kcverify.editor.proofs`, started with the first question; a question that is dropped ends it."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def ask(self, document: TextDocument) -> list[lsp.Diagnostic]:
        """What the checker finds in the document; a note where it does not answer."""
        question = {"uri": document.uri, "text": document.source, "encoding": document.position_codec.encoding}
        async with self._turn:
            try:
                line = await asyncio.wait_for(self._answer(json.dumps(question)), LONGEST)
            except TimeoutError:
                self.end()
                return note(f"stopped after {LONGEST:g} s")
            except asyncio.CancelledError:
                self.end()
                raise
            except OSError as error:
                self.end()
                return note(str(error))
        if not line:
            self.end()
            return note("the checker ended")
        found: Any = json.loads(line)
        if isinstance(found, dict):
            return note(found["fault"])
        return from_data(found)

    async def _answer(self, question: str) -> bytes:
        process = await self._running()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(question.encode() + b"\n")
        await process.stdin.drain()
        return await process.stdout.readline()

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "kcverify.editor.proofs",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**26,
            )  # fmt: skip
        return self._process

    def end(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
        self._process = None


class Watch:
    """The newest question about each document; `tell` gets its answer unless the document changed meanwhile."""

    def __init__(self, tell: Callable[[TextDocument, list[lsp.Diagnostic]], None]) -> None:
        self._prover = Prover()
        self._tell = tell
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def want(self, document: TextDocument, wait: float) -> None:
        """Ask for the proofs of a text after `wait` seconds; an older question about the document is dropped."""
        self.drop(document.uri)
        copy = TextDocument(document.uri, document.source, document.version, position_codec=document.position_codec)
        task = asyncio.get_running_loop().create_task(self._later(copy, wait))
        self._tasks[document.uri] = task

    def drop(self, uri: str) -> None:
        """Forget the question about a document."""
        task = self._tasks.pop(uri, None)
        if task is not None:
            task.cancel()

    def end(self) -> None:
        """Drop every question and end the process."""
        for uri in list(self._tasks):
            self.drop(uri)
        self._prover.end()

    async def _later(self, document: TextDocument, wait: float) -> None:
        await asyncio.sleep(wait)
        found = await self._prover.ask(document)
        self._tasks.pop(document.uri, None)
        self._tell(document, found)
