"""Runs one request again on both kernels, in the batch and state of its event, and compares."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from kcverify.diagnostics import Diagnostic, diagnosis, input_error
from kcverify.measure.data import Request
from kcverify.measure.figures import Tally
from kcverify.measure.run import Rows, side_rows
from kcverify.measure.session import feed, load_monitor, translated
from kcverify.measure.sides import FILE_ENDINGS, FileSide, Side, open_pair
from kcverify.provenance import enforce
from kcverify.provenance.events import SIDES, Opened, instant, text_of
from kcverify.provenance.fields import ABSENT
from kcverify.provenance.fingerprint import Fingerprint, differences
from kcverify.provenance.kernels import SHIPPED
from kcverify.provenance.sides import of_side
from kcverify.provenance.watch import digest_of_rows, restore, sampler
from kcverify.runtime.errors import MonitorInputError
from kcverify.runtime.report import build_report

_SKEW = timedelta(minutes=5)
"""By how much the clocks of two machines may differ."""


@dataclass(frozen=True)
class Setting:
    """What the caller gives: sides by role where they are named again, their declared fingerprints, the model's file,
    and the time in milliseconds since 1970."""

    now: int
    sides: Mapping[str, str] = field(default_factory=dict)
    declared: Mapping[str, Fingerprint] = field(default_factory=dict)
    gguf: Path | None = None


def check_window(event: Opened, now: int) -> None:
    """Raise InputError after the end of the contract's `replay within` (`event_expired`), and for an event that another
    clock puts more than `_SKEW` later than now (`event_invalid`): its window would never end here."""
    if instant(event.data["at"]) > instant(now) + _SKEW:
        reason = f"it is of {text_of(event.data['at'])}, and here it is {text_of(now)}"
        raise input_error(
            "event_invalid", path="the event", reason=reason, hint="set the clock, or say the time with --now"
        )
    watched = event.contract.observability
    window = None if watched is None else watched.replay
    if window is None:
        return
    at, length = event.data["at"], timedelta(seconds=float(window))
    if instant(now) > instant(at) + length:
        end = at + int(window * 1000)
        shown = f"{window} s" if window % 3600 else f"{window / 3600} h"
        raise input_error("event_expired", at=text_of(at), window=shown, contract=event.contract.name, end=text_of(end))


def _names(event: Opened, setting: Setting) -> list[str]:
    """The sides. A function is only run where it is named on the command line: an event is a file that others wrote."""
    out = []
    for side in SIDES:
        own = str(event.data["sides"][side]["name"])
        name = setting.sides.get(side, own)
        shipped = name.partition(":")[0] in SHIPPED or Path(name).suffix in FILE_ENDINGS
        if not shipped and side not in setting.sides:
            reason = f"the event names the function {name}, and running it is your decision"
            raise input_error("option_invalid", option=f"--{side}", reason=reason, hint=f"--{side} {shlex.quote(name)}")
        out.append(name)
    return out


def _identities(event: Opened, sides: tuple[Side, Side], setting: Setting) -> None:
    """Raise InputError (`replay_identity`) where a side is not what the event says."""
    faults: list[Diagnostic] = []
    heat = float(event.call.temperature)
    for role, side in zip(SIDES, sides, strict=True):
        own = of_side(side, sampler(heat), "", setting.gguf)
        declared = setting.declared.get(role)
        here = own if declared is None else own.overlaid(declared)
        if declared is not None:
            enforce.void(enforce.identity_faults(role, own, declared, f"--fingerprint-{role}"))
        for row in differences(here, event.found[role]):
            if row.identity:
                holes = {"field": row.name, "side": role, "found": row.first, "expected": row.second}
                hint = f"declare it with --fingerprint-{role}" if row.first == ABSENT else ""
                faults.append(diagnosis("replay_identity", holes, hint=hint))
        logits, expected = side.fingerprint.get("logits", ""), event.data["replay"]["logits"][role]
        if logits != expected:
            holes = {"field": "the file of logits", "side": role, "found": logits or "no file", "expected": expected}
            faults.append(diagnosis("replay_identity", holes))
    enforce.void(faults)


def _fits(event: Opened, sides: tuple[Side, Side]) -> None:
    """Raise InputError (`event_invalid`) for token ids and rows that a side does not have."""
    ids = [i for one in event.call.inputs for i in one]
    for role, side in zip(SIDES, sides, strict=True):
        if isinstance(side, FileSide):
            if event.call.start + len(ids) > side.length:
                reason = f"{side.name} of the {role} has {side.length} rows, and the event is about later ones"
                raise input_error("event_invalid", path="the event", reason=reason)
            continue
        odd = next((i for i in ids if i < 0 or (side.vocabulary is not None and i >= side.vocabulary)), None)
        if odd is not None:
            reason = f"the token {odd} is not in the vocabulary of the {role}"
            raise input_error("event_invalid", path="the event", reason=reason)


def _rows(event: Opened, sides: tuple[Side, Side]) -> Rows:
    """Both sides' rows of the whole batch, computed as the run did: the reference first."""
    call = event.call
    own = event.data["request"]
    request = Request(str(own["request_id"]), tuple(call.inputs[call.place]), frozenset(own["tags"]), own["fields"])
    batch = tuple(
        request if i == call.place else Request(f"batch-{i}", tuple(ids)) for i, ids in enumerate(call.inputs)
    )
    ids = torch.tensor([list(one) for one in call.inputs])
    try:
        restore(call.rng, call.device)
    except (RuntimeError, TypeError, ValueError) as error:
        reason = f"the state of its random generator is not usable ({error})"
        raise input_error("event_invalid", path="the event", reason=reason) from None
    with torch.no_grad():
        first = side_rows(sides[0], ids, call.start)
        second = side_rows(sides[1], ids, call.start).to(first.device)
    count, length = ids.shape
    following = torch.cat((ids[:, 1:], ids.new_full((count, 1), -1)), 1)
    names = [one.request_id for one in batch for _ in range(length)]
    index = torch.arange(count).repeat_interleave(length)
    return Rows(first, second, batch, index, names, torch.arange(length).repeat(count), following.flatten())


def replay(event: Opened, source: str, setting: Setting) -> dict[str, Any]:
    """Replay an event; `source` is the monitor of its contract. The answer as plain data.

    Refused before any number is computed: an event that is too old, sides of another identity. Raises InputError:
    `event_expired`, `replay_identity`, `option_invalid`, and those of the sides.
    """
    check_window(event, setting.now)
    names = _names(event, setting)
    torch.manual_seed(event.call.seed)
    sides = open_pair(*names, device=event.call.device, gguf=setting.gguf)
    _identities(event, sides, setting)
    _fits(event, sides)
    rows = _rows(event, sides)
    if rows.reference.shape != rows.candidate.shape:
        raise input_error("vocabulary_width", reference=rows.reference.shape[-1], candidate=rows.candidate.shape[-1])
    mine = rows.request_index == event.call.place
    recorded = event.data["recorded"]
    equal = {
        side: digest_of_rows(logits, mine) == recorded["logits"][side]
        for side, logits in zip(SIDES, (rows.reference, rows.candidate), strict=True)
    }
    tally = Tally()
    tally.add(rows.reference[mine], rows.candidate[mine], float(event.call.temperature))
    worst = _worst(event, source, rows)
    value = worst["value"]
    same = all(worst[key] == recorded[key] for key in ("value", "row", "token"))
    return {
        "event": {
            "signature": event.data["signature"], "at": text_of(event.data["at"]), "contract": event.contract.name,
            "request": event.data["request"]["request_id"], "clause": recorded["clause"], "slice": recorded["slice"],
            "row": recorded["row"], "token": recorded["token"],
        },
        "sides": dict(zip(SIDES, names, strict=True)),
        "bitwise": {**equal, "pair": tally.bit_exact},
        "value": value,
        "recorded": recorded["value"],
        "reproduced": same and all(equal.values()),
        "drift": tally.summary(),
        "exit_code": 0 if same and all(equal.values()) else 1,
    }  # fmt: skip


def _worst(event: Opened, source: str, rows: Rows) -> Mapping[str, Any]:
    """The worst value of the event's clause on its request with its row and token, by the contract's own monitor; None
    for each where it has none."""
    recorded, mine = event.data["recorded"], rows.request_index == event.call.place
    monitor = load_monitor(source, float(event.call.temperature))
    one = Rows(
        rows.reference[mine], rows.candidate[mine], rows.requests, rows.request_index[mine],
        [name for name, own in zip(rows.request_ids, mine.tolist(), strict=True) if own],
        rows.positions[mine], rows.next_ids[mine],
    )  # fmt: skip
    try:
        feed(monitor, event.contract, one)
    except MonitorInputError as error:
        raise translated(error) from None
    for clause in build_report(monitor)["clauses"]:
        if (clause["name"], clause["slice"]) == (recorded["clause"], recorded["slice"]):
            return clause["max"] or _NOWHERE
    return _NOWHERE


_NOWHERE = {"value": None, "row": None, "token": None}
