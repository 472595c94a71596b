"""What `attest` and `keygen` refuse to sign, to name or to overwrite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from provenance_cases import DAY, START, contract, result, slugs, world

from kcverify.diagnostics import InputError

pytest.importorskip("securesystemslib")

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as elliptic
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from kcverify.cli.provenance import clock
from kcverify.provenance import attest, keys, verify
from kcverify.provenance import kernels as kernel_fields
from kcverify.provenance.statement import DERIVED, KERNEL_CONTRACT, SVR, TEST_RESULT

REFUSED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another contract": (lambda r: r["contract"].update(digest="sha256:0"), "is about the contract"),
    "another contract below": (lambda r: r["measured"].update(digest="sha256:0"), "is about the contract"),
    "half a run": (lambda r: r.update(complete=False), "its clauses give 'inconclusive'"),
    "an edited verdict": (lambda r: r["measured"]["clauses"][0].update(verdict="fail"), "its clauses give 'fail'"),
    "a clause left out": (lambda r: r["measured"]["clauses"].pop(), "not every clause"),
    "an unknown verdict": (lambda r: r["measured"]["clauses"][0].update(verdict="fine"), "is no result"),
    "no provenance": (lambda r: r.pop("provenance"), "does not say what was measured"),
    "no clauses": (lambda r: r["measured"].pop("clauses"), "is no result"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_attest_refuses_a_result(name: str, tmp_path: Path) -> None:
    there = world(tmp_path)
    change, reason = REFUSED[name]
    made = result(there.fingerprint())
    change(made)
    with pytest.raises(InputError, match=reason) as refusal:
        there.statements(made)
    assert refusal.value.diagnostics[0].code.slug == "attest_refused"


def test_attest_refuses_files_that_were_not_measured(tmp_path: Path) -> None:
    there = world(tmp_path)
    made = result(there.fingerprint())
    with pytest.raises(InputError, match="were measured and not given"):
        there.statements(made, weights=[str(there.weights / "model-1.safetensors")])
    there.kernel.write_text("def run(x): return x\n")
    with pytest.raises(InputError, match="are not those that were measured"):
        there.statements(made)
    with pytest.raises(InputError, match="was not given"):
        there.statements(made, kernels=[])
    with pytest.raises(InputError, match="does not say which weights"):
        there.statements(result(there.fingerprint(weights="")))
    with pytest.raises(InputError) as inside:
        attest.outside(there.kernel, attest.Setting("r", [str(there.weights)], [str(there.kernel)], 0, 1))
    assert inside.value.diagnostics[0].code.slug == "attest_inside"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"p_pass": 1.0, "p_fail": 0.0}, "does not reach its threshold"),
        ({"p_pass": 0.06}, "does not reach its threshold"),
        ({"p_fail": 0.001}, "against it reached its threshold"),
        ({"p_pass": None, "log_e_pass": 2.99}, "does not reach its threshold"),
        ({"p_pass": None, "log_e_pass": "-inf"}, "does not reach its threshold"),
        ({"requests": 0}, "nothing was measured"),
        ({"kind": "maximum", "p_pass": None, "p_fail": None, "exceeding_rows": 1}, "after enough clean requests"),
        ({"kind": "maximum", "p_pass": None, "p_fail": None, "requests": 298}, "after enough clean requests"),
        ({"p_pass": "small"}, "cannot be read"),
    ],
    ids=str,
)
def test_a_verdict_that_its_own_numbers_contradict_is_not_signed(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """A result that was edited by hand: the word says pass, the numbers beside it do not."""
    there = world(tmp_path)
    made = result(there.fingerprint())
    made["measured"]["clauses"][0]["evidence"].update(changes)
    with pytest.raises(InputError, match=reason) as refusal:
        there.statements(made)
    assert refusal.value.diagnostics[0].code.slug == "attest_refused"


def test_a_failing_clause_cannot_be_switched_off_or_made_milder(tmp_path: Path) -> None:
    there = world(tmp_path)
    made = result(there.fingerprint(), ("pass", "fail"))
    made["measured"]["clauses"][1]["verdict"] = "not_enforced"
    made["verdict"] = "pass"
    with pytest.raises(InputError, match="it is enforced"):
        there.statements(made)
    made = result(there.fingerprint())
    made["measured"]["clauses"][1]["severity"] = "L1"
    with pytest.raises(InputError, match="its severity is another"):
        there.statements(made)
    del made["measured"]["clauses"][0]["evidence"]
    with pytest.raises(InputError, match="cannot be read"):
        there.statements(made)


def test_a_shipped_kernel_is_the_format_that_its_name_says(tmp_path: Path) -> None:
    """Kernels of two formats are the same source files: one is not signed, or accepted, for the other."""
    there = world(tmp_path)

    def measured(form: str) -> dict[str, Any]:
        shipped = kernel_fields.fields(kernel_fields.resolve(f"demo:{form}"), "build 1")
        made = result(there.fingerprint(**shipped))
        made["pair"]["candidate"] = f"demo:{form}"
        return made

    with pytest.raises(InputError, match=r"kernels demo:int4 kernels.py .* are not those that were measured"):
        there.statements(measured("int8"), kernels=["demo:int4"])
    renamed = measured("int8")
    renamed["pair"]["candidate"] = "demo:int4"
    with pytest.raises(InputError, match="are not those that were measured"):
        there.statements(renamed, kernels=[])
    there.sign(there.statements(measured("int8"), kernels=[]))
    for kernels, wanted in (
        (["demo:int8"], []),
        ([], []),
        (["demo:int4"], ["subject_missing"] * 2 + ["subject_unattested"] * 2),
        (["demo:int8", "demo:int4"], ["subject_unattested"] * 2),
    ):
        given = verify.Given(START, contract(), weights=[str(there.weights)], kernels=kernels)
        assert slugs(there.check(given)) == wanted, kernels


def test_times_have_four_digits_of_a_year(tmp_path: Path) -> None:
    there = world(tmp_path)
    start = clock("0001-01-01")
    there.sign(there.statements(result(there.fingerprint()), start=start, end=start + DAY))
    assert slugs(there.check(there.given(now=start))) == []


@pytest.mark.parametrize(
    ("verdicts", "code", "word"), [(("pass", "fail"), 1, "FAILED"), (("pass", "unobservable"), 3, "WARNED")]
)
def test_a_failure_is_signed_only_where_it_is_stated(
    tmp_path: Path, verdicts: tuple[str, str], code: int, word: str
) -> None:
    there = world(tmp_path)
    made = result(there.fingerprint(), verdicts)
    with pytest.raises(InputError, match="the verdict is"):
        there.statements(made)
    statements = there.statements(made, record_failure=True)
    there.sign(statements)
    found = there.check()
    assert (slugs(found), found.exit_code) == ([], code)
    by_kind = {s["predicateType"]: s["predicate"] for s in statements}
    assert set(by_kind) == {KERNEL_CONTRACT, *DERIVED}
    assert by_kind[TEST_RESULT]["result"] == word
    assert "KCVERIFY_CONTRACT_PASS" not in by_kind[SVR]["properties"]


def test_keys_are_refused_and_never_replaced(tmp_path: Path) -> None:
    private, public = keys.generate(tmp_path / "k")
    assert private.stat().st_mode & 0o077 == 0
    with pytest.raises(InputError, match="never replaced"):
        keys.generate(tmp_path / "k")
    other = elliptic(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "ec").write_bytes(other)
    for read, path in ((keys.private_key, public), (keys.public_key, private), (keys.private_key, tmp_path / "ec")):
        with pytest.raises(InputError) as wrong:
            read(str(path))
        assert wrong.value.diagnostics[0].code.slug == "key_invalid"


def test_half_a_pair_of_keys_is_never_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full, a name that cannot be written: no file stays, so that the next try is not refused."""

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kcverify.provenance.keys.os.fsync", full)
    with pytest.raises(InputError, match="no space left"):
        keys.generate(tmp_path / "k")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    (tmp_path / "dir").mkdir()
    (tmp_path / "k.pub").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path / ("a" * 300), Path(), tmp_path / "dir", tmp_path / "k", tmp_path / "none" / "k"):
        with pytest.raises(InputError) as wrong:
            keys.generate(path)
        assert wrong.value.diagnostics[0].code.slug == "file_unwritable"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dir", "k.pub"]
    private, public = keys.generate(tmp_path / "dir" / "k")
    assert (private.stat().st_mode & 0o777, public.stat().st_mode & 0o111) == (0o600, 0)
