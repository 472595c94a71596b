"""From text to the syntax tree."""

from __future__ import annotations

from kcverify.syntax.parser import LIMITS, SyntaxLimits, parse
from kcverify.syntax.scan import comments

__all__ = ["LIMITS", "SyntaxLimits", "comments", "parse"]
