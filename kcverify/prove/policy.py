"""The policy of escalation and promotion as a transition system, and the properties that every run of it must have.

A state is a route (candidate, guarded, safe, stopped), a stage, whether the route must stay, and why it was left.
Events: a breach of a severity, a recovery, the passing of time, a promotion. A property that fails is shown as a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

import z3

from kcverify.diagnostics import Related, Report
from kcverify.elaborate.contract import Action, Contract, Stage
from kcverify.elaborate.policy import ACTIONS
from kcverify.prove import samples
from kcverify.prove.measurability import supplies
from kcverify.prove.verdict import Limits

ROUTES = ("candidate", "guarded", "safe", "stopped")
_TARGET = {"log": 0, "alert": 0, "guard": 1, "rollback": 2, "stop": 3}
_SAFE = 2
_STUTTER, _TIME, _PROMOTE = 0, 1, 2
_DEPTH = 4


@dataclass(frozen=True)
class State:
    """Solver variables of one moment: `cause` is the action that last moved the route, `hours` counts passed time."""

    route: z3.ArithRef
    stage: z3.ArithRef
    staying: z3.BoolRef
    cause: z3.ArithRef
    hours: z3.ArithRef


@dataclass(frozen=True)
class Run:
    """A bounded run: its states, and the event that leads from each to the next."""

    states: tuple[State, ...]
    events: tuple[z3.ArithRef, ...]
    formulas: tuple[z3.BoolRef, ...]


def policy_findings(contract: Contract, report: Report, limits: Limits | None = None) -> None:
    """Reports every property of the policy that fails."""
    limits = limits or Limits()
    if contract.actions:
        _without_action(contract, report)
        weak = _weaker(contract, report)
        _cycles(contract, report, limits)
        _unsafe(contract, report, limits, weak)
    if contract.stages:
        _unreachable(contract, report, limits)
    _windows(contract, report)


def _state(index: int) -> State:
    return State(
        z3.Int(f"route.{index}"), z3.Int(f"stage.{index}"), z3.Bool(f"staying.{index}"), z3.Int(f"cause.{index}"),
        z3.Int(f"hours.{index}"),
    )  # fmt: skip


def _variables(state: State) -> tuple[z3.ExprRef, ...]:
    return (state.route, state.stage, state.staying, state.cause, state.hours)


def _breach(action: int) -> int:
    return _PROMOTE + 1 + 2 * action


def _recovery(action: int) -> int:
    return _PROMOTE + 2 + 2 * action


def run(contract: Contract, depth: int) -> Run:
    """Every run of `depth` events from the candidate in the first stage."""
    states = tuple(_state(i) for i in range(depth + 1))
    events = tuple(z3.Int(f"event.{i}") for i in range(depth))
    first = states[0]
    start = z3.And(first.route == 0, first.stage == 0, z3.Not(first.staying), first.cause == -1, first.hours == 0)
    before, after, event = _state(-1), _state(-2), z3.Int("event")
    template = _step(
        contract, before, after, event
    )  # written once: substitution is many times faster than writing it anew
    steps = [
        z3.substitute(
            template,
            (event, e),
            *zip(_variables(before), _variables(a), strict=True),
            *zip(_variables(after), _variables(b), strict=True),
        )
        for a, b, e in zip(states, states[1:], events, strict=False)
    ]
    return Run(states, events, (start, *steps))


def _step(contract: Contract, a: State, b: State, event: z3.ArithRef) -> z3.BoolRef:
    """One event between two states."""
    same_route = z3.And(b.route == a.route, b.cause == a.cause, b.staying == a.staying)
    quiet = z3.And(b.stage == a.stage, b.hours == a.hours)
    choices = [
        z3.And(event == _STUTTER, same_route, quiet),
        z3.And(event == _TIME, b.route == a.route, b.cause == a.cause, z3.Not(b.staying), b.stage == a.stage, b.hours == a.hours + 1),
    ]  # fmt: skip
    for i, stage in enumerate(contract.stages[:-1]):
        if completes(stage) and stage.name != "full":
            ready = z3.And(a.route == 0, a.stage == i, b.stage == i + 1, b.hours == a.hours + 1)
            choices.append(z3.And(event == _PROMOTE, ready, same_route))
    for i, action in enumerate(contract.actions):
        target = _TARGET[action.action]
        moved = z3.And(b.route == target, b.cause == i, b.staying == bool(action.dwell))
        breach = z3.If(a.route < target, moved, same_route)
        choices.append(z3.And(event == _breach(i), breach, quiet))
        if action.recover is not None and target in (1, _SAFE):
            back = z3.And(a.cause == i, a.route == target, z3.Not(a.staying), b.route == 0, b.cause == i)
            choices.append(z3.And(event == _recovery(i), back, z3.Not(b.staying), quiet))
    return z3.Or(choices)


def completes(stage: Stage) -> bool:
    """Whether the stage can ever end: one that sees no request waits for its evidence for ever."""
    if stage.name == "canary":
        return all(share > 0 for share in stage.traffic)
    return stage.mirror is None or stage.mirror > 0


def _solve(found: Run, extra: list[z3.BoolRef], limits: Limits) -> z3.ModelRef | None:
    solver = z3.Solver()
    solver.set("timeout", limits.solver_ms)
    solver.add(*found.formulas, *extra)
    return solver.model() if solver.check() == z3.sat else None


def _trace(contract: Contract, found: Run, model: z3.ModelRef) -> str:
    """The run of a model in words: `candidate -[L2 fails]-> guarded -[2,000 clean requests]-> candidate`."""
    text = ROUTES[model.eval(found.states[0].route).as_long()]
    for state, event in zip(found.states[1:], found.events, strict=True):
        number = model.eval(event, model_completion=True).as_long()
        if number != _STUTTER:
            text += f" -[{_event(contract, number)}]-> {ROUTES[model.eval(state.route).as_long()]}"
    return text


def _event(contract: Contract, number: int) -> str:
    if number in (_TIME, _PROMOTE):
        return "time passes" if number == _TIME else "promotion"
    action = contract.actions[(number - _PROMOTE - 1) // 2]
    if number == _breach((number - _PROMOTE - 1) // 2):
        return f"{action.severity} fails"
    return f"{action.recover:,} clean requests"


def _without_action(contract: Contract, report: Report) -> None:
    """A severity that clauses raise and no line answers: a state whose breach has no step."""
    have = {action.severity for action in contract.actions}
    for severity in sorted({c.severity for c in contract.clauses} - have):
        first, *rest = [c for c in contract.clauses if c.severity == severity]
        related = [Related(c.span, f"`{c.name}` too") for c in rest]
        report.add(
            "policy_no_action", first.span, related=related, severity=severity, clause=first.name,
            trace=f"candidate -[`{first.name}` fails at {severity}]-> candidate",
            hint=f"add a line such as `{severity} -> {'rollback' if severity == 'L3' else 'log'}` to `escalate`",
        )  # fmt: skip


def _weaker(contract: Contract, report: Report) -> set[str]:
    """Pairs of severities of which the higher one does less; the higher ones are returned."""
    found: set[str] = set()
    for low, high in combinations(sorted(contract.actions, key=lambda a: a.severity), 2):
        if ACTIONS.index(high.action) < ACTIONS.index(low.action) and high.severity not in found:
            found.add(high.severity)
            report.add(
                "policy_weaker_action", high.span, related=[Related(low.span, f"{low.severity} does more")],
                severity=high.severity, action=high.action, other=low.severity, other_action=low.action,
                trace=f"{_reach(low)}, and {_reach(high)}",
            )  # fmt: skip
    return found


def _reach(action: Action) -> str:
    return f"candidate -[{action.severity} fails]-> {ROUTES[_TARGET[action.action]]}"


def _cycles(contract: Contract, report: Report, limits: Limits) -> None:
    """Severities by which the route can leave the candidate and come back while no time passes."""
    if not any(a.recover is not None and not a.dwell for a in contract.actions):
        return
    found = run(replace(contract, stages=()), _DEPTH)
    last = found.states[-1]
    for i, action in enumerate(contract.actions):
        back = z3.And(found.events[-1] == _recovery(i), last.route == 0, last.hours == 0)
        shortest = [found.events[k] == _STUTTER for k in range(_DEPTH - 2)]
        model = _solve(found, [back, *shortest], limits) or _solve(found, [back], limits)
        if model is not None:
            report.add(
                "policy_cycle", action.span, severity=action.severity, trace=_trace(contract, found, model),
                hint=f"add `dwell 10 minutes` to {action.severity}",
            )  # fmt: skip


def _unsafe(contract: Contract, report: Report, limits: Limits, weak: set[str]) -> None:
    """A route from which a breach of L3 does not reach the safe kernel in one step."""
    for i, action in enumerate(contract.actions):
        if action.severity != "L3" or action.severity in weak:
            continue
        found = run(replace(contract, stages=()), 2)
        fails = [found.events[1] == _breach(i), found.states[2].route < _SAFE]
        model = _solve(found, [*fails, found.events[0] == _STUTTER], limits) or _solve(found, fails, limits)
        if model is not None:
            report.add("policy_unsafe", action.span, action=action.action, trace=_trace(contract, found, model))


def _unreachable(contract: Contract, report: Report, limits: Limits) -> None:
    """The first stage that no run enters."""
    found = run(replace(contract, actions=()), len(contract.stages))  # a breach never helps to be promoted
    last = len(contract.stages) - 1
    if _solve(found, [found.states[-1].stage == last], limits) is not None:
        return
    for i, stage in enumerate(contract.stages):
        if _solve(found, [found.states[-1].stage == i], limits) is None:
            before = contract.stages[i - 1]
            path = " -> ".join(f"`{s.name}`" for s in contract.stages[:i])
            report.add(
                "policy_unreachable", stage.span, related=[Related(before.span, "it stops here")], stage=stage.name,
                reason=f"{path} -> never, {_stop(before)}",
            )  # fmt: skip
            return


def _stop(stage: Stage) -> str:
    if stage.name == "full":
        return "since `full` is the last stage"
    share = "a share of 0%" if stage.name == "canary" else "a mirror of 0%"
    return f"since `{stage.name}` with {share} sees no request and waits for its verdict for ever"


def _windows(contract: Contract, report: Report) -> None:
    """Windows of clauses, and of stages with a minimum, that hold fewer requests than they need."""
    traffic = contract.assumptions.traffic
    for clause in contract.clauses if traffic is not None else ():
        wanted = samples.evidence(clause)
        if clause.window is None or wanted is None or traffic is None:
            continue
        count, held = samples.needed(*wanted, clause.confidence), int(traffic * clause.window)
        if held < count:
            seconds = -(-count // traffic)
            report.add(
                "policy_window", clause.span, name=clause.name, supplied=f"{held:,}", needed=f"its verdict needs {count:,}",
                related=list(_traffic(contract)), hint=f"a window of {int(seconds):,} s holds them",
            )  # fmt: skip
    for supply in supplies(contract):
        stage = supply.stage
        if stage.min_requests is not None and supply.window is not None and supply.window < stage.min_requests:
            report.add(
                "policy_window", stage.span, name=stage.name, supplied=f"{supply.window:,}",
                needed=f"its minimum is {stage.min_requests:,}", related=list(_traffic(contract)),
                hint="make the window longer, or the minimum smaller",
            )  # fmt: skip


def _traffic(contract: Contract) -> Iterator[Related]:
    span = contract.assumptions.spans.get("traffic")
    if span is not None:
        yield Related(span, "the declared traffic")
