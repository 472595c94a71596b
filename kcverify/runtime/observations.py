"""What is measured beside the logits, a value a request: outcomes, times, scores of both sides, speed and memory.

Counts go where those of rows go (evidence records, the integer buffer, the worst values), so that merging, saving and
synchronising need nothing more. `observed` int64 `[cells, 7]` holds, per cell: observations in the slice, values that
are not finite or out of range, values that were not given, observations of unknown membership; and of those with a time
their number, the sum of their windows' numbers and of its squares, which tells whether all are of one window (windows
that are a multiple of 65,536 apart count as one). For a clause about a window that reads rows, `tally` counts the rows so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch

from kcverify.runtime.clauses import ClauseSpec, Layout
from kcverify.runtime.errors import option_error, shape_error
from kcverify.runtime.evidence import Evidence, mean_limit
from kcverify.runtime.given import check_dense
from kcverify.runtime.histogram import bin_index
from kcverify.runtime.ledger import Ledger, RequestIds
from kcverify.runtime.readings import paired_null
from kcverify.runtime.sources import OBSERVABLES, OBSERVED, WINDOWS, Observable
from kcverify.runtime.witness import LAST, Worst

Side: TypeAlias = "torch.Tensor | Sequence[float | bool | None] | float"
Numbers: TypeAlias = "list[float | None]"
LARGEST = float(1 << 40)
"""Bound of what is summed (seconds, tokens, scores), so that sums fit their integers over 2^23 requests."""


class Takes(Protocol):
    """What an observation is counted into."""

    CLAUSES: Any
    layout: Layout
    ledger: Ledger
    evidence: Evidence
    temperature: float
    upper: dict[str, float]
    lower: dict[str, float]
    sums: torch.Tensor

    @property
    def observed(self) -> torch.Tensor:
        """Counts a cell."""

    @property
    def histograms(self) -> torch.Tensor:
        """Histograms of values."""

    @property
    def worst(self) -> Worst:
        """Worst values."""


@dataclass(frozen=True)
class _Batch:
    """Checked observations: request keys, the given columns by name, and the time of each (None: not given)."""

    keys: list[int]
    columns: Mapping[str, Numbers]
    times: Numbers | None


def observe(
    monitor: Takes,
    metric: str,
    request_ids: RequestIds,
    given: Mapping[str, Side],
    slices: Mapping[str, Sequence[bool] | torch.Tensor],
    times: Sequence[float] | torch.Tensor | None,
) -> None:
    """Count N observations of one metric (a name of `sources.OBSERVABLES`), one a request, for all of its clauses.

    `values`: seconds (`latency`, `time_to_first_token`; infinite for a request that was never answered), whether the
    request failed (`failure_rate`), whether its response parsed (`parse_rate`), sampled tokens (`throughput`, with
    `seconds`, the elapsed time that the candidate took for them; what runs at the same time is given as one entry), or
    bytes (`peak_memory`, `kv_cache`). `reference` and `candidate`: the scores of one prompt on both sides
    (`reward_delta`, `accuracy_delta`, `parse_rate_delta`). Each is a sequence or tensor `[N]`, or one number for N = 1;
    None marks a value that is not there: its clauses are unobservable, never passed. NaN fails them. `slices` maps a
    slice to N truth values, `times` are seconds from any fixed start. A request is observed once a metric.

    Everything is checked before anything is counted; raises `MonitorInputError`. A metric that the contract does not
    ask for is ignored. The values are read on the host.
    """
    observable = OBSERVABLES.get(metric)
    if observable is None:
        raise option_error("metric", f"{metric!r} is not observed; one of {', '.join(sorted(OBSERVABLES))}")
    if not isinstance(slices, Mapping):
        raise option_error("slices", f"a mapping from slice to truth values is needed, not {type(slices).__name__}")
    batch = _checked(monitor, observable, metric, request_ids, given, times)
    masks = {name: _truths(name, mask, len(batch.keys)) for name, mask in slices.items()}
    for index, cell in enumerate(monitor.layout.cells):
        clause = monitor.CLAUSES[cell.clause]
        if clause.metric == metric and clause.source in OBSERVED:
            _count(monitor, index, clause, batch, None if cell.slice is None else masks.get(cell.slice, ()))


def _checked(
    monitor: Takes,
    observable: Observable,
    metric: str,
    request_ids: RequestIds,
    given: Mapping[str, Side],
    times: Sequence[float] | torch.Tensor | None,
) -> _Batch:
    needed = {"paired": ("reference", "candidate"), "throughput": ("values", "seconds")}.get(
        observable.source, ("values",)
    )
    if set(given) != set(needed):
        what = " and ".join(f"`{name}`" for name in needed)
        raise option_error(metric, f"needs {what} ({observable.what}), given {', '.join(sorted(given)) or 'nothing'}")
    columns = {name: _numbers(name, side) for name, side in given.items()}
    count = len(columns[needed[0]])
    for name, column in columns.items():
        if len(column) != count:
            raise shape_error(name, [len(column)], f"[{count}]")
        for value in column:
            _check(metric, observable, name, value)
    stamps = None if times is None else _numbers("times", times)
    if stamps is not None and (len(stamps) != count or not all(t is not None and math.isfinite(t) for t in stamps)):
        raise shape_error("times", [len(stamps)], f"{count} finite numbers")
    return _Batch(monitor.ledger.keys(request_ids, count), columns, stamps)


def _check(metric: str, observable: Observable, name: str, value: float | None) -> None:
    if value is None or math.isnan(value):
        return
    if name == "seconds" and not 0.0 < value < math.inf:
        raise option_error(metric, f"{value} elapsed seconds are no positive finite number")
    if observable.source != "peak" and LARGEST < abs(value) < math.inf:
        raise option_error(metric, f"{value} is beyond {LARGEST:g}")
    if metric != "reward_delta" and value < 0.0:
        raise option_error(metric, f"{value} is negative: {observable.what} cannot be")
    if metric in ("failure_rate", "parse_rate", "parse_rate_delta", "accuracy_delta") and value not in (0.0, 1.0):
        raise option_error(metric, f"{value} is no truth value: {observable.what}")


def _numbers(name: str, side: Side | Sequence[float]) -> Numbers:
    """The entries as floats; None stays None."""
    if isinstance(side, torch.Tensor):
        check_dense(name, side)
        if side.dim() > 1 or side.is_complex():
            raise shape_error(name, list(side.shape), "[N]")
        return [float(v) for v in side.reshape(-1).tolist()]
    if isinstance(side, bool | int | float):
        return [float(side)]
    if isinstance(side, str | bytes) or not isinstance(side, Sequence):
        raise option_error(name, f"{type(side).__name__} is no sequence of numbers")
    for value in side:
        if value is not None and not isinstance(value, bool | int | float):
            raise option_error(name, f"{value!r} is no number")
    return [None if value is None else _float(name, value) for value in side]


def _float(name: str, value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise option_error(name, "an integer beyond the largest double") from None


def _truths(name: str, mask: Sequence[bool] | torch.Tensor, count: int) -> list[bool]:
    if isinstance(mask, torch.Tensor):
        check_dense(f"slice {name}", mask)
        mask = mask.reshape(-1).tolist()
    if isinstance(mask, str | bytes) or not isinstance(mask, Sequence):
        raise option_error(f"slice {name}", f"{type(mask).__name__} is no sequence of truth values")
    if len(mask) != count or not all(isinstance(v, bool) for v in mask):
        raise shape_error(f"slice {name}", [len(mask)], f"{count} truth values")
    return list(mask)


def _count(monitor: Takes, index: int, clause: ClauseSpec, batch: _Batch, mask: Sequence[bool] | None) -> None:
    """Add a batch to one cell; `mask` None is every request, empty a slice whose membership was not given."""
    counts = [0] * 7
    if mask is not None and not len(mask):
        counts[3] = len(batch.keys)
        chosen: list[int] = []
    else:
        chosen = [i for i in range(len(batch.keys)) if mask is None or mask[i]]
    counts[0] = len(chosen)
    finite: list[tuple[int, float]] = []
    for i in chosen:
        entries = {name: column[i] for name, column in batch.columns.items()}
        if any(v is None for v in entries.values()):
            counts[2] += 1
            continue
        known = {name: v for name, v in entries.items() if v is not None}
        if _is_invalid(clause, known):
            counts[1] += 1
            continue
        value = _add(monitor, index, clause, known)
        if value is not None:
            finite.append((batch.keys[i], value))
        if batch.times is not None and clause.window is not None:
            number = _window(batch.times[i] or 0.0, clause.window)
            counts[4:] = [counts[4] + 1, counts[5] + number, counts[6] + number * number]
    monitor.observed[index] += torch.tensor(counts, dtype=torch.int64, device=monitor.sums.device)
    _offer(monitor, index, finite)
    if clause.source == "value":
        _fill(monitor, index, clause, [value for _, value in finite])


def _window(time: float, length: float) -> int:
    """Number of the window that a time falls in, modulo 65,536 so that squares add up."""
    return math.floor(time / length) % WINDOWS


def _is_invalid(clause: ClauseSpec, entries: Mapping[str, float]) -> bool:
    """A NaN; an infinity but of a time; a difference beyond the range that the contract assumes."""
    if clause.source == "value":
        return any(math.isnan(v) for v in entries.values())
    if not all(math.isfinite(v) for v in entries.values()):
        return True
    wide = clause.source == "paired" and clause.width > 0.0
    return wide and abs(entries["candidate"] - entries["reference"]) > clause.width


def _add(monitor: Takes, index: int, clause: ClauseSpec, entries: Mapping[str, float]) -> float | None:
    """Add one request to the records of a cell; the value that ranks it among the worst, None for one that does not."""
    record = monitor.evidence.records[index]
    upper, lower = monitor.upper[clause.name], monitor.lower[clause.name]
    if clause.source == "paired":
        return _add_pair(monitor, index, clause, entries["candidate"] - entries["reference"])
    value = entries["values"]
    if clause.source == "throughput":
        record.add(value, 0.0, bounded=False)
        monitor.evidence.second(index).add(entries["seconds"], 0.0, bounded=False)
        return None
    if clause.source == "peak":
        record.add(0.0, 0.0, bounded=False)
        return value
    if clause.evidence == "mean":
        record.add(value, mean_limit(clause, upper, lower), bounded=False)
        return value
    if clause.source == "outcome":
        exceeds = value == (0.0 if clause.lower is not None else 1.0)
        record.add(float(exceeds), clause.exception)
        return 1.0 if exceeds else None
    record.add(float(not value <= upper), clause.exception)
    return value


def _add_pair(monitor: Takes, index: int, clause: ClauseSpec, difference: float) -> float:
    """Add `(1 + d/width)/2` and its mirror image; without a width only their mean is of use."""
    width = clause.width or 1.0
    scaled = difference / width
    null = paired_null(monitor.upper[clause.name], width) if clause.width > 0.0 else 0.0
    bounded = 0.0 < null < 1.0
    for record, value in ((monitor.evidence.records[index], scaled), (monitor.evidence.second(index), -scaled)):
        record.add(0.5 * (1.0 + value), null if bounded else 0.0, bounded=bounded)
    return abs(difference)


def _offer(monitor: Takes, index: int, found: Sequence[tuple[int, float]]) -> None:
    """Keep the largest value with its request; ties go to the smallest key."""
    if not found:
        return
    key, value = min(found, key=lambda entry: (-entry[1], entry[0]))
    mine = monitor.worst
    table = torch.full_like(mine.table, -torch.inf)
    place = torch.full_like(mine.place, LAST)
    table[:, index] = value
    place[index] = torch.tensor([key, -1, -1], dtype=torch.int64, device=place.device)
    mine.merge(Worst(table, place))


def _fill(monitor: Takes, index: int, clause: ClauseSpec, values: Sequence[float]) -> None:
    """Count the values in the histogram of the metric on the cell's slice; its first clause there does it."""
    layout = monitor.layout
    cell = layout.cells[index]
    first = next(
        i
        for i, c in enumerate(layout.cells)
        if c.slice == cell.slice and monitor.CLAUSES[c.clause].metric == clause.metric
    )
    key = (clause.metric, cell.slice)
    if first != index or key not in layout.histograms or not values:
        return
    bins = bin_index(torch.tensor(values, dtype=torch.float64, device=monitor.sums.device))
    row = monitor.histograms[layout.histograms.index(key)]
    row.scatter_add_(0, bins, torch.ones_like(bins))


def one_window(counts: Sequence[int]) -> bool:
    """Whether every counted observation has a time and all fall in one window (variance 0, in exact integers).

    The sum of squares wraps around 2^64 from 2^31 observations on, so it is compared modulo that: several windows make
    the true sum larger by less than 2^32 for each observation, which below 2^32 of them is never a multiple of it.
    """
    counted, number, total, squares = counts[0] - counts[1] - counts[2], *counts[4:]
    if number != counted or number == 0:
        return number == counted
    window, rest = divmod(total, number)
    return rest == 0 and (squares - number * window * window) % (1 << 64) == 0
