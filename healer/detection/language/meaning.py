"""Figures that the column form and the scalar form share: they are part of what the language means."""

#: One tick, and one slot of the rings.
TICK_S = 5.0
#: What was seen speaks for the time since the tick before, if that is not longer ago.
SPEAKS_FOR_S = 30.0
#: `share` is known when this share of its window is.
KNOWN_SHARE = 0.5
#: A median or spread of fewer peers says nothing.
LEAST_PEERS = 4
#: Peers that are all but equal would make a hair's breadth a huge distance: the robust standard deviation
#: counts as at least this share of the median.
LEAST_SPREAD = 0.01


def slots_of(seconds: float) -> int:
    """How many ticks a window holds."""
    return max(1, -int(-seconds // TICK_S))
