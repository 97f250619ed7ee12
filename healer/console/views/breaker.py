"""The breaker: how it stands, what that means, and when it opens."""

import msgspec

from healer.console.reads import Standing
from healer.decisions.breaker import is_off, threshold
from healer.decisions.fleet import fleet_of
from healer.model import BreakerState

_STATES = {
    BreakerState.closed: ("closed", "good"),
    BreakerState.open: ("open", "bad"),
    BreakerState.half_open: ("half-open", "warn"),
}


class BreakerView(msgspec.Struct, frozen=True, kw_only=True):
    """`opens` is when it opens, in words."""

    word: str
    tone: str
    meaning: str
    opens: str


def breaker_view(standing: Standing) -> BreakerView:
    word, tone = _STATES[standing.breaker.state]
    meaning = {
        BreakerState.closed: "healer may act.",
        BreakerState.open: "healer takes no node out; it still detects, pages and returns nodes.",
        BreakerState.half_open: "One canary may run; all else waits for its end.",
    }[standing.breaker.state]
    nodes = len(fleet_of(standing.snapshot).names) if standing.snapshot else 0
    opens = (
        "It is switched off (breaker_share 1.0)."
        if is_off(standing.guards)
        else f"It opens at {threshold(standing.guards, nodes)} roots of one fault class in 5 min, and when "
        "more than half of the last ten removing steps failed. It never closes by itself."
    )
    return BreakerView(word=word, tone=tone, meaning=meaning, opens=opens)
