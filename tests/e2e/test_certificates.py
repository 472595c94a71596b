"""Certificates of the shipped contracts, by the commands that a user runs; their Coq files are in test_proofs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kcverify import driver
from kcverify.cli import certificates, main
from kcverify.prove import kernel
from kcverify.prove.certificate import certificate, statement, text
from kcverify.prove.check import check

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "contracts").glob("*.kc"))


def command(*words):
    assert certificates.certificates
    with pytest.raises(SystemExit) as stop:
        main(["certificate", "check", *map(str, words)])
    return stop.value.code


def write(folder, contract_file):
    path = folder / f"{contract_file.stem}.json"
    path.write_text(text([certificate(check(c)) for c in driver.load(contract_file)]))
    return path


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_a_shipped_contract_is_certified_claim_by_claim(path, tmp_path, capsys):
    verdicts = {v.claim.name: v.status.value for c in driver.load(path) for v in check(c).verdicts}
    written = write(tmp_path, path)
    doc = json.loads(written.read_text())
    decided = [n for n, s in verdicts.items() if s != "UNKNOWN"]
    missing = [c["name"] for c in doc["claims"] if "not_certified" in c and c["verdict"] != "UNKNOWN"]
    assert {c["name"] for c in doc["claims"]} == set(verdicts)
    assert not missing, "a verdict without a certificate: say so in docs/certificates.md"
    assert command(written, "--contract", path) == (0 if decided else 1)
    out = capsys.readouterr().out
    for name in decided:
        assert f"{verdicts[name]} {name}:" in out
    assert kernel.main([str(written)]) == command(written)


@pytest.mark.parametrize("path", sorted((ROOT / "contracts").rglob("*.kc")), ids=lambda p: p.stem)
def test_every_decided_claim_of_every_contract_is_certified(path):
    for contract in driver.load(path):
        doc = certificate(check(contract))
        decided = [c for c in doc["claims"] if c["verdict"] != "UNKNOWN"]
        assert all("not_certified" not in c for c in decided), "a verdict without a certificate: say so in the docs"
        if decided:
            assert sum(line.split()[0] in ("PROVED", "REFUTED") for line in statement(doc)) == len(decided)


def test_check_says_what_is_certified_and_what_is_not(tmp_path, capsys):
    words = [
        "check",
        str(ROOT / "contracts/published/p6_trust_region_masking.kc"),
        "--certificate",
        str(tmp_path / "c.json"),
    ]
    with pytest.raises(SystemExit):
        main(words)
    out = capsys.readouterr().out
    assert "  certified: PROVED typical by " in out
    assert "  not certified: UNKNOWN single: an open verdict" in out
    with pytest.raises(SystemExit):
        main([*words, "--format", "json"])
    first = json.loads(capsys.readouterr().out)["files"][0]["contracts"][0]["certificate"]
    assert {c["guarantee"]: c["certified"] for c in first} == {"typical": True, "single": False, "whole": True}
    assert all(c["reason"] for c in first if not c["certified"])


def test_exit_codes(tmp_path, capsys):
    good = write(tmp_path, ROOT / "contracts" / "rl_rollout.kc")
    changed = tmp_path / "changed.json"
    changed.write_text(good.read_text().replace('"0.05"', '"0.06"'))
    noise = tmp_path / "noise.json"
    noise.write_text("[]")
    assert command(good) == 0
    assert command(changed) == 1
    assert "seal" in capsys.readouterr().out
    assert command(noise) == 2
    assert command(tmp_path / "absent.json") == 2
    assert command(good, "--contract", ROOT / "contracts" / "budget.kc") == 1
    assert command(good, noise) == 2


def test_several_contracts_share_a_file(tmp_path):
    docs = [certificate(check(driver.load(p)[0])) for p in SHIPPED if p.stem in ("int4_edge", "deploy_int8")]
    path = tmp_path / "two.json"
    path.write_text(text(docs))
    assert command(path) == 0 and kernel.main([str(path)]) == 0
