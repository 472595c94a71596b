"""What the property tests draw: valid contracts of every metric, broken ones, and trees of every form."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from hypothesis import strategies as st

from kcverify.catalog import metrics, units
from kcverify.catalog.model import Dimension, Direction, Family, Metric, Statistic
from kcverify.exact import decimal_exact

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted(path for folder in ("tests/data", "contracts") for path in (ROOT / folder).rglob("*.kc"))
EXAMPLES = [path.read_text(encoding="utf-8") for path in SHIPPED]
PIECES = [
    *"{}()[]<>=+-*/^%?:;,|#\"\n\t \\&\x00é漢\ufeff", "->", "<=", "||", "in", "on", "except", "nan", "1e999",
    "contract x\n", "numerical {", "guarantee {", "kl", "L1", "p99 ", "2^", "not ", "\r\n", "slice s = ", "? ",
]  # fmt: skip


def mutated() -> st.SearchStrategy[str]:
    """A shipped contract with bytes or pieces deleted, inserted, replaced, repeated or moved."""
    return mutated_bytes(EXAMPLES)


@st.composite
def mutated_bytes(draw: st.DrawFn, texts: list[str]) -> str:
    """One of the texts with bytes or pieces deleted, inserted, replaced, repeated or moved."""
    data = bytearray(draw(st.sampled_from(texts)).encode())
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(data)))
        size = draw(st.sampled_from([1, 1, 1, 2, 5, 40]))
        kind = draw(st.sampled_from(["delete", "byte", "piece", "repeat", "move", "cut"]))
        if kind == "delete":
            del data[at : at + size]
        elif kind == "byte":
            data[at : at + 1] = bytes([draw(st.integers(0, 255))])
        elif kind == "piece":
            data[at:at] = draw(st.sampled_from(PIECES)).encode()
        elif kind == "repeat":
            data[at:at] = data[at : at + size] * draw(st.integers(1, 20))
        elif kind == "move":
            part = data[at : at + size]
            del data[at : at + size]
            to = draw(st.integers(0, len(data)))
            data[to:to] = part
        else:
            del data[at:]
    return data.decode("utf-8", errors="replace")


NUMBERS = st.fractions(min_value=0, max_value=1, max_denominator=1000).map(lambda x: x or Fraction(1, 1000))


@st.composite
def written(draw: st.DrawFn, value: Fraction, dimension: Dimension) -> str:
    """One of the ways to write a number of canonical units."""
    rows = [row for row in units.of_dimension(dimension) if row.exact]
    if dimension in units.UNIT_OPTIONAL:
        rows = []
    if dimension is Dimension.NONE:
        rows = [*rows, units.Unit("", Dimension.NONE, Fraction(1), Fraction(1), "")]
    row = draw(st.sampled_from(rows)) if rows else units.Unit("", dimension, Fraction(1), Fraction(1), "")
    number = value / row.low
    text = draw(st.sampled_from([decimal_exact(number), f"{number.numerator} / {number.denominator}"]))
    return f"({text}) {row.name}" if draw(st.booleans()) else f"{text} {row.name}"


@st.composite
def clauses(draw: st.DrawFn, block: str, name: str) -> tuple[str, Metric, Fraction]:
    """A valid clause of a block: its text, its metric and its threshold in canonical units."""
    families = (Family.NUMERICAL, Family.STATISTICAL, Family.CLAIM) if block == "guarantee" else (Family(block),)
    row = draw(st.sampled_from([row for row in metrics.ROWS if row.family in families]))
    low, high = row.range
    bottom = low or Fraction(0)
    value = bottom + draw(NUMBERS) * ((high - bottom) if high is not None else 100)
    if row.direction is Direction.WITHIN:
        test = f"in [{draw(written(value, row.dimension))}, {draw(written(value + 1, row.dimension))}]"
    else:
        test = f"{row.direction.value} {draw(written(value, row.dimension))}"
    allowed = [item.value for item in metrics.statistics_of(row) if item is not Statistic.READING]
    statistic = draw(st.sampled_from(allowed if row.statistic is None else ["", *allowed]))
    argument = "(bins = own)" if row.name == "ece_drift" else ""
    parts = [f"{name}:", statistic, row.name + argument, test]
    chosen = statistic or (row.statistic.value if row.statistic else "")
    if chosen == Statistic.MAX.value and draw(st.booleans()):
        parts.append(f"except {draw(st.integers(0, 99))}.5%")
    if block != "guarantee":
        parts += draw(st.lists(st.sampled_from(["at confidence 99%", "over 10 minutes", "on s"]), unique=True))
        parts.append(f"-> L{draw(st.integers(1, 3))}")
    space = draw(st.sampled_from([" ", "  ", " \t"]))
    return space.join(part for part in parts if part), row, value


@st.composite
def contracts_of(draw: st.DrawFn) -> tuple[str, list[tuple[Metric, Fraction]]]:
    """A valid contract, and what its clauses must mean."""
    blocks, meant = [], []
    names = iter(f"c{number}" for number in range(100))
    for block in draw(st.permutations(["numerical", "statistical", "runtime", "guarantee"])):
        lines = []
        for _ in range(draw(st.integers(0, 3))):
            text, row, value = draw(clauses(block, next(names)))
            lines.append(text)
            meant.append((row, value))
        separator = draw(st.sampled_from(["\n", " ; ", " # note\n", "\n\n  "]))
        blocks.append(f"{block} {{ {separator.join(lines)}\n}}")
    blocks.insert(draw(st.integers(0, 4)), 'slice s = prompt_tokens >= 10 and not tag("x")')
    return "contract c\n" + "\n".join(blocks), meant
