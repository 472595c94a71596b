"""From the syntax tree to plain data, and that data as JSON or YAML text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from kcverify.forms.version import LANGUAGE
from kcverify.syntax import expressions, tree

Data = dict[str, Any]

QUOTED = frozenset({"language", "version", "description", "kernel", "data", "use", "$schema"})
"""Keys whose values are texts and never numbers, so that YAML shows them in quotes."""

_AT = {"<=": "at_most", ">=": "at_least"}
_MODIFIERS = {"except": "except", "at": "confidence", "over": "over"}


def data(file: tree.File) -> Data:
    """The file as plain data; each number is text in the language's own words. For a tree without faults."""
    out: Data = {"language": LANGUAGE}
    if file.uses:
        out["use"] = [use.path.value for use in file.uses]
    out["contracts"] = [_contract(contract) for contract in file.contracts]
    return out


def _contract(contract: tree.Contract) -> Data:
    header = contract.header
    out: Data = {"kind": "kernel" if header.kernel else "pair", "name": header.name.text}
    if header.version is not None:
        out["version"] = header.version.value
    if header.parent is not None:
        out["extends"] = header.parent.text
    for item in contract.items:
        for key, value in _PARTS[type(item)](item):
            if isinstance(value, dict) and key in out:
                out[key].update(value)
            else:
                out[key] = value
    return out


_Part = Iterator[tuple[str, Any]]


def _pair(item: tree.Pair) -> _Part:
    yield "pair", {r.role.text: {"name": r.alias.text, "kernel": r.kernel.value} for r in item.roles}


def _range(node: tree.Range) -> Any:
    """A closed range as a list of two, every other one as text."""
    if node.open_low or node.open_high or node.unit is not None:
        return expressions.range_(node)
    return [expressions.value(node.low), expressions.value(node.high)]


def _assume(item: tree.Assume) -> _Part:
    out: Data = {}
    for node in item.assumptions:
        if node.range is not None:
            out[node.name.text] = _range(node.range)
        elif node.value is None:
            out.setdefault("independent", []).append(node.name.text)
        elif node.operator is None:
            out[node.name.text] = expressions.value(node.value)
        else:
            out[node.name.text] = {_AT[node.operator.text]: expressions.value(node.value)}
    yield "assume", out


def clause(node: tree.Clause) -> Data:
    """A clause as one mapping."""
    out: Data = {"metric": expressions.metric(node.metric)}
    if node.statistic is not None:
        out["statistic"] = node.statistic.text
    if isinstance(node.test, tree.Range):
        out["in"] = _range(node.test)
    else:
        out[_AT[node.test.operator.text]] = expressions.value_or_hole(node.test.value)
    for modifier in node.modifiers:
        names = [name.text for name in modifier.names]
        if modifier.value is not None:
            out[_MODIFIERS[modifier.keyword]] = expressions.value_or_hole(modifier.value)
        elif modifier.range is not None:
            out["when"] = {names[0]: _range(modifier.range)}
        elif modifier.keyword == "on":
            out["slices"] = names
        else:
            out["unit"] = names[0]
    if node.severity is not None:
        out["severity"] = node.severity.text
    return out


def _clauses(item: tree.Clauses) -> _Part:
    yield item.keyword.text, {node.name.text: clause(node) for node in item.clauses}


def _options(items: tuple[tree.Option | tree.Amount, ...]) -> Data:
    """Options by name; an amount without a name continues the list of the option before it."""
    out: Data = {}
    last = ""
    for item in items:
        if isinstance(item, tree.Amount):
            before = out[last]
            out[last] = [*(before if isinstance(before, list) else [before]), expressions.amount(item)]
        else:
            last = item.name.text
            value = item.value
            out[last] = value.value if isinstance(value, tree.Text) else expressions.amount(value)
    return out


def _observability(item: tree.Observability) -> _Part:
    out: Data = {}
    for line in item.lines:
        out[line.keyword] = expressions.value(line.value) if line.value is not None else [n.text for n in line.names]
    yield "observability", out


def _escalate(item: tree.Escalate) -> _Part:
    yield "escalate", {r.severity.text: {"action": r.action.text, **_options(r.options)} for r in item.rules}


def _promote(item: tree.Promote) -> _Part:
    yield "promote", {stage.name.text: _options(stage.items) for stage in item.stages}


def _section(item: tree.KernelSection) -> _Part:
    yield item.keyword.text, [expressions.words([word.text for word in words]) for words in item.items]


def _one(key: str, value: Callable[[Any], Any]) -> Callable[[Any], _Part]:
    def part(item: Any) -> _Part:
        yield key, value(item)

    return part


_PARTS: dict[type, Callable[[Any], _Part]] = {
    tree.Doc: _one("description", lambda item: item.text.value),
    tree.KernelClass: _one("class", lambda item: item.text),
    tree.Param: _one("params", lambda item: {item.name.text: expressions.value(item.value)}),
    tree.Slice: _one("slices", lambda item: {item.name.text: expressions.predicate(item.predicate)}),
    tree.Split: _one("split", lambda item: _options(item.shares)),
    tree.Pair: _pair,
    tree.Assume: _assume,
    tree.Clauses: _clauses,
    tree.Observability: _observability,
    tree.Escalate: _escalate,
    tree.Promote: _promote,
    tree.KernelSection: _section,
}


def json_text(value: Data) -> str:
    """The data as JSON with a line end."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def yaml_text(value: Data, schema: str = "") -> str:
    """The data as YAML, its first line the modeline that tells an editor the schema."""
    head = f"# yaml-language-server: $schema={schema}\n" if schema else ""
    return head + "\n".join(_yaml(value, 0, quoted=False)) + "\n"


_PLAIN = re.compile(r"(?:-(?=[0-9]))?[A-Za-z0-9_](?:[A-Za-z0-9_.%/+*^<>=()|-]| (?! ))*(?<! )")
_NOT_PLAIN = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


def _plain(text: str, quoted: bool) -> str:
    """A value as YAML writes it: bare where no reader of YAML can take it for something else."""
    if not quoted and _PLAIN.fullmatch(text) and text.lower() not in _NOT_PLAIN:
        return text
    if '"' in text and "'" not in text and text.isprintable():
        return f"'{text}'"
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in json.dumps(text, ensure_ascii=False))


def _yaml(value: Any, depth: int, *, quoted: bool) -> Iterator[str]:
    """Lines of a mapping, or of a list of mappings; lists of values stand on one line."""
    indent = "  " * depth
    if isinstance(value, list):
        for item in value:
            first, *rest = _yaml(item, depth + 1, quoted=quoted)
            yield f"{indent}- {first.lstrip()}"
            yield from rest
        return
    for key, part in value.items():
        name = f"{indent}{_plain(key, quoted=False)}:"
        inner = key in QUOTED
        if isinstance(part, str):
            yield f"{name} {_plain(part, inner)}"
        elif isinstance(part, list) and not any(isinstance(item, dict) for item in part):
            long = sum(len(item) for item in part) > 70
            if long:
                yield name
                yield from (f"{indent}  - {_plain(item, inner)}" for item in part)
            else:
                yield f"{name} [{', '.join(_flow(item, inner) for item in part)}]"
        elif part:
            yield name
            yield from _yaml(part, depth + 1, quoted=inner)
        else:
            yield f"{name} {{}}"


def _flow(text: str, quoted: bool) -> str:
    """A value inside `[a, b]`."""
    return _plain(text, quoted or "," in text or "[" in text)
