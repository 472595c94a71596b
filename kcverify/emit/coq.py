"""Writes a contract's claims as a Coq file that compiles against the library in proofs/ (see proofs/README.md)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from kcverify.bounds.graph import Fact, Node, Parameters, apply
from kcverify.catalog.lemmas import BY_NAME as LEMMAS
from kcverify.catalog.model import Mode
from kcverify.elaborate.contract import Clause, Contract
from kcverify.prove.check import Checked
from kcverify.prove.obligations import Atom, atoms, mode_of
from kcverify.prove.verdict import Status, Verdict

_DIGITS = 10**12
_RESPONSES = ("tv_seq", "reward_drift", "pass_rate_drift", "pg_bias")


@dataclass(frozen=True)
class Premise:
    """The clause that the file rests on: a bound on the logit span outside a share `rho` of contexts."""

    clause: str
    sigma: Fraction
    rho: Fraction


@dataclass(frozen=True)
class Frame:
    """What all claims of a file share: premise, smallest temperature, horizon, budgets of a response."""

    premise: Premise
    temperature: Fraction
    horizon: int | None
    budget: Fraction | None

    @property
    def whole(self) -> Fraction | None:
        """Total variation of a response with the exceeding contexts counted in."""
        if self.budget is None or self.horizon is None:
            return None
        return self.budget + self.horizon * self.premise.rho


def rational(x: Fraction) -> str:
    """An exact number in Coq's real scope."""
    shown = str(abs(x.numerator)) if x.denominator == 1 else f"({abs(x.numerator)} / {x.denominator})"
    return f"(- {shown})" if x < 0 else shown


def premise_of(contract: Contract) -> Premise | None:
    """The tightest clause on all traffic and all temperatures that bounds the logits pointwise."""
    found = []
    for clause in contract.clauses:
        if clause.slices or clause.band is not None or mode_of(clause) is not Mode.POINT:
            continue
        for a in atoms(clause):
            if a.node.quantity in ("logit_span", "logit_drift") and a.upper and not a.slope and a.constant > 0:
                factor = 2 if a.node.quantity == "logit_drift" else 1
                found.append(Premise(clause.name, factor * a.constant, a.node.rho))
    return min(found, key=lambda p: (p.rho, p.sigma), default=None)


def frame_of(contract: Contract) -> Frame | None:
    """The shared part of a contract's file; None where no clause bounds the logits or no temperature is assumed."""
    premise, t = premise_of(contract), contract.assumptions.temperature
    if premise is None or t is None or t.low is None or t.low <= 0:
        return None
    horizon = contract.assumptions.horizon
    if horizon is None:
        return Frame(premise, t.low, None, None)
    boxes = Parameters({"horizon": (Fraction(horizon), Fraction(horizon))})
    span = Fact(Node("effective_span", Mode.POINT), premise.sigma / t.low)
    fact = apply(LEMMAS["seq_affinity"], (span,), Mode.SEQUENCE, boxes)
    budget = None if fact is None else Fraction(-(-fact.value * _DIGITS // 1) + 1, _DIGITS)
    return Frame(premise, t.low, horizon, budget if budget is not None and budget < 1 else None)


@dataclass(frozen=True)
class Part:
    """A claim in the file: its constants, closed inequality and theorem."""

    constants: str
    closed: str
    theorem: str


def _token(frame: Frame, name: str, atom: Atom) -> Part | str:
    if atom.node.rho < frame.premise.rho:
        return f"it allows fewer exceptions than `{frame.premise.clause}`"
    tau = f"Notation tau_{name} := {rational(atom.constant)}."
    head = f"  Theorem claim_{name} h"
    span = "logit_span (z h) (z' h) voc sigma"
    p, q = "(softmax T (z h) voc)", "(softmax T (z' h) voc)"
    common = "voc (z h) (z' h) T T0 sigma voc_nonempty T_range S"
    if atom.node.quantity == "tv":
        closed = f"Lemma closed_{name} : 1 - 2 / (exp (2 * (sigma / T0 / 4)) + 1) <= tau_{name}.\n{_INTERVAL}"
        body = f"{head} : {span} ->\n    tv {p} {q} voc <= tau_{name}.\n"
        return Part(
            tau, closed, f"{body}  Proof. intros S. exact (token_tv_claim {common} tau_{name} closed_{name}). Qed."
        )
    if atom.node.quantity == "log_ratio":
        closed = f"Lemma closed_{name} : sigma / T0 <= tau_{name}.\nProof. lra. Qed."
        body = f"{head} x : {span} -> In x voc ->\n    exp (- tau_{name}) * softmax T (z h) voc x <= softmax T (z' h) voc x"
        body += f" <= exp tau_{name} * softmax T (z h) voc x.\n"
        return Part(tau, closed, body + _LOG_RATIO.format(name=name, common=common))
    if atom.node.quantity.startswith("kl_"):
        closed = (
            f"Lemma closed_{name} : g (sigma / T0) <= tau_{name}.\nProof. unfold g. interval with (i_prec 200). Qed."
        )
        sides = f"{p} {q}" if atom.node.quantity == "kl_reference_candidate" else f"{q} {p}"
        body = f"{head} : {span} ->\n    kl {sides} voc <= tau_{name}.\n"
        return Part(
            tau,
            closed,
            body + f"  Proof. intros S. apply (token_kl_claim {common} tau_{name}); [lra | exact closed_{name}]. Qed.",
        )
    return "the library has no theorem for its quantity in this form"


_INTERVAL = "Proof. interval with (i_prec 200). Qed."
_LOG_RATIO = """  Proof.
    intros S X. pose proof (token_log_ratio_claim {common} x X) as B. pose proof closed_{name} as C.
    assert (P : 0 < softmax T (z h) voc x) by (apply softmax_pos; exact voc_nonempty).
    assert (exp (- tau_{name}) <= exp (- (sigma / T0))) by (apply exp_mono; lra).
    assert (exp (sigma / T0) <= exp tau_{name}) by (apply exp_mono; lra).
    assert (exp (- tau_{name}) * softmax T (z h) voc x <= exp (- (sigma / T0)) * softmax T (z h) voc x) by (apply Rmult_le_compat_r; lra).
    assert (exp (sigma / T0) * softmax T (z h) voc x <= exp tau_{name} * softmax T (z h) voc x) by (apply Rmult_le_compat_r; lra).
    lra.
  Qed."""
_BASE = "voc z z' stopped ended T T0 sigma hmax H voc_nonempty T_range ended_law horizon"


def _response(contract: Contract, frame: Frame, name: str, atom: Atom) -> Part | str:
    given = contract.assumptions
    if frame.whole is None or frame.whole >= 1:
        return "the affinity bound says nothing at this horizon"
    scale = Fraction(1)
    if atom.node.quantity == "reward_drift":
        if given.reward is None or given.reward.low is None or given.reward.high is None:
            return "no reward range is assumed"
        scale = given.reward.high - given.reward.low
    if atom.node.quantity == "pg_bias":
        if given.advantage is None or given.score_norm is None:
            return "no bound of the advantage or of the response's score is assumed"
        scale = 2 * given.advantage * given.score_norm
    if scale * frame.whole > atom.constant:
        return "it needs more than the affinity bound, the sequence bound of the library's ready claims"
    tau = f"Notation tau_{name} := {rational(atom.constant)}."
    exceeds = frame.premise.rho > 0
    rest = "exceeds rho span_except frequency" if exceeds else "span"
    budgets = "t t_exc" if exceeds else "t"
    steps = "exact closed_seq | lra" + (" | lra" if exceeds else "")
    kind = "exceed_" if exceeds else ""
    if atom.node.quantity == "tv_seq":
        goal, lemma = f"tv p q responses <= tau_{name}", f"seq_tv_{kind}claim {_BASE} {rest} {budgets}"
        last = "exact closed_seq | lra" if exceeds else "exact closed_seq"
        proof = f"    apply Rle_trans with {'t_exc' if exceeds else 't'}; [|lra].\n    apply ({lemma}); [{last}]."
    elif atom.node.quantity == "pg_bias":
        mean = "mean {} (fun y => adv y * score y k) responses"
        goal = f"norm coords (fun k => {mean.format('p')} - {mean.format('q')}) <= tau_{name}"
        lemma = f"seq_pg_{kind}claim {_BASE} {rest} coords adv score Amax G {budgets} tau_{name}"
        proof = f"    apply ({lemma});\n      [exact adv_bound | exact score_bound | lra | lra | {steps}]."
    else:
        whose, lo, hi = ("reward", "lo", "hi") if atom.node.quantity == "reward_drift" else ("passes", "0", "1")
        goal = f"Rabs (mean p {whose} responses - mean q {whose} responses) <= tau_{name}"
        lemma = f"seq_reward_{kind}claim {_BASE} {rest} {whose} {lo} {hi} {budgets} tau_{name}"
        proof = f"    apply ({lemma});\n      [exact {whose}_range | lra | {steps}]."
    return Part(tau, "", f"    Theorem claim_{name} : {goal}.\n    Proof.\n  {proof}\n    Qed.")


def part_of(contract: Contract, frame: Frame, verdict: Verdict) -> Part | str:
    """The part of a file that a verdict gives, or the reason why the file does not cover it."""
    claim: Clause = verdict.claim
    found = atoms(claim)
    if verdict.status is not Status.PROVED:
        return f"its verdict is {verdict.status.value}"
    if claim.slices or claim.band is not None or len(found) != 1 or found[0].slope or not found[0].upper:
        return "it speaks of a slice, a band, two limits or a limit that varies"
    sampler = contract.assumptions.sampler
    if sampler is not None and sampler.kind != "full_softmax":
        return "the library is about sampling from the whole softmax"
    if found[0].node.quantity in _RESPONSES:
        return _response(contract, frame, claim.name, found[0])
    if found[0].node.mode is not Mode.POINT:
        return "it is about a mean over contexts"
    return _token(frame, claim.name, found[0])


def emit_coq(checked: Checked) -> str:
    """Text of the Coq file of one checked contract; claims outside the library are named in its first comment."""
    contract = checked.contract
    frame = frame_of(contract)
    parts: dict[str, Part] = {}
    left: list[str] = []
    for v in checked.verdicts:
        part = "no clause on all traffic bounds the logits" if frame is None else part_of(contract, frame, v)
        if isinstance(part, Part):
            parts[v.claim.name] = part
        else:
            left.append(f"claim_{v.claim.name}: not covered, since {part}")
    head = [f"contract {contract.name} {re.sub(r'[^A-Za-z0-9.+-]', '_', contract.version)}", checked.digest]
    head += [f"claim_{name}: proved below" for name in parts] + left
    comment = (
        "(* "
        + "\n   ".join(head)
        + "\n   Compile with proofs/check.sh FILE.v; proofs/README.md says what each premise means. *)\n"
    )
    return comment if frame is None or not parts else comment + _file(contract, frame, parts)


def _file(contract: Contract, frame: Frame, parts: dict[str, Part]) -> str:
    given = contract.assumptions
    response = {n: p for n, p in parts.items() if p.theorem.startswith("    Theorem")}
    uses: Callable[[str], bool] = lambda word: any(re.search(rf"\b{word}\b", p.theorem) for p in parts.values())  # noqa: E731
    constants = [("sigma", frame.premise.sigma), ("T0", frame.temperature)]
    if response and frame.horizon is not None and frame.budget is not None and frame.whole is not None:
        constants += [("hmax", Fraction(frame.horizon)), ("t", frame.budget)]
        constants += [("rho", frame.premise.rho), ("t_exc", frame.whole)] if frame.premise.rho else []
    if uses("reward") and given.reward is not None and given.reward.low is not None and given.reward.high is not None:
        constants += [("lo", given.reward.low), ("hi", given.reward.high)]
    if uses("adv") and given.advantage is not None and given.score_norm is not None:
        constants += [("Amax", given.advantage), ("G", given.score_norm)]
    out = [
        _IMPORTS,
        *(f"Notation {n} := {rational(x)}." for n, x in constants),
        *(p.constants for p in parts.values()),
        "",
    ]
    out += [p.closed for p in parts.values() if p.closed]
    out += [_CLOSED_SEQ] if response else []
    out += ["", "Section Contract.", _PREMISES]
    out += [_RESPONSE_PREMISES] if response else []
    for word, text in _OPTIONAL:
        out += [text] if uses(word) else []
    out += [p.theorem for n, p in parts.items() if n not in response]
    if response:
        title, hypotheses = ("Exceedance", _EXCEEDANCE) if frame.premise.rho else ("Everywhere", _EVERYWHERE)
        out += [f"  Section {title}.", hypotheses, *(p.theorem for p in response.values()), f"  End {title}."]
    return "\n".join([*out, "End Contract.", ""])


_IMPORTS = """From Coq Require Import Reals Lra List.
From Interval Require Import Tactic.
From KC Require Import Kc.
Open Scope R_scope.
"""
_CLOSED_SEQ = """Lemma closed_seq : seq_budget (sigma / T0) hmax t.
Proof. split; [lra | interval with (i_prec 200)]. Qed."""
_PREMISES = """  Context {token coordinate : Type}.
  Variables (voc : list token) (coords : list coordinate).
  Variables z z' : list token -> token -> R.   (* logits of reference and candidate, by context *)
  Variable T : R.
  Hypothesis voc_nonempty : voc <> nil.
  Hypothesis temperature : T0 <= T.
  Lemma T_range : 0 < T0 <= T.
  Proof. split; [lra | exact temperature]. Qed."""
_RESPONSE_PREMISES = """  Variables (stopped : list token -> bool) (ended : list token -> token -> R).   (* responses may end early *)
  Variable H : nat.
  Hypothesis horizon : INR H <= hmax.
  Hypothesis ended_law : forall h, dist (ended h) voc.
  Let p := law (sampler voc stopped ended T z).    (* law of a response, reference *)
  Let q := law (sampler voc stopped ended T z').   (* law of a response, candidate *)
  Let responses := seqs voc H."""
_OPTIONAL = (
    ("reward", "  Variable reward : list token -> R.\n  Hypothesis reward_range : forall y, In y responses -> lo <= reward y <= hi."),
    ("passes", "  Variable passes : list token -> R.\n  Hypothesis passes_range : forall y, In y responses -> 0 <= passes y <= 1."),
    (
        "adv",
        "  Variables (adv : list token -> R) (score : list token -> coordinate -> R).\n"
        "  Hypothesis adv_bound : forall y, In y responses -> Rabs (adv y) <= Amax.\n"
        "  Hypothesis score_bound : forall y, In y responses -> norm coords (score y) <= G.",
    ),
)  # fmt: skip
_EVERYWHERE = (
    """    Hypothesis span : forall h, context voc H h -> stopped h = false -> logit_span (z h) (z' h) voc sigma."""
)
_EXCEEDANCE = """    (* The span fails on contexts that the candidate meets at most hmax rho times per response on average. *)
    Variable exceeds : list token -> bool.
    Hypothesis span_except : forall h, context voc H h -> stopped h = false -> exceeds h = false -> logit_span (z h) (z' h) voc sigma.
    Hypothesis frequency : total voc (sampler voc stopped ended T z') (indicator exceeds) H <= hmax * rho."""
