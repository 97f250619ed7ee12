"""The strip on every page: how many nodes serve, what is out and by whom, what the guards have left."""

from collections.abc import Callable
from datetime import datetime

import msgspec

from healer.console import words
from healer.console.views.buttons import Button, worded
from healer.console.views.fleet_view import NodeKind, NodeRow
from healer.console.views.health_view import SILENT
from healer.console.views.runs_view import asks
from healer.decisions.capacity import floor_limit, slots_limit
from healer.model import Breaker, BreakerState, Mode, Pause, Severity, Trouble
from healer.model.slurm import is_fresh
from healer.observations.slurm_poll import troubles
from healer.ports.answers import Standing
from healer.ports.break_glass import GlassState
from healer.text import joined, quoted, say, unstopped


class Banner(msgspec.Struct, frozen=True, kw_only=True):
    """Something that everyone must know on every page. `tone` is bad or warn."""

    tone: str
    title: str
    text: str
    pause: Pause | None = None
    breaker: bool = False
    glass: bool = False


# Wide: it is one row of figures on every page, each shown under a name of its own.
class Strip(msgspec.Struct, frozen=True, kw_only=True):
    nodes: int
    in_service: int
    floor: int
    out_healer: int
    out_person: int
    out_slurm: int
    #: In service as Slurm shows it, and granted to be taken out: the floor counts them as gone.
    leaving: int
    planned: int
    unknown: int
    known_bad: int
    open_by_severity: tuple[tuple[str, int], ...]
    open_total: int
    slots_used: int
    slots_limit: int
    slots_past_caps: int
    asking: int
    mode: Mode
    snapshot_at: datetime | None
    stale: bool
    banners: tuple[Banner, ...]

    @property
    def serving(self) -> int:
        """As the floor's guard counts: planned work serves, what has a slot does not."""
        return self.in_service - self.leaving + self.planned

    @property
    def below_floor(self) -> bool:
        return self.nodes > 0 and self.serving < self.floor


def strip(standing: Standing, rows: list[NodeRow], now: datetime) -> Strip:
    count = dict.fromkeys(NodeKind, 0)
    for row in rows:
        count[row.kind] += 1
    severities = [incident.severity for incident in standing.open_incidents]
    return Strip(
        nodes=len(rows),
        in_service=count[NodeKind.busy] + count[NodeKind.idle] + count[NodeKind.bad_in_service],
        floor=floor_limit(standing.guards, len(rows)),
        out_healer=count[NodeKind.out_healer],
        out_person=count[NodeKind.out_person],
        out_slurm=count[NodeKind.out_slurm],
        leaving=sum(row.in_service and row.hold is not None for row in rows),
        planned=count[NodeKind.planned],
        unknown=count[NodeKind.unknown],
        known_bad=count[NodeKind.bad_in_service],
        open_by_severity=tuple((severity.value, severities.count(severity)) for severity in Severity),
        open_total=len(severities),
        slots_used=sum(not slot.unusable for slot in standing.slots),
        slots_limit=slots_limit(standing.guards, len(rows)),
        slots_past_caps=sum(slot.unusable for slot in standing.slots),
        asking=sum(asks(run) for run in standing.asking),
        mode=standing.default_mode,
        snapshot_at=standing.snapshot.taken_at if standing.snapshot else None,
        stale=is_stale(standing, now),
        banners=tuple(_banners(standing, now)),
    )


def is_stale(standing: Standing, now: datetime) -> bool:
    """Whether Slurm was never read, or too long ago to act on, or by a clock that is too far ahead."""
    snapshot = standing.snapshot
    return snapshot is None or not is_fresh(snapshot.taken_at, now, standing.guards.stale_s)


def pause_scope(pause: Pause) -> str:
    """`everything`, `cluster pod1`, `node gpu0017`, `rule gpu-lost`."""
    if pause.scope == "all":
        return say("console.standing_everything")
    return joined((quoted(pause.scope), pause.name), "space")


def _banners(standing: Standing, now: datetime) -> list[Banner]:
    found = [_pause_banner(pause, now) for pause in standing.pauses]
    if standing.breaker.state is not BreakerState.closed:
        found.append(_breaker_banner(standing.breaker))
    found += _part_banners(standing, now)
    found += _slurm_banners(standing, now)
    if standing.rules_error:
        found.append(
            Banner(
                tone="warn",
                title=say("console.standing_rules_rejected"),
                text=quoted(standing.rules_error),
            )
        )
    return found


def glass_banner(state: GlassState, now: datetime) -> Banner | None:
    """Shown while someone is an administrator by break-glass."""
    if not state.is_open(now) or state.until is None:
        return None
    return Banner(
        tone="bad",
        title=say("console.standing_glass", who=state.used_by),
        text=say("console.standing_glass_until", until=words.utc(state.until), reason=quoted(state.reason)),
        glass=True,
    )


def _pause_banner(pause: Pause, now: datetime) -> Banner:
    until = (
        say("console.standing_until", at=words.utc(pause.until))
        if pause.until
        else say("console.standing_until_ended_manually")
    )
    text = say(
        "console.standing_by_reason",
        by=pause.by,
        ago=words.ago(pause.since, now),
        until=until,
        reason=pause.reason,
    )
    return Banner(
        tone="warn",
        title=say("console.standing_paused", pause_scope=pause_scope(pause)),
        text=text,
        pause=pause,
    )


def _breaker_banner(breaker: Breaker) -> Banner:
    half = breaker.state is BreakerState.half_open
    since = say("console.standing_since", at=words.utc(breaker.since)) if breaker.since else ""
    text = unstopped(breaker.why) if breaker.why else words.counted(len(breaker.roots), "root")
    return Banner(
        tone="bad",
        title=say(
            "console.standing_breaker",
            word=say("console.standing_half_open") if half else say("console.standing_open"),
            since=since,
        ),
        text=say("console.standing_healer_takes_no_node_out", text=text)
        if not half
        else say("console.standing_one_canary_may_run_all", text=text),
        breaker=True,
    )


def _part_banners(standing: Standing, now: datetime) -> list[Banner]:
    """Without these parts all pages stay calm while nothing is found or done. A dead scheduler shows as an
    old snapshot."""
    silent = [
        (part, at)
        for part in ("detector", "worker")
        if (at := standing.beats.get(part)) is not None and now - at >= SILENT
    ]
    return [
        Banner(
            tone="bad",
            title=say(
                "console.standing_part_is_down", part=say(f"console.part_{part}"), ago=words.ago(at, now)
            ),
            text=say(f"console.todo_{part}"),
        )
        for part, at in silent
    ]


def _slurm_banners(standing: Standing, now: datetime) -> list[Banner]:
    found: list[Banner] = []
    # Before the first snapshot, only the look at the controller says why there is none.
    seen = standing.controller
    away = seen.problem if seen is not None and Trouble.away in seen.since else ""
    why = standing.snapshot_error or away
    error = joined(["", why], "space") if why else ""
    if standing.snapshot is None:
        text = say("console.standing_healer_holds_every_action", error=error)
        found.append(Banner(tone="bad", title=say("console.standing_no_picture_slurm_yet"), text=text))
    elif is_stale(standing, now):
        ahead_s = (standing.snapshot.taken_at - now).total_seconds()
        title = (
            say("console.standing_slurm_ahead", span=words.span(ahead_s))
            if ahead_s > 0
            else say("console.standing_slurm_was_last_seen", ago=words.ago(standing.snapshot.taken_at, now))
        )
        text = say("console.standing_healer_holds_every_action_until", error=error)
        found.append(Banner(tone="bad", title=title, text=text))
    for trouble in troubles(standing.controller):
        if trouble.trouble is Trouble.away and is_stale(standing, now):
            continue  # said above already, with what follows from it
        title = say(
            "console.standing_slurm_controller_since",
            trouble_words=say(f"console.trouble_{trouble.trouble}"),
            at=words.utc(trouble.since),
        )
        text = say("console.standing_healer_does_nothing_node_because", sentence=words.sentence(trouble.text))
        found.append(Banner(tone="warn", title=title, text=text))
    return found


def pause_button(cluster: str) -> Button:
    body = {"scope": "cluster", "name": cluster, "cluster": cluster}
    return Button(**worded("pause", cluster=cluster), action="/api/v1/pauses", body=body)


def end_pause_button(pause: Pause, operates: Callable[[str | None], bool]) -> Button | None:
    """None for a person who may not end it: one of a few clusters may not end a pause of all. `operates`:
    whether they may act at the cluster, None for all of the site."""
    if not operates(pause.cluster):
        return None
    words = worded("end_pause", pause_scope=pause_scope(pause))
    return Button(**words, action=f"/api/v1/pauses/{pause.id}", method="DELETE")


def end_glass_button() -> Button:
    return Button(**worded("end_glass"), action="/api/v1/break-glass/end")


def reset_breaker_button(breaker: Breaker) -> Button:
    seen = {"since": breaker.since.isoformat()} if breaker.since else {}
    body = {"cluster": breaker.cluster, **seen}
    return Button(**worded("reset_breaker"), action="/api/v1/breaker/reset", body=body)
