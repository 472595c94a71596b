"""What the commands share: options, output, and the guard that turns every failure into a message."""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import signal
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from kcverify.output.style import single, still

_FIRST = ("check", "derive", "bounds", "compile", "measure", "demo", "inspect", "gate", "promote", "explain")


class _InOrder(TyperGroup):
    """Lists the main job's commands first, in the order in which they are used."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands in the order of `--help`."""
        names = super().list_commands(ctx)
        return [n for n in _FIRST if n in names] + sorted(n for n in names if n not in _FIRST)


app = typer.Typer(
    name="kcverify",
    cls=_InOrder, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Prove and measure how far two kernels that run the same model may drift apart.",
    epilog="Exit codes: 0 proved or passed; 1 refuted, failed or a finding of severity error; 2 wrong input; "
    "3 unknown or inconclusive, as a run that was cut short; 4 a fault of kcverify; 130 interrupted.",
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip

Files = Annotated[list[str], typer.Argument(metavar="FILE...", help="contract files; - is standard input")]
File = Annotated[str, typer.Argument(metavar="FILE", help="contract file; - is standard input")]
Format = Annotated[str, typer.Option("--format", help="text or json", metavar="text|json")]
Name = Annotated[
    str | None, typer.Option("--contract", help="the contract to use where the file holds several", metavar="NAME")
]
Set = Annotated[list[str] | None, typer.Option("--set", help="value of a contract's `param`", metavar="NAME=VALUE")]


def color() -> bool:
    """Whether to colour standard output: a terminal that can, and NO_COLOR not set."""
    return _colours(sys.stdout)


def _colours(stream: TextIO | None) -> bool:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return stream is not None and stream.isatty() and not plain


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def say(text: str) -> None:
    """Print text; what could rewrite the terminal or command a CI runner is replaced, our own colours kept on a terminal."""
    out, last = [], 0
    for match in _COLOUR.finditer(text) if color() else ():
        out += [_inert(text[last : match.start()]), match.group()]
        last = match.end()
    put(_told("".join([*out, _inert(text[last:])])) + "\n")


def tell(text: Callable[[Any, bool], str], found: Any) -> None:
    """Print an answer as text; what others wrote in it ends no line."""
    say(text(single(found), color()))


def note(text: str) -> None:
    """Print a line on standard error, where it never mixes with an answer."""
    _err(_told(_inert(single(text))))


def command(text: str) -> None:
    """Print lines that are commands of a CI runner: the writer has escaped what others wrote."""
    put(_inert(text) + "\n")


def put(text: str) -> None:
    """Print text as it is, at once; what the output's encoding has no sign for is escaped as in JSON. A reader that has gone,
    or a closed output, changes nothing about the exit code, which is the command's verdict. Raises InputError:
    `file_unwritable`, as for a full disk."""
    if sys.stdout is None:
        return
    try:
        try:
            sys.stdout.write(text)
        except UnicodeEncodeError as error:
            sys.stdout.write(_encodable(text, error.encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        _drop(sys.stdout)
    except OSError as error:
        _drop(sys.stdout)
        raise _unwritable("standard output", error) from None


def _encodable(text: str, encoding: str) -> str:
    def shown(found: re.Match[str]) -> str:
        try:
            found[0].encode(encoding)
        except UnicodeEncodeError:
            return json.dumps(found[0])[1:-1]
        return found[0]

    return re.sub(r"[^\x00-\x7f]", shown, text)


def _drop(stream: TextIO) -> None:
    """What is printed from now on, and what waits to be, goes nowhere."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _err(text: str) -> None:
    """A line on standard error; where that is closed, gone or full, the exit code alone tells."""
    if sys.stderr is None:
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _drop(sys.stderr)


_COMMAND = re.compile(r"^([^\S\n]*):(?=:)", re.MULTILINE)
"""What makes GitHub's runner take a line of a log for a command."""


def _told(text: str) -> str:
    return _COMMAND.sub(r"\1: ", still(text, " #"))


_OBEYED = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
"""Categories of characters that a terminal or a reader of lines obeys instead of showing them."""


_SPECIAL = re.compile(r"[^\n\x20-\x7e]")


def _inert(text: str) -> str:
    return _SPECIAL.sub(lambda c: "\ufffd" if c[0] != "\t" and unicodedata.category(c[0]) in _OBEYED else c[0], text)


_HALF = re.compile("[\ud800-\udfff]")


def emit(value: Any) -> None:
    """Print JSON; what a terminal or a runner would obey is escaped, and half of a surrogate pair, which no encoding holds, replaced."""
    text = _HALF.sub("\ufffd", json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))
    text = still(text, "\\u0023")  # no line of JSON begins with a colon
    shown = _SPECIAL.sub(lambda c: json.dumps(c[0])[1:-1] if unicodedata.category(c[0]) in _OBEYED else c[0], text)
    put(shown + "\n")


def wants_json(value: str) -> bool:
    """Whether JSON is wanted. Raises InputError for an unknown format."""
    from kcverify.diagnostics import input_error

    if value not in ("text", "json"):
        raise input_error(
            "option_invalid", option="--format", reason=f"`{value}` is not text or json", hint="--format json"
        )
    return value == "json"


def parameters(words: list[str] | None) -> dict[str, Any]:
    """The values of `--set`. Raises InputError: `option_invalid`."""
    from kcverify import arguments

    return {k: arguments.number(f"--set {k}", v) for k, v in arguments.pairs("--set", words or []).items()}


def writable(path: str, *inputs: object) -> None:
    """Raise InputError `file_unwritable` unless `write` could replace the file; what is there stays as it is.

    A file that is one of the command's `inputs` is not replaced.
    """
    try:
        if Path(path).is_dir():
            raise IsADirectoryError(21, "is a directory")
        if any(_is_same(Path(path), Path(str(given))) for given in inputs if given is not None):
            raise OSError(0, "this command reads it")
        partial = Path(path).with_name(Path(path).name + ".partial")
        if not partial.exists():
            partial.touch()
            partial.unlink()
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None


def _is_same(path: Path, given: Path) -> bool:
    """Whether a path is the given file, one of a pattern, or anything but a page in the given folder."""
    try:
        if not path.exists():
            return False
        if given.is_dir():
            return path.suffix != ".html" and given.resolve() in path.resolve().parents
        return any(
            path.samefile(one) for one in (str(given), *glob.iglob(str(given), recursive=True)) if Path(one).exists()
        )
    except (OSError, ValueError):
        return False


def folder(path: Path) -> None:
    """Make a folder and those above it. Raises InputError: `file_unwritable`."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise _unwritable(str(path), error) from None


def _unwritable(path: str, error: Exception) -> Exception:
    from kcverify.diagnostics import input_error

    reason = getattr(error, "strerror", None) or str(error)
    return input_error("file_unwritable", path=path, reason=reason.lower())


def write(path: str, text: str) -> None:
    """Write a whole file or nothing; a link stays a link, a file keeps its mode. Raises InputError: `file_unwritable`."""
    if path == "-":
        raise _unwritable(path, OSError("standard output is not offered here; name a file, `./-` if it is called so"))
    try:
        target = Path(path).resolve()
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8")
        else:
            _replace(target, text)
    except (OSError, ValueError, RuntimeError) as error:
        raise _unwritable(path, error) from None


def _replace(target: Path, text: str) -> None:
    partial = target.with_name(target.name + ".partial")
    try:
        partial.write_text(text, encoding="utf-8")
        if target.exists():
            shutil.copymode(target, partial)
        partial.replace(target)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended before it had an answer."""

RANK = [0, 3, 1, 2, 4]
"""Exit codes from the best to the worst."""


@contextmanager
def stoppable() -> Iterator[None]:
    """A request to terminate ends a run as Ctrl-C does: what is done is reported as incomplete."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def worse(a: int, b: int) -> int:
    """The worse of two exit codes."""
    return max(a, b, key=RANK.index)


def guarded(run: Callable[[], Any]) -> int:
    """Exit code of a command; wrong input becomes diagnostics, a fault of ours one line, never a traceback."""
    try:
        return int(run() or 0)
    except KeyboardInterrupt:
        return _interrupted()
    except Exception as error:
        from kcverify.diagnostics import InputError

        if isinstance(error.__cause__, KeyboardInterrupt):  # as from inside a class that a library is making
            return _interrupted()
        if isinstance(error, InputError):
            complain(error)
            return 2
        where = _innermost(error)
        note(f"internal error in {where}: {type(error).__name__}: {error}")
        _err("this is a fault of kcverify, not of your input; please report it with the command and the file")
        return 4


def _interrupted() -> int:
    _err("interrupted")
    return INTERRUPTED


def complain(error: Exception) -> None:
    """Print the diagnostics of an InputError on standard error."""
    from kcverify.render import render_all

    color = _colours(sys.stderr)
    _err(_told(render_all(getattr(error, "diagnostics", ()), color=color)))


def _innermost(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "kcverify" if trace is None else f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
