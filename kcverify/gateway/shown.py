"""What the dashboard shows of a status: sections as HTML text, made from plain values alone."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from functools import lru_cache
from typing import Any

import jinja2
from markupsafe import Markup

from kcverify.delivery.state import key
from kcverify.elaborate.contract import Clause, Contract
from kcverify.emit import live, svg
from kcverify.emit.plan import PlannedClause, plan
from kcverify.emit.report import environment
from kcverify.emit.visible import inert
from kcverify.gateway.boundaries import boundary, curve, judged, log_threshold_pass
from kcverify.routing.health import HIGH, LOW
from kcverify.routing.split import ORDER

SECTIONS = {
    "state": "Now", "cells": "Clauses", "witnesses": "Worst witnesses", "unseen": "Not seen", "traffic": "Upstreams",
    "events": "Events",
}  # fmt: skip
"""Parts of the page that are drawn anew, in their order, with their titles."""
_RECENT = 12
_GROUPS, _WITNESSES = 12, 48
"""Cells whose witnesses are on the page, and witnesses of all of them: the page is drawn anew every other second."""
_NAMED = 12
"""Cells in trouble that are named above the table."""
_VERDICTS = ("fail", "unobservable", "inconclusive", "pass")
_STYLE = {"candidate": "pass", "guarded": "inconclusive", "safe": "fail", "stopped": "fail"}


def sections(contract: Contract, status: Mapping[str, Any]) -> dict[str, str]:
    """HTML text by name. `status` is what `/admin/status` gives; it may come from anywhere, and stays text."""
    module = _pages().get_template("dashboard_parts.html.j2").make_module({"s": status, **_view(contract, status)})
    return {name: str(getattr(module, f"part_{name}")()) for name in SECTIONS}


def page(contract: Contract, status: Mapping[str, Any], nonce: str, *, signed: bool) -> str:
    """The whole page with everything in place; `signed`: a session that can be left."""
    found = sections(contract, status)
    drawn = {name: Markup(text) for name, text in found.items()}
    return _pages().get_template("dashboard.html.j2").render(
        title=title(status), nonce=nonce, sections=drawn, signed=signed, now=status["now"], contract=status["contract"],
        kcverify=status["kcverify"], names=list(SECTIONS.items()),
    )  # fmt: skip


def login(nonce: str, *, wrong: bool) -> str:
    """The page that asks for the token."""
    return _pages().get_template("dashboard_login.html.j2").render(nonce=nonce, wrong=wrong)


def title(status: Mapping[str, Any]) -> str:
    """Of the window."""
    return f"{inert(status['contract']['name'])}: {status['position']}, route {status['route']['route']}"


def summary(status: Mapping[str, Any]) -> str:
    """One sentence that changes only when something worth telling has."""
    words = Counter(str(row["verdict"]) for row in status["evidence"])
    told = ", ".join(f"{words[word]} {word}" for word in _VERDICTS if words[word]) or "no evidence yet"
    paused = "paused, " if status["paused"] else ""
    return f"Stage {status['position']}, {paused}route {status['route']['route']}; {told}"


@lru_cache(maxsize=1)
def _pages() -> jinja2.Environment:
    pages = environment()
    pages.filters.update(clock=clock, iso=iso, span=span, percent=percent, first_request=first_request)
    return pages


def first_request(models: Sequence[str]) -> str:
    """The body of a first request, quoted for a shell: an upstream chose the model's name, and a reader pastes it."""
    return shlex.quote(json.dumps({"model": (models or ["MODEL"])[0], "prompt": "Hello", "max_tokens": 8}))


def percent(value: object) -> Markup:
    """A share, given as a number or an exact fraction, as `<data>` with its text in percent."""
    share = float(Fraction(str(value)))
    return Markup('<data value="{}">{} %</data>').format(value, svg.number(100 * share))


def clock(at: object) -> str:
    """Time of day of milliseconds since 1970, UTC."""
    found = _moment(at)
    return "" if found is None else f"{found:%H:%M:%S}"


def iso(at: object) -> str:
    """ISO 8601 of milliseconds since 1970, UTC."""
    found = _moment(at)
    return "" if found is None else f"{found:%Y-%m-%dT%H:%M:%SZ}"


def span(milliseconds: object) -> str:
    """A length of time in two units at most."""
    seconds = max(int(_number(milliseconds) or 0), 0) // 1000
    parts = [(seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "min"), (seconds % 60, "s")]
    first = next((i for i, (n, _) in enumerate(parts) if n), 3)
    return " ".join(f"{n} {unit}" for n, unit in parts[first : first + 2] if n) or "0 s"


def _moment(at: object) -> datetime | None:
    number = _number(at)
    try:
        return None if number is None else datetime.fromtimestamp(number / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def _number(value: object) -> float | None:
    """A float, infinities included, of a number or of its text."""
    try:
        return None if value is None or isinstance(value, bool) else float(str(value))
    except ValueError:
        return None


def _view(contract: Contract, status: Mapping[str, Any]) -> dict[str, Any]:
    cells = _cells(contract, status)
    words = [str(c["verdict"]) for c in cells]
    trouble = sorted(filter(_troubled, cells), key=lambda c: (c["verdict"] != "fail", _or_1(c["health"])))
    groups, left_out = _witnesses(status, cells)
    never = [(n, r) for n, reasons in status["unobservable"].items() for r, count in reasons.items() if not count]
    lost = [(n, r, c) for n, reasons in status["unobservable"].items() for r, c in reasons.items() if c]
    weights = {side: float(_number(status["route"]["shares"].get(side)) or 0.0) for side in ORDER}
    weights = {side: weight for side, weight in weights.items() if weight}
    events = [_event(e) for e in reversed(status["events"])]
    return {
        "cells": cells, "trouble": trouble[:_NAMED], "more_trouble": max(0, len(trouble) - _NAMED),
        "tally": {word: words.count(word) for word in _VERDICTS if word in words},
        "places": _places(status),
        "route_style": _STYLE.get(str(status["route"]["route"]), "unknown"),
        "weights": live.shares("now", weights, "Shares of traffic"),
        "witnesses": groups, "left_out": left_out,
        "never": never, "lost": lost, "unwatched": list(status["not_watched"].items()),
        "recent": events[:_RECENT], "older": events[_RECENT:],
    }  # fmt: skip


def _places(status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Steps of the contract, with where the candidate is; `settled` behind the last."""
    names = [*status["places"], "settled"]
    here = names.index(status["position"]) if status["position"] in names else -1
    return [
        {"name": name, "state": "done" if i < here else "here" if i == here else "ahead"}
        for i, name in enumerate(names)
    ]


def _cells(contract: Contract, status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a cell that traffic can show, in the order of the contract."""
    evidence = {key(row["clause"], row["slice"]): row for row in status["evidence"]}
    health = {row["cell"]: row for row in status["health"]}
    history = status["history"]
    never = {name for name, reasons in status["unobservable"].items() if 0 in reasons.values()}
    out: list[dict[str, Any]] = []
    for planned in plan(contract).clauses:
        clause = planned.clause
        names = [(s, key(clause.name, s)) for s in clause.slices or (None,)]
        seen = [_plain(evidence[k]) for _, k in names if k in evidence]
        rules = dict(zip((key(clause.name, r["slice"]) for r in seen), judged(clause, seen), strict=True))
        for slice, name in names:
            if name in never and name not in evidence and name not in health:
                continue
            found = _plain(evidence[name]) if name in evidence else None
            rule = rules.get(name)
            out.append(
                {
                    "id": f"cell-{len(out)}", "name": clause.name, "slice": slice, "severity": clause.severity,
                    "text": clause.text, "first": not out or out[-1]["name"] != clause.name, "verdict": found["verdict"] if found else "inconclusive",
                    "reason": found["reason"] if found else "no request was measured for it in this run",
                    "evidence": found, "rule": rule.rule if rule else "",
                    "confidence": float(clause.confidence),
                    **_decision(len(out), planned, found, rule.log_threshold_fail if rule else None),
                    **_health(len(out), name, health.get(name), history),
                }
            )  # fmt: skip
    return out


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with infinities as numbers again."""
    return {**row, **{n: _number(row[n]) for n in ("log_e_fail", "log_e_pass")}}


def _decision(index: int, planned: PlannedClause, row: Mapping[str, Any] | None, fail: float | None) -> dict[str, Any]:
    """Meters of the log e-values on their way to the thresholds, and the counts between their boundaries."""
    empty: dict[str, Any] = {"meters": [], "counts": None, "clean": None}
    if row is None:
        return empty
    certify = log_threshold_pass(planned.clause)
    sides = (("fail", row["log_e_fail"], fail), ("pass", row["log_e_pass"], certify))
    meters = [_meter(index, side, value, limit) for side, value, limit in sides if value is not None and limit]
    if planned.evidence == "maximum" and row["needed"]:
        drawn = svg.meter(f"clean-{index}", row["requests"], row["needed"], "Clean requests", "pass")
        return {**empty, "clean": None if row["exceeding"] else drawn}
    counts = None
    if planned.evidence == "binary" and fail is not None and 0.0 < row["limit"] < 1.0:
        counts = _counts(index, planned.clause, row, fail, certify)
    return {"meters": meters, "counts": counts, "clean": None}


def _meter(index: int, side: str, value: float, limit: float) -> dict[str, Any]:
    drawn = Markup("")
    if math.isfinite(value):
        drawn = svg.meter(f"evidence-{index}-{side}", value, limit, f"Evidence to {side}", side)
    return {"side": side, "value": value, "limit": limit, "meter": drawn}


def _counts(index: int, clause: Clause, row: Mapping[str, Any], fail: float, certify: float) -> dict[str, Any]:
    """S of n units against the table of whole numbers that decides."""
    tokens = clause.unit == "token"
    units = row["rows"] if tokens else row["requests"]
    exceeding = row["exceeding"] if tokens else row["exceeding_requests"]
    edges = curve(units, row["needed"], row["limit"], fail, certify)
    here = boundary(units, row["limit"], fail, certify)
    drawn = live.plane(f"{index}", units, exceeding, edges, "Counts between their boundaries")
    return {
        "units": units,
        "exceeding": exceeding,
        "unit": "tokens" if tokens else "requests",
        "drawn": drawn,
        "here": here,
    }


def _health(
    index: int, name: str, row: Mapping[str, Any] | None, history: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Health now, over the last minutes, and how far its detector is from what it waits for."""
    if row is None:
        return {"health": None, "spark": Markup(""), "watch": None}
    known = [_number(point["health"].get(name)) for point in history]
    values = [v for v in known if v is not None]
    said = f"health {svg.number(row['health'], 4)} now"
    if values:
        said += f"; between {svg.number(min(values), 4)} and {svg.number(max(values), 4)} in the last {span(1000 * len(known))}"
    drawn = live.spark(f"{index}", known, f"Health of {name}", said, (LOW, HIGH))
    back = row["tripped"]
    value, limit = (_number(row[f"{'return_' if back else ''}log_{x}"]) for x in ("r", "threshold"))
    watch = {"back": back, "value": value, "limit": limit}
    return {"health": row["health"], "spark": drawn, "watch": watch, "watched": row}


def _troubled(cell: Mapping[str, Any]) -> bool:
    return bool(cell["verdict"] == "fail" or _or_1(cell["health"]) < HIGH)


def _or_1(health: float | None) -> float:
    return 1.0 if health is None else health


def _witnesses(status: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Worst requests by cell, each with its tokens one by one, and of how many cells none is shown.

    Of more cells than are shown those that fail come first, then those of the least health.
    """
    known = {key(c["name"], c["slice"]): (c["verdict"] != "fail", _or_1(c["health"])) for c in cells}
    names = list(status["witnesses"])
    chosen = set(sorted(names, key=lambda name: known.get(name, (True, 1.0)))[:_GROUPS])
    groups: list[dict[str, Any]] = []
    for name in names:
        if name in chosen:
            found = status["witnesses"][name]
            rows = [{**w, "tokens": _tokens(w)} for w in found[: max(1, _WITNESSES // len(chosen))]]
            groups.append({"cell": name, "index": len(groups), "rows": rows, "all": len(found)})
    return groups, len(names) - len(chosen)


def _tokens(w: Mapping[str, Any]) -> list[dict[str, Any]]:
    texts = w.get("texts") or [None] * len(w["tokens"])
    columns = zip(w["tokens"], texts, w["reference"], w["candidate"], w["tv_low"], w["tv_high"], strict=True)
    return [
        {
            "at": w["first"] + i, "id": t, "text": x or None, "reference": p, "candidate": q, "low": low, "high": high,
            "worst": w["first"] + i == w["position"], "heat": _heat(low),
        }
        for i, (t, x, p, q, low, high) in enumerate(columns)
    ]  # fmt: skip


def _heat(tv: object) -> int:
    """0 to 4: how far a position has surely drifted."""
    value = _number(tv)
    return 4 if value is None or not math.isfinite(value) else sum(value >= step for step in (0.01, 0.05, 0.15, 0.4))


def _event(event: Mapping[str, Any]) -> dict[str, Any]:
    """An event in a sentence: what moved, and why; the rest of it as text."""
    body = dict(event["body"])
    reason = body.pop("reason", "")
    to = body.get("to") or body.get("what") or body.get("severity") or ""
    rest = json.dumps(body, ensure_ascii=False, sort_keys=True, indent=1) if body else ""
    return {"seq": event["seq"], "at": event["at"], "kind": event["kind"], "to": to, "reason": reason, "rest": rest}
