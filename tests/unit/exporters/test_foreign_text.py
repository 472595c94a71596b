"""Words of others inside YAML, comments, PromQL, templates and names: nothing breaks out, nothing is changed on the way."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
import yaml
from exporter_cases import HOSTILE
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from kcverify.exporters import text

WORDS = st.one_of(
    st.text(max_size=40), st.sampled_from(HOSTILE), st.text("{}\"'\\\n#: -|>*&!%@`,[]?\x00\u2028", max_size=12)
)
VALUES = st.recursive(
    st.one_of(WORDS, st.integers(), st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=3)),
    max_leaves=8,
)
_LINE = re.compile(r"\r\n|[\n\r\x85\u2028\u2029]")


def _whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {text.whole(k): _whole(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_whole(v) for v in value]
    return text.whole(value) if isinstance(value, str) else value


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(WORDS, VALUES, min_size=1, max_size=3), st.lists(WORDS, max_size=3))
@example({"on": "yes", "a": "0o7", "b": "1:30", "c": "2020-01-01", "d": "=", "e": "~", "f": "0x1F"}, [])
def test_two_readers_of_yaml_get_what_was_written(value: dict[str, Any], about: list[str]) -> None:
    """PyYAML reads YAML 1.1, as the readers of Go do, ruamel 1.2."""
    out = text.yaml_text([value, {"second": value}], about)
    wanted = _whole(value)
    assert list(yaml.safe_load_all(out)) == [wanted, {"second": wanted}]
    assert list(YAML(typ="safe", pure=True).load_all(io.StringIO(out))) == [wanted, {"second": wanted}]
    out.encode()


@given(st.lists(WORDS, max_size=4))
def test_a_comment_is_one_line(lines: list[str]) -> None:
    out = text.comment(lines)
    assert len(_LINE.split(out)) == len(lines) + 1
    assert all(line.startswith("#") for line in out.splitlines())
    assert yaml.safe_load(out + "a: 1") == {"a": 1}


_GO = re.compile(r'\\(?:u([0-9a-f]{4})|U([0-9a-f]{8})|(["\\]))')


@given(WORDS)
def test_a_string_of_promql_is_that_string(word: str) -> None:
    quoted = text.promql(word)
    assert quoted.isprintable() and quoted[0] == quoted[-1] == '"'
    inner = quoted[1:-1]
    assert '"' not in _GO.sub("", inner) and "\\" not in _GO.sub("", inner)
    read = _GO.sub(lambda m: m[3] or chr(int(m[1] or m[2], 16)), inner)
    assert read == text.whole(word)


@given(st.lists(WORDS.map(text.whole), min_size=1, max_size=3), WORDS.map(text.whole))
def test_a_choice_matches_its_words_alone(words: list[str], other: str) -> None:
    quoted = text.promql_choice(words)[1:-1]
    pattern = _GO.sub(lambda m: m[3] or chr(int(m[1] or m[2], 16)), quoted)
    assert all(re.fullmatch(pattern, w, re.DOTALL) for w in words)
    assert (re.fullmatch(pattern, other, re.DOTALL) is not None) == (other in words)


@given(WORDS)
def test_a_template_of_go_prints_the_words_as_they_are(word: str) -> None:
    """The only action that is left prints two braces."""
    out = text.untemplated(word)
    assert out.replace('{{"{{"}}', "\0").count("{{") == 0
    assert out.replace('{{"{{"}}', "{{") == text.whole(word)


_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_PARTS = st.lists(
    st.one_of(WORDS, st.from_regex(r"[a-z_]{1,6}", fullmatch=True), st.text("a_", max_size=80)), min_size=1, max_size=3
)


@given(_PARTS, _PARTS)
@example(["a_b"], ["a", "b"])
@example(["a__b"], ["a", "b"])
@example(["A"], ["a"])
def test_names_are_those_of_kubernetes_and_differ(a: list[str], b: list[str]) -> None:
    assert _NAME.fullmatch(text.slug(*a))
    same = [text.whole(p) for p in a] == [text.whole(p) for p in b]
    assert (text.slug(*a) == text.slug(*b)) == same


@pytest.mark.parametrize("word", HOSTILE)
def test_printable_text_is_one_line(word: str) -> None:
    assert text.printable(word).isprintable()
