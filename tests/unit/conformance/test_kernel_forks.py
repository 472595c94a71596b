"""Jobs in forked children: each is alone, whatever it does ends with it, and the next one starts afresh."""

from __future__ import annotations

import os
import signal
import time

import pytest

pytest.importorskip("torch")

from kcverify.conformance import forks


def status(said, module, function, *arguments, seconds=60.0, **environment):
    with forks.child(module, function, list(arguments), said, environment) as running:
        return running.wait(seconds)


def test_how_a_child_ends_is_told_and_the_next_one_does_not_know(tmp_path):
    said = tmp_path / "said"
    assert status(said, "os", "_exit", 3) == 3
    assert status(said, "os", "abort") == -signal.SIGABRT
    assert status(said, "sys", "exit", 5) == 5
    assert status(said, "os", "fspath", 1) == 1
    assert "TypeError" in said.read_text()
    shell = ["sh", ["sh", "-c", 'test "$KC_MARK" = set']]
    assert status(said, "os", "execvp", *shell, KC_MARK="set") == 0
    assert status(said, "os", "execvp", *shell) == 1


def test_a_child_is_killed_with_all_that_it_started(tmp_path):
    with forks.child("subprocess", "call", [["sleep", "600"]], tmp_path / "said", {}) as running:
        assert running.wait(0.3) is None
        group = running.pid
    assert running.status == -signal.SIGKILL
    for _ in range(200):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("a process of the group is left")


def test_a_parent_that_ended_is_replaced(tmp_path):
    first = forks.server()
    forks.close(first)
    assert status(tmp_path / "said", "os", "_exit", 0) == 0
    assert forks.server() is not first
