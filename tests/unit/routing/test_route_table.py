"""Tables of every stage and route, and what other routers are told."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from routing_cases import CONTRACT, NOON, state

from kcverify.delivery import promotion
from kcverify.diagnostics import InputError
from kcverify.routing import adapters
from kcverify.routing.table import Router, table_of

ONE, NONE = Fraction(1), Fraction(0)


@pytest.mark.parametrize(
    ("position", "route", "weights", "mirror"),
    [
        ("offline", "candidate", {"safe": ONE}, NONE),
        ("shadow", "candidate", {"safe": ONE}, Fraction(1, 2)),
        ("canary 1/2", "candidate", {"candidate": Fraction(1, 100), "safe": Fraction(99, 100)}, NONE),
        ("canary 2/2", "candidate", {"candidate": Fraction(1, 20), "safe": Fraction(19, 20)}, NONE),
        ("canary 2/2", "guarded", {"guarded": Fraction(1, 20), "safe": Fraction(19, 20)}, Fraction(1, 2)),
        ("canary 2/2", "safe", {"safe": ONE}, Fraction(1, 2)),
        ("full", "candidate", {"candidate": ONE}, NONE),
        ("full", "guarded", {"guarded": ONE}, ONE),
        ("settled", "candidate", {"candidate": ONE}, NONE),
        ("settled", "safe", {"safe": ONE}, ONE),
        ("full", "stopped", {}, NONE),
    ],
)
def test_tables(position: str, route: str, weights: dict[str, Fraction], mirror: Fraction) -> None:
    table = table_of(CONTRACT, replace(state(), position=position, route=route), salt="s")
    assert table.weights == weights
    assert table.mirror == mirror
    paused = table_of(CONTRACT, replace(state(), position=position, route=route, paused=True), salt="s")
    assert paused.weights == ({} if route == "stopped" else {"safe": ONE})


def test_a_mirrored_request_is_one_that_the_candidate_does_not_answer() -> None:
    table = table_of(CONTRACT, replace(state(), position="canary 2/2", route="guarded"), salt="s")
    routed = [table.routed(str(i)) for i in range(2000)]
    assert {r.side for r in routed} == {"guarded", "safe"}
    assert all(r.mirrored for r in routed if r.side == "guarded")
    served = table_of(CONTRACT, replace(state(), position="canary 2/2"), salt="s")
    assert {i for i in range(2000) if served.routed(str(i)).side == "candidate"} == {
        i for i, r in enumerate(routed) if r.side == "guarded"
    }


def test_a_router_swaps_whole_tables() -> None:
    first, second = (table_of(CONTRACT, replace(state(), position=p), salt="s") for p in ("shadow", "full"))
    router = Router(first)
    assert router.swap(second) is first
    assert router.table is second
    with pytest.raises(AttributeError):
        router.table.version = 3  # type: ignore[misc]


def test_events_of_the_route(tmp_path: Path) -> None:
    """The precaution and the pause, as the store records them; a failure takes over from the precaution."""
    with promotion.start(str(tmp_path / "s.db"), CONTRACT, NOON) as store:
        after = promotion.guarded(store, NOON + 1, "low", cells=["errors"])
        assert (after.route, after.cause) == ("guarded", "health")
        assert promotion.cleared(store, NOON + 2).route == "candidate"
        with pytest.raises(InputError, match="not possible"):
            promotion.cleared(store, NOON + 3)
        promotion.guarded(store, NOON + 4)
        failed = promotion.failed(store, "L2", NOON + 5)
        assert (failed.route, failed.cause, failed.route_since) == ("guarded", "L2", NOON + 5)
        with pytest.raises(InputError, match="its own answer ends"):
            promotion.cleared(store, NOON + 6)
        assert promotion.failed(store, "L3", NOON + 7, cells=["far"]).route == "safe"
        assert promotion.paused(store, NOON + 8, "look").paused
        noted = promotion.noted(store, "identity", NOON + 9, run=1)
        assert (noted.paused, noted.route) == (True, "safe")
        assert not promotion.paused(store, NOON + 10, on=False).paused
        assert store.rebuild()[1]


SIDES = {"candidate": "llm-fp8", "guarded": "llm-bf16", "safe": "llm-eager"}


@pytest.mark.parametrize("target", [row.name for row in adapters.ADAPTERS])
def test_adapters(target: str, golden) -> None:  # type: ignore[no-untyped-def]
    weights = {"candidate": Fraction(1, 20), "safe": Fraction(19, 20)}
    golden(adapters.text(target, weights, adapters.Names("llm", SIDES)) + "\n")
    for document in adapters.documents(target, weights, adapters.Names("llm", SIDES)):
        assert json.loads(json.dumps(document)) == document


def test_weights_that_a_system_cannot_hold_are_refused() -> None:
    thin = {"candidate": Fraction(1, 1_000_003), "safe": Fraction(1_000_002, 1_000_003)}
    with pytest.raises(InputError, match="parts"):
        adapters.documents("http-route", thin, adapters.Names("llm", SIDES))
    with pytest.raises(InputError, match="whole percent"):
        adapters.documents(
            "kserve", {"candidate": Fraction(1, 40), "safe": Fraction(39, 40)}, adapters.Names("llm", SIDES)
        )
    for target, weights in (("nginx", {"safe": ONE}), ("litellm", {})):
        with pytest.raises(InputError):
            adapters.documents(target, weights, adapters.Names("llm", SIDES))


def test_sides_of_one_backend_add_up() -> None:
    """The guarded kernel is the safe one unless another is named: two entries of one name would overwrite each other."""
    weights = {"candidate": Fraction(1, 10), "guarded": Fraction(1, 5), "safe": Fraction(7, 10)}
    names = adapters.Names("llm", {"candidate": "fp8", "guarded": "bf16", "safe": "bf16"})
    bodies = adapters.documents("litellm", weights, names)
    assert [(b["model_info"]["id"], b["litellm_params"]["weight"]) for b in bodies] == [("fp8", 1), ("bf16", 9)]
    (route,) = adapters.documents("http-route", weights, names)
    assert [b["weight"] for b in route["spec"]["rules"][0]["backendRefs"]] == [1, 9]


@pytest.mark.parametrize("target", ["http-route", "kserve"])
@pytest.mark.parametrize("name", ["", "a b\n--- x", "Upper", "-x", "x" * 64, 'a"b'])
def test_names_that_kubernetes_refuses(target: str, name: str) -> None:
    for names in (adapters.Names(name, SIDES), adapters.Names("llm", SIDES, namespace=name)):
        with pytest.raises(InputError, match="is no name in Kubernetes"):
            adapters.documents(target, {"safe": ONE}, names)
