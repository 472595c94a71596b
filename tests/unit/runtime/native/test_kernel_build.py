"""Building the row kernel: cache, parallel processes, and machines that cannot."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import warm

from kcverify.runtime.native import build, library
from kcverify.runtime.native.build import BuildError, cache_folder, compiler, shared_object
from kcverify.runtime.native.source import kernel_source
from kcverify.runtime.rowplan import RowPlan
from kcverify.runtime.rows import row_statistics

PLAN = RowPlan(frozenset({"logit_span", "kl_reference_candidate"}))
RAW = RowPlan(frozenset({"logit_span"}))
needs_compiler = pytest.mark.needs("compiler")


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty cache, and nothing remembered of compilers and kernels before and after."""
    caches = (build.compiler, build._version, build._private_folder, library._failure, library._load, library._tell)
    monkeypatch.setenv("KCVERIFY_CACHE", str(tmp_path))
    for cache in caches:
        cache.cache_clear()
    yield tmp_path / "kcverify" / "kernels"
    for cache in caches:
        cache.cache_clear()


def rows(count: int = 3, width: int = 50) -> tuple[torch.Tensor, torch.Tensor]:
    z = torch.randn(count, width, generator=torch.Generator().manual_seed(1))
    return z, z + 0.01


@needs_compiler
def test_a_kernel_is_built_once(fresh: Path) -> None:
    source = kernel_source(RAW, torch.float32)
    first = shared_object(source, compiler())
    before = first.stat().st_mtime_ns
    assert first.parent == fresh and stat.S_IMODE(fresh.stat().st_mode) == 0o700
    assert shared_object(source, compiler()) == first and first.stat().st_mtime_ns == before
    other = shared_object(kernel_source(RAW, torch.bfloat16), compiler())
    assert other != first
    assert sorted(p.suffix for p in fresh.iterdir()) == [".so", ".so"]


@needs_compiler
def test_processes_that_build_at_once_leave_one_object(fresh: Path) -> None:
    text = (
        "import torch; from kcverify.runtime.native.build import compiler, shared_object;"
        "from kcverify.runtime.native.source import kernel_source; from kcverify.runtime.rowplan import RowPlan;"
        "print(shared_object(kernel_source(RowPlan(frozenset({'logit_span'})), torch.float32), compiler()))"
    )
    started = [
        warm.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    told = [p.communicate(timeout=120) for p in started]
    assert [p.returncode for p in started] == [0, 0, 0], told
    assert len({out for out, _ in told}) == 1
    assert [p.suffix for p in fresh.iterdir()] == [".so"]


@needs_compiler
def test_a_prebuilt_kernel_is_taken(fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    built = shared_object(kernel_source(RAW, torch.float32), compiler())
    shipped = tmp_path / "prebuilt"
    shipped.mkdir()
    built.rename(shipped / built.name)
    monkeypatch.setattr(build, "PREBUILT", shipped)
    assert shared_object(kernel_source(RAW, torch.float32), compiler()) == shipped / built.name


def test_without_a_compiler_the_torch_backend_serves_and_one_line_says_so(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    z, w = rows()
    with caplog.at_level(logging.WARNING, logger="kcverify"):
        got = row_statistics(z, w, PLAN)
        row_statistics(z, w, PLAN)
    assert got.values["logit_span"].tolist() == row_statistics(z, w, PLAN, backend="lean").values["logit_span"].tolist()
    assert len(caplog.records) == 1
    message = caplog.records[0].getMessage()
    assert "no C++ compiler" in message and "\n" not in message


@pytest.mark.parametrize("text", ["#!/bin/sh\necho 'x.cpp:1: error: broken' >&2\nexit 1\n", "not a program"])
def test_a_broken_compiler_is_a_reason(text: str, fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bad = tmp_path / "bad-compiler"
    bad.write_text(text)
    bad.chmod(0o755)
    monkeypatch.setenv("CXX", str(bad))
    with pytest.raises(BuildError, match=r"bad-compiler (failed: x.cpp:1: error: broken|does not run)"):
        shared_object("int x;", compiler())
    z, w = rows()
    assert "bad-compiler" in library.unavailable(z, w, PLAN)
    assert not fresh.exists() or list(fresh.iterdir()) == []


def test_a_folder_of_somebody_else_is_not_used(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    folder = cache_folder()
    assert folder != fresh and folder.is_dir()


def test_what_the_kernel_does_not_take() -> None:
    z, w = rows()
    assert "float64" in library.unavailable(z.double(), w, PLAN)
    assert "beyond 256" in library.unavailable(z, w, RowPlan(frozenset(), ((300, False),)))
    assert "meta" in library.unavailable(z.to("meta"), w.to("meta"), PLAN)


@needs_compiler
@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_kernel_is_built_anew(fresh: Path, damage: bytes | None) -> None:
    source = kernel_source(RAW, torch.float32)
    built = shared_object(source, compiler())
    content = built.read_bytes()
    built.write_bytes(content[: len(content) // 2] if damage is None else damage)
    assert shared_object(source, compiler()).read_bytes() == content
    assert [p.name for p in fresh.iterdir()] == [built.name]


@needs_compiler
@pytest.mark.parametrize(
    ("ending", "message"),
    [
        ("echo 'error: no memory' >&2; exit 1", "no memory"),
        ("exit 0", "wrote no file"),
        ("printf '\\377 error' >&2; exit 1", "error"),
        ('for a; do last=$a; done; echo junk > "$last"', "does not load"),
        ('for a; do last=$a; done; echo "int x;" | c++ -xc++ -fPIC -shared - -o "$last"', "undefined symbol"),
    ],
)
def test_a_compiler_that_fails_at_the_second_kernel_is_a_reason(
    ending: str, message: str, fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bad = tmp_path / "tired"
    bad.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec c++ --version\n'
        f'[ -e "{tmp_path}/once" ] || {{ touch "{tmp_path}/once"; exec c++ "$@"; }}\n{ending}\n'
    )
    bad.chmod(0o755)
    monkeypatch.setenv("CXX", str(bad))
    z, w = rows()
    assert message in library.unavailable(z, w, PLAN)
    got = row_statistics(z, w, PLAN, backend="lean").values
    assert row_statistics(z, w, PLAN).values["logit_span"].tolist() == got["logit_span"].tolist()


def test_a_folder_that_others_may_write_into_is_not_used(fresh: Path) -> None:
    assert cache_folder() == fresh
    fresh.chmod(0o777)
    assert cache_folder() != fresh


@needs_compiler
def test_the_compiler_may_be_named_with_flags(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "c++ -DKC_NAMED='a b'")
    assert compiler()[1] == "-DKC_NAMED=a b"
    assert library.unavailable(*rows(), PLAN) == ""
    for text, reason in (("c++ 'x", "CXX=c\\+\\+ 'x is no command"), ("nowhere -O2", "nowhere not found")):
        compiler.cache_clear()
        monkeypatch.setenv("CXX", text)
        with pytest.raises(BuildError, match=reason):
            compiler()
