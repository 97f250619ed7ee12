"""What healer thinks of this node, from the file that the node's follower writes.

Unknown is never bad: a file that is missing, old, unreadable, of another node, or that others could have
written, says nothing.
"""

from __future__ import annotations

import calendar
import json
import os
import socket
import stat
import time
from typing import Mapping, NamedTuple

FILE = "/run/healer/verdict.json"
#: The follower hears from healer every 10 s; what it heard longer ago is of the past.
OLD_S = 60.0
#: A clock that was set meanwhile may put the file this far into the future.
AHEAD_S = 5.0
_BYTES = 65536


class Leave(NamedTuple):
    """healer has taken this node out of service for a fault."""

    node: str
    incident: str
    reason: str


def leave_of(path: str, names: set[str], now: float | None = None) -> Leave | None:
    """healer's decision that work should leave this node, which is called one of `names`; None: none is
    known. Never raises."""
    try:
        told = _read(path)
        heard = told["heard_at"]
        age_s = (time.time() if now is None else now) - _seconds(heard)
        if told["state"] != "leave" or told["node"] not in names or not -AHEAD_S <= age_s <= OLD_S:
            return None
        return Leave(str(told["node"]), str(told.get("incident") or ""), str(told.get("reason") or "")[:300])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _read(path: str) -> dict[str, object]:
    """The document in a file that only root, or this user, can have written. Raises OSError, ValueError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_uid not in (0, os.geteuid()) or about.st_mode & 0o022:
            raise ValueError("others may have written it")
        return json.loads(file.read(_BYTES).decode("utf-8"))


def _seconds(text: object) -> float:
    """RFC 3339 in UTC as seconds since 1970."""
    if not isinstance(text, str) or not text.endswith("Z"):
        raise ValueError("no time")
    return calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S"))


def names_of(environ: Mapping[str, str]) -> set[str]:
    """What this node may be called: by the site, by Slurm, or by itself."""
    told = {environ.get("HEALER_NODE", ""), environ.get("SLURMD_NODENAME", "")} - {""}
    return told or {socket.gethostname().split(".")[0]}
