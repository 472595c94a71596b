"""What the commands do: ask the gate, promote, roll back, answer failures, rebuild. The clock is always an argument."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kcverify.delivery import evidence, gate, looks, observed
from kcverify.delivery.evidence import Evidence
from kcverify.delivery.gate import Decision, Question
from kcverify.delivery.machine import SETTLED, enter, plan_of
from kcverify.delivery.state import State
from kcverify.delivery.store import WAIT_SECONDS, Store
from kcverify.diagnostics import input_error
from kcverify.elaborate.contract import Contract
from kcverify.elaborate.form import digest


@dataclass(frozen=True)
class Promotion:
    """What came of it: the gate's decision, the state before and after (the same where the gate refused)."""

    decision: Decision
    before: State
    after: State

    @property
    def moved(self) -> bool:
        """Whether the place changed."""
        return self.before.position != self.after.position


def usable(contract: Contract) -> None:
    """Raises InputError: `hole_open` for a contract with an open limit, whose clause would silently decide nothing."""
    hole = next((c for c in contract.clauses if c.limit.hole), None)
    if hole is not None:
        raise input_error("hole_open", hole.value_span, name=hole.name)


def start(path: str, contract: Contract, now: int, *, wait: float = WAIT_SECONDS) -> Store:
    """The store at `path`, started in the first place of the contract where there is none; it waits so long for others."""
    usable(contract)
    return Store.start(path, contract.name, digest(contract), plan_of(contract), now, wait=wait)


def gate_files(contract: Contract, stage: str, sources: Sequence[Evidence], held: int | None = None) -> Decision:
    """The gate of a stage from files alone; `held` is how long the stage has lasted (ms), None if not known."""
    usable(contract)
    looks.distinct(sources)
    observed.check(contract, sources)
    faults = [fault for source in sources for fault in source.faults]
    requests = sum(source.requests for source in sources)
    cells = evidence.merged(sources, contract)
    return gate.evaluate(contract, Question(stage, requests, cells, held, held, held, faults=faults))


def gate_store(store: Store, contract: Contract, sources: Sequence[Evidence], now: int) -> Decision:
    """The gate of the current stage, from the store's evidence and files; a crossing that is new is recorded."""
    with store.writing():
        state = own(store, contract)
        decision = _decide(store, state, contract, sources, now)
        _record(store, decision, sources, now)
        looks.record(store, state, sources, contract, now)
        return decision


def promote(
    store: Store, contract: Contract, sources: Sequence[Evidence], now: int, *,
    to: str | None = None, version: int | None = None,
) -> Promotion:  # fmt: skip
    """Enter the next place if the gate passes. One transaction: of two processes that read `version`, one wins.

    Raises InputError: `stage_moved` where the place has moved since `version`, `transition_illegal` where `to` is not
    the next place or nothing comes next, `event_tampered` and `state_differs` where the store is not what its events give.
    """
    store.checked()
    with store.writing():
        before = own(store, contract)
        _expected(store, before, version)
        target = to if to is not None else before.plan.next(before.position)
        enter(before.plan, before.position, SETTLED if target is None else target)
        decision = _decide(store, before, contract, sources, now)
        _record(store, decision, sources, now)
        if decision.verdict != "pass":
            looks.record(store, before, sources, contract, now)
            return Promotion(decision, before, store.state())
        carried = {k: list(v) for k, v in decision.carry(before.carried).items()}
        body = {
            "from": before.position, "to": target, **looks.named(sources), "carried": carried,
            "evidence": store.evidence_digest(before.run), "gate": summary(decision), **observed.stated(sources),
        }  # fmt: skip
        return Promotion(decision, before, store.append("promoted", body, now, version=before.version))


def rollback(store: Store, now: int, *, to: str | None = None, reason: str = "", version: int | None = None) -> State:
    """Go back to an earlier place, by default the first one; evidence starts from zero there."""
    with store.writing():
        state = store.state()
        _expected(store, state, version)
        target = state.plan.positions[0].name if to is None else to
        body = {"from": state.position, "to": target, "reason": reason, "evidence": store.evidence_digest(state.run)}
        return store.append("rolled_back", body, now)


def failed(store: Store, severity: str, now: int, reason: str = "", **more: Any) -> State:
    """Clauses of a severity fail on traffic: take the contract's answer. `more`: what else the event states."""
    return store.append("failed", {**more, "severity": severity, "reason": reason}, now)


def recovered(store: Store, clean: int, now: int, reason: str = "", **more: Any) -> State:
    """Return to the candidate after its time and `clean` requests without a failure."""
    return store.append("recovered", {**more, "clean": clean, "reason": reason}, now)


def guarded(store: Store, now: int, reason: str = "", **more: Any) -> State:
    """Health is low: traffic goes to the guarded kernel as a precaution."""
    return store.append("guarded", {**more, "reason": reason}, now)


def cleared(store: Store, now: int, reason: str = "", **more: Any) -> State:
    """Health came back: the precaution ends."""
    return store.append("cleared", {**more, "reason": reason}, now)


def paused(store: Store, now: int, reason: str = "", *, on: bool = True) -> State:
    """Keep traffic off the candidate, or let it back."""
    return store.append("paused" if on else "resumed", {"reason": reason}, now)


def noted(store: Store, what: str, now: int, **more: Any) -> State:
    """Remember something that moves nothing."""
    return store.append("noted", {**more, "what": what}, now)


def own(store: Store, contract: Contract) -> State:
    """The state of a store of this very contract. Raises InputError: `store_contract`, `hole_open`."""
    usable(contract)
    state, given = store.state(), digest(contract)
    if state.digest != given:
        raise input_error(
            "store_contract", path=store.path, stored=state.contract, stored_digest=state.digest[:19],
            given=contract.name, given_digest=given[:19],
        )  # fmt: skip
    return state


def _expected(store: Store, state: State, version: int | None) -> None:
    if version is not None and state.version != version:
        moved = next(e for e in store.events(state.version - 1))
        raise input_error("stage_moved", seq=moved.seq, kind=moved.kind, position=state.position)


def _decide(store: Store, state: State, contract: Contract, sources: Sequence[Evidence], now: int) -> Decision:
    looks.distinct(sources, state, store)
    requests, records = store.evidence(state.run)
    own = [evidence.of_records(store.path, contract, requests, records)] if records or requests else []
    whole = [*own, *sources]
    observed.check(contract, whole, store)
    faults = [fault for source in whole for fault in source.faults]
    asked = Question(
        state.stage, sum(e.requests for e in whole), evidence.merged(whole, contract), now - state.entered,
        now - state.stepped, now - state.route_since, state.settled or state.plan.last_step(state.position), state.route,
        state.carried, state.decided, faults, looks.against(store, state, sources),
    )  # fmt: skip
    return gate.evaluate(contract, asked)


def _record(store: Store, decision: Decision, sources: Sequence[Evidence], now: int) -> None:
    crossed = decision.crossed()
    if crossed:
        body = {"cells": crossed, "gate": summary(decision), **looks.named(sources)}
        store.append("decided", body, now)


def _number(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def summary(decision: Decision) -> dict[str, Any]:
    """A decision as plain values, for events and answers."""
    cells = [
        {
            "clause": c.clause, "slice": c.slice, "severity": c.severity, "decides": c.decides, "verdict": c.verdict,
            "reason": c.reason, "requests": c.requests, "log_e_fail": _number(c.log_e_fail), "log_e_pass": _number(c.log_e_pass),
            "log_e_pass_all": _number(c.log_e_pass_all), "log_threshold": c.log_threshold,
        }
        for c in decision.cells
    ]  # fmt: skip
    return {
        "stage": decision.stage, "verdict": decision.verdict, "reasons": list(decision.reasons),
        "waiting": list(decision.waiting), "requests": decision.requests, "clauses": cells,
    }  # fmt: skip
