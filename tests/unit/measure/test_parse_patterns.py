"""`--parse regex:`: a response that keeps the pattern busy ends the command with a diagnostic."""

from __future__ import annotations

import threading
import time

import pytest

pytest.importorskip("torch")

from kcverify.diagnostics import InputError
from kcverify.measure import outcomes
from kcverify.measure.outcomes import open_parser


def test_a_pattern_without_an_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "MOST_SECONDS", 0.1)
    parse, began = open_parser("regex:(a+)+"), time.process_time()
    assert parse is not None
    assert parse("aaa") and not parse("b")
    with pytest.raises(InputError, match="takes more than"):
        parse("a" * 60 + "!")
    assert time.process_time() - began < 5.0
    assert parse("aa"), "the limit is of one response"


def test_other_threads_parse_without_a_limit() -> None:
    found: list[bool] = []

    def work() -> None:
        parse = open_parser("regex:a+")
        assert parse is not None
        found.append(parse("aa"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True]
