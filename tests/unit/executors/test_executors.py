"""Answers of jobs that succeed, fail and die; no process outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jobs import double, mixed, process, slow

from kcverify.diagnostics import InputError
from kcverify.executors.pool import Answer, Executor, Processes, Serial

ROOT = Path(__file__).parents[3]


def gone(pid: int) -> bool:
    """Whether a process has ended, waiting a little for it."""
    for _ in range(200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("executor", [Serial(), Processes(1), Processes(3)], ids=["serial", "one", "three"])
def test_every_job_is_answered_once(executor: Executor) -> None:
    answers = sorted(executor.map(double, range(10)), key=lambda a: a.index)
    assert answers == [Answer(i, 2 * i) for i in range(10)]
    assert list(executor.map(double, [])) == []


def test_workers_are_kept() -> None:
    assert len({a.value for a in Processes(1).map(process, range(5))}) == 1


def test_a_job_that_fails_is_told_and_stops_no_other() -> None:
    jobs = ["a", "killed", "b", "segfault", "exits", "input", "memory", "fault", "prints", "c", "threads"]
    answers = sorted(Processes(2).map(mixed, jobs), key=lambda a: a.index)
    found = dict(zip(jobs, answers, strict=True))
    assert [a.index for a in answers] == list(range(len(jobs)))
    assert [found[name].value for name in ("a", "b", "c", "prints", "threads")] == ["a", "b", "c", "prints", 1]
    assert "ended by SIGKILL, which the system sends where memory runs out" in found["killed"].lost
    assert "ended by SIGSEGV" in found["segfault"].lost
    assert found["exits"].lost == "its process ended with exit code 7; its last words: last line"
    assert [d.message for d in found["input"].diagnostics] == ["x.npy is empty"]
    assert found["memory"].lost == "there was not enough memory"
    assert found["fault"].fault.startswith("KeyError: 'nobody expected this' (jobs.py:")
    assert not any(found[name].lost for name in ("input", "fault"))


def test_the_serial_one_tells_failures_alike() -> None:
    found = list(Serial().map(mixed, ["input", "memory", "fault", "a"]))
    assert [bool(a.diagnostics) for a in found] == [True, False, False, False]
    assert [bool(a.lost) for a in found] == [False, True, False, False]
    assert [bool(a.fault) for a in found] == [False, False, True, False]


def test_a_process_that_dies_with_nothing_to_do_costs_no_job() -> None:
    answers = Processes(1).map(process, range(3))
    first = next(answers).value
    os.kill(first, signal.SIGKILL)
    assert gone(first)
    rest = list(answers)
    assert [a.lost for a in rest] == ["", ""]
    assert first not in {a.value for a in rest}


def test_an_end_that_shows_only_with_the_next_job_costs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process whose threads still end looks alive when it is given its next job."""
    monkeypatch.setattr(subprocess.Popen, "poll", lambda self: None)
    answers = Processes(1).map(process, range(3))
    first = next(answers).value
    os.kill(first, signal.SIGKILL)
    rest = list(answers)
    assert sorted(a.index for a in rest) == [1, 2] and [a.lost for a in rest] == ["", ""]


def test_closing_stops_what_runs(tmp_path: Path) -> None:
    answers = Processes(2).map(choose, [("double", "1"), ("slow", str(tmp_path / "pid"))])
    assert next(answers).value == 2
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.02)
    answers.close()
    assert gone(int((tmp_path / "pid").read_text()))


def choose(job: tuple[str, str]) -> object:
    return double(int(job[1])) if job[0] == "double" else slow(job[1])


def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]\n"
        f"from jobs import slow\nfrom kcverify.executors.pool import Processes\n"
        f"list(Processes(1).map(slow, [{str(tmp_path / 'pid')!r}]))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert parent.poll() is None
        time.sleep(0.02)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("workers", [0, -1])
def test_a_number_of_workers_is_positive(workers: int) -> None:
    with pytest.raises(InputError, match="--workers"):
        Processes(workers)


@pytest.mark.needs("ray")
def test_ray_answers_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    from kcverify.executors.cluster import Ray

    path = os.pathsep.join([str(Path(__file__).parent), str(ROOT), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    jobs = ["a", "input", "memory", "fault", "killed"]
    found = dict(zip(jobs, sorted(Ray(2).map(mixed, jobs), key=lambda a: a.index), strict=True))
    assert found["a"].value == "a"
    assert [d.message for d in found["input"].diagnostics] == ["x.npy is empty"]
    assert found["memory"].lost == "there was not enough memory"
    assert found["fault"].fault.startswith("KeyError")
    assert "Ray lost its task" in found["killed"].lost
