"""The command `serve-demo`. It needs the extras `kcverify[gateway,torch]`."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated

import typer

from kcverify.cli.common import Format, app, emit, say, wants_json

if TYPE_CHECKING:
    from kcverify.serving.server import Started

Port = Annotated[int, typer.Option("--port", help="where to listen; 0 takes a free one", min=0, max=65535)]


@app.command(
    "serve-demo",
    epilog="Ends with exit code 0 at SIGTERM and SIGINT; 2 where the port is in use. "
    "Example: kcverify serve-demo --kernel int8 --port 8001 --fault slow=20@0.1",
)
def serve_demo(
    kernel: Annotated[
        str, typer.Option("--kernel", help="kernel of the matrix products", metavar="float32|bf16|int8|fp8|int4|…")
    ] = "float32",
    host: Annotated[str, typer.Option("--host", help="address to listen on", metavar="ADDRESS")] = "127.0.0.1",
    port: Port = 0,
    fault: Annotated[
        list[str] | None,
        typer.Option("--fault", help="a fault from the start, for a share of requests; see --faults", metavar="NAME[=VALUE][@SHARE]"),
    ] = None,
    faults: Annotated[bool, typer.Option("--faults", help="list the faults and end")] = False,
    admin_token: Annotated[
        str | None,
        typer.Option("--admin-token", help="opens /admin/fault to requests with this bearer token", metavar="TOKEN"),
    ] = None,
    logprobs_mode: Annotated[
        str, typer.Option("--logprobs-mode", help="before or after temperature and truncation", metavar="raw|processed")
    ] = "raw",
    format: Format = "text",
) -> int:  # fmt: skip
    """The demo model behind an OpenAI-compatible interface, with faults on request.

    Answers /v1/completions, /v1/chat/completions, /v1/models and /health. Prints one line once it answers.
    """
    _extra()
    from kcverify import __version__
    from kcverify.diagnostics import input_error
    from kcverify.serving.faults import read_fault
    from kcverify.serving.server import serve

    as_json = wants_json(format)
    if faults:
        return _faults(as_json)
    if logprobs_mode not in ("raw", "processed"):
        reason = f"`{logprobs_mode}` is not raw or processed"
        raise input_error("option_invalid", option="--logprobs-mode", reason=reason, hint="--logprobs-mode raw")
    if admin_token is not None and not admin_token:
        raise input_error(
            "option_invalid", option="--admin-token", reason="it is empty", hint="leave it out, or give one"
        )

    def ready(s: Started) -> None:
        facts = {
            "kcverify": __version__,
            "url": s.url,
            "model": s.model,
            "kernel": s.kernel,
            "weight_version": s.weight_version,
            "logprobs_mode": logprobs_mode,
            "pid": os.getpid(),
        }
        say(json.dumps(facts) if as_json else f"{s.url} serves {s.model}, {s.kernel}, weights {s.weight_version}")

    found = [read_fault(text) for text in fault or []]
    serve(kernel, host, port, found, admin_token, logprobs_mode == "processed", ready)
    return 0


def _faults(as_json: bool) -> int:
    """Print the table of faults."""
    from kcverify import __version__
    from kcverify.serving.faults import KINDS

    if as_json:
        rows = [
            {"name": k.name, "meaning": k.meaning, "how": k.how, "takes": k.value, "default": k.default, "by_request": k.by_request}
            for k in KINDS
        ]  # fmt: skip
        emit({"kcverify": __version__, "exit_code": 0, "faults": rows})
    for k in () if as_json else KINDS:
        say(f"{k.name:18} {k.meaning}" + (f" [{k.value}: {k.default}]" if k.value else ""))
    return 0


def _extra() -> None:
    """Raises InputError: `extra_missing` where a library of the server is not installed."""
    from kcverify.diagnostics import input_error

    try:
        import kcverify.serving.server  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "torch", "safetensors"):
            raise
        hint = "pip install 'kcverify[gateway,torch]'"
        raise input_error("extra_missing", hint=hint, package=error.name) from None
