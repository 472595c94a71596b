"""The masks of one contract: limits on log ratios and budgets on prefixes, each clause counted for itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from kcverify.rl.ratios import Ratios, ratios
from kcverify.rl.region import stopped
from kcverify.rl.report import KEPT_FLOOR, Report, report


@dataclass(frozen=True)
class Rule:
    """What one clause asks of a mask.

    `level` `token`, `sequence` or `geometric`: the log ratio trainer - rollout of each unit in `[log_low, log_high]`
    nats. `upper`: the certified upper bound of each token's total variation at most `budget`; `prefix`: their sum over
    each prefix. `allowed` is the share of units that the clause itself excepts. A rule on `slices` binds responses in all of them. `statement` says what being kept
    means.
    """

    clause: str
    level: str
    text: str
    statement: str
    log_low: float = -math.inf
    log_high: float = math.inf
    budget: float = math.inf
    allowed: float = 0.0
    slices: tuple[str, ...] = ()


@dataclass(frozen=True)
class ContractMasks:
    """A mask for each clause that can be one, and the reason for every clause that cannot.

    Call it as any method of the table: `(trainer_logprobs, rollout_logprobs, mask) -> (weights, report)`, weights 1 or 0.
    """

    contract: str
    version: str = ""
    digest: str = ""
    rules: tuple[Rule, ...] = ()
    not_enforced: tuple[tuple[str, str], ...] = field(default=())

    def __call__(
        self,
        trainer_logprobs: Tensor,
        rollout_logprobs: Tensor,
        mask: Tensor,
        *,
        upper: Tensor | None = None,
        prefix_only: bool = False,
        slices: Mapping[str, Tensor] | None = None,
        kept_floor: float = KEPT_FLOOR,
    ) -> tuple[Tensor, Report]:
        """Drop what leaves the limits of any clause; `[B, T]` tensors, `slices` maps names to bool `[B]`.

        `upper[B, T]` are certified upper bounds of each token's total variation, which budgets need; `prefix_only` says
        that they do not depend on the sampled token. The details have, for each clause, the dropped share of its units,
        what it allows, and whether this batch exceeds it: then the mask hides a failure, however much is left. A clause
        whose inputs are missing is a finding, never a pass. Raises ValueError for shapes.
        """
        found = ratios(trainer_logprobs, rollout_logprobs, mask)
        keep = found.live.clone()
        counted: dict[str, dict[str, Any]] = {}
        findings: list[str] = []
        for rule in self.rules:
            bound = _binds(rule, found, slices or {})
            if bound is None or (rule.level in ("prefix", "upper") and upper is None):
                need = "`upper`" if bound is not None else "the slices " + ", ".join(rule.slices)
                findings.append(f"clause `{rule.clause}` is not enforced: it needs {need}")
                continue
            if rule.level == "prefix" and not prefix_only:
                findings.append(f"clause `{rule.clause}` is not certified: its bounds may depend on what was sampled")
            inside = _inside(rule, found, upper)
            keep &= inside | ~bound
            counted[rule.clause] = _count(rule, found, inside, bound)
            if counted[rule.clause]["exceeded"]:
                findings.append(
                    f"mask_hides_failure: {counted[rule.clause]['dropped']:.4g} of the units of clause `{rule.clause}` "
                    f"were dropped in this batch, {rule.allowed:.4g} are allowed"
                )
        made = report(
            f"contract {self.contract}", "reject", found, "token", keep, keep.to(found.kind),
            kept_floor=kept_floor, details={"clauses": counted, "findings": tuple(findings)},
        )  # fmt: skip
        hidden = made.mask_hides_failure or any(one["exceeded"] for one in counted.values())
        return keep.to(found.kind), replace(made, mask_hides_failure=hidden)


def _binds(rule: Rule, found: Ratios, slices: Mapping[str, Tensor]) -> Tensor | None:
    """Tokens that the rule is about; None where a slice is not given."""
    bound = found.used
    for name in rule.slices:
        if name not in slices:
            return None
        bound = bound & (slices[name] != 0)[:, None]
    return bound


def _inside(rule: Rule, found: Ratios, upper: Tensor | None) -> Tensor:
    """Tokens `[B, T]` within the rule's limits."""
    if upper is not None and rule.level == "prefix":
        return stopped(found, upper, rule.budget)[0]
    with torch.no_grad():
        if upper is not None and rule.level == "upper":
            return found.usable & (upper <= rule.budget)
        log, defined = found.unit(rule.level)
        inside = defined & (log >= rule.log_low) & (log <= rule.log_high)
        return inside.expand_as(found.used) & found.usable


def _count(rule: Rule, found: Ratios, inside: Tensor, bound: Tensor) -> dict[str, Any]:
    """Share of the rule's units outside its limits in this batch; a prefix has none that it allows or forbids."""
    if rule.level not in ("sequence", "geometric"):
        units, outside = int(bound.sum()), int((bound & ~inside).sum())
    else:
        units, outside = int(bound.any(1).sum()), int((bound & ~inside).any(1).sum())
    share = outside / units if units else 0.0
    exceeded = rule.level != "prefix" and share > rule.allowed
    return {"units": units, "dropped": share, "allowed": rule.allowed, "exceeded": exceeded}
