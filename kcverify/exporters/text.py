"""Text of others inside the formats of others: YAML, comments, names of Kubernetes, strings of PromQL and of templates."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

_HALF = re.compile("[\ud800-\udfff]")
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf"})
_LONGEST_NAME = 63


def whole(text: str) -> str:
    """Text that UTF-8 can hold: halves of surrogate pairs are replaced."""
    return _HALF.sub("\ufffd", text)


def printable(text: str) -> str:
    """One line: everything that is no printable character becomes a visible escape."""
    return "".join(c if c.isprintable() else _escape(c) for c in whole(text))


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def comment(lines: Iterable[str]) -> str:
    """Lines as comments of YAML; no character of them can end the line."""
    return "".join(f"# {printable(line)}".rstrip() + "\n" for line in lines)


def expression(text: str) -> LiteralScalarString:
    """An expression over several lines, as a block."""
    return LiteralScalarString(text)


def _quoted(value: Any) -> Any:
    """The same value with every text in quotes that some reader of YAML, 1.1 or 1.2, might take for something else."""
    if isinstance(value, Mapping):
        return {_quoted(str(k)): _quoted(v) for k, v in value.items()}
    if isinstance(value, str):
        if isinstance(value, LiteralScalarString):
            return value
        if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
            return value
        return DoubleQuotedScalarString(whole(value))
    if isinstance(value, Sequence):
        return [_quoted(v) for v in value]
    return value


def yaml_text(documents: Sequence[Mapping[str, Any]], about: Iterable[str] = ()) -> str:
    """YAML of one or several documents, below comments that say what cannot be said in them."""
    writer = YAML()
    writer.default_flow_style = False
    writer.width = 1 << 30
    writer.indent(mapping=2, sequence=4, offset=2)
    parts = []
    for document in documents:
        out = io.StringIO()
        writer.dump(_quoted(document), out)
        parts.append(out.getvalue())
    return comment(about) + "---\n".join(parts)


def slug(*parts: str) -> str:
    """A name as Kubernetes and OpenSLO want it (RFC 1123): at most 63 of `a-z0-9-`.

    Different parts give different names: `_` becomes `-`, parts are joined by `--`, and where more was changed or cut a
    digest of the parts stands at the end.
    """
    joined = "--".join(part.replace("_", "-") for part in parts)
    if all(re.fullmatch(r"[a-z0-9]+(?:_[a-z0-9]+)*", part) for part in parts) and len(joined) <= _LONGEST_NAME:
        return joined
    clean = re.sub(r"[^a-z0-9]+", "-", joined.lower()).strip("-")
    mark = hashlib.sha256("\0".join(map(whole, parts)).encode()).hexdigest()[:10]
    return f"{clean[: _LONGEST_NAME - 11].strip('-') or 'contract'}-{mark}"


def promql(text: str) -> str:
    """A string of PromQL, with its quotes. Its reader takes U+FFFD itself for broken UTF-8, so that is escaped too."""
    escaped = whole(text).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() and c != "\ufffd" else _escape(c) for c in escaped) + '"'


def promql_choice(texts: Sequence[str]) -> str:
    """A string of PromQL that matches exactly these texts where a regular expression is wanted."""
    return promql("|".join(re.sub(r"([^A-Za-z0-9_\u0080-\U0010ffff\n\t ])", r"\\\1", whole(t)) for t in texts))


def untemplated(text: str) -> str:
    """Text that a template of Go prints as it is."""
    return whole(text).replace("{{", '{{"{{"}}')
