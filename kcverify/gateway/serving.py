"""Runs a gateway on a socket until it is told to stop."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import signal
import socket
import sys
from collections.abc import Callable

import uvicorn

from kcverify.diagnostics import input_error
from kcverify.elaborate.contract import Contract
from kcverify.gateway.app import App
from kcverify.gateway.connections import Connection
from kcverify.gateway.core import Gateway
from kcverify.gateway.settings import Settings

_SWITCH_SECONDS = 0.0005
"""How long the thread that measures may hold the interpreter while an answer waits."""
_BACKLOG = 2048


def bound(settings: Settings) -> socket.socket:
    """A listening socket. Raises InputError: `option_invalid`."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY on what it accepts: else an answer waits for 40 ms.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((settings.host, settings.port))
        found.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        found.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise input_error(
            "option_invalid",
            option="--port",
            reason=f"{settings.host}:{settings.port} cannot be used: {reason.lower()}",
        ) from None
    return found


def serve(contract: Contract, settings: Settings, store: str, told: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `told` gets a line once it listens.

    Raises InputError before it does, and at the end where the store did not take the last evidence.
    """
    with bound(settings) as listening, asyncio.Runner(loop_factory=_fast_loop()) as runner:
        runner.run(_serve(contract, settings, store, told, listening))


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The event loop of uvloop where it is installed, as uvicorn takes httptools where that is."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    made: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return made


async def _serve(
    contract: Contract, settings: Settings, store: str, told: Callable[[str], None], listening: socket.socket
) -> None:
    sys.setswitchinterval(_SWITCH_SECONDS)
    gateway = Gateway(contract, settings, store)
    await gateway.open()
    config = uvicorn.Config(
        App(gateway), log_level="error", access_log=False, lifespan="on", timeout_graceful_shutdown=10, backlog=_BACKLOG,
        timeout_keep_alive=30, server_header=False, date_header=False, h11_max_incomplete_event_size=1 << 16, ws="none",
        http=type("Watched", (Connection,), {"limits": settings.limits}),
    )  # fmt: skip
    server = uvicorn.Server(config)
    loop = asyncio.get_running_loop()
    port = listening.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    table = gateway.router.table
    told(f"listening on http://{host}:{port}, {table.position}, route {table.route}, version {table.version}")

    def stop() -> None:
        gateway.closing = True
        server.should_exit = True

    serving = asyncio.create_task(server.serve(sockets=[listening]))
    await asyncio.sleep(0)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    await serving
    if gateway.unwritten is not None:
        raise gateway.unwritten
