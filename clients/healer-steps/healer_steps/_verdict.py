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


class Verdict(NamedTuple):
    """`state`: `healthy`, or `leave` for a node that healer has taken out of service for a fault."""

    state: str
    node: str
    incident: str
    reason: str


def known(path: str, names: set[str], now: float | None = None) -> Verdict | None:
    """What healer says of this node, which is called one of `names`; None: it is not known. Never raises."""
    try:
        document = _read(path)
        state, node = document["state"], document["node"]
        age_s = (time.time() if now is None else now) - _seconds(document["heard_at"])
        if state not in ("healthy", "leave") or node not in names or not -AHEAD_S <= age_s <= OLD_S:
            return None
        incident, reason = str(document.get("incident") or ""), str(document.get("reason") or "")[:300]
        return Verdict(str(state), str(node), incident, reason)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def leave_of(path: str, names: set[str], now: float | None = None) -> Verdict | None:
    """healer's decision that work should leave this node; None: none is known. Never raises."""
    verdict = known(path, names, now)
    return verdict if verdict is not None and verdict.state == "leave" else None


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
    names = {environ.get("HEALER_NODE", ""), environ.get("SLURMD_NODENAME", "")} - {""}
    return names or {socket.gethostname().split(".")[0]}
