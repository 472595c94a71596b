"""Every file that attacks its reader is refused with a diagnostic, within memory and time, and runs nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import malicious_files
import malicious_tensors
import pytest
import warm

MEMORY = 6 << 30
SECONDS = 100
GROWTH = 600 << 20
"""Bytes that a command may add to the process."""
LONGEST = 8.0

CONTRACT = """contract c version "1"
assume { temperature in [1, 1] }
numerical { drift: logit_span <= 40 except 20% -> L2 }
escalate { L2 -> guard, dwell 10 minutes, recover 200 requests }
promote { offline { min 5 requests }; shadow { for 0 s }; canary { traffic 1%, 5% }; full { stable 24 h } }
"""
STREAM = '{"id": "a", "choices": [{"text": "x", "logprobs": {"tokens": ["x"], "token_logprobs": [-1.0], "top_logprobs": [{"x": -1.0}]}}]}\n'

REJECTED = {("certificate", 1), ("verify", 1)}
"""Commands whose answer to a file that they can read and do not believe is 1."""


def commands(folder: Path) -> list[list[str]]:
    (folder / "c.kc").write_text(CONTRACT)
    made = []
    for name, (make, file, words) in malicious_files.CASES.items():
        place = folder / name.replace(" ", "-")
        place.mkdir()
        (place / "stream.jsonl").write_text(STREAM)
        make(place / file)
        given = {"FILE": str(place / file), "CONTRACT": str(folder / "c.kc"), "STREAM": str(place / "stream.jsonl")}
        given["PUBLIC"] = str(folder / "k.pub")
        made += [[given.get(w, w) for w in line] for line in words]
    return made


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], list[Path]]:
    """What every command did, and the folders that something in a file made."""
    folder = tmp_path_factory.mktemp("malicious")
    lines = commands(folder)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    warm.run(
        [sys.executable, "-m", "kcverify", "keygen", str(folder / "k")],
        env=environment,
        check=True,
        capture_output=True,
    )
    command = [sys.executable, str(Path(__file__).with_name("confined.py")), str(MEMORY), str(SECONDS)]
    done = subprocess.run(
        command, input=json.dumps(lines), capture_output=True, text=True, env=environment, cwd=folder, timeout=300
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    found = [t for t in told if "code" in t]
    assert len(found) == len(lines), (told[-1], done.returncode, done.stderr[-2000:])
    return found, list(folder.rglob(malicious_tensors.MARK))


def test_every_file_is_refused_with_a_diagnostic(answers: tuple[list[dict[str, Any]], list[Path]]) -> None:
    wrong = []
    for a in answers[0]:
        allowed = a["code"] == 2 or (a["words"][0], a["code"]) in REJECTED
        if not allowed or "Traceback" in a["err"] or not (a["err"] + a["out"]).strip():
            wrong.append((a["words"], a["code"], a["err"][-400:], a["out"][-200:]))
    assert not wrong, "\n".join(map(str, wrong))


def test_none_takes_memory_or_time(answers: tuple[list[dict[str, Any]], list[Path]]) -> None:
    wrong = [
        (a["words"], a["grown"] >> 20, a["seconds"])
        for a in answers[0]
        if a["grown"] > GROWTH or a["seconds"] > LONGEST
    ]
    assert not wrong


def test_nothing_was_run_and_nothing_left_its_place(answers: tuple[list[dict[str, Any]], list[Path]]) -> None:
    assert answers[1] == []


def test_messages_are_short_and_printable(answers: tuple[list[dict[str, Any]], list[Path]]) -> None:
    wrong = []
    for a in answers[0]:
        text = a["err"] + a["out"]
        control = {c for c in text if c not in "\n\t" and unicodedata.category(c) in ("Cc", "Cf", "Cs")}
        if control or len(text) > 8000:
            wrong.append((a["words"], control, len(text)))
    assert not wrong
