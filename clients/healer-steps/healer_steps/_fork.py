"""A child of a fork begins anew: threads, locks and what waits are its parent's. A loader's worker sends
nothing of its own."""

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
