"""The machine: no stage is skipped, and it moves as the transition system does that the checker proves things about."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import z3
from delivery_cases import HOUR, NOON, TEXT, contract, feed
from hypothesis import given, settings
from hypothesis import strategies as st

from kcverify.delivery import machine, promotion
from kcverify.delivery.machine import ROUTES, plan_of
from kcverify.diagnostics import InputError
from kcverify.prove import policy

LIFT = contract()
PLAN = plan_of(LIFT)
PLACES = ["offline", "shadow", "canary 1/2", "canary 2/2", "full", "settled"]


def test_places_are_the_stages_with_a_step_for_each_share() -> None:
    assert [p.name for p in PLAN.positions] == PLACES[:-1]
    assert [p.share for p in PLAN.positions] == [None, None, "1%", "5%", None]
    assert [PLAN.next(name) for name in PLACES] == [*PLACES[1:], None]
    assert [PLAN.last_step(name) for name in PLACES] == [True, True, False, True, True, True]
    assert machine.Plan.of_data(PLAN.data()) == PLAN


@pytest.mark.parametrize(("source", "target"), list(product(PLACES, PLACES)))
def test_only_the_next_place_can_be_entered_and_only_earlier_ones_returned_to(source: str, target: str) -> None:
    a, b = PLACES.index(source), PLACES.index(target)
    if b == a + 1:
        assert machine.enter(PLAN, source, target) == target
    else:
        with pytest.raises(InputError, match="is not possible from"):
            machine.enter(PLAN, source, target)
    if target != "settled" and (b < a or a == b == 0):
        assert machine.back(PLAN, source, target) == target
    else:
        with pytest.raises(InputError, match="is not possible from"):
            machine.back(PLAN, source, target)


def test_a_contract_that_ends_before_full_goes_no_further() -> None:
    short = contract(TEXT.split("  canary")[0] + "}\n")
    assert plan_of(short).next("shadow") is None
    with pytest.raises(InputError, match="a promotion to `settled` is not possible"):
        machine.enter(plan_of(short), "shadow", "settled")


def test_a_contract_without_stages_has_no_plan() -> None:
    with pytest.raises(InputError, match="no block `promote`"):
        plan_of(contract('contract c version "1"\nnumerical { a: tv <= 0.1 -> L1 }\n'))


def test_routes_move_as_the_checked_policy_does() -> None:
    """Two events from the start: the routes that the solver finds reachable are those of the machine."""
    found = policy.run(LIFT, 2)
    for i, j in product(range(len(LIFT.actions)), repeat=2):
        events = [found.events[0] == policy._breach(i), found.events[1] == policy._breach(j)]
        routes = set()
        for k in range(len(ROUTES)):
            solver = z3.Solver()
            solver.add(*found.formulas, *events, found.states[2].route == k)
            if solver.check() == z3.sat:
                routes.add(ROUTES[k])
        first = machine.fails(PLAN, "candidate", LIFT.actions[i].severity)
        assert routes == {machine.fails(PLAN, first, LIFT.actions[j].severity)}


@pytest.mark.parametrize(("severity", "route"), [("L2", "guarded"), ("L3", "safe")])
def test_a_return_needs_its_time_and_its_clean_requests(severity: str, route: str) -> None:
    dwell, clean = {"L2": (600_000, 200), "L3": (3_600_000, 1000)}[severity]
    assert machine.recovers(PLAN, route, severity, dwell, clean) == "candidate"
    with pytest.raises(InputError, match="it stays"):
        machine.recovers(PLAN, route, severity, dwell - 1, clean)
    with pytest.raises(InputError, match="clean requests are needed"):
        machine.recovers(PLAN, route, severity, dwell, clean - 1)


@pytest.mark.parametrize(
    ("route", "severity"), [("candidate", "L2"), ("guarded", "L1"), ("guarded", "L3"), ("stopped", "L3"), ("safe", "")]
)
def test_a_return_that_no_answer_provides_raises(route: str, severity: str) -> None:
    with pytest.raises(InputError, match="a return to the candidate is not possible"):
        machine.recovers(PLAN, route, severity, 10**9, 10**9)


def test_a_severity_without_an_answer_raises() -> None:
    with pytest.raises(InputError, match="an answer to L9 is not possible"):
        machine.fails(PLAN, "candidate", "L9")


STEPS = st.lists(st.sampled_from(["promote", "wait", "feed", "bad", "fail", "recover", "rollback"]), max_size=25)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_whatever_happens_no_stage_is_skipped_and_the_events_give_the_state(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    path: Path = tmp_path_factory.mktemp("walk") / "s.db"
    now = NOON
    with promotion.start(str(path), LIFT, now) as store:
        for step in steps:
            before = store.state()
            try:
                if step == "promote":
                    promotion.promote(store, LIFT, [], now)
                elif step == "wait":
                    now += HOUR
                elif step in ("feed", "bad"):
                    feed(store, LIFT, 200, drift=100 if step == "bad" else 0)
                elif step == "fail":
                    promotion.failed(store, "L2", now)
                elif step == "recover":
                    promotion.recovered(store, 1000, now)
                else:
                    promotion.rollback(store, now)
            except InputError as error:
                assert error.diagnostics[0].code.slug == "transition_illegal"
            after = store.state()
            if PLACES.index(after.position) > PLACES.index(before.position):
                assert PLACES.index(after.position) == PLACES.index(before.position) + 1
                assert before.route == "candidate"
                assert "fail" not in before.decided.values()
            if after.run == before.run:
                assert {k for k, v in before.decided.items() if v == "fail"} <= {
                    k for k, v in after.decided.items() if v == "fail"
                }
        assert store.rebuild()[1]
