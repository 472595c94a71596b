"""The optimal sequence bound: worst adaptive total variation over a horizon, from above, from below, inverted."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from fractions import Fraction
from pathlib import Path
from statistics import NormalDist

from kcverify.bounds.optimal_forms import BITS, binomial_attained, check_arguments, closed_form, is_vacuous
from kcverify.bounds.optimal_gaussian import composed, dominations
from kcverify.bounds.optimal_grid import SMALLEST_SPAN, lower_value, upper_profiles

__all__ = ["attained", "binomial_attained", "closed_form", "span_budget", "upper"]

CACHE_VERSION = 1
LONGEST_BLOCK = 768
BLOCK_CELLS = 20
POLICY_STEPS = 256
LONGEST_SWEEP = 2**18


def round_float(x: float, *, up: bool, bits: int = BITS) -> Fraction:
    """Rational of at most `bits` significant bits that is `>= x` if `up`, else `<= x`, for `x >= 0`."""
    exact = Fraction(x)
    if exact == 0:
        return exact
    shift = bits - (exact.numerator.bit_length() - exact.denominator.bit_length())
    scaled = exact * Fraction(2) ** shift
    whole = -((-scaled.numerator) // scaled.denominator) if up else scaled.numerator // scaled.denominator
    return whole / Fraction(2) ** shift


def cells_for(horizon: int) -> int:
    """Lattice steps per span: the finest even number between 20 and 64 for which a run stays near 0.2 s."""
    if horizon > LONGEST_BLOCK:
        return BLOCK_CELLS
    return max(BLOCK_CELLS, min(64, 2 * int(1450 / horizon**0.75)))


def upper(s: Fraction, horizon: int, *, grid: int | None = None, cache: Path | None = None) -> Fraction:
    """Rational upper bound of the worst adaptive total variation over `horizon` tokens of effective span `s` (nat).

    Within 0.5 % of `attained` for `s sqrt(horizon) >= 1e-8`, never above `closed_form`, at most 1. Up to 768 tokens the
    recursion of `optimal_grid` runs over the whole horizon; beyond, over a block, which `optimal_gaussian` composes.
    `grid` is the even number of lattice steps per span (`cells_for` by default). `cache` is a directory for results:
    absent or corrupt entries are computed and written, and None keeps nothing. Raises ValueError for a negative span,
    `horizon < 1`, or an odd or non-positive grid. Source: the recursion is derived in `optimal_grid`.
    """
    s = check_arguments(s, horizon)
    if grid is not None and (grid < 2 or grid % 2):
        raise ValueError(f"the grid is an even number of at least 2, got {grid}")
    if horizon <= 3 or s < SMALLEST_SPAN or is_vacuous(s, horizon):
        return closed_form(s, horizon)
    cells = grid or cells_for(horizon)
    if cache is None:
        return _computed(s, horizon, cells)
    entry = _entry(cache, s, horizon, cells)
    known = _read(entry, s, horizon, cells)
    if known is None:
        known = _computed(s, horizon, cells)
        _write(entry, s, horizon, cells, known)
    return known


def _computed(s: Fraction, horizon: int, cells: int) -> Fraction:
    if horizon <= LONGEST_BLOCK:
        value = float(upper_profiles(s, (horizon,), cells)[horizon].values[0])
    else:
        blocks = -(-horizon // LONGEST_BLOCK)
        length, longer = divmod(horizon, blocks)
        profiles = upper_profiles(s, (length, length + 1) if longer else (length,), cells)
        counts = {length: blocks - longer, length + 1: longer}
        value = composed([(dominations(profile), counts[h]) for h, profile in profiles.items()])
    return min(Fraction(1), closed_form(s, horizon), round_float(value, up=True))


def attained(s: Fraction, horizon: int, *, grid: int | None = None) -> Fraction:
    """Rational lower bound of a total variation that an explicit adaptive pair of effective span `s` (nat) attains.

    The witness moves its log ratio on a lattice of `grid` steps per span (32 by default for up to 64 tokens, else 16):
    the last 256 tokens split where the recursion says, those before at the middle. The independent (binomial) witness
    is taken where it is better, where the bound is vacuous, and beyond 2^18 tokens. Raises ValueError as `upper` does.
    """
    s = check_arguments(s, horizon)
    if grid is not None and (grid < 2 or grid % 2):
        raise ValueError(f"the grid is an even number of at least 2, got {grid}")
    independent = binomial_attained(s, horizon)
    if s < SMALLEST_SPAN or s > 16 or horizon > LONGEST_SWEEP or (horizon > 3 and is_vacuous(s, horizon)):
        return independent
    cells = grid or (32 if horizon <= 64 else 16)
    value = lower_value(s, horizon, cells, POLICY_STEPS)
    return max(independent, round_float(value, up=False))


def span_budget(
    tv: Fraction, horizon: int, *, grid: int | None = None, cache: Path | None = None, evaluations: int = 16
) -> Fraction:
    """Rational effective span `s` (nat) with `upper(s, horizon) <= tv` verified; 28 bits, as large as found.

    The total variation is near `2 Phi(s sqrt(horizon)/4) - 1`, so its normal quantile is near linear in `s`: the secant
    method on quantiles, aimed 2^-20 below the target, usually ends after three evaluations within 2^-16 of it. When
    none of at most `evaluations` meets the target, the span is halved until one does. Raises ValueError unless
    `0 < tv < 1`, `horizon >= 1` and `evaluations >= 1`.
    """
    if not 0 < tv < 1 or horizon < 1:
        raise ValueError(f"need a total variation between 0 and 1 and a horizon >= 1, got {tv} and {horizon}")
    if evaluations < 1:
        raise ValueError(f"need at least one evaluation, got {evaluations}")
    tv = Fraction(tv)
    goal = _quantile(tv) * (1 - 2.0**-20)
    low, high = (0.0, 0.0), (math.inf, math.inf)
    best, trial = Fraction(0), 4 * goal / math.sqrt(horizon)
    for _ in range(evaluations):
        s = round_float(trial, up=False, bits=28)
        value = upper(s, horizon, grid=grid, cache=cache)
        quantile = _quantile(value)
        if value > tv:
            high = min(high, (float(s), quantile))
        elif s > best:
            best, low = s, (float(s), quantile)
        if value <= tv and goal < quantile * (1 + 2.0**-16):
            break
        trial = _secant(low, high, goal)
    while best == 0:
        s = s / 2
        if upper(s, horizon, grid=grid, cache=cache) <= tv:
            best = s
    return best


def _secant(low: tuple[float, float], high: tuple[float, float], goal: float) -> float:
    """Next trial span from (span, quantile) below and above the goal; proportional while one side is unknown.

    A trial stays 1/64 of the bracket away from its upper end, so that a curve that bends cannot stall the search.
    """
    if math.isinf(high[0]):
        return low[0] * goal / low[1]
    slope = (high[0] - low[0]) / (high[1] - low[1])
    return min(low[0] + (goal - low[1]) * slope, high[0] - (high[0] - low[0]) / 2**6)


def _quantile(tv: Fraction) -> float:
    """Normal quantile at `(1+tv)/2`, linear for small `tv`, where the difference from 1/2 would cancel."""
    if tv < Fraction(1, 10**5):
        return float(tv) * 1.2533141373155
    return NormalDist().inv_cdf(min(0.5 + float(tv) / 2, 1 - 1e-15))


def _entry(cache: Path, s: Fraction, horizon: int, cells: int) -> Path:
    key = f"{s.numerator}/{s.denominator} {horizon} {cells} {CACHE_VERSION}"
    return cache / f"seq_tv_{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _document(s: Fraction, horizon: int, cells: int, value: Fraction) -> dict[str, str | int]:
    """What one cache entry holds: the question, the answer and a digest of both."""
    body: dict[str, str | int] = {
        "span": f"{s.numerator}/{s.denominator}",
        "horizon": horizon,
        "cells": cells,
        "version": CACHE_VERSION,
        "upper": f"{value.numerator}/{value.denominator}",
    }
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return body | {"sha256": digest}


def _read(entry: Path, s: Fraction, horizon: int, cells: int) -> Fraction | None:
    """The value of a cache entry that is whole, answers this question, and is not below what is attained; else None."""
    try:
        found = json.loads(entry.read_text(encoding="utf-8"))
        value = Fraction(found["upper"])
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError, RecursionError):
        return None
    whole = found == _document(s, horizon, cells, value)
    return value if whole and binomial_attained(s, horizon) <= value <= 1 else None


def _write(entry: Path, s: Fraction, horizon: int, cells: int, value: Fraction) -> None:
    """Write one entry through a temporary file in the same directory, so that a reader sees all of it or none."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(dir=entry.parent, prefix=entry.stem, suffix=".part")
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            json.dump(_document(s, horizon, cells, value), file)
        Path(name).replace(entry)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
