"""Locks that a fork finds free: a process forked while another thread counts gets whole counts and a lock it can take."""

from __future__ import annotations

import os
import threading
import weakref

PATIENCE = 500
"""How often a fork tries, 10 ms a lock, before it goes ahead with what is held."""

_known: weakref.WeakSet[threading.RLock] = weakref.WeakSet()
_taken: list[threading.RLock] = []


def new_lock() -> threading.RLock:
    """A lock of one monitor."""
    lock = threading.RLock()
    _known.add(lock)
    return lock


def _take_all() -> None:
    """Hold every lock, so that no monitor is in the middle of an update; never one while waiting long for another."""
    for _ in range(PATIENCE):
        for lock in list(_known):
            if not lock.acquire(timeout=0.01):
                break
            _taken.append(lock)
        else:
            return
        _release_all()


def _release_all() -> None:
    while _taken:
        _taken.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_take_all, after_in_parent=_release_all, after_in_child=_release_all)
