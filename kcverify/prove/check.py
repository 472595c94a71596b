"""Everything that `check` says about one contract: verdicts on its guarantees and findings about its clauses."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kcverify.catalog.quantities import BY_NAME
from kcverify.diagnostics import Report
from kcverify.elaborate.contract import Clause, Contract
from kcverify.elaborate.form import digest
from kcverify.exact import decimal_near
from kcverify.prove.budget import Budget, Demand, derive, fill
from kcverify.prove.consistency import consistency, not_enforced
from kcverify.prove.feasibility import storage_findings
from kcverify.prove.lognormal import length_findings
from kcverify.prove.measurability import carrier_findings, sample_findings
from kcverify.prove.obligations import atoms, narrowed, temperatures
from kcverify.prove.policy import policy_findings
from kcverify.prove.prover import prove
from kcverify.prove.sampled import sampled_findings
from kcverify.prove.slices import slice_findings
from kcverify.prove.verdict import Limits, Status, Verdict


@dataclass(frozen=True)
class Checked:
    """Verdicts on one contract's guarantees, findings about its clauses, and what no monitor enforces yet."""

    contract: Contract
    digest: str
    verdicts: tuple[Verdict, ...]
    report: Report
    unenforced: tuple[str, ...]
    budgets: tuple[Budget, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 all proved; 1 refuted or a finding of severity error; 3 unknown."""
        if self.report.errors or any(v.status is Status.REFUTED for v in self.verdicts):
            return 1
        return 3 if any(v.status is Status.UNKNOWN for v in self.verdicts) else 0


def report_holes(failed: list[tuple[Clause, tuple[Demand, ...]]], report: Report) -> None:
    """Why no number fills a hole: no guarantee rests on it, or something else already spends the tolerance."""
    for clause, demands in failed:
        if not demands:
            report.add("hole_unused", clause.value_span, name=clause.name)
        for d in demands:
            if d.value is None:
                report.add(
                    "hole_impossible", clause.value_span, name=clause.name, reason=f"`{d.claim.name}`: {d.blocked}"
                )


def findings(contract: Contract, report: Report, limits: Limits) -> None:
    """Everything that is wrong with the clauses, the slices and the policy, each by its own module."""
    if not impossible_limits(contract, report):
        consistency(contract, report, limits)
    sampled_findings(contract, report)
    slice_findings(contract, report, limits)
    storage_findings(contract, report)
    length_findings(contract, report)
    sample_findings(contract, report)
    carrier_findings(contract, report)
    policy_findings(contract, report, limits)


def _void(verdict: Verdict) -> Verdict:
    """A proof from clauses that exclude each other proves nothing: everything follows from them."""
    if verdict.status is not Status.PROVED:
        return verdict
    reason = "the clauses exclude each other, so everything would follow from them"
    return Verdict(verdict.claim, verdict.scope, Status.UNKNOWN, "none", (), (), reason, assumed=verdict.assumed)


def _ends(contract: Contract, clause: Clause) -> list[Fraction]:
    """The temperatures at which a clause begins and ceases to bind; none where its band lies outside the assumed range."""
    within = narrowed(contract, clause) if clause.band is None or clause.band.parameter == "temperature" else contract
    if within is None:
        return []
    return list(temperatures(within))


def impossible_limits(contract: Contract, report: Report) -> bool:
    """Report clauses that no pair of kernels meets by themselves, such as a ratio range without 1; True if any.

    A limit that moves with the temperature must be possible wherever the clause binds.
    """
    found = False
    for clause in contract.clauses:
        for atom in atoms(clause) if not clause.limit.hole else ():
            q = BY_NAME[atom.node.quantity]
            worst = min(
                _ends(contract, clause), key=atom.at if atom.upper else lambda t, a=atom: -a.at(t), default=None
            )
            if worst is None:
                continue
            below = atom.upper and atom.at(worst) < q.low
            above = not atom.upper and q.high is not None and atom.at(worst) > q.high
            if below or above:
                at = f" as this limit at temperature {decimal_near(worst, 6)}" if atom.slope else ""
                what = (
                    "a ratio range must contain 1"
                    if q.name.startswith("ratio_")
                    else f"{q.title} is never {'so small' if below else 'so large'}{at}"
                )
                report.add("contradictory", clause.span, clauses=f"`{clause.name}`", reason=what)
                found = True
                break
    return found


def check(contract: Contract, limits: Limits | None = None) -> Checked:
    """Fill the holes, prove the guarantees and look for faults in the clauses.

    The digest is that of the contract as it was written; verdicts are about the filled one.
    """
    limits = limits or Limits()
    report = Report()
    written = digest(contract)
    budgets: list[Budget] = []
    if any(c.limit.hole for c in contract.clauses):
        budgets, failed = derive(contract, limits)
        report_holes(failed, report)
        contract = fill(contract, budgets)
    findings(contract, report, limits)
    verdicts = prove(contract, limits)
    if any(d.code.slug == "contradictory" for d in report.diagnostics):
        verdicts = tuple(_void(v) for v in verdicts)
    return Checked(contract, written, verdicts, report, tuple(not_enforced(contract)), tuple(budgets))
