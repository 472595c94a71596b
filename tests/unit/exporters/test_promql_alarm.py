"""The generated expressions decide as the runtime does: every count up to 20,000, and Prometheus itself on whole records."""

from __future__ import annotations

import math
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml
from exporter_cases import contract, records, samples, verdict_series

from kcverify.delivery.evidence import of_records
from kcverify.delivery.state import key
from kcverify.exporters.evidence import CLEAN, EXCEEDING, FAILS, Measured, measured, selector
from kcverify.exporters.prometheus import rules
from kcverify.runtime.sequential import log_e_rate

COUNTS = 20_000
_TERM = re.compile(r"([0-9.e+-]+) \* exp\(([0-9.e+-]+) \* (\S+?)\{[^}]*\} \+ ([0-9.e+-]+) \* (\S+?)\{[^}]*\}\)")


def _terms(expression: str) -> list[tuple[float, float, float]]:
    """Weight and both factors of each line; nothing of the text is left over."""
    found = _TERM.findall(expression)
    assert _TERM.sub("", expression).replace("+", "").strip() == ""
    assert all(row[2] == EXCEEDING and row[4] == CLEAN for row in found)
    return [(float(row[0]), float(row[1]), float(row[3])) for row in found]


def _value(terms: list[tuple[float, float, float]], bad: np.ndarray, seen: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return sum(w * np.exp(up * bad + down * (seen - bad)) for w, up, down in terms)  # type: ignore[return-value]


def _binary(rate: str) -> Measured:
    made = contract(f'contract c version "1"\nruntime {{ f: failure_rate <= {rate} -> L1 }}\n')
    return measured(made)[0][0]


@pytest.mark.parametrize("rate", ["0.01%", "0.1%", "1%", "5%", "20%", "70%"])
def test_the_alarm_is_the_integer_table(rate: str) -> None:
    """Each term grows with the exceedances, so the two counts beside the table's number decide for all of them."""
    one = _binary(rate)
    assert one.against is not None
    terms = _terms(one.against)
    assert all(w > 0 and up > 0 > down for w, up, down in terms)
    bound = math.log(one.threshold)
    table = np.zeros(COUNTS + 1)
    first = 1
    for n in range(1, COUNTS + 1):
        while first <= n and log_e_rate(first, n, one.limit, "above") < bound:
            first += 1
        table[n] = first
    seen = np.arange(1, COUNTS + 1, dtype=float)
    at, before = table[1:], table[1:] - 1
    reached = at <= seen
    margin = 1 + 1e-9
    assert (_value(terms, at, seen)[reached] >= one.threshold * margin).all()
    assert (_value(terms, np.minimum(before, seen), seen) < one.threshold / margin).all()


@pytest.mark.parametrize("rate", ["0.1%", "1%", "20%"])
def test_evidence_for_the_limit_is_the_same(rate: str) -> None:
    one = _binary(rate)
    assert one.for_ is not None
    terms = _terms(one.for_)
    for n in (0, 1, 59, 404, 1000, 20_000, 10**7):
        for bad in {0, min(1, n), min(7, n), n // 1000, n // 100}:
            (value,) = _value(terms, np.array([float(bad)]), np.array([float(n)]))
            assert not math.isnan(value)
            wanted = log_e_rate(bad, n, one.limit, "below")
            if wanted > 700:
                assert value == math.inf or math.log(value) == pytest.approx(wanted, rel=1e-9)
            elif wanted > -700:
                assert math.log(value) == pytest.approx(wanted, rel=1e-9, abs=1e-9)
            else:
                assert value < 1e-300


def _promtool(folder: Path, text: str, test: dict[str, object]) -> subprocess.CompletedProcess[str]:
    (folder / "rules.yml").write_text(text, encoding="utf-8")
    (folder / "test.yml").write_text(yaml.safe_dump(test, allow_unicode=False), encoding="utf-8")
    return subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.needs("prometheus")
def test_prometheus_gives_the_verdicts_of_the_runtime(tmp_path: Path) -> None:
    """Random records of every clause, at the boundaries too, one set a minute: `promtool` evaluates the rule file."""
    made = contract()
    rounds = 30
    given = [records(made, seed) for seed in range(rounds)]
    values = [samples(made, one) for one in given]
    names = sorted({name for one in values for name in one})
    series = [{"series": n, "values": " ".join(repr(v[n]) if n in v else "stale" for v in values)} for n in names]
    checks, words = [], set()
    for minute, one in enumerate(given):
        cells = {key(c.clause, c.slice): c for c in of_records("here", made, 1, one).cells}
        for name, cell in cells.items():
            sign = {"pass": 1, "fail": -1}.get(cell.verdict, 0)
            words.add((cell.clause, sign))
            expr = verdict_series(made, cell.clause, cell.slice)
            labels = expr.replace('slice=""', "").replace(", }", "}")
            checks.append({"expr": expr, "eval_time": f"{minute}m", "exp_samples": [{"labels": labels, "value": sign}]})
            assert name in one
    assert len({c for c, _ in words}) == 10 and {s for _, s in words} == {1, 0, -1}
    test = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": checks}],
    }
    done = _promtool(tmp_path, rules(made), test)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    wrong = [{**checks[0], "exp_samples": [{**checks[0]["exp_samples"][0], "value": 5}]}]  # type: ignore[index]
    test["tests"] = [{"interval": "1m", "input_series": series[:1], "promql_expr_test": wrong}]
    assert _promtool(tmp_path, rules(made), test).returncode != 0


@pytest.mark.needs("prometheus")
def test_alerts_fire_at_the_first_exceedance_and_where_nothing_is_seen(tmp_path: Path) -> None:
    made = contract('contract c version "1"\nruntime { f: failure_rate <= 0% -> L3; g: failure_rate <= 1% -> L1 }\n')
    base = 'contract="c", clause="{}"'
    series = [
        {"series": f"kcverify_observations_total{{{base.format('f')}}}", "values": "0+10x30"},
        {"series": f"kcverify_exceedances_total{{{base.format('f')}}}", "values": "0x4 1x30"},
    ]
    fails = {"alertname": "KcverifyClauseFails", "eval_time": "4m", "exp_alerts": []}
    summary = {"summary": "c: f fails", "description": "f: failure_rate <= 0% -> L3: the clause allows no exception, and its limit was exceeded, or a value was not finite"}  # fmt: skip
    fired = {
        **fails,
        "eval_time": "5m",
        "exp_alerts": [
            {
                "exp_labels": {"contract": "c", "clause": "f", "severity": "L3", "action": "alert"},
                "exp_annotations": summary,
            }
        ],
    }
    unseen = {
        "alertname": "KcverifyClauseUnmeasured",
        "eval_time": "11m",
        "exp_alerts": [
            {
                "exp_labels": {"contract": "c", "clause": "g", "severity": "unmeasured"},
                "exp_annotations": {
                    "summary": "c: nothing is measured of g",
                    "description": "no counter of it is scraped: its verdict is inconclusive, which is no pass",
                },
            }
        ],
    }
    test = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "alert_rule_test": [fails, fired, unseen]}],
    }
    done = _promtool(tmp_path, rules(made), test)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_every_burn_rate_is_one_that_traffic_can_reach() -> None:
    text = rules(contract())
    loaded = yaml.safe_load(text)
    burning = [r for g in loaded["groups"] for r in g["rules"] if r.get("alert") == "KcverifyBurnRate"]
    limits = [float(found) for r in burning for found in re.findall(r"\) > (\S+)", r["expr"])]
    assert burning and all(0 < limit < 1 for limit in limits)
    coarse = [r["labels"]["factor"] for r in burning if r["labels"]["clause"] == "coarse"]
    assert coarse == ["1"]
    assert "clause coarse: no burn-rate rule over 1h: 14.4 times 0.2 is no rate below 1" in text
    assert not [r for r in burning if r["labels"]["clause"] in ("far", "drift", "gap")]


def test_a_slice_of_a_severe_clause_fails_at_alpha_over_k_and_others_by_e_bh() -> None:
    text = rules(contract())
    both = {
        r["labels"]["clause"]: r["expr"] for r in yaml.safe_load(text)["groups"][0]["rules"] if r.get("record") == FAILS
    }
    strict = selector("every_kind", "strict", ("long", "code"))
    assert f"{strict} >= bool 39.99999999999996" in both["strict"]
    assert [k for k in (1, 2, 3) if f">= bool {k})" in both["parses"]] == [1, 2, 3]
