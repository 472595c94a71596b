"""Prints the syntax tree as the one canonical text, which parses to the same tree; comments stay where they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kcverify.source import Span
from kcverify.syntax import expressions, tree
from kcverify.syntax.columns import Row
from kcverify.syntax.weave import Line, weave

_Lines = Iterator[Line]


@dataclass(frozen=True)
class _Block:
    """A block with its lines: `head {`, rows, `}`."""

    head: str
    span: Span
    rows: tuple[Row, ...]


def pretty(file: tree.File) -> str:
    """Canonical text of a file whose places are not those of a `.kc` text: `use` lines first, no comments."""
    lines = [line for use in file.uses for line in _item(use)]
    lines += [line for contract in file.contracts for line in _contract(contract)]
    return weave(lines, None)


def formatted(file: tree.File) -> str:
    """Canonical text of a file that was parsed from `.kc` text, in the order of that text, with its comments."""
    items: list[tuple[int, list[Line]]] = [(use.span.start, list(_item(use))) for use in file.uses]
    for contract in file.contracts:
        items.append((contract.header.span.start, list(_header(contract.header))))
        items += [(item.span.start, list(_item(item))) for item in contract.items]
    items.sort(key=lambda pair: pair[0])
    return weave([line for _, lines in items for line in lines], file.source)


def _contract(contract: tree.Contract) -> _Lines:
    yield from _header(contract.header)
    for item in contract.items:
        yield from _item(item)


def _header(header: tree.Header) -> _Lines:
    text = f"{'kernel ' if header.kernel else ''}contract {header.name.text}"
    if header.version is not None:
        text += f' version "{header.version.value}"'
    if header.parent is not None:
        text += f" extends {header.parent.text}"
    yield Line(text, header.span, group="header")


def _item(item: tree.Block | tree.Use) -> _Lines:
    """Lines of one top-level item. `group` says which neighbours stand together without an empty line."""
    if isinstance(item, tree.Doc):
        yield Line(f'  "{item.text.value}"', item.span, group="header")
    elif isinstance(item, tree.KernelClass):
        yield Line(f"  class {item.text}", item.span, group="header")
    elif isinstance(item, tree.Use):
        yield Line(f'use "{item.path.value}"', item.span, group="use")
    elif isinstance(item, tree.Slice):
        cells = (f"slice {item.name.text}", f"= {expressions.predicate(item.predicate)}")
        yield Line("", item.span, group="slice", row=Row(item.span, cells))
    elif isinstance(item, tree.Param):
        cells = (f"param {item.name.text}", f"= {expressions.value(item.value)}")
        yield Line("", item.span, group="param", row=Row(item.span, cells))
    elif isinstance(item, tree.Split):
        shares = ", ".join(_option(share) for share in item.shares)
        yield Line(f"split {shares}", item.span, group="split")
    else:
        yield from _block(_block_of(item))


def _block(block: _Block) -> _Lines:
    yield Line(f"{block.head} {{", _opening(block.span), group=None)
    for row in block.rows:
        if isinstance(row.inner, tree.Stage):
            yield from _stage(row)
        else:
            yield Line("", row.span, depth=1, group="row", row=row)
    yield Line("}", Span(block.span.source, block.span.end - 1, block.span.end), closes=True)


def _opening(span: Span) -> Span:
    """The part of a block up to and with its `{`."""
    brace = span.source.text.find("{", span.start, span.end)
    return Span(span.source, span.start, (brace if brace >= 0 else span.start) + 1)


def _stage(row: Row) -> _Lines:
    """A stage on one line; on three where a comment stands inside its braces."""
    stage = row.inner
    assert isinstance(stage, tree.Stage)
    inside = Span(stage.span.source, _opening(stage.span).end, stage.span.end - 1)
    items = _stage_items(stage)
    if "#" not in expressions.without_text(inside.text):
        yield Line("", row.span, depth=1, group="row", row=row)
        return
    yield Line(f"{stage.name.text} {{", _opening(stage.span), depth=1, group="row")
    if items:
        middle = Span(stage.span.source, stage.items[0].span.start, stage.items[-1].span.end)
        yield Line(items, middle, depth=2, group="row")
    yield Line("}", Span(stage.span.source, stage.span.end - 1, stage.span.end), depth=1, closes=True)


def _stage_items(stage: tree.Stage) -> str:
    return ", ".join(
        expressions.amount(item) if isinstance(item, tree.Amount) else _option(item) for item in stage.items
    )


def _option(option: tree.Option) -> str:
    value = option.value
    shown = f'"{value.value}"' if isinstance(value, tree.Text) else expressions.amount(value)
    return f"{option.name.text} {shown}"


def _block_of(item: tree.Block) -> _Block:
    """Head and rows of a block. A node without a row here is a fault of kcverify (KeyError)."""
    head, rows = _BLOCKS[type(item)](item)
    return _Block(head, item.span, tuple(rows))


def _pair(item: tree.Pair) -> tuple[str, list[Row]]:
    rows = [Row(r.span, (r.role.text, r.alias.text, f'= "{r.kernel.value}"')) for r in item.roles]
    return "pair", rows


def _assume(item: tree.Assume) -> tuple[str, list[Row]]:
    return "assume", [Row(node.span, _assumption(node)) for node in item.assumptions]


def _assumption(node: tree.Assumption) -> tuple[str, ...]:
    if node.range is not None:
        return node.name.text, f"in {expressions.range_(node.range)}"
    if node.value is None:
        return (f"independent {node.name.text}",)
    operator = node.operator.text if node.operator is not None else "="
    return node.name.text, f"{operator} {expressions.value(node.value)}"


def _clauses(item: tree.Clauses) -> tuple[str, list[Row]]:
    return item.keyword.text, [Row(node.span, clause_cells(node)) for node in item.clauses]


def clause_cells(node: tree.Clause) -> tuple[str, ...]:
    """A clause as columns: its name, what it asks, its severity."""
    parts = [node.statistic.text] if node.statistic is not None else []
    parts += [expressions.metric(node.metric), expressions.test(node.test)]
    parts += [expressions.modifier(modifier) for modifier in node.modifiers]
    cells = (f"{node.name.text}:", " ".join(parts))
    return cells if node.severity is None else (*cells, f"-> {node.severity.text}")


def _observability(item: tree.Observability) -> tuple[str, list[Row]]:
    rows = []
    for line in item.lines:
        if line.value is not None:
            rows.append(Row(line.span, (line.keyword, f"within {expressions.value(line.value)}")))
        else:
            rows.append(Row(line.span, (line.keyword, ", ".join(name.text for name in line.names))))
    return "observability", rows


def _escalate(item: tree.Escalate) -> tuple[str, list[Row]]:
    rows = []
    for rule in item.rules:
        options = "".join(f", {_option(option)}" for option in rule.options)
        rows.append(Row(rule.span, (f"{rule.severity.text} -> {rule.action.text}{options}",)))
    return "escalate", rows


def _promote(item: tree.Promote) -> tuple[str, list[Row]]:
    rows = []
    for stage in item.stages:
        items = _stage_items(stage)
        rows.append(Row(stage.span, (stage.name.text, f"{{ {items} }}" if items else "{ }"), inner=stage))
    return "promote", rows


def _kernel(item: tree.KernelSection) -> tuple[str, list[Row]]:
    rows = []
    for words in item.items:
        span = Span(words[0].span.source, words[0].span.start, words[-1].span.end)
        rows.append(Row(span, (expressions.words([word.text for word in words]),)))
    return item.keyword.text, rows


_BLOCKS: dict[type, Callable[[Any], tuple[str, list[Row]]]] = {
    tree.Pair: _pair,
    tree.Assume: _assume,
    tree.Clauses: _clauses,
    tree.Observability: _observability,
    tree.Escalate: _escalate,
    tree.Promote: _promote,
    tree.KernelSection: _kernel,
}
