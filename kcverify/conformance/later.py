"""A function of a library that may not be installed, loaded at its first call and without what the library says meanwhile."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any


@contextmanager
def quiet() -> Iterator[None]:
    """No warning and no log line: libraries report optional parts that they miss when they are loaded."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@dataclass(frozen=True)
class Later:
    """`module.function`, called with `first` in front where it is given; `schedules` are the values of its parameter `schedule`."""

    module: str
    function: str
    first: str = ""
    schedules: tuple[str, ...] = ()

    @property
    def __name__(self) -> str:
        return f"{self.module.rpartition('.')[2]}.{self.function}" + (f"({self.first})" if self.first else "")

    def __call__(self, *args: Any, **more: Any) -> Any:
        with quiet():
            found = getattr(importlib.import_module(self.module), self.function)
            return found(self.first, *args, **more) if self.first else found(*args, **more)


def missing(library: str) -> str:
    """Why a library is not at hand; empty where it is."""
    return "" if find_spec(library) is not None else f"{library} is not installed"
