"""The device part of an update: nothing waits for the device, and one compiled graph serves every call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from monitor_streams import Example, fed, state, stream
from torch.utils._python_dispatch import TorchDispatchMode

from kcverify.runtime import Rows, row_statistics
from kcverify.runtime.tally import places_in_groups

WAITING = (
    "_local_scalar_dense", "item", "is_nonzero", "nonzero", "nonzero_static", "argwhere", "masked_select", "unique",
    "_unique", "_unique2", "unique_dim", "unique_consecutive", "equal", "allclose", "bincount", "repeat_interleave",
)  # fmt: skip


class Unsynchronised(TorchDispatchMode):  # type: ignore[misc]
    """Raises on operations whose result, or whose shape, the host must know."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._schema.name.split("::")[1]
        assert name not in WAITING, f"{name} waits for the device"
        if name.startswith(("index", "_index_put")) and len(args) > 1 and isinstance(args[1], list | tuple):
            assert not any(isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1]), (
                f"{name} by a mask waits for the device"
            )
        return function(*args, **(kwargs or {}))


def precomputed(update: dict[str, Any]) -> tuple[Rows, dict[str, Any]]:
    """Row statistics of an update, and what `count` takes beside them."""
    z, w = update["reference_logits"], update["candidate_logits"]
    rows = row_statistics(z, w, Example.PLAN, sampled_ids=update["sampled_ids"])
    names = ("request_ids", "sampled_ids", "slices")
    return rows, {"logits": (z, w)} | {n: update[n] for n in names if n in update}


def test_the_mode_sees_what_waits() -> None:
    x = torch.tensor([1.0, 0.0])
    for wait in (lambda: x.sum().item(), lambda: bool(x[0] > 0), lambda: x[x > 0], lambda: x.nonzero()):
        with pytest.raises(AssertionError, match="waits for the device"), Unsynchronised():
            wait()
    with pytest.raises(AssertionError, match="waits for the device"), Unsynchronised():
        x[x > 0] = 1.0


@pytest.mark.parametrize("ids", ["strings", "integers", "tensor"])
def test_counting_never_waits(ids: str) -> None:
    updates = stream(12)
    if ids != "strings":
        for index, u in enumerate(updates):
            u["request_ids"] = [index] * 5 if ids == "integers" else torch.full((5,), index)
    del updates[3]["sampled_ids"], updates[3]["slices"]["a"]
    updates[3]["sampled_ids"] = None
    monitor, prepared = Example(), [precomputed(u) for u in updates]
    with Unsynchronised():
        for rows, rest in prepared:
            monitor.count(rows, **rest)
    assert state(monitor) == state(fed(updates))


def test_counting_is_one_graph_and_never_compiled_again() -> None:
    """Graphs counted by the backend itself: one call of it is one compilation."""
    graphs: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: list[Any]) -> Any:
        graphs.append(len(graph.graph.nodes))
        return graph.forward

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    updates = stream(50)
    monitor = Example()
    monitor.compile(backend=backend)
    for update in updates:
        rows, rest = precomputed(update)
        monitor.count(rows, **rest)
    assert len(graphs) == 1 and torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]
    assert state(monitor) == state(fed(updates))
    monitor.reset()
    for update in updates[:5]:
        monitor.update(**update)
        monitor.close(update["request_ids"])
    assert len(graphs) == 1 and state(monitor) == state(fed(updates[:5]))


def test_a_generated_monitor_is_one_graph_too() -> None:
    from kcverify.driver import load
    from kcverify.emit.monitor import emit_monitor

    (contract,) = load(Path(__file__).parents[3] / "contracts" / "rl_rollout.kc")
    scope: dict[str, Any] = {}
    exec(emit_monitor(contract, verdicts={}, digest="d", version="0"), scope)
    monitors = [scope["ContractMonitor"](1.0) for _ in range(2)]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    monitors[1].compile(backend="aot_eager")
    for index, update in enumerate(stream(6)):
        z, w = update["reference_logits"], update["candidate_logits"]
        for monitor in monitors:
            rows = monitor.rows(z, w, update["sampled_ids"])
            monitor.count(rows, request_ids=[index] * 5, logits=(z, w), slices={"safety": update["slices"]["a"]})
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert state(monitors[0]) == state(monitors[1])


def test_other_numbers_of_rows_and_more_open_requests_compile_once_more() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    updates = [u for rows in (5, 3, 8, 4, 7) for u in stream(40, rows, seed=rows)]
    for index, u in enumerate(updates):
        u["request_ids"] = [index] * len(u["request_ids"])
    monitor = Example()
    monitor.compile(backend="eager")
    for update in updates:
        rows, rest = precomputed(update)
        monitor.count(rows, **rest)
    assert monitor.ledger.sums.shape[0] > 128
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 3
    assert state(monitor) == state(fed(updates))


def test_rows_computed_elsewhere_need_no_logits() -> None:
    updates = stream(8)
    monitor = Example()
    for update in updates:
        rows, rest = precomputed(update)
        monitor.count(rows, **(rest | {"logits": None}))
    found, whole = json.loads(state(monitor)), json.loads(state(fed(updates)))
    named = 0
    for one, other in zip(found["clauses"], whole["clauses"], strict=True):
        if other["max"] is not None:
            named += other["max"]["token"] is not None
            assert one["max"]["token"] is None
            one["max"]["token"] = other["max"]["token"]
    assert found == whole and named > 3


def test_places_in_groups() -> None:
    generator = torch.Generator().manual_seed(0)
    for count in (1, 2, 7, 60):
        groups = torch.randint(0, 5, (count,), generator=generator)
        seen: dict[int, int] = {}
        expected = []
        for g in groups.tolist():
            expected.append(seen.get(g, 0))
            seen[g] = expected[-1] + 1
        assert places_in_groups(groups).tolist() == expected
