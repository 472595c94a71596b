"""What is measured is decided before its outcome is known, what waits is bounded, and what is lost is told."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from kcverify import driver
from kcverify.delivery import chain
from kcverify.delivery.machine import plan_of
from kcverify.delivery.state import apply, started
from kcverify.gateway.asked import Asked
from kcverify.gateway.cells import values_of
from kcverify.gateway.core import Gateway
from kcverify.gateway.exchange import Seen, observed, parses
from kcverify.gateway.guard import Guard
from kcverify.gateway.measuring import Measuring
from kcverify.gateway.settings import Limits, Settings, checked_urls
from kcverify.gateway.shown import sections
from kcverify.gateway.status import status as status_of
from kcverify.gateway.upstream import Fault
from kcverify.routing.table import Router, RouteTable, table_of
from kcverify.source import Source

TEXT = """contract queued version "1"
assume { temperature = 1; vocabulary = 8 }
numerical { share: tv <= 0.1 except 50% -> L2 }
runtime { slow: p90 latency <= 2 s -> L2; first: p90 time_to_first_token <= 1 s -> L2; errors: failure_rate <= 20% -> L2;
          parsed: parse_rate >= 50% -> L2 }
escalate { L2 -> guard, recover 10 requests }
promote { shadow { for 0 s }; full { stable 0 s } }
"""
MADE = driver.load_source(Source("queued.kc", TEXT)).contracts[0]
ROUTED = RouteTable(1, {"candidate": Fraction(1)}).routed("r")
ANSWER = json.dumps({"choices": [{"text": "{}"}]}).encode()


def asked(number: int = 0, **fields: Any) -> Asked:
    return Asked(f"r{number}", "completions", b"", fields, {}, 0.0, 0, ROUTED)


def run(folder: Path, limits: Mapping[str, int], body: Callable[[Gateway, Measuring], Awaitable[None]]) -> None:
    async def whole() -> None:
        urls = checked_urls({"reference": "http://127.0.0.1:1", "candidate": "http://127.0.0.1:2"})
        gateway = Gateway(MADE, Settings(urls, "salt", limits=replace(Limits(), **limits)), str(folder / "s.db"))
        gateway.guard = Guard(MADE, ())
        await body(gateway, Measuring(gateway))

    asyncio.run(whole())


def test_places_are_given_before_the_candidate_is_asked(tmp_path: Path) -> None:
    async def body(gateway: Gateway, measuring: Measuring) -> None:
        requests = [asked(i) for i in range(6)]
        for one in requests[:5]:
            measuring.admit(one)
        assert [r.admitted for r in requests] == [True] * 3 + [False] * 3
        assert (gateway.counts["dropped_queue"], measuring.admitted) == (2, 3)
        measuring.forget(requests[0])  # the client was wrong: nothing is measured
        measuring.admit(requests[5])
        assert requests[5].admitted and measuring.admitted == 3
        for one in requests:  # however each of them ends
            measuring.offer(Seen(one, None, 1.0, None, "timeout"))
            measuring.offer(Seen(one, ANSWER, 1.0, None, size=len(ANSWER)))
            measuring.forget(one)
        assert measuring.waiting == measuring.admitted == 3, "who has a place keeps it, and hands over once"
        text = gateway.metrics.text().decode()
        assert 'kcverify_dropped_total{what="queue"} 2.0' in text and "kcverify_measuring_waiting 3.0" in text
        assert "kcverify_measuring_behind_seconds" in text

    run(tmp_path, {"queue": 3}, body)


@pytest.mark.parametrize("fails", [False, True])
def test_who_is_measured_does_not_depend_on_the_outcome(tmp_path: Path, fails: bool) -> None:
    """Sixteen clients, of which every third answer is large, or fails: the same requests are lost."""

    async def body(gateway: Gateway, measuring: Measuring) -> None:
        kept: list[int] = []
        for start in range(0, 160, 16):
            batch = [asked(i) for i in range(start, start + 16)]
            for one in batch:
                measuring.admit(one)
            for i, one in enumerate(batch, start):
                odd = i % 3 == 0
                measuring.offer(Seen(one, None if odd and fails else ANSWER, 1.0, None, size=300 if odd else 10))
                kept += [i] if one.offered else []
            assert measuring.waiting_bytes <= 5000
        assert kept == list(range(40)) and measuring.waiting == 40
        assert gateway.counts["dropped_queue"] == 120

    run(tmp_path, {"queue": 40, "queue_bytes": 10_000}, body)


def test_an_answer_that_does_not_fit_any_more_counts_as_one_that_shows_nothing(tmp_path: Path) -> None:
    """It is not dropped: large answers alone would be missing from the evidence."""

    async def body(gateway: Gateway, measuring: Measuring) -> None:
        requests = [asked(i) for i in range(4)]
        for one in requests:
            measuring.admit(one)
        for one in requests[:3]:
            measuring.offer(Seen(one, ANSWER, 1.0, 0.5, size=400))
        assert measuring.waiting_bytes == 800
        late = asked(9)
        measuring.admit(late)
        assert not late.admitted and gateway.counts["dropped_queue_bytes"] == 1
        found = [measuring._queue.get_nowait() for _ in range(3)]
        assert [s.shed for s in found] == [False, False, True]
        read, facts = measuring._facts(found[2])
        values = values_of(gateway.guard.cells, {}, facts)
        assert read == () and values["share"].record.missing == 1 and "queue_bytes" in values["share"].reason
        assert values["errors"].low == values["slow"].low == values["first"].low == 0.0, "the exchange is known"

    run(tmp_path, {"queue_bytes": 1000}, body)


def test_a_client_that_leaves_has_shown_what_it_got(tmp_path: Path) -> None:
    """Tokens that were served count; of the time to the end only what has passed is known."""

    async def body(gateway: Gateway, measuring: Measuring) -> None:
        for seconds, slow in ((1.0, None), (3.0, 1.0)):
            seen = Seen(
                asked(response_format={"type": "json_object"}), {"choices": [{"text": "{"}]}, seconds, 0.5, left=True
            )
            values = values_of(gateway.guard.cells, {}, measuring._facts(seen)[1])
            assert ("slow" in values, values["errors"].low, values["first"].low) == (slow is not None, 0.0, 0.0)
            assert slow is None or values["slow"].low == slow
            assert "parsed" not in values

    run(tmp_path, {}, body)


@pytest.mark.parametrize(("status", "counted"), [(200, True), (400, False), (0, False)])
def test_a_copy_that_is_refused_fails_where_the_client_was_answered(tmp_path: Path, status: int, counted: bool) -> None:
    async def body(gateway: Gateway, measuring: Measuring) -> None:
        async def refusal(*_: object) -> Seen:
            raise Fault("refused", "status 400", 400)

        measuring._copy_of = refusal  # type: ignore[method-assign]
        one = asked()
        measuring.copy(one, "/v1/completions")
        await asyncio.sleep(0.01)
        one.status = status
        async with asyncio.timeout(20):
            while measuring.copies:
                await asyncio.sleep(0.01)
        assert (measuring.waiting, measuring.admitted) == (int(counted), int(counted))
        assert gateway.counts["dropped_refused_copy"] == int(not counted)
        assert gateway.upstream("candidate").health.failures == int(counted)

    run(tmp_path, {}, body)


def test_every_choice_must_parse() -> None:
    wanted = asked(response_format={"type": "json_schema"})
    for texts, parsed in ((["{}", "[1]"], True), (["{}", "{"], False), ([], False)):
        assert parses(wanted, {"choices": [{"text": t} for t in texts]}) is parsed
    assert parses(asked(), {"choices": [{"text": "{}"}]}) is None
    assert observed(Seen(wanted, None, 1.0, None), None)["latency"] == math.inf


def test_what_is_lost_and_what_waits_is_on_the_page(tmp_path: Path) -> None:
    async def body(gateway: Gateway, measuring: Measuring) -> None:
        begun = chain.follow(None, "started", 0, started("queued", "sha256:0", plan_of(MADE)))
        gateway.state, gateway.not_watched = apply(None, begun), {}
        gateway.router = Router(table_of(MADE, gateway.state, salt="s"))
        for i in range(3):
            measuring.admit(asked(i))
        document = status_of(gateway, measuring, [])
        traffic = document["traffic"]
        assert (traffic["dropped"], traffic["admitted"], traffic["waiting"], traffic["behind"]) == (
            {"queue": 2},
            1,
            0,
            0.0,
        )
        assert document["sampler"]["seen"] == 0 and document["sampler"]["health"] == 1.0
        pages = sections(MADE, document)
        assert ">queue<" in pages["unseen"] and "Waited" in pages["traffic"]

    run(tmp_path, {"queue": 1}, body)
