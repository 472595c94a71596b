"""The JSON Schema of the answers about promotion, part of `answers`."""

from __future__ import annotations

from kcverify.docgen.words import COUNT, FLAG, MAYBE, TEXT, Schema, listing, mapping, record, ref

ANSWERS = {
    name: f"kcverify {name} --format json"
    for name in ("gate", "promote", "status", "history", "rollback", "rebuild", "route")
}
"""Definition of each answer -> the command that prints it."""

_TIME: Schema = {"type": "integer", "description": "milliseconds since 1970"}
_LOG: Schema = {"anyOf": [{"type": ["number", "null"]}, {"enum": ["inf", "-inf", "nan"]}]}
_HASH: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_CODE: Schema = {"enum": [0, 1, 3], "description": "0 pass or done; 1 fail, or a state that differs; 3 inconclusive"}


def _answer(command: str, **properties: Schema) -> Schema:
    return record({"kcverify": TEXT, "command": {"const": command}, "exit_code": _CODE, **properties})


def definitions() -> dict[str, Schema]:
    """Answers of the commands and what they share: a gate's decision, a store's state, an event."""
    placed = {"path": TEXT, "state": ref("promotion_state"), "next": MAYBE, "requests": COUNT}
    gated = {"contract": ref("named"), "gate": ref("decision")}
    return {
        "gate": _answer("gate", **gated),
        "promote": _answer("promote", **gated, promoted=FLAG, state=ref("promotion_state"), **{"from": TEXT}),
        "status": _answer("status", **placed),
        "rollback": _answer("rollback", **placed, **{"from": TEXT}),
        "rebuild": _answer("rebuild", **placed, equal=FLAG, repaired=FLAG),
        "history": _answer("history", path=TEXT, events=listing(ref("event")), head=TEXT),
        "route": _answer(
            "route", target=TEXT, table=ref("route_table"), documents=listing({"type": "object"}), applied=listing(TEXT)
        ),
        **_shared(),
    }


def _shared() -> dict[str, Schema]:
    position = record({"name": TEXT, "stage": TEXT, "step": COUNT, "share": MAYBE})
    recover: Schema = {"type": ["integer", "null"]}
    answer = record({"severity": TEXT, "target": TEXT, "dwell": COUNT, "recover": recover})
    texts = dict.fromkeys(("contract", "digest", "position", "route", "cause"), TEXT)
    counts = dict.fromkeys(("seq", "run", "version"), COUNT)
    times = dict.fromkeys(("at", "entered", "stepped", "route_since"), _TIME)
    pair: Schema = {
        "type": "array",
        "prefixItems": [{"type": ["number", "null"]}, COUNT],
        "minItems": 2,
        "maxItems": 2,
    }
    clause = {
        "clause": TEXT, "slice": MAYBE, "severity": TEXT, "decides": FLAG,
        "verdict": {"enum": ["pass", "fail", "inconclusive", "unobservable", "not_enforced"]}, "reason": TEXT,
        "requests": COUNT, "log_e_fail": _LOG, "log_e_pass": _LOG, "log_e_pass_all": _LOG, "log_threshold": {"type": "number"},
    }  # fmt: skip
    return {
        "decision": record(
            {
                "stage": TEXT, "verdict": {"enum": ["pass", "fail", "inconclusive"]}, "reasons": listing(TEXT),
                "waiting": listing(TEXT), "requests": COUNT, "clauses": listing(record(clause)),
            }
        ),
        "promotion_state": record(
            {
                **texts, **counts, **times, "hash": _HASH, "plan": record({"positions": listing(position), "answers": listing(answer)}),
                "carried": mapping(pair), "decided": mapping({"enum": ["pass", "fail"]}), "used": mapping(COUNT), "paused": FLAG,
            }
        ),
        "route_table": record(
            {
                **dict.fromkeys(("stage", "position", "route", "reason", "salt", "mirror"), TEXT), "version": COUNT, "run": COUNT,
                "weights": mapping(TEXT), "health": mapping({"type": "number"}),
            }
        ),
        "event": record(
            {"seq": COUNT, "kind": TEXT, "at": _TIME, "body": {"type": "object"}, "previous": _HASH, "hash": _HASH}
        ),
    }  # fmt: skip
