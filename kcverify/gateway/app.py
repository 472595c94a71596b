"""The application: proxy, admin, metrics and health behind one set of routes; its lifespan opens and closes everything."""

from __future__ import annotations

import json
from contextlib import suppress

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kcverify.gateway import answers, status
from kcverify.gateway.admin import Admin, refused
from kcverify.gateway.core import Gateway
from kcverify.gateway.dashboard import Dashboard
from kcverify.gateway.measuring import Measuring
from kcverify.gateway.metrics import CONTENT_TYPE
from kcverify.gateway.proxy import Proxy
from kcverify.gateway.upstream import PATHS, Fault


class App:
    """Raw ASGI: the two busy paths go straight to their proxy, everything else through the router."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.measuring = Measuring(gateway)
        self.fast = {path: Proxy(gateway, self.measuring, kind) for kind, path in PATHS.items()}
        self.rest = Starlette(routes=self._routes(), exception_handlers={HTTPException: _missing, Exception: _fault})

    def _routes(self) -> list[Route]:
        admin = Admin(self.gateway, self.measuring)
        return [
            Route("/v1/models", self._models, methods=["GET"]),
            Route("/healthz", self._healthz, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
            *admin.routes(),
            *Dashboard(admin).routes(),
        ]

    async def __call__(self, scope: answers.Scope, receive: answers.Receive, send: answers.Send) -> None:
        """One request, or the lifespan."""
        if scope["type"] == "http" and _framed_twice(scope):
            what = "a request with both Content-Length and Transfer-Encoding may end in two places"
            await answers.refused(send, "body_invalid", what, [(b"connection", b"close")])
        elif scope["type"] == "http":
            proxy = self.fast.get(scope["path"])
            await (self.rest(scope, receive, send) if proxy is None else proxy(scope, receive, send))
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)

    async def _lifespan(self, receive: answers.Receive, send: answers.Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.measuring.open()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.measuring.close()
                await self.gateway.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _models(self, request: Request) -> Response:
        """The list of the first upstream that answers, the safe one first."""
        for role in ("safe", "guarded", "reference"):
            with suppress(Fault):
                code, found = await self.gateway.upstream(role).listed()
                if code < 500:
                    return Response(found, code, media_type="application/json")
        return refused("upstreams_failed", "no upstream lists its models")

    async def _healthz(self, request: Request) -> Response:
        return Response(json.dumps(status.health(self.gateway)), media_type="application/json")

    async def _metrics(self, request: Request) -> Response:
        return Response(self.gateway.metrics.text(), media_type=CONTENT_TYPE)


def _framed_twice(scope: answers.Scope) -> bool:
    """Whether a proxy before us may have seen another end of the request, and what follows it as a part of its body."""
    names = {name for name, _ in scope["headers"]}
    return b"content-length" in names and b"transfer-encoding" in names


async def _missing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = "method" if error.status_code == 405 else "not_found"
    return refused(code, f"nothing answers {request.method} {request.url.path[:200]} here")


async def _fault(request: Request, error: Exception) -> Response:
    return refused("store", "a fault of the gateway")
