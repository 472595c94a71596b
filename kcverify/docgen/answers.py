"""The JSON Schema of what commands print as JSON: one schema, one definition for each answer."""

from __future__ import annotations

from typing import Any

from kcverify.codes import Severity
from kcverify.docgen import allocation, attribution, conformance, exporters, promotion, provenance, serving
from kcverify.elaborate.refine import Kind
from kcverify.output.catalogue import TABLES
from kcverify.output.inspect import WORTHS
from kcverify.prove.verdict import Status

Schema = dict[str, Any]

ANSWERS = {
    "check": "kcverify check --format json",
    "derive": "kcverify derive --format json",
    "bounds": "kcverify bounds --given … --format json",
    "budgets": "kcverify bounds --inverse … --format json",
    "comparison_of_bounds": "kcverify bounds --compare published --format json",
    "compile": "kcverify compile --format json",
    "measure": "kcverify measure --format json",
    "certificates": "kcverify certificate check --format json",
    "diff": "kcverify diff --format json",
    "inspect": "kcverify inspect FILE --format json",
    "inspect_shards": "kcverify inspect FOLDER --format json",
    "compare": "kcverify compare A B --format json",
    **promotion.ANSWERS,
    **conformance.ANSWERS,
    **allocation.ANSWERS,
    **exporters.ANSWERS,
    **provenance.ANSWERS,
    **serving.ANSWERS,
    "catalogue": "kcverify catalogue --format json",
}
"""Definition of each answer -> the command that prints it."""

MEASURED = ("pass", "fail", "inconclusive", "unobservable", "not_enforced")
"""Verdicts of a measured clause."""

COMPARED = ("comparable", "partly_comparable", "not_comparable", "unobservable", "incomplete")
"""Verdicts of a comparison of two streams."""

_TEXT: Schema = {"type": "string"}
_MAYBE: Schema = {"type": ["string", "null"]}
_FLAG: Schema = {"type": "boolean"}
_NUMBER: Schema = {"type": "number"}
_MAYBE_NUMBER: Schema = {"type": ["number", "null"]}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_MAYBE_COUNT: Schema = {"type": ["integer", "null"], "minimum": 0}
_READING: Schema = {
    "anyOf": [{"type": ["number", "null"]}, {"enum": ["inf", "-inf", "nan"]}],
    "description": "a number, or the text of what JSON has no number for",
}
_DIGEST: Schema = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
_CODE: Schema = {
    "enum": [0, 1, 2, 3, 4],
    "description": "0 proved or passed; 1 refuted, failed or an error; 2 wrong input; 3 unknown or inconclusive; 4 a fault",
}
_VERDICT: Schema = {"enum": [status.value for status in Status]}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def _map(item: Schema) -> Schema:
    """An object with names of the contract's as its keys."""
    return {"type": "object", "additionalProperties": item}


def _or_null(item: Schema) -> Schema:
    return {"anyOf": [item, {"type": "null"}]}


def _object(required: Schema, **optional: Schema) -> Schema:
    """An object with these keys; later versions may add others."""
    return {"type": "object", "required": list(required), "properties": {**required, **optional}}


def _headed(optional: Schema | None = None, /, **required: Schema) -> Schema:
    """An answer with the version that gave it and the exit code of the command."""
    return _object({"kcverify": _TEXT, "exit_code": _CODE, **required}, **(optional or {}))


def answers() -> Schema:
    """One schema for all answers. A version of kcverify may add keys, and removes none within a major version."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kcverify answers",
        "description": "What commands print as JSON: " + "; ".join(f"{v} ({k})" for k, v in ANSWERS.items()) + ".",
        "oneOf": [_ref(name) for name in ANSWERS],
        "$defs": {
            **_answers(),
            **_proofs(),
            **_working(),
            **_measured(),
            **attribution.definitions(),
            **conformance.definitions(),
            **allocation.definitions(),
            **exporters.definitions(),
            **_tables(),
            **_differences(),
            **_streams(),
            **promotion.definitions(),
            **provenance.definitions(),
            **serving.definitions(),
        },
    }


def _answers() -> dict[str, Schema]:
    line = {"lemma": _MAYBE, "unit": _TEXT}
    return {
        "check": _headed(files=_list(_ref("file"))),
        "file": _object({"file": _TEXT, "diagnostics": _list(_ref("diagnostic")), "contracts": _list(_ref("contract"))}),
        "derive": _headed(
            contract=_TEXT, budgets=_list(_ref("budget")), diagnostics=_list(_ref("diagnostic")),
            check=_or_null(_ref("contract")),
        ),
        "bounds": {"minProperties": 1, **_map(_object({"bound": _MAYBE_NUMBER, "attained": _MAYBE_NUMBER, **line}, reason=_TEXT))},
        "budgets": {
            "minProperties": 1,
            **_map(_object({"budget": _MAYBE_NUMBER, "exact": _MAYBE, "lemmas": _list(_TEXT), "unit": _TEXT}, reason=_TEXT)),
        },
        "comparison_of_bounds": _object(
            {
                "span": _TEXT, "region": _map({"type": ["string", "null"]}),
                "bounds": _map(_object({"statement": _TEXT, "published": _MAYBE_NUMBER, "tight": _NUMBER})),
            }
        ),
        "compile": _headed(
            contract=_ref("named"), output=_MAYBE, lines=_COUNT, guarantees=_map(_VERDICT), monitor=_MAYBE,
        ),
        "measure": _headed(
            {"causes": _ref("causes"), "by_layer": _ref("by_layer"), "shards": _ref("shards"), "provenance": _ref("provenance")},
            contract=_object({"name": _TEXT, "version": _TEXT, "description": _TEXT, "digest": _DIGEST}),
            pair=_object({"reference": _TEXT, "candidate": _TEXT}), data={"type": "object"}, complete=_FLAG,
            verdict={"enum": ["pass", "fail", "inconclusive"]}, guarantees=_list(_ref("verdict")), measured=_ref("measured"),
            measured_guarantees=_object({"confidence": _TEXT, "about": _TEXT, "statements": _list(_ref("measured_guarantee"))}),
            fingerprints=_object({"reference": {"type": "object"}, "candidate": {"type": "object"}}),
        ),
        "certificates": _headed(
            certificates=_list(_object({"file": _TEXT, "accepted": _FLAG, "readable": _FLAG, "lines": _list(_TEXT)})),
        ),
        "diff": _object({"kcverify": _TEXT, "exit_code": {"enum": [0, 1]}, "contracts": _list(_ref("comparison"))}),
        "named": _object({"name": _TEXT, "version": _TEXT, "digest": _DIGEST}),
    }  # fmt: skip


def _proofs() -> dict[str, Schema]:
    """Verdicts on guarantees, their chains and findings."""
    route = {
        "clauses": _list(_TEXT), "bound": _TEXT, "bound_exact": _TEXT, "threshold": _TEXT, "slack": _TEXT, "holds": _FLAG,
        "counted": _FLAG, "note": _TEXT, "by_formulas": _MAYBE, "chain": _list(_ref("link")),
    }  # fmt: skip
    link = {
        "quantity": _TEXT, "statistic": {"enum": ["max", "mean", "response"]}, "relation": {"enum": ["<=", ">="]}, "value": _TEXT,
        "exact": _TEXT, "unit": _TEXT, "exception": _TEXT, "lemma": _TEXT, "detail": _TEXT, "source": _TEXT,
    }  # fmt: skip
    return {
        "contract": _object(
            {
                "name": _TEXT, "version": _TEXT, "digest": _DIGEST, "verdicts": _list(_ref("verdict")), "filled": _map(_TEXT),
                "findings": _list(_ref("diagnostic")), "not_enforced": _list(_TEXT), "claims_nothing": _FLAG,
                "exit_code": _CODE,
            },
            explained=_ref("explained"), second_solver=_list(_ref("opinion")), certificate=_list(_ref("coverage")),
        ),
        "diagnostic": _object(
            {
                "code": {"type": "string", "pattern": "^KC[0-9]{3}$"}, "slug": _TEXT,
                "severity": {"enum": [severity.value for severity in Severity]}, "message": _TEXT, "place": _MAYBE,
                "hint": _TEXT, "related": _list(_object({"place": _TEXT, "label": _TEXT})),
            }
        ),
        "verdict": _object(
            {
                "name": _TEXT, "claim": _TEXT, "slice": _MAYBE, "verdict": _VERDICT, "step": _TEXT,
                "code": {"type": ["string", "null"], "pattern": "^KC[0-9]{3}$"}, "slug": _MAYBE, "bound": _MAYBE,
                "threshold": _MAYBE, "slack": _MAYBE, "binding": _list(_TEXT), "chain": _list(_ref("link")),
                "routes": _list(_object(route)), "reason": _TEXT, "would_do": _list(_TEXT), "core": _list(_TEXT),
                "provable_at": _MAYBE, "assumed": _list(_TEXT), "counterexample": _or_null(_ref("counterexample")),
                "place": _TEXT,
            }
        ),
        "link": _object(link, **{"from": _list(_COUNT)}),
        "counterexample": _object(
            {
                "story": _TEXT, "temperature": _TEXT, "horizon": _COUNT, "reference_logits": _list(_TEXT),
                "candidate_logits": _list(_TEXT), "exceeding_share": _TEXT, "reference": _list(_TEXT), "candidate": _list(_TEXT),
                "readings": _list(_object({"clause": _TEXT, "quantity": _TEXT, "value": _TEXT})),
            }
        ),
    }  # fmt: skip


def _working() -> dict[str, Schema]:
    """What is shown beyond the verdicts: minimal proofs, budgets of holes, the second solver."""
    sets = _object({"sets": _list(_list(_TEXT)), "complete": _FLAG})
    return {
        "explained": _object(
            {
                "proofs": _list(
                    _object(
                        {
                            "name": _TEXT, "slice": _MAYBE, "core": _list(_TEXT), "room": _map(_TEXT),
                            "routes": _list(
                                _object({"bound": _TEXT, "threshold": _TEXT, "slack": _TEXT, "chain": _list(_ref("link"))})
                            ),
                        },
                        proving=sets,
                    )
                )
            },
            contradictory=sets,
        ),
        "coverage": _object(
            {
                "guarantee": _TEXT, "slice": _MAYBE, "verdict": _VERDICT, "certified": _FLAG, "reason": _MAYBE, "rules": _list(_TEXT),
            }
        ),
        "opinion": _object({"guarantee": _TEXT, "slice": _MAYBE, "word": _TEXT}),
        "budget": _object(
            {
                "clause": _TEXT, "metric": _TEXT, "relation": {"enum": ["<=", ">="]}, "decimal": _TEXT, "exact": _TEXT,
                "double": _NUMBER, "unit": _TEXT, "binding": _TEXT, "share": _TEXT,
                "demands": _list(_object({"guarantee": _TEXT, "value": _TEXT, "chain": _list(_ref("link"))})),
                "one_digit_more_breaks_it_by": _TEXT,
            }
        ),
    }  # fmt: skip


def _measured() -> dict[str, Schema]:
    """The report of a monitor."""
    evidence = {
        "kind": {"enum": ["none", "binary", "share", "mean", "maximum", "reading", "paired"]}, "requests": _MAYBE_COUNT, "rows": _MAYBE_COUNT,
        "exceeding_rows": _MAYBE_COUNT, "exceeding_requests": _MAYBE_COUNT, "observed": _READING, "log_e_fail": _READING,
        "log_e_pass": _READING, "log_threshold_fail": _MAYBE_NUMBER, "log_threshold_pass": _MAYBE_NUMBER,
        "at_most": _MAYBE_NUMBER, "p_fail": _MAYBE_NUMBER, "p_pass": _MAYBE_NUMBER, "many_slices": _MAYBE,
        "requests_needed": _MAYBE_COUNT,
    }  # fmt: skip
    request: Schema = {"type": ["string", "integer"]}
    worst = _object(
        {"value": _READING, "request": request, "row": {"type": ["integer", "null"]}, "token": {"type": ["integer", "null"]}},
        position=_COUNT, token_text=_TEXT, context=_object({"before": _TEXT, "after": _TEXT}),
    )  # fmt: skip
    names = ("name", "family", "metric", "statistic", "text", "severity", "unit", "reason")
    told = ("name", "claim", "sentence", "reason")
    return {
        "shards": _object(
            {
                "total": _COUNT, "measured": _COUNT, "matched_by": {"enum": ["name", "number", "order"]},
                "lost": _list(_object({"shard": _TEXT, "reason": _TEXT})),
            }
        ),
        "measured_guarantee": _object(
            {
                **dict.fromkeys(told, _TEXT), "slice": _MAYBE, "status": {"const": "measured"}, "bound": _MAYBE, "relation": _MAYBE,
                "quantity": _MAYBE, "exception": _MAYBE, "premises": _list({"type": "object"}), "chain": _list({"type": "object"}),
                "by": _list(_TEXT), "proved": _MAYBE, "proved_verdict": _MAYBE,
            }
        ),
        "measured": _object(
            {
                "contract": _TEXT, "digest": _DIGEST, "temperature": _NUMBER, "rows": _map(_COUNT), "requests": _COUNT,
                "looks": {"enum": ["any number of looks", "one look"]},
                "clauses": _list(_ref("measured_clause")),
                "histograms": _map(_object({"edges": _list(_READING), "counts": _list(_COUNT)})), "notes": _list(_TEXT),
            }
        ),
        "measured_clause": _object(
            {
                **dict.fromkeys(names, _TEXT), "slice": _MAYBE, "limit": _object({"lower": _MAYBE_NUMBER, "upper": _MAYBE_NUMBER}),
                "exception": _NUMBER, "confidence": _NUMBER, "verdict": {"enum": list(MEASURED)},
                "evidence": _object(evidence, observed_is=_MAYBE), "max": _or_null(worst), "quantiles": _map(_list(_READING)),
            }
        ),
    }  # fmt: skip


def _tables() -> dict[str, Schema]:
    """The tables of `catalogue`, each a list of rows."""
    row: Schema = {"type": "object"}
    tables: dict[str, Any] = {name: _list(row) for name in TABLES}
    one = {"minProperties": 2, "maxProperties": 1 + len(tables)}
    return {"catalogue": {**_object({"kcverify": _TEXT}, **tables, exit_code={"not": {}}), **one}}


def _differences() -> dict[str, Schema]:
    return {
        "comparison": _object(
            {"old": _MAYBE, "new": _MAYBE, "old_digest": _MAYBE, "new_digest": _MAYBE, "changes": _list(_ref("change"))}
        ),
        "change": _object(
            {
                "kind": {"enum": [kind.value for kind in Kind]}, "weaker": _FLAG, "what": _TEXT, "name": _TEXT, "detail": _TEXT,
                "old": _MAYBE, "new": _MAYBE,
            }
        ),
    }  # fmt: skip


def _streams() -> dict[str, Schema]:
    """What a file of an engine or a trainer is."""
    counts = {
        "requests": _COUNT, "tokens": _COUNT, "counted": _COUNT, "vocabulary": _MAYBE_COUNT, "vocabulary_at_least": _MAYBE_COUNT,
        "top_k": _or_null(_list(_COUNT)), "shortest": _MAYBE_COUNT, "longest": _COUNT,
    }  # fmt: skip
    carried = _list(_object({"field": _TEXT, "what": _TEXT}))
    placeholders = _list(_object({"value": _TEXT, "count": _COUNT, "status": _TEXT, "means": _TEXT}))
    sums = {"size": _COUNT, "requests": _COUNT, "tokens": _COUNT, "counted": _COUNT, "statuses": _map(_COUNT)}
    part = _object({"value": _TEXT, "count": _COUNT, "shards": _list(_TEXT)})
    suspects = _list(_object({"count": _COUNT, "what": _TEXT}))
    metrics = _list(_object({"metric": _TEXT, "worth": {"enum": list(WORTHS)}, "inputs": _TEXT}))
    return {
        "inspect": _headed(
            file=_TEXT, format=_TEXT, title=_TEXT, container=_TEXT, source=_TEXT, size=_COUNT, counts=_object(counts),
            carries=carried, lacks=carried, statuses=_map(_COUNT), notes=_list(_TEXT), assumptions=_list(_TEXT),
            placeholders=placeholders, suspects=suspects,
            declared=_list(_object({"key": _TEXT, "value": _TEXT, "origin": _TEXT})),
            undeclared=_list(_object({"key": _TEXT, "says": _TEXT})),
            error=_or_null(_object({"smallest": _READING, "largest": _READING})),
            metrics=metrics,
        ),
        "inspect_shards": _headed(
            dump=_TEXT, total=_object({"shards": _COUNT, **sums}), assumptions=_list(_TEXT), notes=_list(_TEXT),
            shards=_list(_object({"shard": _TEXT, "file": _TEXT, "format": _TEXT, "container": _TEXT, "suspects": suspects, **sums})),
            placeholders=placeholders, carries=carried, metrics=metrics,
            disagreements=_list(_object({"what": _TEXT, "refused": _FLAG, "values": _list(part)})),
        ),
        **_comparison(),
    }  # fmt: skip


def _comparison() -> dict[str, Schema]:
    """Two streams against each other."""
    ends = {"lower": _READING, "upper": _READING}
    place = {"request": _TEXT, "position": _COUNT, "token": {"type": ["integer", "string", "null"]}}
    side = _object(
        {
            "path": _TEXT,
            "format": _TEXT,
            "carries": _list(_TEXT),
            "declared": _map({"type": "object"}),
            "notes": _list(_TEXT),
        }
    )
    drift = _object(
        {
            "table": _list(_object(
                {"metric": _TEXT, "unit": _TEXT, "basis": _TEXT, "meaning": _TEXT, "mean": _READING, **ends, "requests": _COUNT,
                 "rows": _COUNT, "infinite": _COUNT, "quantiles": _map(_READING), "stored": _or_null(_object(ends)),
                 "max": _READING, "worst": _list(_object({"value": _READING, **place}))}
            )),
            "bounds": _list(_object(
                {"basis": _TEXT, "family": _TEXT, "rows": _COUNT, "invalid_rows": _COUNT, **ends, "lower_max": _READING, "upper_max": _READING,
                 "largest_lower": _list({"type": "object"}), "largest_upper": _list({"type": "object"}),
                 "requests": _list(_object({"request": _TEXT, "rows": _COUNT, **ends, "sum_lower": _READING, "sum_upper": _READING}))}
            )),
            "notes": _list(_TEXT),
        }
    )  # fmt: skip
    estimator = {
        "name": _TEXT,
        "formula": _TEXT,
        "estimates": _TEXT,
        "sign": _TEXT,
        "class": _TEXT,
        "sampled_from": _TEXT,
    }
    return {
        "compare": _headed(
            {"shards": {"type": "object"}},
            verdict={"enum": list(COMPARED)}, reference=side, candidate=side,
            sampled_by={"enum": ["reference", "candidate"]}, requests={"type": "object"}, assumptions=_list(_TEXT),
            findings=_list(_object(
                {"code": {"type": "string", "pattern": "^KC[0-9]{3}$"}, "slug": _TEXT, "severity": _TEXT, "message": _TEXT,
                 "cause": _TEXT, "hint": _TEXT, "evidence": {"type": "object"}}
            )),
            void=_map(_list(_TEXT)), left_out=_list(_object({"slug": _TEXT, "family": _TEXT, "rows": _COUNT, "of": _COUNT})),
            drift=_or_null(_ref("drift")), explained=_or_null(_ref("drift")),
            estimators=_list(_object({**estimator, "value": _READING, "lower": _READING, "upper": _READING, "unit": _TEXT, "log_mean": _READING, "largest_token": _or_null({"type": "object"})})),
            sequences=_or_null(_object(
                {"count": _COUNT, "median_log_weight": _READING, "median_weight": _READING, "log_weight_range": _list(_READING),
                 "mean_abs_median": _READING, "bad": _COUNT, "bad_share": _READING, "worst": _list({"type": "object"})}
            )),
            project=_or_null(_object({"name": _TEXT, "numbers": _list(_object(
                {"name": _TEXT, "formula": _TEXT, "value": _READING, "entry": _MAYBE, "misleads": _MAYBE}
            ))})),
        ),
        "drift": drift,
    }  # fmt: skip
