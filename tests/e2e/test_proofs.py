"""The Coq library and the Coq files of contracts compile, and rest on nothing but the standard library's real numbers."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kcverify import driver
from kcverify.emit.coq import emit_coq
from kcverify.prove.check import check
from kcverify.source import Source

PROOFS = Path(__file__).parents[2] / "proofs"
SOURCES = sorted(PROOFS.rglob("*.v"))
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


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.name)
def test_no_hole_and_no_axiom(path):
    text = re.sub(r"\(\*.*?\*\)", "", path.read_text(encoding="utf-8"), flags=re.S)
    assert not re.search(r"\b(Axiom|Admitted|admit|Conjecture|Parameter)\b", text)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources; the first test that runs `check.sh` compiles it for the others."""
    copy = tmp_path_factory.mktemp("coq") / "proofs"
    rest = shutil.ignore_patterns("*.vo", "*.vok", "*.vos", "*.glob", ".*.aux", ".*.cache")
    shutil.copytree(PROOFS, copy, ignore=rest)
    return copy


def audited(library: Path, *files: Path) -> str:
    """What `check.sh` prints, which must accept the files."""
    words = ["sh", "proofs/check.sh", *map(str, files)]
    done = subprocess.run(words, cwd=library.parent, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.needs("coq")
def test_library_compiles_and_its_assumptions_are_audited(library: Path) -> None:
    assert audited(library).count("statements proved") == 1 + len(list((PROOFS / "examples").glob("*.v")))


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
def test_coq_compiles_every_claim_and_those_of_a_shipped_contract(library: Path, tmp_path: Path) -> None:
    (first,) = driver.load(PROOFS.parent / "contracts" / "rl_rollout.kc")
    files = [tmp_path / "contract_every.v", tmp_path / "contract_first.v"]
    for path, source in zip(files, (every(), emit_coq(check(first))), strict=True):
        assert "Theorem" in source
        path.write_text(source, encoding="utf-8")
    assert audited(library, *files).count("statements proved") == 2
