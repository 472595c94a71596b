"""Whether a candidate's tokens are drawn from the probabilities that it reports: a sampler at another temperature is not.

Log-probabilities before temperature look right whatever the sampler does with them. But the tokens tell: under the
reported probabilities every other distribution has a likelihood ratio of mean at most 1, and those of the same logits at
half to twice the temperature grow quickly where the sampler has it wrong. The ratios of a request are one step of a
restarting detector (`runtime.detector`), which forgets, and raises one false alarm in a million requests at most. Of an
answer with several choices the mean of their ratios is taken: its mean is at most 1 however the choices depend on each
other, and in whatever order an engine lists them.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from kcverify.gateway.observed import Listed
from kcverify.runtime.detector import Restarting

FACTORS = (0.5, 0.75, 1.0 / 0.75, 2.0)
"""Temperatures that are bet on, as parts of the one that was asked for."""
UNITS = 1_000_000.0
"""Requests between false alarms."""
SEEDS = 100_000
_NEUTRAL: Mapping[str, float] = {
    "top_p": 1.0, "top_k": 0.0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0,
    "temperature": 1.0,
}  # fmt: skip
_HARMLESS = frozenset({
    "model", "prompt", "n", "messages", "max_tokens", "max_completion_tokens", "seed", "stream", "stream_options", "logprobs",
    "top_logprobs", "user", "metadata", "stop", "stop_token_ids", "echo", "return_token_ids", "return_tokens_as_token_ids",
})  # fmt: skip
"""Fields that leave each token's distribution alone; a request with another one is not looked at."""


def plain(fields: Mapping[str, Any]) -> bool:
    """Whether the request asks for tokens from the model's own distribution at temperature 1."""
    for name, value in fields.items():
        if value is None or name in _HARMLESS:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or value != _NEUTRAL.get(name):
            return False
    return True


def steps(side: Listed, tokens: tuple[int, ...], error: float, vocabulary: int | None) -> list[float]:
    """Log likelihood ratio of the tokens for each factor; 0 where a position does not show its distribution.

    Cells of a position are its listed tokens and the rest of the vocabulary. A reported log-probability may be `error`
    nats too low, so that a cell's probability is taken as large as it can be: the mean of the ratio is at most 1.
    """
    listed = side.ids >= 0
    if not listed.any():
        return [0.0] * len(FACTORS)
    logs = np.where(listed, side.top, -np.inf)
    mass = np.exp(logs).sum(axis=1)
    count = listed.sum(axis=1)
    rest = np.log(np.maximum(np.maximum(1.0 - mass, 0.0) + error * mass, 1e-300))
    others = np.log(np.maximum((vocabulary or 0) - count, 1))
    hit = listed & (side.ids == np.asarray(tokens, np.int64)[:, None])
    inside = hit.any(axis=1)
    own = np.where(inside, np.where(hit, logs, -np.inf).max(axis=1), rest)
    known = ~side.broken & np.isfinite(own) & (count > 0) & (mass <= 1.0 + 1e-3)
    factor = np.array(FACTORS)[:, None]
    tail = others + (rest - others) / factor
    tilted = np.concatenate((logs / factor[:, :, None], tail[:, :, None]), axis=2)
    chosen = np.where(inside, own / factor, tail)
    with np.errstate(invalid="ignore"):
        ratio = np.where(known, chosen - np.logaddexp.reduce(tilted, axis=2) - own - error, 0.0)
    return [float(x) for x in ratio.sum(axis=1)]


class Drawn:
    """The watch of one candidate in one run. Requests that repeat a seed repeat their noise, and count once.

    `fresh` are the seeds since the last `taken`, `forgotten` how many of the oldest were dropped for them.
    """

    def __init__(self) -> None:
        self.watch = Restarting((-math.log(len(FACTORS)),) * len(FACTORS), math.log(UNITS))
        self.fresh: list[int] = []
        self.forgotten = 0
        self._seeds: OrderedDict[int, None] = OrderedDict()

    def add(
        self, fields: Mapping[str, Any], answers: Sequence[tuple[Listed, tuple[int, ...]]], error: float, size: int | None
    ) -> str:  # fmt: skip
        """One answer, a pair a choice; why the sampler is not what was asked for, empty as long as nothing says so."""
        if plain(fields) and any(tokens for _, tokens in answers) and self._new(fields.get("seed"), len(answers)):
            found = np.array([steps(side, tokens, error, size) for side, tokens in answers])
            ratios = np.logaddexp.reduce(found, axis=0) - math.log(len(found))
            self.watch.take([float(x) for x in ratios])
        if not self.watch.alarm:
            return ""
        return "its tokens are not drawn from the probabilities that it reports: look at the sampler's temperature"

    def _new(self, seed: object, count: int) -> bool:
        """Whether a request's noise is new. Some engines give the i-th choice the seed `seed + i`: all must be."""
        if seed is None:
            return True
        if type(seed) is not int or any(seed + i in self._seeds for i in range(count)):
            return False
        for i in range(count):
            self._used(seed + i)
            self.fresh.append(seed + i)
        return True

    def _used(self, seed: int) -> None:
        self._seeds[seed] = None
        if len(self._seeds) > SEEDS:
            self._seeds.popitem(last=False)
            self.forgotten += 1

    def taken(self) -> tuple[list[int], int]:
        """`fresh` and `forgotten`, which begin anew."""
        out = self.fresh, self.forgotten
        self.fresh, self.forgotten = [], 0
        return out

    def give_back(self, draws: tuple[Sequence[int], int]) -> None:
        """What `taken` gave could not be written, and waits on."""
        self.fresh, self.forgotten = [*draws[0], *self.fresh], self.forgotten + draws[1]

    def state_dict(self) -> dict[str, Any]:
        """Plain containers that `load_state_dict` restores, the seeds apart; the logarithm of 0 is None."""
        wealth, summed = ([None if x == -math.inf else x for x in xs] for xs in (self.watch.wealth, self.watch.summed))
        return {"settings": [*FACTORS, UNITS], "wealth": wealth, "summed": summed, "seen": self.watch.seen}

    def load_state_dict(self, state: Mapping[str, Any], seeds: Iterable[int]) -> None:
        """Go on from a state; `seeds` used up, oldest first. Raises KeyError, TypeError or ValueError where it is none of ours."""
        parts = [[-math.inf if x is None else float(x) for x in state[name]] for name in ("wealth", "summed")]
        if list(state["settings"]) != [*FACTORS, UNITS] or any(len(xs) != len(FACTORS) for xs in parts):
            raise ValueError("a watch with other settings")
        if not all(x < math.inf for xs in parts for x in xs):
            raise ValueError("a logarithm that is no number below infinity")
        seen, known = int(state["seen"]), OrderedDict((int(s), None) for s in seeds)
        self.watch.wealth, self.watch.summed, self.watch.seen, self._seeds = *parts, seen, known

    def data(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "seen": self.watch.seen, "health": self.watch.health, "log_r": max(self.watch.log_r, 0.0),
            "log_threshold": self.watch.log_threshold, "alarm": self.watch.alarm,
        }  # fmt: skip
