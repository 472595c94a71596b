"""A monitor with a clause of every kind, and streams of logits for it; child processes of the tests import it too."""

from __future__ import annotations

import json
from typing import Any

import torch

from kcverify.runtime import (
    Affine,
    Band,
    ClauseSpec,
    Monitor,
    RowPlan,
    Rows,
    Values,
    at_least,
    at_most,
    signed,
    within,
)

torch.set_num_threads(1)
WIDTH = 64


def spec(name: str, metric: str, evidence: str, **fields: Any) -> ClauseSpec:
    values: dict[str, Any] = {"statistic": "max", "severity": "L2", "text": name, "family": "numerical"}
    return ClauseSpec(name=name, metric=metric, evidence=evidence, **(values | fields))


_RATIO: dict[str, Any] = {"lower": 0.5, "upper": 2.0, "inputs": ("sampled_ids",)}


class Example(Monitor):
    CONTRACT = "example"
    DIGEST = "d"
    TEMPERATURE = (0.5, 2.0)
    PLAN = RowPlan(
        frozenset(
            {"logit_span", "logit_drift", "tv", "kl_candidate_reference", "ratio_min", "ratio_max", "token_log_ratio"}
        ),
        ((1, False),),
    )
    CLAUSES = (
        spec("drift", "logit_span", "share", upper=0.05, limit=0.1, exception=0.1),
        spec("hard", "logit_drift", "maximum", upper=1.0, limit=0.0, minimum_requests=5),
        spec("tail", "tv", "share", upper=0.01, limit=0.2, exception=0.2, slices=("a", "b")),
        spec("kl", "kl(candidate || reference)", "mean", statistic="mean", upper=0.5, bounded=False),
        spec("tv_mean", "tv", "mean", statistic="mean", upper=0.3),
        spec("ratio", "importance_ratio", "share", lower=0.5, upper=2.0, limit=0.1, exception=0.1),
        spec("top1", "agreement", "share", statistic="rate", family="statistical", lower=0.8, limit=0.2),
        spec("scaled", "logit_span", "binary", upper=Affine((0, 1), (1, 2)), limit=0.1, exception=0.1, unit="token"),
        spec("cool", "logit_drift", "maximum", upper=2.0, limit=0.0, band=Band((1, 2), (4, 5))),
        spec("seq", "sequence_ratio", "binary", limit=0.1, exception=0.1, **_RATIO, source="sequence"),
        spec("geo", "geometric_ratio", "maximum", limit=0.0, minimum_requests=3, **_RATIO, source="geometric"),
        spec("later", "throughput", "none", family="runtime", reason="not enforced yet"),
    )

    def clause_values(self, rows: Rows) -> dict[str, Values]:
        v = rows.values
        values = {
            "drift": at_most(v["logit_span"], 0.05, "ratio"),
            "hard": at_most(v["logit_drift"], 1.0, "drift"),
            "tail": at_most(v["tv"], 0.01, "mass"),
            "kl": at_most(v["kl_candidate_reference"], 0.5, "mass"),
            "tv_mean": at_most(v["tv"], 0.3, "mass"),
            "ratio": within(v["ratio_min"], v["ratio_max"], 0.5, 2.0, "ratio"),
            "top1": at_least(v["agreement_1"], 1.0),
            "scaled": at_most(v["logit_span"], self.upper["scaled"]),
            "cool": at_most(v["logit_drift"], 2.0, "drift"),
        }
        if "token_log_ratio" in v:
            values |= {"seq": signed(v["token_log_ratio"]), "geo": signed(v["token_log_ratio"])}
        return values


def stream(requests: int = 24, rows: int = 5, size: float = 0.02, seed: int = 0) -> list[dict[str, Any]]:
    """One update a request."""
    generator = torch.Generator().manual_seed(seed)
    out = []
    for index in range(requests):
        z = torch.randn(rows, WIDTH, generator=generator) * 2
        out.append(
            {
                "reference_logits": z,
                "candidate_logits": z + size * torch.randn(rows, WIDTH, generator=generator),
                "request_ids": [f"request-{index}"] * rows,
                "sampled_ids": torch.randint(0, WIDTH, (rows,), generator=generator),
                "slices": {"a": torch.arange(rows) % 2 == index % 2, "b": torch.full((rows,), index % 3 == 0)},
            }
        )
    return out


def fed(updates: list[dict[str, Any]], temperature: float | None = None) -> Example:
    monitor = Example(temperature)
    for update in updates:
        monitor.update(**update)
    return monitor


def clause(report: dict[str, Any], name: str, slice_name: str | None = None) -> dict[str, Any]:
    return next(c for c in report["clauses"] if c["name"] == name and c["slice"] == slice_name)


def state(monitor: Monitor) -> str:
    """The report as text, to compare bit for bit."""
    return json.dumps(monitor.report(), sort_keys=True)
