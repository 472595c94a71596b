"""From an elaborated contract to its masks, in memory: what `kcverify compile --rl` writes as a module."""

from __future__ import annotations

from dataclasses import asdict

from kcverify.diagnostics import input_error
from kcverify.elaborate.contract import Contract
from kcverify.elaborate.form import digest
from kcverify.emit.masks import plan_masks
from kcverify.rl.enforce import ContractMasks, Rule


def masks_of(contract: Contract) -> ContractMasks:
    """The masks of a contract; `rules` are the clauses that they enforce, `not_enforced` the others with reasons.

    Raises InputError: `hole_open`.
    """
    hole = next((c for c in contract.clauses if c.limit.hole), None)
    if hole is not None:
        raise input_error("hole_open", hole.value_span, name=hole.name)
    planned = plan_masks(contract)
    rules = tuple(Rule(**asdict(rule)) for rule in planned.rules)
    return ContractMasks(contract.name, contract.version, digest(contract), rules, planned.not_enforced)
