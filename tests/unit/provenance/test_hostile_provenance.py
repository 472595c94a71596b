"""Files and folders that somebody made to get something else attested, verified or replayed: each has its own message."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from provenance_cases import World, contract, result, shard, slugs, world

pytest.importorskip("securesystemslib")

from kcverify.diagnostics import InputError
from kcverify.provenance import kernels, keys, weights
from kcverify.provenance.fingerprint import fingerprint
from kcverify.provenance.reading import strict
from kcverify.provenance.statement import bundle


@pytest.fixture
def there(tmp_path: Path) -> World:
    """A world that is attested."""
    made = world(tmp_path)
    made.sign(made.statements(result(made.fingerprint())))
    return made


def swapped(there: World) -> None:
    first, second = (there.weights / f"model-{i}.safetensors" for i in (1, 2))
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)


def copied(there: World) -> None:
    (there.weights / "model-3.safetensors").write_bytes((there.weights / "model-1.safetensors").read_bytes())


def linked(there: World) -> None:
    (there.folder / "elsewhere").mkdir()
    shard(there.folder / "elsewhere" / "more.safetensors", b"more")
    (there.weights / "below").symlink_to(there.folder / "elsewhere")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (swapped, ["weights_changed", "weights_changed"]),
        (copied, ["subject_unattested"]),
        (linked, ["subject_unattested"]),
    ],
    ids=["shards that changed places", "a shard twice", "a shard behind a link"],
)
def test_a_folder_of_the_same_bytes_is_not_the_same_checkpoint(
    there: World, change: Callable[[World], None], expected: list[str]
) -> None:
    made = result(there.fingerprint())
    change(there)
    assert slugs(there.check(there.given(fingerprint=None))) == expected
    with pytest.raises(InputError) as refusal:
        there.statements(made)
    assert refusal.value.diagnostics[0].code.slug == "attest_refused"


def test_two_shards_of_one_content_are_two(there: World) -> None:
    second = there.weights / "model-2.safetensors"
    second.write_bytes((there.weights / "model-1.safetensors").read_bytes())
    there.sign(there.statements(result(there.fingerprint())))
    assert slugs(there.check()) == []
    second.unlink()
    assert slugs(there.check(there.given(fingerprint=None))) == ["subject_missing"]


def test_a_shard_under_another_name_is_still_that_shard(there: World) -> None:
    (there.weights / "model-1.safetensors").rename(there.weights / "renamed.safetensors")
    assert slugs(there.check(there.given(fingerprint=None))) == []


@pytest.mark.parametrize("name", ["gone", "pipe", "circle", "bytes"])
def test_what_is_called_like_a_shard_is_a_file(there: World, name: str) -> None:
    if name == "gone":
        (there.weights / "x.bin").symlink_to(there.folder / "nowhere")
    elif name == "pipe":
        os.mkfifo(there.weights / "x.pt")
    elif name == "circle":
        (there.weights / "x").symlink_to(there.weights)
    else:
        Path(os.fsdecode(bytes(there.weights) + b"/\xff.bin")).write_bytes(b"x")
    with pytest.raises(InputError) as refusal:
        weights.shards([str(there.weights)])
    assert refusal.value.diagnostics[0].code.slug == "weights_invalid"


def test_two_kernel_files_of_one_name_are_not_one(there: World) -> None:
    (there.folder / "a").mkdir()
    evil = there.folder / "a" / "mykernel.py"
    evil.write_text("def run(x): return 0\n")
    for given in ([str(evil), str(there.kernel)], [str(there.kernel), str(evil)]):
        with pytest.raises(InputError, match=r"another file that was given is called mykernel\.py too"):
            kernels.digests(given)
        with pytest.raises(InputError, match="another file"):
            there.check(there.given(kernels=given))
        with pytest.raises(InputError, match="another file"):
            there.statements(result(there.fingerprint()), kernels=given)
    assert len(kernels.digests([str(there.kernel)] * 2)) == 1


SIGNED: dict[str, tuple[Callable[[list[dict[str, Any]], dict[str, Any]], Any], str]] = {
    "a subject of a name twice": (lambda s, p: s.append({**s[0], "digest": {"sha256": "0" * 64}}), "attestation_malformed"),
    "a subject of no name": (lambda s, p: s[0].update(name=""), "attestation_malformed"),
    "a clause less": (lambda s, p: p["clauses"].pop(), "predicate_inconsistent"),
    "a milder clause": (lambda s, p: p["clauses"][1].update(severity="L1"), "predicate_inconsistent"),
    "evidence that is none": (lambda s, p: p.update(evidence=[{"name": "x", "digest": {"sha256": "x"}}]), "attestation_malformed"),
}  # fmt: skip


@pytest.mark.parametrize("name", SIGNED)
def test_what_the_right_key_signed_is_read_with_care_too(there: World, name: str) -> None:
    change, expected = SIGNED[name]
    made = there.statements(result(there.fingerprint()))
    subjects, predicate = made[0]["subject"], made[0]["predicate"]
    del predicate["statements"]
    change(subjects, predicate)
    there.sign(bundle(subjects, predicate))
    assert slugs(there.check()) == [expected]


@pytest.mark.parametrize("odd", [[], [[]], None, [None], [{"predicateType": [], "sha256": {}}]], ids=str)
def test_names_of_statements_that_are_no_names(there: World, odd: object) -> None:
    made = there.statements(result(there.fingerprint()))
    made[0]["predicate"]["statements"] = odd
    there.sign(made)
    assert slugs(there.check())[0] in ("attestation_malformed", "attestation_incomplete")


def test_what_serves_and_does_not_say_is_told(there: World) -> None:
    silent = fingerprint(weights=there.fingerprint().fields["weights"])
    found = there.check(there.given(fingerprint=silent))
    assert not found.findings
    assert "kernels, of which --fingerprint says nothing" in found.not_compared


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"p_pass": -1.0}, "is no p-value"),
        ({"p_pass": 1.5}, "is no p-value"),
        ({"requests": -5}, "is no count"),
        ({"requests": 0.5}, "is no count"),
        ({"requests": 10**400}, "is no count"),
        ({"p_pass": None}, "no evidence for it is there"),
        ({"kind": "none"}, "of another kind"),
        ({"kind": []}, "of another kind"),
    ],
    ids=str,
)
def test_evidence_that_no_run_gives_is_not_signed(there: World, changes: dict[str, Any], reason: str) -> None:
    made = result(there.fingerprint())
    made["measured"]["clauses"][0]["evidence"].update(changes)
    with pytest.raises(InputError, match=reason) as refusal:
        there.statements(made)
    assert refusal.value.diagnostics[0].code.slug == "attest_refused"


@pytest.mark.parametrize("value", [None, 1, "true"], ids=str)
def test_a_result_that_does_not_say_whether_it_is_whole(there: World, value: object) -> None:
    made = result(there.fingerprint()) | {"complete": value}
    with pytest.raises(InputError, match="is no result"):
        there.statements(made)
    del made["complete"]
    with pytest.raises(InputError, match="is no result"):
        there.statements(made)


@pytest.mark.parametrize(
    ("mode", "fine"), [(0o600, True), (0o400, True), (0o640, True), (0o644, False), (0o620, False)]
)
def test_a_private_key_that_others_may_read(there: World, mode: int, fine: bool) -> None:
    Path(there.private).chmod(mode)
    if fine:
        keys.private_key(there.private)
        return
    with pytest.raises(InputError, match="chmod 600") as refusal:
        keys.private_key(there.private)
    assert refusal.value.diagnostics[0].code.slug == "key_invalid"


@pytest.mark.parametrize("text", ["1e999", "-1e999", "[1e400]", '{"a": 1E+309}'])
def test_a_number_that_no_double_holds_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="larger than any double"):
        strict(text)
    assert strict("[1e308, 1e-999, 5]") == [1e308, 0.0, 5]


def test_evidence_with_a_key_twice_is_refused() -> None:
    from kcverify.delivery.evidence import read_json

    text = json.dumps({"digest": "x", "clauses": []})[:-1] + ', "digest": "y"}'
    with pytest.raises(InputError, match="the key 'digest' occurs twice"):
        read_json("e.json", text.encode(), contract(), "y")
