"""Verdicts as OpenTelemetry metrics and one trace, through the SDK: to a collector over HTTP, or as lines of OTLP JSON.

Needs the extra `kcverify[otel]`. A pass is a span with status OK, a failure one with ERROR; what is undecided stays UNSET.
"""

from __future__ import annotations

import base64
import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult, MetricsData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Status, StatusCode, set_span_in_context

from kcverify import __version__
from kcverify.diagnostics import input_error
from kcverify.exporters.text import printable, whole
from kcverify.exporters.verdicts import ClauseVerdict, Verdicts
from kcverify.output.style import still

GAUGES = {
    "kcverify.clause.verdict": "1 pass, 0 neither, -1 fail",
    "kcverify.clause.requests": "requests that the verdict rests on",
    "kcverify.clause.log_e_fail": "log evidence against the limit; the largest double stands for infinity",
    "kcverify.clause.log_e_pass": "log evidence for the limit; the largest double stands for infinity",
    "kcverify.verdict": "1 pass, 0 inconclusive, -1 fail",
}
"""Every metric is a gauge: the name and what it is."""
TIMEOUT = 5.0
_STATUS = {"pass": StatusCode.OK, "fail": StatusCode.ERROR}
_IDS = ("traceId", "spanId", "parentSpanId")
_MOST = sys.float_info.max

Attributes = dict[str, str]


@dataclass(frozen=True)
class Telemetry:
    """What is sent: the metrics and the spans."""

    metrics: MetricsData
    spans: tuple[ReadableSpan, ...]


def telemetry(verdicts: Verdicts) -> Telemetry:
    """The verdicts of one run as metrics and a trace: a span for the run, one below it for each clause and slice."""
    resource = Resource({"service.name": "kcverify", "service.version": __version__})
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    meter = meters.get_meter("kcverify", __version__)
    gauges = {name: meter.create_gauge(name, description=about) for name, about in GAUGES.items()}
    kept = InMemorySpanExporter()
    tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(kept))
    tracer = tracers.get_tracer("kcverify", __version__)

    head = _head(verdicts)
    gauges["kcverify.verdict"].set(verdicts.sign, head | {"kcverify.verdict": verdicts.verdict})
    root = tracer.start_span(f"kcverify {verdicts.about}", attributes=head | {"kcverify.verdict": verdicts.verdict})
    for clause in verdicts.clauses:
        own = head | _own(clause)
        for name, value in _values(clause).items():
            gauges[name].set(value, own)
        span = tracer.start_span(
            f"clause {whole(clause.where)}", set_span_in_context(root), attributes=_told(own, clause)
        )
        _end(span, clause.verdict, clause.reason)
    _end(root, verdicts.verdict, "")
    metrics = reader.get_metrics_data()
    assert metrics is not None
    return Telemetry(metrics, kept.get_finished_spans())


def _head(verdicts: Verdicts) -> Attributes:
    out = {"kcverify.contract": whole(verdicts.contract), "kcverify.digest": whole(verdicts.digest)}
    return out if verdicts.stage is None else out | {"kcverify.stage": whole(verdicts.stage)}


def _own(clause: ClauseVerdict) -> Attributes:
    """What tells one clause on one slice from the others. A verdict changes, so it is on spans alone."""
    return {
        "kcverify.clause": whole(clause.name),
        "kcverify.slice": whole(clause.slice or ""),
        "kcverify.severity": whole(clause.severity),
    }


def _told(own: Attributes, clause: ClauseVerdict) -> Attributes:
    logs = {"kcverify.log_e_fail": clause.log_e_fail, "kcverify.log_e_pass": clause.log_e_pass}
    shown = {name: repr(value) for name, value in logs.items() if value is not None}
    told = {
        "kcverify.verdict": clause.verdict,
        "kcverify.reason": whole(clause.reason),
        "kcverify.text": whole(clause.text),
    }
    return own | told | shown


def _values(clause: ClauseVerdict) -> dict[str, int | float]:
    """The gauges of a clause; the SDK takes finite numbers only."""
    out: dict[str, int | float] = {"kcverify.clause.verdict": clause.sign}
    if clause.requests is not None:
        out["kcverify.clause.requests"] = clause.requests
    for side, value in (("fail", clause.log_e_fail), ("pass", clause.log_e_pass)):
        if value is not None:
            out[f"kcverify.clause.log_e_{side}"] = min(max(value, -_MOST), _MOST)
    return out


def _end(span: Any, verdict: str, reason: str) -> None:
    status = _STATUS.get(verdict, StatusCode.UNSET)
    if status is not StatusCode.UNSET:
        span.set_status(Status(status, whole(reason) if status is StatusCode.ERROR else None))
    span.end()


def lines(verdicts: Verdicts) -> str:
    """Two lines of OTLP JSON, as a collector's file receiver reads them: the metrics, then the trace."""
    made = telemetry(verdicts)
    messages = (encode_metrics(made.metrics), encode_spans(made.spans))
    return "".join(
        still(json.dumps(_shown(MessageToDict(m, use_integers_for_enums=True))), "\\u0023") + "\n" for m in messages
    )


def _shown(value: Any) -> Any:
    """The mapping of OTLP: identifiers are hexadecimal where JSON of protocol buffers has base64."""
    if isinstance(value, Mapping):
        return {k: base64.b64decode(v).hex() if k in _IDS and v else _shown(v) for k, v in value.items()}
    return [_shown(v) for v in value] if isinstance(value, list) else value


def send(verdicts: Verdicts, endpoint: str) -> str:
    """Send to a collector and say what it took. Raises InputError: `telemetry_refused`."""
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
    made = telemetry(verdicts)
    metrics = OTLPMetricExporter(endpoint=f"{endpoint}/v1/metrics", timeout=TIMEOUT)
    traces = OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces", timeout=TIMEOUT)
    try:
        if metrics.export(made.metrics) is not MetricExportResult.SUCCESS:
            raise input_error("telemetry_refused", endpoint=endpoint, what="metrics")
        if traces.export(made.spans) is not SpanExportResult.SUCCESS:
            raise input_error("telemetry_refused", endpoint=endpoint, what="trace")
    finally:
        metrics.shutdown()
        traces.shutdown()
    return f"{printable(endpoint)} took {len(made.spans)} spans and the metrics of {len(verdicts.clauses)} clauses"
