"""Certificates and Coq files of the shipped contracts, by the commands that a user runs."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from kcverify import driver
from kcverify.cli import certificates, main
from kcverify.emit.coq import emit_coq
from kcverify.prove import kernel
from kcverify.prove.certificate import certificate, statement, text
from kcverify.prove.check import check
from kcverify.source import Source

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "contracts").glob("*.kc"))
EVERY = """contract every_claim version "1.0 (*"
  "Every claim that the library covers"

assume {
  temperature in [0.6, 1.0]
  sampler     = full_softmax
  horizon    <= 32 tokens
  reward     in [-1, 2]
  advantage  in [-2, 2]
  score_norm <= 1.5
}

numerical {
  drift: logit_drift <= 0.02 -> L2
}

guarantee {
  token_tv:  tv <= 0.02
  token_kl:  kl(reference || candidate) <= 0.001 nats
  token_klr: kl(candidate || reference) <= 0.001 nats
  ratio:     log_ratio <= 0.07
  reward_ok: reward_drift <= 0.5
  grad_ok:   pg_bias <= 1.0
  passes:    pass_rate_drift <= 0.2
  false_one: tv <= 0.001
}
"""


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


def every():
    (contract,) = driver.load_source(Source("every.kc", EVERY)).contracts
    return emit_coq(check(contract))


def test_the_coq_text_says_what_it_covers():
    source = every()
    comment = source[: source.index("*)")]
    assert "claim_grad_ok: proved below" in comment
    assert "claim_false_one: not covered, since its verdict is REFUTED" in comment
    assert source.count("(*") == source.count("*)")
    for name in ("token_tv", "token_kl", "token_klr", "ratio", "reward_ok", "grad_ok", "passes"):
        assert f"Theorem claim_{name}" in source
    assert "claim_false_one" not in source[len(comment) :]


@pytest.mark.slow
@pytest.mark.needs("coq")
def test_coq_compiles_the_claims_of_the_shipped_contracts(tmp_path):
    proofs = tmp_path / "proofs"
    shutil.copytree(ROOT / "proofs", proofs)
    sources = {p.stem: emit_coq(check(driver.load(p)[0])) for p in SHIPPED} | {"every": every()}
    files: list[Path] = []
    for name, source in sorted(
        sources.items(), key=lambda e: (e[0] != "every", len(e[1]))
    ):  # the long ones take minutes
        if "Theorem" in source and len(files) < 5:
            (tmp_path / f"contract_{name}.v").write_text(source)
            files.append(tmp_path / f"contract_{name}.v")
    assert len(files) >= 5
    call = ["sh", str(proofs / "check.sh"), *map(str, files)]
    run = subprocess.run(call, capture_output=True, text=True, timeout=500, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("statements proved") == len(files)
