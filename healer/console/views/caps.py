"""How much healer may still take out: the floor, each cap with what is left, and the breaker."""

from collections.abc import Iterator

import msgspec

from healer.console import words
from healer.console.views.standing import Strip
from healer.decisions.breaker import is_off, threshold
from healer.decisions.capacity import hourly_limit, partition_limit, place_limit, slots_limit
from healer.decisions.fleet import fleet_of, nodes_at
from healer.model import BreakerState, Ruleset
from healer.ports.console_answers import Standing

#: Places in which healer holds slots, the fullest first.
PLACES_SHOWN = 30

_STATES = {
    BreakerState.closed: ("closed", "good"),
    BreakerState.open: ("open", "bad"),
    BreakerState.half_open: ("half-open", "warn"),
}


class Cap(msgspec.Struct, frozen=True, kw_only=True):
    """`room` is how many more nodes may go before this one holds; below 0 it is exceeded already."""

    name: str
    used: int
    limit: int
    room: int
    text: str = ""

    @property
    def left(self) -> int:
        return max(0, self.room)

    @property
    def tone(self) -> str:
        return "bad" if not self.left else "warn" if self.left == 1 else "good"


def caps(standing: Standing, strip: Strip, rules: Ruleset) -> list[Cap]:
    """Of the whole cluster first, then of the places where healer holds slots. Empty before the first
    picture of Slurm."""
    if standing.snapshot is None or not strip.nodes:
        return []
    n, settings = len(fleet_of(standing.snapshot).names), standing.guards
    slots, hourly = slots_limit(settings, n), hourly_limit(settings, n)
    share = f"{settings.min_service_share:.0%}"
    return [
        Cap(
            name="Floor of service",
            used=strip.serving,
            limit=strip.floor,
            room=strip.serving - strip.floor,
            text=f"nodes in service or planned; {share} must stay, whoever took the others out",
        ),
        Cap(
            name="Slots",
            used=strip.slots_used,
            limit=slots,
            room=slots - strip.slots_used,
            text="nodes out by healer at once",
        ),
        Cap(
            name="Slots an hour",
            used=standing.granted_last_hour,
            limit=hourly,
            room=hourly - standing.granted_last_hour,
            text="granted in the last 60 min",
        ),
        *sorted(_places(standing, rules), key=lambda one: (one.room, one.name))[:PLACES_SHOWN],
    ]


def _places(standing: Standing, rules: Ruleset) -> Iterator[Cap]:
    snapshot, settings = standing.snapshot, standing.guards
    if snapshot is None:
        return
    held = {slot.node for slot in standing.slots if not slot.unusable}
    for kind, label in (("rack", "Rack"), ("switch", "Switch"), ("domain", "NVLink domain")):
        for name, there in nodes_at(snapshot, rules, kind).items():
            if used := len(held & there):
                yield _place(f"{label} {name}", used, place_limit(settings.rack_share, len(there)), there)
    for name, there in fleet_of(snapshot).partitions.items():
        if used := len(held & there):
            limit = partition_limit(rules.guards_in(standing.cluster, name), len(there))
            yield _place(f"Partition {name}", used, limit, there)


def _place(name: str, used: int, limit: int, there: frozenset[str]) -> Cap:
    text = f"out by healer of {words.plural(len(there), 'node')}"
    return Cap(name=name, used=used, limit=limit, room=limit - used, text=text)


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
