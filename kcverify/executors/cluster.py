"""The executor that hands jobs to Ray. It needs the extra `kcverify[ray]`.

Every machine of the cluster needs kcverify with torch, and the shards under the same paths.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Sequence
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from kcverify.diagnostics import input_error
from kcverify.executors.pool import Answer, attempt

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Ray:
    """Tasks of a Ray cluster, one core each: that of RAY_ADDRESS where it is set, else one on this machine.

    `workers` is the number of cores of a cluster that is started here (None: all). A task whose process dies is not
    tried again.
    """

    def __init__(self, workers: int | None = None) -> None:
        """Raises InputError (`option_invalid`) for a number of workers below 1."""
        if workers is not None and workers < 1:
            raise input_error("option_invalid", option="--workers", reason=f"{workers} is not a positive number")
        self.workers = workers
        self._users, self._ours = 0, False

    def map(self, function: Callable[[Any], Any], jobs: Sequence[Any]) -> Generator[Answer, None, None]:
        """See `executors.Executor`."""
        self._enter()
        try:
            task = ray.remote(num_cpus=1, max_retries=0)(attempt)
            running = {task.remote(function, index, job): index for index, job in enumerate(jobs)}
            while running:
                (done,), _ = ray.wait(list(running), num_returns=1)
                index = running.pop(done)
                try:
                    yield ray.get(done)
                except RayError as error:
                    yield Answer(index, lost=f"Ray lost its task: {_line(error)}")
        finally:
            self._users -= 1
            if self._ours and not self._users:
                ray.shutdown()

    def _enter(self) -> None:
        """Start Ray for the first of several maps that run at once, where nobody else has."""
        if not self._users:
            self._ours = not ray.is_initialized()
            if self._ours:
                self._start()
        self._users += 1

    def _start(self) -> None:
        known = "RAY_ADDRESS" in os.environ
        cores = {} if known else {"num_cpus": self.workers, "include_dashboard": False}
        try:
            ray.init(log_to_driver=False, logging_level="error", **cores)
        except (RayError, ConnectionError, OSError, RuntimeError, ValueError) as error:
            reason = f"Ray does not start: {_line(error)}"
            raise input_error("option_invalid", option="--executor ray", reason=reason) from None


def _line(error: BaseException) -> str:
    """What happened in one line: the last one of another process's traceback, else the first one."""
    lines = [line.strip() for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[-1] if isinstance(error, RayTaskError) else lines[0]
