"""Sequential verdicts at full size: false alarms under peeking, samples to a verdict, many slices, drift and return.

2,000 streams of 5,000 looks each, beside the exact test at every look that people run instead.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy.stats import binom

from kcverify.runtime import fixed_sample
from kcverify.runtime.many import e_bh
from kcverify.runtime.sequential import BETS, bets, rate_points, requests_needed
from kcverify.runtime.table import rate_table

ALPHA = 0.05
Array = Any


def streams(rng: np.random.Generator, rate: float, runs: int, looks: int) -> Iterator[Array]:
    """Running counts of exceeding units, int32 `[500, looks]` at a time."""
    for start in range(0, runs, 500):
        yield np.cumsum(rng.random((min(500, runs - start), looks)) < rate, axis=1, dtype=np.int32)


def boundaries(limit: float, looks: int, level: float = ALPHA) -> tuple[Array, Array]:
    """Counts that fail (or looks + 1) and that pass (or -1) at each look, from the compiled table."""
    table = rate_table(limit, level, looks)
    totals = range(1, looks + 1)
    alarms = [looks + 1 if (a := table.alarm(n)) is None else a for n in totals]
    passes = [-1 if (c := table.certificate(n)) is None else c for n in totals]
    return np.array(alarms), np.array(passes)


def log_e(counts: Array, total: Array, limit: float, side: str) -> Array:
    """`log_e_rate` of arrays."""
    parts = []
    for weight, up, down in rate_points(limit, side):
        exceed = np.where(counts > 0, counts * up, 0.0) if up > -math.inf else np.where(counts > 0, -np.inf, 0.0)
        parts.append(weight + exceed + (total - counts) * down)
    return np.logaddexp.reduce(parts, axis=0)


def untruncated_beta(counts: Array, total: Array, limit: float) -> Array:
    """A Beta(1/2, 1/2) mixture of all rates: a test of 'exactly the limit', wrong as a test of 'at most the limit'."""
    from scipy.special import betaln, xlog1py, xlogy

    mixed = betaln(0.5 + counts, 0.5 + total - counts) - betaln(0.5, 0.5)
    return mixed - xlogy(counts, limit) - xlog1py(total - counts, -limit)


def rates(runs: int, looks: int) -> list[dict[str, Any]]:
    """False verdicts at a true rate that meets (or only just breaks) the limit, at least one in `looks` looks."""
    totals, out = np.arange(1, looks + 1), []
    for rate, limit, side in (
        (0.01, 0.01, "above"), (0.005, 0.01, "above"), (0.001, 0.01, "above"), (0.05, 0.05, "above"),
        (0.001, 0.001, "above"), (0.01, 0.01, "below"), (0.02, 0.01, "below"),
    ):  # fmt: skip
        rng = np.random.default_rng(20240607)
        alarm, certificate = boundaries(limit, looks)
        above = side == "above"
        naive = binom.isf(ALPHA, totals, limit) + 1 if above else binom.ppf(ALPHA, totals, limit) - 1
        hits = dict.fromkeys(("sequential", "exact at every look", "exact, one look", "untruncated Beta"), 0)
        for counts in streams(rng, rate, runs, looks):
            crossed = counts >= alarm if above else counts <= certificate
            peeked = counts >= naive if above else counts <= naive
            mixed = untruncated_beta(counts[:, 9::10].astype(float), totals[9::10].astype(float), limit)
            hits["sequential"] += int(crossed.any(1).sum())
            hits["exact at every look"] += int(peeked.any(1).sum())
            hits["exact, one look"] += int(peeked[:, -1].sum())
            hits["untruncated Beta"] += int((mixed >= math.log(1 / ALPHA)).any(1).sum())
        if not above:
            hits.pop("untruncated Beta")
        out.append({"rate": rate, "limit": limit, "side": side} | {k: round(v / runs, 4) for k, v in hits.items()})
    return out


def _first(hit: Array) -> Array:
    return np.where(hit.any(1), hit.argmax(1) + 1.0, np.inf)


def samples(runs: int) -> list[dict[str, Any]]:
    """Mean and median samples to the right verdict, beside the fixed size of an exact test."""
    out: list[dict[str, Any]] = []
    for rate, limit, side, looks in (
        (0.02, 0.01, "above", 20_000), (0.10, 0.01, "above", 2_000), (0.005, 0.01, "below", 20_000),
    ):  # fmt: skip
        alarm, certificate = boundaries(limit, looks)
        rng = np.random.default_rng(5)
        times = [_first(c >= alarm if side == "above" else c <= certificate) for c in streams(rng, rate, runs, looks)]
        found = np.concatenate(times)
        row = {"rate": rate, "limit": limit, "side": side, "decided": float(np.isfinite(found).mean())}
        out.append(row | {"mean": float(np.minimum(found, looks).mean()), "median": float(np.median(found))})
    zero = {"rate": 0.0, "limit": 0.01, "side": "below", "decided": 1.0}
    out.append(zero | {"mean": float(requests_needed(0.01)), "median": float(requests_needed(0.01))})
    out[-1]["one look"] = fixed_sample.requests_needed(0.01)
    return out


def _wealth(values: Array, limit: float, side: str) -> Array:
    sign, total = (1.0 if side == "above" else -1.0), None
    for bet in bets(limit, side):
        log = np.cumsum(np.log1p(bet * sign * (values - limit)), axis=1)
        total = log if total is None else np.logaddexp(total, log)
    return total - math.log(BETS)


def clustered(runs: int, requests: int) -> list[dict[str, Any]]:
    """Requests of 100 tokens whose exceedances come in clusters, mean share at the limit: what the unit decides."""
    limit, out = 0.01, []
    for strength, name in ((0.0, "independent"), (100.0, "weak"), (10.0, "strong"), (2.0, "very strong")):
        rng = np.random.default_rng(7)
        shape = (runs, requests)
        chance = rng.beta(limit * strength, (1 - limit) * strength, shape) if strength else np.full(shape, limit)
        counts = rng.binomial(100, chance)
        alarm, _ = boundaries(limit, 100 * requests)
        by_token = np.cumsum(counts, axis=1) >= alarm[99::100]
        shares = _wealth(counts / 100.0, limit, "above") >= math.log(1 / ALPHA)
        passes = _wealth(counts / 100.0, limit, "below") >= math.log(1 / ALPHA)
        row = {"clusters": name, "token as unit": float(by_token.any(1).mean())}
        out.append(row | {"request as unit": float(shares.any(1).mean()), "false pass": float(passes.any(1).mean())})
    return out


def slices(runs: int) -> dict[str, float]:
    """50 slices of 300 requests, 5 of them at five times the limit: false discoveries and power."""
    rng, limit = np.random.default_rng(2), 0.01
    truth = np.where(np.arange(50) < 5, 0.05, limit)
    counts = rng.binomial(300, truth, (runs, 50)).astype(float)
    evidence = log_e(counts, np.full_like(counts, 300.0), limit, "above")
    rejected = [e_bh(row.tolist(), ALPHA) for row in evidence]
    false = [sum(i >= 5 for i in r) / max(1, len(r)) for r in rejected]
    alone = (evidence[:, 5:] >= math.log(1 / ALPHA)).any(1).mean()
    strict = evidence >= math.log(50 / ALPHA)
    return {
        "FDR": float(np.mean(false)), "power": float(np.mean([sum(i < 5 for i in r) / 5 for r in rejected])),
        "alpha/K: any good slice fails": float(strict[:, 5:].any(1).mean()), "alpha/K: power": float(strict[:, :5].mean()),
        "uncorrected: any good slice fails": float(alone),
    }  # fmt: skip


def routing(runs: int, scale: float) -> list[dict[str, Any]]:
    """Rate .004, then .03, then .004 again (limit .01): false fallbacks, requests to fallback, wrong and right returns."""
    good, bad, total = int(40_000 * scale), int(80_000 * scale), int(120_000 * scale)
    cases = [("c 1e6, return 1e4", 1e6, 1e4), ("c 1e5, return 1e3", 1e5, 1e3), ("c 2e4, return 200", 2e4, 200.0)]
    out = [{"detector": name} | _loop(runs, (good, bad, total), c, back) for name, c, back in cases]
    return [*out, {"detector": "moving average of 500"} | _average(runs, (good, bad, total))]


class _Detectors:
    """The detector of `runtime.detector`, vectorised over runs: `best` (M) and `summed` (R) of each bet."""

    def __init__(self, runs: int, kind: str, limit: float, side: str) -> None:
        points = rate_points(limit, side) if kind == "binary" else ()
        self.limit, self.sign = limit, 1.0 if side == "above" else -1.0
        self.sizes = np.array([] if points else bets(limit, side))
        self.weight = np.exp([w for w, _, _ in points]) if points else np.full(BETS, 1.0 / BETS)
        self.up, self.down = np.exp([u for _, u, _ in points]), np.exp([d for _, _, d in points])
        self.best, self.summed = np.ones((runs, len(self.weight))), np.zeros((runs, len(self.weight)))

    def add(self, values: Array, seen: Array | None = None) -> None:
        """One value a run, where it is seen."""
        if len(self.sizes):
            factor = 1.0 + self.sign * self.sizes * (values[:, None] - self.limit)
        else:
            factor = np.where(values[:, None] > 0, self.up, self.down)
        where = np.ones(len(values), bool) if seen is None else seen
        self.best = np.where(where[:, None], np.minimum(factor * np.maximum(self.best, 1.0), 1e15), self.best)
        self.summed = np.where(where[:, None], np.minimum(factor * (self.summed + 1.0), 1e15), self.summed)

    def forget(self, where: Array) -> None:
        """Start anew."""
        self.best[where], self.summed[where] = 1.0, 0.0

    def alarm(self, c: float) -> Array:
        """Runs that are at the alarm."""
        return (self.summed @ self.weight >= c) & (self.best @ self.weight >= math.sqrt(c))

    def health(self, c: float) -> Array:
        """Of each run."""
        found = 1.0 - np.log(np.maximum(self.best @ self.weight, 1.0)) / math.log(c)
        return np.where(self.alarm(c), 0.0, found)


def _values(kind: str, rng: np.random.Generator, mean: float, runs: int) -> Array:
    """One value a run: 0 or 1; the share of 100 tokens in clusters; a divergence of this mean."""
    if kind == "binary":
        return (rng.random(runs) < mean).astype(float)
    if kind == "share":
        return rng.binomial(100, rng.beta(mean * 20.0, (1.0 - mean) * 20.0, runs)) / 100.0
    return rng.beta(mean * 50.0, (1.0 - mean) * 50.0, runs)


_STREAMS = (("binary", 0.01, 0.004, 0.03), ("share", 0.01, 0.004, 0.03), ("mean", 0.02, 0.012, 0.03))
"""Kind, limit, mean before and after the drift."""


def delays(runs: int, good: int, c: float = 1e6) -> list[dict[str, Any]]:
    """Requests from a drift to health below one half and to the alarm; false alarms before it."""
    return [_delay(kind, (limit, before, after), runs, good, c) for kind, limit, before, after in _STREAMS]


def _delay(kind: str, means: tuple[float, float, float], runs: int, good: int, c: float) -> dict[str, Any]:
    (limit, before, after), rng = means, np.random.default_rng(11)
    found = _Detectors(runs, kind, limit, "above")
    low, safe, cusum = (np.full(runs, np.inf) for _ in range(3))
    false = np.zeros(runs, bool)
    for t in range(good + 20_000):
        found.add(_values(kind, rng, before if t < good else after, runs))
        if t < good:
            false |= found.alarm(c)
            continue
        low = np.where(found.health(c) < 0.5, np.minimum(low, t - good + 1), low)
        safe = np.where(found.alarm(c), np.minimum(safe, t - good + 1), safe)
        cusum = np.where(found.best @ found.weight >= c, np.minimum(cusum, t - good + 1), cusum)
        if np.isfinite(cusum).all():
            break
    row = {"kind": kind, "limit": limit, "before": before, "after": after, "false": int(false.sum())}
    for name, times in (("guarded", low), ("safe", safe)):
        row |= {f"{name} median": float(np.median(times)), f"{name} mean": float(times.mean())}
        row |= {f"{name} 90 %": float(np.quantile(times, 0.9))}
    return row | {"by M alone, median": float(np.median(cusum))}


def intervals(runs: int, c: float = 2000.0) -> list[dict[str, Any]]:
    """Mean requests until a false alarm of streams exactly at their limit, at least `c`; each ends after 10 c, so it is more."""
    out = []
    for kind, limit, _, _ in _STREAMS:
        for side in ("above", "below"):
            rng, found, times = np.random.default_rng(13), _Detectors(runs, kind, limit, side), np.zeros(runs)
            running = np.ones(runs, bool)
            for _ in range(int(10 * c)):
                found.add(_values(kind, rng, limit, runs))
                times += running
                running &= ~found.alarm(c)
                if not running.any():
                    break
            error = float(times.std() / math.sqrt(runs))
            out.append(
                {
                    "kind": kind,
                    "side": side,
                    "c": c,
                    "mean": float(times.mean()),
                    "error": error,
                    "no alarm in 10 c": int(running.sum()),
                }
            )
    return out


def _loop(runs: int, times: tuple[int, int, int], c: float, back: float, shadow: float = 0.1) -> dict[str, Any]:
    rng, (good, bad, total) = np.random.default_rng(1), times
    state = np.zeros(runs, int)  # 0 candidate, 1 guarded, 2 safe
    watch, home = (_Detectors(runs, "binary", 0.01, side) for side in ("above", "below"))
    first, returned = np.full(runs, np.inf), np.full(runs, np.inf)
    false, wrong, guarded, moves = np.zeros(runs, bool), 0, 0, 0
    for t in range(total):
        exceeds = rng.random(runs) < (0.03 if good <= t < bad else 0.004)
        mirrored = (state == 2) & (rng.random(runs) < shadow)
        watch.add(exceeds, state < 2)
        health = watch.health(c)
        guarded += int((state == 1).sum()) if t < good else 0
        home.add(exceeds, mirrored)
        ready = mirrored & home.alarm(back)
        new = np.where((state == 0) & (health < 0.5), 1, np.where((state == 1) & (health > 0.75), 0, state))
        fall = (state < 2) & (health <= 0)
        new[fall], new[ready] = 2, 1
        home.forget(fall)
        watch.forget(ready)
        moves += int(((state == 0) & (new == 1)).sum()) if t < good else 0
        false |= fall & (t < good)
        first = np.where(fall & (t >= good) & (t < bad), np.minimum(first, t - good), first)
        wrong += int((ready & (good <= t) & (t < bad)).sum())
        returned = np.where(ready & (t >= bad), np.minimum(returned, t - bad), returned)
        state = new
    return {
        "false fallbacks": int(false.sum()), "runs": runs, "requests to fallback": _median(first),
        "wrong returns a run": wrong / runs, "requests to return": _median(returned),
        "good time guarded": round(guarded / runs / good, 4), "moves to guarded in good time": moves,
    }  # fmt: skip


def _median(times: Array) -> float | None:
    """None where most runs never came so far."""
    value = float(np.median(times))
    return value if math.isfinite(value) else None


def _average(runs: int, times: tuple[int, int, int], width: int = 500) -> dict[str, float]:
    """Fall back when the share among the last 500 requests is above the limit: what people run instead."""
    rng, (good, _, _) = np.random.default_rng(1), times
    counts = np.cumsum(rng.random((runs, good)) < 0.004, axis=1)
    window = counts[:, width:] - counts[:, :-width]
    return {"false fallbacks": int((window / width > 0.01).any(1).sum()), "runs": runs}


def measured(small: bool) -> dict[str, Any]:
    """All figures; `small` divides the work by about twenty."""
    runs, looks = (200, 1_000) if small else (2_000, 5_000)
    parts: dict[str, Callable[[], Any]] = {
        "rates": lambda: rates(runs, looks),
        "stages": lambda: stages(runs, min(looks, 2_000)),
        "samples": lambda: samples(runs // 2),
        "clustered": lambda: clustered(runs, 200),
        "slices": lambda: slices(runs),
        "delays": lambda: delays(60 if small else 600, 1_000 if small else 4_000),
        "intervals": lambda: intervals(100 if small else 600, 500.0 if small else 2_000.0),
        "routing": lambda: routing(20 if small else 60, 0.05 if small else 1.0),
    }
    out: dict[str, Any] = {"alpha": ALPHA, "runs": runs, "looks": looks}
    for name, part in parts.items():
        start = time.perf_counter()
        out[name] = part()
        out[f"{name} seconds"] = round(time.perf_counter() - start, 1)
    return out


STAGES = ("offline", "shadow", "canary", "full")


def stages(runs: int, looks: int) -> list[dict[str, Any]]:
    """Candidates that pass every stage by the gate's product rule, each stage of fresh data, looked at after each request.

    A later stage passes where its own evidence leans to the pass side and the product over stages has reached 1/beta.
    """
    totals, bound, out = np.arange(1, looks + 1, dtype=float), math.log(1.0 / ALPHA), []
    for rate, limit in ((0.05, 0.05), (0.01, 0.01), (0.06, 0.05), (0.03, 0.05)):
        rng, alive, left = np.random.default_rng(5), np.ones(runs, bool), dict.fromkeys(STAGES, 0)
        carried = np.zeros(runs)
        for number, stage in enumerate(STAGES):
            own = np.concatenate(
                [log_e(c.astype(float), totals, limit, "below") for c in streams(rng, rate, runs, looks)]
            )
            passed = (carried[:, None] + own >= bound) & ((own >= 0.0) | (number == 0))
            at = passed.argmax(axis=1)
            alive &= passed.any(axis=1)
            carried = carried + own[np.arange(runs), at]
            left[stage] = int(alive.sum())
        out.append({"rate": rate, "limit": limit, "promised at most": ALPHA if rate >= limit else None, **left})
    return out


def _table(rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(k for row in rows for k in row))
    text = [names, *([_shown(row.get(n)) for n in names] for row in rows)]
    widths = [max(len(line[i]) for line in text) for i in range(len(names))]
    return "\n".join("  " + "  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)) for line in text)


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Print the figures, or JSON with `--json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine readable")
    parser.add_argument("--small", action="store_true", help="a twentieth of the work")
    arguments = parser.parse_args()
    found = measured(arguments.small)
    if arguments.json:
        print(json.dumps(found, indent=1))
        return
    print(f"False verdicts in {found['runs']:,} streams of {found['looks']:,} looks, alpha {ALPHA}")
    print(_table(found["rates"]))
    print(f"\nCandidates of {found['runs']:,} that passed each stage, e-values multiplied over stages")
    print(_table(found["stages"]))
    print("\nUnits to the right verdict")
    print(_table(found["samples"]))
    print("\nShares of requests of 100 tokens, mean share at the limit")
    print(_table(found["clustered"]))
    print("\n50 slices, 5 of them bad")
    print(_table([found["slices"]]))
    print("\nDrift: requests until guarded (health below one half) and safe (the alarm), one false alarm in 1,000,000")
    print(_table(found["delays"]))
    print("\nRequests between false alarms at the limit itself, promised to be c at least; standard error")
    print(_table(found["intervals"]))
    print("\nRouting: rate .004, then .03, then .004 against a limit of .01")
    print(_table(found["routing"]))


if __name__ == "__main__":
    main()
