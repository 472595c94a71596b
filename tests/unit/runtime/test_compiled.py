"""Monitors under `torch.compile`: any mix of inputs, sizes and types, and inside a function that is compiled itself."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from monitor_streams import Example, state, stream

from kcverify.runtime import RowPlan, Rows, Values, at_most, row_statistics, signed


class Small(Example):
    """Two clauses, which compile quickly."""

    CLAUSES = tuple(c for c in Example.CLAUSES if c.name in ("hard", "seq"))

    def clause_values(self, rows: Rows) -> dict[str, Values]:
        v = rows.values
        values = {"hard": at_most(v["logit_drift"], 1.0, "drift")}
        return values | ({"seq": signed(v["token_log_ratio"])} if "token_log_ratio" in v else {})


@pytest.fixture
def counters() -> Any:
    """torch's counts of graphs and breaks, from zero."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    return torch._dynamo.utils.counters


def both(updates: list[dict[str, Any]], **options: Any) -> tuple[str, str]:
    compiled, plain = Small(), Small()
    compiled.compile(**{"backend": "eager"} | options)
    for update in updates:
        for monitor in (compiled, plain):
            monitor.update(**update)
    return state(compiled), state(plain)


def test_any_mix_of_inputs_and_types_can_be_counted(counters: Any) -> None:
    """The ninth kind of input was an error: one function may be compiled eight times."""
    updates = []
    kinds = itertools.product((True, False), (True, False), (torch.float32, torch.bfloat16, torch.float16))
    for index, (sampled, numbered, dtype) in enumerate(kinds):
        (update,) = stream(1, 3, seed=index)
        update |= {"request_ids": [index] * 3, "positions": torch.arange(3) if numbered else None}
        update["sampled_ids"] = update["sampled_ids"] if sampled else None
        update |= {side: update[side].to(dtype) for side in ("reference_logits", "candidate_logits")}
        updates.append(update)
    compiled, plain = both(updates + [u | {"request_ids": [100 + u["request_ids"][0]] * 3} for u in updates])
    assert compiled == plain
    assert counters["stats"]["unique_graphs"] == len(updates) and not counters["graph_break"]


def test_sizes_that_are_compiled_too_often_are_counted_without_a_graph(counters: Any) -> None:
    updates = [u | {"request_ids": [rows] * rows} for rows in range(2, 13) for u in stream(1, rows, seed=rows)]
    compiled, plain = both(updates, dynamic=False)
    assert compiled == plain and counters["stats"]["unique_graphs"] == 8


def test_a_graph_that_cannot_be_compiled_leaves_the_monitor_as_it_was() -> None:
    def backend(graph: torch.fx.GraphModule, _: list[Any]) -> Any:
        raise RuntimeError("no compiler")

    torch._dynamo.reset()
    monitor, (first, second) = Small(), stream(2, 3)
    monitor.update(**first)
    before = state(monitor)
    monitor.compile(backend=backend)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="no compiler"):
        monitor.update(**second | {"request_ids": [*first["request_ids"][:1], "new", "new"]})
    assert state(monitor) == before and len(monitor.ledger.slots) == 1


@pytest.mark.parametrize("compiled", [False, True])
def test_an_update_inside_a_compiled_step_is_one_break_and_no_condition(counters: Any, compiled: bool) -> None:
    """Request ids and open requests were conditions of graphs, which were compiled at every call up to the limit."""
    monitor = Small()
    if compiled:
        monitor.compile(backend="eager")

    @torch.compile(backend="eager")  # type: ignore[misc]
    def step(reference: torch.Tensor, candidate: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
        scaled = candidate * 1.0
        monitor.update(reference, scaled, **given)
        return scaled.sum() * 2.0

    updates = [u for index in range(20) for u in stream(1, 2 + index % 5, seed=index)]
    for index, update in enumerate(updates):
        rows = len(update["reference_logits"])
        update["request_ids"] = torch.tensor([index] * rows)
        given = {name: value for name, value in update.items() if "logits" not in name}
        step(update["reference_logits"], update["candidate_logits"], given)
    plain = Small()
    for update in updates:
        plain.update(**update)
    assert state(monitor) == state(plain)
    assert counters["stats"]["unique_graphs"] <= 4 + 2 * compiled


def test_statistics_in_a_graph_take_any_sizes_and_pass_no_gradient(counters: Any) -> None:
    plan = RowPlan(frozenset({"tv", "kl_reference_candidate", "token_log_ratio"}))

    @torch.compile(backend="aot_eager", fullgraph=True)  # type: ignore[misc]
    def step(z: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> Rows:
        return row_statistics(z * 1.0, w, plan, sampled_ids=ids)

    for count, width in ((2, 9), (3, 12), (7, 30), (5, 64)):
        z, w = (torch.randn(count, width, requires_grad=side == 0) for side in range(2))
        ids = torch.randint(-1, width, (count,))
        for tensor in (z, w):
            torch._dynamo.mark_dynamic(tensor, 0)
            torch._dynamo.mark_dynamic(tensor, 1)
        torch._dynamo.mark_dynamic(ids, 0)
        found, expected = step(z, w, ids), row_statistics(z, w, plan, sampled_ids=ids)
        assert not found.values["tv"].requires_grad and not expected.values["tv"].requires_grad
        for name, column in expected.values.items():
            torch.testing.assert_close(found.values[name], column, rtol=1e-9, atol=1e-12, equal_nan=True)
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]


def test_a_token_beyond_the_vocabulary_that_no_host_sees_is_not_another_one() -> None:
    """It was taken for the last token of the vocabulary."""
    plan = RowPlan(frozenset({"token_log_ratio"}))

    @torch.compile(backend="eager", fullgraph=True)  # type: ignore[misc]
    def ratio(z: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return row_statistics(z, w, plan, sampled_ids=ids).values["token_log_ratio"]

    z, w = torch.randn(2, 3, 8).unbind(0)
    assert ratio(z, w, torch.tensor([8, 7, -1])).isnan().tolist() == [True, False, True]
