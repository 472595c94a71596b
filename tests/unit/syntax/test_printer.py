"""The printer: one layout, the same tree, comments where they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcverify.diagnostics import Report
from kcverify.source import Source
from kcverify.syntax import comments, parse, tree
from kcverify.syntax.printer import formatted, pretty

DATA = Path(__file__).resolve().parents[2] / "data"
EXAMPLES = sorted(DATA.glob("*.kc"))


def _parse(text: str) -> tree.File:
    report = Report()
    file = parse(Source("x.kc", text), report)
    assert report.diagnostics == []
    return file


def _comments(text: str) -> list[str]:
    return [span.text.rstrip() for span in comments(Source("x.kc", text))]


def _format(text: str) -> str:
    """The formatted text, after the checks that hold for every text."""
    before = _parse(text)
    after = formatted(before)
    assert _parse(after) == before
    assert formatted(_parse(after)) == after
    assert _parse(pretty(before)) == before
    assert _comments(after) == _comments(text)
    assert not any(line != line.rstrip() for line in after.split("\n"))
    assert "\n\n\n" not in after
    return after


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples(path: Path, golden) -> None:  # type: ignore[no-untyped-def]
    golden(_format(path.read_text(encoding="utf-8")))


def _clause(line: str) -> str:
    text = _format(f"contract c\nnumerical {{ {line} }}\n")
    return text.split("\n")[3].strip()


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("a:tv<=0.01->L1", "a: tv <= 0.01 -> L1"),
        ("a: tv <= ((1)) -> L1", "a: tv <= 1 -> L1"),
        ("a: tv <= (1+2)*3 -> L1", "a: tv <= (1 + 2) * 3 -> L1"),
        ("a: tv <= 1+(2*3) -> L1", "a: tv <= 1 + 2 * 3 -> L1"),
        ("a: tv <= 1-(2-3) -> L1", "a: tv <= 1 - (2 - 3) -> L1"),
        ("a: tv <= (1/3) % -> L1", "a: tv <= 1 / 3% -> L1"),
        ("a: tv <= -(2)^-(8) -> L1", "a: tv <= -2^-8 -> L1"),
        ("a: tv <= (-2)^8 -> L1", "a: tv <= (-2)^8 -> L1"),
        ("a: tv <= 2 * -x -> L1", "a: tv <= 2 * -x -> L1"),
        ("a: tv <= -(-1) -> L1", "a: tv <= -(-1) -> L1"),
        ("a: p99.5  kl( a||b )<=1e-4 nats  unit token -> L1", "a: p99.5 kl(a || b) <= 1e-4 nats unit token -> L1"),
        ("a: tv in [0 s,1 s) ms -> L1", "a: tv in [0 s, 1 s) ms -> L1"),
        ("a: x() <= ? nats on s,t when T in (0.6,1] -> L1", "a: x <= ? nats on s, t when T in (0.6, 1] -> L1"),
        ("a: b(top=5,c=d)>=99%at confidence 99%over 2h", "a: b(top = 5, c = d) >= 99% at confidence 99% over 2 h"),
    ],
)  # fmt: skip
def test_one_spelling(line: str, printed: str) -> None:
    assert _clause(line) == printed


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("(a>1)and(b>1)", "a > 1 and b > 1"),
        ("a>1 and(b>1 or c>1)", "a > 1 and (b > 1 or c > 1)"),
        ("(a>1 and b>1)or c>1", "a > 1 and b > 1 or c > 1"),
        ("a>1 or (b>1 or c>1)", "a > 1 or (b > 1 or c > 1)"),
        ("not(not a in[1,2))", "not (not a in [1, 2))"),
        ('not(tag("x"))', 'not tag("x")'),
        ('a=="#" and not(b!="" or c>1 tokens)', 'a == "#" and not (b != "" or c > 1 tokens)'),
    ],
)
def test_predicates(text: str, printed: str) -> None:
    assert _format(f"contract c\nslice s = {text}\n") == f"contract c\n\nslice s = {printed}\n"


COMMENTED = """# before everything


contract c # after the header
# about the doc
  "doc" # after the doc
# about the slice

slice s = a > 1 # one
slice long_name = b > 1 ; slice t = c > 1 # two


# about the block
numerical { # opening

  # about a
  a: tv <= 0.01 -> L1; long_name: tv <= 0.011 -> L1 # both


  # about b
  b: tv <= 0.02 -> L1 # b
  # last
} # closing
promote { offline { # in
 # above the items
 data "x", min 5 requests # behind
 # below
} # out
canary { traffic 1%, 5% } }
# at the end
# of the file"""


def test_comments_stay_where_they_were(golden) -> None:  # type: ignore[no-untyped-def]
    golden(_format(COMMENTED))


def test_several_comments_of_one_line_stand_above_it() -> None:
    text = _format("contract c\npair { # a\n} # b\n")
    assert text == "contract c\n\npair {  # a\n}  # b\n"


def test_a_block_between_comments_keeps_its_empty_line() -> None:
    assert _format("contract c\npair { }\n# x\nassume { }\n") == "contract c\n\npair {\n}\n\n# x\nassume {\n}\n"
    assert _format("contract c\npair { }\n# x\n\nassume { }\n") == "contract c\n\npair {\n}\n# x\n\nassume {\n}\n"


def test_windows_lines_and_a_byte_order_mark() -> None:
    text = _format("\ufeffcontract c\r\nnumerical {\r\n  a: tv <= 0.01 -> L1 # x\r\n}\r\n")
    assert text == "contract c\n\nnumerical {\n  a: tv <= 0.01 -> L1  # x\n}\n"


def test_uses_stay_above_or_between() -> None:
    assert _format('use "a.kc"\nuse "b.kc"\ncontract c\n') == 'use "a.kc"\nuse "b.kc"\n\ncontract c\n'
    assert _format('contract c\nuse "a.kc"\nslice s = a > 1\n').split("\n")[2] == 'use "a.kc"'


def test_a_long_line_does_not_push_the_others() -> None:
    long = " + ".join(["0.001"] * 20)
    text = _format(f"contract c\nnumerical {{ a: tv <= {long} -> L1; b: tv <= 0.1 -> L2 }}")
    assert "  b: tv <= 0.1 -> L2\n" in text
