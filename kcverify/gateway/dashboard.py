"""The page that shows a running gateway: its routes, who may see it, the headers that keep it to itself.

A browser signs in with the admin token in a form and gets a cookie that no script can read and no other site can send;
the token is never in a URL. Where the gateway has no token it listens on loopback alone, and the page is open to
requests that name loopback as their host. The page reads; it changes nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from kcverify.gateway import shown, status
from kcverify.gateway.admin import Admin, refused

SESSION_SECONDS = 12 * 3600
_LARGEST = 4096
_HEADERS: Mapping[str, str] = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def policy(nonce: str) -> str:
    """The Content-Security-Policy of a page: its own script and style, data from this gateway, nothing else."""
    return (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types kcverify"
    )


class Dashboard:
    """The page of one gateway, beside its admin endpoints."""

    def __init__(self, admin: Admin) -> None:
        self.admin, self.gateway = admin, admin.gateway

    def routes(self) -> list[Route]:
        """Path, what answers, method."""
        return [
            Route("/dashboard", self.page, methods=["GET"]),
            Route("/dashboard", self.enter, methods=["POST"]),
            Route("/dashboard/data", self.data, methods=["GET"]),
            Route("/dashboard/leave", self.leave, methods=["POST"]),
        ]

    async def page(self, request: Request) -> Response:
        """The page, or the form that asks for the token."""
        if not self.allowed(request):
            return self._form(wrong=False)
        nonce, document = secrets.token_urlsafe(16), await self._status()
        signed = self.gateway.settings.token is not None
        text = await asyncio.to_thread(shown.page, self.gateway.contract, document, nonce, signed=signed)
        return _page(text, nonce)

    async def data(self, request: Request) -> Response:
        """`status` as `/admin/status` gives it, without its history, and the sections of the page."""
        if not self.allowed(request):
            return self._unauthorized()
        document = await self._status()
        body = await asyncio.to_thread(_data, self.gateway, document)
        return Response(body, media_type="application/json", headers=_HEADERS)

    async def enter(self, request: Request) -> Response:
        """Exchange the token, in the body of a form, for a cookie."""
        token, body = self.gateway.settings.token, b""
        async for part in request.stream():
            body += part
            if len(body) > _LARGEST:
                break
        fields = parse_qs(body[:_LARGEST].decode("utf-8", "replace"), max_num_fields=8) if _few(body) else {}
        given = fields.get("token", [""])[0].strip().encode("utf-8", "replace")
        if token is not None and not hmac.compare_digest(given, token):
            self.gateway.counts["unauthorized"] += 1
            return self._form(wrong=True)
        answer = RedirectResponse("dashboard", 303, headers=dict(_HEADERS))
        if token is not None:
            answer.set_cookie(
                _cookie(request), signed(token, int(time.time()) + SESSION_SECONDS), max_age=SESSION_SECONDS,
                path="/dashboard", secure=request.url.scheme == "https", httponly=True, samesite="strict",
            )  # fmt: skip
        return answer

    async def leave(self, request: Request) -> Response:
        """Forget the cookie."""
        answer = RedirectResponse("../dashboard", 303, headers=dict(_HEADERS))
        answer.delete_cookie(_cookie(request), path="/dashboard", httponly=True, samesite="strict")
        return answer

    def allowed(self, request: Request) -> bool:
        """Whether the request carries the token or a session; without a token, whether it was sent to loopback."""
        token = self.gateway.settings.token
        if self.admin.allowed(request):
            return True
        return token is not None and valid(token, request.cookies.get(_cookie(request), ""), time.time())

    def _unauthorized(self) -> Response:
        self.gateway.counts["unauthorized"] += 1
        return refused("unauthorized", "sign in at /dashboard, or send `Authorization: Bearer TOKEN`")

    def _form(self, *, wrong: bool) -> Response:
        if self.gateway.settings.token is None:
            return self._unauthorized()
        nonce = secrets.token_urlsafe(16)
        return _page(shown.login(nonce, wrong=wrong), nonce)

    async def _status(self) -> dict[str, Any]:
        return status.status(self.gateway, self.admin.measuring, await self.gateway.evidence())


def signed(token: bytes, until: int) -> str:
    """A session that ends at `until`, seconds since 1970: any process that knows the token can check it."""
    found = hmac.new(token, f"kcverify dashboard {until}".encode(), hashlib.sha256)
    return f"{until}.{found.hexdigest()}"


def valid(token: bytes, session: str, now: float) -> bool:
    """Whether a session is one of `signed`, and has not ended."""
    until = session.partition(".")[0]
    if not (until.isascii() and until.isdigit() and len(until) < 16):
        return False
    expected = signed(token, int(until))
    return hmac.compare_digest(expected.encode(), session.encode("utf-8", "replace")) and now < int(until)


def _few(body: bytes) -> bool:
    return body.count(b"&") < 8


def _cookie(request: Request) -> str:
    """Cookies know no ports: two gateways of one machine need two names."""
    return f"kcverify_{request.url.port or request.url.scheme}"


def _page(text: str, nonce: str) -> Response:
    headers = {**_HEADERS, "content-security-policy": policy(nonce)}
    return Response(text, media_type="text/html", headers=headers)


def _data(gateway: Any, document: dict[str, Any]) -> bytes:
    sections = shown.sections(gateway.contract, document)
    told = {k: v for k, v in document.items() if k != "history"}
    found = {
        "clock": shown.clock(document["now"]), "title": shown.title(document), "summary": shown.summary(document),
        "status": told, "sections": sections,
    }  # fmt: skip
    return json.dumps(found, ensure_ascii=True, allow_nan=False).encode()
