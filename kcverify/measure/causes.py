"""Splits a pair's drift into three causes: what the format stores, what the kernel computes, and what a run repeats.

The points are the reference, each side's format without its kernel (`kernels.format_only`), and the candidate. Each cause
is the step between two of them, measured on the same rows; run noise is the reference against itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kcverify.elaborate.contract import Contract
from kcverify.measure.exactness import exactness
from kcverify.measure.figures import FIGURES, Tally, adding_up
from kcverify.measure.kernels import format_only
from kcverify.measure.noise import VARIATIONS, Variation, below_floor, highest
from kcverify.measure.run import Rows
from kcverify.measure.sides import FileSide, KernelSide, Side, model_logits, pack_all
from kcverify.runtime.report import number

Feed = Callable[[Any, Contract, Rows], None]
"""`feed(monitor, contract, rows)`: measures the rows."""


@dataclass(frozen=True)
class Cause:
    """One step between two points. `needs` are the roles whose format must be known for it to be observable."""

    name: str
    title: str
    start: str
    end: str
    needs: tuple[str, ...]
    about: str


CAUSES: tuple[Cause, ...] = (
    Cause(
        "format", "format error", "reference_format", "candidate_format", ("reference", "candidate"),
        "what the candidate's format stores against what the reference's stores, both in float32 arithmetic",
    ),
    Cause(
        "kernel", "kernel error", "candidate_format", "candidate", ("candidate",),
        "the candidate's kernel against float32 arithmetic on the values that its format stores",
    ),
    Cause(
        "reference_kernel", "kernel error of the reference", "reference", "reference_format", ("reference",),
        "float32 arithmetic on the values that the reference's format stores against the reference's own kernel",
    ),
)  # fmt: skip
"""The steps from the reference to the candidate; together they make up the whole."""


class Causes:
    """Takes in the rows of a run and splits their drift. `take(rows)` for every batch, then `report()`.

    `feed` and `new_monitor` measure the contract's clauses on run noise alone.
    """

    def __init__(
        self, reference: Side, candidate: Side, temperature: float, contract: Contract, feed: Feed,
        new_monitor: Callable[[], Any],
    ) -> None:  # fmt: skip
        self.sides: dict[str, Side] = {"reference": reference, "candidate": candidate}
        self.temperature = temperature
        self.contract = contract
        self.feed = feed
        self.known = [
            role for role, side in self.sides.items() if isinstance(side, KernelSide) and side.basis is not None
        ]
        self.formats: dict[str, Callable[[Tensor], Tensor]] = {}
        self.reasons = {cause.name: self._obstacle(cause) for cause in CAUSES}
        self.whole = Tally()
        self.parts = {cause.name: Tally() for cause in CAUSES if not self.reasons[cause.name]}
        self.noise: dict[str, tuple[Tally, Any]] = {}
        self.skipped: dict[str, str] = {}
        self.new_monitor = new_monitor

    def _obstacle(self, cause: Cause) -> str:
        """Why a cause is not observable, or the empty string."""
        for role in cause.needs:
            if role not in self.known:
                return f"{_nature(self.sides[role])}, and what its format stores is not known"
        if len(cause.needs) == 2:
            weights = [self.sides[role].fingerprint.get("weights") for role in cause.needs]
            if weights[0] != weights[1]:
                return "the two sides hold different models: the difference of their weights is not that of a format"
        return ""

    def take(self, rows: Rows) -> None:
        """One batch: all points on the same token ids, in the batch that the run used."""
        self.whole.add(rows.reference, rows.candidate, self.temperature)
        ids = torch.tensor([request.token_ids for request in rows.requests])
        points = {"reference": rows.reference, "candidate": rows.candidate}
        for role in self.known:
            if role not in self.formats:
                self.formats[role] = _format_logits(self.sides[role])
            points[f"{role}_format"] = _flat(self.formats[role](ids)).to(rows.reference.device)
        for cause in CAUSES:
            if cause.name in self.parts:
                self.parts[cause.name].add(points[cause.start], points[cause.end], self.temperature)
        reference = self.sides["reference"]
        if isinstance(reference, KernelSide):
            for variation in VARIATIONS:
                self._vary(reference, variation, rows, ids)

    def _vary(self, reference: KernelSide, variation: Variation, rows: Rows, ids: Tensor) -> None:
        reason = variation.obstacle(reference, ids)
        if reason:
            self.skipped[variation.name] = reason
            return
        again = variation.run(reference, ids)
        kept = rows.positions < again.shape[1]
        base = rows.reference[kept.to(rows.reference.device)]
        other = _flat(again).to(base.device)
        if variation.name not in self.noise:
            self.noise[variation.name] = (Tally(), self.new_monitor())
        tally, monitor = self.noise[variation.name]
        tally.add(base, other, self.temperature)
        places = [i for i, keep in enumerate(kept.tolist()) if keep]
        varied = replace(
            rows, reference=base, candidate=other, request_index=rows.request_index[kept], positions=rows.positions[kept],
            next_ids=rows.next_ids[kept], request_ids=[rows.request_ids[i] for i in places],
        )  # fmt: skip
        self.feed(monitor, self.contract, varied)

    def report(self) -> dict[str, Any]:
        """The split as plain data: the whole, its parts, run noise, how they add up, and clauses below the noise floor."""
        floor = highest([tally for tally, _ in self.noise.values()])
        parts = [self._part(cause, floor) for cause in CAUSES]
        seen = all(part["observable"] for part in parts)
        return {
            "rows": self.whole.rows,
            "temperature": self.temperature,
            "whole": self.whole.summary(),
            "parts": parts,
            "noise": self._noise(floor),
            "adding_up": adding_up(self.whole, list(self.parts.values())) if seen and self.whole.rows else None,
            "clauses_below_noise": self._below(),
            "notes": self._notes(),
        }

    def _part(self, cause: Cause, floor: Mapping[str, Mapping[str, float]] | None) -> dict[str, Any]:
        head = {"name": cause.name, "title": cause.title, "about": cause.about}
        tally = self.parts.get(cause.name)
        if tally is None:
            return head | {"observable": False, "reason": self.reasons[cause.name]}
        within = None if floor is None or not tally.rows else _within(tally, floor)
        return head | {"observable": True, "reason": "", "within_noise": within} | tally.summary()

    def _noise(self, floor: Mapping[str, Mapping[str, float]] | None) -> dict[str, Any]:
        head = {"title": "run noise", "about": "the reference against itself: the largest of the variations"}
        reference = self.sides["reference"]
        if floor is None:
            reason = "no row was measured"
            if isinstance(reference, FileSide):
                reason = (
                    f"{_nature(reference)}, which holds one run; record the reference twice and compare the two files"
                )
            return head | {"observable": False, "reason": reason, "variations": []}
        variations = []
        for variation in VARIATIONS:
            entry = {"name": variation.name, "title": variation.title}
            if variation.name in self.noise:
                variations.append(entry | {"observable": True, "reason": ""} | self.noise[variation.name][0].summary())
            else:
                variations.append(entry | {"observable": False, "reason": self.skipped[variation.name]})
        exact = all(tally.bit_exact for tally, _ in self.noise.values())
        shown = {name: {key: number(value) for key, value in three.items()} for name, three in floor.items()}
        return head | {"observable": True, "reason": "", "bit_exact": exact, "floor": shown, "variations": variations}

    def _below(self) -> list[dict[str, Any]]:
        """Clauses that run noise alone breaks, each with the variation that goes furthest beyond it."""
        found: dict[tuple[str, str | None], dict[str, Any]] = {}
        for variation in VARIATIONS:
            for entry in below_floor(self.noise[variation.name][1], variation) if variation.name in self.noise else ():
                key = entry["clause"], entry["slice"]
                if key not in found or _beyond(entry) > _beyond(found[key]):
                    found[key] = entry
        return list(found.values())

    def _notes(self) -> list[str]:
        out = []
        for side in self.sides.values():
            if isinstance(side, KernelSide) and side.basis is not None:
                out += [f"{side.name}: {text}" for text in exactness(side.basis)]
        return out


def _format_logits(side: Side) -> Callable[[Tensor], Tensor]:
    """The side with its format alone: the values that it stores, in float32 arithmetic."""
    assert isinstance(side, KernelSide)
    assert side.basis is not None
    stored = pack_all(side.basis.model, format_only(side.basis.kernel))
    return model_logits(side.name, side.basis.model, side.device, lambda name: stored)


def _flat(logits: Tensor) -> Tensor:
    return logits.reshape(-1, logits.shape[-1])


def _nature(side: Side) -> str:
    return f"{side.name} is a file of logits" if isinstance(side, FileSide) else f"{side.name} is a function"


def _beyond(entry: Mapping[str, Any]) -> tuple[float, float]:
    """Share of rows beyond the limit, then how far the floor lies from it."""
    floor = math.nan if entry["floor"] is None else float(entry["floor"])
    return entry["beyond_share"], abs(floor - float(entry["limit"]))


def _within(tally: Tally, floor: Mapping[str, Mapping[str, float]]) -> bool:
    """Whether every mean is at most the noise floor's: then the figures say nothing about the cause."""
    means = {figure.name: tally.numbers(figure)["mean"] for figure in FIGURES}
    return all(means[name] <= floor[name]["mean"] for name in means)
