"""Whether the module of `module:function` is there at all: asked before torch is loaded, and without running any of it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from kcverify.diagnostics import input_error


def check_module(name: str) -> None:
    """Raises InputError (`kernel_not_found`) where `module:function` names a module that is neither in the working folder
    nor installed. A name of the table passes, and so does what only an import can tell: submodules, and the function.
    """
    module, colon, _ = name.partition(":")
    top = module.partition(".")[0]
    if not colon or not top or _is_there(top):
        return
    reason = f"no module `{top}` in the working folder or among those installed"
    raise input_error("kernel_not_found", kernel=name, reason=reason)


def _is_there(top: str) -> bool:
    before = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.util.find_spec(top) is not None
    except (ImportError, ValueError, AttributeError):  # a module in memory without a spec
        return top in sys.modules
    finally:
        sys.path[:] = before
