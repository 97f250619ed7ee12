"""How a node stands among its class, each way of looking at its features beside the others."""

from datetime import datetime

import msgspec

from healer.model.unusual import FeatureShare, Unusual, WayScore

#: What each way is called, and what its score is.
NAMES = {
    "distance": ("Distance", "of all features together, by how they usually move"),
    "forest": ("Isolation forest", "how few cuts part the node from its class, 0 to 1"),
    "robust": ("Largest deviation", "of one feature, in robust spreads of training"),
    "residual": ("PCA residual", "what the usual relations between features leave over"),
}


class WayRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    what: str
    score: str
    threshold: str
    middle: str
    above: bool
    decides: bool
    parts: tuple[str, ...]


class UnusualTable(msgspec.Struct, frozen=True, kw_only=True):
    """`among`: the class in words; `model`: the beginning of its id."""

    at: datetime
    among: str
    model: str
    rows: tuple[WayRow, ...]


def table(told: Unusual | None) -> UnusualTable | None:
    if told is None:
        return None
    return UnusualTable(
        at=told.at,
        among=f"{told.scored} {told.hardware or 'nodes'} that are {told.load}",
        model=told.model[:12],
        rows=tuple(_row(one) for one in told.ways),
    )


def _row(one: WayScore) -> WayRow:
    name, what = NAMES.get(one.way, (one.way, ""))
    return WayRow(
        name=name,
        what=what,
        score=f"{one.score:.2f}",
        threshold=f"{one.threshold:.2f}",
        middle=f"{one.middle:.2f}",
        above=one.score > one.threshold,
        decides=one.decides,
        parts=tuple(_part(part) for part in one.parts),
    )


def _part(part: FeatureShare) -> str:
    return f"{part.feature} {part.away:+.1f} ({part.share:.0%})"
