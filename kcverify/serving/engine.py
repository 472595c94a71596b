"""Runs the model in one thread: takes sequences in, batches their steps, hands tokens back to the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch

from kcverify.measure.model import Model
from kcverify.measure.sides import KernelSide, open_side
from kcverify.serving import decode
from kcverify.serving.sampling import Row, Sampling, Scored, draw, log_softmax, processed, score, score_prompt

CONTEXT = 2048
"""Tokens of one prompt and its answer together."""

SLOTS = 32
"""Sequences that run at the same time; more wait."""

WAITING = 512
"""Sequences that may wait; more are refused."""

_PROMPT_ROWS = 512  # prompt tokens read in one step, so that running answers never wait long


@dataclass(eq=False)
class Sequence:
    """One prompt and its answer. The event loop reads `prompt`, `tokens` and `finish`, which grow under `changed`.

    `logprobs` and `prompt_logprobs` are how many of the most probable tokens are wanted (None: no log-probability).
    `stream` wakes the event loop at each token, otherwise at the end alone. `processed` reports them after temperature and truncation. `logit_factor` and `nan` are faults. Of `raw`, the bytes of
    the answer, the first `visible` are its text.
    """

    ids: list[int]
    max_tokens: int
    sampling: Sampling
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stop: tuple[bytes, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    stream: bool = False
    processed: bool = False
    logit_factor: float = 1.0
    nan: bool = False
    prompt: list[Scored] = field(default_factory=list)
    tokens: list[Scored] = field(default_factory=list)
    finish: str | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: bool = False
    slot: int = -1
    raw: bytearray = field(default_factory=bytearray)
    visible: int = 0
    stop_reason: str | int | None = None
    noise: np.random.Generator | None = None


class Engine:
    """The demo model under one kernel. `submit` and `use` are called from the event loop, the rest runs in its thread."""

    def __init__(self, kernel: str) -> None:
        """Raises InputError (`side_unknown`, `kernel_missing`) where this build of torch has no such kernel."""
        self._weights = _weights(kernel)
        self.model: Model = self._weights.model
        self.vocabulary = self.model.architecture.vocabulary
        self._cache = decode.new_cache(self.model.architecture, SLOTS, CONTEXT)
        self._free = list(range(SLOTS))
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._wake = threading.Condition()
        self._stopped = False
        self._noise = np.random.default_rng()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self.fault: str | None = None

    def start(self) -> None:
        """Start the thread; called inside the event loop that answers are for."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its step."""
        with self._wake:
            self._stopped = True
            self._wake.notify()
        self._thread.join(timeout=5)

    def submit(self, sequences: list[Sequence]) -> bool:
        """Take them all, or none where too many wait."""
        with self._wake:
            if len(self._waiting) + len(sequences) > WAITING or self.fault is not None:
                return False
            self._waiting.extend(sequences)
            self._wake.notify()
        return True

    def use(self, kernel: str, noise: float) -> None:
        """Go on with another kernel, and with weights that differ by `noise` standard deviations; running answers too."""
        weights = _weights(kernel)
        self._weights = decode.pack(decode.perturbed(weights.model, noise), weights.kernel) if noise else weights

    def _work(self) -> None:
        torch.set_num_threads(1)
        try:
            while self._admitted():
                self._deliver(self._step())
        except Exception as error:
            self.fault = f"{type(error).__name__}: {error}"
            with self._wake:
                left = [*self._running, *self._waiting]
                self._running, self._waiting = [], deque()
            for s in left:
                s.finish = "error"
            self._deliver(left)

    def _admitted(self) -> bool:
        """Wait for something to do; False when it is time to end."""
        with self._wake:
            while not (self._stopped or self._waiting or self._running):
                self._wake.wait()
            return not self._stopped

    def _next(self) -> list[Sequence]:
        """Sequences that start in this step: as many as there are slots, and about `_PROMPT_ROWS` tokens."""
        out: list[Sequence] = []
        rows = 0
        with self._wake:
            while self._waiting and self._free and rows < _PROMPT_ROWS:
                s = self._waiting.popleft()
                if not s.cancelled:
                    s.slot = self._free.pop()
                    rows += len(s.ids)
                    out.append(s)
        return out

    def _step(self) -> list[Sequence]:
        """One step of everything that runs; the sequences that changed."""
        running = self._running = [s for s in self._running if not self._ended(s)]
        started = self._next()
        if not running and not started:
            return []
        rows = [decode.Running(s.slot, s.tokens[-1].token, len(s.ids) + len(s.tokens) - 1) for s in running]
        prompts = [decode.Prompt(s.slot, s.ids, s.prompt_logprobs is not None) for s in started]
        grown, read = decode.step(self._weights, self._cache, rows, prompts)
        for s, logits in zip(started, read, strict=True):
            wide = logits.numpy().astype(np.float64)
            if s.prompt_logprobs is not None:
                s.prompt = score_prompt(log_softmax(_faulty(wide, s)), s.ids, s.prompt_logprobs)
            self._grow(s, wide[-1])
        for s, row in zip(running, grown.numpy().astype(np.float64), strict=True):
            self._grow(s, row)
        self._running = [*running, *started]
        changed = self._running
        self._running = [s for s in changed if not self._ended(s)]
        return [s for s in changed if s.stream or s.finish is not None]

    def _grow(self, s: Sequence, logits: Row) -> None:
        if s.max_tokens == 0:
            s.finish = "length"
            return
        logits = _faulty(logits, s)
        if s.noise is None:
            s.noise = self._noise if s.sampling.seed is None else np.random.default_rng(s.sampling.seed)
        z = processed(logits, s.sampling)
        token = draw(z, s.sampling, s.noise)
        if s.logprobs is None:
            s.tokens.append(Scored(token, 0.0))
        else:
            s.tokens.append(score(log_softmax(z if s.processed else logits), token, s.logprobs))
        s.raw.append(token)
        s.visible = len(s.raw)
        if token in s.stop_ids:
            s.visible, s.stop_reason, s.finish = s.visible - 1, token, "stop"
        elif s.stop and (end := next((end for end in s.stop if s.raw.endswith(end)), None)) is not None:
            s.visible, s.stop_reason, s.finish = s.visible - len(end), end.decode("utf-8", "replace"), "stop"
        elif len(s.tokens) >= s.max_tokens:
            s.finish = "length"

    def _ended(self, s: Sequence) -> bool:
        if s.finish is None and not s.cancelled:
            return False
        if s.slot >= 0:
            self._free.append(s.slot)
            s.slot = -1
        return True

    def _deliver(self, changed: list[Sequence]) -> None:
        if changed and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_wake_all, changed)


def _wake_all(changed: list[Sequence]) -> None:
    for s in changed:
        s.changed.set()


def _faulty(logits: Row, s: Sequence) -> Row:
    if s.nan:
        return np.full_like(logits, np.nan)
    return logits if s.logit_factor == 1.0 else logits * s.logit_factor


def _weights(kernel: str) -> decode.Weights:
    side = open_side(f"demo:{kernel}")
    assert isinstance(side, KernelSide) and side.basis is not None and isinstance(side.basis.model, Model)
    return decode.pack(side.basis.model, side.basis.kernel)
