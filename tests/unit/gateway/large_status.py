"""The status of a gateway that watches many clauses with long names on many slices."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from kcverify import driver
from kcverify.delivery.machine import plan_of
from kcverify.elaborate.contract import Contract
from kcverify.gateway.cells import Facts
from kcverify.gateway.core import Gateway
from kcverify.gateway.guard import Guard
from kcverify.gateway.measures import Rows
from kcverify.gateway.measuring import Measuring
from kcverify.gateway.observed import listed
from kcverify.gateway.settings import Settings, checked_urls
from kcverify.gateway.status import status
from kcverify.routing.health import Where, watched
from kcverify.routing.table import Router, table_of
from kcverify.source import Source

FORMS = ("tv <= 0.1 except 20%", "mean tv <= 0.1", "tv <= 0.9", "token_log_ratio <= 1 except 5% unit token")
SLICES = 5
TOKENS = 12


def contract(clauses: int) -> Contract:
    """So many clauses on five slices each."""
    names = [f"slice_of_customers_with_a_long_name_{i}" for i in range(SLICES)]
    text = "\n".join(
        f"a_rather_long_name_of_a_clause_about_drift_in_languages_number_{i}: {FORMS[i % 4]} on {', '.join(names)} -> L{1 + i % 3}"
        for i in range(clauses)
    )
    slices = "\n".join(f'slice {n} = tag("{n}")' for n in names)
    whole = f"""contract large version "1"
assume {{ temperature = 1; vocabulary = 12; traffic = 100 requests/s; independent tokens }}
{slices}
numerical {{
{text}
}}
escalate {{ L1 -> log; L2 -> guard; L3 -> rollback }}
promote {{ shadow {{ for 0 s }}; full {{ stable 0 s }} }}
"""
    loaded = driver.load_source(Source("large.kc", whole))
    assert not loaded.report.errors, loaded.report.errors
    return loaded.contracts[0]


def _rows(rng: np.random.Generator) -> Rows:
    z = rng.normal(0, 2, (TOKENS, 12))
    both = [x - np.logaddexp.reduce(x, 1)[:, None] for x in (z, z + rng.normal(0, 1.5, z.shape))]
    sides = [listed([float(r[0]) for r in x], [[(j, float(v)) for j, v in enumerate(r)] for r in x], 12) for x in both]
    return Rows((0,) * TOKENS, sides[0], sides[1], 1e-5, 1.0, True, 12, ((0, 5), (5, TOKENS)))


async def _status(made: Contract, store: Path) -> dict[str, Any]:
    urls = {"reference": "http://reference-with-a-long-name.models.svc.cluster.local:8001", "candidate": "http://c:2"}
    gateway = Gateway(made, Settings(checked_urls(urls), "salt"), str(store))
    gateway.state, events = await gateway.keeper.call(gateway.keeper.known)
    gateway.events.extend(events)
    cells, gateway.not_watched = watched(made, plan_of(made), 1.0)
    gateway.guard = Guard(made, cells, 1)
    gateway.router = Router(table_of(made, gateway.state, salt="s"))
    measuring, rng = Measuring(gateway), np.random.default_rng(1)
    tags = [frozenset(s.name for s in made.slices if i % 2 or s.name[-1] != "4") for i in range(12)]
    for i, tagged in enumerate(tags):
        gateway.guard.add(Facts(f"request-{i:032x}", 1, 1.0, _rows(rng), tags=tagged), Where("candidate", "", 0))
        gateway.guard.remember(gateway.clock.now())
    await gateway.flush()
    found = status(gateway, measuring, await gateway.keeper.call(gateway.keeper.evidence))
    await gateway.keeper.close()
    return dict(json.loads(json.dumps(found)))


def large(clauses: int, store: Path) -> tuple[Contract, dict[str, Any]]:
    """A contract and what `/admin/status` says of it after a few requests, most of them far from the reference."""
    made = contract(clauses)
    with ThreadPoolExecutor(1) as thread:  # a browser's loop may run in this one
        return made, thread.submit(asyncio.run, _status(made, store)).result()
