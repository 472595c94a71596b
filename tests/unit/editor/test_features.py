"""What an editor is told, as plain functions of a text and an offset; `|` marks the cursor."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcverify.codes import ROWS
from kcverify.editor.completion import complete
from kcverify.editor.definition import definition
from kcverify.editor.document import Document, analyse, path_at
from kcverify.editor.fixes import fixes
from kcverify.editor.hover import hover
from kcverify.source import Source

BASE = """contract c version "1"
param tol = 0.02
pair { reference trainer = "x"; candidate rollout = "y" }
assume { temperature in [0.6, 1.0]; sampler = full_softmax; horizon <= 256 tokens; reward in [0, 1] }
slice long = prompt_tokens >= 8192
"""


def _at(marked: str, name: str = "x.kc") -> tuple[Document, int]:
    offset = marked.index("|>")
    return analyse(Source(name, marked.replace("|>", ""))), offset


def _hover(line: str) -> str:
    document, offset = _at(BASE + line)
    found = hover(document, offset)
    return found.text if found is not None else ""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("numerical { a: logit_|>span <= 0.05 -> L1 }", ["logit span drift", "unit: `logits`", "`tv` <= 0.0208", "(tv_of_span)"]),
        ("numerical { a|>: tv <= 0.01 -> L1 }", ["`tv_seq` <= 0.92", "(seq_tv_union)"]),
        ("numerical { a: mean k|>l(candidate || reference) <= 1e-4 nats -> L1 }", ["**kl(candidate || reference)**"]),
        ("numerical { a: k|>l <= 1e-4 nats -> L1 }", ["kl(candidate || reference)", "kl(reference || candidate)"]),
        ("numerical { a: tv <= to|>l on long -> L1 }", ["parameter **tol** = `0.02`"]),
        ("numerical { a: tv <= tol on lo|>ng -> L1 }", ["slice **long** = `prompt_tokens >= 8192`"]),
        ("numerical { a: logit_span <= 0.1 * tempera|>ture -> L1 }", ["assumed: `temperature in [0.6, 1.0]`"]),
        ("numerical { a: kl(roll|>out || trainer) <= 1 nats -> L1 }", ["candidate **rollout** = `y`"]),
        ("runtime { a: p99 latency <= 120 m|>s -> L1 }", ["**ms**: millisecond"]),
        ("numerical { a: logit_span <= 0.|>05 -> L1 }", ["follows from this clause alone"]),
        ("numerical { a: logit_span <= ?|> -> L1 }\nguarantee { g: reward_drift <= 1 }", ["kcverify derive"]),
        ("numerical { a: logit_span <= 0.01 -> L1 }\nguarantee { g|>: reward_drift <= 0.4 }", ["**PROVED**", "best bound", "`a`"]),
        ("numerical { a: tv <= 0.9 -> L1 }\nguarantee { g: reward_|>drift <= 0.4 }", ["UNKNOWN", "REFUTED"]),
        ("assume { tempera|>ture in [1, 2] }", ["assumption **temperature**"]),
    ],
)  # fmt: skip
def test_hover(line: str, words: list[str]) -> None:
    text = _hover(line)
    found = [word in text for word in words]
    assert any(found) if "UNKNOWN" in words else all(found), text


def test_nothing_to_say_about_a_comment_or_a_broken_line() -> None:
    assert _hover("numerical { a: tv <= 0.01 -> L1 } # lo|>ng") == ""
    assert _hover("numerical { a: nothing <|>= 0.01 -> L1 }") == ""
    document, _ = _at("|>")
    assert hover(document, 0) is None


def _labels(line: str) -> list[str]:
    document, offset = _at(BASE + line)
    return [suggestion.label for suggestion in complete(document, offset)]


@pytest.mark.parametrize(
    ("line", "some", "none"),
    [
        ("numerical {\n  a: |>", ["logit_span", "mean"], ["latency"]),
        ("runtime {\n  a: p99 |>", ["latency"], ["tv"]),
        ("guarantee {\n  a: re|>", ["reward_drift", "tv", "reward_delta"], ["latency"]),
        ("runtime {\n  a: p99 latency <= 120 |>", ["ms", "s", "except"], ["GiB", "nats"]),
        ("runtime {\n  a: kv_cache <= 40 |>", ["GiB"], ["ms"]),
        ("runtime {\n  a: p99 latency <= 120 ms over 10 |>", ["minutes"], ["GiB"]),
        ("numerical {\n  a: tv <= 0.01 except 1|>", ["%"], ["ms"]),
        ("numerical {\n  a: tv <= |>", ["tol", "temperature"], []),
        ("numerical {\n  a: tv <= 0.01 on |>", ["long"], ["tol"]),
        ("numerical {\n  a: tv <= 0.01 -> |>", ["L1", "L3"], ["except"]),
        ("numerical {\n  a: tv <= 0.01 unit |>", ["token"], []),
        ("numerical {\n  a: tv <= 0.01 when |>", ["temperature"], ["tol"]),
        ("|>", ["numerical", "slice", "kernel"], ["log"]),
        ("slice s = |>", ["prompt_tokens", "tag"], []),
        ("assume {\n  |>", ["temperature", "storage"], []),
        ("pair {\n  |>", ["guarded"], []),
        ("observability {\n  fingerprint weights, |>", ["device"], []),
        ("escalate {\n  L1 -> |>", ["rollback"], []),
        ("escalate {\n  L1 -> guard, |>", ["dwell"], []),
        ("promote {\n  |>", ["canary"], []),
        ("promote {\n  canary { |>", ["traffic"], []),
        ("numerical { a: tv <= ? -> L1 }\nsplit |>", ["a"], []),
        ("tolerance {\n  |>", ["backward_error"], []),
        ("numerical { # |>", [], ["tv"]),
        ('param a = "|>', [], ["tv"]),
    ],
)
def test_completion(line: str, some: list[str], none: list[str]) -> None:
    labels = _labels(line)
    assert set(some) <= set(labels)
    assert not set(none) & set(labels)


@pytest.mark.parametrize(
    ("line", "target"),
    [
        ("numerical { a: tv <= tol on lo|>ng -> L1 }", "long"),
        ("numerical { a: tv <= to|>l -> L1 }", "tol"),
        ("numerical { a: tv <= 0.1 * temp|>erature -> L1 }", "temperature"),
        ("numerical { a: kl(roll|>out || trainer) <= 1 nats -> L1 }", "rollout"),
        ("numerical { drift: logit_span <= ? -> L1 }\nsplit dri|>ft 100%", "drift"),
        ("contract d extends |>c", "c"),
    ],
)
def test_definition(line: str, target: str) -> None:
    document, offset = _at(BASE + line)
    span = definition(document, offset)
    assert span is not None
    assert span.text == target
    assert span.start < offset - 1


def test_definition_in_another_file(tmp_path: Path) -> None:
    (tmp_path / "base.kc").write_text("# one\ncontract base\n", encoding="utf-8")
    text = 'use "ba|>se.kc"\ncontract c extends base\n'
    document, offset = _at(text, str(tmp_path / "main.kc"))
    span = definition(document, offset)
    assert span is not None
    assert span.source.name.endswith("base.kc")
    document, offset = _at('use "base.kc"\ncontract c extends b|>ase\n', str(tmp_path / "main.kc"))
    span = definition(document, offset)
    assert span is not None
    assert span.place.endswith("base.kc:2:10")
    document, offset = _at('use "no|>ne.kc"\ncontract c\n', str(tmp_path / "main.kc"))
    assert definition(document, offset) is None


@pytest.mark.parametrize(
    ("line", "edited"),
    [
        ("numerical { a: logit_spam <= 0.05 -> L1 }", "numerical { a: logit_span <= 0.05 -> L1 }"),
        ("numerical { a: tv <= 0.05 on lnog -> L1 }", "numerical { a: tv <= 0.05 on long -> L1 }"),
        ("runtime { a: p99 latency <= 0.12 -> L1 }", "runtime { a: p99 latency <= 120 ms -> L1 }"),
        ("runtime { a: p99 latency <= 120 msec -> L1 }", None),
        (
            "numerical { a: importance_ratio in [1.05, 0.95] -> L1 }",
            "numerical { a: importance_ratio in [0.95, 1.05] -> L1 }",
        ),
        (
            "numerical { a: mean kl <= 1 nats -> L1 }",
            "numerical { a: mean kl(candidate || reference) <= 1 nats -> L1 }",
        ),
        ("numerical { a: tv < 0.05 -> L1 }", "numerical { a: tv <= 0.05 -> L1 }"),
        ("statistical { a: agreement(5) >= 95% -> L1 }", "statistical { a: agreement(top = 5) >= 95% -> L1 }"),
        ("runtime { a: mean throughput >= 5 tokens/s -> L1 }", None),
    ],
)
def test_quick_fixes(line: str, edited: str | None) -> None:
    document = analyse(Source("x.kc", BASE + line))
    [found] = document.report.errors
    offered = fixes(document, found)
    texts = [document.source.text[: f.span.start] + f.text + document.source.text[f.span.end :] for f in offered]
    if edited is not None:
        assert texts[0] == BASE + edited
    for text in texts:
        assert analyse(Source("x.kc", text)).report.errors == []


@pytest.mark.parametrize("row", [r for r in ROWS if r.bad], ids=lambda row: row.slug)
def test_every_fix_of_the_code_table_corrects_something(row) -> None:  # type: ignore[no-untyped-def]
    document = analyse(Source("x.kc", row.bad))
    for found in document.report.errors:
        for fix in fixes(document, found):
            text = row.bad[: fix.span.start] + fix.text + row.bad[fix.span.end :]
            assert len(analyse(Source("x.kc", text)).report.errors) < len(document.report.errors)


def test_nothing_fails_at_any_offset(data: Path) -> None:
    text = (data / "more_syntax.kc").read_text(encoding="utf-8")
    for cut in (len(text), 700, 1300):
        document = analyse(Source("x.kc", text[:cut]))
        for offset in range(0, cut, 23):
            path_at(document, offset)
            complete(document, offset)
            definition(document, offset)
            if offset % 5 == 0:
                hover(document, offset)


def test_a_yaml_file_is_analysed_too() -> None:
    text = 'language: "1.0"\ncontracts:\n  - name: c\n    numerical:\n      a: {metric: logit_spam, at_most: 0.1, severity: L1}\n'
    document = analyse(Source("x.yaml", text))
    [found] = document.report.errors
    [fix] = fixes(document, found)
    assert fix.text == "logit_span"
    assert fix.span.text == "logit_spam"
    info = hover(analyse(Source("x.yaml", text.replace("spam", "span"))), text.index("logit_sp") + 2)
    assert info is not None
    assert "logit span drift" in info.text
