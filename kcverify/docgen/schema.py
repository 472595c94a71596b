"""The JSON Schema of the YAML and JSON forms, built from the tables of the language."""

from __future__ import annotations

from typing import Any

from kcverify.catalog import metrics
from kcverify.catalog.model import Family
from kcverify.elaborate.assumptions import FORMS, ROLES, SAMPLERS, STORAGE
from kcverify.elaborate.clauses import SEVERITIES
from kcverify.elaborate.policy import ACTIONS, FINGERPRINT, STAGES
from kcverify.forms.clauses import KEYS
from kcverify.forms.read import SECTIONS
from kcverify.forms.version import LANGUAGE

Schema = dict[str, Any]

_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_TEXT: Schema = {"type": "string", "pattern": '^[^"\\r\\n]*$'}


def schema() -> Schema:
    """The schema (draft 2020-12) of a contract file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kcverify contract",
        "description": "Contracts for kernels that run the same model; numbers are exact and written as in the .kc form.",
        **_object(
            {
                "$schema": {"type": "string"},
                "language": {"enum": [LANGUAGE], "description": "version of the contract language"},
                "use": {"type": "array", "items": _TEXT, "description": "files whose contracts may be extended"},
                "contracts": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/contract"}},
            },
            "language",
            "contracts",
        ),
        "$defs": _definitions(),
    }


def _object(properties: Schema, *required: str) -> Schema:
    out: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return {**out, "required": list(required)} if required else out


def _named(value: Schema) -> Schema:
    """A mapping from names to values of one kind."""
    return {"type": "object", "propertyNames": {"pattern": f"^{_NAME}$"}, "additionalProperties": value}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _definitions() -> Schema:
    number = (
        "a number with its unit, such as 0.05, 0.1%, 2^-8, 120 ms or 0.05 * temperature; `?` where a hole may stand"
    )
    families = [family for family in Family if family is not Family.CLAIM]
    return {
        "name": {"type": "string", "pattern": f"^{_NAME}$"},
        "number": {"type": ["string", "number"], "description": number},
        "range": {
            "description": "[low, high], or a half-open range as text: \"[0.6, 0.8)\"",
            "oneOf": [
                {"type": "string"},
                {"type": "array", "minItems": 2, "maxItems": 2, "items": _ref("number")},
            ],
        },
        "names": {"oneOf": [_ref("name"), {"type": "array", "minItems": 1, "items": _ref("name")}]},
        "contract": {"if": {"properties": {"kind": {"const": "kernel"}}, "required": ["kind"]},
                     "then": _ref("kernel"), "else": _ref("pair")},
        "pair": _pair([family.value for family in families]),
        "kernel": _kernel(),
        "assume": _object({name: _assumption(form.kind, name) for name, form in FORMS.items()}
                          | {"independent": {"oneOf": [{"const": "tokens"}, {"const": ["tokens"]}]}}),
        **{family.value: _clause(family) for family in families},
        "guarantee": _claim(),
        "observability": _object({
            "trace": _ref("names"), "replay": _ref("number"),
            "fingerprint": {"oneOf": [{"enum": list(FINGERPRINT)}, {"type": "array", "items": {"enum": list(FINGERPRINT)}}]},
        }),
        "action": _object({
            "action": {"enum": list(ACTIONS)}, "false_alarm_every": _ref("number"), "dwell": _ref("number"),
            "recover": _ref("number"),
        }, "action"),
        "stage": _object({
            "data": _TEXT, "min": _ref("number"), "mirror": _ref("number"), "for": _ref("number"), "hold": _ref("number"),
            "traffic": {"oneOf": [_ref("number"), {"type": "array", "minItems": 1, "items": _ref("number")}]},
            "stable": _ref("number"),
        }),
    }  # fmt: skip


def _pair(families: list[str]) -> Schema:
    role = _object({"name": _ref("name"), "kernel": _TEXT}, "name", "kernel")
    return _object({
        "kind": {"const": "pair"}, "name": _ref("name"), "version": _version(), "extends": _ref("name"),
        "description": _TEXT, "params": _named(_ref("number")), "pair": _object(dict.fromkeys(ROLES, role)),
        "assume": _ref("assume"), "slices": _named({"type": "string", "description": "a predicate over trace fields"}),
        **{family: _named(_ref(family)) for family in families}, "guarantee": _named(_ref("guarantee")),
        "split": _named(_ref("number")), "observability": _ref("observability"),
        "escalate": _object(dict.fromkeys(SEVERITIES, _ref("action"))),
        "promote": _object(dict.fromkeys(STAGES, _ref("stage"))),
    }, "name")  # fmt: skip


def _version() -> Schema:
    return {"type": ["string", "number"], "description": "version of the contract, in quotes"}


def _kernel() -> Schema:
    lines = {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    return _object({
        "kind": {"const": "kernel"}, "name": _ref("name"), "version": _version(), "description": _TEXT,
        "class": {"type": "string", "pattern": "^C-[A-Z]{3}-[0-9]{2}$"},
        **dict.fromkeys(SECTIONS, lines),
    }, "kind", "name")  # fmt: skip


def _assumption(kind: str, name: str) -> Schema:
    """Schema of one assumption by the form in which it is written."""
    if name in ("sampler", "storage"):
        words = SAMPLERS if name == "sampler" else STORAGE
        return {"anyOf": [{"enum": list(words)}, {"type": "string"}]} if name == "sampler" else {"enum": list(words)}
    forms: list[Schema] = [_ref("number")]
    if kind == "<=":
        forms.append(_object({"at_most": _ref("number")}, "at_most"))
    if kind == "range":
        forms = [_ref("range"), _ref("number"), _object({"in": _ref("range")}, "in")]
    return {"anyOf": forms}


def _metric(*families: Family) -> Schema:
    """A metric with its arguments; the names are there for completion."""
    rows = [row for row in metrics.ROWS if row.family in families]
    return {"anyOf": [{"enum": [row.name for row in rows]}, {"type": "string"}]}


_FIELDS: Schema = {
    "statistic": {"type": "string", "pattern": "^(max|mean|rate|p[0-9]+([.][0-9]+)?)$"},
    "at_most": _ref("number"), "at_least": _ref("number"), "in": _ref("range"), "except": _ref("number"),
    "slices": _ref("names"), "confidence": _ref("number"), "over": _ref("number"),
    "unit": {"enum": ["request", "token"]}, "when": _named(_ref("range")), "severity": {"enum": list(SEVERITIES)},
}  # fmt: skip


def _limited(fields: Schema, *required: str) -> Schema:
    """A clause states exactly one limit."""
    return {**_object(fields, *required), "oneOf": [{"required": [key]} for key in ("at_most", "at_least", "in")]}


def _clause(family: Family) -> Schema:
    fields = {key: _metric(family) if key == "metric" else _FIELDS[key] for key in KEYS}
    return _limited(fields, "metric", "severity")


def _claim() -> Schema:
    left_out = ("severity", "confidence", "over", "unit")
    families = (Family.CLAIM, Family.NUMERICAL, Family.STATISTICAL)
    fields = {k: _metric(*families) if k == "metric" else _FIELDS[k] for k in KEYS if k not in left_out}
    return _limited(fields, "metric")
