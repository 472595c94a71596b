"""kcverify: prove and measure how far two kernels that run the same model may drift apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kcverify.driver import check, derive, emit_monitor, load, measure

__version__ = "0.1.0"
__all__ = ["__version__", "check", "derive", "emit_monitor", "load", "measure"]


def __getattr__(name: str) -> Any:
    """Load the public functions at first use, so that `import kcverify` stays light."""
    if name in __all__:
        from kcverify import driver

        return getattr(driver, name)
    raise AttributeError(f"module 'kcverify' has no attribute {name!r}")
