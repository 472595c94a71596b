"""What Prometheus reads at `/metrics`; names and labels are those of the rules that `kcverify emit` generates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kcverify.delivery.machine import ROUTES
from kcverify.delivery.records import Record
from kcverify.elaborate.policy import STAGES
from kcverify.exporters import names
from kcverify.gateway.cells import PlannedCell
from kcverify.routing.health import WatchedCell
from kcverify.routing.split import ORDER
from kcverify.routing.table import RouteTable
from kcverify.runtime.sequential import SCALE

WEALTHS = ("share", "mean")
"""Kinds of evidence whose log wealths are shown: no count decides them."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Evidence:
    """The counters and gauges of the cells, read from their sums when they are scraped; they grow over all runs.

    Every unit counts, one whose values are invalid too; a unit is a request, and a token for a clause `unit token`.
    """

    def __init__(self, contract: str, cells: Sequence[PlannedCell], totals: Callable[[], Mapping[str, Record]]) -> None:
        self.contract, self.cells, self.totals = contract, cells, totals

    def collect(self) -> Iterator[Metric]:
        """What prometheus_client asks of a collector."""
        found = self.totals()
        rows = [((self.contract, c.planned.clause.name, c.slice or ""), c.planned, found[c.key]) for c in self.cells]
        counted = [(labels, counts(record, tokens=p.clause.unit == "token")) for labels, p, record in rows]
        for name, about in _COUNTERS.items():
            family = CounterMetricFamily(name.removesuffix("_total"), about, labels=names.LABELS)
            for labels, numbers in counted:
                family.add_metric(labels, numbers[name])
            yield family
        wealths = GaugeMetricFamily(
            names.LOG_WEALTH, "Log wealths of the evidence", labels=(*names.LABELS, "side", "bet")
        )
        for labels, planned, record in rows:
            if planned.evidence in WEALTHS:
                for side, sums in (("above", record.wealth.above), ("below", record.wealth.below)):
                    for bet, value in enumerate(sums):
                        wealths.add_metric((*labels, side, str(bet)), value / SCALE)
        yield wealths


_COUNTERS = {
    names.OBSERVATIONS: "Units that a clause was asked about",
    names.EXCEEDANCES: "Units that exceeded its limit",
    names.INVALID: "Values that are not finite",
    names.MISSING: "Units that could not show the clause",
}


def counts(record: Record, *, tokens: bool) -> dict[str, int]:
    """The counters of one cell's sums."""
    wealth = record.wealth
    seen, bad = (record.rows, record.exceeding) if tokens else (wealth.requests, wealth.exceeding)
    return {
        names.OBSERVATIONS: seen,
        names.EXCEEDANCES: bad,
        names.INVALID: record.invalid,
        names.MISSING: record.missing + record.unknown,
    }


class Metrics:
    """The metrics of one process, in a registry of its own."""

    def __init__(self, contract: str) -> None:
        disable_created_metrics()
        self.contract = contract
        self.registry = r = CollectorRegistry()
        self.healths = Gauge("kcverify_health", "1 without evidence of drift, 0 at the alarm", names.LABELS, registry=r)
        self.stage = Gauge("kcverify_stage", "1 for the stage of the candidate", ("stage",), registry=r)
        self.route = Gauge("kcverify_route", "1 for the route in force", ("route",), registry=r)
        self.weight = Gauge("kcverify_weight", "Share of traffic by side", ("side",), registry=r)
        self.version = Gauge("kcverify_route_version", "Number of the last event that the route knows", registry=r)
        self.requests = Counter("kcverify_requests", "Answered requests", ("side", "served", "status"), registry=r)
        self.fallbacks = Counter("kcverify_fallbacks", "Requests another upstream answered", ("from", "to"), registry=r)
        self.shifts = Counter("kcverify_route_shifts", "Moves of the route", ("route",), registry=r)
        self.dropped = Counter("kcverify_dropped", "Measurements that were not made", ("what",), registry=r)
        self.void = Counter("kcverify_void", "Measurements that an identity check voided", ("check",), registry=r)
        self.up_gauge = Gauge("kcverify_upstream_up", "1 while an upstream answers", ("upstream",), registry=r)
        self.added = Histogram("kcverify_seconds", "Time of an answer", ("served",), buckets=_SECONDS, registry=r)
        self._labels: dict[str, tuple[str, str, str]] = {}

    def declare(
        self, cells: Sequence[PlannedCell], watched: Sequence[WatchedCell], totals: Callable[[], Mapping[str, Record]]
    ) -> None:
        """Every cell is there from the start, at 0; `totals` gives the sums of each."""
        self._labels = {c.key: (self.contract, c.planned.clause.name, c.slice or "") for c in cells}
        self.registry.register(Evidence(self.contract, cells, totals))
        for cell in watched:
            if cell.key in self._labels:
                self.healths.labels(*self._labels[cell.key]).set(1.0)

    def measuring(self, waiting: Callable[[], int], behind: Callable[[], float]) -> None:
        """How much waits to be measured, read when it is asked for."""
        told = "Requests that wait to be measured"
        Gauge("kcverify_measuring_waiting", told, registry=self.registry).set_function(lambda: float(waiting()))
        told = "How long the request that is measured now had waited"
        Gauge("kcverify_measuring_behind_seconds", told, registry=self.registry).set_function(behind)

    def health(self, health: Mapping[str, float], table: RouteTable) -> None:
        """Once a second."""
        for name, value in health.items():
            if name in self._labels:
                self.healths.labels(*self._labels[name]).set(value)
        self.moved(table, count=False)

    def moved(self, table: RouteTable, *, count: bool = True) -> None:
        """A table was put in force."""
        for name in STAGES:
            self.stage.labels(name).set(float(name == table.stage))
        for name in ROUTES:
            self.route.labels(name).set(float(name == table.route))
        for name in ORDER:
            self.weight.labels(name).set(float(table.weights.get(name, 0)))
        self.version.set(table.version)
        if count:
            self.shifts.labels(table.route).inc()

    def up(self, name: str, on: bool) -> None:
        """An upstream went down or came back."""
        self.up_gauge.labels(name).set(float(on))

    def text(self) -> bytes:
        """The exposition."""
        return bytes(generate_latest(self.registry))
