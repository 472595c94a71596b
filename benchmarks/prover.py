"""Prints how long the prover takes: the 35 questions, whole contracts of 12 to 1,000 clauses, one entailment, the seeded faults."""

from __future__ import annotations

import argparse
import json
import runpy
import statistics
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

from kcverify.driver import load_source
from kcverify.elaborate.contract import Contract
from kcverify.prove import linear
from kcverify.prove.check import check
from kcverify.prove.corner import piece_parameters
from kcverify.prove.encoding import encode
from kcverify.prove.obligations import applies, atoms, certifiable, in_graph, obligations, whole_piece
from kcverify.prove.question import decide
from kcverify.prove.verdict import Limits
from kcverify.source import Source

TESTS = Path(__file__).parents[1] / "tests"
SIZES = (12, 100, 1000)
TARGETS = {12: 0.3, 100: 2.0, 1000: 20.0}
KINDS = (
    ("logit_span", 0.02, 0.4, ""),
    ("logit_drift", 0.01, 0.2, ""),
    ("tv", 0.005, 0.1, ""),
    ("kl(candidate || reference)", 1e-5, 5e-3, " nats"),
    ("kl(reference || candidate)", 1e-5, 5e-3, " nats"),
    ("log_ratio", 0.02, 0.4, ""),
    ("mean tv", 0.001, 0.02, ""),
)
HEAD = """contract generated
assume {
  temperature in [0.6, 1.0]; sampler = full_softmax; horizon <= 64 tokens
  reward in [0, 1]; advantage in [-5, 5]; score_norm <= 2
}
slice long = prompt_tokens >= 8192
slice code = tag("code")
slice safety = tag("safety")
"""
CLAIMS = (
    "guarantee {\n  reward_safe: reward_drift <= 0.4\n  grad_safe: pg_bias <= 8\n  tv_safe: tv <= 0.1 except 1%\n}\n"
)


def generated(n: int, seed: int = 0) -> str:
    """Text of a contract of `n` clauses of every family, with exceptions, slices, bands and limits in the temperature."""
    rng = Random(seed)
    blocks: dict[str, list[str]] = {"numerical": [], "statistical": [], "runtime": []}
    for i in range(n):
        kind, on = rng.random(), rng.choice(("", "", "", "", " on long", " on code", " on safety"))
        if kind < 0.8:
            blocks["numerical"].append(f"  c{i}: {_numerical(rng)}{on}{_band(rng)} -> L{rng.randint(1, 3)}")
        elif kind < 0.84:
            x = 0.05 * rng.random() + 0.01
            blocks["numerical"].append(f"  c{i}: importance_ratio in [{1 - x:.4f}, {1 + x:.4f}] except 1%{on} -> L2")
        elif kind < 0.92:
            blocks["statistical"].append(f"  c{i}: agreement(top = 1) >= {95 + 5 * rng.random():.2f}%{on} -> L1")
        else:
            blocks["runtime"].append(f"  c{i}: p99 latency <= {rng.randint(50, 500)} ms{on} -> L1")
    text = "".join(f"{name} {{\n" + "\n".join(lines) + "\n}\n" for name, lines in blocks.items() if lines)
    return HEAD + text + CLAIMS


def _numerical(rng: Random) -> str:
    name, low, high, unit = rng.choice(KINDS)
    limit = f"{low * (high / low) ** rng.random():.4g}{unit}"
    if name.startswith("logit") and rng.random() < 0.1:
        limit += " * temperature"
    share = "" if name.startswith("mean") else rng.choice(("", " except 0.01%", " except 0.1%", " except 1%"))
    return f"{name} <= {limit}{share}"


def _band(rng: Random) -> str:
    return " when temperature in [0.6, 0.8)" if rng.random() < 0.1 else ""


def _contract(n: int, seed: int) -> Contract:
    (contract,) = load_source(Source("generated", generated(n, seed))).contracts
    return contract


def _timed(function: Any, *arguments: Any) -> float:
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def questions() -> dict[str, Any]:
    """Milliseconds per question, and by which step each was decided."""
    sys.path.insert(0, str(TESTS / "unit" / "prove"))
    known = runpy.run_path(str(TESTS / "unit" / "prove" / "questions.py"))["QUESTIONS"]
    truth = {"PROVED": True, "REFUTED": False}
    rows = []
    for k in known:
        answer = decide(k.question)
        taken = min(_timed(decide, k.question) for _ in range(3)) * 1e3
        verdict = truth.get(answer.status.value)
        rows.append(
            {
                "question": k.question.name,
                "step": answer.step,
                "ms": taken,
                "right": verdict is k.truth,
                "wrong": verdict is (not k.truth),
            }
        )
    times = [r["ms"] for r in rows]
    return {
        "decided": sum(r["right"] for r in rows),
        "wrong": sum(r["wrong"] for r in rows),
        "median_ms": statistics.median(times),
        "worst_ms": max(times),
        "rows": rows,
    }


def contracts(repeats: int) -> list[dict[str, Any]]:
    """Seconds of a whole check with all default findings; `warm` on another contract of the same size after the first."""
    rows: list[dict[str, Any]] = []
    check(_contract(12, 99))
    for n in SIZES:
        first = _timed(check, _contract(n, 1))
        warm = min(_timed(check, _contract(n, 1)) for _ in range(repeats))
        growth = warm / rows[-1]["warm_s"] if rows else None
        rows.append(
            {
                "clauses": n,
                "first_s": first,
                "warm_s": warm,
                "growth": growth,
                "target_s": TARGETS[n],
                "within": warm < TARGETS[n],
            }
        )
    return rows


def entailment() -> dict[str, float]:
    """Milliseconds of one entailment on the contract of 12 clauses: encoding and solving, and how many links it has."""
    contract = _contract(12, 0)
    obligation = obligations(contract)[0]
    usable = [c for c in contract.clauses if in_graph(c) and applies(c, obligation.scope)]
    whole = whole_piece(contract, obligation.scope)
    boxes = piece_parameters(contract, obligation, whole)
    counted = linear.essential([c for c in usable if certifiable(c, usable)], whole, boxes)
    given = [a for c in counted for a in atoms(c)]

    def ask() -> None:
        encoding = encode(whole, boxes, given, obligation.atoms)
        linear.entails(encoding, counted, obligation.atoms, Limits())

    ask()
    links = len(encode(whole, boxes, given, obligation.atoms).links)
    return {"ms": min(_timed(ask) for _ in range(5)) * 1e3, "links": links}


def faults() -> list[dict[str, str]]:
    """The seeded faults and the check that catches each."""
    sys.path[:0] = [str(TESTS / "mutation"), str(TESTS / "property"), str(TESTS / "unit" / "prove")]
    table = runpy.run_path(str(TESTS / "mutation" / "faults.py"))["FAULTS"]
    tools = runpy.run_path(str(TESTS / "mutation" / "mutated.py"))
    rows = []
    for f in table:
        text = tools["source_of"](f.file)
        found = tools["battery_with"](f.file, text.replace(f.old, f.new, 1), f.caught_by) if f.old in text else ""
        rows.append({"fault": f.name, "file": f.file, "caught_by": found.split(":")[0] or "nothing", "shown": found})
    return rows


def certificates() -> list[dict[str, Any]]:
    """Size and check time of the certificate of every shipped contract."""
    from kcverify.prove.certificate import certificate_figures

    return certificate_figures()


def _print(result: dict[str, Any]) -> None:
    for c in result["certificates"]:
        took = "nothing to check" if c["check_ms"] is None else f"checked in {c['check_ms']:.1f} ms"
        print(f"certificate of {c['contract']}: {c['bytes']} bytes, {c['certified']} of {c['claims']} claims, {took}")
    q = result["questions"]
    print(
        f"35 questions: {q['decided']} decided, {q['wrong']} wrong, median {q['median_ms']:.2f} ms, worst {q['worst_ms']:.1f} ms"
    )
    for r in result["contracts"]:
        growth = f", {r['growth']:.1f} times the row above" if r["growth"] else ""
        print(
            f"check of {r['clauses']:>4} clauses: {r['warm_s']:.2f} s warm, {r['first_s']:.2f} s first (target {r['target_s']} s){growth}"
        )
    print(f"one entailment: {result['entailment']['ms']:.1f} ms, {result['entailment']['links']} lemma links")
    for r in result.get("faults", ()):
        print(f"{r['fault']:<50} {r['file']:<28} caught by {r['caught_by']}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--no-faults", action="store_true", help="leave out the table of seeded faults")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each whole check, of which the best counts")
    options = parser.parse_args()
    result: dict[str, Any] = {
        "questions": questions(),
        "contracts": contracts(options.repeats),
        "entailment": entailment(),
        "certificates": certificates(),
    }
    if not options.no_faults:
        result["faults"] = faults()
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        _print(result)


if __name__ == "__main__":
    main()
