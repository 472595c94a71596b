"""Compiles C++ into a cache of shared objects: atomic, safe for parallel processes, keyed by source and flags.

The name of a shared object ends in a digest of its bytes, so that a damaged file is built anew and never loaded.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

import torch

FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-ffp-contract=fast", "-fPIC", "-shared")
LEVELS = {"AVX2": "-march=x86-64-v3", "AVX512": "-march=x86-64-v4"}
"""Flag for what torch says that the processor can do."""
PREBUILT = Path(__file__).parent / "prebuilt"
"""Where a wheel may carry shared objects, named by their keys."""
_TIMEOUT = 120.0


class BuildError(Exception):
    """No kernel can be built or loaded; the text says why in one line."""


@lru_cache(maxsize=1)
def compiler() -> tuple[str, ...]:
    """Command and flags of the system's C++ compiler (the words of the variable CXX, else c++, g++, clang++).

    Raises BuildError where there is none, and on x86 without AVX2 and FMA, where the kernel would be slower than torch.
    """
    machine = platform.machine().lower()
    flags: tuple[str, ...] = FLAGS
    if machine in ("x86_64", "amd64"):
        level = LEVELS.get(torch.backends.cpu.get_cpu_capability())
        if level is None:
            raise BuildError("this processor lacks AVX2 or FMA")
        flags = (*FLAGS, level)
    named = os.environ.get("CXX", "").strip()
    try:
        words = shlex.split(named)
    except ValueError as error:
        raise BuildError(f"CXX={named} is no command: {error}") from None
    for name in words[:1] or ("c++", "g++", "clang++"):
        path = shutil.which(name)
        if path:
            return (path, *words[1:], *flags)
    raise BuildError(f"no C++ compiler: {words[0] if words else 'c++, g++, clang++'} not found")


def cache_folder() -> Path:
    """Folder of built kernels, private to the user: below KCVERIFY_CACHE, else XDG_CACHE_HOME or the home's .cache.

    A folder that others may write into, or that cannot be written, is not used, since what is in it is run.
    """
    base = os.environ.get("KCVERIFY_CACHE") or os.environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(base) if base else Path.home() / ".cache") / "kcverify" / "kernels"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = folder.stat()
        if os.access(folder, os.W_OK) and about.st_uid == os.getuid() and not about.st_mode & 0o022:
            return folder
    except (OSError, RuntimeError):  # no such folder can be; no home is known
        pass
    return _private_folder()


@lru_cache(maxsize=1)
def _private_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="kcverify-"))


def shared_object(source: str, command: tuple[str, ...]) -> Path:
    """The shared object of this source, built if it is in no cache. Raises BuildError."""
    key = hashlib.sha256("\0".join((source, *command, _version(command[0]))).encode()).hexdigest()[:32]
    try:
        return _intact(PREBUILT, key) or _intact(cache_folder(), key) or _built(source, command, key)
    except OSError as error:
        raise BuildError(f"the cache of kernels cannot be used: {error.strerror or type(error).__name__}") from None


def _intact(folder: Path, key: str) -> Path | None:
    """The shared object of this key whose bytes are what its name says, if there is one."""
    return next((p for p in sorted(folder.glob(f"{key}-*.so")) if p.stem == f"{key}-{_digest(p)}"), None)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _built(source: str, command: tuple[str, ...], key: str) -> Path:
    """Compile into the cache; what is there under the same name is replaced."""
    folder = cache_folder()
    with tempfile.TemporaryDirectory(dir=folder) as work:
        text, built = Path(work) / "rows.cpp", Path(work) / "rows.so"
        text.write_text(source, encoding="utf-8")
        _run((*command, str(text), "-o", str(built)))
        if not built.is_file():
            raise BuildError(f"{Path(command[0]).name} wrote no file")
        target = folder / f"{key}-{_digest(built)}.so"
        return built.replace(target)


@lru_cache(maxsize=8)
def _version(path: str) -> str:
    """What the compiler calls itself: a new version builds anew."""
    return _run((path, "--version")).partition("\n")[0]


def _run(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{Path(command[0]).name} does not run: {type(error).__name__}") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise BuildError(f"{Path(command[0]).name} failed: {lines[0] if lines else f'exit code {done.returncode}'}")
    return done.stdout
