"""How unusual a node is among its class, in each way of looking at it: evidence, and never a verdict."""

from datetime import datetime

import msgspec


class FeatureShare(msgspec.Struct, frozen=True, kw_only=True):
    """`share` of the score comes from this feature. `away` is how far the node is from its peers (or from its
    own past, where the feature says so), in their spread or in the least difference that matters."""

    feature: str
    share: float
    away: float


class WayScore(msgspec.Struct, frozen=True, kw_only=True):
    """One way's score. `threshold` comes from nodes held out of training, `middle` is the class's median now.
    `decides`: this is the one that `unusual-node` is told by."""

    way: str
    score: float
    threshold: float
    middle: float
    decides: bool = False
    parts: tuple[FeatureShare, ...] = ()


class Unusual(msgspec.Struct, frozen=True, kw_only=True):
    """A node at one moment, by the model in force of its class (GPU model, load). `scored`: nodes of that
    class at that moment."""

    cluster: str
    node: str
    at: datetime
    hardware: str
    load: str
    model: str
    scored: int
    ways: tuple[WayScore, ...] = ()
