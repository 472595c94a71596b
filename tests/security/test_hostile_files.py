"""Hostile words in every file that others write: what is printed commands no terminal and no CI runner, pages keep their tags."""

from __future__ import annotations

import json
import os
import re
import shlex
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from hostile_output import EVERY, HELD, OWN, Tags, hostile, lines, obeyed, shape
from hostile_words import MARK, ONE_LINE, unprintable

ROOT = Path(__file__).parents[2]
STREAMS = sorted(p.name for p in (ROOT / "tests/data/streams").iterdir() if p.suffix in (".json", ".jsonl"))
CHOSEN = frozenset({
    "id", "request_id", "custom_id", "uid", "model", "text", "content", "token", "decoded_token", "system_fingerprint",
    "finish_reason", "weight_version", "prompt", "tokens", "env_name", "error", "message", "generated_text",
})  # fmt: skip
"""Keys of streams whose text an engine or a client chooses."""


def chosen(value: Any, end: str) -> Any:
    if isinstance(value, dict):
        return {k: EVERY + end if k in CHOSEN and isinstance(v, str) else chosen(v, end) for k, v in value.items()}
    return [chosen(v, end) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", STREAMS)
def test_streams(run: Run, name: str, tmp_path: Path) -> None:
    text = (ROOT / "tests/data/streams" / name).read_text(encoding="utf-8")
    rows = [json.loads(line) for line in (text.splitlines() if name.endswith("l") else [text])]
    Path(name).write_text(text, encoding="utf-8")
    Path("hostile.jsonl" if name.endswith("l") else "hostile.json").write_text(
        lines([chosen(row, str(i)) for i, row in enumerate(rows)])
    )
    found = next(Path().glob("hostile.*")).name
    run("inspect", found, *(("--format", "json") if name == "vllm_chat.jsonl" else ()), codes=(0, 2))
    pages = []
    for file in (name, found):
        code, _, _ = run("compare", file, file, "--html", "page.html", codes=(0, 1, 2, 3))
        pages.append(Path("page.html").read_text(encoding="utf-8") if code != 2 else "")
        Path("page.html").unlink(missing_ok=True)
    assert Tags(pages[1]).found - OWN <= Tags(pages[0]).found
    assert not unprintable(pages[1])
    assert not list(tmp_path.rglob(MARK))


@pytest.mark.parametrize("key", ["dtype", "format", "temperature", "no such key"])
def test_sidecars(run: Run, key: str) -> None:
    Path("s.jsonl").write_bytes((ROOT / "tests/data/streams/vllm_chat.jsonl").read_bytes())
    for start in range(0, len(EVERY), 199):
        Path("s.jsonl.kcverify.json").write_text(json.dumps({key: EVERY[start : start + 199]}))
        run("inspect", "s.jsonl", codes=(0, 2))
    run("compare", "s.jsonl", "s.jsonl", codes=(0, 1, 2, 3))


def test_a_sidecar_that_is_no_file_is_not_waited_for(run: Run) -> None:
    Path("s.jsonl").write_bytes((ROOT / "tests/data/streams/vllm_chat.jsonl").read_bytes())
    os.mkfifo("s.jsonl.kcverify.json")
    assert "it is no file" in run("inspect", "s.jsonl", codes=(2,))[2]


def entry() -> dict[str, Any]:
    """An entry of the corpus, as an author of one may write it."""
    reading = {
        "name": "residual",
        "value": 1.0,
        "slack": 0.5,
        "where": "everywhere",
        "verdict": "within_tolerance",
        "tolerance": {"value": 2.0, "exact": "2"},
    }
    return {
        "format": "kcverify-conformance-entry/1", "kcverify": "1", "class": "C-PRC-01", "operation": "matmul", "kernel": "k",
        "contract": {"name": "c", "version": "1", "file": "c.kc", "digest": "sha256:0"}, "declared": {"inputs": "float32"},
        "machine": {"torch": "2", "processor": "p"}, "tolerance": None, "measurement": None, "readings": [reading],
        "calibration": [], "findings": [], "verdict": "within_tolerance", "reproduce": "kcverify conformance run c.kc",
    }  # fmt: skip


def test_entries_of_the_corpus(run: Run) -> None:
    first = hostile(entry(), frozenset({"format", "verdict", "exact"}))
    second = json.loads(json.dumps(first))
    second["machine"] = {EVERY: "other " + EVERY}
    second["verdict"] = "inconclusive"
    second["readings"] = []
    first |= {"measurement": first["readings"][0], "tolerance": first["readings"][0]["tolerance"]}
    for name, value in (("a.json", first), ("b.json", second)):
        Path(name).write_text(json.dumps(value))
    assert run("conformance", "compare", "a.json", "a.json")[0] == 0
    assert run("conformance", "compare", "a.json", "b.json")[0] == 1


@pytest.mark.parametrize(
    "exact", ["1e999999999", "9" * 5000, "1/0", "-1", "1_0", "nan", 7, []], ids=lambda e: str(e)[:12]
)
def test_a_tolerance_that_is_no_fraction_is_refused(run: Run, exact: Any) -> None:
    made = entry()
    made["readings"][0]["tolerance"]["exact"] = exact
    Path("a.json").write_text(json.dumps(made))
    run("conformance", "compare", "a.json", "a.json", codes=(2,))


@pytest.mark.parametrize("key", ["class", "kernel", "verdict", "contract.digest", "contract.name"])
@pytest.mark.parametrize("value", [{}, [], 1, [[[[]]]]], ids=str)
def test_an_entry_with_another_kind_of_value_is_refused(run: Run, key: str, value: Any) -> None:
    made = entry()
    (made["contract"] if "." in key else made)[key.split(".")[-1]] = value
    Path("a.json").write_text(json.dumps(made))
    told = run("conformance", "compare", "a.json", "a.json", codes=(2,))[2]
    assert f"its {key} is no text" in told


KERNEL = """kernel contract c version "WORD"
  "WORD"
  class C-PRC-02
scope { op softmax; dtypes float32 -> float32; shapes m in [1, 2], n in [16, 17] }
requires { finite(x) }
ensures { finite(out) }
tolerance { relative_error <= derived(float32) }
oracle { softmax in float64 }
measure { trials 2; distributions normal; seed 7; confidence 50% }
violation { residual exceeds tolerance -> L3 }
"""


@pytest.mark.needs("torch")
def test_kernel_contracts(run: Run) -> None:
    pages = []
    for words in (["plain"], [" ".join(w for w in ONE_LINE if len(w) < 100 and "\\" not in w)]):
        Path("k.kc").write_text(KERNEL.replace("WORD", words[0]), encoding="utf-8")
        run("check", "k.kc", codes=(0, 1))
        run("conformance", "run", "k.kc", "--kernel", "softmax.float32", "--same-process", "--html", "page.html")
        pages.append(Path("page.html").read_text(encoding="utf-8"))
    assert Tags(pages[1]).found - OWN <= Tags(pages[0]).found
    assert not unprintable(pages[1])


def gguf(pairs: dict[str, str]) -> bytes:
    def text(word: str) -> bytes:
        held = word.encode("utf-8", "replace")
        return struct.pack("<Q", len(held)) + held

    body = b"".join(text(k) + struct.pack("<I", 8) + text(v) for k, v in pairs.items())
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs)) + body


def safetensors(header: dict[str, Any]) -> bytes:
    held = json.dumps(header).encode()
    return struct.pack("<Q", len(held)) + held + bytes(64)


PAIR = ("--reference", "smollm2:float32", "--candidate", "smollm2:int8", "--data", "c.kc")
CONTRACT = "contract c\nassume { temperature = 1 }\nnumerical { d: tv <= 0.5 -> L1 }\n"


@pytest.mark.needs("torch")
def test_metadata_of_models(run: Run) -> None:
    """Architecture and keys of GGUF, names and types in a safetensors header, method of a config.json, names of files."""
    Path("c.kc").write_text(CONTRACT)
    for pairs in ({"general.architecture": EVERY}, {EVERY: EVERY}, {"general.architecture": "x" * 5_000_000}):
        Path("m.gguf").write_bytes(gguf(pairs))
        assert len(run("measure", "c.kc", *PAIR, "--gguf", "m.gguf", codes=(2,))[2]) < 10_000
    entry = {"dtype": EVERY, "shape": [1], "data_offsets": [0, 4]}
    model = Path("model\n::error::x")
    model.mkdir()
    (model / "a\n::add-mask::y.safetensors").write_bytes(
        safetensors({EVERY: entry, "__metadata__": {EVERY: EVERY, "config": "[" * 5000}})
    )
    for name, value in (("config.json", {"quantization_config": {"quant_method": EVERY}}), ("tokenizer.json", EVERY)):
        (model / name).write_text(json.dumps(value))
    run("fingerprint", "--weights", str(model), "-o", "f.json")
    run("fingerprint", "--weights", str(model / "a\n::add-mask::y.safetensors"))
    run("inspect", str(model / "a\n::add-mask::y.safetensors"), codes=(0, 2))
    run("inspect", str(model), codes=(0, 2))
    found = json.loads(Path("f.json").read_text())
    assert "DROP TABLE" in found["fields"]["quantization"]["config.json"]


RUN = {
    "kcverify": "1", "complete": True, "verdict": "fail", "contract": {"name": "n", "version": "v", "digest": "d"},
    "measured": {
        "contract": "n", "digest": "d", "requests": 1,
        "clauses": [{
            "name": "d", "slice": "s", "severity": "L1", "text": "t", "verdict": "fail", "reason": "r",
            "evidence": {"kind": "share", "log_e_fail": 9.0, "log_e_pass": None, "requests": 1, "requests_needed": 1, "p_fail": None, "p_pass": None},
        }],
    },
}  # fmt: skip


def test_results(run: Run) -> None:
    """Of a contract that is not at hand, so that every word is the file's."""
    Path("c.kc").write_text(CONTRACT)
    shapes: dict[str, list[Any]] = {}
    for name, value in (("plain", RUN), ("hostile", hostile(RUN, frozenset({"verdict", "severity", "kind"})))):
        Path("r.json").write_text(json.dumps(value))
        out = run("emit", "cloudevents", "--result", "r.json", codes=(0, 1, 2))[1]
        shapes.setdefault("cloudevents", []).append([shape(json.loads(line)) for line in out.splitlines()])
        for target in ("github", "junit", "sarif"):
            run("emit", target, "c.kc", "--result", "r.json", codes=(0, 1, 2))
        run("gate", "c.kc", "--stage", "offline", "--evidence", "r.json", codes=(0, 1, 2, 3))
        assert name in ("plain", "hostile")
    assert shapes["cloudevents"][0] == shapes["cloudevents"][1]


def test_stores(run: Run) -> None:
    """Reasons of operators and words of other writers in the events of a store."""
    from test_malicious_files import CONTRACT as PROMOTED

    from kcverify.delivery.store import Store

    Path("c.kc").write_text(PROMOTED)
    run("promote", "c.kc", "--store", "s.db")
    with Store("s.db") as store:
        store.append("noted", {"severity": EVERY, "clean": EVERY, "reason": EVERY}, store.state().at)
    for words in (("status",), ("history",), ("history", "--format", "json"), ("rebuild",)):
        run(*words, "--store", "s.db")
    run("emit", "cloudevents", "--store", "s.db", codes=(0, 2))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the demo model with its event, signed."""
    pytest.importorskip("torch")
    pytest.importorskip("securesystemslib")
    from contextlib import chdir

    from kcverify.cli import main

    folder = tmp_path_factory.mktemp("measured")
    text = CONTRACT + "observability { trace request_id; replay within 24 h }\n"
    with chdir(folder):
        Path("c.kc").write_text(text)
        Path("t.txt").write_text("a few words of text " * 8)
        pair = ("--reference", "demo:float32", "--candidate", "demo:int8", "--data", "t.txt", "--window", "16")
        for words in (("measure", "c.kc", *pair, "--witnesses", "e.jsonl"), ("keygen", "k")):
            with pytest.raises(SystemExit):
                main(list(words))
    return folder


@pytest.fixture
def event(measured: Path, run: Run) -> Callable[[Callable[[dict[str, Any]], None]], None]:
    """Writes `e.jsonl` with one thing changed, signed as whoever wrote it would."""

    def write(change: Callable[[dict[str, Any]], None]) -> None:
        from kcverify.provenance.events import signature_of

        found = json.loads((measured / "e.jsonl").read_text().splitlines()[0])
        change(found)
        found["signature"] = signature_of(found["replay"])
        Path("e.jsonl").write_text(json.dumps(found) + "\n")

    return write


def test_replayed_events(run: Run, event: Any) -> None:
    def words(found: dict[str, Any]) -> None:
        found["request"] |= {"request_id": EVERY, "tags": [EVERY], "fields": {EVERY: EVERY}}
        found["recorded"] |= {"slice": EVERY}

    event(words)
    run("replay", "e.jsonl", codes=(0, 1, 2))
    event(lambda found: found["recorded"].update(clause=EVERY))
    run("replay", "e.jsonl", codes=(0, 1, 2))


@pytest.mark.parametrize("name", ["os:system; touch pwned", "a:b`touch pwned`", "a:b' $(touch pwned) '", "-c:rm"])
def test_what_an_event_tells_to_run_is_quoted(run: Run, event: Any, name: str) -> None:
    event(lambda found: found["sides"]["candidate"].update(name=name))
    told = run("replay", "e.jsonl", codes=(2,))[2]
    command = re.search(r"hint: (--candidate .*)", told)
    assert command and shlex.split(command[1]) == ["--candidate", name]


def test_attestations(run: Run, measured: Path) -> None:
    """A signer that is trusted, and wrote what it likes."""
    from kcverify.provenance import envelope, keys
    from kcverify.provenance.fields import FIELDS
    from kcverify.provenance.fingerprint import fingerprint
    from kcverify.provenance.statement import bundle, subject

    own = fingerprint(**{f.name: HELD for f in FIELDS}).data()
    row = {"name": HELD, "slice": HELD, "verdict": "fail"}
    predicate = {
        "contract": {"name": HELD, "version": HELD, "digest": "sha256:" + "0" * 64}, "clauses": [row], "guarantees": [],
        "complete": True, "verdict": "fail", "proofs": [], "fingerprints": {"reference": own, "candidate": own},
        "validity": {"from": "2026-05-01T12:00:00Z", "until": "2026-06-01T12:00:00Z"},
    }  # fmt: skip
    subjects = [subject("weights", HELD, "0" * 64), subject("kernel", HELD, "0" * 64)]
    signed = envelope.sign(bundle(subjects, predicate), keys.private_key(str(measured / "k")))
    Path("a.jsonl").write_bytes(signed)
    words = ("verify", "a.jsonl", "--public-key", str(measured / "k.pub"), "--contract", str(measured / "c.kc"))
    out = run(*words, "--now", "2026-05-02", codes=(1,))[1]
    assert "rejected" in out
    run(*words, "--now", "2026-05-02", "--format", "json", codes=(1,))


def test_certificates(run: Run) -> None:
    Path("c.kc").write_text(CONTRACT + "guarantee { g: tv <= 0.6 }\n")
    run("check", "c.kc", "--certificate", "p.json")
    found = json.loads(Path("p.json").read_text())
    for keep in (frozenset({"format"}), frozenset({"format", "digest", "language"})):
        Path("h.json").write_text(json.dumps(hostile(found, keep)))
        run("certificate", "check", "h.json", codes=(1, 2))


def test_names_of_files(run: Run) -> None:
    """A name at the start of a line, as a pattern of a shell gives it."""
    for name in ("::stop-commands::x.kc", "##vso[task.setvariable]x.kc", "a\n::error::b.kc", "-x\u202e.kc"):
        (Path() / name).write_text("contract c\nnumerical { d: tv <= nonsense -> L1 }\n")
        for form in ("text", "json", "sarif", "junit"):
            run("check", f"./{name}" if name.startswith("-") else name, "--format", form, codes=(1, 2))
        out = run("check", f"./{name}" if name.startswith("-") else name, "--format", "github", codes=(1, 2))[1]
        assert all(
            re.match(r"::(error|warning|notice) file=[^:]*,title=[^:]*::|$", line) for line in out.splitlines()
        ), out


def test_what_is_looked_for_would_be_found() -> None:
    for text in ("a\n ::error::b", "x ##vso[task]", "##[group]", "\x1b[2J", "\u202e", "a\r::error::b"):
        assert obeyed(text)
