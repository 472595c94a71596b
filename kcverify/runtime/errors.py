"""The error that a monitor raises when what it was given cannot be compared."""

from __future__ import annotations


class MonitorInputError(ValueError):
    """Input that a monitor cannot measure.

    `slug` names a row of the diagnostic table of input faults and `holes` fills the named holes of its message, so
    that a caller may turn the error into a diagnostic without reading its text.
    """

    def __init__(self, slug: str, message: str, **holes: object) -> None:
        super().__init__(message)
        self.slug = slug
        self.holes: dict[str, object] = holes


def shape_error(what: str, shape: object, expected: str) -> MonitorInputError:
    """`shape_invalid` for the argument `what`."""
    return MonitorInputError(
        "shape_invalid", f"{what} has shape {shape}, expected {expected}", what=what, shape=shape, expected=expected
    )


def option_error(option: str, reason: str) -> MonitorInputError:
    """`option_invalid` for the argument `option`."""
    return MonitorInputError("option_invalid", f"{option}: {reason}", option=option, reason=reason)
