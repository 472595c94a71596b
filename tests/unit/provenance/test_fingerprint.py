"""Fingerprints: the table, the two digests, what files and kernels tell, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st
from provenance_cases import shard

from kcverify.diagnostics import InputError
from kcverify.elaborate.policy import FINGERPRINT
from kcverify.provenance import kernels, machine, weights
from kcverify.provenance.fields import ABSENT, BY_NAME, FIELDS
from kcverify.provenance.fingerprint import differences, digest_of, fingerprint, of_data
from kcverify.provenance.reading import strict

FULL = fingerprint(**{f.name: {"part": f"of {f.name}"} for f in FIELDS})


def slug(call: Any, *given: Any) -> str:
    with pytest.raises(InputError) as wrong:
        call(*given)
    return str(wrong.value.diagnostics[0].code.slug)


def test_the_table_has_every_word_of_the_language() -> None:
    assert set(BY_NAME) == set(FINGERPRINT) and len(FIELDS) == len(BY_NAME)
    assert [f.name for f in FIELDS if f.digest == "identity"] == [
        "weights", "dtype", "quantization", "kernels", "build", "tokenizer", "sampler",
    ]  # fmt: skip


@pytest.mark.parametrize("field", FIELDS, ids=lambda f: f.name)
def test_a_field_moves_its_own_digest_alone(field: Any) -> None:
    changed = fingerprint(**{**FULL.fields, field.name: {"part": "another"}})
    assert (changed.identity != FULL.identity) == (field.digest == "identity")
    assert (changed.context != FULL.context) == (field.digest == "context")
    [row] = differences(FULL, changed)
    assert (row.name, row.second, row.identity) == (f"{field.name} part", "another", field.digest == "identity")
    silent = fingerprint(**{k: v for k, v in FULL.fields.items() if k != field.name})
    assert silent.fields[field.name] == ABSENT
    [row] = differences(FULL, silent)
    assert row.second == ABSENT and not row.contradiction
    assert silent.overlaid(FULL) == FULL
    [row] = differences(FULL, fingerprint(**{**FULL.fields, field.name: {"part": f"of {field.name}", "more": "x"}}))
    assert row.contradiction == field.files


def test_it_travels_as_canonical_json() -> None:
    text = rfc8785.dumps(FULL.data())
    assert of_data(strict(text), "f.json") == FULL
    assert rfc8785.dumps(of_data(json.loads(text), "f.json").data()) == text


@pytest.mark.parametrize(
    "change",
    [
        {"format": "kcverify-fingerprint/2"}, {"identity": "sha256:0"}, {"context": FULL.identity}, {"more": 1}, {"fields": {}},
        {"fields": {**FULL.fields, "weights": {}}}, {"fields": {**FULL.fields, "dtype": ""}}, {"fields": {**FULL.fields, "dtype": 1}},
        {"fields": {**FULL.fields, "dtype": "bf16"}}, {"fields": {**FULL.fields, "dtype": "\ud800"}},
    ],
)  # fmt: skip
def test_one_that_was_edited_is_refused(change: dict[str, Any]) -> None:
    assert slug(of_data, {**FULL.data(), **change}, "f.json") == "fingerprint_invalid"
    assert slug(of_data, [change], "f.json") == "fingerprint_invalid"


@given(st.dictionaries(st.sampled_from(sorted(BY_NAME)), st.text(st.characters(exclude_categories=["Cs"]), min_size=1)))
def test_any_values_come_back(values: dict[str, str]) -> None:
    made = fingerprint(**values)
    assert of_data(json.loads(rfc8785.dumps(made.data())), "f.json") == made


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"a": 1, "a": 2}', "occurs twice"),
        (b"[NaN]", "no number"),
        (b"\xff", "UTF-8"),
        (b"[" * 99999, "deep"),
        (b"{", "JSON"),
    ],
)
def test_json_of_others_is_read_strictly(text: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        strict(text)


def test_a_checkpoint_tells_its_shards_types_quantisation_and_tokenizer(tmp_path: Path) -> None:
    for name in ("b.safetensors", "a.safetensors"):
        shard(tmp_path / name)
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "fp8", "bits": 8}}')
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "generation_config.json").write_text('{"top_p": 0.9}')
    found = fingerprint(**weights.fields([str(tmp_path)]))
    assert list(found.fields["weights"]) == ["a.safetensors", "b.safetensors"]
    assert found.fields["dtype"] == {"F32": "2"}
    assert found.fields["quantization"]["config.json"].startswith("fp8 sha256:")  # type: ignore[index]
    assert set(found.fields["tokenizer"]) == {"tokenizer.json"}
    assert set(found.fields["sampler"]) == {"generation_config.json"}
    before = found.identity
    (tmp_path / "tokenizer.json").write_text("{ }")
    assert fingerprint(**weights.fields([str(tmp_path)])).identity != before
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    assert weights.fields([str(tmp_path)])["dtype"] == ABSENT


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    assert slug(weights.fields, [str(tmp_path / "no")]) == "weights_invalid"
    assert slug(weights.fields, [str(tmp_path)]) == "weights_invalid"
    for name, content in (("a", b"short"), ("b", b"\xff" * 16), ("c", b"\2\0\0\0\0\0\0\0[]")):
        (tmp_path / f"{name}.safetensors").write_bytes(content)
        assert slug(weights.fields, [str(tmp_path / f"{name}.safetensors")]) == "weights_invalid"
    (tmp_path / "d").mkdir()
    shard(tmp_path / "d" / "m.safetensors")
    shard(tmp_path / "m.safetensors")
    assert (
        slug(weights.shards, [str(tmp_path / "d" / "m.safetensors"), str(tmp_path / "m.safetensors")])
        == "weights_invalid"
    )


def test_a_kernel_is_found_without_being_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pack").mkdir()
    for path in (tmp_path / "loud.py", tmp_path / "pack" / "__init__.py", tmp_path / "pack" / "inner.py"):
        path.write_text("raise SystemExit('it ran')\n")
    (tmp_path / "kernel.so").write_bytes(b"\x7fELF")
    for spec in ("loud:run", "pack.inner:run", "kernel.so"):
        assert len(kernels.resolve(spec).digests()[spec]) == 64
    for spec in ("gone:run", "pack.gone:run", "demo:int3", "sys:exit", "nothing", ":", "gone.so"):
        assert slug(kernels.resolve, spec) == "kernel_unknown"


def test_shipped_formats_are_those_of_the_table() -> None:
    table = pytest.importorskip("kcverify.measure.kernels")
    for name, row in table.BY_NAME.items():
        assert kernels.resolve(f"demo:{name}").name == f"demo:{row.name}"


def test_it_works_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from kcverify.cli import main\n"
        "main(['fingerprint', '--kernel', 'demo:int8', '--format', 'json'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    fields = json.loads(done.stdout)["fingerprint"]["fields"]
    assert fields["build"] == fields["weights"] == fields["compile_mode"] == ABSENT
    assert fields["quantization"] == {"kernel": "int8"}


def test_a_machine_tells_what_changes_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    found = machine.fields()
    assert found["environment"]["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"  # type: ignore[index]
    assert found["versions"]["python"] and found["driver"]["system"]  # type: ignore[index]
    assert digest_of(found).startswith("sha256:")


def test_names_that_cannot_be_looked_at_and_text_that_is_none(tmp_path: Path) -> None:
    """A name that is too long or empty names nothing; half of a surrogate pair has no place in canonical JSON."""
    for name in ("a" * 300, "", "a\0b"):
        assert slug(weights.fields, [name]) == "weights_invalid"
        assert slug(kernels.resolve, name) == "kernel_unknown"
    header = b'{"a": {"dtype": "\\ud800", "shape": [], "data_offsets": [0, 0]}}'
    (tmp_path / "odd.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "\\udfff"}}')
    found = fingerprint(**weights.fields([str(tmp_path)]))
    assert found.fields["dtype"] == {"\ufffd": "1"} and of_data(found.data(), "x") == found
    (tmp_path / "odd.safetensors").write_bytes((len(header) + 1).to_bytes(8, "little") + header)
    assert slug(weights.fields, [str(tmp_path)]) == "weights_invalid"
