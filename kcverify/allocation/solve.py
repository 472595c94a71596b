"""The cheapest assignment of formats under budgets that add up, and the best one at a given cost: mixed-integer programmes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

Assignment = dict[str, str]
"""Unit -> format."""

Table = Mapping[tuple[str, str], float]
"""(unit, format) -> number; infinite where the format cannot be used in the unit."""

NODES = 1000
"""Nodes of the search tree: a limit on work rather than on time, so that the answer does not depend on the machine."""


_LARGE = 1e6
"""Share of a limit beyond which shares are told to the solver in units of the largest: it refuses numbers of 1e15."""


@dataclass(frozen=True)
class Solution:
    """An assignment, and how far its objective may lie above the best one (relative; 0 where proved best by the solver)."""

    assignment: Assignment
    gap: float


def _choices(tables: Sequence[Table], units: Sequence[str], formats: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs that every table has a finite number for, in the order of units and formats."""
    return [(u, f) for u in units for f in formats if all(math.isfinite(table[u, f]) for table in tables)]


def _one_each(pairs: Sequence[tuple[str, str]], units: Sequence[str], more: int) -> LinearConstraint:
    """Every unit has one format; `more` columns follow those of the pairs."""
    place = {unit: i for i, unit in enumerate(units)}
    rows = [place[unit] for unit, _ in pairs]
    shape = (len(units), len(pairs) + more)
    matrix = csr_array((np.ones(len(pairs)), (rows, range(len(pairs)))), shape=shape)
    return LinearConstraint(matrix, 1, 1)


def _solved(
    objective: NDArray[np.float64],
    rows: list[LinearConstraint],
    pairs: Sequence[tuple[str, str]],
    top: NDArray[np.float64],
) -> Solution | None:
    """The solver's answer, with the chosen pairs read off. None where nothing is feasible."""
    whole = np.zeros(len(objective))
    whole[: len(pairs)] = 1
    options = {"mip_rel_gap": 1e-6, "node_limit": NODES}
    found = milp(objective, integrality=whole, bounds=Bounds(0, top), constraints=rows, options=options)
    if found.x is None:
        return None
    chosen = {unit: form for (unit, form), x in zip(pairs, found.x, strict=False) if x > 0.5}
    gap = float(found.mip_gap) if found.mip_gap is not None else math.inf
    return Solution(chosen, gap)


def _row(table: Table, pairs: Sequence[tuple[str, str]], scale: float) -> NDArray[np.float64]:
    return np.array([table[pair] / scale for pair in pairs])


def cheapest(
    cost: Table, drifts: Sequence[Table], limits: Sequence[float], units: Sequence[str], formats: Sequence[str]
) -> Solution | None:
    """The assignment of least cost whose drifts each sum to at most their limit; None where no assignment does."""
    if min(limits) <= 0:
        return None
    pairs = [
        pair
        for pair in _choices((cost, *drifts), units, formats)
        if all(table[pair] <= limit for table, limit in zip(drifts, limits, strict=True))
    ]  # what alone is beyond a limit is in no assignment, and far beyond it the solver would refuse the number
    if {unit for unit, _ in pairs} != set(units):
        return None
    rows = [_one_each(pairs, units, 0)]
    rows += [
        LinearConstraint(_row(table, pairs, limit)[None], -np.inf, 1)
        for table, limit in zip(drifts, limits, strict=True)
    ]
    scale = max(cost[pair] for pair in pairs) or 1.0
    return _solved(_row(cost, pairs, scale), rows, pairs, np.ones(len(pairs)))


def closest(
    cost: Table,
    most: float,
    drifts: Sequence[Table],
    limits: Sequence[float],
    units: Sequence[str],
    formats: Sequence[str],
) -> Solution | None:
    """The assignment of cost at most `most` whose largest sum of drifts, as a share of its limit, is least."""
    pairs = _choices((cost, *drifts), units, formats)
    if {unit for unit, _ in pairs} != set(units):
        return None
    rows = [_one_each(pairs, units, 1)]
    shares = [_row(table, pairs, limit) for table, limit in zip(drifts, limits, strict=True)]
    largest = max(float(row.max()) for row in shares)
    for row in shares:
        rows.append(LinearConstraint(np.append(row / (largest if largest > _LARGE else 1.0), -1.0)[None], -np.inf, 0))
    objective = np.append(np.zeros(len(pairs)), 1.0)
    top = np.append(np.ones(len(pairs)), np.inf)
    spent = np.append(_row(cost, pairs, most or 1.0), 0.0)
    for room in (1.0, 1.0 - 4e-6):  # the solver may exceed a limit by a millionth of it
        found = _solved(objective, [*rows, LinearConstraint(spent[None], -np.inf, room)], pairs, top)
        if found is None or total(cost, found.assignment) <= most:
            return found
    return None


def total(table: Table, assignment: Assignment) -> float:
    """The sum of a table over an assignment."""
    return math.fsum(table[pair] for pair in assignment.items())
