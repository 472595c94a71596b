"""Finds the files that ship with kcverify, in a checkout and in an installed wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _shipped(folder: str) -> Path:
    """`folder` inside the wheel, else at the top level of the checkout. Raises FileNotFoundError."""
    for path in (_PACKAGE / "_shipped" / folder, _PACKAGE.parent / folder):
        if path.is_dir():
            return path
    raise FileNotFoundError(f"kcverify's {folder}/ folder is missing from this installation")


def grammar_text() -> str:
    """Text of `contract.lark`."""
    return (_shipped("grammar") / "contract.lark").read_text(encoding="utf-8")


def template_dir() -> Path:
    """Folder of the templates that `emit` fills."""
    return _shipped("templates")


def contracts_dir() -> Path:
    """Folder of the worked contracts."""
    return _shipped("contracts")


def data_path(name: str) -> Path:
    """A file of package data, `kcverify/data/NAME`. Raises FileNotFoundError when it does not ship."""
    path = _PACKAGE / "data" / name
    if not path.is_file():
        raise FileNotFoundError(f"kcverify/data/{name} is missing from this installation")
    return path
