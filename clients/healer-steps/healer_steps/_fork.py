"""A child of a fork starts over: threads, locks and queued entries belong to its parent. A loader's worker
sends nothing of its own."""

from __future__ import annotations

import os
import weakref
from typing import Any

_all: weakref.WeakSet[Any] = weakref.WeakSet()


def after_fork(one: Any) -> None:
    """Calls `one._reset()` in each child."""
    _all.add(one)


def _after_fork() -> None:
    for one in list(_all):
        one._reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
