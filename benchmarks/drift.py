"""Prints the drift of torch's quantised CPU kernels on the demo model, beside the published figures."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
from torch import Tensor

from kcverify.measure.data import load_data
from kcverify.measure.kernels import BY_NAME
from kcverify.measure.run import Rows, run_pair
from kcverify.measure.sides import open_pair
from kcverify.measure.tokenizer import BYTES
from kcverify.resources import data_path

COLUMNS = (
    "span p50",
    "span p99",
    "span p99.9",
    "span max",
    "mean TV",
    "p99.9 TV",
    "mean KL",
    "p99.9 KL",
    "top-1",
    "ΣTV",
)
# torch 2.13.0 on an x86-64 machine with AVX2: the first 16,384 bytes of heldout.txt, 64 windows of 256
PUBLISHED: dict[str, tuple[float, ...]] = {
    "bfloat16": (0.080, 0.165, 0.251, 0.39, 0.0035, 0.023, 6.1e-5, 1.3e-3, 0.9931, 0.89),
    "int8": (0.123, 0.301, 0.443, 0.62, 0.0051, 0.037, 1.4e-4, 3.6e-3, 0.9927, 1.31),
    "w8a8": (0.222, 0.575, 0.844, 1.60, 0.0108, 0.074, 6.3e-4, 1.3e-2, 0.9846, 2.75),
    "fp8": (0.622, 1.61, 2.41, 3.13, 0.0286, 0.189, 4.6e-3, 9.2e-2, 0.9565, 7.33),
    "int4": (1.40, 3.40, 5.19, 7.02, 0.0654, 0.399, 2.3e-2, 4.5e-1, 0.9094, 16.7),
}


def row_drift(rows: Rows) -> Tensor:
    """Span, TV, KL(reference || candidate) and top-1 equality of each row, float64 `[N, 4]`."""
    z, w = rows.reference.double(), rows.candidate.double()
    p, q = z.log_softmax(-1), w.log_softmax(-1)
    d = w - z
    return torch.stack(
        (
            d.amax(-1) - d.amin(-1),
            (p.exp() - q.exp()).abs().sum(-1) / 2,
            (p.exp() * (p - q)).sum(-1),
            (z.argmax(-1) == w.argmax(-1)).double(),
        ),
        -1,
    )


def summary(drift: Tensor, window: int) -> tuple[float, ...]:
    """The columns of the table from the rows of `row_drift`."""
    span, tv, kl, top1 = drift.unbind(-1)
    quantiles = [span.quantile(q) for q in (0.5, 0.99, 0.999)]
    values = (*quantiles, span.max(), tv.mean(), tv.quantile(0.999), kl.mean(), kl.quantile(0.999), top1.mean())
    return (*(float(value) for value in values), float(tv.mean()) * window)


def measure(form: str, windows: int, window: int) -> dict[str, Any]:
    """One line of the table: measured and published figures, and the seconds that both sides took."""
    requests = load_data(str(data_path("heldout.txt")), window=window, tokenizer=BYTES, limit=windows)
    parts: list[Tensor] = []
    start = time.perf_counter()
    run_pair(*open_pair("demo:float32", f"demo:{form}"), requests, on_rows=lambda rows: parts.append(row_drift(rows)))
    seconds = time.perf_counter() - start
    found = dict(zip(COLUMNS, summary(torch.cat(parts), window), strict=True))
    published = dict(zip(COLUMNS, PUBLISHED[form], strict=True)) if form in PUBLISHED else None
    return {"format": form, "title": BY_NAME[form].title, "measured": found, "published": published, "seconds": seconds}


def main() -> None:
    """Parse the options and print the table or, with --json, one object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=64)
    parser.add_argument("--window", type=int, default=256, help="tokens a window")
    parser.add_argument("--format", action="append", choices=sorted(BY_NAME), help="repeatable; default: the published")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    lines = [measure(form, options.windows, options.window) for form in options.format or PUBLISHED]
    if options.json:
        environment = {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}
        print(json.dumps({"windows": options.windows, "window": options.window, **environment, "formats": lines}))
        return
    print(f"{'':28}" + "".join(f"{name:>11}" for name in COLUMNS))
    for line in lines:
        print(f"{line['title']:28}" + "".join(f"{value:11.4g}" for value in line["measured"].values()))
        if line["published"]:
            print(f"{'  published':28}" + "".join(f"{value:11.4g}" for value in line["published"].values()))


if __name__ == "__main__":
    main()
