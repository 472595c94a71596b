"""The answer of `check`: verdict per guarantee with its chain, findings, what other commands enforce."""

from __future__ import annotations

from typing import Any

from kcverify import __version__
from kcverify.codes import BY_SLUG
from kcverify.diagnostics import Diagnostic
from kcverify.elaborate.contract import Contract
from kcverify.exact import decimal_down, decimal_near
from kcverify.output import chain
from kcverify.output.style import paint, plural, table
from kcverify.prove.check import Checked
from kcverify.prove.verdict import Counterexample, Route, Status, Verdict
from kcverify.render import render

ELSEWHERE = "  read and checked here, enforced elsewhere: "
_ENFORCED = {"observability": "measure, gate", "escalate": "gateway", "promote": "gate, promote"}


def diagnostic_data(d: Diagnostic) -> dict[str, Any]:
    """A diagnostic as plain data."""
    return {
        "code": d.code.id, "slug": d.code.slug, "severity": d.severity.value, "message": d.message, "place": d.span.place if d.span else None,
        "hint": d.hint, "related": [{"place": r.span.place, "label": r.label} for r in d.related],
    }  # fmt: skip


def _route_data(route: Route) -> dict[str, Any]:
    return {
        "clauses": list(route.fact.sources()), "bound": chain.shown(route.fact.value, route.atom.upper),
        "bound_exact": str(route.fact.value), "threshold": decimal_near(route.threshold, 12),
        "slack": decimal_down(route.slack, chain.DIGITS), "holds": route.holds, "counted": route.counted, "note": route.note,
        "by_formulas": chain.shown(route.formula.value, route.atom.upper) if route.formula is not None else None,
        "chain": chain.links(route.fact),
    }  # fmt: skip


def _counterexample_data(c: Counterexample) -> dict[str, Any]:
    return {
        "story": c.story, "temperature": str(c.temperature), "horizon": c.horizon, "reference_logits": [str(x) for x in c.reference_logits],
        "candidate_logits": [str(x) for x in c.candidate_logits], "exceeding_share": str(c.exceeding_share), "reference": list(c.reference),
        "candidate": list(c.candidate), "readings": [{"clause": n, "quantity": q, "value": v} for n, q, v in c.readings],
    }  # fmt: skip


def verdict_data(v: Verdict) -> dict[str, Any]:
    """A verdict as plain data; `bound`, `slack` and `chain` are those of the binding route."""
    binding = min(v.best, key=lambda r: r.slack, default=None)
    return {
        "name": v.claim.name, "claim": v.claim.text, "slice": v.scope or None, "verdict": v.status.value, "step": v.step,
        "code": BY_SLUG[v.code].id if v.code else None, "slug": v.code or None,
        "bound": chain.shown(binding.fact.value, binding.atom.upper) if binding else None,
        "threshold": decimal_near(binding.threshold, 12) if binding else None,
        "slack": decimal_down(binding.slack, chain.DIGITS) if binding else None,
        "binding": list(binding.fact.sources()) if binding else [], "chain": chain.links(binding.fact) if binding else [],
        "routes": [_route_data(r) for r in v.routes], "reason": v.reason, "would_do": list(v.remedies), "core": list(v.core),
        "provable_at": chain.shown(v.gap, v.gap_upper) if v.gap is not None else None, "assumed": list(v.assumed),
        "counterexample": _counterexample_data(v.counterexample) if v.counterexample else None, "place": v.claim.span.place,
    }  # fmt: skip


def contract_data(c: Checked) -> dict[str, Any]:
    """One checked contract as plain data."""
    return {
        "name": c.contract.name, "version": c.contract.version, "digest": c.digest, "verdicts": [verdict_data(v) for v in c.verdicts],
        "filled": {b.clause.name: b.decimal for b in c.budgets},
        "findings": [diagnostic_data(d) for d in c.report.diagnostics], "not_enforced": list(c.unenforced), "claims_nothing": claims_nothing(c), "exit_code": c.exit_code,
    }  # fmt: skip


def data(files: list[tuple[str, list[Diagnostic], list[Checked]]], exit_code: int) -> dict[str, Any]:
    """The whole answer as plain data."""
    return {
        "kcverify": __version__,
        "exit_code": exit_code,
        "files": [
            {
                "file": name,
                "diagnostics": [diagnostic_data(d) for d in found],
                "contracts": [contract_data(c) for c in checked],
            }
            for name, found, checked in files
        ],
    }


def claims_nothing(c: Checked) -> bool:
    """Whether the contract has no guarantee, so that its exit code says nothing about one."""
    return not c.contract.guarantees


def text(c: Checked, color: bool) -> str:
    """One checked contract for a terminal."""
    parts = [_title(c.contract, color)]
    parts += [
        f"  `{b.clause.name}` is filled with {'<=' if b.upper else '>='} {b.decimal} (see `kcverify derive`)"
        for b in c.budgets
    ]
    parts += [_verdict(v, color) for v in c.verdicts]
    parts += [render(d, color=color) for d in c.report.diagnostics]
    if claims_nothing(c):
        parts.append("  no guarantee is claimed, so there is nothing to prove")
    if c.unenforced:
        words = ", ".join(f"{name} ({_ENFORCED[name]})" for name in c.unenforced)
        parts.append(paint(ELSEWHERE + words, "dim", color))
    return "\n\n".join(parts)


def _title(contract: Contract, color: bool) -> str:
    version = f" {contract.version}" if contract.version else ""
    about = f": {contract.description}" if contract.description else ""
    return paint(f"{contract.name}{version}", "bold", color) + about


def _verdict(v: Verdict, color: bool) -> str:
    where = f" on {v.scope}" if v.scope else ""
    code = f" [{BY_SLUG[v.code].id} {v.code}]" if v.code else ""
    lines = [
        f"  {paint(v.status.value, v.status.value, color)}{code} {paint(v.claim.name, 'bold', color)}{where}: {_claim(v)}"
    ]
    if v.status is not Status.PROVED:
        lines.append(f"    {v.reason}")
    for route in v.best:
        if route.holds or (v.status is Status.UNKNOWN and route.counted):
            lines += _route(route, v)
    if v.remedies:
        lines.append("    any one of these would do: " + "; ".join(v.remedies))
    if v.counterexample is not None:
        lines += _instance(v.counterexample, v)
    if v.step == "linear":
        lines.append("    by linear arithmetic over the clauses and lemmas: " + ", ".join(v.core))
    lines += _others(v, color)
    if v.assumed:
        lines.append(paint("    assumed, since the contract does not say: " + ", ".join(v.assumed), "dim", color))
    return "\n".join(lines)


def _claim(v: Verdict) -> str:
    text = v.claim.text
    return text.split(":", 1)[1].strip() if ":" in text else text


def _route(route: Route, v: Verdict) -> list[str]:
    lines = table(chain.rows(route.fact), indent=6)
    relation = "<=" if route.atom.upper else ">="
    names = ", ".join(f"`{n}`" for n in route.fact.sources())
    if route.holds:
        share = f" ({decimal_down(route.slack * 100 / route.threshold, 3)}% of the limit)" if route.threshold else ""
        ending = (
            f"    bound {chain.shown(route.fact.value, route.atom.upper)} {relation} {decimal_near(route.threshold, 12)}, "
            f"slack {decimal_down(route.slack, chain.DIGITS)}{share}; binding clause: {names}"
        )
    else:
        ending = f"    bound {chain.shown(route.fact.value, route.atom.upper)} is not {relation} {decimal_near(route.threshold, 12)}; tightest chain, from {names}"
    if route.formula is not None:
        lemma = next(f.lemma.name for f in route.formula.chain() if f.node.quantity == "tv_seq" and f.lemma is not None)
        ending += f"\n    by formulas alone ({lemma}): {chain.shown(route.formula.value, route.atom.upper)}"
    return [*lines, ending]


def _others(v: Verdict, color: bool) -> list[str]:
    """Chains of other clauses, one line each."""
    main = {r.fact.sources() for r in v.best}
    lines = []
    for r in v.routes:
        if r.fact.sources() in main and r.counted:
            continue
        names = ", ".join(f"`{n}`" for n in r.fact.sources())
        note = r.note or ("would do as well" if r.holds else "does not reach it")
        lines.append(
            paint(
                f"    also {names}: {r.atom.node.quantity} {'<=' if r.atom.upper else '>='} {chain.shown(r.fact.value, r.atom.upper)} ({note})",
                "dim",
                color,
            )
        )
    return lines


def _instance(c: Counterexample, v: Verdict) -> list[str]:
    lines = [f"    counterexample: {c.story}"]
    lines += table(
        [
            ("token", *(str(i) for i in range(len(c.reference_logits)))),
            ("reference logits", *(str(x) for x in c.reference_logits)),
            ("candidate logits", *(str(x) for x in c.candidate_logits)),
            ("reference probabilities", *c.reference),
            ("candidate probabilities", *c.candidate),
        ],
        indent=6,
    )
    broken = c.readings[-1]
    lines += [f"      {name}: {quantity} = {value}" for name, quantity, value in c.readings[:-1]]
    lines.append(f"      {broken[0]}: {broken[1]} is {broken[2]}, beyond the claim")
    return lines


def closing(checked: list[Checked], color: bool, kernels: int = 0) -> str:
    """One line that counts what was decided; `kernels` is the number of kernel contracts, which `check` does not run."""
    unrun = f"{plural(kernels, 'kernel contract')}: read and checked, not run" if kernels else ""
    if not checked:
        return unrun or "0 contracts: nothing was checked"
    words = [v.status for c in checked for v in c.verdicts]
    counts = [f"{words.count(s)} {paint(s.value, s.value, color)}" for s in Status if words.count(s)]
    found = [d.severity.value for c in checked for d in c.report.diagnostics]
    findings = [plural(found.count(s), s) for s in ("error", "warning", "note") if found.count(s)]
    silent = sum(claims_nothing(c) for c in checked)
    if silent == len(checked):
        findings.append("no guarantee is claimed, so nothing was proved")
    elif silent:
        findings.append(f"{silent} of them {'claims' if silent == 1 else 'claim'} no guarantee")
    line = f"{plural(len(checked), 'contract')}: " + ", ".join([*counts, *findings])
    return f"{line}; {unrun}" if unrun else line
