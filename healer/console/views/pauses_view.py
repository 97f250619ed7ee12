"""Pauses, and how much healer may still take out: the floor, each cap with what is left, and the breaker."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from healer.console import words
from healer.console.views import Shown
from healer.console.views.buttons import Button, InputField, may_act, worded
from healer.console.views.standing_view import Strip, end_pause_button, pause_scope
from healer.decisions.breaker import is_off, threshold
from healer.decisions.capacity import hourly_limit, partition_limit, place_limit, slots_limit
from healer.decisions.guards import concerns_proposal
from healer.decisions.node_facts import fleet_of, nodes_at
from healer.model import (
    AuditRecord,
    BreakerState,
    GateFacts,
    Pause,
    Proposal,
    Role,
    Ruleset,
    Run,
    RunState,
    Verb,
)
from healer.ports.answers import Standing
from healer.text import joined, say

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
    """For the whole cluster first, then for the places where healer holds slots. Empty before the first
    snapshot."""
    if standing.snapshot is None or not strip.nodes:
        return []
    n, settings = len(fleet_of(standing.snapshot).names), standing.guards
    slots, hourly = slots_limit(settings, n), hourly_limit(settings, n)
    share = f"{settings.min_service_share:.0%}"
    return [
        Cap(
            name=say("console.pauses_floor_service"),
            used=strip.serving,
            limit=strip.floor,
            room=strip.serving - strip.floor,
            text=say("console.pauses_nodes_service_or_planned_must", share=share),
        ),
        Cap(
            name=say("console.pauses_slots"),
            used=strip.slots_used,
            limit=slots,
            room=slots - strip.slots_used,
            text=say("console.pauses_nodes_out_by_healer_once"),
        ),
        Cap(
            name=say("console.pauses_slots_hour"),
            used=standing.granted_last_hour,
            limit=hourly,
            room=hourly - standing.granted_last_hour,
            text=say("console.pauses_granted_last_60_min"),
        ),
        *sorted(_places(standing, rules), key=lambda cap: (cap.room, cap.name))[:PLACES_SHOWN],
    ]


def _places(standing: Standing, rules: Ruleset) -> Iterator[Cap]:
    snapshot, settings = standing.snapshot, standing.guards
    if snapshot is None:
        return
    held = {slot.node for slot in standing.slots if not slot.unusable}
    for kind, label in (
        ("rack", say("console.pauses_rack")),
        ("switch", say("console.pauses_switch")),
        ("domain", say("console.pauses_nvlink_domain")),
    ):
        for name, there in nodes_at(snapshot, rules, kind).items():
            if used := len(held & there):
                limit = place_limit(settings.rack_share, len(there))
                yield _place_cap(joined((label, name), "space"), used, limit, there)
    for name, there in fleet_of(snapshot).partitions.items():
        if used := len(held & there):
            limit = partition_limit(rules.guards_in(standing.cluster, name), len(there))
            yield _place_cap(say("console.pauses_partition", name=name), used, limit, there)


def _place_cap(name: str, used: int, limit: int, there: frozenset[str]) -> Cap:
    text = say("console.pauses_out_by_healer", counted=words.counted(len(there), "node"))
    return Cap(name=name, used=used, limit=limit, room=limit - used, text=text)


def breaker_view(standing: Standing) -> Shown:
    """`opens` is when it opens, in words."""
    word, tone = _STATES[standing.breaker.state]
    meaning = say(f"console.breaker_{standing.breaker.state}")
    nodes = len(fleet_of(standing.snapshot).names) if standing.snapshot else 0
    opens = (
        say("console.pauses_switched_off_breaker_share_1")
        if is_off(standing.guards)
        else say("console.pauses_opens_roots_one_fault_class", threshold=threshold(standing.guards, nodes))
    )
    return Shown(word=word, tone=tone, meaning=meaning, opens=opens)


_LASTS = (1, 4, 12, 24, 72, 168)
_USUAL_H = 4


def pause_rows(standing: Standing, operates: Callable[[str | None], bool], now: datetime) -> list[Shown]:
    """Oldest first, as they were set. `operates`: as for `end_pause_button`. `holds` are runs that a guard
    holds and that the pause concerns."""
    facts = GateFacts(cluster=standing.cluster, snapshot=standing.snapshot, breaker=standing.breaker)
    held = [run for run in standing.asking if _held(run)]
    return [
        Shown(
            pause=pause,
            scope=pause_scope(pause),
            holds=tuple(run for run in held if concerns_proposal(pause, _next_step(run), facts, now)),
            end=end_pause_button(pause, operates),
        )
        for pause in standing.pauses
    ]


def _held(run: Run) -> bool:
    """Before its first step, or at one of them."""
    return run.state is RunState.held or (run.state is RunState.running and bool(run.question))


def _next_step(run: Run) -> Proposal:
    """As the gate knows the run; which step it is makes no difference to a pause."""
    return Proposal(
        cluster=run.cluster,
        verb=Verb.drain,
        node=run.node,
        job=run.job,
        rule=run.rule,
        playbook=run.playbook,
    )


def past_pauses(records: Iterable[AuditRecord], in_force: Sequence[Pause], now: datetime) -> list[Shown]:
    """From records `pause.…`, newest first: pauses that are over."""
    standing = {pause.id for pause in in_force}
    ends: dict[str, AuditRecord] = {}
    found: list[Shown] = []
    for record in records:
        name = record.subject.partition("/")[2]
        if record.verb == "pause.ended":
            ends.setdefault(name, record)
        elif record.verb == "pause.set" and name not in standing:
            found.append(_past(record, ends.get(name), now))
    return found


def _past(record: AuditRecord, end: AuditRecord | None, now: datetime) -> Shown:
    """`ended` says how: who ended it and why, or that it expired."""
    pause = msgspec.convert({"id": "", "name": "", **record.data}, Pause)
    if end is not None:
        why = end.data.get("reason") or ""
        ended_at, ended = end.at, words.labelled(end.actor, why) if why else end.actor
    else:
        ended_at = pause.until if pause.until is not None and pause.until <= now else None
        ended = say("console.pauses_time_was_over") if ended_at else say("console.pauses_not_recorded")
    return Shown(
        scope=pause_scope(pause),
        by=record.actor,
        reason=pause.reason,
        since=record.at,
        ended_at=ended_at,
        ended=ended,
    )


def add_buttons(
    standing: Standing, rules: Ruleset, role: Role, now: datetime, *, several: bool = False
) -> tuple[Button, ...]:
    """One for each scope; each asks for what it needs and nothing else. `several`: there are other clusters
    that this person may pause too."""
    if not may_act(role):
        return ()
    cluster = standing.cluster
    nodes = standing.snapshot.nodes.values() if standing.snapshot else ()
    partitions = sorted({name for node in nodes for name in node.partitions})
    choices: dict[str, Iterable[str]] = {
        "rule": rules.by_name,
        "playbook": sorted(rules.playbooks),
        "node": (),
        "partition": partitions,
    }
    return (
        _add(cluster, {"scope": "cluster", "name": cluster}, _until(now)),
        *((_add(say("console.pauses_all_clusters"), {"scope": "all"}, _until(now)),) if several else ()),
        *(
            _add(
                say(f"console.pauses_a_{scope}"),
                {"scope": scope, "cluster": cluster},
                _which(scope, names),
                _until(now),
            )
            for scope, names in choices.items()
        ),
    )


def _add(what: str, body: dict[str, str], *fields: InputField) -> Button:
    words = worded("pause_scope", what=what)
    return Button(**words, action="/api/v1/pauses", body=body, inputs=fields, flat=True)


def _which(scope: str, names: Iterable[str]) -> InputField:
    return InputField(
        name="name", help=words.sentence(scope), default="", required=True, choices=tuple(names)
    )


def _until(now: datetime) -> InputField:
    """Ends on whole minutes, as the page is reloaded every 20 s, and these with it."""
    start = now.astimezone(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
    ends = [(hours, start + timedelta(hours=hours)) for hours in _LASTS]
    return InputField(
        name="until",
        help=say("console.pauses_until"),
        default=next(f"{end:%Y-%m-%dT%H:%MZ}" for hours, end in ends if hours == _USUAL_H),
        required=False,
        choices=(*(f"{end:%Y-%m-%dT%H:%MZ}" for _, end in ends), ""),
        labels=(
            *(
                say(
                    "console.pauses_ends",
                    weekday=words.weekday(end),
                    time=f"{end:%H:%M}",
                    span=words.span(hours * 3600.0),
                )
                for hours, end in ends
            ),
            say("console.pauses_ended_manually"),
        ),
    )
