"""Every shipped contract gives what its first line says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kcverify import driver
from kcverify.prove.check import check

CONTRACTS = [
    path
    for path in sorted((Path(__file__).parents[2] / "contracts").rglob("*.kc"))
    if "\nkernel contract " not in path.read_text(encoding="utf-8")  # those run: tests/unit/conformance
]
VERDICTS = {"proved": "PROVED", "refuted": "REFUTED", "unknown": "UNKNOWN"}


def expectations(path: Path) -> dict[str, list[str]]:
    """`# expect: exit 0; proved a, b; dead k3` as a mapping."""
    first = path.read_text(encoding="utf-8").splitlines()[0]
    match = re.fullmatch(r"# expect: (.+)", first)
    assert match, f"{path.name}: line 1 states no expectation"
    out: dict[str, list[str]] = {}
    for part in match[1].split(";"):
        word, _, rest = part.strip().partition(" ")
        out.setdefault(word, []).extend(x.strip() for x in rest.split(","))
    return out


def test_at_least_six_are_shipped():
    assert len(CONTRACTS) >= 6


@pytest.mark.parametrize("path", CONTRACTS, ids=lambda p: p.stem)
def test_contract_gives_what_line_1_says(path):
    expected = expectations(path)
    contracts = driver.load(path)
    checked = [check(c) for c in contracts]
    assert max((c.exit_code for c in checked), key=[0, 3, 1].index) == int(expected.pop("exit")[0])
    if "derive" in expected:
        (wanted,) = expected.pop("derive")
        derived = driver.derive(contracts[0])
        assert derived.exit_code == int(wanted.removeprefix("exit "))
        assert derived.checked is not None
        assert all(v.status == "PROVED" for v in derived.checked.verdicts)
    verdicts = {v.claim.name: v.status.value for c in checked for v in c.verdicts}
    for word, status in VERDICTS.items():
        for name in expected.pop(word, []):
            assert verdicts.pop(name) == status, name
    assert not {n: s for n, s in verdicts.items() if s == "REFUTED"}, "a refutation that line 1 does not announce"
    found = [(d.code.slug, d.message) for c in checked for d in c.report.diagnostics]
    for slug, names in expected.items():
        for name in names:
            assert any(s == slug and f"`{name}`" in m for s, m in found), (slug, name, found)
    assert {s for s, _ in found} <= set(expected), found
