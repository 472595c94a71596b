"""Rules of Prometheus: the alarm of each clause as an expression over raw counters, burn rates beside it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from kcverify.elaborate.contract import Contract
from kcverify.exact import decimal_near
from kcverify.exporters import evidence
from kcverify.exporters.evidence import Measured, measured, selector
from kcverify.exporters.names import EXCEEDANCES, INVALID, MISSING, OBSERVATIONS
from kcverify.exporters.text import expression, untemplated, yaml_text

BURNS = (
    (Fraction(144, 10), "1h", "5m"),
    (Fraction(6), "6h", "30m"),
    (Fraction(1), "3d", "6h"),
)
"""Factor of the allowed rate, long and short window."""
_BY = "sum by (contract, clause, slice)"
SILENT_FOR = "10m"


def rules(contract: Contract) -> str:
    """The rule file of a contract."""
    found, silent = measured(contract)
    about = [
        f"alert rules of the contract {contract.name}, version {contract.version}",
        f"{evidence.VERDICT}: 1 pass, 0 inconclusive, -1 fail. That no alert fires is no pass.",
        "An alert is the verdict on the counters as they stand; that a clause once failed is kept by the gate, not here.",
        *(f"clause {name} has no rule: {reason}" for name, reason in silent.items()),
    ]
    own: list[dict[str, Any]] = []
    for one in found:
        own += [*_evidence(one, contract), _alert(one, contract), *_absent(one, contract)]
        burning, left_out = _burn_rates(one, contract)
        own += burning
        about += left_out
        if one.note:
            about.append(f"clause {one.name}: {one.note}")
    groups = [{"name": f"kcverify {contract.name}", "rules": [*(_sums(contract) if found else []), *own]}]
    return yaml_text([{"groups": groups}], about)


def _sums(contract: Contract) -> list[dict[str, Any]]:
    """Sums of the counters over processes; a counter that is not there yet counts as 0 beside its observations."""
    series = selector(contract.name)
    seen = f"{_BY} ({OBSERVATIONS}{series})"
    out = [{"record": evidence.SEEN, "expr": expression(seen)}]
    for name, counter in (
        (evidence.EXCEEDING, EXCEEDANCES),
        (evidence.INVALID, INVALID),
        (evidence.MISSING, MISSING),
    ):
        text = f"{_BY} ({counter}{series})\nor\n{evidence.SEEN}{series} * 0"
        out.append({"record": name, "expr": expression(text)})
    clean = f"clamp_min({evidence.SEEN}{series} - {evidence.EXCEEDING}{series}, 0)"
    return [*out, {"record": evidence.CLEAN, "expr": expression(clean)}]


def _evidence(one: Measured, contract: Contract) -> list[dict[str, Any]]:
    labels = {"contract": contract.name, "clause": one.name}
    rows = [
        (evidence.AGAINST, one.against),
        (evidence.FOR, one.for_),
        (evidence.FAILS, evidence.fails(one, contract.name)),
        (evidence.VERDICT, evidence.verdict(one, contract.name)),
    ]
    return [{"record": name, "expr": expression(text), "labels": labels} for name, text in rows if text is not None]


def _labels(one: Measured, contract: Contract, **more: str) -> dict[str, str]:
    """Labels of an alert, which are templates of Go."""
    labels = {"contract": contract.name, "clause": one.name, **more}
    return {name: untemplated(value) for name, value in labels.items()}


def _alert(one: Measured, contract: Contract) -> dict[str, Any]:
    clause = one.planned.clause
    action = next((a.action for a in contract.actions if a.severity == clause.severity), "alert")
    how = (
        "the clause allows no exception, and its limit was exceeded"
        if one.kind == "clean"
        else f"the evidence against the limit reached {one.threshold:.6g}; it may be looked at as often as wanted"
    )
    on = "{{ if $labels.slice }} on {{ $labels.slice }}{{ end }}"
    return {
        "alert": "KcverifyClauseFails",
        "expr": expression(f"{evidence.FAILS}{selector(contract.name, one.name, one.slices)} == 1"),
        "labels": _labels(one, contract, severity=clause.severity, action=action),
        "annotations": {
            "summary": f"{untemplated(contract.name)}: {untemplated(one.name)} fails{on}",
            "description": f"{untemplated(clause.text)}: {how}, or a value was not finite",
        },
    }


def _absent(one: Measured, contract: Contract) -> list[dict[str, Any]]:
    """Nothing measured is inconclusive; it must not look like silence."""
    return [
        {
            "alert": "KcverifyClauseUnmeasured",
            "expr": expression(f"absent({OBSERVATIONS}{selector(contract.name, one.name, (name,))})"),
            "for": SILENT_FOR,
            "labels": _labels(one, contract, slice=name, severity="unmeasured"),
            "annotations": {
                "summary": f"{untemplated(contract.name)}: nothing is measured of {untemplated(one.name)}"
                + (f" on {untemplated(name)}" if name else ""),
                "description": "no counter of it is scraped: its verdict is inconclusive, which is no pass",
            },
        }
        for name in one.slices
    ]


def _burn_rates(one: Measured, contract: Contract) -> tuple[list[dict[str, Any]], list[str]]:
    """Burn-rate rules of a binary clause with an exception; a rate above 1 is none that traffic can reach."""
    if one.kind != "binary":
        return [], []
    out, left_out = [], []
    allowed = one.allowed
    for factor, long, short in BURNS:
        rate = factor * allowed
        if rate >= 1:
            told = f"{decimal_near(factor, 4)} times {decimal_near(allowed, 6)} is no rate below 1"
            left_out.append(f"clause {one.name}: no burn-rate rule over {long}: {told}")
            continue
        parts = [_burn(one, contract, window, rate) for window in (long, short)]
        clause = untemplated(one.planned.clause.text)
        out.append(
            {
                "alert": "KcverifyBurnRate",
                "expr": expression("\nand\n".join(parts)),
                "labels": _labels(one, contract, severity="burn-rate", window=long, factor=decimal_near(factor, 4)),
                "annotations": {
                    "summary": f"{untemplated(contract.name)}: {untemplated(one.name)} uses up its exception fast",
                    "description": f"{clause}: over {long} and {short} the rate is above {decimal_near(factor, 4)} times what is "
                    "allowed. A hint for people, no verdict: it has no guarantee against false alarms",
                },
            }
        )
    return out, left_out


def _burn(one: Measured, contract: Contract, window: str, rate: Fraction) -> str:
    series = selector(contract.name, one.name, one.slices)
    bad, seen = (f"{_BY} (rate({name}{series}[{window}]))" for name in (EXCEEDANCES, OBSERVATIONS))
    return f"(\n  {bad}\n/\n  {seen}\n) > {float(rate)!r}"
