"""Endpoints of the operator, behind a token: status, events, route, evidence, gate, pause and rollback; and Flagger's hooks."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kcverify.diagnostics import InputError
from kcverify.exporters.names import GATE, HOOKS, UNDECIDED, hook_answer
from kcverify.gateway import status
from kcverify.gateway.answers import ERRORS, error_body
from kcverify.gateway.core import Gateway
from kcverify.gateway.measuring import Measuring
from kcverify.gateway.settings import LOOPBACK

_LARGEST = 1 << 16
HOOK_SECONDS = 1.0
"""The hooks are open to whoever reaches them: the gate is asked this often at most."""
Answer = Callable[[Request], Awaitable[Response]]


def _json(value: Any, status: int = 200) -> Response:
    body = json.dumps(value, ensure_ascii=True, allow_nan=False).encode()
    return Response(body, status, media_type="application/json", headers={"cache-control": "no-store"})


def refused(code: str, message: str) -> Response:
    """An error answer."""
    headers = {"www-authenticate": "Bearer"} if code == "unauthorized" else None
    return Response(error_body(code, message), ERRORS[code][0], headers, "application/json")


class Admin:
    """The endpoints of one gateway. Without a token they answer on loopback only, which is where it then listens."""

    def __init__(self, gateway: Gateway, measuring: Measuring) -> None:
        self.gateway, self.measuring = gateway, measuring
        self._last: tuple[float, str, str] = (float("-inf"), "", "")

    def routes(self) -> list[Route]:
        """Path, method, what answers."""
        rows: list[tuple[str, str, Answer]] = [
            ("/admin/status", "GET", self.status),
            ("/admin/events", "GET", self.events),
            ("/admin/route", "GET", self.route),
            ("/admin/evidence", "GET", self.evidence),
            (GATE, "POST", self.gate),
            ("/admin/pause", "POST", self.pause),
            ("/admin/resume", "POST", self.resume),
            ("/admin/rollback", "POST", self.rollback),
        ]
        guarded = [Route(path, self._guarded(answer), methods=[method]) for path, method, answer in rows]
        return [*guarded, Route(HOOKS + "/{type}", self.hook, methods=["POST"])]

    def allowed(self, request: Request) -> bool:
        """Whether the request carries the token, compared in constant time.

        Without one it must name loopback as its host: a page whose name was made to lead here does not.
        """
        token = self.gateway.settings.token
        if token is None:
            return (request.url.hostname or "") in LOOPBACK
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        return hmac.compare_digest(given.strip().encode("latin-1", "replace"), token) and scheme.lower() == "bearer"

    def _guarded(self, answer: Answer) -> Answer:
        async def guarded(request: Request) -> Response:
            if not self.allowed(request):
                self.gateway.counts["unauthorized"] += 1
                return refused("unauthorized", "the admin endpoints need `Authorization: Bearer TOKEN`")
            if request.method == "POST" and request.headers.get("content-type", "").split(";")[0] != "application/json":
                return refused("refused", "send JSON: a form of another site must not be able to do this")
            try:
                return await answer(request)
            except InputError as error:
                return refused("refused", str(error))

        return guarded

    async def status(self, request: Request) -> Response:
        """Everything."""
        return _json(status.status(self.gateway, self.measuring, await self.gateway.evidence()))

    async def events(self, request: Request) -> Response:
        """Events behind `after`, oldest first."""
        text = request.query_params.get("after", "0")
        after = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0
        keeper = self.gateway.keeper
        return _json({"events": await keeper.call(keeper.after, after)})

    async def route(self, request: Request) -> Response:
        """The table in force."""
        return _json(self.gateway.router.table.data())

    async def evidence(self, request: Request) -> Response:
        """Every cell of the current run."""
        cells = await self.gateway.evidence()
        return _json({"run": self.gateway.state.run, "cells": status.plain(cells)})

    async def _decision(self) -> dict[str, Any]:
        keeper = self.gateway.keeper
        await self.gateway.flush()
        decision = await keeper.call(keeper.gate)
        await self.gateway.take()
        return decision

    async def gate(self, request: Request) -> Response:
        """The gate's decision about the current stage."""
        decision, state = await self._decision(), self.gateway.state
        return _json({"gate": decision, "digest": state.digest, "name": state.contract, "stage": state.stage})

    async def hook(self, request: Request) -> Response:
        """A hook of Flagger, which sends no token: the verdict about `stage` as a status, and nothing else."""
        type, asked = request.path_params["type"], request.query_params.get("stage", "")
        if hook_answer(type, asked, asked, "pass") is None:
            return refused("not_found", "there is no such hook of this stage")
        before, stage, verdict = self._last
        if time.monotonic() - before >= HOOK_SECONDS:
            try:
                decision = await self._decision()
            except InputError as error:
                self.gateway.problem = str(error)
                return Response(status_code=UNDECIDED)
            stage, verdict = decision["stage"], decision["verdict"]
            self._last = time.monotonic(), stage, verdict
        return Response(status_code=hook_answer(type, asked, stage, verdict) or UNDECIDED)

    async def _body(self, request: Request) -> dict[str, Any]:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _LARGEST:
                break
        try:
            found = json.loads(body[:_LARGEST] or b"{}")
        except (ValueError, RecursionError):
            found = {}
        return found if isinstance(found, dict) else {}

    async def _changed(self) -> Response:
        await self.gateway.take()
        return _json(
            {
                "position": self.gateway.state.position,
                "paused": self.gateway.state.paused,
                "route": self.gateway.router.table.data(),
            }
        )

    async def _pause(self, request: Request, on: bool) -> Response:
        reason = str((await self._body(request)).get("reason", ""))[:500]
        keeper = self.gateway.keeper
        await keeper.call(keeper.pause, on, reason)
        return await self._changed()

    async def pause(self, request: Request) -> Response:
        """Keep traffic off the candidate; `{"reason": ...}`."""
        return await self._pause(request, True)

    async def resume(self, request: Request) -> Response:
        """Let it back."""
        return await self._pause(request, False)

    async def rollback(self, request: Request) -> Response:
        """Back to an earlier place: `{"to": PLACE, "reason": ...}`, by default the first one."""
        body = await self._body(request)
        to = body.get("to")
        keeper = self.gateway.keeper
        await keeper.call(keeper.rollback, None if to is None else str(to), str(body.get("reason", ""))[:500])
        return await self._changed()
