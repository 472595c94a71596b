"""Corpus of measurements: one entry a contract, kernel and machine; entries of two machines compared."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from kcverify import __version__
from kcverify.diagnostics import input_error

LARGEST = 64 << 20
"""Bytes of an entry that are read."""
FORMAT = "kcverify-conformance-entry/1"
KEYS = (
    "format", "kcverify", "contract", "class", "operation", "kernel", "declared", "machine", "tolerance", "measurement",
    "readings", "calibration", "findings", "verdict", "reproduce",
)  # fmt: skip
"""Keys of an entry; the published schema is `docs/answers.schema.json`, definition `conformance_entry`."""


VERDICTS = ("within_tolerance", "violation", "under_specified", "inconclusive")
_ROUNDED = Fraction(1, 2**50)
_EXACT = re.compile(r"[0-9]{1,4000}(/[0-9]{1,4000})?")
"""Without an exponent: one of ten characters can stand for gigabytes."""
_TEXTS = ("class", "operation", "kernel", "verdict")


def entry(found: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of the answer of `conformance run`."""
    worst = found["worst"]
    file, name = found["contract"]["file"], found["contract"]["name"]
    command = ["kcverify", "conformance", "run", file, "--contract", name, "--kernel", found["kernel"]]
    evidence, device = found.get("evidence"), found["declared"].get("device", "cpu")
    if evidence and not evidence["met"]:
        command += ["--trials", str(max(found["trials"] * len(found["distributions"]), 1))]
    if device != "cpu" and not found["kernel"].endswith(".cuda"):
        command += ["--device", device]
    return {
        "format": FORMAT, "kcverify": __version__, "contract": dict(found["contract"]), "class": found["class"],
        "operation": found["operation"], "kernel": found["kernel"], "declared": dict(found["declared"]),
        "machine": dict(found["machine"]), "tolerance": None if worst is None else worst["tolerance"],
        "measurement": None if worst is None else {k: worst[k] for k in ("name", "value", "slack", "where")},
        "readings": list(found["readings"]), "calibration": list(found["calibration"]), "findings": list(found["findings"]),
        "verdict": found["verdict"], "reproduce": shlex.join(command), "seed": found["seed"],
        "distributions": list(found["distributions"]), "evidence": evidence, "signatures": list(found.get("signatures", [])),
    }  # fmt: skip


def load(path: str) -> dict[str, Any]:
    """An entry of a file. Raises InputError: `entry_invalid`."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise input_error("entry_invalid", file=path, reason=f"it is larger than {LARGEST >> 20} MiB")
        found = json.loads(content, parse_constant=_no_number, object_pairs_hook=_once)
    except OSError as error:
        raise input_error("entry_invalid", file=path, reason=(error.strerror or str(error)).lower()) from error
    except (ValueError, RecursionError) as error:
        raise input_error("entry_invalid", file=path, reason=f"no JSON: {error}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise input_error("entry_invalid", file=path, reason=f"its `format` is not {FORMAT}")
    missing = [key for key in KEYS if key not in found]
    nested = [k for k in ("contract", "machine") if not isinstance(found.get(k), dict)]
    if missing or nested or not isinstance(found["readings"], list):
        raise input_error("entry_invalid", file=path, reason=f"without {', '.join([*missing, *nested]) or 'readings'}")
    texts = {k: found[k] for k in _TEXTS} | {f"contract.{k}": found["contract"].get(k, "") for k in ("name", "digest")}
    wrong = [key for key, value in texts.items() if not isinstance(value, str)]
    if wrong:
        raise input_error("entry_invalid", file=path, reason=f"its {wrong[0]} is no text")
    said = _contradiction(found["readings"], found["verdict"]) or _elsewhere(found)
    if said:
        raise input_error("entry_invalid", file=path, reason=said)
    return found


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number of JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found


def _contradiction(readings: list[Any], verdict: str) -> str:
    """Why verdicts do not follow from the numbers beside them, empty where they do: an entry that was edited says so itself."""
    if verdict not in VERDICTS:
        return f"its verdict is none of {', '.join(VERDICTS)}"
    for i, one in enumerate(readings):
        try:
            allowed = _follows(one["value"], one["slack"], one["tolerance"]["exact"])
            if one["verdict"] not in allowed or not isinstance(one["name"], str):
                return f"reading {i + 1} does not say what follows from its numbers: {min(allowed)}"
            if not _rounded(one["tolerance"]):
                return f"the tolerance of reading {i + 1} is another number than the fraction beside it"
        except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError):
            return f"reading {i + 1} has no name, value, slack and tolerance"
    if len({one["name"] for one in readings}) < len(readings):
        return "two readings have one name"
    worst = {one["verdict"] for one in readings}
    if verdict == "within_tolerance" and worst - {verdict}:
        return f"it is {verdict}, but a reading is {min(worst - {verdict})}"
    if "violation" in worst and verdict == "inconclusive":
        return "it is inconclusive, but a reading is violation"
    return ""


def _rounded(tolerance: Mapping[str, Any]) -> bool:
    """Whether the double of a tolerance is that of its fraction."""
    exact, value = tolerance["exact"], tolerance["value"]
    return value is None if exact is None else type(value) in (int, float) and value == float(Fraction(exact))


def _elsewhere(found: Mapping[str, Any]) -> str:
    """Why the measurement and the tolerance at the head of an entry are not those of a reading, empty where they are."""
    seen, tolerance = found["measurement"], found["tolerance"]
    if seen is None and tolerance is None and not found["readings"]:
        return ""
    keys = ("name", "value", "slack", "where")
    if isinstance(seen, dict) and any(
        r["tolerance"] == tolerance and all(k in seen and k in r and r[k] == seen[k] for k in keys)
        for r in found["readings"]
    ):
        return ""
    return "its measurement and tolerance are those of no reading"


def _follows(value: float | None, slack: float, exact: str | None) -> set[str]:
    """Verdicts of a reading; two where the slack, rounded to a double here, may decide."""
    if exact is None:
        return {"under_specified"}
    if not isinstance(exact, str) or not _EXACT.fullmatch(exact):
        raise ValueError("its tolerance is no fraction")
    limit = Fraction(exact)
    if value is None:
        return {"violation"}
    found = set()
    for room in (Fraction(slack) * f if limit else Fraction(0) for f in (1 - _ROUNDED, 1 + _ROUNDED)):
        beyond, within = Fraction(value) - room > limit, Fraction(value) + room <= limit
        found.add("violation" if beyond else "within_tolerance" if within else "inconclusive")
    return found


def _limit(reading: Mapping[str, Any]) -> Any:
    return reading["tolerance"].get("value") if reading else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _slugs(one: Mapping[str, Any]) -> list[str]:
    found = one["findings"] if isinstance(one["findings"], list) else []
    return sorted(str(f.get("slug")) for f in found if isinstance(f, dict))


def compare(a: Mapping[str, Any], b: Mapping[str, Any], names: tuple[str, str]) -> dict[str, Any]:
    """What differs between two entries of one contract and kernel. Raises InputError: `entry_invalid`."""
    for key in ("class", "operation", "kernel"):
        if a[key] != b[key]:
            raise input_error("entry_invalid", file=names[1], reason=f"its {key} is {b[key]}, not {a[key]}")
    if a["contract"].get("name") != b["contract"].get("name"):
        raise input_error("entry_invalid", file=names[1], reason="it is about another contract")
    digests = {a["contract"].get("digest"), b["contract"].get("digest")} - {None}
    if len(digests) > 1:
        raise input_error("entry_invalid", file=names[1], reason="it is about another text of the contract")
    pairs = [
        (f"{part}: {k}", x.get(k), y.get(k))
        for part in ("machine", "declared")
        for x, y in [(_mapping(a.get(part)), _mapping(b.get(part)))]
        for k in sorted({*x, *y})
    ]
    pairs += [(key, a.get(key), b.get(key)) for key in ("seed", "distributions")]
    left, right = ({str(r.get("name")): r for r in x["readings"] if isinstance(r, dict)} for x in (a, b))
    for name in dict.fromkeys((*left, *right)):
        one, other = left.get(name, {}), right.get(name, {})
        pairs.append((name, one.get("value"), other.get("value")))
        pairs.append((f"{name}: tolerance", _limit(one), _limit(other)))
    pairs += [("findings", _slugs(a), _slugs(b)), ("verdict", a["verdict"], b["verdict"])]
    rows = [{"name": n, "a": x, "b": y} for n, x, y in pairs if x != y]
    return {
        "contract": a["contract"].get("name"), "kernel": a["kernel"], "same_verdict": a["verdict"] == b["verdict"],
        "differences": rows,
    }  # fmt: skip
