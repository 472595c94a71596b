"""The JSON Schema of what commands print as JSON: one schema, one definition for each answer."""

from __future__ import annotations

from typing import Any

from kcverify.codes import Severity
from kcverify.docgen import allocation, attribution, conformance, exporters, promotion, provenance, serving
from kcverify.docgen.words import COUNT, FLAG, MAYBE, MAYBE_NUMBER, NUMBER, TEXT, Schema, listing, mapping, record, ref
from kcverify.elaborate.refine import Kind
from kcverify.output.catalogue import TABLES
from kcverify.output.inspect import WORTHS
from kcverify.prove.verdict import Status

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
_DATA: Schema = record(
    {
        "source": TEXT, "requests": COUNT, "window": COUNT, "seed": {"type": "integer"}, "measured requests": COUNT,
        "measured rows": COUNT,
    },
    digest=_DIGEST,
)  # fmt: skip


def _or_null(item: Schema) -> Schema:
    return {"anyOf": [item, {"type": "null"}]}


def _headed(optional: Schema | None = None, /, **required: Schema) -> Schema:
    """An answer with the version that gave it and the exit code of the command."""
    return record({"kcverify": TEXT, "exit_code": _CODE, **required}, **(optional or {}))


def answers() -> Schema:
    """One schema for all answers. A version of kcverify may add keys, and removes none within a major version."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kcverify answers",
        "description": "What commands print as JSON: " + "; ".join(f"{v} ({k})" for k, v in ANSWERS.items()) + ".",
        "oneOf": [ref(name) for name in ANSWERS],
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
    line = {"lemma": MAYBE, "unit": TEXT}
    return {
        "check": _headed(files=listing(ref("file"))),
        "file": record({"file": TEXT, "diagnostics": listing(ref("diagnostic")), "contracts": listing(ref("contract"))}),
        "derive": _headed(
            contract=TEXT, budgets=listing(ref("budget")), diagnostics=listing(ref("diagnostic")),
            check=_or_null(ref("contract")),
        ),
        "bounds": {"minProperties": 1, **mapping(record({"bound": MAYBE_NUMBER, "attained": MAYBE_NUMBER, **line}, reason=TEXT))},
        "budgets": {
            "minProperties": 1,
            **mapping(record({"budget": MAYBE_NUMBER, "exact": MAYBE, "lemmas": listing(TEXT), "unit": TEXT}, reason=TEXT)),
        },
        "comparison_of_bounds": record(
            {
                "span": TEXT, "horizon": COUNT, "region": mapping({"type": ["string", "null"]}),
                "bounds": mapping(record({"statement": TEXT, "published": MAYBE_NUMBER, "tight": NUMBER})),
            }
        ),
        "compile": _headed(
            contract=ref("named"), output=MAYBE, lines=COUNT, guarantees=mapping(_VERDICT), monitor=MAYBE,
        ),
        "measure": _headed(
            {
                "causes": ref("causes"), "by_layer": ref("by_layer"), "shards": ref("shards"), "provenance": ref("provenance"),
                "run": {"type": "string", "pattern": "^[0-9a-f]{32}$", "description": "of this run alone"},
            },
            contract=record({"name": TEXT, "version": TEXT, "description": TEXT, "digest": _DIGEST}),
            pair=record({"reference": TEXT, "candidate": TEXT}), data=_DATA, complete=FLAG,
            verdict={"enum": ["pass", "fail", "inconclusive"]}, guarantees=listing(ref("verdict")), measured=ref("measured"),
            measured_guarantees=record({"confidence": TEXT, "about": TEXT, "statements": listing(ref("measured_guarantee"))}),
            fingerprints=record({"reference": {"type": "object"}, "candidate": {"type": "object"}}),
        ),
        "certificates": _headed(
            certificates=listing(record({"file": TEXT, "accepted": FLAG, "readable": FLAG, "lines": listing(TEXT)})),
        ),
        "diff": record({"kcverify": TEXT, "exit_code": {"enum": [0, 1]}, "contracts": listing(ref("comparison"))}),
        "named": record({"name": TEXT, "version": TEXT, "digest": _DIGEST}),
    }  # fmt: skip


def _proofs() -> dict[str, Schema]:
    """Verdicts on guarantees, their chains and findings."""
    route = {
        "clauses": listing(TEXT), "bound": TEXT, "bound_exact": TEXT, "threshold": TEXT, "slack": TEXT, "holds": FLAG,
        "counted": FLAG, "note": TEXT, "by_formulas": MAYBE, "chain": listing(ref("link")),
    }  # fmt: skip
    link = {
        "quantity": TEXT, "statistic": {"enum": ["max", "mean", "response"]}, "relation": {"enum": ["<=", ">="]}, "value": TEXT,
        "exact": TEXT, "unit": TEXT, "exception": TEXT, "lemma": TEXT, "detail": TEXT, "source": TEXT,
    }  # fmt: skip
    return {
        "contract": record(
            {
                "name": TEXT, "version": TEXT, "digest": _DIGEST, "verdicts": listing(ref("verdict")), "filled": mapping(TEXT),
                "findings": listing(ref("diagnostic")), "not_enforced": listing(TEXT), "claims_nothing": FLAG,
                "exit_code": _CODE,
            },
            explained=ref("explained"), second_solver=listing(ref("opinion")), certificate=listing(ref("coverage")),
        ),
        "diagnostic": record(
            {
                "code": {"type": "string", "pattern": "^KC[0-9]{3}$"}, "slug": TEXT,
                "severity": {"enum": [severity.value for severity in Severity]}, "message": TEXT, "place": MAYBE,
                "hint": TEXT, "related": listing(record({"place": TEXT, "label": TEXT})),
            }
        ),
        "verdict": record(
            {
                "name": TEXT, "claim": TEXT, "slice": MAYBE, "verdict": _VERDICT, "step": TEXT,
                "code": {"type": ["string", "null"], "pattern": "^KC[0-9]{3}$"}, "slug": MAYBE, "bound": MAYBE,
                "threshold": MAYBE, "slack": MAYBE, "binding": listing(TEXT), "chain": listing(ref("link")),
                "routes": listing(record(route)), "reason": TEXT, "would_do": listing(TEXT), "core": listing(TEXT),
                "provable_at": MAYBE, "assumed": listing(TEXT), "counterexample": _or_null(ref("counterexample")),
                "place": TEXT,
            }
        ),
        "link": record(link, **{"from": listing(COUNT)}),
        "counterexample": record(
            {
                "story": TEXT, "temperature": TEXT, "horizon": COUNT, "reference_logits": listing(TEXT),
                "candidate_logits": listing(TEXT), "exceeding_share": TEXT, "reference": listing(TEXT), "candidate": listing(TEXT),
                "readings": listing(record({"clause": TEXT, "quantity": TEXT, "value": TEXT})),
            }
        ),
    }  # fmt: skip


def _working() -> dict[str, Schema]:
    """What is shown beyond the verdicts: minimal proofs, budgets of holes, the second solver."""
    sets = record({"sets": listing(listing(TEXT)), "complete": FLAG})
    return {
        "explained": record(
            {
                "proofs": listing(
                    record(
                        {
                            "name": TEXT, "slice": MAYBE, "core": listing(TEXT), "room": mapping(TEXT),
                            "routes": listing(
                                record({"bound": TEXT, "threshold": TEXT, "slack": TEXT, "chain": listing(ref("link"))})
                            ),
                        },
                        proving=sets,
                    )
                )
            },
            contradictory=sets,
        ),
        "coverage": record(
            {
                "guarantee": TEXT, "slice": MAYBE, "verdict": _VERDICT, "certified": FLAG, "reason": MAYBE, "rules": listing(TEXT),
            }
        ),
        "opinion": record({"guarantee": TEXT, "slice": MAYBE, "word": TEXT}),
        "budget": record(
            {
                "clause": TEXT, "metric": TEXT, "relation": {"enum": ["<=", ">="]}, "decimal": TEXT, "exact": TEXT,
                "double": NUMBER, "unit": TEXT, "binding": TEXT, "share": TEXT,
                "demands": listing(record({"guarantee": TEXT, "value": TEXT, "chain": listing(ref("link"))})),
                "one_digit_more_breaks_it_by": TEXT,
            }
        ),
    }  # fmt: skip


def _measured() -> dict[str, Schema]:
    """The report of a monitor."""
    evidence = {
        "kind": {"enum": ["none", "binary", "share", "mean", "maximum", "reading", "paired"]}, "requests": _MAYBE_COUNT, "rows": _MAYBE_COUNT,
        "exceeding_rows": _MAYBE_COUNT, "exceeding_requests": _MAYBE_COUNT, "observed": _READING, "log_e_fail": _READING,
        "log_e_pass": _READING, "log_threshold_fail": MAYBE_NUMBER, "log_threshold_pass": MAYBE_NUMBER,
        "at_most": MAYBE_NUMBER, "p_fail": MAYBE_NUMBER, "p_pass": MAYBE_NUMBER, "many_slices": MAYBE,
        "requests_needed": _MAYBE_COUNT,
    }  # fmt: skip
    request: Schema = {"type": ["string", "integer"]}
    worst = record(
        {"value": _READING, "request": request, "row": {"type": ["integer", "null"]}, "token": {"type": ["integer", "null"]}},
        position=COUNT, token_text=TEXT, context=record({"before": TEXT, "after": TEXT}),
    )  # fmt: skip
    names = ("name", "family", "metric", "statistic", "text", "severity", "unit", "reason")
    told = ("name", "claim", "sentence", "reason")
    return {
        "shards": record(
            {
                "total": COUNT, "measured": COUNT, "matched_by": {"enum": ["name", "number", "order"]},
                "lost": listing(record({"shard": TEXT, "reason": TEXT})),
            }
        ),
        "measured_guarantee": record(
            {
                **dict.fromkeys(told, TEXT), "slice": MAYBE, "status": {"const": "measured"}, "bound": MAYBE, "relation": MAYBE,
                "quantity": MAYBE, "exception": MAYBE, "premises": listing({"type": "object"}), "chain": listing({"type": "object"}),
                "by": listing(TEXT), "proved": MAYBE, "proved_verdict": MAYBE,
            }
        ),
        "measured": record(
            {
                "contract": TEXT, "digest": _DIGEST, "temperature": NUMBER, "rows": mapping(COUNT), "requests": COUNT,
                "looks": {"enum": ["any number of looks", "one look"]},
                "clauses": listing(ref("measured_clause")),
                "histograms": mapping(record({"edges": listing(_READING), "counts": listing(COUNT)})), "notes": listing(TEXT),
            }
        ),
        "measured_clause": record(
            {
                **dict.fromkeys(names, TEXT), "slice": MAYBE, "limit": record({"lower": MAYBE_NUMBER, "upper": MAYBE_NUMBER}),
                "exception": NUMBER, "confidence": NUMBER, "verdict": {"enum": list(MEASURED)},
                "evidence": record(evidence, observed_is=MAYBE), "max": _or_null(worst), "quantiles": mapping(listing(_READING)),
            }
        ),
    }  # fmt: skip


def _tables() -> dict[str, Schema]:
    """The tables of `catalogue`, each a list of rows."""
    row: Schema = {"type": "object"}
    tables: dict[str, Any] = {name: listing(row) for name in TABLES}
    one = {"minProperties": 2, "maxProperties": 1 + len(tables)}
    return {"catalogue": {**record({"kcverify": TEXT}, **tables, exit_code={"not": {}}), **one}}


def _differences() -> dict[str, Schema]:
    return {
        "comparison": record(
            {"old": MAYBE, "new": MAYBE, "old_digest": MAYBE, "new_digest": MAYBE, "changes": listing(ref("change"))}
        ),
        "change": record(
            {
                "kind": {"enum": [kind.value for kind in Kind]}, "weaker": FLAG, "what": TEXT, "name": TEXT, "detail": TEXT,
                "old": MAYBE, "new": MAYBE,
            }
        ),
    }  # fmt: skip


def _streams() -> dict[str, Schema]:
    """What a file of an engine or a trainer is."""
    counts = {
        "requests": COUNT, "tokens": COUNT, "counted": COUNT, "vocabulary": _MAYBE_COUNT, "vocabulary_at_least": _MAYBE_COUNT,
        "top_k": _or_null(listing(COUNT)), "shortest": _MAYBE_COUNT, "longest": COUNT,
    }  # fmt: skip
    carried = listing(record({"field": TEXT, "what": TEXT}))
    placeholders = listing(record({"value": TEXT, "count": COUNT, "status": TEXT, "means": TEXT}))
    sums = {"size": COUNT, "requests": COUNT, "tokens": COUNT, "counted": COUNT, "statuses": mapping(COUNT)}
    part = record({"value": TEXT, "count": COUNT, "shards": listing(TEXT)})
    suspects = listing(record({"count": COUNT, "what": TEXT}))
    metrics = listing(record({"metric": TEXT, "worth": {"enum": list(WORTHS)}, "inputs": TEXT}))
    return {
        "inspect": _headed(
            file=TEXT, format=TEXT, title=TEXT, container=TEXT, source=TEXT, size=COUNT, counts=record(counts),
            carries=carried, lacks=carried, statuses=mapping(COUNT), notes=listing(TEXT), assumptions=listing(TEXT),
            placeholders=placeholders, suspects=suspects,
            declared=listing(record({"key": TEXT, "value": TEXT, "origin": TEXT})),
            undeclared=listing(record({"key": TEXT, "says": TEXT})),
            error=_or_null(record({"smallest": _READING, "largest": _READING})),
            metrics=metrics,
        ),
        "inspect_shards": _headed(
            dump=TEXT, total=record({"shards": COUNT, **sums}), assumptions=listing(TEXT), notes=listing(TEXT),
            shards=listing(record({"shard": TEXT, "file": TEXT, "format": TEXT, "container": TEXT, "suspects": suspects, **sums})),
            placeholders=placeholders, carries=carried, metrics=metrics,
            disagreements=listing(record({"what": TEXT, "refused": FLAG, "values": listing(part)})),
        ),
        **_comparison(),
    }  # fmt: skip


def _comparison() -> dict[str, Schema]:
    """Two streams against each other."""
    ends = {"lower": _READING, "upper": _READING}
    place = {"request": TEXT, "position": COUNT, "token": {"type": ["integer", "string", "null"]}}
    side = record(
        {
            "path": TEXT,
            "format": TEXT,
            "carries": listing(TEXT),
            "declared": mapping({"type": "object"}),
            "notes": listing(TEXT),
        }
    )
    drift = record(
        {
            "table": listing(record(
                {"metric": TEXT, "unit": TEXT, "basis": TEXT, "meaning": TEXT, "mean": _READING, **ends, "requests": COUNT,
                 "rows": COUNT, "infinite": COUNT, "quantiles": mapping(_READING), "stored": _or_null(record(ends)),
                 "max": _READING, "worst": listing(record({"value": _READING, **place}))}
            )),
            "bounds": listing(record(
                {"basis": TEXT, "family": TEXT, "rows": COUNT, "invalid_rows": COUNT, **ends, "lower_max": _READING, "upper_max": _READING,
                 "largest_lower": listing({"type": "object"}), "largest_upper": listing({"type": "object"}),
                 "requests": listing(record({"request": TEXT, "rows": COUNT, **ends, "sum_lower": _READING, "sum_upper": _READING}))}
            )),
            "notes": listing(TEXT),
        }
    )  # fmt: skip
    estimator = {
        "name": TEXT,
        "formula": TEXT,
        "estimates": TEXT,
        "sign": TEXT,
        "class": TEXT,
        "sampled_from": TEXT,
    }
    return {
        "compare": _headed(
            {"shards": {"type": "object"}},
            verdict={"enum": list(COMPARED)}, reference=side, candidate=side,
            sampled_by={"enum": ["reference", "candidate"]}, requests={"type": "object"}, assumptions=listing(TEXT),
            findings=listing(record(
                {"code": {"type": "string", "pattern": "^KC[0-9]{3}$"}, "slug": TEXT, "severity": TEXT, "message": TEXT,
                 "cause": TEXT, "hint": TEXT, "evidence": {"type": "object"}}
            )),
            void=mapping(listing(TEXT)), left_out=listing(record({"slug": TEXT, "family": TEXT, "rows": COUNT, "of": COUNT})),
            drift=_or_null(ref("drift")), explained=_or_null(ref("drift")),
            estimators=listing(record({**estimator, "value": _READING, "lower": _READING, "upper": _READING, "unit": TEXT, "log_mean": _READING, "largest_token": _or_null({"type": "object"})})),
            sequences=_or_null(record(
                {"count": COUNT, "median_log_weight": _READING, "median_weight": _READING, "log_weight_range": listing(_READING),
                 "mean_abs_median": _READING, "bad": COUNT, "bad_share": _READING, "worst": listing({"type": "object"})}
            )),
            project=_or_null(record({"name": TEXT, "numbers": listing(record(
                {"name": TEXT, "formula": TEXT, "value": _READING, "entry": MAYBE, "misleads": MAYBE}
            ))})),
        ),
        "drift": drift,
    }  # fmt: skip
