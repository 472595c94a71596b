"""What a store's events add up to: the place of the candidate, its route, and what was decided on the way."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from kcverify.delivery import machine
from kcverify.delivery.chain import Event
from kcverify.delivery.machine import HEALTH, Plan
from kcverify.diagnostics import InputError, input_error

Carried = Mapping[str, tuple[float | None, int]]
"""By cell: log e-value of the pass side gathered in earlier stages, and their requests."""


@dataclass(frozen=True)
class State:
    """The fold of all events. Times are milliseconds since 1970.

    `run` counts stays in a stage: evidence belongs to one run. `version` is the number of the event that moved the
    place last: who decides about an older version is told. `carried`: evidence of the stages before. `decided`: cells
    whose evidence crossed its threshold in this run, which stays decided. `used`: digests of evidence files that count, and the run they counted in. `paused`: an operator
    keeps traffic off the candidate, whatever its route.
    """

    contract: str
    digest: str
    plan: Plan
    seq: int
    hash: str
    at: int
    position: str
    run: int
    version: int
    entered: int
    stepped: int
    route: str = "candidate"
    cause: str = ""
    route_since: int = 0
    carried: Carried = field(default_factory=dict)
    decided: Mapping[str, str] = field(default_factory=dict)
    used: Mapping[str, int] = field(default_factory=dict)
    paused: bool = False

    @property
    def stage(self) -> str:
        """The stage of the place."""
        return self.plan.at(self.position).stage

    @property
    def settled(self) -> bool:
        """Whether the last stage was left for good."""
        return self.position == machine.SETTLED

    def data(self) -> dict[str, Any]:
        """Plain values for JSON."""
        out = asdict(self)
        out["plan"] = self.plan.data()
        out["carried"] = {k: list(v) for k, v in self.carried.items()}
        return out

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> State:
        """What `data` gave. Raises KeyError, TypeError or ValueError for anything else."""
        found = cls(**{**data, "plan": Plan.of_data(data["plan"]), "carried": _carried(data["carried"])})
        found.plan.index(found.position)
        for name, kind in _KINDS.items():
            value = getattr(found, name)
            if any(type(one) is not kind for one in (value.values() if name in _MAPPINGS else (value,))):
                raise TypeError(f"{name} is not of the kind {kind.__name__}")
        if found.route not in machine.ROUTES:
            raise ValueError(f"{found.route!r} is no route")
        return found


_KINDS: Mapping[str, type] = {
    **dict.fromkeys(("seq", "at", "run", "version", "entered", "stepped", "route_since", "used"), int),
    **dict.fromkeys(("contract", "digest", "hash", "position", "cause", "route", "decided"), str),
    "paused": bool,
}
"""Fields of a state -> what they are, or what their values are."""
_MAPPINGS = ("used", "decided")


def _carried(data: Mapping[str, Any]) -> dict[str, tuple[float | None, int]]:
    """Carried evidence from plain values. Raises AttributeError, TypeError or ValueError."""
    return {str(k): (None if log is None else finite(log), int(count)) for k, (log, count) in data.items()}


def finite(value: Any) -> float:
    """The value as a number. Raises ValueError where it is not finite."""
    found = float(value)
    if not math.isfinite(found):
        raise ValueError(f"{value!r} is no finite number")
    return found


def key(clause: str, slice: str | None) -> str:
    """The name of a cell: `clause`, or `clause on slice`."""
    return clause if slice is None else f"{clause} on {slice}"


def started(contract: str, digest: str, plan: Plan) -> dict[str, Any]:
    """Content of the first event."""
    return {"contract": contract, "digest": digest, "plan": plan.data()}


def apply(state: State | None, event: Event) -> State:
    """The state after one more event. Raises InputError: `transition_illegal` for a step that the plan does not have."""
    if state is None:
        if event.kind != "started":
            raise _unknown(event, "it is not the start of a store")
        first = Plan.of_data(event.body["plan"])
        return State(
            str(event.body["contract"]), str(event.body["digest"]), first, event.seq, event.hash, event.at,
            first.positions[0].name, 1, event.seq, event.at, event.at, route_since=event.at,
        )  # fmt: skip
    step = _STEPS.get(event.kind)
    if step is None:
        raise _unknown(event, f"`{event.kind}` is no kind of event")
    return replace(step(state, event), seq=event.seq, hash=event.hash, at=event.at)


def fold(events: Iterable[Event], path: str, state: State | None = None) -> State | None:
    """The state after all events, from `state` on. Raises InputError: `event_tampered` for one that cannot have been."""
    for event in events:
        try:
            state = apply(state, event)
        except InputError as error:
            raise input_error(
                "event_tampered", path=path, seq=event.seq, reason=f"it cannot have been: {error}"
            ) from None
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            reason = f"its content is not that of such an event ({type(error).__name__}: {error})"
            raise input_error("event_tampered", path=path, seq=event.seq, reason=reason) from None
    return state


def _unknown(event: Event, reason: str) -> InputError:
    return input_error("transition_illegal", what=f"the event `{event.kind}`", position="here", reason=reason)


def _promoted(state: State, event: Event) -> State:
    """The next place; a new stage starts a run with fresh evidence and takes along what the last one gathered."""
    if state.route != "candidate":
        reason = f"traffic is on the route `{state.route}`"
        raise input_error("transition_illegal", what="a promotion", position=state.position, reason=reason)
    if state.paused:
        raise input_error("transition_illegal", what="a promotion", position=state.position, reason="it is paused")
    position = machine.enter(state.plan, state.position, event.body["to"])
    moved = replace(state, position=position, version=event.seq, stepped=event.at, used=_used(state, event))
    if position == machine.SETTLED or moved.stage == state.stage:
        return moved
    carried = _carried(event.body["carried"])
    return replace(moved, run=state.run + 1, entered=event.at, carried=carried, decided={})


def _rolled_back(state: State, event: Event) -> State:
    """An earlier place; the evidence so far says nothing about what comes now."""
    position = machine.back(state.plan, state.position, event.body["to"])
    return replace(
        state, position=position, version=event.seq, run=state.run + 1, entered=event.at, stepped=event.at,
        route="candidate", cause="", route_since=event.at, carried={}, decided={}, paused=False,
    )  # fmt: skip


def _decided(state: State, event: Event) -> State:
    """Cells whose evidence crossed a threshold; a failure is never undone within a run."""
    new = {k: v for k, v in event.body["cells"].items() if state.decided.get(k) != "fail"}
    return replace(state, decided={**state.decided, **new}, used=_used(state, event))


def _used(state: State, event: Event) -> dict[str, int]:
    """Digests of evidence files, and of what they say, with those that an event rests on."""
    return {**state.used, **dict.fromkeys([*event.body.get("files", ()), *event.body.get("contents", ())], state.run)}


def _failed(state: State, event: Event) -> State:
    """An answer to a severity: the route moves if it is better than the answer's, and stays otherwise."""
    route = machine.fails(state.plan, state.route, event.body["severity"])
    if route == state.route and state.cause != HEALTH:
        return state
    return replace(state, route=route, cause=event.body["severity"], route_since=event.at)


def _guarded(state: State, event: Event) -> State:
    """A precaution: health is low, and no clause has failed yet."""
    return replace(state, route=machine.warns(state.plan, state.route), cause=HEALTH, route_since=event.at)


def _cleared(state: State, event: Event) -> State:
    route = machine.clears(state.plan, state.route, state.cause)
    return replace(state, route=route, cause="", route_since=event.at)


def _paused(state: State, event: Event) -> State:
    return replace(state, paused=True)


def _resumed(state: State, event: Event) -> State:
    return replace(state, paused=False)


def _noted(state: State, event: Event) -> State:
    """Something to remember that moves nothing."""
    return state


def _recovered(state: State, event: Event) -> State:
    stayed = event.at - state.route_since
    route = machine.recovers(state.plan, state.route, state.cause, stayed, int(event.body["clean"]))
    return replace(state, route=route, cause="", route_since=event.at)


_STEPS = {
    "promoted": _promoted,
    "rolled_back": _rolled_back,
    "decided": _decided,
    "failed": _failed,
    "recovered": _recovered,
    "guarded": _guarded,
    "cleared": _cleared,
    "noted": _noted,
    "paused": _paused,
    "resumed": _resumed,
}
"""What each kind of event does to the state."""
