"""What clauses are decided from: the table is whole, intervals hold the truth, what is not decided never passes."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcverify import driver
from kcverify.delivery.evidence import of_records
from kcverify.emit.readings import READINGS
from kcverify.gateway.cells import Facts, planned_cells, split_wealth, values_of
from kcverify.gateway.measures import MEASURES, Rows
from kcverify.gateway.observed import Listed, answered, listed, scored
from kcverify.gateway.streaming import Events, Gathered, content
from kcverify.runtime.sequential import judge_share
from kcverify.source import Source

TEXT = """contract seen version "1"
assume {{ temperature = 1; vocabulary = 40 }}
slice long = prompt_tokens >= 100
slice code = tag("code")
{clauses}
"""
ERROR = 1e-5


@lru_cache
def cells(clauses: str):  # type: ignore[no-untyped-def]
    loaded = driver.load_source(Source("seen.kc", TEXT.format(clauses=clauses)))
    assert not loaded.report.errors, loaded.report.errors
    made = loaded.contracts[0]
    return made, planned_cells(made)[0], {s.name: s for s in made.slices}


def test_every_metric_that_is_measured_has_a_row() -> None:
    assert set(MEASURES) == set(READINGS)
    for name, row in MEASURES.items():
        assert bool(row.never) + bool(row.observed) + (row.rows is not None) == 1, name


def sides(seed: int, size: float, top: int, rows: int = 6) -> tuple[np.ndarray, np.ndarray, Rows]:
    """Full log-probabilities of both sides, and what answers with `top` entries say of them."""
    rng = np.random.default_rng(seed)
    z = rng.normal(0, 3, (rows, 40))
    p, q = (x - np.log(np.exp(x).sum(1, keepdims=True)) for x in (z, z + rng.normal(0, size, z.shape)))
    tokens = tuple(int(rng.choice(40, p=np.exp(row) / np.exp(row).sum())) for row in q)

    def side(full: np.ndarray) -> Listed:
        lists = [
            [(i, float(row[i])) for i in {*np.argsort(-row)[:top], t}] for row, t in zip(full, tokens, strict=True)
        ]
        return listed([float(row[t]) for row, t in zip(full, tokens, strict=True)], lists, top)

    return p, q, Rows(tokens, side(p), side(q), ERROR, 1.0, True, 40)


def truth(name: str, p: np.ndarray, q: np.ndarray, tokens: tuple[int, ...]) -> np.ndarray:
    d, at = p - q, (np.arange(len(p)), np.array(tokens))
    return {
        "tv": lambda: 0.5 * np.abs(np.exp(p) - np.exp(q)).sum(1),
        "log_ratio": lambda: np.abs(d).max(1),
        "logit_span": lambda: d.max(1) - d.min(1),
        "kl(reference || candidate)": lambda: (np.exp(p) * d).sum(1),
        "kl(candidate || reference)": lambda: (np.exp(q) * -d).sum(1),
        "agreement": lambda: (p.argmax(1) == q.argmax(1)).astype(float),
        "token_log_ratio": lambda: np.abs(d[at]),
        "token_ratio": lambda: np.exp(d[at]),
        "token_inverse_ratio": lambda: np.exp(-d[at]),
        "sequence_ratio": lambda: np.exp([d[at].sum()]),
        "geometric_ratio": lambda: np.exp([d[at].mean()]),
    }[name]()


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.05, 1.0]), st.sampled_from([1, 5, 40]))
def test_every_interval_holds_the_truth(seed: int, size: float, top: int) -> None:
    p, q, rows = sides(seed, size, top)
    _, planned, _ = cells("numerical { t: tv <= 0.1 -> L1 }\nstatistical { a: agreement(top = 1) >= 90% -> L1 }")
    by_name = {c.planned.clause.metric.name: c.planned for c in planned}
    for name, row in MEASURES.items():
        if row.rows is None:
            continue
        found = row.rows(rows, by_name["agreement" if name == "agreement" else "tv"])
        assert not isinstance(found, str), name
        low, high = found
        exact = truth(name, p, q, rows.tokens)
        assert (low <= exact + 1e-12).all() and (exact <= high + 1e-12).all(), (name, low, exact, high)
    if top == 40:
        assert (rows.tv.high - rows.tv.low < 1e-4).all(), "whole lists leave next to nothing open"


CLAUSES = """numerical {
  share: tv <= 0.1 except 5% -> L2
  never: tv <= 0.1           -> L3
  mean:  mean tv <= 0.1      -> L1
  kl:    mean kl(candidate || reference) <= 0.1 nats -> L1
  wide:  logit_span <= 0.5 except 5% -> L1
}
statistical { top1: agreement(top = 1) >= 90% on code -> L2; parses: parse_rate >= 90% -> L1 }
runtime { slow: p99 latency <= 1 s -> L1; first: p99 time_to_first_token <= 1 s -> L1; errors: failure_rate <= 1% -> L2 }"""


def facts(rows: Rows | None = None, **more: object) -> Facts:
    observed = {"latency": 0.2, "first": 0.1, "failed": False, "parsed": True}
    return Facts("r", 1, 1.0, rows, **{"observed": observed, "fields": {"prompt_tokens": 5}, **more})  # type: ignore[arg-type]


def test_evidence_of_what_is_not_decided_fails_and_never_passes() -> None:
    """Top-1 lists leave total variation wide open: neither side of the evidence may gain anything from that."""
    made, planned, slices = cells(CLAUSES)
    _, _, vague = sides(1, 0.0, 1)
    _, _, sharp = sides(1, 0.0, 40)
    for rows, verdicts in ((vague, {"inconclusive", "unobservable"}), (sharp, {"pass"})):
        records, count = {}, 2000
        for _ in range(count):
            for name, value in values_of(planned, slices, facts(rows)).items():
                records[name] = value.record if name not in records else records[name].plus(value.record)
            if len(records) and count > 200:
                break
        grown = {name: scaled(record, count) for name, record in records.items()}
        found = {c.clause: c.verdict for c in of_records("t", made, count, grown).cells}
        assert {found["share"], found["never"], found["mean"]} <= verdicts, found


def scaled(record, times: int):  # type: ignore[no-untyped-def]
    """The record of so many equal requests."""
    out = record
    parts = {1: record}
    size = 1
    while size * 2 <= times:
        parts[size * 2] = parts[size].plus(parts[size])
        size *= 2
    rest, total = times - 1, out
    for step in sorted(parts, reverse=True):
        while rest >= step:
            total, rest = total.plus(parts[step]), rest - step
    return total


def test_a_split_wealth_is_sound_on_both_sides() -> None:
    wide, low, high = (split_wealth(a, b, 0.05) for a, b in ((0.0, 1.0), (0.0, 0.0), (1.0, 1.0)))
    assert wide.above == low.above and wide.below == high.below and wide.exceeding == 1
    assert judge_share(wide, 0.05, 0.95).verdict == "inconclusive"


def test_broken_numbers_fail_every_clause_about_them() -> None:
    _, planned, slices = cells(CLAUSES)
    _, _, rows = sides(2, 0.0, 40)
    broken = listed([math.nan] * len(rows), [[(0, math.nan)]] * len(rows), 40)
    spoilt = Rows(rows.tokens, rows.reference, broken, ERROR, 1.0, True, 40)
    for given_facts in (facts(spoilt), facts(None, broken=True)):
        found = values_of(planned, slices, given_facts)
        for name in ("share", "never", "mean"):
            assert found[name].low == 1.0 and found[name].record.invalid > 0, name
        assert found["kl"].record.wealth.infinite == 1


def test_reasons_void_and_slices() -> None:
    _, planned, slices = cells(CLAUSES)
    _, _, rows = sides(3, 0.0, 40)
    assert "top1 on code" not in values_of(planned, slices, facts(rows))
    assert "top1 on code" in values_of(planned, slices, facts(rows, tags=frozenset({"code"})))
    without = values_of(planned, slices, facts(None, missing="no ids"))
    assert without["share"].record.missing == 1 and without["share"].low is None and without["share"].reason == "no ids"
    assert without["slow"].low == 0.0, "what the exchange itself shows is seen all the same"
    assert "share" not in values_of(planned, slices, facts(None, unscored=True))
    void = values_of(planned, slices, facts(rows, void="other weights"))
    assert all(v.record.missing == 1 and v.low == 1.0 for v in void.values())
    assert all(v.low is None for v in values_of(planned, slices, facts(rows, void="no seed", blamed=False)).values())
    tempered = Rows(rows.tokens, rows.reference, rows.candidate, ERROR, 0.5, False, 40)
    hot = values_of(planned, slices, facts(tempered))
    assert hot["share"].low is None and hot["wide"].low == 0.0


@pytest.mark.parametrize(
    ("observed", "clause", "low", "missing"),
    [
        ({"latency": 2.0}, "slow", 1.0, 0), ({"latency": math.inf}, "slow", 1.0, 0), ({"failed": True}, "errors", 1.0, 0),
        ({"parsed": False}, "parses", 1.0, 0), ({"parsed": None}, "parses", None, 1), ({"first": None}, "first", None, 1),
        ({"first": None, "first_most": 0.5}, "first", 0.0, 0), ({"first": None, "first_most": 1.5}, "first", None, 1),
    ],
)  # fmt: skip
def test_numbers_of_the_exchange(observed: dict[str, object], clause: str, low: float | None, missing: int) -> None:
    _, planned, slices = cells(CLAUSES)
    value = values_of(planned, slices, facts(None, unscored=True, observed=observed))[clause]
    assert (value.low, value.record.missing) == (low, missing)


ANSWER = {
    "id": "x", "model": "m", "system_fingerprint": "f", "weight_version": "w", "prompt_token_ids": [1, 2],
    "choices": [{"index": 0, "text": "ab", "finish_reason": "stop", "token_ids": [5, 6], "logprobs": {
        "tokens": ["token_id:5", "token_id:6"], "token_logprobs": [-0.5, None],
        "top_logprobs": [{"token_id:5": -0.5, "token_id:7": -1.0}, {"token_id:6": -0.1, "token_id:5": -3.0}]}}],
}  # fmt: skip


def test_an_answer_in_pieces_reads_as_the_whole_one() -> None:
    import json

    gathered, cut = Gathered("completions"), Events()
    for i in range(2):
        choice = ANSWER["choices"][0]  # type: ignore[index]
        part = {k: v[i : i + 1] for k, v in choice["logprobs"].items()}
        event = {**ANSWER, "choices": [{"index": 0, "text": "ab"[i], "token_ids": [5 + i], "logprobs": part}]}
        data = b"data: " + json.dumps(event).encode() + b"\r\n\r\n"
        for piece in (data[:7], data[7:30], data[30:]):
            for whole in cut.feed(piece):
                gathered.add(json.loads(content(whole) or b""))
    one, two = (answered(found, (), None, 2) for found in (ANSWER, gathered.answer()))
    assert (one.tokens, one.prompt, one.text) == (two.tokens, two.prompt, two.text) == ((5, 6), (1, 2), "ab")
    assert one.side is not None and two.side is not None
    assert one.side.broken.tolist() == two.side.broken.tolist() == [False, True]
    np.testing.assert_array_equal(one.side.top, two.side.top)


def test_the_references_numbers_are_read_behind_the_prompt() -> None:
    rows = [None, {"2": {"logprob": -1.0}}, {"5": {"logprob": -0.4, "rank": 1}, "9": {"logprob": -2.0, "rank": 2}},
            {"6": {"logprob": -7.0, "rank": 9}, "5": {"logprob": -0.1}, "9": {"logprob": -2.5}}]  # fmt: skip
    side = scored({"choices": [{"prompt_logprobs": rows}]}, 2, (5, 6), 2)
    assert side is not None
    assert side.logprobs.tolist() == [-0.4, -7.0]
    assert sorted(side.ids[1].tolist()) == [5, 9], "the appended token is none of the most probable"
    assert scored({"choices": [{"prompt_logprobs": rows[:3]}]}, 2, (5, 6), 2) is None
    assert scored({"choices": [{}]}, 2, (5, 6), 2) is None
