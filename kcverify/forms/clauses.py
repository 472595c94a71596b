"""A clause or a claim: one mapping in YAML and JSON."""

from __future__ import annotations

from kcverify.forms.items import Entry, Mapping
from kcverify.forms.reading import Reader
from kcverify.syntax import tree

KEYS = (
    "metric", "statistic", "at_most", "at_least", "in", "except", "slices", "confidence", "over", "unit", "when",
    "severity",
)  # fmt: skip
"""Keys of a clause, in the order in which they are written."""

_OPERATORS = {"at_most": "<=", "at_least": ">="}


def clause(reader: Reader, name: tree.Name, entry: Entry, block: str) -> tree.Clause:
    """The clause of one entry of a block. Raises RefusedError."""
    what = f"`{block}.{name.text}`"
    given = reader.mapping(entry.value, what, KEYS)
    metric = reader.fragment("metric_text", reader.need(given, "metric", what), f"{what} metric")
    statistic = given.get("statistic")
    severity = given.get("severity")
    return tree.Clause(
        entry.span,
        name,
        _statistic(reader, given, what) if statistic is not None else None,
        metric,
        _test(reader, given, what),
        _modifiers(reader, given, what),
        reader.name(severity, f"{what} severity") if severity is not None else None,
    )


def _statistic(reader: Reader, given: Mapping, what: str) -> tree.Name:
    """A name, or a quantile such as `p99.9`."""
    scalar = reader.scalar(reader.need(given, "statistic", what), f"{what} statistic")
    if not scalar.text.replace(".", "", 1).replace("_", "").isalnum() or not scalar.text.isascii():
        raise reader.wrong(scalar, f"{what} statistic", "a statistic such as `mean` or `p99`")
    return tree.Name(scalar.span, scalar.text)


def _test(reader: Reader, given: Mapping, what: str) -> tree.Compared | tree.Range:
    found = [entry for entry in given.entries if entry.key.text in ("at_most", "at_least", "in")]
    if len(found) != 1:
        keys = "`at_most`, `at_least` and `in`"
        raise reader.refuse(
            "form_type", given, what=what, wanted=f"a mapping with one of {keys}", found=str(len(found))
        )
    entry = found[0]
    if entry.key.text == "in":
        return reader.range(entry.value, f"{what} in")
    operator = tree.Name(entry.key.span, _OPERATORS[entry.key.text])
    value = reader.fragment("test_text", entry.value, f"{what} {entry.key.text}")
    return tree.Compared(entry.span, operator, value)


def _modifiers(reader: Reader, given: Mapping, what: str) -> tuple[tree.Modifier, ...]:
    found = []
    for entry in given.entries:
        key = entry.key.text
        where = f"{what} {key}"
        if key == "except":
            found.append(tree.Modifier(entry.span, "except", reader.fragment("test_text", entry.value, where)))
        elif key in ("confidence", "over"):
            keyword = "at" if key == "confidence" else key
            found.append(tree.Modifier(entry.span, keyword, reader.value(entry.value, where)))
        elif key in ("slices", "unit"):
            names = reader.names(entry.value, where)
            found.append(tree.Modifier(entry.span, "on" if key == "slices" else key, None, names))
        elif key == "when":
            found += [
                tree.Modifier(entry.span, "when", None, (parameter,), reader.range(band.value, where))
                for parameter, band in reader.entries(entry.value, where)
            ]
    return tuple(found)
