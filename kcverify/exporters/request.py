"""What a renderer is given: the contract, verdicts of a run, events of a store, the address of the gateway."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from urllib.parse import urlsplit

from kcverify.delivery.chain import Event
from kcverify.diagnostics import Diagnostic, input_error
from kcverify.elaborate.contract import Contract, Stage
from kcverify.elaborate.form import digest
from kcverify.exporters.verdicts import Verdicts
from kcverify.prove.check import Checked

GATEWAY = "http://kcverify-gateway:8080"
_ADDRESS = re.compile(r"https?://[A-Za-z0-9._~:\[\]-]+(?:/[A-Za-z0-9._~/-]*)?")


@dataclass(frozen=True)
class Request:
    """Each part is None or empty where a target does not need it. `path` is the contract's file."""

    contract: Contract | None = None
    path: str = ""
    findings: Sequence[Diagnostic] = ()
    checked: Checked | None = None
    verdicts: Verdicts | None = None
    store: str = ""
    events: Sequence[Event] = field(default=())
    gateway: str = GATEWAY

    @property
    def subject(self) -> Contract:
        """The contract, of a target that cannot do without one."""
        assert self.contract is not None
        return self.contract

    @property
    def identity(self) -> dict[str, str]:
        """Name, version and digest of the contract as annotations."""
        c = self.subject
        return {"kcverify/contract": c.name, "kcverify/version": c.version, "kcverify/digest": digest(c)}


def address(text: str, option: str = "--gateway") -> str:
    """The address of a server without a slash at its end. Raises InputError: `option_invalid`."""
    if not _ADDRESS.fullmatch(text) or not _port(text):
        reason = f"`{text}` is no address of a server"
        raise input_error("option_invalid", option=option, reason=reason, hint=f"{option} {GATEWAY}")
    return text.rstrip("/")


def _port(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def closed(contract: Contract) -> None:
    """Raises InputError: `hole_open` for a limit that is not filled, of which no rule could be made."""
    hole = next((c for c in contract.clauses if c.limit.hole), None)
    if hole is not None:
        raise input_error("hole_open", hole.value_span, name=hole.name)


def stages(contract: Contract) -> tuple[Stage, ...]:
    """The stages that see traffic. Raises InputError: `stage_undeclared` where there is none."""
    found = tuple(s for s in contract.stages if s.name != "offline")
    if not found:
        raise input_error(
            "stage_undeclared", contract=contract.name, stage="canary", known="; it has none with traffic"
        )
    return found


def percents(shares: Sequence[Fraction]) -> tuple[list[int], list[str]]:
    """Shares of traffic as whole percents, never more than the contract allows, and what was lost by it."""
    out: list[int] = []
    lost: list[str] = []
    for share in shares:
        percent = share * 100
        whole = percent.numerator // percent.denominator
        if whole != percent:
            told = f"became {whole} %" if whole >= 1 else "is left out"
            lost.append(f"the share of {float(percent):g} % {told}: only whole percents can be said here")
        if whole >= 1 and whole not in out:
            out.append(whole)
    return out, lost
