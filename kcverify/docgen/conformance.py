"""Schema of the answers of `kcverify conformance` and of the entries of its corpus."""

from __future__ import annotations

from kcverify.codes import Severity
from kcverify.docgen.words import COUNT, FLAG, MAYBE, NUMBER, TEXT, Schema, listing, maybe, record, ref

ANSWERS = {
    "calibration": "kcverify conformance calibrate --format json",
    "conformance_run": "kcverify conformance run FILE --kernel K --format json",
    "conformance_entry": "kcverify conformance record FILE --kernel K --output ENTRY --format json; also the entry's own format",
    "entries_compared": "kcverify conformance compare A B --format json",
    "survey": "kcverify conformance survey --format json",
    "traps": "kcverify conformance traps --format json",
    "kernels": "kcverify conformance kernels --format json",
    "logits": "kcverify conformance logits --format json",
}
"""Definition of each answer -> the command that prints it."""

VERDICTS = ("within_tolerance", "violation", "under_specified", "inconclusive")
"""Of a kernel-level contract."""

_MAYBE_NUMBER: Schema = {"type": ["number", "null"], "description": "null: not finite, or a formula that says nothing"}
_VERDICT: Schema = {"enum": list(VERDICTS)}
_CODE: Schema = {"enum": [0, 1, 2, 3, 4]}


def definitions() -> dict[str, Schema]:
    """The definitions of `ANSWERS` and what they are made of."""
    return {**_runs(), **_sampled(), **_tables(), **_surveys()}


def _runs() -> dict[str, Schema]:
    """One kernel under one contract, and the entry that is kept of it."""
    run = {
        "class": TEXT, "operation": TEXT, "kernel": TEXT, "verdict": _VERDICT, "declared": {"type": "object"}, "seed": COUNT,
        "trials": COUNT, "draws": COUNT, "distributions": listing(TEXT), "worst": maybe(ref("kernel_reading")),
        "readings": listing(ref("kernel_reading")), "findings": listing(ref("kernel_finding")), "notes": listing(TEXT),
    }  # fmt: skip
    head = {"kcverify": TEXT, "exit_code": _CODE}
    about = record(
        {"name": TEXT, "version": TEXT, "file": TEXT, "trials_asked": COUNT, "severity": listing(TEXT)},
        description=TEXT,
        digest={"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"},
        dtypes=listing(TEXT),
        shapes={"type": "object", "additionalProperties": {"type": "array", "items": COUNT}},
    )
    states = listing(record({"state": TEXT, "kernel": TEXT, "verdict": _VERDICT}))
    return {
        "tolerance": record({"exact": MAYBE, "value": _MAYBE_NUMBER, "lines": listing(TEXT)}),
        "kernel_reading": record(
            {"name": TEXT, "value": _MAYBE_NUMBER, "where": TEXT, "slack": NUMBER, "tolerance": ref("tolerance"), "verdict": _VERDICT},
            count=COUNT,
        ),
        "kernel_finding": record(
            {"code": TEXT, "slug": TEXT, "severity": {"enum": [s.value for s in Severity]}, "message": TEXT, "hint": TEXT}
        ),
        "machine": record(
            {
                "processor": TEXT, "features": listing(TEXT), "devices": listing(TEXT), "torch": TEXT, "python": TEXT,
                "system": TEXT, "kcverify": TEXT,
            },
            libraries=listing(TEXT),
        ),
        "kernel_run": record(run),
        "conformance_run": record(
            {
                **head, "contract": about, **run, "evidence": maybe(ref("kernel_evidence")),
                "signatures": listing(ref("kernel_signature")), "raises": TEXT, "calibration": states, "machine": ref("machine"),
            }
        ),
        "conformance_entry": record(
            {
                "format": {"const": "kcverify-conformance-entry/1"}, "kcverify": TEXT, "contract": about, "class": TEXT,
                "operation": TEXT, "kernel": TEXT, "declared": {"type": "object"}, "machine": ref("machine"),
                "tolerance": maybe(ref("tolerance")),
                "measurement": maybe(record({"name": TEXT, "value": _MAYBE_NUMBER, "slack": NUMBER, "where": TEXT})),
                "readings": listing(ref("kernel_reading")), "calibration": states, "findings": listing(ref("kernel_finding")),
                "verdict": _VERDICT, "reproduce": TEXT,
            },
            evidence=maybe(ref("kernel_evidence")), signatures=listing(ref("kernel_signature")), seed=COUNT,
            distributions=listing(TEXT),
        ),
    }  # fmt: skip


def _sampled() -> dict[str, Schema]:
    """Draws and their confidence, and signatures of violations."""
    return {
        "kernel_evidence": record(
            {
                "asked": COUNT,
                "draws": COUNT,
                "confidence": NUMBER,
                "share": _MAYBE_NUMBER,
                "reached": _MAYBE_NUMBER,
                "met": FLAG,
            }
        ),
        "kernel_signature": record(
            {
                "signature": TEXT,
                "severity": TEXT,
                "seen": {"type": ["boolean", "null"]},
                "evidence": TEXT,
                "ladder": listing(
                    record(
                        {
                            "size": COUNT,
                            "residual": _MAYBE_NUMBER,
                            "limit": _MAYBE_NUMBER,
                            "coerced": {"type": "object"},
                        }
                    )
                ),
            }
        ),
    }


def _tables() -> dict[str, Schema]:
    """What is about several kernels or entries."""
    head = {"kcverify": TEXT, "exit_code": _CODE}
    return {
        "entries_compared": record(
            {
                **head, "contract": TEXT, "kernel": TEXT, "same_verdict": FLAG,
                "differences": listing(record({"name": TEXT, "a": {}, "b": {}})),
            }
        ),
        "calibration": record({**head, "classes": listing(ref("calibrated_class"))}),
        "calibrated_class": record(
            {
                "class": TEXT, "title": TEXT, "statement": TEXT, "operation": TEXT, "tolerance": TEXT, "calibrated": FLAG,
                "states": listing(
                    record(
                        {
                            "state": {"enum": ["baseline", "bad", "good"]}, "kernel": TEXT, "ordinary": {"enum": ["pass", "fail"]},
                            "verdict": _VERDICT, "worst": maybe(ref("kernel_reading")),
                        }
                    )
                ),
            }
        ),
    }  # fmt: skip


def _surveys() -> dict[str, Schema]:
    """What runs all shipped kernels or traps, and what follows for the logits."""
    head = {"kcverify": TEXT, "exit_code": _CODE}
    return {
        "survey": record(
            {
                **head, "runs": listing(ref("kernel_run")), "not_here": listing(record({"kernel": TEXT, "reason": TEXT})),
                "machine": ref("machine"),
            }
        ),
        "traps": record(
            {
                **head, "machine": ref("machine"),
                "traps": listing(
                    record(
                        {
                            "source": TEXT, "about": TEXT, "contract": TEXT, "kernel": TEXT, "expected": TEXT, "found": TEXT,
                            "not_here": TEXT, "as_expected": {"type": ["boolean", "null"]}, "worst": maybe(ref("kernel_reading")),
                        }
                    )
                ),
            }
        ),
        "logits": record(
            {
                **head, "reference": TEXT, "candidate": TEXT, "looseness": _MAYBE_NUMBER, "follows": ref("bounds"),
                "attested": record({"evidence": {"const": "attested"}, "about": TEXT, "lines": listing(TEXT), "logit_drift": NUMBER}),
                "measured": record(
                    {"evidence": {"const": "measured"}, "about": TEXT, "head": {"type": ["number", "string"]}, "whole": {"type": ["number", "string"]}, "tokens": COUNT}
                ),
            }
        ),
        "kernels": record(
            {
                **head,
                "kernels": listing(
                    record({"kernel": TEXT, "operation": TEXT, "note": TEXT, "classes": listing(TEXT), "formats": TEXT})
                ),
            }
        ),
    }  # fmt: skip


def entry_schema() -> Schema:
    """The schema of one entry of the corpus, whole in itself: `docs/conformance_entry.schema.json`."""
    known = {**_runs(), **_sampled()}
    wanted = ("tolerance", "kernel_reading", "kernel_finding", "kernel_evidence", "kernel_signature", "machine")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An entry of the corpus of kernel measurements, as kcverify conformance record writes it",
        **known["conformance_entry"],
        "$defs": {name: known[name] for name in wanted},
    }
