"""Commands of the gateway: `gateway` serves, `route` prints the weights for other routers. They need `kcverify[gateway]`."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kcverify.cli.common import File, Format, Name, Set, app, emit, note, parameters, say, wants_json
from kcverify.cli.provenance import DeclaredCandidate, DeclaredReference, declared

if TYPE_CHECKING:
    from kcverify.elaborate.contract import Contract

_REMOTE = "URL of a server that speaks the OpenAI API"


@app.command(
    epilog="Exit codes: 0 stopped by a signal; 2 wrong input. "
    "Example: kcverify gateway deploy.kc --reference http://127.0.0.1:8001 --candidate http://127.0.0.1:8002 --store canary.db"
)
def gateway(
    file: File,
    reference: Annotated[str | None, typer.Option("--reference", help=_REMOTE, metavar="URL")] = None,
    candidate: Annotated[str | None, typer.Option("--candidate", help="the kernel under contract", metavar="URL")] = None,
    guarded: Annotated[str | None, typer.Option("--guarded", help="the safe one if not given", metavar="URL")] = None,
    safe: Annotated[str | None, typer.Option("--safe", help="the reference if not given", metavar="URL")] = None,
    store: Annotated[str | None, typer.Option("--store", help="the store of the candidate; started if it is not there", metavar="DB")] = None,
    host: Annotated[str, typer.Option("--host", help="address to listen on", metavar="ADDRESS")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="0 takes a free one", metavar="N", min=0, max=65535)] = 8080,
    admin_token_file: Annotated[
        str | None, typer.Option("--admin-token-file", help="its first line is the token of /admin", metavar="FILE")
    ] = None,
    salt: Annotated[str | None, typer.Option("--salt", help="of the split; the contract's digest if not given", metavar="TEXT")] = None,
    log: Annotated[str | None, typer.Option("--log", help="append a JSON line a request", metavar="FILE")] = None,
    measure: Annotated[str, typer.Option("--measure", help="share of the candidate's requests to score", metavar="SHARE")] = "100%",
    top: Annotated[int, typer.Option("--top", help="most probable tokens to ask for", metavar="K", min=1, max=1000)] = 20,
    logprobs: Annotated[str, typer.Option("--logprobs", help="what the engines report: before or after temperature", metavar="raw|processed")] = "raw",
    fingerprint_reference: DeclaredReference = None, fingerprint_candidate: DeclaredCandidate = None,
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", help="body, answer, concurrency, connect, first, stall, whole, queue, queue_bytes, copies, scorers, steps, choices", metavar="NAME=N"),
    ] = None,
    contract: Name = None, set: Set = None,
) -> int:  # fmt: skip
    """Serve clients in front of a candidate: route, measure, fall back, recover."""
    _extra()
    from kcverify.gateway import settings as made
    from kcverify.gateway.serving import serve

    chosen = _contract(file, contract, set)
    if store is None:
        raise _option("--store", "it is needed", "--store canary.db")
    given = {"reference": reference, "candidate": candidate, "guarded": guarded, "safe": safe}
    token = _token(admin_token_file)
    made.checked_host(host, token)
    if logprobs not in ("raw", "processed"):
        raise _option("--logprobs", f"`{logprobs}` is not raw or processed", "--logprobs raw")
    chosen_settings = made.Settings(
        made.checked_urls(given), salt or _salt(chosen), host, port, top, _share("--measure", measure),
        processed=logprobs == "processed", limits=_limits(limit), token=token, log=log,
        fingerprints=declared(fingerprint_reference, fingerprint_candidate),
    )  # fmt: skip
    serve(chosen, chosen_settings, store, say)
    return 0


@app.command(
    epilog="Example: kcverify route http-route deploy.kc --store canary.db --name llm --side candidate=llm-fp8 --side safe=llm-bf16"
)
def route(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="litellm, http-route or kserve")],
    file: File,
    store: Annotated[str, typer.Option("--store", help="the store of the candidate", metavar="DB")],
    name: Annotated[str, typer.Option("--name", help="of the model, route or service", metavar="NAME")] = "llm",
    side: Annotated[list[str] | None, typer.Option("--side", help="what the other system calls a side", metavar="SIDE=NAME")] = None,
    namespace: Annotated[str, typer.Option("--namespace", help="of Kubernetes", metavar="NAME")] = "default",
    port: Annotated[int, typer.Option("--port", help="of the backends", metavar="N", min=1, max=65535)] = 8000,
    apply: Annotated[str | None, typer.Option("--apply", help="litellm on this machine: send the weights", metavar="URL")] = None,
    key_file: Annotated[str | None, typer.Option("--key-file", help="its first line is the key of --apply", metavar="FILE")] = None,
    contract: Name = None, set: Set = None, format: Format = "text",
) -> int:  # fmt: skip
    """The weights of the store's stage and route in the words of another router."""
    from kcverify import arguments
    from kcverify.cli.delivery import _extra as promotion_extra
    from kcverify.cli.delivery import _store

    promotion_extra()
    from kcverify.delivery.promotion import own
    from kcverify.routing import adapters
    from kcverify.routing.table import table_of

    as_json = wants_json(format)
    chosen = _contract(file, contract, set)
    sides = {"candidate": "candidate", "safe": "safe"} | arguments.pairs("--side", side or [])
    unknown = [name for name in sides if name not in ("candidate", "guarded", "safe")]
    if unknown:
        raise _option("--side", f"`{unknown[0]}` is no side", "candidate, guarded or safe")
    with _store(store) as opened:
        state = own(opened, chosen)
    table = table_of(chosen, state, salt=_salt(chosen))
    if "guarded" not in sides and table.weights.get("guarded"):
        sides = {"candidate": sides["candidate"], "guarded": "guarded", "safe": sides["safe"]}
    documents = adapters.documents(target, table.weights, adapters.Names(name, sides, namespace, port))
    sent = [] if apply is None else _applied(target, apply, key_file, documents)
    answer = {"exit_code": 0, "target": target, "table": table.data(), "documents": documents, "applied": sent}
    if as_json:
        from kcverify import __version__

        emit({"kcverify": __version__, "command": "route", **answer})
    else:
        note(f"{adapters.BY_NAME[target].what}; {adapters.BY_NAME[target].apply}")
        say(adapters.text(target, table.weights, adapters.Names(name, sides, namespace, port)))
        for line in sent:
            note(line)
    return 0


def _applied(target: str, url: str, key_file: str | None, documents: list[dict[str, Any]]) -> list[str]:
    """Send the weights to a LiteLLM proxy. Raises InputError: `option_invalid`."""
    if target != "litellm":
        raise _option("--apply", f"{target} is applied with its own tool", "leave it out")
    _extra()
    from kcverify.gateway.client import send

    key = None if key_file is None else _read("--key-file", key_file).split(b"\n", 1)[0].strip().decode("latin-1")
    return [f"{d['model_info']['id']}: {send(url, '/model/update', d, key)}" for d in documents]


def gate_of(url: str, token_file: str | None, contract: Contract, stage: str | None) -> dict[str, Any]:
    """A running gateway's decision, about this very contract and stage. Raises InputError."""
    _extra()
    from kcverify.diagnostics import input_error
    from kcverify.elaborate.form import digest
    from kcverify.gateway.client import decision

    token = _token(token_file, "--token-file")
    found = decision(url, None if token is None else token.decode("ascii"))
    own = digest(contract)
    if found["digest"] != own:
        raise input_error(
            "store_contract", path=url, stored=found["name"], stored_digest=found["digest"][:19], given=contract.name,
            given_digest=own[:19],
        )  # fmt: skip
    if stage is not None and stage != found["stage"]:
        raise _option(
            "--stage", f"the gateway is in the stage `{found['stage']}`", f"--stage {found['stage']}, or leave it out"
        )
    named = {"name": contract.name, "version": contract.version, "digest": own}
    return {
        "exit_code": {"pass": 0, "fail": 1}.get(found["gate"]["verdict"], 3),
        "contract": named,
        "gate": found["gate"],
    }


def _extra() -> None:
    """Raises InputError: `extra_missing` where a library of the gateway is not installed."""
    from kcverify.diagnostics import input_error

    try:
        import kcverify.gateway.serving  # noqa: F401
    except ModuleNotFoundError as error:
        if str(error.name).startswith("kcverify"):
            raise
        raise input_error("extra_missing", hint="pip install 'kcverify[gateway]'", package=str(error.name)) from None


def _contract(file: str, name: str | None, words: list[str] | None) -> Contract:
    from kcverify import driver
    from kcverify.diagnostics import InputError

    loaded = driver.load_source(driver.read_source(file), parameters(words))
    if loaded.report.errors:
        raise InputError(*loaded.report.errors)
    return driver.select(loaded.contracts, name)


def _option(option: str, reason: str, hint: str) -> Exception:
    from kcverify.diagnostics import input_error

    return input_error("option_invalid", option=option, reason=reason, hint=hint)


def _salt(contract: Contract) -> str:
    """Workers of one contract split alike without being told how."""
    from kcverify.elaborate.form import digest

    return hashlib.sha256(f"kcverify split of {digest(contract)}".encode()).hexdigest()[:16]


def _share(option: str, text: str) -> Fraction:
    from kcverify.routing.split import share

    try:
        return share(text)
    except ValueError as error:
        raise _option(option, str(error), f"{option} 10%") from None


def _read(option: str, path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(4096)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _option(option, f"{path} cannot be read: {reason.lower()}", "a file of one line") from None


def _token(path: str | None, option: str = "--admin-token-file") -> bytes | None:
    from kcverify.gateway.settings import checked_token

    return None if path is None else checked_token(option, _read(option, path))


def _limits(words: list[str] | None) -> Any:
    """Limits with those of `--limit` replaced. Raises InputError: `option_invalid`."""
    from dataclasses import asdict, replace

    from kcverify import arguments
    from kcverify.gateway.settings import Limits

    known, found = asdict(Limits()), dict[str, Any]()
    for name, text in arguments.pairs("--limit", words or []).items():
        if name not in known:
            raise _option(f"--limit {name}", "it is no limit", ", ".join(known))
        value = arguments.number(f"--limit {name}", text)
        whole = isinstance(known[name], int)
        if not 0 < value <= 1 << 40 or (whole and value.denominator != 1):
            raise _option(
                f"--limit {name}", f"{text} is no {'whole ' if whole else ''}number above 0", f"{name}={known[name]}"
            )
        found[name] = int(value) if whole else float(value)
    return replace(Limits(), **found)
