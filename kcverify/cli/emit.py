"""The command `emit`: files that other systems read, made from a contract, verdicts and a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kcverify.cli import common
from kcverify.cli.common import Format, Name, Set, app, parameters, say, wants_json, write

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from kcverify.delivery.chain import Event
    from kcverify.diagnostics import Diagnostic
    from kcverify.elaborate.contract import Contract
    from kcverify.exporters.request import Request
    from kcverify.exporters.table import Target
    from kcverify.exporters.verdicts import Verdicts

_OPTIONS = {
    "contract": ("CONTRACT", "a contract's file"),
    "result": ("--result", "--result FILE, of `kcverify measure` or `gate` with --format json"),
    "store": ("--store", "--store DB"),
    "gateway": ("--gateway", ""),
    "endpoint": ("--endpoint", ""),
}
"""Part of a request -> how it is given, and the hint where it is missing."""


@app.command(
    epilog="Exit codes: 0 written; 2 wrong input. Example: kcverify emit prometheus contracts/rl_rollout.kc -o rules.yml"
)
def emit(
    target: Annotated[str | None, typer.Argument(metavar="TARGET", help="what to write; --list shows all")] = None,
    file: Annotated[str | None, typer.Argument(metavar="CONTRACT", help="contract file; - is standard input")] = None,
    output: Annotated[
        str, typer.Option("-o", "--output", help="where to write; - is standard output", metavar="FILE")
    ] = "-",
    result: Annotated[
        str | None, typer.Option(help="verdicts: measure or gate, --format json", metavar="FILE")
    ] = None,
    store: Annotated[str | None, typer.Option(help="the store of a candidate", metavar="DB")] = None,
    gateway: Annotated[str | None, typer.Option(help="address of the gateway that is asked", metavar="URL")] = None,
    endpoint: Annotated[str | None, typer.Option(help="collector that takes OTLP over HTTP", metavar="URL")] = None,
    list_targets: Annotated[bool, typer.Option("--list", help="show the targets")] = False,
    contract: Name = None, set: Set = None, format: Format = "text",
) -> int:  # fmt: skip
    """Write what another system reads: alert rules, templates, hooks, objectives, events, annotations, telemetry."""
    from kcverify.exporters import table

    as_json = wants_json(format)
    if list_targets:
        return _list(as_json)
    if as_json:
        raise _option("--format", "a target has its own format; only `--list` has JSON", "leave it out")
    if target is None:
        raise _option("TARGET", "no target is named", "kcverify emit --list")
    row = table.target(target)
    given = {"contract": file, "result": result, "store": store, "gateway": gateway, "endpoint": endpoint}
    _fits(row, given)
    if output != "-":
        common.writable(output, file, result, store)
    request = _request(row, given, contract, set)
    if endpoint is not None and request.verdicts is not None:
        from kcverify.exporters.request import address

        say(_telemetry().send(request.verdicts, address(endpoint, "--endpoint")))
        return 0
    text = _telemetry().lines(request.verdicts) if row.render is None else row.render(request)
    if output == "-":
        common.put(text)
    else:
        write(output, text)
        say(f"{output}: {row.title}, {len(text.splitlines())} lines")
    return 0


def _list(as_json: bool) -> int:
    from kcverify import __version__
    from kcverify.exporters.table import ROWS
    from kcverify.output.style import table

    if as_json:
        keys = (
            "name",
            "title",
            "file",
            "needs",
            "takes",
            "any_of",
            "checked",
            "gives",
            "passes",
            "fails",
            "undecided",
            "limits",
        )
        rows = [{key: getattr(row, key) for key in keys} for row in ROWS]
        common.emit({"kcverify": __version__, "exit_code": 0, "targets": rows})
    else:
        say("\n".join(table([(row.name, row.title, row.file) for row in ROWS], indent=2)))
    return 0


def _option(option: str, reason: str, hint: str) -> Exception:
    from kcverify.diagnostics import input_error

    return input_error("option_invalid", option=option, reason=reason, hint=hint)


def _fits(row: Target, given: Mapping[str, str | None]) -> None:
    """Raises InputError: `option_invalid` for what the target lacks, or has no use for."""
    for part, value in given.items():
        option, hint = _OPTIONS[part]
        if value is None and part in row.needs:
            raise _option(option, f"`{row.name}` needs it", hint)
        if value is not None and part not in (*row.needs, *row.takes):
            raise _option(option, f"`{row.name}` does not read it", "leave it out")
    if row.any_of and all(given[part] is None for part in row.any_of):
        names = " or ".join(_OPTIONS[part][0] for part in row.any_of)
        raise _option(names, f"`{row.name}` needs one of them", _OPTIONS[row.any_of[0]][1])


def _request(row: Target, given: Mapping[str, str | None], name: str | None, words: list[str] | None) -> Request:
    from kcverify.elaborate.form import digest
    from kcverify.exporters import request

    path, store = given["contract"], given["store"]
    chosen, findings = (None, []) if path is None else _contract(path, name, words)
    own = None if chosen is None else digest(chosen)
    checked = None
    if chosen is not None and "findings" in row.needs:
        from kcverify import driver

        checked = driver.check(chosen, driver.limits())
    return request.Request(
        contract=chosen,
        path=path or "",
        findings=findings,
        checked=checked,
        verdicts=None if given["result"] is None else _verdicts(given["result"], own),
        store=store or "",
        events=() if store is None else _events(store, own),
        gateway=request.address(given["gateway"] or request.GATEWAY),
    )


def _contract(path: str, name: str | None, words: list[str] | None) -> tuple[Contract, list[Diagnostic]]:
    """The contract and what was found in its text. Raises InputError with every error of it."""
    from kcverify import driver
    from kcverify.diagnostics import InputError

    loaded = driver.load_source(driver.read_source(path), parameters(words))
    if loaded.report.errors:
        raise InputError(*loaded.report.errors)
    return driver.select(loaded.contracts, name), loaded.report.diagnostics


def _verdicts(path: str, digest: str | None) -> Verdicts:
    from kcverify.delivery.opening import read_bytes
    from kcverify.exporters.verdicts import read

    return read(path, read_bytes(path), digest)


def _events(path: str, digest: str | None) -> tuple[Event, ...]:
    """The events of a store after its chain was checked. Raises InputError: `event_tampered`, `evidence_invalid`."""
    from kcverify.diagnostics import input_error

    try:
        from kcverify.delivery.store import Store
    except ModuleNotFoundError as error:
        raise _missing(error, "transitions", "delivery") from None
    with Store(path) as opened, opened.reading():
        state = opened.verify()
        if digest is not None and state.digest != digest:
            reason = f"it follows the contract {state.digest}, and this one is {digest}"
            raise input_error("evidence_invalid", path=path, reason=reason)
        return tuple(opened.events())


def _telemetry() -> ModuleType:
    """The module that needs the extra. Raises InputError: `extra_missing`."""
    try:
        from kcverify.exporters import otel
    except ModuleNotFoundError as error:
        raise _missing(error, "opentelemetry", "otel") from None
    return otel


def _missing(error: ModuleNotFoundError, package: str, extra: str) -> Exception:
    """`extra_missing` where that library is what is not there, else the error itself."""
    from kcverify.diagnostics import input_error

    if (error.name or "").split(".")[0] not in (package, "google"):
        return error
    return input_error("extra_missing", hint=f"pip install 'kcverify[{extra}]'", package=package)
