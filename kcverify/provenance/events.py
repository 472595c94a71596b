"""Events that can be replayed: one request with everything that decided its numbers, and the signature over it."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from kcverify.diagnostics import InputError, Report, input_error
from kcverify.elaborate import elaborate_file
from kcverify.elaborate.contract import Contract
from kcverify.elaborate.form import digest, pair
from kcverify.forms.read import read
from kcverify.forms.version import LANGUAGE
from kcverify.provenance.fingerprint import Fingerprint, digest_of, of_data
from kcverify.provenance.reading import read_bytes, strict
from kcverify.source import Source

FORMAT = "kcverify-event/1"
SIDES = ("reference", "candidate")
_MOST = 1 << 24

Event = dict[str, Any]
"""Plain data: `signature` over `replay`, the contract, both sides, the request, the time, and what was recorded."""


@dataclass(frozen=True)
class Recorded:
    """What the run found: the clause and slice, the worst value with its row and token, SHA-256 of both sides' logits."""

    clause: str
    slice: str | None
    value: Any
    row: int | None
    token: int | None
    logits: tuple[str, str]


@dataclass(frozen=True)
class Call:
    """The call that scored the request: token ids of every request of the batch, which of them it is, the first row's
    number in recorded files, the states of the generators before it, seed, device and sampling temperature."""

    inputs: Sequence[Sequence[int]]
    place: int
    start: int
    rng: Mapping[str, bytes]
    seed: int
    device: str
    temperature: str

    def data(self, identity: Mapping[str, str], logits: Mapping[str, str]) -> dict[str, Any]:
        """What the signature is over."""
        return {
            "identity": dict(identity), "inputs": [list(ids) for ids in self.inputs], "place": self.place,
            "shapes": [len(self.inputs), len(self.inputs[0])], "start": self.start, "logits": dict(logits),
            "rng": {name: base64.b64encode(state).decode() for name, state in sorted(self.rng.items())},
            "seed": str(self.seed), "device": self.device,
            "sampling": {"sampler": "full_softmax", "temperature": self.temperature},
        }  # fmt: skip


def signature_of(replay: Mapping[str, Any]) -> str:
    """The replay signature: SHA-256 over identity, inputs, shapes, seed, generator state, batch composition, sampling."""
    return digest_of(replay)


def contract_form(contract: Contract) -> dict[str, Any]:
    """The contract as a JSON document that elaborates to the same digest."""
    return {"language": LANGUAGE, "contracts": [pair(contract)]}


def event_of(
    contract: Contract, call: Call, found: Mapping[str, Fingerprint], names: Sequence[str], logits: Sequence[str],
    request: Mapping[str, Any], recorded: Recorded, at: int,
) -> Event:  # fmt: skip
    """An event of one request. `names` and `logits` (SHA-256 of a recorded file, empty for a kernel) are by side."""
    replay = call.data({side: found[side].identity for side in SIDES}, dict(zip(SIDES, logits, strict=True)))
    return {
        "format": FORMAT,
        "signature": signature_of(replay),
        "replay": replay,
        "contract": contract_form(contract),
        "digest": digest(contract),
        "sides": {s: {"name": n, "fingerprint": found[s].data()} for s, n in zip(SIDES, names, strict=True)},
        "request": dict(request),
        "at": at,
        "recorded": {
            "clause": recorded.clause, "slice": recorded.slice, "value": recorded.value, "row": recorded.row,
            "token": recorded.token, "logits": dict(zip(SIDES, recorded.logits, strict=True)),
        },
    }  # fmt: skip


def lines(events: Sequence[Event]) -> str:
    """Events as JSON lines."""
    return "".join(json.dumps(event, ensure_ascii=True, allow_nan=False) + "\n" for event in events)


@dataclass(frozen=True)
class Opened:
    """An event that was read and checked: its contract, its fingerprints, and the data itself."""

    data: Event
    contract: Contract
    found: Mapping[str, Fingerprint]
    call: Call


def read_event(path: str, line: int | None = None, clause: str | None = None) -> Opened:
    """The event of a file: its only one, the one of a line (from 1), or the first of a clause.

    Raises InputError: `event_invalid`, `file_unreadable`, `file_empty`, `option_invalid`.
    """
    found = _events(path, read_bytes(path))
    if line is not None:
        chosen = [event for number, event in found if number == line]
    elif clause is not None:
        chosen = [e for _, e in found if isinstance(e.get("recorded"), dict) and e["recorded"].get("clause") == clause]
    else:
        chosen = [event for _, event in found]
    if not chosen or (len(chosen) > 1 and clause is None):
        told = f"{path} holds {len(found)} events" + (
            f", none of them {clause or f'on line {line}'}" if not chosen else ""
        )
        raise input_error("option_invalid", option="EVENT", reason=told, hint="name one with --clause or --line")
    return _opened(path, chosen[0])


def _events(path: str, content: bytes) -> list[tuple[int, Event]]:
    try:
        whole = strict(content)
        return [(1, _inner(path, whole))]
    except ValueError:
        pass
    out = []
    for number, raw in enumerate(content.split(b"\n"), 1):
        if raw.strip():
            try:
                out.append((number, _inner(path, strict(raw))))
            except ValueError as error:
                raise _invalid(path, f"line {number}: {error}") from None
    return out


def _inner(path: str, value: object) -> Event:
    """The event itself, or that under `replay_event` of a log entry."""
    if isinstance(value, dict) and isinstance(value.get("replay_event"), dict):
        value = value["replay_event"]
    if isinstance(value, dict) and isinstance(value.get("no_replay"), str):
        raise _invalid(path, f"its entry holds no event: {value['no_replay']}")
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise _invalid(path, f"it has not the format {FORMAT}")
    return value


def _invalid(path: str, reason: str) -> InputError:
    return input_error("event_invalid", path=path, reason=reason)


def _opened(path: str, data: Event) -> Opened:
    try:
        if data["signature"] != signature_of(data["replay"]):
            raise _invalid(path, "its replay signature is not that of its content")
        found = {side: of_data(data["sides"][side]["fingerprint"], path) for side in SIDES}
        if any(data["replay"]["identity"][side] != found[side].identity for side in SIDES):
            raise _invalid(path, "its identities are not those of its fingerprints")
        call = _call(data["replay"])
        recorded, request = data["recorded"], data["request"]
        texts = (recorded["clause"], request["request_id"], *(data["sides"][s]["name"] for s in SIDES))
        if not isinstance(recorded["value"], int | float | str | None) or not isinstance(recorded["slice"], str | None):
            raise TypeError("a worst value that is no number, or a slice that is no name")
        if not all(isinstance(recorded[key], int | None) for key in ("row", "token")):
            raise TypeError("a row or a token that is no whole number")
        hashes = [recorded["logits"][side] for side in SIDES]
        if not all(isinstance(t, str) for t in (*texts, *hashes)) or not isinstance(data["at"], int):
            raise TypeError("a name that is no text, or a time that is no whole number")
        if "\0" in "".join(map(str, texts)):
            raise ValueError("a name with a character that no name has")
        if not isinstance(request["fields"], dict) or not isinstance(request["tags"], list):
            raise TypeError("a request without `fields` and `tags`")
        if not all(isinstance(one, str) for one in request["tags"]):
            raise TypeError("a tag that is no text")
        if not all(isinstance(one, str | int | float) for one in request["fields"].values()):
            raise TypeError("a trace field that is neither text nor a number")
        instant(data["at"])
        contract = _contract(path, data["contract"])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, binascii.Error) as error:
        raise _invalid(path, f"it cannot be read ({type(error).__name__}: {error})") from None
    if digest(contract) != data["digest"]:
        raise _invalid(path, "its contract is not the one of its digest")
    return Opened(data, contract, found, call)


def _call(replay: Mapping[str, Any]) -> Call:
    """The call of an event. Raises KeyError, TypeError or ValueError for anything else."""
    inputs = replay["inputs"]
    flat = [i for ids in inputs for i in ids]
    if not flat or len({len(ids) for ids in inputs}) != 1 or len(flat) > _MOST:
        raise ValueError("its inputs are no batch of requests of one length")
    if not all(type(i) is int and -1 <= i < 2**31 for i in flat):
        raise ValueError("its inputs are no token ids")
    if replay["shapes"] != [len(inputs), len(inputs[0])]:
        raise ValueError("its shapes are not those of its inputs")
    place, start = replay["place"], replay["start"]
    if type(place) is not int or type(start) is not int or not 0 <= place < len(inputs) or start < 0:
        raise ValueError("the place of the request is not in its batch")
    rng = {str(name): base64.b64decode(state, validate=True) for name, state in replay["rng"].items()}
    seed, device, heat = replay["seed"], replay["device"], replay["sampling"]["temperature"]
    if not all(isinstance(text, str) for text in (seed, device, heat)):
        raise TypeError("a seed, a device or a temperature that is no text")
    if set(rng) != ({"cpu", "cuda"} if device.partition(":")[0] == "cuda" else {"cpu"}):
        raise ValueError("the states of its random generators are not those of its device")
    if str(int(seed)) != seed or not -(2**63) <= int(seed) < 2**64:
        raise ValueError("its seed is no whole number of 64 bits")
    if not 0 < float(heat) < math.inf or repr(float(heat)) != heat:
        raise ValueError("its temperature is no positive number in its shortest form")
    return Call(inputs, place, start, rng, int(seed), device, heat)


def _contract(path: str, form: object) -> Contract:
    report = Report()
    found = elaborate_file(read(Source("event.json", json.dumps(form)), report), report, parameters={})
    if report.errors or len(found.contracts) != 1:
        reason = report.errors[0].message if report.errors else "it holds no contract"
        raise _invalid(path, f"its contract is not usable: {reason}")
    return found.contracts[0]


def instant(milliseconds: int) -> datetime:
    """A time in UTC. Raises ValueError or OverflowError for one that no calendar has."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


def text_of(milliseconds: int) -> str:
    """A time as RFC 3339 writes it, to the second."""
    return instant(milliseconds).strftime("%Y-%m-%dT%H:%M:%SZ").rjust(len("2000-01-01T00:00:00Z"), "0")
