"""Prints the worst relative errors of KL and TV against the float64 oracle, beside the textbook formulas in float32.

Rows: flat, peaked, one whose dominant token comes late, and a constant offset of 100 between the sides. The textbook
is log_softmax, `F.kl_div` and `|p - q|`; its negative divergences are counted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from kcverify.runtime.backends import BACKENDS, Job
from kcverify.runtime.oracle import oracle_rows
from kcverify.runtime.rows import RowPlan, Workspace, row_statistics

PLAN = RowPlan(frozenset({"tv", "kl_reference_candidate", "kl_candidate_reference"}))
NOISE = (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)
ROWS, WIDTH = 3, 8192
Columns = dict[str, list[float]]


def textbook(z: torch.Tensor, w: torch.Tensor) -> Columns:
    """The three divergences as they are usually written, in float32."""
    log_p, log_q = F.log_softmax(z, -1), F.log_softmax(w, -1)
    return {
        "tv": (0.5 * (log_p.exp() - log_q.exp()).abs().sum(-1)).tolist(),
        "kl_reference_candidate": F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1).tolist(),
        "kl_candidate_reference": F.kl_div(log_p, log_q, reduction="none", log_target=True).sum(-1).tolist(),
    }


def backend(name: str) -> Callable[[torch.Tensor, torch.Tensor], Columns]:
    """The same from a backend of kcverify."""

    def run(z: torch.Tensor, w: torch.Tensor) -> Columns:
        return {k: v.tolist() for k, v in row_statistics(z, w, PLAN, backend=name).values.items()}

    return run


def pairs(noise: float) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Rows of every kind at one size of the logit noise."""
    generator = torch.Generator().manual_seed(7)
    z = 3 * torch.randn(ROWS, WIDTH, generator=generator)
    w = z + noise * torch.randn(ROWS, WIDTH, generator=generator)
    peaked, late = z.clone(), z.clone()
    peaked[:, 17] = 22.0
    late[:, -1] = 18.0
    return {
        "flat": (z, w),
        "peaked": (peaked, peaked + (w - z)),
        "late": (late, late + (w - z)),
        "offset": (z, w + 100.0),
    }


def table() -> list[dict[str, Any]]:
    """One record for each noise and method: worst relative errors over all rows, and how many values are negative."""
    z, w = pairs(1.0)["flat"]
    names = [
        n for n, b in BACKENDS.items() if n != "oracle" and not b.unavailable(Job(z, w, PLAN, 1.0, None, Workspace()))
    ]
    methods = {"textbook": textbook} | {name: backend(name) for name in names if name != "triton"}
    out = []
    for noise in NOISE:
        cases = [(a, b, oracle_rows(a, b)) for a, b in pairs(noise).values()]
        for name, run in methods.items():
            worst, negative = dict.fromkeys(("kl", "tv"), 0.0), 0
            for a, b, want in cases:
                for column, values in run(a, b).items():
                    kind = "tv" if column == "tv" else "kl"
                    for value, true in zip(values, want[column], strict=True):
                        negative += value < 0.0
                        worst[kind] = max(worst[kind], abs(value - true) / true)
            out.append({"noise": noise, "method": name, "negative": negative, "of": 2 * ROWS * len(cases)} | worst)
    return out


def main() -> None:
    """Print the table, or JSON lines with `--json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.json:
        sys.stdout.write(
            f"{'noise':>8s}  {'method':10s} {'worst KL error':>15s} {'worst TV error':>15s}  negative KL\n"
        )
    for row in table():
        if options.json:
            sys.stdout.write(json.dumps(row) + "\n")
        else:
            told = f"{row['negative']} of {row['of']}"
            sys.stdout.write(f"{row['noise']:8.0e}  {row['method']:10s} {row['kl']:15.1e} {row['tv']:15.1e}  {told}\n")


if __name__ == "__main__":
    main()
