"""Writes certificates: the verdicts on one contract as data that `prove.kernel` checks without trusting the prover."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

from kcverify.catalog.model import Family, Mode
from kcverify.catalog.quantities import BY_NAME
from kcverify.diagnostics import Report
from kcverify.elaborate import elaborate
from kcverify.elaborate.contract import Clause, Contract
from kcverify.elaborate.form import digest
from kcverify.prove import kernel
from kcverify.prove.budget import derive, fill
from kcverify.prove.certificate_steps import (
    CLOSED,
    EXTRA,
    OPTIMAL,
    RULE_OF,
    Draft,
    NotCertifiedError,
    coarse,
    facts_for,
    is_known,
    name_of,
    number,
    write_fact,
    write_step,
)
from kcverify.prove.check import Checked, check
from kcverify.prove.obligations import Atom, Obligation, Piece, atoms, mode_of, narrowed, obligations, pieces
from kcverify.prove.slices import inherited
from kcverify.prove.verdict import Counterexample, Status, Verdict
from kcverify.resources import contracts_dir
from kcverify.source import Source
from kcverify.syntax.parser import parse

ASSUMED = ("advantage", "score_norm", "token_score_norm", "confidence", "vocabulary")
ARGUMENTS = ("clip", "cap")
READ = frozenset((*ASSUMED, *ARGUMENTS, "horizon", "reward_range"))
MAX_CUTS = 10
CLAIM = ("name", "mode", "limits", "except", "on", "within", "temperature_end")


def _reads(formula: Any) -> frozenset[str]:
    """Assumptions that a formula of the kernel reads."""
    return READ.intersection(formula.__code__.co_names)


def setting_entry(contract: Contract) -> dict[str, Any]:
    """The assumptions as the kernel reads them. Raises NotCertifiedError under another sampler."""
    given = contract.assumptions
    if given.sampler is not None and given.sampler.kind != "full_softmax":
        raise NotCertifiedError(f"no rule of the kernel is about `sampler = {given.sampler.kind}`")
    out: dict[str, Any] = {"sampler": "full_softmax"}
    if given.temperature is not None and given.temperature.low is not None and given.temperature.high is not None:
        out["temperature"] = [number(given.temperature.low), number(given.temperature.high)]
    if given.horizon is not None:
        out["horizon"] = str(given.horizon)
    if given.reward is not None and given.reward.low is not None and given.reward.high is not None:
        out["reward_range"] = number(given.reward.high - given.reward.low)
    for name in ASSUMED:
        if (value := getattr(given, name, None)) is not None:
            out[name] = number(Fraction(value))
    return out


def limits_entry(found: Iterable[Atom]) -> dict[str, list[str]]:
    """Limits by quantity, those that the kernel knows and that are on the side which bounds it."""
    good = [a for a in found if a.upper is BY_NAME[a.node.quantity].upper and is_known(a.node)]
    return {name_of(a.node): [number(a.constant), number(a.slope)] for a in good}


def _only_met(clause: Clause) -> tuple[str, dict[str, list[str]]]:
    """Mode and limits of a clause that no rule reads and that a counterexample keeps: on rewards, on the k best tokens."""
    lower, upper = clause.limit.lower, clause.limit.upper
    if clause.exception == 0 and clause.metric.name == "reward_delta" and upper and not (lower or upper.terms):
        return "sequence", {"reward_delta": [number(upper.constant), "0"]}
    if clause.exception == 0 and clause.metric.name == "agreement" and lower and not (upper or lower.terms):
        return "mean", {"ranking_changes": [number(1 - lower.constant), "0"]}
    return "", {}


def clause_entry(clause: Clause, contract: Contract) -> dict[str, Any] | None:
    """A clause as the kernel reads it; None where no rule can use it."""
    t, mode, limits = contract.assumptions.temperature, mode_of(clause).value, limits_entry(atoms(clause))
    if not limits:
        mode, limits = _only_met(clause)
    if (
        not limits
        or clause.argument("clip") is not None
        or (clause.band is not None and (clause.band.parameter != "temperature" or t is None))
    ):
        return None
    out: dict[str, Any] = {"name": clause.name, "mode": mode, "limits": limits}
    if clause.exception and mode_of(clause) is Mode.POINT:
        out["except"] = number(clause.exception)
    if clause.slices:
        out["on"] = list(clause.slices)
    if clause.band is not None and t is not None and t.low is not None and t.high is not None:
        i = clause.band.interval
        ends = [i.low if i.low is not None else t.low, i.high if i.high is not None else t.high]
        out["band"] = [*map(number, ends), "open" if i.open_high and i.high is not None else "closed"]
    return out


def claim_entry(contract: Contract, obligation: Obligation) -> dict[str, Any]:
    """What a guarantee claims on one slice, with the assumptions that its band and arguments narrow."""
    claim = obligation.claim
    out: dict[str, Any] = {"name": claim.name, "mode": mode_of(claim).value, "limits": limits_entry(obligation.atoms)}
    if obligation.atoms and obligation.atoms[0].node.rho:
        out["except"] = number(obligation.atoms[0].node.rho)
    if obligation.scope:
        out["on"] = obligation.scope
    inner = narrowed(contract, claim)
    within = {k: v for k, v in setting_entry(inner or contract).items() if v != setting_entry(contract).get(k)}
    within |= {k: number(obligation.parameters.box[k][0]) for k in ARGUMENTS if k in obligation.parameters.box}
    t = inner.assumptions.temperature if inner is not None else None
    end = {"temperature_end": "open"} if t is not None and t.open_high else {}
    return out | ({"within": within} if within else {}) | end


def proof_pieces(
    contract: Contract, obligation: Obligation, entries: list[dict[str, Any]], p: Any
) -> list[tuple[Piece, list[dict[str, Any]]]]:
    """Pieces of temperatures with their steps. Raises NotCertifiedError where the kernel's rules do not reach the claim."""
    if not obligation.atoms or len(limits_entry(obligation.atoms)) != len(obligation.atoms):
        raise NotCertifiedError("the kernel has no rule about this quantity, or none about this side of it")
    parts, t = pieces(contract, obligation.scope), contract.assumptions.temperature
    closed = t is None or not t.open_high
    coupled = any(c.band is not None or a.slope for part in parts for c in part.clauses for a in atoms(c))
    out = []
    for i, part in enumerate(parts):
        out += _steps_on(
            contract, obligation, entries, p, part, closed and i == len(parts) - 1, MAX_CUTS if coupled else 0
        )
    return out


def _steps_on(
    contract: Contract,
    obligation: Obligation,
    entries: list[dict[str, Any]],
    p: Any,
    piece: Piece,
    last: bool,
    cuts: int,
) -> list[tuple[Piece, list[dict[str, Any]]]]:
    reason = "the rules of the kernel do not reach the claim"
    every = frozenset(RULE_OF)
    for known in (every - {OPTIMAL, CLOSED}, every - {OPTIMAL}, every):
        found = facts_for(contract, obligation, piece, known)
        if found is None:
            continue
        ends = [piece.low, piece.high] if p.temperature[1] else [Fraction(0), Fraction(0)]
        places = {e["name"]: k for k, e in enumerate(entries)}
        draft = Draft(p, ends, entries, places, obligation.scope, last)
        try:
            of = [write_fact(draft, f) for f in found]
            if of != list(range(len(draft.rows) - len(of), len(draft.rows))):
                for k, goal in zip(of, obligation.atoms, strict=True):
                    write_step(draft, {"by": "combine", "of": [k], "weights": ["1"], "gives": name_of(goal.node)})
            _reached(draft, obligation)
        except kernel.BROKEN as error:
            reason = f"the kernel refuses the proof: {error}"
            continue
        return [(piece, draft.steps)]
    if not cuts or piece.low == piece.high:
        raise NotCertifiedError(reason)
    middle = (piece.low + piece.high) / 2
    halves = ((Piece(piece.low, middle, piece.clauses), False), (Piece(middle, piece.high, piece.clauses), last))
    return [x for half, end in halves for x in _steps_on(contract, obligation, entries, p, half, end, cuts - 1)]


def _reached(draft: Draft, obligation: Obligation) -> None:
    """Raise ValueError where rounding has spent the slack of a claim."""
    for row, goal in zip(draft.rows[-len(obligation.atoms) :], obligation.atoms, strict=True):
        ok = all(row[3] + row[4] * t <= kernel.sign(row[0]) * goal.at(t) for t in draft.ends)
        kernel.need(ok, f"{goal.node.quantity} is not reached with {kernel.DIGITS} digits")


def _unread(contract: Contract) -> Iterator[Clause]:
    """Clauses of which the kernel does not evaluate every side on an instance, so that no counterexample can keep them."""
    for clause in (c for c in contract.clauses if not _free(c)):
        limits = (clause_entry(clause, contract) or {"limits": {}})["limits"]
        if len(limits) < max(1, len(atoms(clause))) or not {q.partition("@")[0] for q in limits} <= set(
            kernel.READINGS
        ):
            yield clause


def instance_entry(contract: Contract, found: Counterexample, mode: str) -> dict[str, Any]:
    """A counterexample as the kernel reads it. Raises NotCertifiedError where it evaluates some clause not at all."""
    for clause in _unread(contract):
        raise NotCertifiedError(f"the kernel does not evaluate `{clause.metric.name}`, which `{clause.name}` reads")
    moved = [b - a for a, b in zip(found.reference_logits, found.candidate_logits, strict=True)]
    share = found.exceeding_share
    return {
        "temperature": number(found.temperature),
        "tokens": found.horizon if mode == "sequence" or share else 1,
        "reference": [number(x) for x in found.reference_logits],
        "candidate": [number(x) for x in found.candidate_logits],
        "lifted": [i for i, x in enumerate(moved) if x > 0],
    } | ({"share": number(share)} if share else {})


def _free(clause: Clause) -> bool:
    """Whether no pair of distributions decides the clause, so that an instance may take any reading of it."""
    return clause.metric.family is Family.RUNTIME or clause.metric.name.startswith("parse_rate")


def _evidence(
    contract: Contract, obligation: Obligation, verdict: Verdict, entries: list[dict[str, Any]], claim: dict[str, Any]
) -> dict[str, Any]:
    """The part of a claim's entry that convinces the kernel. Raises NotCertifiedError."""
    inner = narrowed(contract, obligation.claim) or contract
    p = kernel.setting(setting_entry(contract) | claim.get("within", {}), EXTRA)
    if verdict.status is Status.PROVED:
        try:
            found = proof_pieces(inner, obligation, entries, p)
        except NotCertifiedError as error:
            used = {f.lemma.name for r in verdict.best for f in r.fact.chain() if f.lemma is not None}
            unknown = ", ".join(sorted(used - set(RULE_OF)))
            why = f"; the proof uses {unknown}, which it does not know" if unknown else ""
            why += f"; a checker repeats {OPTIMAL} on a coarser grid than the prover" if OPTIMAL in used else ""
            raise NotCertifiedError(f"{error}{why}") from None
        zero = not p.temperature[1]
        proof = [{"from": "0" if zero else number(x.low), "steps": steps} for x, steps in found]
        beyond = sorted({s["by"] for _, steps in found for s in steps} & set(EXTRA))
        return {"proof": proof} | ({"beyond": beyond} if beyond else {})
    if verdict.counterexample is None:
        raise NotCertifiedError("an open verdict")
    free = [c.name for c in contract.clauses if _free(c)]
    out = {"instance": instance_entry(inner, verdict.counterexample, claim["mode"])} | ({"free": free} if free else {})
    try:
        kernel.refute(claim | out, entries, p)
    except kernel.BROKEN as error:
        raise NotCertifiedError(f"the kernel refuses the counterexample: {error}") from None
    return out


def certificate(checked: Checked) -> dict[str, Any]:
    """The certificate of one checked contract: every verdict, with its evidence or with the reason why there is none."""
    contract = inherited(checked.contract)
    entries = [e for c in contract.clauses if (e := clause_entry(c, contract)) is not None]
    claims = []
    for verdict in checked.verdicts:
        obligation = next(
            o for o in obligations(contract) if (o.claim.name, o.scope) == (verdict.claim.name, verdict.scope)
        )
        try:
            claim = claim_entry(contract, obligation) | {"verdict": verdict.status.value}
            claim |= _evidence(contract, obligation, verdict, entries, claim)
        except NotCertifiedError as error:
            claim = {"name": verdict.claim.name, "verdict": verdict.status.value, "not_certified": str(error)}
            claim |= {"on": verdict.scope} if verdict.scope else {}
        claims.append(claim)
    return _sealed(contract, checked.digest, entries, claims)


def _steps(claim: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for piece in claim.get("proof", ()) for step in piece["steps"]]


def _sealed(
    contract: Contract, written: str, entries: list[dict[str, Any]], claims: list[dict[str, Any]]
) -> dict[str, Any]:
    """The document with the clauses and assumptions that its evidence uses, numbered anew."""
    used = {step["of"][0] for c in claims for step in _steps(c) if step["by"] == "clause"}
    if any("instance" in c for c in claims):
        used = set(range(len(entries)))
    place = {old: new for new, old in enumerate(sorted(used))}
    for step in (s for c in claims for s in _steps(c) if s["by"] == "clause"):
        step["of"] = [place[step["of"][0]]]
    rules = kernel.RULES | EXTRA
    formulas = [rules[s["by"]][1] for c in claims for s in _steps(c) if s["by"] in rules]
    instances = [c for c in claims if "instance" in c]
    read = [q.partition("@")[0] for x in (*instances, *(entries if instances else ())) for q in x["limits"]]
    names = set[str]().union(*map(_reads, [*formulas, *(kernel.READINGS[q] for q in read if q in kernel.READINGS)]))
    names |= {"horizon" for c in instances if c["instance"]["tokens"] > 1 or c["mode"] == "sequence"}
    certified = any("not_certified" not in c for c in claims)
    assume = setting_entry(contract) if certified else {}
    doc: dict[str, Any] = {
        "format": kernel.FORMAT,
        "contract": {"name": contract.name, "version": contract.version, "digest": written},
        "assume": {k: v for k, v in assume.items() if k in ("sampler", "temperature") or k in names},
        "clauses": [entries[k] for k in sorted(used)],
        "claims": claims,
    }
    return doc | {"seal": kernel.seal(doc)}


def text(docs: list[dict[str, Any]]) -> str:
    """Certificates as the text of one file: one document, or a list of them where there are several."""
    return json.dumps(docs[0] if len(docs) == 1 else docs, ensure_ascii=False, separators=(",", ":")) + "\n"


def coverage(doc: dict[str, Any]) -> list[dict[str, Any]]:
    """For every claim: its verdict, whether it is certified, by which rules, or the reason why it is not."""
    return [
        {
            "guarantee": c["name"],
            "slice": c.get("on"),
            "verdict": c["verdict"],
            "certified": "not_certified" not in c,
            "reason": c.get("not_certified"),
            "rules": list(dict.fromkeys(s["by"] for s in _steps(c) if s["by"] != "clause")),
        }
        for c in doc["claims"]
    ]


def coverage_text(doc: dict[str, Any]) -> str:
    """The same in words, a line for each claim."""
    lines = []
    for c in coverage(doc):
        name = f"{c['verdict']} {c['guarantee']}" + (f" on {c['slice']}" if c["slice"] else "")
        by = f" by {', '.join(c['rules'])}" if c["rules"] else ""
        lines.append(f"  certified: {name}{by}" if c["certified"] else f"  not certified: {name}: {c['reason']}")
    return "\n".join(lines)


def statement(doc: dict[str, Any]) -> list[str]:
    """What a certificate proves, in words; the rule `optimal` is checked too. Raises one of `kernel.BROKEN`."""
    return kernel.check(doc, EXTRA)


def differences(doc: dict[str, Any], contract: Contract) -> list[str]:
    """Where a certificate is about something else than a contract: digest, assumptions, clauses, claims, claims left out."""
    out = [] if doc["contract"]["digest"] == digest(contract) else ["its digest is another contract's"]
    if any(c.limit.hole for c in contract.clauses):
        contract = fill(contract, derive(contract)[0])
    contract = inherited(contract)
    try:
        assumed = setting_entry(contract)
    except NotCertifiedError as error:
        return [*out, str(error)]
    out += [f"it assumes {k} {v}" for k, v in doc["assume"].items() if assumed.get(k) != v]
    entries = [clause_entry(c, contract) for c in contract.clauses]
    out += [f"the contract has no such clause: {c['name']}" for c in doc["clauses"] if c not in entries]
    claimed = [claim_entry(contract, o) for o in obligations(contract)]
    said = [{k: v for k, v in c.items() if k in CLAIM} for c in doc["claims"]]
    for mine, theirs in zip(doc["claims"], said, strict=True):
        same = [c for c in claimed if (c["name"], c.get("on")) == (mine["name"], mine.get("on"))]
        if not same or ("not_certified" not in mine and theirs not in same):
            out.append(f"the contract does not claim this: {mine['name']}")
    named = {(c["name"], c.get("on")) for c in doc["claims"]}
    out += [f"it leaves out the claim {c['name']}" for c in claimed if (c["name"], c.get("on")) not in named]
    if any("instance" in c for c in doc["claims"]):
        all_named = {c["name"] for c in doc["clauses"]}
        out += [
            f"its counterexample leaves out the clause {e['name']}" for e in entries if e and e["name"] not in all_named
        ]
        decided = {c.name for c in contract.clauses if not _free(c)}
        listed = [n for c in doc["claims"] for n in c.get("free", ())]
        out += [f"it calls the clause {n} free" for n in dict.fromkeys(listed) if n in decided]
        out += [f"its counterexample says nothing about the clause {c.name}" for c in _unread(contract)]
    return out


def certificate_figures() -> list[dict[str, Any]]:
    """For every shipped contract: bytes of its certificate, milliseconds to write and to check it, claims certified."""
    out = []
    for path in sorted(contracts_dir().rglob("*.kc")):
        report = Report()
        tree = parse(Source(path.name, path.read_text(encoding="utf-8")), report)
        for contract in elaborate(tree, report, parameters={}) if tree is not None else ():
            checked = check(contract)
            start = time.perf_counter()
            doc = certificate(checked)
            written = time.perf_counter() - start
            certified = [c for c in doc["claims"] if "not_certified" not in c]
            figures = {"contract": contract.name, "claims": len(doc["claims"]), "certified": len(certified)}
            figures |= {"bytes": len(text([doc]).encode()), "write_ms": written * 1e3, "check_ms": None}
            if certified:
                times = [_timed(doc) for _ in range(5)]
                figures["check_ms"] = sorted(times)[2]
            out.append(figures)
    return out


def _timed(doc: dict[str, Any]) -> float:
    coarse.cache_clear()
    start = time.perf_counter()
    statement(doc)
    return (time.perf_counter() - start) * 1e3
