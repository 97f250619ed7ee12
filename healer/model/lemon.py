"""Nodes that fail again and again: what a node has had, and its score."""

from datetime import datetime

import msgspec


class NodePast(msgspec.Struct, frozen=True, kw_only=True):
    """What healer holds of one node's last weeks: `faults` of its hardware (when it began, its name), repair
    `tickets` (when), and for what share of the last two weeks it was `out` of service for a fault, 0..1."""

    node: str
    faults: tuple[tuple[datetime, str], ...] = ()
    tickets: tuple[datetime, ...] = ()
    out: float = 0.0


class LemonPart(msgspec.Struct, frozen=True, kw_only=True):
    """What one signal adds: `count` as far as it has faded, and the `points` for it; `text` for people."""

    signal: str
    count: float
    points: float
    text: str


class LemonScore(msgspec.Struct, frozen=True, kw_only=True):
    """`score` is the sum of the points of `parts`; a fault of today alone is 1."""

    cluster: str
    node: str
    score: float
    parts: tuple[LemonPart, ...] = ()
