"""Commands of promotion: gate, promote, status, history, rollback, rebuild. They need the extra `kcverify[delivery]`."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kcverify.cli import common
from kcverify.cli.common import File, Format, Name, Set, app, emit, note, parameters, wants_json

if TYPE_CHECKING:
    from kcverify.delivery.chain import Event
    from kcverify.delivery.evidence import Evidence
    from kcverify.delivery.gate import Decision
    from kcverify.delivery.state import State
    from kcverify.delivery.store import Store
    from kcverify.elaborate.contract import Contract

Given = Annotated[
    list[str] | None,
    typer.Option(
        "--evidence",
        help="result of measure --format json, or state file of the contract's monitor; repeatable, each on fresh data",
        metavar="FILE",
    ),
]
Db = Annotated[str, typer.Option("--store", help="the store of the candidate", metavar="DB")]
MaybeDb = Annotated[str | None, typer.Option("--store", help="the store of the candidate", metavar="DB")]
Version = Annotated[
    int | None,
    typer.Option("--if-version", help="only if the place has not moved since; the number is in status", metavar="N"),
]
Reason = Annotated[str, typer.Option("--reason", help="why, for the record", metavar="TEXT")]


@app.command(
    epilog="Exit codes: 0 pass; 1 fail; 2 wrong input; 3 inconclusive. Example: kcverify gate deploy.kc --stage offline --evidence result.json"
)
def gate(
    file: File,
    stage: Annotated[
        str | None, typer.Option("--stage", help="the stage; the store's own if not given", metavar="offline|shadow|canary|full")
    ] = None,
    evidence: Given = None, store: MaybeDb = None,
    held: Annotated[
        str | None, typer.Option("--held", help="how long the stage has lasted, where no store knows", metavar="TIME")
    ] = None,
    gateway: Annotated[
        str | None, typer.Option("--gateway", help="ask a running gateway instead", metavar="URL")
    ] = None,
    token_file: Annotated[
        str | None, typer.Option("--token-file", help="its first line is the gateway's admin token", metavar="FILE")
    ] = None,
    contract: Name = None, set: Set = None, format: Format = "text",
) -> int:  # fmt: skip
    """May the candidate leave its stage? From evidence in files, in a store, in a running gateway."""
    _extra()
    from kcverify.delivery import promotion
    from kcverify.output import delivery as output

    as_json = wants_json(format)
    chosen = _contract(file, contract, set)
    if gateway is not None:
        if store is not None or evidence or held is not None:
            raise _option("--gateway", "a gateway decides from its own store", "leave the other options out")
        from kcverify.cli.gateway import gate_of

        return _answer("gate", gate_of(gateway, token_file, chosen, stage), output.gate, as_json)
    if store is None:
        if stage is None:
            raise _option("--stage", "without a store, the stage must be named", "--stage offline")
        if not evidence:
            raise _option("--evidence", "there is nothing to decide from", "--evidence result.json, or --store DB")
        decision = promotion.gate_files(chosen, stage, _evidence(evidence, chosen), _held(held))
    else:
        if held is not None:
            raise _option("--held", "the store knows how long the stage has lasted", "leave it out")
        sources = _evidence(evidence or [], chosen)
        with _store(store) as opened:
            _same_stage(stage, opened.state())
            decision = promotion.gate_store(opened, chosen, sources, _now())
    return _answer("gate", _gated(chosen, decision), output.gate, as_json)


@app.command(
    epilog="Exit codes: 0 promoted; 1 the gate fails; 2 wrong input, or another process was first; 3 the gate is inconclusive. "
    "Example: kcverify promote deploy.kc --store canary.db --evidence result.json"
)
def promote(
    file: File, store: Db, evidence: Given = None,
    to: Annotated[str | None, typer.Option("--to", help="the place to enter; the next one if not given", metavar="PLACE")] = None,
    if_version: Version = None, contract: Name = None, set: Set = None, format: Format = "text",
) -> int:  # fmt: skip
    """Enter the next stage if the gate passes; starts the store in the first stage where there is none."""
    _extra()
    from kcverify.delivery import promotion
    from kcverify.output import delivery as output
    from kcverify.provenance.reading import is_there

    as_json = wants_json(format)
    chosen = _contract(file, contract, set)
    sources = _evidence(evidence or [], chosen)
    fresh = not is_there(store)
    with promotion.start(store, chosen, _now()) as opened:
        if fresh:
            note(f"{store}: started in {opened.state().position}")
        version = opened.state().version if if_version is None else if_version
        found = promotion.promote(opened, chosen, sources, _now(), to=to, version=version)
    answer = _gated(chosen, found.decision)
    answer |= {"promoted": found.moved, "from": found.before.position, "state": found.after.data()}
    return _answer("promote", answer, output.promote, as_json)


@app.command(epilog="Example: kcverify status --store canary.db")
def status(store: Db, format: Format = "text") -> int:
    """Where the candidate is, since when, on which route, and what comes next."""
    _extra()
    from kcverify.output import delivery as output

    as_json = wants_json(format)
    with _store(store) as opened:
        answer = _placed(opened, opened.state())
    return _answer("status", answer, output.status, as_json)


@app.command(epilog="Example: kcverify history --store canary.db --format json")
def history(store: Db, format: Format = "text") -> int:
    """Every event, oldest first, each after its hash was checked; the last line says that all hold."""
    _extra()
    from kcverify.output import delivery as output

    as_json = wants_json(format)
    events: list[dict[str, Any]] = []

    def seen(event: Event) -> None:
        events.append(event.data())
        if not as_json and len(events) >= output.ROWS:
            common.tell(output.history, {"events": events})
            events.clear()

    with _store(store) as opened:
        state = opened.verify(each=seen)
    answer = {"exit_code": 0, "path": store, "events": events, "head": f"{state.seq}:{state.hash}"}
    return _answer("history", answer, output.history, as_json)


@app.command(epilog='Example: kcverify rollback --store canary.db --reason "wrong weights"')
def rollback(
    store: Db,
    to: Annotated[str | None, typer.Option("--to", help="an earlier place; the first one if not given", metavar="PLACE")] = None,
    reason: Reason = "", if_version: Version = None, format: Format = "text",
) -> int:  # fmt: skip
    """Take the candidate back to an earlier stage, where its evidence starts from zero."""
    _extra()
    from kcverify.delivery import promotion
    from kcverify.output import delivery as output

    as_json = wants_json(format)
    with _store(store) as opened:
        before = opened.state()
        version = before.version if if_version is None else if_version
        after = promotion.rollback(opened, _now(), to=to, reason=reason, version=version)
        answer = _placed(opened, after) | {"from": before.position}
    return _answer("rollback", answer, output.rollback, as_json)


@app.command(
    epilog="Exit codes: 0 equal, or repaired; 1 the stored state differs; 2 the store is damaged. Example: kcverify rebuild --store canary.db"
)
def rebuild(
    store: Db,
    repair: Annotated[bool, typer.Option("--repair", help="replace a state that differs")] = False,
    anchor: Annotated[
        str | None,
        typer.Option("--anchor", help="an event as noted elsewhere: status prints it as head", metavar="SEQ:HASH"),
    ] = None,
    format: Format = "text",
) -> int:
    """Check the chain of hashes, replay every event, and compare with the stored state."""
    _extra()
    from kcverify.output import delivery as output

    as_json = wants_json(format)
    with _store(store) as opened:
        state, equal = opened.rebuild(repair=repair, anchor=_anchor(anchor))
        answer = _placed(opened, state) | {"equal": equal, "repaired": repair and not equal}
    answer["exit_code"] = 0 if equal or repair else 1
    return _answer("rebuild", answer, output.rebuild, as_json)


def _answer(command: str, found: Mapping[str, Any], text: Any, as_json: bool) -> int:
    from kcverify import __version__

    if as_json:
        emit({"kcverify": __version__, "command": command, **found})
    else:
        common.tell(text, found)
    return int(found["exit_code"])


def _gated(contract: Contract, decision: Decision) -> dict[str, Any]:
    from kcverify.delivery.promotion import summary
    from kcverify.elaborate.form import digest

    named = {"name": contract.name, "version": contract.version, "digest": digest(contract)}
    return {"exit_code": decision.exit_code, "contract": named, "gate": summary(decision)}


def _placed(store: Store, state: State) -> dict[str, Any]:
    requests, _ = store.evidence(state.run)
    return {
        "exit_code": 0,
        "path": store.path,
        "state": state.data(),
        "next": state.plan.next(state.position),
        "requests": requests,
    }


def _extra() -> None:
    """Raises InputError: `extra_missing` where the machine's library is not installed."""
    from kcverify.diagnostics import input_error

    try:
        import kcverify.delivery.machine  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "transitions":
            raise
        raise input_error("extra_missing", hint="pip install 'kcverify[delivery]'", package="transitions") from None


def _option(option: str, reason: str, hint: str) -> Exception:
    from kcverify.diagnostics import input_error

    return input_error("option_invalid", option=option, reason=reason, hint=hint)


def _contract(file: str, name: str | None, words: list[str] | None) -> Contract:
    from kcverify import driver

    loaded = driver.load_source(driver.read_source(file), parameters(words))
    if loaded.report.errors:
        from kcverify.diagnostics import InputError

        raise InputError(*loaded.report.errors)
    return driver.select(loaded.contracts, name)


def _store(path: str) -> Store:
    from kcverify.delivery.store import Store

    return Store(path)


def _now() -> int:
    return time.time_ns() // 1_000_000


def _same_stage(stage: str | None, state: State) -> None:
    if stage is not None and stage != state.stage:
        raise _option(
            "--stage", f"the store is in the stage `{state.stage}`", f"--stage {state.stage}, or leave it out"
        )


def _held(text: str | None) -> int | None:
    """Milliseconds of a time such as `2 h`. Raises InputError: `option_invalid`."""
    from kcverify import arguments
    from kcverify.catalog.model import Dimension
    from kcverify.catalog.units import BY_NAME

    if text is None:
        return None
    digits, _, unit = text.strip().partition(" ")
    row = BY_NAME.get(unit.strip() or "s")
    seconds = arguments.number("--held", digits)
    if row is None or row.dimension is not Dimension.SECOND or seconds < 0:
        raise _option("--held", f"`{text}` is no time", '--held "2 h"')
    return int(seconds * row.low * 1000)


def _anchor(text: str | None) -> tuple[int, str] | None:
    if text is None:
        return None
    seq, _, value = text.partition(":")
    if not (re.fullmatch("[1-9][0-9]{0,14}", seq) and re.fullmatch("[0-9a-fA-F]{64}", value)):
        raise _option("--anchor", f"`{text}` is not SEQ:HASH", "take it from `kcverify status`")
    return int(seq), value.lower()


_STATE_FILE = b"PK"


def _evidence(paths: Sequence[str], contract: Contract) -> list[Evidence]:
    """Every file as evidence; state files of monitors are merged, and load torch."""
    from kcverify.delivery.evidence import read_json
    from kcverify.delivery.opening import read_bytes
    from kcverify.elaborate.form import digest

    out, states, own = [], [], digest(contract)
    for path in paths:
        content = read_bytes(path)
        if content.startswith(_STATE_FILE):
            states.append(path)
        else:
            out.append(read_json(path, content, contract, own))
    if states:
        out.append(_states(states, contract, own))
    return out


def _states(paths: Sequence[str], contract: Contract, digest: str) -> Evidence:
    from kcverify.diagnostics import input_error

    try:
        from kcverify.delivery.monitors import read_states
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise input_error("extra_missing", package="torch") from None
    return read_states(paths, contract, digest)
