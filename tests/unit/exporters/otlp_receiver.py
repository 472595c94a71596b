"""A collector for tests, run as a process: it takes OTLP over HTTP and prints what it got, a line a request."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

KINDS = {"/v1/metrics": ExportMetricsServiceRequest, "/v1/traces": ExportTraceServiceRequest}
STATUS = int(sys.argv[1])


class Receiver(BaseHTTPRequestHandler):
    """Answers every export with the status that it was started with."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        message = KINDS[self.path]()
        message.ParseFromString(body)
        print(json.dumps([self.path, MessageToDict(message)]), flush=True)
        self.send_response(STATUS)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


server = HTTPServer(("127.0.0.1", 0), Receiver)
print(server.server_port, flush=True)
server.serve_forever()
