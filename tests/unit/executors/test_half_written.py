"""Half-written records in the folder of a run: swept by the next one, never under a living process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kcverify.executors.records import FileState, Records, Summary

IDENTITY = {"contract": "c"}
STATE = "shard-" + "0" * 24 + ".state"


def keep(folder: Path, name: str = "a") -> None:
    Records(folder, IDENTITY).keep(Summary(name, b"state", 1, 2, 3, (FileState(1, 2, "float32", "0" * 64),)))


def halves(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(".part"))


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    """The process ends between its first byte and the move, as by SIGKILL."""
    keep(tmp_path)
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom kcverify.executors import records\n"
        "os.fsync = lambda handle: os._exit(9)\n"
        "folder = Path(sys.argv[1])\n"
        "records.Records(folder, {'contract': 'c'}).keep(records.Summary('b', b'state', 1, 2, 3, ()))\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 9
    assert len(halves(tmp_path)) == 1
    Records(tmp_path, IDENTITY)
    assert not halves(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} >= {"run.json"} and len(list(tmp_path.iterdir())) == 2


def test_what_a_living_process_writes_stays(tmp_path: Path) -> None:
    keep(tmp_path)
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom kcverify.executors import records\n"
        "def waits(handle):\n    print('written', flush=True)\n    sys.stdin.readline()\n"
        "os.fsync = waits\n"
        "records.Records(Path(sys.argv[1]), {'contract': 'c'}).keep(records.Summary('b', b'state', 1, 2, 3, ()))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None and running.stdout.readline() == "written\n"
        Records(tmp_path, IDENTITY)
        assert len(halves(tmp_path)) == 1
        running.communicate("\n\n\n")
    assert running.returncode == 0 and not halves(tmp_path)
    found, reason = Records(tmp_path, IDENTITY).find("b", ())
    assert found is not None and not reason


def test_files_of_others_stay(tmp_path: Path) -> None:
    keep(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("x")
    (tmp_path / f".{STATE}.0123abcd.part").symlink_to(elsewhere)
    for name in (f".{STATE}.part", "notes.part", f"{STATE}.0123abcd.part", ".run.json.0123abcd.partial"):
        (tmp_path / name).write_text("mine")
    before = sorted(p.name for p in tmp_path.iterdir())
    Records(tmp_path, IDENTITY)
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_a_sweep_before_the_lock_is_survived(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """A file that another run removes between its opening and its lock is written again under another name."""
    from kcverify.executors import records

    lock, swept = records.fcntl.flock, []

    def first_swept(handle, how: int) -> None:  # type: ignore[no-untyped-def]
        if not swept:
            swept.append(handle.name)
            Path(handle.name).unlink()
        lock(handle, how)

    monkeypatch.setattr(records.fcntl, "flock", first_swept)
    keep(tmp_path)
    assert swept and not halves(tmp_path)
    assert Records(tmp_path, IDENTITY).folder.joinpath("run.json").exists()
