"""A server that streams one answer: `whole`, or `pings`, comments and then the end of the connection.

`refuses`: it says that the client is wrong; `whole` says so to requests that are.
"""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KIND = sys.argv[1]
EVENT = b'data: {"choices": [{"index": 0, "text": "whole"}]}\n\ndata: [DONE]\n\n'


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer("application/json", b'{"data": [{"id": "m"}]}')

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["content-length"]))
        if KIND == "refuses" or b'"wrong"' in asked:
            self._answer("application/json", b'{"error": {"message": "no"}}', 400)
        else:
            self._answer("text/event-stream", EVENT if KIND == "whole" else b": ping\n\n" * 3)

    def _answer(self, kind: str, body: bytes, code: int = 200) -> None:
        self.send_response(code)
        self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *words: object) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
server.serve_forever()
