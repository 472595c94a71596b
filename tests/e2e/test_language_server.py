"""The language server over its real protocol: a client starts it and talks to it through pipes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import warm

pytest.importorskip("pygls")

TEXT = """contract c
# 漢字 😀
assume { temperature in [0.6, 1.0]; sampler = full_softmax; horizon <= 8 tokens; reward in [0, 1] }
slice long = prompt_tokens >= 8192
numerical { drift: logit_span <= 0.01 on long -> L2; 漢
}
"""
GOOD = TEXT.replace("; 漢", "")
GUARANTEE = "guarantee { g: reward_drift <= 1e-9 }\n"


class Client:
    """Speaks the protocol's frames with a server process."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "kcverify", "lsp"]
        self.process = warm.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.uri = (folder / "x.kc").as_uri()
        self.notes: list[dict[str, Any]] = []
        self.count = 0
        self.version: int | None = None

    def send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        size = 0
        while line := self.process.stdout.readline().strip():
            if line.lower().startswith(b"content-length"):
                size = int(line.split(b":")[1])
        assert size, self.process.stderr.read().decode() if self.process.stderr else ""
        message: dict[str, Any] = json.loads(self.process.stdout.read(size))
        return message

    def request(self, method: str, **params: Any) -> Any:
        self.count += 1
        self.send({"id": self.count, "method": method, "params": params})
        while True:
            message = self.receive()
            if message.get("id") == self.count and "method" not in message:
                assert "error" not in message, message
                return message["result"]
            self.notes.append(message)

    def note(self, method: str, **params: Any) -> None:
        self.send({"method": method, "params": params})

    def diagnostics(self) -> list[dict[str, Any]]:
        while True:
            for message in self.notes:
                if message.get("method") == "textDocument/publishDiagnostics":
                    self.notes.remove(message)
                    found: list[dict[str, Any]] = message["params"]["diagnostics"]
                    self.version = message["params"].get("version")
                    return found
            self.notes.append(self.receive())

    def open(self, text: str) -> list[dict[str, Any]]:
        document = {"uri": self.uri, "languageId": "kc", "version": 1, "text": text}
        self.note("textDocument/didOpen", textDocument=document)
        return self.diagnostics()

    def change(self, version: int, text: str) -> None:
        document = {"uri": self.uri, "version": version}
        self.note("textDocument/didChange", textDocument=document, contentChanges=[{"text": text}])

    def published(self, version: int) -> list[dict[str, Any]]:
        """The next diagnostics of a version."""
        while True:
            last = self.diagnostics()
            if self.version == version:
                return last

    def at(self, method: str, line: int, character: int, **more: Any) -> Any:
        position = {"line": line, "character": character}
        return self.request(method, textDocument={"uri": self.uri}, position=position, **more)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    found = Client(tmp_path)
    result = found.request("initialize", processId=None, rootUri=None, capabilities={})
    names = (
        "hoverProvider",
        "completionProvider",
        "definitionProvider",
        "documentFormattingProvider",
        "codeActionProvider",
    )
    assert all(result["capabilities"].get(name) for name in names)
    found.note("initialized")
    yield found
    found.request("shutdown")
    found.note("exit")
    assert found.process.wait(timeout=20) == 0


def test_a_session(client: Client) -> None:
    found = client.open(TEXT)
    assert [d["code"] for d in found] == ["KC002 unknown_character"]
    assert found[0]["range"]["start"] == {"line": 4, "character": 53}

    change = {"range": {"start": {"line": 4, "character": 51}, "end": {"line": 4, "character": 54}}, "text": ""}
    client.note("textDocument/didChange", textDocument={"uri": client.uri, "version": 2}, contentChanges=[change])
    assert client.diagnostics() == []

    hover = client.at("textDocument/hover", 4, 22)
    assert "logit span drift" in hover["contents"]["value"]
    assert hover["range"]["start"] == {"line": 4, "character": 19}

    target = client.at("textDocument/definition", 4, 43)
    assert target["uri"] == client.uri
    assert target["range"]["start"] == {"line": 3, "character": 6}

    labels = [item["label"] for item in client.at("textDocument/completion", 4, 19)]
    assert "logit_span" in labels

    options = {"tabSize": 2, "insertSpaces": True}
    [edit] = client.request("textDocument/formatting", textDocument={"uri": client.uri}, options=options)
    assert "  drift: logit_span <= 0.01 on long -> L2\n}" in edit["newText"]
    assert edit["range"]["end"]["line"] == 6


def test_quick_fixes_and_proofs(client: Client) -> None:
    found = client.open(GOOD.replace("logit_span", "logit_spam"))
    assert found[0]["code"] == "KC101 unknown_metric"
    where = found[0]["range"]
    context = {"diagnostics": found}
    [action] = client.request("textDocument/codeAction", textDocument={"uri": client.uri}, range=where, context=context)
    [edit] = action["edit"]["changes"][client.uri]
    assert edit["newText"] == "logit_span"
    assert edit["range"] == where

    client.change(2, GOOD + GUARANTEE)
    assert client.published(2) == []
    client.note("textDocument/didSave", textDocument={"uri": client.uri})
    assert client.diagnostics() == []
    assert {d["code"] for d in client.diagnostics()} & {"REFUTED", "UNKNOWN"}
    client.note("textDocument/didClose", textDocument={"uri": client.uri})
    assert client.diagnostics() == []


def test_proofs_follow_as_one_types(client: Client) -> None:
    assert client.open(GOOD) == []
    client.change(2, GOOD + GUARANTEE)
    assert client.published(2) == []
    found = client.published(2)
    [open_] = [d for d in found if d["code"] in ("REFUTED", "UNKNOWN")]
    assert open_["range"]["start"] == {"line": 6, "character": 12}
    client.change(3, GOOD + GUARANTEE.replace("1e-9", "nan"))
    assert [d["code"] for d in client.published(3)] == ["KC130 number_not_finite"]


def test_proofs_of_a_text_that_has_changed_are_never_shown(client: Client) -> None:
    slow = "horizon <= 4096 tokens"
    text = (GOOD + GUARANTEE).replace("horizon <= 8 tokens", slow).replace(" on long", "")
    assert client.open(text) == []
    for version in range(2, 8):
        client.change(version, f"# {version}\n{text}")
    client.change(8, GOOD)
    seen = []
    while seen.count(8) < 2:
        client.diagnostics()
        seen.append(client.version)
    assert seen == sorted(seen)
    assert all(seen.count(version) <= 1 for version in range(2, 8))


def test_a_closed_document_gets_no_proofs(client: Client) -> None:
    assert client.open(GOOD + GUARANTEE) == []
    client.note("textDocument/didClose", textDocument={"uri": client.uri})
    assert client.diagnostics() == []
    client.uri = client.uri.replace("x.kc", "y.kc")
    assert client.open(GOOD) == []
    client.diagnostics()
    assert not any(n["params"].get("uri", "").endswith("x.kc") for n in client.notes if "params" in n)


def test_an_untitled_and_a_broken_document(client: Client) -> None:
    client.uri = "untitled:one"
    assert client.open("}{")
    assert client.at("textDocument/hover", 0, 1) is None
    assert client.at("textDocument/completion", 9, 9) is not None
    assert client.at("textDocument/definition", 0, 0) is None
    options = {"tabSize": 2, "insertSpaces": True}
    assert client.request("textDocument/formatting", textDocument={"uri": client.uri}, options=options) == []


def test_faults_of_a_used_file_are_shown_at_the_top(client: Client, tmp_path: Path) -> None:
    (tmp_path / "base.kc").write_text("contract base\nnumerical { a: tv <= nan -> L1 }\n", encoding="utf-8")
    [found] = client.open('use "base.kc"\ncontract c extends base\n')
    assert found["message"].startswith("base.kc:2:22: `nan`")
    assert found["range"]["start"] == {"line": 0, "character": 0}
