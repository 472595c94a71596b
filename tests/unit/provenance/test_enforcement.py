"""Observability clauses: every field of `trace` and `fingerprint` voids a run that lacks it, before any number."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from provenance_cases import contract

from kcverify import driver
from kcverify.delivery import promotion
from kcverify.delivery.evidence import Evidence, read_json
from kcverify.diagnostics import InputError
from kcverify.elaborate.form import digest
from kcverify.provenance import enforce
from kcverify.provenance.fields import FIELDS
from kcverify.provenance.fingerprint import Fingerprint, fingerprint

pytest.importorskip("torch")

import torch

from kcverify.measure.data import Request
from kcverify.measure.sides import KernelSide
from kcverify.provenance.watch import Setting, Watch

FULL = fingerprint(**{f.name: {"part": f"of {f.name}"} for f in FIELDS if f.name != "sampler"})
TRACE = (*enforce.TRACE, "prompt_tokens", "output_tokens", "tags", "seed", "weight_version", "region")
LINE = {"tags": [], "prompt_tokens": 3, "output_tokens": 1, "seed": 0, "weight_version": "7", "region": "eu"}


def never(token_ids: Any) -> Any:
    raise AssertionError("a number was computed")


SIDE = KernelSide("unfound:run", {}, never, torch.device("cpu"))


def watched(trace: tuple[str, ...] = (), fields: tuple[str, ...] = ()) -> Any:
    """A contract that names these fields."""
    lines = [f"trace {', '.join(trace)}"] * bool(trace) + [f"fingerprint {', '.join(fields)}"] * bool(fields)
    return contract(f"contract c\nnumerical {{ drift: tv <= 0.5 -> L1 }}\nobservability {{ {'; '.join(lines)} }}\n")


def begin(made: Any, line: Mapping[str, Any], declared: Fingerprint | None = None) -> Watch:
    one = Request(
        "r1", (1, 2), frozenset(line.get("tags", ())), {k: v for k, v in line.items() if k != "tags"}, frozenset(line)
    )
    other = Request("r0", (1, 2), frozenset(), {k: v for k, v in LINE.items() if k != "tags"}, frozenset(LINE))
    watch = Watch(Setting(declared={} if declared is None else dict.fromkeys(enforce.SIDES, declared)))
    watch.begin(made, (SIDE, SIDE), [other, one], 1.0, None)
    return watch


def slugs(call: Any, *given: Any) -> list[str]:
    with pytest.raises(InputError) as wrong:
        call(*given)
    return [d.code.slug for d in wrong.value.diagnostics]


def test_a_whole_trace_is_enough() -> None:
    assert set(TRACE) <= set(begin(watched(TRACE), LINE).trace)


@pytest.mark.parametrize("field", TRACE)
def test_a_missing_trace_field_voids_the_run(field: str) -> None:
    short = {key: value for key, value in LINE.items() if key != field}
    if field in enforce.TRACE:
        assert field in begin(watched((field,)), short).trace  # the run itself gives it
        return
    assert slugs(begin, watched((field,)), short) == ["trace_missing"]
    assert field not in begin(contract("contract c\nnumerical { drift: tv <= 0.5 -> L1 }\n"), short).trace


@pytest.mark.parametrize("field", [f.name for f in FIELDS])
def test_a_silent_fingerprint_field_voids_the_run(field: str) -> None:
    silent = fingerprint(**{k: v for k, v in FULL.fields.items() if k != field})
    made = watched(fields=(field,))
    own = Watch(Setting())
    own.begin(contract("contract c\nnumerical { drift: tv <= 0.5 -> L1 }\n"), (SIDE, SIDE), [], 1.0, None)
    if own.found["reference"].fields[field] != "absent":
        assert begin(made, LINE, silent).found["candidate"].fields[field] == own.found["candidate"].fields[field]
        return
    assert slugs(begin, made, LINE, silent) == ["fingerprint_missing"] * 2
    assert begin(made, LINE, FULL).found["candidate"].fields[field] == FULL.fields[field]


def test_a_declared_identity_that_does_not_run_voids_the_run() -> None:
    declared = fingerprint(**{**FULL.fields, "sampler": {"measured": "greedy"}})
    assert slugs(begin, watched(), LINE, declared) == ["identity_mismatch"] * 2
    assert begin(watched(), LINE, fingerprint(**{**FULL.fields, "driver": "another"})).found


def evidence(path: Path, made: Any, told: Any) -> Evidence:
    """Evidence of one request about the clause of `watched`."""
    none = {"p_fail": None, "p_pass": None, "requests": 1, "log_e_fail": None, "log_e_pass": None, "requests_needed": 1}
    row = {"name": "drift", "slice": None, "verdict": "pass", "reason": "seen", "evidence": {"kind": "maximum", **none}}
    head = {"contract": made.name, "digest": digest(made), "looks": "any number of looks", "requests": 1}
    measured = {**head, "clauses": [row]}
    content = json.dumps({"measured": measured, "complete": True, **({} if told is None else {"provenance": told})})
    path.write_text(content)
    return read_json(str(path), content.encode(), made, digest(made))


def told(found: Fingerprint, *trace: str) -> dict[str, Any]:
    return {"trace": list(trace), "reference": found.data(), "candidate": found.data()}


STAGE = "promote { offline { min 1 requests } }\n"


@pytest.mark.parametrize("field", [f.name for f in FIELDS])
def test_the_gate_voids_evidence_field_by_field(field: str, tmp_path: Path) -> None:
    text = f"contract c\nnumerical {{ drift: tv <= 0.5 -> L1 }}\nobservability {{ trace seed; fingerprint {field} }}\n{STAGE}"
    made = contract(text)
    whole = fingerprint(**{f.name: {"part": f"of {f.name}"} for f in FIELDS})
    silent = fingerprint(**{k: v for k, v in whole.fields.items() if k != field})
    other = fingerprint(**{**whole.fields, field: {"part": "another"}})

    def gate(*of: Any) -> str:
        sources = [evidence(tmp_path / f"{i}.json", made, one) for i, one in enumerate(of)]
        return promotion.gate_files(made, "offline", sources).verdict

    # two files of one content would count twice: the trace tells them apart
    first, second = told(whole, "seed"), told(whole, "seed", "more")
    assert gate(first) == gate(first, second) == "pass"
    assert slugs(gate, told(silent, "seed")) == ["fingerprint_missing"] * 2
    assert slugs(gate, told(whole, "more")) == ["provenance_missing"]
    assert slugs(gate, None) == ["provenance_missing"]
    identity = next(f.digest for f in FIELDS if f.name == field) == "identity"
    if identity:
        assert slugs(gate, first, told(other, "seed")) == ["identity_mismatch"] * 2
    else:
        assert gate(first, told(other, "seed")) == "pass"


def test_the_next_stage_must_be_of_the_same_identity(tmp_path: Path) -> None:
    text = (
        "contract c\nnumerical { drift: tv <= 0.5 -> L1 }\n"
        "promote { offline { min 1 requests }; shadow { for 0 s }; full { stable 0 s } }\n"
    )
    made = contract(text)
    whole = fingerprint(**{f.name: {"part": f"of {f.name}"} for f in FIELDS})
    other = fingerprint(**{**whole.fields, "weights": {"part": "another"}})
    with promotion.start(str(tmp_path / "s.db"), made, 0) as store:
        first = evidence(tmp_path / "1.json", made, told(whole, "seed"))
        assert promotion.promote(store, made, [first], 1).moved
        second = evidence(tmp_path / "2.json", made, told(other, "seed"))
        assert slugs(promotion.promote, store, made, [second], 2) == ["identity_mismatch"] * 2
        assert store.state().position == "shadow"
        promotion.rollback(store, 3)
        assert promotion.promote(store, made, [second], 4).moved
        store.rebuild()


def test_evidence_that_cannot_carry_it_has_it_beside(tmp_path: Path) -> None:
    made = contract(
        f"contract c\nnumerical {{ drift: tv <= 0.5 -> L1 }}\nobservability {{ fingerprint weights }}\n{STAGE}"
    )
    source = evidence(tmp_path / "r.json", made, None)
    assert slugs(promotion.gate_files, made, "offline", [source]) == ["provenance_missing"]
    beside = tmp_path / f"r.json{enforce.SUFFIX}"
    for bad in ("{", "[]", '{"trace": 1}', '{"trace": []}'):
        beside.write_text(bad)
        assert slugs(promotion.gate_files, made, "offline", [source]) == ["fingerprint_invalid"]
    beside.write_text(json.dumps(told(FULL)))
    assert promotion.gate_files(made, "offline", [source]).verdict == "pass"


@pytest.mark.parametrize("spread", [None, "serial"])
def test_a_recorded_pair_that_says_nothing_is_void(
    spread: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numpy = pytest.importorskip("numpy")
    numpy.save(tmp_path / "a.npy", numpy.zeros((4, 3), dtype="float32"))
    monkeypatch.setattr("kcverify.measure.session.feed", never)
    options = driver.MeasureOptions(executor=spread)
    path = str(tmp_path / "a.npy")
    assert slugs(driver.measure, watched(("seed",), ("weights",)), path, path, None, options) == [
        "trace_missing", "fingerprint_missing", "fingerprint_missing",
    ]  # fmt: skip
