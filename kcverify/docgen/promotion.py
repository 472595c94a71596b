"""The JSON Schema of the answers about promotion, part of `answers`."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

ANSWERS = {
    name: f"kcverify {name} --format json"
    for name in ("gate", "promote", "status", "history", "rollback", "rebuild", "route")
}
"""Definition of each answer -> the command that prints it."""

_TEXT: Schema = {"type": "string"}
_MAYBE: Schema = {"type": ["string", "null"]}
_FLAG: Schema = {"type": "boolean"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_TIME: Schema = {"type": "integer", "description": "milliseconds since 1970"}
_LOG: Schema = {"anyOf": [{"type": ["number", "null"]}, {"enum": ["inf", "-inf", "nan"]}]}
_HASH: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_CODE: Schema = {"enum": [0, 1, 3], "description": "0 pass or done; 1 fail, or a state that differs; 3 inconclusive"}


def _object(properties: Schema) -> Schema:
    return {"type": "object", "required": list(properties), "properties": properties}


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def _map(item: Schema) -> Schema:
    return {"type": "object", "additionalProperties": item}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _answer(command: str, **properties: Schema) -> Schema:
    return _object({"kcverify": _TEXT, "command": {"const": command}, "exit_code": _CODE, **properties})


def definitions() -> dict[str, Schema]:
    """Answers of the commands and what they share: a gate's decision, a store's state, an event."""
    placed = {"path": _TEXT, "state": _ref("promotion_state"), "next": _MAYBE, "requests": _COUNT}
    gated = {"contract": _ref("named"), "gate": _ref("decision")}
    return {
        "gate": _answer("gate", **gated),
        "promote": _answer("promote", **gated, promoted=_FLAG, state=_ref("promotion_state"), **{"from": _TEXT}),
        "status": _answer("status", **placed),
        "rollback": _answer("rollback", **placed, **{"from": _TEXT}),
        "rebuild": _answer("rebuild", **placed, equal=_FLAG, repaired=_FLAG),
        "history": _answer("history", path=_TEXT, events=_list(_ref("event")), head=_TEXT),
        "route": _answer(
            "route", target=_TEXT, table=_ref("route_table"), documents=_list({"type": "object"}), applied=_list(_TEXT)
        ),
        **_shared(),
    }


def _shared() -> dict[str, Schema]:
    position = _object({"name": _TEXT, "stage": _TEXT, "step": _COUNT, "share": _MAYBE})
    recover: Schema = {"type": ["integer", "null"]}
    answer = _object({"severity": _TEXT, "target": _TEXT, "dwell": _COUNT, "recover": recover})
    texts = dict.fromkeys(("contract", "digest", "position", "route", "cause"), _TEXT)
    counts = dict.fromkeys(("seq", "run", "version"), _COUNT)
    times = dict.fromkeys(("at", "entered", "stepped", "route_since"), _TIME)
    pair: Schema = {
        "type": "array",
        "prefixItems": [{"type": ["number", "null"]}, _COUNT],
        "minItems": 2,
        "maxItems": 2,
    }
    clause = {
        "clause": _TEXT, "slice": _MAYBE, "severity": _TEXT, "decides": _FLAG,
        "verdict": {"enum": ["pass", "fail", "inconclusive", "unobservable", "not_enforced"]}, "reason": _TEXT,
        "requests": _COUNT, "log_e_fail": _LOG, "log_e_pass": _LOG, "log_e_pass_all": _LOG, "log_threshold": {"type": "number"},
    }  # fmt: skip
    return {
        "decision": _object(
            {
                "stage": _TEXT, "verdict": {"enum": ["pass", "fail", "inconclusive"]}, "reasons": _list(_TEXT),
                "waiting": _list(_TEXT), "requests": _COUNT, "clauses": _list(_object(clause)),
            }
        ),
        "promotion_state": _object(
            {
                **texts, **counts, **times, "hash": _HASH, "plan": _object({"positions": _list(position), "answers": _list(answer)}),
                "carried": _map(pair), "decided": _map({"enum": ["pass", "fail"]}), "used": _map(_COUNT), "paused": _FLAG,
            }
        ),
        "route_table": _object(
            {
                **dict.fromkeys(("stage", "position", "route", "reason", "salt", "mirror"), _TEXT), "version": _COUNT, "run": _COUNT,
                "weights": _map(_TEXT), "health": _map({"type": "number"}),
            }
        ),
        "event": _object(
            {"seq": _COUNT, "kind": _TEXT, "at": _TIME, "body": {"type": "object"}, "previous": _HASH, "hash": _HASH}
        ),
    }  # fmt: skip
