"""A dump in five shards, its contract, and the answer of a serial run."""

from __future__ import annotations

from pathlib import Path

import pytest
from sharded_dumps import TEXT, run, text, written

from kcverify import driver
from kcverify.elaborate.contract import Contract
from kcverify.source import Source


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("dump"))


@pytest.fixture(scope="module")
def contract() -> Contract:
    (found,) = driver.load_source(Source("c.kc", TEXT)).contracts
    return found


@pytest.fixture(scope="module")
def serial(contract: Contract, dump: Path) -> str:
    return text(run(contract, dump))
