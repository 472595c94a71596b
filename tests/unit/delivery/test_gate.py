"""The gate: a function of the merged evidence and of the clock that it is given."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from delivery_cases import HOUR, NOON, TEXT, contract, feed, records
from hypothesis import given, settings
from hypothesis import strategies as st

from kcverify.delivery import evidence, promotion
from kcverify.delivery.evidence import Evidence
from kcverify.delivery.gate import Decision, Question, evaluate
from kcverify.diagnostics import InputError
from kcverify.elaborate.contract import Contract
from kcverify.elaborate.form import digest

LIFT = contract()


def seen(made: Contract, requests: int, **bad: int) -> Evidence:
    return evidence.of_records("test", made, requests, records(made, requests, **bad))


def ask(made: Contract, stage: str, *sources: Evidence, **more: Any) -> Decision:
    requests = sum(s.requests for s in sources)
    return evaluate(made, Question(stage, requests, evidence.merged(sources, made), **more))


def test_offline_needs_its_requests_and_every_deciding_clause() -> None:
    assert ask(LIFT, "offline", seen(LIFT, 200)).verdict == "pass"
    few = ask(LIFT, "offline", seen(LIFT, 49))
    assert (few.verdict, few.exit_code) == ("inconclusive", 3)
    assert few.waiting == ("49 of at least 50 requests were seen",)
    nothing = ask(LIFT, "offline")
    assert nothing.verdict == "inconclusive"
    assert "drift: inconclusive, no evidence was given" in nothing.reasons


def test_a_failing_clause_fails_the_gate_whatever_else_is_missing() -> None:
    found = ask(LIFT, "shadow", seen(LIFT, 100, drift=60))
    assert (found.verdict, found.exit_code) == ("fail", 1)
    assert found.reasons[0].startswith("drift: fail")
    assert ask(LIFT, "offline", seen(LIFT, 100, far=1)).verdict == "fail"


def test_clauses_that_are_only_logged_do_not_decide() -> None:
    found = ask(LIFT, "offline", seen(LIFT, 200))
    soft = next(c for c in found.cells if c.clause == "soft")
    assert (soft.decides, soft.verdict, found.verdict) == (False, "inconclusive", "pass")
    strict = contract(TEXT.replace("L1 -> log", "L1 -> guard, dwell 10 minutes, recover 200 requests"))
    assert ask(strict, "offline", seen(strict, 200)).verdict == "inconclusive"


def without(found: Evidence, clause: str) -> Evidence:
    return Evidence(found.path, found.files, found.requests, tuple(c for c in found.cells if c.clause != clause))


def test_clauses_about_traffic_are_not_asked_for_offline_but_count_where_they_fail() -> None:
    assert ask(LIFT, "offline", without(seen(LIFT, 200), "errors")).verdict == "pass"
    assert ask(LIFT, "offline", seen(LIFT, 200, errors=90)).verdict == "fail"
    ready = {"held": 2 * HOUR, "stepped": 2 * HOUR, "calm": 2 * HOUR}
    assert ask(LIFT, "shadow", seen(LIFT, 300), **ready).verdict == "pass"
    assert ask(LIFT, "shadow", without(seen(LIFT, 300), "errors"), **ready).verdict == "inconclusive"


@pytest.mark.parametrize(
    ("stage", "clock", "told"),
    [
        ("shadow", {}, "the stage lasts at least 2 h, and how long it has been is not known"),
        ("shadow", {"held": 2 * HOUR - 1}, "the stage lasts at least 2 h, and 7200 s have passed"),
        ("shadow", {"held": -1000}, "the clock is 1 s behind the start of the stage"),
        ("canary", {"held": 9 * HOUR, "stepped": HOUR // 2}, "the share of traffic is held at least 1 h, and 30 min have passed"),
        ("full", {"held": 30 * HOUR, "calm": 3 * HOUR}, "the stage must be stable for at least 1 d, and 3 h have passed"),
        ("full", {"held": 3 * HOUR, "calm": 30 * HOUR}, "the stage must be stable for at least 1 d, and 3 h have passed"),
    ],
)  # fmt: skip
def test_minimum_times(stage: str, clock: Mapping[str, int], told: str) -> None:
    found = ask(LIFT, stage, seen(LIFT, 400), **clock)
    assert (found.verdict, found.waiting) == ("inconclusive", (told,))


def test_nothing_is_promoted_while_traffic_is_elsewhere() -> None:
    found = ask(LIFT, "offline", seen(LIFT, 200), route="guarded")
    assert found.waiting == ("traffic is on the route `guarded`, not on the candidate",)


def test_a_step_of_a_canary_needs_time_and_evidence_but_no_certificate() -> None:
    ready = {"held": HOUR, "stepped": HOUR, "calm": HOUR, "last_step": False}
    assert ask(LIFT, "canary", seen(LIFT, 5), **ready).verdict == "pass"
    assert ask(LIFT, "canary", **ready).verdict == "inconclusive"
    assert ask(LIFT, "canary", seen(LIFT, 50, drift=40), **ready).verdict == "fail"


FULL = {"held": 30 * HOUR, "stepped": 30 * HOUR, "calm": 30 * HOUR}


def cell(found: Decision, name: str) -> Any:
    return next(c for c in found.cells if c.clause == name)


def test_evidence_of_stages_multiplies_where_the_stage_has_no_minimum() -> None:
    first = ask(LIFT, "shadow", seen(LIFT, 300), **FULL)
    carried = first.carry({})
    few = seen(LIFT, 20)
    alone, together = ask(LIFT, "full", few, **FULL), ask(LIFT, "full", few, **FULL, carried=carried)
    assert (cell(alone, "drift").verdict, cell(together, "drift").verdict) == ("inconclusive", "pass")
    total = cell(first, "drift").log_e_pass + cell(alone, "drift").log_e_pass
    assert cell(together, "drift").log_e_pass_all == pytest.approx(total)
    assert cell(together, "drift").reason == "certified by the evidence of this stage and of those before it together"
    assert cell(together, "far").verdict == "pass"  # 20 + 300 clean requests of at least 50
    assert ask(LIFT, "shadow", few, **FULL, carried=carried).verdict == "inconclusive"  # it has a minimum of its own
    assert carried["drift"] == (pytest.approx(cell(first, "drift").log_e_pass), 300)


def test_a_clean_past_is_no_credit_for_a_broken_present() -> None:
    carried = ask(LIFT, "shadow", seen(LIFT, 100_000), **FULL).carry({})
    assert carried["drift"][0] is not None and carried["drift"][0] > 1000
    bad = ask(LIFT, "full", seen(LIFT, 40, drift=6), **FULL, carried=carried)
    assert cell(bad, "drift").log_e_pass < 0
    assert bad.verdict == "inconclusive"
    assert ask(LIFT, "full", seen(LIFT, 200, drift=60), **FULL, carried=carried).verdict == "fail"
    assert ask(LIFT, "full", seen(LIFT, 0), **FULL, carried=carried).verdict == "inconclusive"


def test_a_crossing_stays_decided_until_the_stage_restarts(tmp_path: Path) -> None:
    with promotion.start(str(tmp_path / "s.db"), LIFT, NOON) as store:
        feed(store, LIFT, 60, drift=40)
        assert promotion.gate_store(store, LIFT, [], NOON).verdict == "fail"
        assert store.state().decided["drift"] == "fail"
        feed(store, LIFT, 100_000)
        found = promotion.promote(store, LIFT, [], NOON + 1)
        assert (found.decision.verdict, found.moved) == ("fail", False)
        assert "it failed earlier in this stage" in found.decision.reasons[0]
        promotion.rollback(store, NOON + 2)
        feed(store, LIFT, 200)
        assert promotion.promote(store, LIFT, [], NOON + 3).moved


def test_asking_twice_records_once(tmp_path: Path) -> None:
    with promotion.start(str(tmp_path / "s.db"), LIFT, NOON) as store:
        feed(store, LIFT, 200)
        first = promotion.gate_store(store, LIFT, [], NOON)
        assert promotion.gate_store(store, LIFT, [], NOON).verdict == first.verdict == "pass"
        assert [e.kind for e in store.events()] == ["started", "decided"]


def report(made: Contract, requests: int, *, one_look: bool = False, **changes: Any) -> dict[str, Any]:
    """A monitor's report of clean requests, with what a gate reads of it; `changes` replace parts of `drift`."""
    clauses = []
    for one in seen(made, requests).cells:
        row: dict[str, Any] = {
            "name": one.clause, "slice": one.slice, "verdict": one.verdict, "reason": one.reason,
            "evidence": {
                "kind": one.kind, "requests": one.requests, "requests_needed": one.needed, "p_fail": None, "p_pass": None,
                "log_e_fail": one.log_e_fail, "log_e_pass": one.log_e_pass,
            },
        }  # fmt: skip
        if one_look and one.log_e_pass is not None:
            row["evidence"] |= {"p_fail": 1.0, "p_pass": 1e-4, "log_e_fail": None, "log_e_pass": None}
        if one.clause == "drift":
            row |= {k: v for k, v in changes.items() if k != "evidence"}
            row["evidence"] |= changes.get("evidence", {})
        clauses.append(row)
    looks = "one look" if one_look else "any number of looks"
    return {"contract": made.name, "digest": digest(made), "looks": looks, "requests": requests, "clauses": clauses}


def read(value: Any, path: str = "r.json") -> Evidence:
    return evidence.read_json(path, json.dumps(value).encode(), LIFT, digest(LIFT))


def test_results_of_measure_are_evidence() -> None:
    assert ask(LIFT, "offline", read(report(LIFT, 200))).verdict == "pass"
    whole = read({"measured": report(LIFT, 200), "complete": False})
    assert ask(LIFT, "offline", whole, faults=whole.faults).reasons == ("the run of r.json was not complete",)


def test_results_on_fresh_data_add_up() -> None:
    halves = [read(report(LIFT, 40), name) for name in "ab"]
    assert [ask(LIFT, "offline", one).verdict for one in halves] == ["inconclusive"] * 2
    together = ask(LIFT, "offline", *halves)
    assert cell(together, "drift").log_e_pass == pytest.approx(
        2 * cell(ask(LIFT, "offline", halves[0]), "drift").log_e_pass
    )
    assert (cell(together, "far").verdict, together.requests) == ("pass", 80)
    more = [read(report(LIFT, 70), name) for name in "ab"]
    assert [cell(ask(LIFT, "offline", one), "drift").verdict for one in more] == ["inconclusive"] * 2
    assert cell(ask(LIFT, "offline", *more), "drift").verdict == "pass"


def test_one_look_enters_as_a_calibrated_e_value() -> None:
    once = read(report(LIFT, 200, one_look=True))
    assert cell(ask(LIFT, "offline", once), "drift").log_e_pass == pytest.approx(math.log(0.5 / math.sqrt(1e-4)))
    assert "looked at once" in once.notes[0]


def test_invalid_rows_and_missing_inputs_survive_merging() -> None:
    bad = read(report(LIFT, 200, verdict="fail", reason="3 of 9 rows are invalid"))
    found = cell(ask(LIFT, "offline", read(report(LIFT, 400)), bad), "drift")
    assert (found.verdict, found.reason) == ("fail", "3 of 9 rows are invalid")
    blind = read(report(LIFT, 200, verdict="unobservable", reason="not given"))
    assert cell(ask(LIFT, "offline", read(report(LIFT, 400)), blind), "drift").verdict == "unobservable"


def test_readings_of_several_files_are_not_merged() -> None:
    once = report(LIFT, 200, verdict="pass", evidence={"kind": "reading", "log_e_fail": None, "log_e_pass": None})
    assert cell(ask(LIFT, "offline", read(once)), "drift").verdict == "pass"
    found = cell(ask(LIFT, "offline", read(once, "a"), read(once, "b")), "drift")
    assert (found.verdict, found.reason.split(":")[0]) == ("inconclusive", "evidence of this kind cannot be merged")


BROKEN: list[tuple[Any, str]] = [
    ([], "neither a result"),
    ({"clauses": 3}, "neither a result"),
    (report(LIFT, 200) | {"digest": "sha256:0"}, "it is about the contract sha256:0"),
    (report(LIFT, 200) | {"looks": "twice"}, "`looks` is 'twice'"),
    (report(LIFT, 200) | {"requests": -1}, "-1 is no count"),
    (report(LIFT, 200, verdict="fine"), "has the verdict 'fine'"),
    (report(LIFT, 200, name="other"), "not those of the contract"),
    (report(LIFT, 200, name="far"), "not those of the contract"),
    (report(LIFT, 200, evidence={"log_e_pass": "much"}), "'much' is no log e-value"),
    (report(LIFT, 200, evidence={"requests": True}), "True is no count"),
    (report(LIFT, 200, evidence={"requests": 2**60}), "1152921504606846976 is no count"),
    (report(LIFT, 200) | {"requests": 2**53 + 1}, "9007199254740993 is no count"),
    (report(LIFT, 200, evidence={"log_e_pass": 10**400}), "0... is no log e-value"),
    (report(LIFT, 200, reason=None), "None is no text"),
    (report(LIFT, 200, evidence={"kind": ["share"]}), "['share'] is no text"),
    (report(LIFT, 200, one_look=True, evidence={"p_pass": 2}), "2 is no p-value"),
    ({**report(LIFT, 200), "clauses": [{}]}, "a clause cannot be read"),
    ({**report(LIFT, 200), "clauses": [3]}, "a clause cannot be read"),
]


@pytest.mark.parametrize(("value", "reason"), BROKEN, ids=range(len(BROKEN)))
def test_evidence_that_cannot_be_read_is_named(value: Any, reason: str) -> None:
    with pytest.raises(InputError, match=r"r\.json") as caught:
        read(value)
    assert reason in str(caught.value)
    assert caught.value.diagnostics[0].code.slug == "evidence_invalid"


@pytest.mark.parametrize("text", [b"{", b"\xff", b"[" * 100_000, b'{"clauses": [NaN'])
def test_bytes_that_are_no_json(text: bytes) -> None:
    with pytest.raises(InputError, match="it is no JSON"):
        evidence.read_json("r.json", text, LIFT, digest(LIFT))


def test_a_file_counts_once(tmp_path: Path) -> None:
    one = read(report(LIFT, 200))
    with pytest.raises(InputError, match=r"it has the content of r.json"):
        promotion.gate_files(LIFT, "offline", [one, one])
    with promotion.start(str(tmp_path / "s.db"), LIFT, NOON) as store:
        assert promotion.promote(store, LIFT, [one], NOON).moved
        with pytest.raises(InputError, match="run 1 was decided with it"):
            promotion.promote(store, LIFT, [one], NOON + 2 * HOUR)


def test_stores_and_contracts_belong_together(tmp_path: Path) -> None:
    other = contract(TEXT.replace("0.05", "0.04"))
    with promotion.start(str(tmp_path / "s.db"), LIFT, NOON) as store:
        with pytest.raises(InputError, match="follows the contract `lift`"):
            promotion.promote(store, other, [], NOON)
        store.add(1, "w", 1, 9, records(other, 9) | records(LIFT, 9))
        store.add(1, "w", 2, 9, {"nobody": records(LIFT, 9)["drift"]})
        with pytest.raises(InputError, match="evidence of `nobody`"):
            promotion.gate_store(store, LIFT, [], NOON)


def test_evidence_for_another_limit_is_refused() -> None:
    other = contract(TEXT.replace("except 5%", "except 4%"))
    with pytest.raises(InputError, match=r"evidence of `drift` was gathered for another limit, 0.0399"):
        evidence.of_records("s.db", LIFT, 9, records(other, 9))
    with pytest.raises(InputError, match="do not add up"):
        records(LIFT, 9)["drift"].plus(records(other, 9)["drift"])


def test_holes_and_unknown_stages_are_refused() -> None:
    with pytest.raises(InputError, match="`drift` has no number yet"):
        promotion.gate_files(contract(TEXT.replace("<= 0.05", "<= ?")), "offline", [])
    with pytest.raises(InputError, match="has no stage `later`; it has `offline`"):
        promotion.gate_files(LIFT, "later", [])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 80), st.integers(0, 80), st.integers(0, 1)), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
)
def test_the_verdict_does_not_depend_on_who_counted_in_which_order(
    parts: list[tuple[int, int, int]], chance: random.Random
) -> None:
    def decision(some: list[tuple[int, int, int]]) -> Decision:
        whole: dict[str, Any] = {}
        for requests, drift, far in some:
            for name, record in records(LIFT, requests, drift=min(drift, requests), far=far).items():
                whole[name] = whole[name].plus(record) if name in whole else record
        total = sum(p[0] for p in some)
        return ask(LIFT, "offline", evidence.of_records("s", LIFT, total, whole))

    shuffled = list(parts)
    chance.shuffle(shuffled)
    assert decision(shuffled) == decision(parts)
    total = tuple(sum(p[i] if i != 1 else min(p[0], p[1]) for p in parts) for i in range(3))
    assert decision([total]) == decision(parts)


@pytest.mark.parametrize(
    ("stage", "hint"),
    [("ofline", "did you mean `offline`?"), ("later", "its stages are: offline, shadow, canary, full")],
)
def test_an_unknown_stage_is_told_those_there_are(stage: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        evaluate(contract(), Question(stage, 0, ()))
    [found] = caught.value.diagnostics
    assert "`offline`, `shadow`, `canary`, `full`" in found.message and found.hint == hint


def test_a_contract_without_stages_is_told_so() -> None:
    with pytest.raises(InputError) as caught:
        evaluate(contract(TEXT[: TEXT.index("promote")]), Question("ofline", 0, ()))
    [found] = caught.value.diagnostics
    assert "no block `promote`" in found.message and found.hint.endswith("did you mean `offline`?")


def test_evidence_of_another_contract_is_to_be_measured_again() -> None:
    content = json.dumps({"digest": "sha256:other", "looks": "any number of looks", "requests": 0, "clauses": []})
    with pytest.raises(InputError, match="it is about the contract sha256:other") as caught:
        evidence.read_json("r.json", content.encode(), contract(), digest(contract()))
    assert caught.value.diagnostics[0].hint.startswith("measure again with this contract")
