"""docs/provenance.md does what it says, and what the demo model's provenance must refuse."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kcverify.cli import main
from kcverify.provenance.events import signature_of
from kcverify.resources import data_path

pytest.importorskip("torch")
pytest.importorskip("securesystemslib")

ROOT = Path(__file__).resolve().parents[2]
ODD_REPLAYS: tuple[dict[str, Any], ...] = (
    *({"seed": seed} for seed in ("9" * 30, f"-{2**63 + 1}", "01", "1.5", 1, 3e300)),
    *({"sampling": {"sampler": "full_softmax", "temperature": heat}} for heat in ("inf", "1e999", "nan", "0.0", "1_0", 1)),
    *({"rng": rng} for rng in ({}, [], {"x": "AAAA"}, {"cpu": "AAAA"}, {"cpu": 1})),
    {"inputs": [[2**30]], "shapes": [1, 1]}, {"inputs": [[-1]], "shapes": [1, 1]}, {"shapes": [1, 1]}, {"device": 7},
)  # fmt: skip
"""Parts of an event that decide its numbers, as no run writes them, under a signature that fits."""
ODD_REQUESTS: tuple[dict[str, Any], ...] = (
    {"tags": [[1]]}, {"tags": [{}]}, {"tags": [1]}, {"fields": {"prompt_tokens": [1]}}, {"fields": {"prompt_tokens": None}},
)  # fmt: skip
TEXT = (ROOT / "docs" / "provenance.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
Run = Callable[..., tuple[int, str, str]]


class Ran(NamedTuple):
    """A command of the page, what the page says of it, and what it did."""

    command: str
    wanted: int
    shown: str
    code: int
    out: str
    err: str


def _run(words: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stop:
        main(words)
    return int(stop.value.code or 0), out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Ran]]:
    """A folder in which every command of the page has been run, with what each one printed."""
    where = tmp_path_factory.mktemp("provenance")
    shutil.copy(data_path("tinylm.safetensors"), where)
    (where / "text.txt").write_text((ROOT / "README.md").read_text(encoding="utf-8")[:2000], encoding="utf-8")
    for kind, name, body in BLOCKS:
        if kind == "kc":
            (where / name).write_text(body, encoding="utf-8")
    (where / "traced.kc").write_text("contract t\nnumerical { d: tv <= 0.5 -> L1 }\nobservability { trace seed }\n")
    ran = []
    with contextlib.chdir(where):
        for part in (
            p for kind, _, body in BLOCKS if kind == "console" for p in re.split(r"^\$ ", body, flags=re.M)[1:]
        ):
            line, _, shown = part.partition("\n")
            command, _, note = line.partition("#")
            wanted = re.search(r"exit (\d)", note)
            ran.append(Ran(command, int(wanted[1]) if wanted else 0, shown, *_run(shlex.split(command)[1:])))
            if "--witnesses" in command:
                (where / "result.json").write_text(ran[-1].out, encoding="utf-8")
    return where, ran


@pytest.fixture
def folder(page: tuple[Path, list[Ran]]) -> Path:
    return page[0]


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(folder)

    def one(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(list(words))
        out, err = capsys.readouterr()
        assert "Traceback" not in err and "internal error" not in err
        return int(stop.value.code or 0), out, err

    return one


def test_the_page(page: tuple[Path, list[Ran]]) -> None:
    assert page[1]
    for ran in page[1]:
        assert ran.code == ran.wanted, f"{ran.command}\n{ran.out}{ran.err}"
        for text in ran.shown.strip().splitlines():
            assert text.strip() in ran.out, f"`{ran.command}` does not print {text!r}:\n{ran.out}"


def event(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "worst.jsonl").read_text(encoding="utf-8"))
    return found


def test_a_replay_gives_the_very_numbers(run: Run, folder: Path) -> None:
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    worst = result["measured"]["clauses"][0]["max"]
    code, out, _ = run("replay", "worst.jsonl", "--format", "json")
    found = json.loads(out)
    assert (code, found["value"], found["event"]["request"]) == (0, worst["value"], worst["request"])
    assert found["bitwise"] == {"reference": True, "candidate": True, "pair": False}
    assert found["drift"]["figures"]["logit_span"]["max"] == worst["value"]
    (folder / "log.jsonl").write_text(json.dumps({"level": "warn", "replay_event": event(folder)}) + "\n")
    assert run("replay", "log.jsonl", "--line", "1")[0] == 0


def test_what_is_not_replayed(run: Run, folder: Path) -> None:
    good = event(folder)

    def write(**changes: Any) -> None:
        (folder / "e.json").write_text(json.dumps({**good, **changes}))

    code, _, err = run("replay", "worst.jsonl", "--now", "2126-01-01")
    assert (code, "KC921 event_expired" in err) == (2, True)
    code, out, err = run("replay", "worst.jsonl", "--now", "2006-01-01")
    assert (code, out, "KC920 event_invalid" in err, "here it is 2006-01-01" in err) == (2, "", True, True)
    code, out, err = run("replay", "worst.jsonl", "--candidate", "demo:int4")
    assert code == 2 and not out
    assert "KC922 replay_identity" in err and "quantization kernel of the candidate is int4 here and was int8" in err
    for changes in (
        *({"replay": (replay := {**good["replay"], **odd}), "signature": signature_of(replay)} for odd in ODD_REPLAYS),
        *({"request": {**good["request"], **odd}} for odd in ODD_REQUESTS),
        {"sides": {**good["sides"], "candidate": {**good["sides"]["candidate"], "name": "a\0.npy"}}},
        {"signature": "sha256:0"}, {"replay": {**good["replay"], "seed": "1"}}, {"digest": "sha256:0"}, {"format": "x"}, {"at": "now"},
        *({"recorded": {k: v for k, v in good["recorded"].items() if k != key}} for key in ("value", "row", "token", "slice")),
        *({"recorded": {**good["recorded"], key: []}} for key in ("value", "row", "token", "slice", "logits")),
        {"at": 10**30}, {"contract": {"language": "1", "contracts": []}}, {"sides": {}}, {"recorded": None}, {"request": {}},
    ):  # fmt: skip
        write(**changes)
        code, _, err = run("replay", "e.json")
        assert (code, "KC920 event_invalid" in err) == (2, True), (changes, err)
    write(sides={**good["sides"], "candidate": {**good["sides"]["candidate"], "name": "os:system"}})
    code, _, err = run("replay", "e.json")
    assert code == 2 and "running it is your decision" in err
    recorded = {**good["recorded"], "value": 0.5, "logits": {**good["recorded"]["logits"], "candidate": "sha256:0"}}
    write(recorded=recorded)
    code, out, _ = run("replay", "e.json")
    assert code == 1 and "candidate: other bits" in out and "not reproduced" in out
    for key in ("row", "token"):
        write(recorded={**good["recorded"], key: 10**9})
        code, out, _ = run("replay", "e.json")
        assert code == 1 and "at another position or token" in out and "not reproduced" in out


def test_void_runs_measure_nothing(run: Run, folder: Path) -> None:
    sides = ("--reference", "demo:float32", "--candidate", "demo:int8")
    code, out, err = run("measure", "traced.kc", *sides, "--data", "text.txt")
    assert (code, out) == (2, "") and "KC901 trace_missing" in err and "window-0 has no `seed`" in err
    lines = [{"request_id": "a", "text": "some words", "seed": 1}, {"request_id": "b", "text": "some words"}]
    (folder / "d.jsonl").write_text("\n".join(map(json.dumps, lines)))
    code, _, err = run("measure", "traced.kc", *sides, "--data", "d.jsonl")
    assert code == 2 and "request b has no `seed`" in err and "(1 of 2 requests)" in err
    code, out, err = run("measure", "easy.kc", *sides, "--data", "text.txt", "--fingerprint-candidate", "int4.json")
    assert (code, out) == (2, "") and "KC903 identity_mismatch" in err and "quantization kernel of the candidate" in err


def test_the_gate_reads_the_provenance_of_a_result(run: Run, folder: Path) -> None:
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    text = (folder / "easy.kc").read_text(encoding="utf-8")
    (folder / "staged.kc").write_text(text + "promote { offline { min 5 requests } }\n")
    code, out, _ = run("measure", "staged.kc", "--reference", "demo:float32", "--candidate", "demo:int8", "--data", "text.txt", "--limit", "4", "--format", "json")  # fmt: skip
    (folder / "staged.json").write_text(out)
    assert run("gate", "staged.kc", "--stage", "offline", "--evidence", "staged.json")[0] == 3
    bare = {key: value for key, value in json.loads(out).items() if key != "provenance"}
    (folder / "bare.json").write_text(json.dumps(bare))
    code, out, err = run("gate", "staged.kc", "--stage", "offline", "--evidence", "bare.json")
    assert (code, out) == (2, "") and "KC904 provenance_missing" in err
    assert set(result["provenance"]) == {"trace", "reference", "candidate"}


def test_wrong_input(run: Run, folder: Path) -> None:
    signed = "tinylm.safetensors.intoto.jsonl"
    for words, slug in (
        (("fingerprint", "--weights", "none"), "weights_invalid"),
        (("fingerprint", "--declare", "colour=red"), "option_invalid"),
        (("fingerprint", "--declare", "device.=x"), "option_invalid"),
        (("fingerprint", "--weights", "tinylm.safetensors", "--declare", "weights=others"), "option_invalid"),
        (("fingerprint", "--weights", "tinylm.safetensors", "-o", "tinylm.safetensors"), "file_unwritable"),
        (("fingerprint", "--weights", "tinylm.safetensors", "-o", "-"), "file_unwritable"),
        (("fingerprint", "--compare", "int8.json", "int8.json", "-o", "x.json"), "option_invalid"),
        (("fingerprint", "--compare", "easy.kc", "int8.json"), "fingerprint_invalid"),
        (("replay", "easy.kc"), "event_invalid"),
        (("replay", "worst.jsonl", "--now", "yesterday"), "option_invalid"),
        (("replay", "worst.jsonl", "--clause", "none"), "option_invalid"),
        (("keygen", "team.key"), "file_unwritable"),
        (("attest", "easy.kc", "--result", "result.json", "--key", "team.key"), "option_invalid"),
        (("attest", "easy.kc", "--result", "result.json", "--key", "easy.kc", "--weights", "tinylm.safetensors"), "key_invalid"),
        (("attest", "easy.kc", "--result", "result.json", "--key", "team.key", "--weights", "tinylm.safetensors", "-o", "tinylm.safetensors"), "attest_inside"),
        (("attest", "easy.kc", "--result", "result.json", "--key", "team.key", "--weights", "tinylm.safetensors", "--valid-for", "9999999 d"), "option_invalid"),
        (("attest", "easy.kc", "--result", "result.json", "--key", "team.key", "--weights", "tinylm.safetensors", "-o", "team.key"), "file_unwritable"),
        (("attest", "easy.kc", "--result", "result.json", "--key", "team.key", "--weights", "tinylm.safetensors", "-o", "easy.kc"), "file_unwritable"),
        (("attest", "easy.kc", "--result", "result.json", "--key", "team.key", "--weights", "tinylm.safetensors", "--kernel", "demo:int4"), "attest_refused"),
        (("attest", "traced.kc", "--result", "result.json", "--key", "team.key", "--weights", "tinylm.safetensors"), "attest_refused"),
        (("verify", signed, "--public-key", "team.key"), "key_invalid"),
        (("verify", "none", "--public-key", "team.key.pub"), "file_unreadable"),
    ):  # fmt: skip
        code, _, err = run(*words)
        assert (code, slug in err) == (2, True), (words, err)
    for name in ("easy.kc", "result.json", "team.key.pub"):
        code, out, _ = run("verify", name, "--public-key", "team.key.pub")
        assert code == 1 and "KC940 attestation_malformed" in out
