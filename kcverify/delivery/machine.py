"""The stages of a contract as a machine: what can follow what. An illegal step raises; nothing is skipped.

Two machines run side by side, as in `prove.policy`: the place (stages, with a step for each share of a canary) and the
route (candidate, guarded, safe, stopped). Evidence and times are the gate's business, not the machine's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from transitions import Machine, MachineError

from kcverify.diagnostics import InputError, input_error
from kcverify.elaborate.contract import Contract, Stage
from kcverify.elaborate.policy import ACTIONS
from kcverify.exact import decimal_near

ROUTES = ("candidate", "guarded", "safe", "stopped")
SETTLED = "settled"
HEALTH = "health"
"""The cause of a route that was left as a precaution, before any clause failed."""
_TARGET = dict(zip(ACTIONS, ("candidate", "candidate", "guarded", "safe", "stopped"), strict=True))


@dataclass(frozen=True)
class Position:
    """One place: its name, its stage, the step of the stage from 0, the share of traffic that a canary's step takes."""

    name: str
    stage: str
    step: int
    share: str | None = None


@dataclass(frozen=True)
class Answer:
    """What a severity does: its target route, the time that the route must stay (ms), clean requests until return."""

    severity: str
    target: str
    dwell: int
    recover: int | None


@dataclass(frozen=True)
class Plan:
    """Places and answers of a contract, as the first event of a store keeps them."""

    positions: tuple[Position, ...]
    answers: tuple[Answer, ...]

    def data(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"positions": [vars(p) for p in self.positions], "answers": [vars(a) for a in self.answers]}

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Plan:
        """What `data` gave. Raises KeyError, TypeError or ValueError for anything else."""
        found = cls(tuple(Position(**p) for p in data["positions"]), tuple(Answer(**a) for a in data["answers"]))
        for p in found.positions:
            if not all(isinstance(text, str) for text in (p.name, p.stage, p.share or "")) or type(p.step) is not int:
                raise TypeError("a place is no place")
        for a in found.answers:
            if not isinstance(a.severity, str) or type(a.dwell) is not int or type(a.recover or 0) is not int:
                raise TypeError("an answer is no answer")
            ROUTES.index(a.target)
        if not found.positions or len({p.name for p in found.positions}) < len(found.positions):
            raise ValueError("its places are not told apart")
        return found

    def index(self, name: str) -> int:
        """Number of a place by its name; that of `settled` is the number of places. Raises ValueError."""
        return [*(p.name for p in self.positions), SETTLED].index(name)

    def next(self, name: str) -> str | None:
        """The name of the place after this one; `settled` after the stage `full`; None where there is none."""
        index = self.index(name)
        if index >= len(self.positions):
            return None
        if index + 1 < len(self.positions):
            return self.positions[index + 1].name
        return SETTLED if self.positions[index].stage == "full" else None

    def at(self, name: str) -> Position:
        """The place of this name; for `settled` the last one."""
        return self.positions[min(self.index(name), len(self.positions) - 1)]

    def last_step(self, name: str) -> bool:
        """Whether the next place is in another stage."""
        index = min(self.index(name), len(self.positions) - 1)
        return index + 1 == len(self.positions) or self.positions[index + 1].stage != self.positions[index].stage


def plan_of(contract: Contract) -> Plan:
    """The plan of a contract. Raises InputError: `stage_undeclared` where it has no block `promote`."""
    if not contract.stages:
        raise input_error(
            "stage_undeclared", contract=contract.name, stage="offline", known="; it has no block `promote`"
        )
    answers = [
        Answer(a.severity, _TARGET[a.action], _milliseconds(a.dwell), a.recover)
        for a in sorted(contract.actions, key=lambda a: a.severity)
    ]
    return Plan(tuple(p for stage in contract.stages for p in _places(stage)), tuple(answers))


def _places(stage: Stage) -> list[Position]:
    if len(stage.traffic) < 2:
        share = f"{decimal_near(stage.traffic[0] * 100, 6)}%" if stage.traffic else None
        return [Position(stage.name, stage.name, 0, share)]
    shares = [f"{decimal_near(share * 100, 6)}%" for share in stage.traffic]
    return [Position(f"{stage.name} {i}/{len(shares)}", stage.name, i - 1, s) for i, s in enumerate(shares, 1)]


def _milliseconds(seconds: Fraction | None) -> int:
    return 0 if seconds is None else math.ceil(seconds * 1000)


class _Token:
    """What a machine moves: it gives it the attributes `state` and `trigger`."""


@lru_cache(maxsize=64)
def _place_machine(plan: Plan) -> Machine:
    """Triggers `enter NAME` and `return NAME`; the latter leads to any earlier place, or back into the first."""
    names = [p.name for p in plan.positions]
    last = plan.next(names[-1])
    states = names if last is None else [*names, last]
    moves = [[f"enter {b}", a, b] for a, b in zip(states, states[1:], strict=False)]
    for i, name in enumerate(names):
        moves += [[f"return {name}", source, name] for source in states[i if i == 0 else i + 1 :]]
    return Machine(model=None, states=states, transitions=moves, initial=names[0], auto_transitions=False)


@lru_cache(maxsize=64)
def _route_machine(plan: Plan) -> Machine:
    """Triggers `fails SEVERITY`, which never lead to a better route, and `recovers SEVERITY`, by its own answer only.

    `warns` and `clears`: the precaution of low health, to the guarded kernel and back.
    """
    moves = [["warns", "candidate", "guarded"], ["clears", "guarded", "candidate"]]
    for answer in plan.answers:
        target = ROUTES.index(answer.target)
        moves += [[f"fails {answer.severity}", r, ROUTES[max(i, target)]] for i, r in enumerate(ROUTES)]
        if answer.recover is not None and answer.target in ("guarded", "safe"):
            moves.append([f"recovers {answer.severity}", answer.target, "candidate"])
    return Machine(model=None, states=list(ROUTES), transitions=moves, initial=ROUTES[0], auto_transitions=False)


def _fire(machine: Machine, state: str, trigger: str, what: str) -> str:
    """The state that a trigger leads to. Raises InputError: `transition_illegal` naming what is possible."""
    token: Any = _Token()
    machine.add_model(token, initial=state)
    try:
        token.trigger(trigger)
    except (MachineError, AttributeError):
        able = sorted(machine.get_triggers(state))
        reason = f"possible are {', '.join(f'`{t}`' for t in able)}" if able else "nothing is possible"
        raise input_error("transition_illegal", what=what, position=state, reason=reason) from None
    finally:
        machine.remove_model(token)
    return str(token.state)


def enter(plan: Plan, position: str, name: str) -> str:
    """Promote to the place `name`. Raises InputError: `transition_illegal` unless it is the next one."""
    return _fire(_place_machine(plan), position, f"enter {name}", f"a promotion to `{name}`")


def back(plan: Plan, position: str, name: str) -> str:
    """Roll back to the place `name`. Raises InputError: `transition_illegal` unless it is earlier, or the first."""
    return _fire(_place_machine(plan), position, f"return {name}", f"a rollback to `{name}`")


def fails(plan: Plan, route: str, severity: str) -> str:
    """The route after clauses of a severity failed. Raises InputError: `transition_illegal` without an answer to it."""
    return _fire(_route_machine(plan), route, f"fails {severity}", f"an answer to {severity}")


def warns(plan: Plan, route: str) -> str:
    """The route of a candidate whose health is low. Raises InputError: `transition_illegal` from any other route."""
    return _fire(_route_machine(plan), route, "warns", "a precaution")


def clears(plan: Plan, route: str, cause: str) -> str:
    """The route after health came back. Raises InputError: `transition_illegal` where a failure moved the route."""
    if route == "guarded" and cause != HEALTH:
        raise _refused(route, f"the route was left for {cause}, which its own answer ends")
    return _fire(_route_machine(plan), route, "clears", "the end of a precaution")


def recovers(plan: Plan, route: str, severity: str, stayed: int, clean: int) -> str:
    """The route after a return to the candidate, `stayed` ms after it was left and with `clean` requests since.

    `severity` is the one that moved the route. Raises InputError: `transition_illegal`.
    """
    found = _fire(_route_machine(plan), route, f"recovers {severity}", "a return to the candidate")
    answer = next(a for a in plan.answers if a.severity == severity)
    if stayed < answer.dwell:
        raise _refused(route, f"it stays {answer.dwell / 1000:g} s, and {stayed / 1000:g} s have passed")
    if clean < (answer.recover or 0):
        raise _refused(route, f"{answer.recover:,} clean requests are needed, and {clean:,} were seen")
    return found


def _refused(route: str, reason: str) -> InputError:
    return input_error("transition_illegal", what="a return to the candidate", position=route, reason=reason)
