"""The report: every number is that of the JSON, nothing is fetched, hostile text stays text, Chromium renders it."""

from __future__ import annotations

import copy
import json
import math
import re
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcverify.emit import svg
from kcverify.emit.report import render_report
from kcverify.emit.visible import visible


def log_histogram(median: float, spread: float, rows: int, seed: int) -> dict[str, Any]:
    """Bins of 1/64 octave, as the monitor keeps them, of a log-normal draw."""
    values = np.exp(np.random.default_rng(seed).normal(math.log(median), spread, rows))
    edges = 2.0 ** (np.arange(-24 * 16, 4 * 16 + 1) / 16)
    counts, _ = np.histogram(values, edges)
    inside = [int(c) for c in counts]
    below, above = int((values < edges[0]).sum()), int((values >= edges[-1]).sum())
    return {"edges": [0.0, *edges.tolist(), math.inf], "counts": [below, *inside, above]}


def clause(name: str, metric: str, upper: float, verdict: str, **changes: Any) -> dict[str, Any]:
    base = {
        "name": name, "family": "numerical", "metric": metric, "statistic": "max", "severity": "L2", "slice": None,
        "text": f"{name}: {metric} <= {upper} except 1%", "limit": {"lower": None, "upper": upper}, "exception": 0.01,
        "confidence": 0.95, "unit": "request", "verdict": verdict, "reason": "",
        "evidence": {
            "kind": "share", "requests": 512, "rows": 32768, "exceeding_rows": 3, "exceeding_requests": 2,
            "observed": 0.000091552734375, "log_e_fail": -0.3712345, "log_e_pass": 3.412907,
            "log_threshold_fail": 2.995732273553991, "log_threshold_pass": 2.995732273553991, "requests_needed": 404,
        },
        "max": {
            "value": 0.6188412, "request": "window-17", "row": 1121, "position": 33, "token": 101, "token_text": " ",
            "context": {"before": "the hacker ethic: a\nset of <beliefs> & 'prac", "after": "t"},
        },
        "quantiles": {"p50": [0.1226, 0.1238], "p90": [0.201, 0.203], "p99": [0.299, 0.303], "p99.9": [0.44, 0.446]},
    }  # fmt: skip
    return {**base, **changes}


def guarantees() -> list[dict[str, Any]]:
    chain = [
        {"quantity": "logit_span", "value": 0.6, "unit": "", "lemma": "clause drift", "detail": "except 1% of tokens"},
        {"quantity": "tv", "value": 0.148885033623318, "unit": "", "lemma": "tv_of_span",
         "detail": "tanh(0.6 / (4 · 1)): attained by two tokens of equal weight"},
        {"quantity": "tv with exceptions", "value": 0.157396183287, "unit": "", "lemma": "exceedance_mix",
         "detail": "1 − (1 − 0.01)(1 − 0.148885)"},
        {"quantity": "reward_drift", "value": 0.157396183287, "unit": "", "lemma": "reward_of_tv",
         "detail": "reward in [0, 1]"},
    ]  # fmt: skip
    return [
        {
            "name": "reward_safe", "claim": "reward_drift <= 0.16", "verdict": "PROVED", "bound": 0.157396183287,
            "threshold": 0.16, "slack": 0.002603816713, "reason": "drift binds", "chain": chain,
            "routes": [{"clauses": ["drift"], "bound": "0.157397", "slack": "0.0026", "holds": True, "note": ""}],
        },
        {
            "name": "grad_safe", "claim": "pg_bias <= 2", "verdict": "UNKNOWN", "bound": 3.1479236, "threshold": 2,
            "slack": -1.1479236, "reason": "the best bound is 3.14792; logit_span <= 0.37 would do",
            "chain": [*chain[:2], {**chain[3], "quantity": "pg_bias", "value": 3.1479236, "lemma": "pg_bias_of_tv"}],
            "routes": [],
        },
    ]  # fmt: skip


def example() -> dict[str, Any]:
    """Two guarantees, seven clauses of every verdict, two slices, three histograms, hostile text everywhere."""
    clauses = [
        clause("drift", "logit_span", 0.6, "pass"),
        clause("tail", "tv", 0.02, "fail", severity="L3", reason="2.1% of tokens exceed it",
               max={"value": 0.0371129, "request": "</td><script>x</script>", "row": 5, "token": 32}),
        clause("kl_mean", "kl(candidate || reference)", 1e-4, "inconclusive", statistic="mean", exception=None,
               unit="nats", text="kl_mean: mean kl(candidate || reference) <= 1e-4 nats", quantiles=None),
        clause("drift", "logit_span", 0.6, "inconclusive", slice="safety", reason="113 of 404 clean requests"),
        clause("parses", "parse_rate", 0.99, "unobservable", evidence=None, max=None, quantiles=None,
               limit={"lower": 0.99, "upper": None}, reason="no text of responses in the data"),
        clause("speed", "throughput", 1500, "not_enforced", evidence=None, max=None, quantiles=None,
               limit={"lower": 1500, "upper": None}),
    ]  # fmt: skip
    measured = {
        "contract": "demo", "digest": "ab" * 32, "temperature": 1.0, "requests": 512,
        "rows": {"total": 32768, "invalid": 0, "support_reference_only": 0, "support_candidate_only": 0},
        "clauses": clauses, "notes": ["no exceedance in 512 requests: rate below 0.74%"],
        "histograms": {
            "logit_span": log_histogram(0.123, 0.38, 32768, 1),
            "tv": log_histogram(0.0051, 0.8, 32768, 2),
            "kl(candidate || reference)": log_histogram(1.4e-4, 1.6, 32768, 3),
        },
    }  # fmt: skip
    side = {"torch": "2.13.0+cpu", "device": "cpu AVX2", "weights": "d7801875" * 8}
    return {
        "contract": {"name": "tinylm_int8", "version": "1.0", "digest": "ab" * 32,
                     "description": "int8 weights against float32 <on> the demo model"},
        "pair": {"reference": "demo:float32", "candidate": "demo:int8"},
        "data": {"path": "heldout.txt", "window": 64, "tokens": 32768},
        "complete": True, "verdict": "fail", "exit_code": 1, "guarantees": guarantees(), "measured": measured,
        "fingerprints": {"reference": {"format": "float32", "operator": "torch.linear", **side},
                         "candidate": {"format": "int8", "operator": "torch._weight_int8pack_mm", **side}},
        "kcverify": "0.1.0",
    }  # fmt: skip


_VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Elements, `<data>` values and balance of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.elements if name == tag]


def assert_self_contained(page: Page) -> None:
    for tag, attrs in page.elements:
        assert tag not in ("script", "link", "iframe", "img", "object", "embed", "base"), tag
        for name, value in attrs.items():
            inside = (tag, name) == ("a", "href") and str(value).startswith("#")
            assert inside or name not in ("src", "href", "xlink:href", "srcset", "action", "background"), (tag, name)
            assert not name.startswith("on"), (tag, name)
            assert "url(" not in (value or "")


def numbers_of(result: dict[str, Any]) -> set[str]:
    """Numbers of the JSON that a reader of the report must find, as JSON writes them."""
    found: list[object] = [result["measured"]["rows"]["total"], result["measured"]["requests"]]
    for guarantee in result["guarantees"]:
        found += [guarantee["bound"], guarantee["threshold"], guarantee["slack"]]
        found += [link["value"] for link in guarantee["chain"]]
    for clause in result["measured"]["clauses"]:
        evidence = clause["evidence"] or {}
        found += [value for key, value in evidence.items() if key != "kind"]
        if clause["max"]:
            found += [clause["max"]["value"], clause["max"]["token"]]
        found += [end for pair in (clause["quantiles"] or {}).values() for end in pair]
    return {json.dumps(value) for value in found}


def test_numbers_are_those_of_the_json() -> None:
    page = Page(render_report(example()))
    shown = {str(attrs["value"]) for attrs in page.all("data")}
    assert numbers_of(example()) <= shown


def test_nothing_is_fetched_and_nothing_runs() -> None:
    text = render_report(example())
    assert_self_contained(Page(text))
    assert not re.search(r"https?:|@import|url\(", text)


def test_hostile_text_stays_text() -> None:
    page = Page(render_report(example()))
    assert "</td><script>x</script>" in page.text
    assert any("<beliefs> & 'prac" in text for text in page.text)


def test_tables_pictures_and_ids_are_accessible() -> None:
    page = Page(render_report(example()))
    assert all("scope" in attrs for attrs in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table"))
    ids = [attrs["id"] for _, attrs in page.elements if attrs.get("id")]
    assert len(ids) == len(set(ids))
    for attrs in page.all("svg"):
        assert attrs["role"] == "img"
        assert all(name in ids for name in str(attrs["aria-labelledby"]).split())
    assert len(page.all("svg")) == len(page.all("desc")) >= 7
    assert page.all("html")[0]["lang"] == "en"


def test_every_verdict_has_its_word_and_its_symbol() -> None:
    text = render_report(example())
    for word, symbol in [("pass", "✓"), ("fail", "✕"), ("inconclusive", "?"), ("unobservable", "⊘"), ("PROVED", "✓")]:
        assert f'<span aria-hidden="true">{symbol}</span> {word}</span>' in text
    assert "○</span> not enforced</span>" in text


def test_what_went_wrong_is_said_at_the_top() -> None:
    result = example()
    assert "This run was cut short" not in render_report(result)
    result["complete"] = False
    result["measured"]["rows"]["invalid"] = 7
    text = render_report(result)
    assert "This run was cut short" in text
    assert '<data value="7">7</data> invalid rows' in text


def test_fingerprints_that_differ_are_marked() -> None:
    text = render_report(example())
    assert re.search(r'class="differs"><th[^>]*>operator</th>', text)
    assert not re.search(r'class="differs"><th[^>]*>torch</th>', text)


def test_an_empty_run_renders() -> None:
    result = example()
    result["guarantees"] = []
    result["fingerprints"] = {}
    result["measured"]["clauses"] = []
    result["measured"]["notes"] = []
    result["measured"]["histograms"] = {"tv": {"edges": [0.0, 1.0, math.inf], "counts": [0, 0]}}
    assert_self_contained(Page(render_report(result)))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, None, 0.0, -0.25])
def test_unusual_numbers_render(value: float | None) -> None:
    result = copy.deepcopy(example())
    result["guarantees"][0]["bound"] = result["guarantees"][1]["threshold"] = value
    result["guarantees"][0]["chain"][1]["value"] = value
    clause = result["measured"]["clauses"][0]
    clause["evidence"]["log_e_fail"] = clause["max"]["value"] = clause["evidence"]["observed"] = value
    clause["limit"] = {"lower": value, "upper": value}
    text = render_report(result)
    assert_self_contained(Page(text))
    assert not re.search(r'(?:x|y|x1|x2|y1|y2|width|height)="-?(?:nan|inf)', text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.157396183287, "0.157396"), (1e-4, "0.0001"), (9.1552734375e-05, "9.15527·10⁻⁵"), (1e-6, "10⁻⁶"),
        (32768, "32 768"), (-1.5, "−1.5"), (-3e-9, "−3·10⁻⁹"), (None, "–"), (math.inf, "∞"), (math.nan, "NaN"),
        (0.0, "0"), (True, "True"), ("1/3", "1/3"),
    ],
)  # fmt: skip
def test_short_numbers(value: object, text: str) -> None:
    assert svg.number(value) == text


@given(st.lists(st.integers(0, 50), min_size=1, max_size=400), st.floats(0, 1e-3), st.booleans())
def test_joined_bars_lose_no_row(counts: list[int], low: float, open_end: bool) -> None:
    edges = [low + 1.07**i - 1 for i in range(len(counts) + 1)]
    if open_end:
        edges[-1] = math.inf
    drawn = svg.bars(edges, counts)
    assert sum(b.count for b in drawn) == sum(counts)
    assert len(drawn) <= 46
    assert all(a.high <= b.low for a, b in pairwise(drawn))
    picture = svg.histogram("histogram-0", "tv", "", edges, counts, [svg.Threshold("t", 0.5, True)])
    assert "nan" not in picture.lower().replace("nance", "")


def test_a_limit_stands_where_its_value_is() -> None:
    edges, counts = [0.0, 1.0, 2.0, 3.0, 4.0], [5, 5, 5, 5]
    picture = svg.histogram("histogram-0", "m", "", edges, counts, [svg.Threshold("limit", 2.0, True)])
    limit = float(re.search(r'<line x1="([\d.]+)"[^>]*class="limit"', picture).group(1))
    bars_left = [float(x) for x in re.findall(r'<rect x="([\d.]+)"[^>]*class="bar"', picture)]
    assert min(abs(x - 0.4 - limit) for x in bars_left) < 0.2
    assert sum(x >= limit for x in bars_left) == 2


def test_control_characters_are_shown() -> None:
    assert visible("a\nb\tc\x00\u202ed e") == "a⏎b⇥c\\x00\\u202ed e"
    assert visible(" ", spaces=True) == "·"
