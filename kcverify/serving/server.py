"""Listens, serves until a signal, and ends cleanly."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn

from kcverify.diagnostics import input_error
from kcverify.digests import sha256_of
from kcverify.measure.kernels import BY_NAME
from kcverify.resources import data_path
from kcverify.serving.app import MODEL, Server, make_app
from kcverify.serving.engine import Engine
from kcverify.serving.faults import Fault, Faults

_GRACE = 3  # seconds that running answers get after a signal


@dataclass(frozen=True)
class Started:
    """What a server says of itself once it answers."""

    url: str
    model: str
    kernel: str
    weight_version: str


class _Uvicorn(uvicorn.Server):
    """A server whose signals are ours, and which says when it answers."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End at SIGTERM and SIGINT, as a wanted end: the library would raise the signal again after it."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _end(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        if self.started:
            self._ready()


def serve(
    kernel: str, host: str, port: int, faults: Sequence[Fault], token: str | None, processed: bool,
    ready: Callable[[Started], None],
) -> None:  # fmt: skip
    """Serve until SIGTERM or SIGINT; `ready` is called once, when requests are answered.

    Raises InputError: `option_invalid` for a kernel, a host or a port that cannot be used, `kernel_missing`.
    """
    if kernel not in BY_NAME:
        hint = f"kernels are {', '.join(BY_NAME)}"
        raise input_error("option_invalid", option="--kernel", reason=f"there is no kernel `{kernel}`", hint=hint)
    name = BY_NAME[kernel].name
    listening = _listen(host, port)
    with listening:
        engine, held = Engine(name), Faults(faults)
        whole = held.whole()
        if whole.kernel or whole.noise:
            engine.use(whole.kernel or name, whole.noise)
        weights = sha256_of(data_path("tinylm.safetensors"))[:16]
        server = Server(engine, held, name, weights, token, processed)
        address, family = listening.getsockname(), listening.family
        shown = f"[{address[0]}]" if family == socket.AF_INET6 else address[0]
        started = Started(f"http://{shown}:{address[1]}", MODEL, name, server.weight_version(whole))
        config = uvicorn.Config(
            make_app(server), log_config=None, log_level="critical", access_log=False, timeout_keep_alive=75,
            timeout_graceful_shutdown=_GRACE, lifespan="on", loop="asyncio", http="auto", ws="none", server_header=False,
        )  # fmt: skip
        asyncio.run(_Uvicorn(config, lambda: ready(started)).serve(sockets=[listening]))


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError, OverflowError) as error:
        reason = f"`{host}` is no address: {error}"
        raise input_error("option_invalid", option="--host", reason=reason, hint="--host 127.0.0.1") from None
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(1024)
    except (OSError, OverflowError) as error:
        found.close()
        reason = f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}"
        raise input_error("option_invalid", option="--port", reason=reason, hint="--port 0 takes a free one") from None
    return found
