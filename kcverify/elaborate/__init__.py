"""From the syntax tree to the typed contract."""

from __future__ import annotations

from kcverify.elaborate.elaborate import Elaborated, elaborate, elaborate_file

__all__ = ["Elaborated", "elaborate", "elaborate_file"]
