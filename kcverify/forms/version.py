"""The version of the contract language, as the JSON and YAML forms state it."""

from __future__ import annotations

import re

LANGUAGE = "1.0"
"""Version that this kcverify writes: `major.minor`.

A minor version adds forms and may deprecate one: it is still read, and its reading says what replaces it. A form is
removed with the next major version only, never sooner than one minor version after its deprecation. So a reader accepts
every minor version of its own major version up to its own, and refuses what is newer than itself.
"""

SCHEMA = "kcverify.schema.json"
"""Name under which the schema of the forms is published; the modeline of a YAML contract points at it."""

_FORM = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})")


def is_readable(stated: str) -> bool:
    """Whether this kcverify reads a file that states this version."""
    match = _FORM.fullmatch(stated)
    own = _FORM.fullmatch(LANGUAGE)
    assert own is not None
    return match is not None and match[1] == own[1] and int(match[2]) <= int(own[2])
