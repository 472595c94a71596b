"""The routing table: one frozen snapshot that is swapped whole, made from the state of a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from kcverify.delivery.machine import SETTLED
from kcverify.delivery.state import State
from kcverify.elaborate.contract import Contract
from kcverify.routing import split

_ALL, _NONE = Fraction(1), Fraction(0)


@dataclass(frozen=True)
class RouteTable:
    """One moment of the routing. `version` is the number of the last event that it knows.

    `weights` by side add up to 1, or are empty where nothing serves. `mirror` is the share of requests of which the
    candidate gets a copy when it does not answer itself. `health` by cell is that of the moment of the swap. `run`
    names the evidence that observations belong to.
    """

    version: int
    weights: Mapping[str, Fraction]
    reason: str = ""
    health: Mapping[str, float] = field(default_factory=dict)
    mirror: Fraction = _NONE
    stage: str = ""
    position: str = ""
    route: str = "candidate"
    run: int = 0
    salt: str = ""

    def routed(self, request_id: str) -> Routed:
        """The side of a request, and whether the candidate gets a copy."""
        place = split.point(self.salt, request_id)
        side = split.side(place, self.weights)
        return Routed(side, side not in (None, "candidate") and split.below(place, self.mirror), place, self)

    def data(self) -> dict[str, Any]:
        """Plain values for JSON; weights as text, exact."""
        return {
            "version": self.version, "weights": {k: str(v) for k, v in self.weights.items()}, "mirror": str(self.mirror),
            "reason": self.reason, "health": dict(self.health), "stage": self.stage, "position": self.position,
            "route": self.route, "run": self.run, "salt": self.salt,
        }  # fmt: skip


@dataclass(frozen=True)
class Routed:
    """Where one request goes: its side (None: nothing serves), whether it is mirrored, its place, and the table."""

    side: str | None
    mirrored: bool
    place: int
    table: RouteTable


class Router:
    """Holds the current table. Readers take it once a request; `swap` replaces it at once, between requests."""

    def __init__(self, table: RouteTable) -> None:
        self._table = table

    @property
    def table(self) -> RouteTable:
        """The table of this moment."""
        return self._table

    def swap(self, table: RouteTable) -> RouteTable:
        """Put a table in force and return the one before."""
        before, self._table = self._table, table
        return before


def candidate_share(state: State) -> Fraction:
    """Share of traffic that the candidate serves in the stage while it is healthy."""
    place = state.plan.at(state.position)
    if state.position == SETTLED or place.stage == "full":
        return _ALL
    if place.stage != "canary":
        return _NONE
    return _NONE if place.share is None else split.share(place.share)


def weights_of(share: Fraction, route: str) -> dict[str, Fraction]:
    """Traffic by side: what the candidate would serve goes to the route, all other traffic to the safe kernel."""
    if route == "stopped":
        return {}
    out = {"candidate": _NONE, "guarded": _NONE, "safe": _ALL - share}
    out[route] += share
    return {name: weight for name, weight in out.items() if weight}


def mirror_of(contract: Contract, state: State, share: Fraction, route: str) -> Fraction:
    """Share of requests that are copied: the contract's in the stage shadow, and while the candidate must not serve.

    A candidate whose route was left returns on shadow evidence alone, so at least its own share is copied.
    """
    shadow = next((s for s in contract.stages if s.name == "shadow"), None)
    mirror = _ALL if shadow is None or shadow.mirror is None else shadow.mirror
    if state.stage == "offline":
        return _NONE
    if state.stage == "shadow" or route in ("guarded", "safe"):
        return max(mirror, share)
    return _NONE


def table_of(
    contract: Contract, state: State, *, salt: str, route: str | None = None, reason: str = "",
    health: Mapping[str, float] | None = None,
) -> RouteTable:  # fmt: skip
    """The table of a store's state; `route` overrides the recorded one where a failure is not written down yet."""
    chosen = state.route if route is None else route
    if state.paused and chosen in ("candidate", "guarded"):
        chosen, reason = "safe", reason or "paused by an operator"
    share = candidate_share(state)
    return RouteTable(
        state.seq, weights_of(share, chosen), reason or f"{state.position}, route {chosen}", dict(health or {}),
        mirror_of(contract, state, share, chosen), state.stage, state.position, chosen, state.run, salt,
    )  # fmt: skip
