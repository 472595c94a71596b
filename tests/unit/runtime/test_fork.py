"""A process that is forked while another thread counts goes on with whole counts and no lock that nobody opens."""

from __future__ import annotations

import os
import threading
import time

import pytest
from monitor_streams import Example, fed, state, stream

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def _outcome(child: int) -> int:
    """Exit code of the process, -9 where it had to be killed after 20 s."""
    for _ in range(2000):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _child(monitor: Example, requests: int) -> int:
    """0 where the counts are of whole updates and may go on."""
    before = monitor.report()["rows"]["total"]
    monitor.update(**(stream(1, seed=3)[0] | {"request_ids": ["child"] * 5}))
    same = state(fed([*stream(1), stream(1, seed=3)[0] | {"request_ids": ["child"] * 5}])) == state(monitor)
    return 0 if before % 5 == 0 and (requests > 1 or same) else 3


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("busy", [False, True])
def test_fork(busy: bool) -> None:
    monitor, more, stop = fed(stream(1)), stream(8, seed=1), threading.Event()

    def spin() -> None:
        while not stop.is_set():
            for update in more:
                monitor.update(**update)

    thread = threading.Thread(target=spin)
    if busy:
        thread.start()
    try:
        for _ in range(4):
            child = os.fork()
            if child == 0:
                code = 4
                try:
                    code = _child(monitor, 2 if busy else 1)
                finally:
                    os._exit(code)
            assert _outcome(child) == 0
    finally:
        stop.set()
        if busy:
            thread.join()
