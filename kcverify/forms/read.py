"""From a contract file of any form to its syntax tree."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from kcverify.diagnostics import Report
from kcverify.forms import clauses, items
from kcverify.forms.deprecated import ROWS as DEPRECATED
from kcverify.forms.deprecated import Spelling, renewed
from kcverify.forms.items import Entry, Item, Mapping, RefusedError
from kcverify.forms.json_text import read_json
from kcverify.forms.reading import Reader
from kcverify.forms.version import LANGUAGE, is_readable
from kcverify.forms.yaml_text import read_yaml
from kcverify.source import Source, Span
from kcverify.syntax import tree
from kcverify.syntax.parser import parse
from kcverify.syntax.scan import lone_return

FORMS = ("kc", "yaml", "json")

_SUFFIXES = {".kc": "kc", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}
_YAML_START = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\r?\n)*(?:---|language[ \t]*:|contracts[ \t]*:)")

FAMILIES = ("numerical", "statistical", "runtime", "guarantee")
SECTIONS = ("scope", "requires", "ensures", "tolerance", "oracle", "measure", "violation")
"""Parts of a kernel contract below its header."""

PAIR_KEYS = (
    "kind", "name", "version", "extends", "description", "params", "pair", "assume", "slices", *FAMILIES,
    "split", "observability", "escalate", "promote",
)  # fmt: skip
KERNEL_KEYS = ("kind", "name", "version", "description", "class", *SECTIONS)


def form_of(source: Source) -> str:
    """`kc`, `yaml` or `json`: by the file's suffix, without a known one by how its text starts."""
    for suffix, form in _SUFFIXES.items():
        if source.name.endswith(suffix) and form != "kc":
            return form
    if source.text.lstrip()[:1] == "{":
        return "json"
    return "yaml" if _YAML_START.match(source.text) else "kc"


def read(source: Source, report: Report, spellings: Iterable[Spelling] = DEPRECATED) -> tree.File:
    """The syntax tree of a file of any form; what is broken in it is in `report` and not in the tree.

    Deprecated words are replaced, each with a warning. Never raises for any text.
    """
    return renewed(_read(source, report), report, spellings)


def _read(source: Source, report: Report) -> tree.File:
    form = form_of(source)
    if form == "kc":
        return parse(source, report)
    if len(source.text) > items.CHARACTERS:
        report.add("file_too_large", Span(source, 0, 0), size=len(source.text), limit=items.CHARACTERS)
        return tree.File(source)
    if (lone := lone_return(source.text)) is not None:
        report.add("lone_return", Span(source, lone, lone + 1))
        return tree.File(source)
    try:
        return _file(Reader(report), (read_yaml if form == "yaml" else read_json)(source, report), source)
    except RefusedError:
        return tree.File(source)


def _file(reader: Reader, root: Item, source: Source) -> tree.File:
    given = reader.mapping(root, "the file", ("$schema", "language", "use", "contracts"))
    stated = reader.scalar(reader.need(given, "language", "the file"), "`language`")
    if not is_readable(stated.text):
        raise reader.refuse("form_language", stated, found=stated.text[:20], known=LANGUAGE)
    used = given.get("use")
    paths = reader.listing(used, "`use`") if used is not None else ()
    uses = tuple(tree.Use(path.span, reader.quoted(path, "`use`")) for path in paths)
    found = []
    for item in reader.listing(reader.need(given, "contracts", "the file"), "`contracts`"):
        try:
            found.append(_contract(reader, item))
        except RefusedError:
            continue
    if not found and not reader.report.errors:
        reader.report.add("no_contract", given.span)
    return tree.File(source, uses, tuple(found))


def _contract(reader: Reader, item: Item) -> tree.Contract:
    given = reader.mapping(item, "a contract")
    kind = given.get("kind")
    word = reader.scalar(kind, "`kind`").text if kind is not None else "pair"
    if word not in ("pair", "kernel"):
        assert kind is not None
        raise reader.wrong(kind, "`kind`", "`pair` or `kernel`")
    reader.mapping(item, "a contract", KERNEL_KEYS if word == "kernel" else PAIR_KEYS)
    header = _header(reader, given, word == "kernel")
    blocks: list[tree.Block] = []
    for entry in given.entries:
        part = _PARTS.get(entry.key.text)
        if part is not None:
            try:
                blocks += part(reader, entry)
            except RefusedError:
                continue
    return tree.Contract(given.span, header, tuple(blocks))


def _header(reader: Reader, given: Mapping, kernel: bool) -> tree.Header:
    name = reader.name(reader.need(given, "name", "a contract"), "`name`")
    version, parent = given.get("version"), given.get("extends")
    return tree.Header(
        name.span,
        name,
        reader.quoted(version, "`version`") if version is not None else None,
        reader.name(parent, "`extends`") if parent is not None else None,
        kernel,
    )


def _lines(reader: Reader, entry: Entry, line: Callable[[tree.Name, Entry], tree.Block]) -> list[tree.Block]:
    """One node per entry; those with a fault are reported and left out."""
    found = []
    for name, part in reader.entries(entry.value, f"`{entry.key.text}`"):
        try:
            found.append(line(name, part))
        except RefusedError:
            continue
    return found


def _description(reader: Reader, entry: Entry) -> list[tree.Block]:
    return [tree.Doc(entry.span, reader.quoted(entry.value, "`description`"))]


def _params(reader: Reader, entry: Entry) -> list[tree.Block]:
    return _lines(reader, entry, lambda name, e: tree.Param(e.span, name, reader.value(e.value, f"`{name.text}`")))


def _slices(reader: Reader, entry: Entry) -> list[tree.Block]:
    def line(name: tree.Name, part: Entry) -> tree.Block:
        return tree.Slice(part.span, name, reader.fragment("predicate_text", part.value, f"`slices.{name.text}`"))

    return _lines(reader, entry, line)


def _pair(reader: Reader, entry: Entry) -> list[tree.Block]:
    roles = []
    for role, part in reader.entries(entry.value, "`pair`"):
        what = f"`pair.{role.text}`"
        given = reader.mapping(part.value, what, ("name", "kernel"))
        alias = reader.name(reader.need(given, "name", what), f"{what} name")
        kernel = reader.quoted(reader.need(given, "kernel", what), f"{what} kernel")
        roles.append(tree.Role(part.span, role, alias, kernel))
    return [tree.Pair(entry.span, tuple(roles))]


def _assume(reader: Reader, entry: Entry) -> list[tree.Block]:
    found = []
    for name, part in reader.entries(entry.value, "`assume`"):
        try:
            found += _assumptions(reader, name, part)
        except RefusedError:
            continue
    return [tree.Assume(entry.span, tuple(found))]


def _assumptions(reader: Reader, name: tree.Name, part: Entry) -> list[tree.Assumption]:
    """`independent` lists names; else a list is a range, one value is `=`, and a mapping says which."""
    what = f"`assume.{name.text}`"
    if name.text == "independent":
        return [tree.Assumption(word.span, word) for word in reader.names(part.value, what)]
    if isinstance(part.value, items.Listing):
        return [tree.Assumption(part.span, name, None, None, reader.range(part.value, what))]
    if isinstance(part.value, items.Scalar):
        return [tree.Assumption(part.span, name, None, reader.value(part.value, what))]
    given = reader.mapping(part.value, what, ("at_most", "in"))
    if len(given.entries) != 1:
        raise reader.refuse("form_type", given, what=what, wanted="`at_most` or `in`", found=str(len(given.entries)))
    entry = given.entries[0]
    if entry.key.text == "in":
        return [tree.Assumption(part.span, name, None, None, reader.range(entry.value, what))]
    operator = tree.Name(entry.key.span, "<=")
    return [tree.Assumption(part.span, name, operator, reader.value(entry.value, what))]


def _family(reader: Reader, entry: Entry) -> list[tree.Block]:
    keyword = tree.Name(entry.key.span, entry.key.text)
    found = []
    for name, part in reader.entries(entry.value, f"`{keyword.text}`"):
        try:
            found.append(clauses.clause(reader, name, part, keyword.text))
        except RefusedError:
            continue
    return [tree.Clauses(entry.span, keyword, tuple(found))]


def _option(reader: Reader, name: tree.Name, part: Entry, what: str) -> list[tree.Option | tree.Amount]:
    """One option; a list gives the amounts that follow the first, `data` is a text."""
    where = f"{what} {name.text}"
    if name.text == "data":
        return [tree.Option(part.span, name, reader.quoted(part.value, where))]
    values = [reader.fragment("amount_text", value, where) for value in reader.listing(part.value, where)]
    if not values:
        raise reader.wrong(part.value, where, "at least one value")
    return [tree.Option(part.span, name, values[0]), *values[1:]]


def _split(reader: Reader, entry: Entry) -> list[tree.Block]:
    shares = []
    for name, part in reader.entries(entry.value, "`split`"):
        shares.append(tree.Option(part.span, name, reader.fragment("amount_text", part.value, f"`split.{name.text}`")))
    return [tree.Split(entry.span, tuple(shares))]


def _observability(reader: Reader, entry: Entry) -> list[tree.Block]:
    given = reader.mapping(entry.value, "`observability`", ("trace", "fingerprint", "replay"))
    lines = []
    for part in given.entries:
        key, what = part.key.text, f"`observability.{part.key.text}`"
        if key == "replay":
            lines.append(tree.Recorded(part.span, key, (), reader.value(part.value, what)))
        else:
            lines.append(tree.Recorded(part.span, key, reader.names(part.value, what)))
    return [tree.Observability(entry.span, tuple(lines))]


def _escalate(reader: Reader, entry: Entry) -> list[tree.Block]:
    rules = []
    for severity, part in reader.entries(entry.value, "`escalate`"):
        what = f"`escalate.{severity.text}`"
        given = reader.mapping(part.value, what)
        action = reader.name(reader.need(given, "action", what), f"{what} action")
        options = [
            o
            for name, e in reader.entries(given, what)
            if name.text != "action"
            for o in _option(reader, name, e, what)
        ]
        rules.append(tree.Rule(part.span, severity, action, tuple(o for o in options if isinstance(o, tree.Option))))
    return [tree.Escalate(entry.span, tuple(rules))]


def _promote(reader: Reader, entry: Entry) -> list[tree.Block]:
    stages = []
    for name, part in reader.entries(entry.value, "`promote`"):
        what = f"`promote.{name.text}`"
        found = [o for key, e in reader.entries(part.value, what) for o in _option(reader, key, e, what)]
        stages.append(tree.Stage(part.span, name, tuple(found)))
    return [tree.Promote(entry.span, tuple(stages))]


def _class(reader: Reader, entry: Entry) -> list[tree.Block]:
    scalar = reader.scalar(entry.value, "`class`")
    if re.fullmatch(r"C-[A-Z]{3}-[0-9]{2}", scalar.text) is None:
        raise reader.wrong(scalar, "`class`", "a class such as C-PRC-01")
    return [tree.KernelClass(entry.span, scalar.text)]


def _section(reader: Reader, entry: Entry) -> list[tree.Block]:
    what = f"`{entry.key.text}`"
    lines = tuple(reader.fragment("kernel_text", item, what) for item in reader.listing(entry.value, what))
    return [tree.KernelSection(entry.span, tree.Name(entry.key.span, entry.key.text), lines)]


_PARTS: dict[str, Callable[[Reader, Entry], list[tree.Block]]] = {
    "description": _description, "params": _params, "pair": _pair, "assume": _assume, "slices": _slices,
    **dict.fromkeys(FAMILIES, _family), "split": _split, "observability": _observability, "escalate": _escalate,
    "promote": _promote, "class": _class, **dict.fromkeys(SECTIONS, _section),
}  # fmt: skip
"""What reads each key of a contract; keys of the header have no row."""
