"""Tests of the tests: every shipped kernel contract rejects every kernel that passes without the work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from kcverify.conformance import contract as run
from kcverify.conformance.cheats import NAMES, cheats, right_for
from kcverify.conformance.isolate import kernels_of
from kcverify.conformance.model import Verdict
from kcverify.conformance.table import ROWS

ROOT = Path(__file__).parents[3] / "contracts"
SHIPPED = [p for p in sorted(ROOT.rglob("*.kc")) if "\nkernel contract " in p.read_text(encoding="utf-8")]


def prepared(path):
    (contract,) = kernels_of(path.read_text(encoding="utf-8"), path.name)
    row, given, how = run.prepared(contract, path.name)
    return contract, row, given, replace(how, trials=2, distributions=how.distributions[:1], asked=0)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_a_shipped_contract_rejects_every_kernel_without_work(path):
    contract, row, given, how = prepared(path)
    if row.id == "C-ORD-03":
        pytest.skip("its kernels run in processes of a group: samples.all_reduce_local stands for them")
    for name in NAMES:
        kernel = cheats(right_for(contract.scope.operation, given))[name]
        found = run.limited(row, kernel, contract, given, how)
        assert found.verdict in (Verdict.VIOLATION, Verdict.UNDER_SPECIFIED), (name, found.worst())
        if found.verdict is Verdict.UNDER_SPECIFIED:
            assert path.parent.name == "published", name


def test_every_class_has_a_shipped_contract():
    assert {prepared(path)[1].id for path in SHIPPED} == {row.id for row in ROWS}
