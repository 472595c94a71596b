"""One report from a kernel's accumulator to the policy gradient: steps with their evidence, and the weakest that they carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from kcverify import __version__
from kcverify.bounds.calculator import Line, compute
from kcverify.bounds.graph import Fact, Node, best_for, propagate
from kcverify.catalog.model import Mode
from kcverify.conformance import transfer
from kcverify.conformance.contract import declared
from kcverify.conformance.model import Declared
from kcverify.conformance.tolerances import shown
from kcverify.diagnostics import input_error
from kcverify.elaborate.contract import Clause, Contract
from kcverify.elaborate.kernel import KernelContract
from kcverify.exact import decimal_up, monitor_float_down, monitor_float_up
from kcverify.measure.data import load_data
from kcverify.measure.sides import MODELS, Basis, KernelSide, Models, open_side
from kcverify.output.chain import percent
from kcverify.prove.obligations import Atom, atoms, narrowed, parameters
from kcverify.resources import data_path
from kcverify.runtime.report import number

EVIDENCE = ("proved", "attested", "measured")
"""From the strongest to the weakest: a step carries the weakest of its own and of all before it."""


@dataclass
class ChainOptions:
    """On what the chain is measured. `candidate` None is the format that the kernel contract is about."""

    model: str = "demo"
    candidate: str | None = None
    data: str | None = None
    window: int = 16
    limit: int = 64
    seed: int = 0
    gguf: Path | None = None


@dataclass(frozen=True)
class Opened:
    """The reference, the candidate's format on the same weights, and the reference's side for its tokenizer."""

    side: KernelSide
    reference: Basis
    candidate: Basis


def _opened(options: ChainOptions, form: str) -> Opened:
    if options.model not in MODELS:
        reason = f"no `{options.model}`"
        if ":" in options.model:
            reason = f"`{options.model}` does not show the norm before its head, which the bound of the head is of"
        raise input_error("option_invalid", option="--model", reason=reason, hint=f"one of {', '.join(MODELS)}")
    for option, value in (("--window", options.window), ("--limit", options.limit)):
        if value < 1:
            raise input_error(
                "option_invalid", option=option, reason=f"{value} is not a positive number", hint="give 1 or more"
            )
    if not 0 <= options.seed < 2**62:
        raise input_error(
            "option_invalid", option="--seed", reason=f"{options.seed} is not in [0, 2^62)", hint="--seed 0"
        )
    models: Models = {}
    sides = [
        open_side(f"{options.model}:{f}", gguf=options.gguf, models=models)
        for f in ("float32", transfer.format_named(form))
    ]
    one, other = sides
    assert isinstance(one, KernelSide)
    assert isinstance(other, KernelSide)
    assert one.basis is not None
    assert other.basis is not None
    return Opened(one, one.basis, other.basis)


def chain(
    kernel: KernelContract, file: str, contract: Contract, ran: Mapping[str, Any] | None, options: ChainOptions
) -> dict[str, Any]:
    """The answer of `kcverify conformance chain` as JSON data; `ran` is the kernel contract's run on a kernel, if any.

    Raises InputError: `chain_unusable`, `head_unbounded`, `kernel_contract_missing`, `option_invalid`, and those of the data.
    """
    given = declared(kernel, file)
    opened = _opened(options, options.candidate or transfer.format_of(kernel, given, options.model))
    plan = transfer.plan(kernel, given, opened.candidate, options.model)
    text = options.data or str(data_path("heldout.txt"))
    side = opened.side
    requests = load_data(
        text, window=options.window, tokenizer=side.tokenizer, vocabulary=side.vocabulary, limit=options.limit
    )

    found = transfer.rest(plan, opened.reference, requests, options.seed)
    value, parts = transfer.total(plan, opened.reference, found)
    rho = transfer.exceeding(found.requests)
    box = parameters(contract.assumptions)
    follows = {} if value is None else {r: compute("logit_span", value, box, r) for r in (Fraction(0), rho)}
    asked = (
        []
        if value is None
        else [_asked(c, contract, value, rho) for c in (*contract.clauses, *contract.guarantees) if atoms(c)]
    )
    bad = ran is not None and ran["verdict"] in ("violation", "under_specified")
    code = 1 if bad else 0 if asked and all(a["follows"] for a in asked) else 3
    return {
        "kcverify": __version__, "exit_code": code,
        "kernel_contract": {"name": kernel.name, "version": kernel.version, "file": file, "declared": _declaration(given)},
        "contract": {"name": contract.name, "version": contract.version},
        "kernel": None if ran is None else {"name": ran["kernel"], "verdict": ran["verdict"]},
        "model": options.model, "candidate": opened.candidate.kernel.name, "evidence": EVIDENCE[-1],
        "data": {"source": options.data or "the shipped text", "window": options.window, "requests": found.requests, "rows": found.rows},
        "steps": _steps(plan, given, ran, found, value, parts, rho, follows),
        "asked": asked,
        "transfer": _transfer(found),
        "derivation": parts["lines"],
        "notes": _notes(found, value, parts, rho, contract),
    }  # fmt: skip


def _declaration(d: Declared) -> str:
    return f"{d.inputs} operands, sums in {d.accumulator}, results in {d.output}"


def _steps(
    plan: transfer.Plan, given: Declared, ran: Mapping[str, Any] | None, found: transfer.Rest, value: Fraction | None,
    parts: Mapping[str, Any], rho: Fraction, follows: Mapping[Fraction, Sequence[Line]],
) -> list[dict[str, Any]]:  # fmt: skip
    said = (
        "declared; `conformance run` puts it to the test"
        if ran is None
        else f"declared; {ran['kernel']} was run under it: {ran['verdict']}"
    )
    worst = max((d.value for d in plan.tolerances.values() if d.value is not None), default=Fraction(0))
    share = str(rho)
    steps = [
        _step("accumulator", worst, "", "attested" if ran is None else "measured", "gamma", f"{_declaration(given)}: {said}; t against the sum of magnitudes, at the model's largest product", "", "<="),
        _step("logit_span of the head", parts["head"], "logits", "attested", "norm bound", "for every hidden state after the norm, both sides: twice the drift", "", "<="),
        _step(
            "logit_span of the layers below", parts["rest"], "logits", "measured", "transfer",
            f"every product off by its whole t with random signs, the last one with the worst for a pair too; largest of {found.rows} rows of {found.requests} requests", share, "<=",
        ),
        _step("logit_span", value, "logits", "proved", "triangle inequality", "the two parts together", share, "<="),
    ]  # fmt: skip
    for clean, line in zip(follows.get(Fraction(0), ()), follows.get(rho, ()), strict=False):
        relation = "<=" if line.upper else ">="
        if line.key == "logit_span":
            continue
        if line.bound is None and clean.bound is None:
            steps.append(_step(line.key, None, line.unit, "proved", "", line.reason, "", relation))
            continue
        token = line.key not in ("tv_seq", "reward_drift", "pg_bias", "ess")
        one = _step(
            line.key,
            line.bound,
            line.unit,
            "proved",
            line.lemma or clean.lemma or "",
            "" if line.bound is not None else line.reason,
            share if token else "",
            relation,
        )
        one["without_exception"] = _safe(clean.bound, line.upper)
        steps.append(one)
    carried = 0
    for step in steps:
        carried = max(carried, EVIDENCE.index(step["evidence"]))
        step["carried"] = EVIDENCE[carried]
    return steps


def _safe(value: Fraction | None, upper: bool) -> float | None:
    """The double on the safe side."""
    return None if value is None else (monitor_float_up if upper else monitor_float_down)(value)


def _step(
    quantity: str, value: Fraction | None, unit: str, evidence: str, by: str, detail: str, exception: str, relation: str
) -> dict[str, Any]:
    return {
        "quantity": quantity, "relation": relation, "value": _safe(value, relation == "<="), "unit": unit, "evidence": evidence, "by": by,
        "detail": detail, "exception": exception or "0", "without_exception": None,
    }  # fmt: skip


def _asked(clause: Clause, contract: Contract, span: Fraction, rho: Fraction) -> dict[str, Any]:
    """Whether a clause or a guarantee follows from the span except on the share `rho`, and the bound that it gets."""
    within = narrowed(contract, clause)
    head = {
        "name": clause.name, "text": clause.text, "guarantee": not clause.severity, "follows": False, "bound": None, "limit": None,
        "exception": None, "without_exception": None, "reason": "", "upper": atoms(clause)[0].upper,
    }  # fmt: skip
    if within is None:
        return {**head, "reason": "its band lies outside the assumed range"}
    clip = clause.argument("clip")
    box = parameters(within.assumptions, clip=clip if isinstance(clip, Fraction) else None)
    got = [_reached(atom, span, box, rho, within) for atom in atoms(clause)]
    loose = [_reached(atom, span, box, Fraction(0), within) for atom in atoms(clause)]
    worst = next((i for i, (fact, _, ok) in enumerate(got) if not ok), 0)
    fact, limit, _ = got[worst]
    upper = atoms(clause)[worst].upper
    clean = loose[worst][0]
    told = {
        **head, "follows": all(ok for _, _, ok in got), "upper": upper, "limit": _safe(limit, upper), "bound": _safe(fact.value, upper) if fact else None,
        "exception": percent(fact.node.rho) if fact and fact.node.mode is Mode.POINT and fact.node.rho else None,
        "without_exception": _safe(clean.value, upper) if clean else None,
    }  # fmt: skip
    if not told["follows"]:
        allowed = atoms(clause)[worst].node.rho
        told["reason"] = "no lemma leads to it" if fact is None else "the bound is beyond the limit"
        if fact is not None and fact.node.mode is Mode.POINT and fact.node.rho > allowed:
            told["reason"] = (
                f"certain on all but {percent(fact.node.rho)} of tokens only, and it allows {percent(allowed)}"
            )
    return told


def _reached(
    atom: Atom, span: Fraction, box: Any, rho: Fraction, contract: Contract
) -> tuple[Fact | None, Fraction, bool]:
    """The strongest fact about an atom, its limit at the worst temperature, and whether the fact implies it."""
    best = propagate(
        [Fact(Node("logit_span", Mode.POINT, rho), span, label="measured")], box, toward=[atom.node.quantity]
    )
    heat = contract.assumptions.temperature
    ends = [Fraction(1)] if heat is None or heat.low is None or heat.high is None else [heat.low, heat.high]
    limits = [atom.at(end) for end in ends]
    limit = min(limits) if atom.upper else max(limits)
    fact = best_for(
        best, atom.node.quantity, atom.node.mode, Fraction(1) if atom.node.mode is Mode.POINT else Fraction(0)
    )
    if fact is None:
        return None, limit, False
    enough = fact.value <= limit if atom.upper else fact.value >= limit
    return fact, limit, enough and (atom.node.mode is not Mode.POINT or fact.node.rho <= atom.node.rho)


def _transfer(found: transfer.Rest) -> dict[str, Any]:
    rows = [
        {
            "layer": r.layer, "tolerance": monitor_float_up(r.tolerance), "largest": number(r.largest), "median": number(r.median),
            "per_unit": number(r.largest / float(r.tolerance)) if r.tolerance else None, "request": r.request, "position": r.position,
        }
        for r in found.layers
    ]  # fmt: skip
    return {
        "layers": rows, "largest": number(found.largest), "median": number(found.median), "shipped_kernels": number(found.actual),
        "extremal": _extremal(found), "invalid": found.invalid, "request": found.witness[0], "position": found.witness[1],
    }  # fmt: skip


def _extremal(found: transfer.Rest) -> dict[str, Any] | None:
    """The last product before the head under the signs of the dual norm."""
    one = found.extremal
    if one is None:
        return None
    reached = {"least": number(one.least), "most": number(one.most)}
    return {"layer": one.layer, "random": number(one.random), "largest": number(one.largest), "reached": reached}


def _notes(
    found: transfer.Rest, value: Fraction | None, parts: Mapping[str, Any], rho: Fraction, contract: Contract
) -> list[str]:
    notes = [
        f"measured: with confidence 95 %, at most {decimal_up(rho * 100, 4)} % of requests like these go beyond the largest of {found.requests}, and "
        "so no larger a share of their tokens: 1 - 0.05^(1/n), for requests drawn alike; the last column is what follows if none does",
        "random signs are as large as the contract allows and not in the worst direction: a kernel whose errors conspire may move more; the "
        "last product before the head also takes the worst signs for one pair of tokens in each row, all others random signs beside it",
    ]
    if value is None:
        notes.append(f"{found.invalid} rows are not finite: nothing follows")
    elif found.actual:
        whole = float(value) / found.actual
        notes.append(
            f"with the shipped kernels of this format the layers below the head give a span of {found.actual:.3g} at most here: the chain's is {whole:.3g} times that"
        )
    if contract.assumptions.sampler is None:
        notes.append("sampler = full_softmax is assumed, since the contract does not say")
    if parts["rest"] is not None:
        notes.append(
            f"the head's part is {shown(parts['head'] / (parts['head'] + parts['rest']) * 100)} % of the span"
            if value
            else "no drift"
        )
    return notes
