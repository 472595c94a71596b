"""How a diagnostic looks as text."""

from __future__ import annotations

import pytest

from kcverify.diagnostics import Diagnostic, Related, Report, diagnose
from kcverify.elaborate import elaborate
from kcverify.render import WIDTH, render, render_all
from kcverify.source import Source, Span
from kcverify.syntax import parse

BROKEN = """contract x
numerical {
  a: tv <= 0.01 excpt 1% -> L1
  b: kl <= 1e-4 nats -> L1
  c: tv <=
statistical {
  d: agreement(top = 1) >= 99% on -> L1
}
runtme { f: p99 latency <= 0.12 -> L1 }
"""

MEANINGLESS = """contract x
slice long = prompt_tokens >= 8192
pair { reference a = "fp32"; refrence b = "fp8" }
numerical {
  drift: logit_spam <= 0.05 -> L1
  kl_mean: mean kl <= 1e-4 nats -> L1
  ratio: importance_ratio in [1.05, 0.95] except 1% -> L2
  ratio: tv <= 0.01 on lnog -> L2
  bits: mean kl(candidate || reference) <= 1e-4 bits -> L1
  huge: tv <= 1e999999999 -> L1
  odd: tv <= nan -> L1
}
runtime { slow: p99 latency <= 0.12 -> L1; cache: kv_cache <= 40 GB -> L1 }
"""


def _report(text: str) -> list[Diagnostic]:
    report = Report()
    elaborate(parse(Source("x.kc", text), report), report, parameters={})
    return report.diagnostics


@pytest.mark.parametrize("text", [BROKEN, MEANINGLESS], ids=["broken", "meaningless"])
@pytest.mark.parametrize("color", [False, True], ids=["plain", "colour"])
def test_several_errors_in_one_run(text: str, color: bool, golden) -> None:  # type: ignore[no-untyped-def]
    golden(render_all(_report(text), color=color) + "\n")


def _marked(text: str, start: int, end: int) -> tuple[str, str]:
    """The source line and the line of carets, without their margin."""
    lines = render(diagnose("unexpected", Span(Source("x.kc", text), start, end), expected="a", found="b")).split("\n")
    assert lines[0].startswith("x.kc:")
    return tuple(line.partition("|")[2][1:] for line in lines[1:3])  # type: ignore[return-value]


def test_tabs_and_wide_characters_keep_the_carets_in_place() -> None:
    shown, marks = _marked("\tab\tcd", 4, 6)
    assert shown.index("cd") == marks.index("^^")
    shown, marks = _marked('"漢字" xy', 5, 7)
    assert marks == " " * 7 + "^^"
    assert _marked('"漢字" xy', 1, 3)[1] == " ^^^^"
    assert _marked("e\u0301x", 2, 3)[1] == " ^"


def test_a_long_line_is_cut_around_the_carets() -> None:
    text = "a" * 5_000 + "MARK" + "b" * 100_000
    shown, marks = _marked(text, 5_000, 5_004)
    assert len(shown) <= WIDTH + 2
    assert shown[marks.index("^") :][:4] == "MARK"
    assert shown.startswith("…")
    assert shown.endswith("…")


def test_a_span_over_several_lines_is_cut_at_the_first() -> None:
    assert _marked("abc {\n x\n}\n", 0, 10) == ("abc {", "^^^^^")


def test_the_end_of_a_line_and_of_a_file_get_one_caret() -> None:
    assert _marked("abc\n", 3, 4) == ("abc", "   ^")
    assert _marked("abc", 3, 3) == ("abc", "   ^")
    assert _marked("", 0, 0) == ("", "^")


def test_control_and_direction_characters_never_reach_the_terminal() -> None:
    text = 'contract c version "\x1b[31m\u202e"'
    span = Span(Source("a\x1b.kc", text), 19, 27)
    shown = render(diagnose("unexpected", span, expected="\x07", found="\u2066", hint="\x1b[0m"))
    assert not any(character in shown for character in "\x1b\x07\u202e\u2066")


def test_a_diagnostic_without_a_place_has_no_excerpt() -> None:
    text = render(diagnose("unknown_parameter", name="tol"))
    assert text.startswith("error[KC115 unknown_parameter]: ")
    assert "|" not in text


def test_both_places_are_shown() -> None:
    source = Source("x.kc", "one\ntwo\n")
    other = Related(Span(source, 0, 3), "first declared here")
    text = render(diagnose("duplicate", Span(source, 4, 7), related=[other], what="the slice", name="two"))
    assert "x.kc:2:1" in text
    assert "x.kc:1:1: first declared here" in text
