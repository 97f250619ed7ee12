"""The program's forks and signals. A child of a fork starts over: threads, locks and queued entries belong to
its parent. A loader's worker sends nothing of its own."""

from __future__ import annotations

import os
import signal
import weakref
from typing import Any

_all: weakref.WeakSet[Any] = weakref.WeakSet()


def after_fork(one: Any) -> None:
    """Calls `one._reset()` in each child."""
    _all.add(one)


def take_no_signals() -> None:
    """In a thread of ours: the kernel gives a signal that the program's own threads block to any other, and
    there it would end the program. What the thread itself does wrong still comes to it."""
    if hasattr(signal, "pthread_sigmask"):
        own = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - own)


def _after_fork() -> None:
    for one in list(_all):
        one._reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
