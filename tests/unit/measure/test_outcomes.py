"""The file of outcomes: every field, every fault with its line, and what a run observes of its own."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kcverify import driver
from kcverify.diagnostics import InputError
from kcverify.measure.data import Request
from kcverify.measure.observed import Observer
from kcverify.measure.options import MeasureOptions
from kcverify.measure.outcomes import FIELDS, load_outcomes, misspelt, open_parser, strangers
from kcverify.measure.run import run_pair
from kcverify.measure.session import load_monitor
from kcverify.measure.sides import KernelSide
from kcverify.runtime.sources import OBSERVABLES

torch.set_num_threads(1)


def write(folder: Path, *lines: dict[str, Any] | str) -> Path:
    path = folder / "seen.jsonl"
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines), encoding="utf-8")
    return path


def test_every_observed_metric_has_a_field() -> None:
    assert {metric for f in FIELDS.values() for metric, _ in f.feeds} == set(OBSERVABLES)


def test_units_and_what_is_missing(tmp_path: Path) -> None:
    first = {
        "request_id": "a",
        "latency_ms": 120,
        "reward_reference": -0.5,
        "tags": ["x"],
        "prompt_tokens": 7,
        "time_s": 3,
    }
    second = {"request_id": 2, "latency_ms": None, "reward_candidate": 0.25}
    one, two = load_outcomes(write(tmp_path, first, "", second))
    assert one.given == {"latency": {"values": 0.12}, "reward_delta": {"reference": -0.5, "candidate": None}}
    assert two.given == {"latency": {"values": None}, "reward_delta": {"reference": None, "candidate": 0.25}}
    assert (one.tags, one.fields, one.time) == (frozenset({"x"}), {"prompt_tokens": 7}, 3.0)
    assert (two.request_id, two.line.number, two.time) == ("2", 3, None)


def test_one_sided_columns_are_missing_on_the_other(tmp_path: Path) -> None:
    (one,) = load_outcomes(write(tmp_path, {"request_id": "a", "reward_candidate": 1}))
    assert one.given == {"reward_delta": {"candidate": 1.0, "reference": None}}
    (one,) = load_outcomes(write(tmp_path, {"request_id": "a", "sampled_tokens": 5}))
    assert one.given == {"throughput": {"values": 5.0, "seconds": None}}


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [("json", "[1]", "[1"), (r"regex:\d+", "12", "a"), ("math:isqrt", "x", "y")],
)
def test_responses_are_parsed(text: str, good: str, bad: str, tmp_path: Path) -> None:
    parse = open_parser(text)
    lines = ({"request_id": i, "response_candidate": r, "response_reference": good} for i, r in enumerate((good, bad)))
    one, two = load_outcomes(write(tmp_path, *lines), parse)
    if text != "math:isqrt":  # it refuses every text
        assert one.given["parse_rate"] == {"values": 1.0} and one.given["parse_rate_delta"]["reference"] == 1.0
    assert two.given["parse_rate"] == {"values": 0.0}


@pytest.mark.parametrize("text", ["xml", "regex:(", "regex:", "no.such.module:f", "math:pi", "os:getcwd"])
def test_a_format_that_is_none(text: str) -> None:
    with pytest.raises(InputError):
        open_parser(text)
    assert open_parser(None) is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[1]", "not an object"),
        ("{", "not JSON"),
        ({"latency_ms": 1}, "`request_id` is missing"),
        ({"request_id": "a"}, "is that of line 1 too"),
        ({"request_id": "b", "latency_ms": "1"}, "no number"),
        ({"request_id": "b", "latency_ms": True}, "no number"),
        ({"request_id": "b", "latency_ms": -1}, "below zero"),
        ('{"request_id": "b", "latency_ms": 1e999}', "beyond the largest"),
        ('{"request_id": "b", "latency_ms": NaN}', "NaN is not a JSON number"),
        ({"request_id": "b", "failed": 1}, "neither true nor false"),
        ({"request_id": "b", "elapsed_ms": 0}, "nothing takes no time"),
        ({"request_id": "b", "response_candidate": "x"}, "needs --parse"),
        ({"request_id": "b", "response_candidate": 3}, "no text"),
        ({"request_id": "b", "parsed_candidate": True, "tags": "x"}, "`tags`"),
        ({"request_id": "b", "time_s": "noon"}, "`time_s`"),
    ],
)
def test_a_fault_is_shown_with_its_line(line: dict[str, Any] | str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_outcomes(write(tmp_path, {"request_id": "a", "latency_ms": 1}, line))
    assert "seen.jsonl:2: " in str(caught.value) and reason in str(caught.value)


def test_two_fields_that_say_the_same_are_refused(tmp_path: Path) -> None:
    line = {"request_id": "a", "parsed_candidate": True, "response_candidate": "1"}
    with pytest.raises(InputError, match="both say"):
        load_outcomes(write(tmp_path, line), open_parser("json"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        load_outcomes(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="empty"):
        load_outcomes(write(tmp_path, ""))


def test_a_misspelt_field_is_named(tmp_path: Path) -> None:
    found = load_outcomes(write(tmp_path, {"request_id": "a", "latncy_ms": 1, "prompt_tokens": 3}))
    assert misspelt(found) == ["field `latncy_ms` is not read: did you mean `latency_ms`"]


def test_observations_of_other_requests_or_of_nothing_are_named(tmp_path: Path) -> None:
    """A prefix too many in the ids, or the data's file again, went without a word."""
    found = load_outcomes(write(tmp_path, *({"request_id": name, "latency_ms": 1} for name in ("a", "xb", "xc"))))
    (note,) = strangers(found, {"a": None, "b": None})
    assert note.startswith("2 of 3 observed requests are none of the measured ones, as xb")
    assert strangers(found[:1], {"a": None}) == [] == strangers([], {"a": None})
    nothing = load_outcomes(write(tmp_path, {"request_id": "a", "tags": ["x"]}))
    assert strangers(nothing, {"a": None})[0].startswith("the observations have no field of a metric: none of latency")
    assert strangers(load_outcomes(write(tmp_path, {"request_id": "a", "time_s": 1})), {"a": None}) == []


CONTRACT = """contract c
slice long = prompt_tokens >= 10
runtime {
  late: max latency <= 3 s on long -> L1
  all: max latency <= 3 s -> L1
  speed: throughput >= 4 tokens/s -> L1
  memory: peak_memory <= 64 GiB -> L1
  errors: failure_rate <= 50% -> L1
}
"""


class Clock:
    """Moves by what the kernel takes."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def contract(folder: Path) -> Any:
    path = folder / "c.kc"
    path.write_text(CONTRACT, encoding="utf-8")
    return driver.load(path)[0]


REQUESTS = [
    Request("a", (1, 2, 3), fields={"prompt_tokens": 3}),
    Request("b", (1, 9, 3), fields={"prompt_tokens": 12}),
    Request("c", (1, 2)),
]


def run(folder: Path, outcomes: list[Any] | None = None) -> tuple[dict[tuple[str, str | None], Any], list[str]]:
    clock, parsed = Clock(), contract(folder)

    def logits(ids: torch.Tensor) -> torch.Tensor:
        clock.now += 0.5 * ids.shape[0]
        out = torch.zeros(*ids.shape, 4)
        out[ids == 9] = math.nan
        return out

    monitor = load_monitor(driver.emit_monitor(parsed), None)
    observer = Observer(monitor, parsed, outcomes or [], clock)
    side = KernelSide("user", {}, logits, torch.device("cpu"))
    run_pair(side, observer.watch(side), REQUESTS, on_rows=observer.take, batch=2)
    notes = observer.finish(REQUESTS)
    return {(c["name"], c["slice"]): c for c in monitor.report()["clauses"]}, notes


def test_a_run_times_the_candidate_alone(tmp_path: Path) -> None:
    """Two calls: a and b together in 1 s, c in 0.5 s; the reference's calls are not counted."""
    found, notes = run(tmp_path)
    assert found["all", None]["max"]["value"] == 1.0
    assert found["all", None]["evidence"]["requests"] == 3
    assert found["speed", None]["evidence"]["observed"] == pytest.approx(8 / 1.5)
    assert found["errors", None]["evidence"]["exceeding_requests"] == 1
    assert found["errors", None]["max"]["request"] == "b"
    assert found["memory", None]["verdict"] == "pass"
    assert len(notes) == 3
    late = found["late", "long"]
    assert late["verdict"] == "unobservable" and "membership of slice long was not given for 1" in late["reason"]


def test_what_the_file_carries_comes_from_there_alone(tmp_path: Path) -> None:
    lines = (
        {"request_id": "a", "latency_ms": 5000, "prompt_tokens": 20},
        {"request_id": "z", "latency_ms": 1, "prompt_tokens": 1},
    )
    found, notes = run(tmp_path, load_outcomes(write(tmp_path, *lines)))
    assert found["all", None]["evidence"]["requests"] == 2 and found["all", None]["max"]["value"] == 5.0
    assert found["late", "long"]["evidence"]["requests"] == 1 and found["late", "long"]["verdict"] == "fail"
    assert found["speed", None]["evidence"]["requests"] == 3 and len(notes) == 3
    assert notes[2].startswith("1 of 2 observed requests are none of the measured ones, as z")


def test_the_page_lists_every_field_and_metric() -> None:
    page = (Path(__file__).parents[3] / "docs" / "observations.md").read_text(encoding="utf-8")
    for name in (*FIELDS, *OBSERVABLES):
        assert f"`{name}`" in page or name.startswith("response_reference"), name


def test_files_of_logits_without_tokens_measure_what_needs_none(tmp_path: Path) -> None:
    """A clause on given tokens used to leave every row out where the tokens are not known."""
    path = tmp_path / "two.kc"
    path.write_text(
        "contract c\nnumerical { drift: logit_span <= 1 -> L1\n ratio: token_ratio in [0.5, 2] -> L1 }\n",
        encoding="utf-8",
    )
    for name in ("r", "c"):
        np.save(tmp_path / f"{name}.npy", np.zeros((6, 4), dtype=np.float32))
    parsed = driver.load(path)[0]
    result = driver.measure(parsed, str(tmp_path / "r.npy"), str(tmp_path / "c.npy"), None, MeasureOptions(window=2))
    drift, ratio = result["measured"]["clauses"]
    assert drift["evidence"]["rows"] == 6 and drift["verdict"] == "inconclusive"
    assert ratio["verdict"] == "unobservable" and "sampled_ids not given" in ratio["reason"]
