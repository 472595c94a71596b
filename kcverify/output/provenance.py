"""What the commands on provenance print: fingerprints, their differences, replays, attestations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kcverify.output.style import paint, table

_WIDTH = 100


def fingerprint(found: Mapping[str, Any], identity: tuple[str, ...], color: bool) -> str:
    """Every field, those of the identity first."""
    lines = [paint(f"identity {found['identity']}", "bold", color)]
    for names, title in ((identity, ""), (tuple(n for n in found["fields"] if n not in identity), "context")):
        if title:
            lines.append(paint(f"{title}  {found[title]}", "bold", color))
        lines += table([(name, part) for name in names for part in _parts(found["fields"][name])], indent=2)
    return "\n".join(lines)


def _parts(value: str | Mapping[str, str]) -> list[str]:
    """The value in lines of bounded length."""
    parts = [value] if isinstance(value, str) else [f"{k}: {v}" for k, v in sorted(value.items())]
    return [part if len(part) <= _WIDTH else f"{part[: _WIDTH - 3]}..." for part in parts]


def comparison(found: Mapping[str, Any], color: bool) -> str:
    """The fields that differ, and whether the identity is the same."""
    rows = [
        (d["digest"], f"{d['field']} {d['part']}".rstrip(), d["first"][:_WIDTH], d["second"][:_WIDTH])
        for d in found["differences"]
    ]
    word = paint("same identity", "pass", color) if found["identical"] else paint("another identity", "fail", color)
    told = f"{word}: {len(rows)} differing parts" if rows else f"{word}: every field agrees"
    return "\n".join([*table([("digest", "field", "first", "second"), *rows] if rows else [], indent=2), told])


def replay(found: Mapping[str, Any], color: bool) -> str:
    """What was replayed, whether bit for bit, and the drift of the one request."""
    event, bits = found["event"], found["bitwise"]
    where = f" on {event['slice']}" if event["slice"] else ""
    place = "" if event["row"] is None else f", position {event['row']}"
    lines = [
        f"request {event['request']}{place} of {event['contract']}, {event['clause']}{where}, {event['at']}",
        f"  {found['sides']['candidate']} against {found['sides']['reference']}",
    ]
    for side in ("reference", "candidate"):
        word = paint("bit for bit as in the event", "pass", color) if bits[side] else paint("other bits", "fail", color)
        lines.append(f"  {side}: {word}")
    if bits["pair"]:
        lines.append("  both kernels give the same bits")
    else:
        drift = found["drift"]
        rows = [(n, *(_number(f[k]) for k in ("mean", "p99.9", "max"))) for n, f in drift["figures"].items()]
        lines += table([("drift", "mean", "p99.9", "max"), *rows], indent=2, right=frozenset((1, 2, 3)))
        lines.append(f"  {drift['rows']} rows, {drift['bit_exact_rows']} bit-exact, {drift['invalid']} invalid")
    lines.append(f"  worst {event['clause']}: {_number(found['value'])}, in the event {_number(found['recorded'])}")
    if all(found["bitwise"][side] for side in ("reference", "candidate")) and found["value"] == found["recorded"]:
        lines[-1] += "" if found["reproduced"] else ", at another position or token"
    word = paint("reproduced", "pass", color) if found["reproduced"] else paint("not reproduced", "fail", color)
    return "\n".join([*lines, word])


def _number(value: Any) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def attested(found: Mapping[str, Any]) -> str:
    """What was signed, and where it stands."""
    rows = [(s["annotations"]["kind"], s["name"], s["digest"]["sha256"][:16]) for s in found["subjects"]]
    contract = found["contract"]
    head = (
        f"{found['output']}: {contract['name']} {contract['version']} {found['verdict']}, valid until {found['until']}"
    )
    return "\n".join([head, *table(rows, indent=2), f"  signed with the key {found['key'][:16]}"])


def verified(found: Mapping[str, Any], color: bool) -> str:
    """Accepted or rejected, with every finding; what is attested, what is proved, what was not compared."""
    word = paint("accepted", "pass", color) if found["accepted"] else paint("rejected", "fail", color)
    lines = [f"{found['file']}: {word}"]
    for d in found["diagnostics"]:
        lines += [f"  {d['code']} {d['slug']}: {d['message']}", paint(f"    {d['hint']}", "dim", color)]
    told = found["attested"]
    if told is None or not found["accepted"]:
        return "\n".join(lines)
    contract = told["contract"]
    lines.append(
        f"  {contract['name']} {contract['version']} {paint(told['verdict'], told['verdict'], color)}, valid from {told['validity']['from']} until {told['validity']['until']}"
    )
    lines += table([(s["kind"], s["name"], s["sha256"][:16]) for s in told["subjects"]], indent=2)
    lines += [f"  checked again: {line.strip()}" for line in found["proved"]]
    lines += [f"  not compared: {what}" for what in found["not_compared"]]
    return "\n".join(lines)
