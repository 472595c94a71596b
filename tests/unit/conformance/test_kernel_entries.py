"""Entries of the corpus: an entry whose verdicts do not follow from its numbers is refused, tolerances are compared too."""

from __future__ import annotations

import copy
import json

import pytest

from kcverify.conformance.record import FORMAT, KEYS, compare, load
from kcverify.diagnostics import InputError
from kcverify.output import conformance as output

READING = {
    "name": "matmul, normal", "value": 1e-8, "where": "2x2, 2x2", "slack": 1e-12, "verdict": "within_tolerance", "count": 1,
    "tolerance": {"exact": "1/8388608", "value": 2.0**-23, "lines": []},
}  # fmt: skip
ENTRY = {
    **dict.fromkeys(KEYS, ""), "format": FORMAT, "class": "C-PRC-01", "operation": "matmul", "kernel": "a:b", "verdict": "within_tolerance",
    "contract": {"name": "c", "digest": "sha256:1"}, "machine": {"torch": "2"}, "readings": [READING],
    "measurement": {k: READING[k] for k in ("name", "value", "slack", "where")}, "tolerance": READING["tolerance"],
}  # fmt: skip


def written(tmp_path, change=lambda e: None, text=None):
    one = copy.deepcopy(ENTRY)
    change(one)
    path = tmp_path / "entry.json"
    path.write_text(json.dumps(one) if text is None else text)
    return str(path)


def test_an_entry_as_it_was_written_is_read(tmp_path):
    assert load(written(tmp_path)) == ENTRY


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda e: e["readings"][0].update(value=0.5), "what follows from its numbers: violation"),
        (lambda e: e["readings"][0].update(value=None), "what follows from its numbers: violation"),
        (lambda e: e["readings"][0]["tolerance"].update(exact=None), "what follows from its numbers: under_specified"),
        (lambda e: e["readings"][0]["tolerance"].update(exact="1/0"), "has no name, value, slack and tolerance"),
        (lambda e: e["readings"][0].update(value="lots"), "has no name, value, slack and tolerance"),
        (lambda e: e["readings"][0].update(name=["x"]), "does not say"),
        (lambda e: e["readings"].append(5), "reading 2 has no name"),
        (
            lambda e: e["readings"].append({**READING, "name": "ones", "value": 1, "verdict": "violation"}),
            "but a reading is violation",
        ),
        (lambda e: e.update(verdict="great"), "its verdict is none of"),
        (lambda e: e["readings"].append(READING), "two readings have one name"),
        (lambda e: e["readings"][0]["tolerance"].update(value=1.0), "another number than the fraction beside it"),
        (lambda e: e["readings"][0]["tolerance"].update(value=None), "another number than the fraction beside it"),
        (lambda e: e["measurement"].update(value=1e-12), "those of no reading"),
        (lambda e: e.update(tolerance={"exact": "1", "value": 1.0, "lines": []}), "those of no reading"),
        (lambda e: e.update(measurement=None), "those of no reading"),
        (lambda e: e.update(readings=[]), "those of no reading"),
    ],
)
def test_an_entry_that_contradicts_itself_is_refused(tmp_path, change, said):
    with pytest.raises(InputError) as caught:
        load(written(tmp_path, change))
    assert said in caught.value.diagnostics[0].message


@pytest.mark.parametrize("tail", [', "x": NaN}', ', "x": Infinity}', ', "verdict": "violation"}'])
def test_numbers_and_keys_that_are_not_json_are_refused(tmp_path, tail):
    with pytest.raises(InputError, match="no JSON"):
        load(written(tmp_path, text=json.dumps(ENTRY)[:-1] + tail))


def test_another_tolerance_is_a_difference():
    other = copy.deepcopy(ENTRY)
    other["readings"][0]["tolerance"] = {"exact": "1/2", "value": 0.5, "lines": []}
    found = compare(ENTRY, other, ("a", "b"))
    assert found["differences"] == [{"name": "matmul, normal: tolerance", "a": 2.0**-23, "b": 0.5}]


def test_what_was_declared_drawn_and_found_is_compared_too():
    other = copy.deepcopy(ENTRY)
    other["declared"], other["seed"], other["findings"] = {"device": "cuda"}, 8, [{"slug": "kernel_fails"}, 5]
    found = compare(ENTRY, other, ("a", "b"))
    assert found["differences"] == [
        {"name": "declared: device", "a": None, "b": "cuda"}, {"name": "seed", "a": None, "b": 8},
        {"name": "findings", "a": [], "b": ["kernel_fails"]},
    ]  # fmt: skip
    assert found["same_verdict"]
    text = output.entries(found, False)
    assert "declared: device  -  cuda" in text and "None" not in text and "[" not in text
