"""`use` and `extends`: what a child inherits, what it may change, and what cannot be found."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from kcverify.diagnostics import Diagnostic, Report
from kcverify.elaborate import elaborate
from kcverify.elaborate.contract import Contract
from kcverify.elaborate.form import digest
from kcverify.forms.files import read_source
from kcverify.forms.read import read
from kcverify.render import render_all
from kcverify.source import Source
from kcverify.syntax import parse

BASE = """contract base version "1"
  "the base"
param tol = 0.02
pair { reference a = "x"; candidate b = "y" }
assume { temperature in [0.6, 1.0]; horizon <= 256 tokens; reward in [0, 1] }
slice long = prompt_tokens >= 8192
numerical {
  tail: tv <= tol except 1% -> L1
  drift: logit_span <= 0.05 * temperature -> L2
  ratio: importance_ratio in [0.9, 1.1] on long -> L1
}
guarantee { safe: reward_drift <= 0.4 }
observability { trace request_id; fingerprint weights; replay within 24 h }
escalate { L1 -> log; L2 -> guard, dwell 10 minutes }
promote { offline { min 100 requests } }
"""


def _read(text: str, name: str = "x.kc", **parameters: Fraction) -> tuple[tuple[Contract, ...], list[Diagnostic]]:
    report = Report()
    contracts = elaborate(parse(Source(name, text), report), report, parameters=parameters)
    return contracts, report.diagnostics


def _child(text: str) -> list[Diagnostic]:
    return _read(f"{BASE}contract child extends base\n{text}\n")[1]


def test_a_child_has_what_it_does_not_state() -> None:
    (base, child), found = _read(BASE + "contract child extends base\nnumerical { more: tv <= 0.5 -> L1 }\n")
    assert found == []
    assert child.name == "child"
    assert [clause.name for clause in child.clauses] == ["tail", "drift", "ratio", "more"]
    assert child.clauses[:3] == base.clauses
    assert (child.roles, child.slices, child.guarantees) == (base.roles, base.slices, base.guarantees)
    assert child.description == "the base"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "numerical { tail: tv <= tol / 2 except 1% -> L1 }",
        "numerical { tail: tv <= 0.02 except 0.5% -> L3 }",
        "numerical { tail: tv <= 0.02 -> L1 }",
        "numerical { drift: logit_span <= 0.02 + 0.01 * temperature -> L2 }",
        "numerical { ratio: importance_ratio in [0.95, 1.05] on long -> L1 }",
        "numerical { ratio: importance_ratio in [0.9, 1.1] -> L1 }",
        "param tol = 0.01",
        "assume { temperature in [0.5, 1.2] }",
        "assume { horizon <= 512 tokens }",
        "guarantee { safe: reward_drift <= 0.3 }",
        "observability { trace request_id, region }",
        "escalate { L1 -> alert; L2 -> rollback, dwell 20 minutes }",
        "promote { offline { min 200 requests }; full { stable 24 h } }",
        'pair { candidate b = "z" }',
    ],
)
def test_a_child_may_tighten(text: str) -> None:
    assert [d.message for d in _child(text)] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("numerical { tail: tv <= 0.03 except 1% -> L1 }", "at most 0.03 instead of 0.02"),
        ("numerical { tail: tv <= tol except 2% -> L1 }", "an exception of 2% instead of 1%"),
        ("numerical { tail: log_ratio <= 0.001 -> L1 }", "it limits `max log_ratio` and not `max tv`"),
        ("numerical { drift: logit_span <= 0.05 * temperature -> L1 }", "severity L1 instead of L2"),
        ("numerical { drift: logit_span <= 0.04 -> L2 }", "weaker for some values"),
        ("numerical { drift: logit_span <= 0.05 * temperature when temperature in [0.6, 0.8) -> L2 }", "band"),
        ("numerical { drift: logit_span <= ? -> L2 }", "left open"),
        ("numerical { tail: tv <= tol except 1% at confidence 90% -> L1 }", "confidence 90% instead of 95%"),
        ("numerical { ratio: importance_ratio <= 1.1 on long -> L1 }", "no limit at least"),
        ("param tol = 0.03", "at most 0.03 instead of 0.02"),
        ("assume { temperature in [0.7, 1.0] }", "fewer values"),
        ("assume { horizon <= 128 tokens }", "128 instead of 256"),
        ("assume { sampler = greedy }", "one more assumption"),
        ("slice long = prompt_tokens >= 9000", "leaves requests out"),
        ("guarantee { safe: reward_drift <= 0.5 }", "at most 0.5 instead of 0.4"),
        ("observability { trace region }", "trace without request_id"),
        ("observability { replay within 1 h }", "replay"),
        ("escalate { L2 -> log }", "log instead of guard"),
        ("promote { offline { min 50 requests } }", "least requests: 50 instead of 100"),
    ],
)
def test_a_child_may_not_loosen(text: str, words: str) -> None:
    found = _child(text)
    assert {d.code.slug for d in found} == {"loosened"}
    assert words in found[0].message
    assert found[0].span is not None
    assert found[0].related or "assumption" in found[0].message
    for related in found[0].related:
        assert related.span.start != found[0].span.start


def test_a_fault_of_the_parent_is_told_once() -> None:
    _, found = _read("contract a\nnumerical { x: tv <= nan -> L1 }\ncontract b extends a\ncontract c extends b\n")
    assert [d.code.slug for d in found] == ["number_not_finite"]


def test_what_a_child_states_twice_is_told() -> None:
    text = "numerical { tail: tv <= 0.01 -> L1; tail: tv <= 0.001 -> L1 }\nassume { }\nassume { }"
    assert sorted(d.code.slug for d in _child(text)) == ["duplicate", "duplicate_block"]


def test_parameters_reach_the_parent() -> None:
    (base, child), found = _read(BASE + "contract child extends base\n", tol=Fraction(3, 100))
    assert found == []
    assert base.clauses[0] == child.clauses[0]


def test_a_child_has_the_digest_of_its_text_written_out() -> None:
    (_, child), _ = _read(BASE + 'contract base2 version "1" extends base\n')
    (whole,), _ = _read(BASE.replace("contract base ", "contract base2 "))
    assert digest(child) == digest(whole)


def _write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.kc"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _file(path: Path) -> tuple[tuple[Contract, ...], list[Diagnostic]]:
    report = Report()
    contracts = elaborate(read(read_source(str(path)), report), report, parameters={})
    return contracts, report.diagnostics


def test_a_parent_in_another_file(tmp_path: Path) -> None:
    _write(
        tmp_path,
        main='use "sub/base.kc"\ncontract child extends base\nnumerical { tail: tv <= 0.5 -> L1 }\n',
        sub__base='use "../root.kc"\ncontract base extends root\n',
        root="contract root\nnumerical { tail: tv <= 0.1 -> L1 }\n",
    )
    (child,), [found] = _file(tmp_path / "main.kc")
    assert child.name == "child"
    assert found.code.slug == "loosened"
    assert found.span is not None
    assert found.span.place.startswith(str(tmp_path / "main.kc"))
    assert found.related[0].span.place.endswith("root.kc:2:13")


def test_a_yaml_parent(tmp_path: Path) -> None:
    base = 'language: "1.0"\ncontracts:\n  - name: base\n    slices: {s: prompt_tokens > 5}\n'
    (tmp_path / "base.yaml").write_text(base, encoding="utf-8")
    _write(tmp_path, main='use "base.yaml"\ncontract c extends base\n')
    (contract,), found = _file(tmp_path / "main.kc")
    assert found == []
    assert contract.slices[0].name == "s"


@pytest.mark.parametrize(
    ("files", "slug"),
    [
        ({"main": 'use "none.kc"\ncontract c\n'}, "use_unreadable"),
        ({"main": 'use "/etc/hosts.kc"\ncontract c\n'}, "use_unreadable"),
        ({"main": 'use "notes.txt"\ncontract c\n'}, "use_unreadable"),
        ({"main": 'use "a\x00b.kc"\ncontract c\n'}, "use_unreadable"),
        ({"main": f'use "{"a" * 5000}.kc"\ncontract c\n'}, "use_unreadable"),
        ({"main": 'use ".kc"\ncontract c\n'}, "use_unreadable"),
        ({"main": 'use "main.kc"\ncontract c\n'}, "use_cycle"),
        ({"main": 'use "a.kc"\ncontract c\n', "a": 'use "main.kc"\ncontract d\n'}, "use_cycle"),
        ({"main": "contract c extends d\ncontract d extends c\n"}, "extends_cycle"),
        ({"main": "contract c extends c\n"}, "extends_cycle"),
        ({"main": "contract c extends bsae\ncontract base\n"}, "unknown_parent"),
        ({"main": 'kernel contract k version "1"\ncontract c extends k\n'}, "unknown_parent"),
        (
            {"main": 'use "a.kc"\nuse "b.kc"\ncontract c extends p\n', "a": "contract p\n", "b": "contract p\n"},
            "parent_ambiguous",
        ),
        ({"main": 'use "a.kc"\ncontract c extends p\n', "a": "contract p\nnumerical { x: tv <= -> L1 }\n"}, "unexpected"),
        ({"main": 'use "a0.kc"\ncontract c\n', **{f"a{i}": f'use "a{i + 1}.kc"\ncontract c{i}\n' for i in range(12)}}, "use_depth"),
        ({"main": "".join(f"contract c{i} extends c{i + 1}\n" for i in range(2000)) + "contract c2000\n"}, "extends_depth"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_cannot_be_used(tmp_path: Path, files: dict[str, str], slug: str) -> None:
    _write(tmp_path, **files)
    _, found = _file(tmp_path / "main.kc")
    assert found[0].code.slug == slug or slug in {d.code.slug for d in found}


def test_one_file_used_twice_is_read_once(tmp_path: Path) -> None:
    _write(
        tmp_path,
        main='use "a.kc"\nuse "./a.kc"\nuse "b.kc"\ncontract c extends p\n',
        a="contract p\n",
        b='use "a.kc"\ncontract q\n',
    )
    assert _file(tmp_path / "main.kc")[1] == []


def test_both_places_are_shown(golden) -> None:  # type: ignore[no-untyped-def]
    text = (
        BASE
        + "contract child extends base\nnumerical { tail: tv <= 0.03 -> L1 }\nparam tol = 0.5\nassume { horizon <= 5 tokens }\n"
    )
    golden(render_all(_read(text)[1]) + "\n")


@pytest.mark.parametrize(
    ("block", "old", "new", "weaker"),
    [
        ("numerical", "logit_span(mass = 0.9) <= 0.1", "logit_span(mass = 0.99) <= 0.1", False),
        ("numerical", "logit_span(mass = 0.9) <= 0.1", "logit_span <= 0.1", False),
        ("numerical", "logit_span(mass = 0.9) <= 0.1", "logit_span <= 0.2", True),
        ("numerical", "logit_span <= 0.1", "logit_span(mass = 0.9) <= 0.1", True),
        ("numerical", "logit_span(mass = 0.9) >= 0.1", "logit_span(mass = 0.99) >= 0.1", True),
        ("statistical", "flip_rate(margin = 0.1) <= 1%", "flip_rate <= 1%", False),
        ("statistical", "flip_rate <= 1%", "flip_rate(margin = 0.1) <= 1%", True),
        ("statistical", "agreement(top = 1) >= 95%", "agreement(top = 5) >= 95%", True),
    ],
)
def test_a_metric_graded_further_is_no_weaker(block: str, old: str, new: str, weaker: bool) -> None:
    text = f"contract a\n{block} {{ x: {old} -> L1 }}\ncontract b extends a\n{block} {{ x: {new} -> L1 }}\n"
    faults = [d for d in _read(text)[1] if d.severity == "error"]
    assert bool(faults) is weaker
