"""The hand-over of a shift: what the next one has to know, for a page and as Markdown."""

from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec

from healer.console import words
from healer.console.views.audit import AuditRow, audit_row
from healer.console.views.fleet import NodeKind, NodeRow
from healer.console.views.markdown import listed, plain
from healer.console.views.runs import RunRow, asks, run_row
from healer.console.views.standing import Strip
from healer.incidents.sentence import place
from healer.model import AuditRecord, Incident, Run
from healer.ports.console_answers import OpenIncident, Standing

#: So many of each list; the pages of incidents, runs and audit have all.
SHOWN = 100
#: Who came in, and with what: that is for the audit, not for the next shift.
DOORS = ("access.", "session.", "token.")


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """Each list the most pressing, or else the newest, first. `cut` names the lists that were too long."""

    cluster: str
    since: datetime
    until: datetime
    strip: Strip
    waits: tuple[RunRow, ...]
    open: tuple[OpenIncident, ...]
    known_bad: tuple[NodeRow, ...]
    resolved: tuple[Incident, ...]
    runs: tuple[RunRow, ...]
    people: tuple[AuditRow, ...]
    cut: tuple[str, ...]


def handover(
    standing: Standing,
    strip: Strip,
    rows: Sequence[NodeRow],
    told: tuple[Sequence[Incident], Sequence[Run], Sequence[AuditRecord]],
    since: datetime,
    now: datetime,
) -> Handover:
    """`told`: incidents that ended since then, the newest runs, and the records of people since then."""
    ended, runs, records = told
    lists = {
        "open incidents": sorted(standing.open_incidents, key=lambda one: (one.severity, one.opened)),
        "incidents that ended": list(ended),
        "runs": [run_row(one, now) for one in runs if one.created_at >= since and not one.shadow],
        "words of people": [audit_row(one, standing.cluster) for one in records],
    }
    return Handover(
        cluster=standing.cluster,
        since=since,
        until=now,
        strip=strip,
        waits=tuple(run_row(one, now) for one in standing.asking if asks(one)),
        open=tuple(lists["open incidents"][:SHOWN]),
        known_bad=tuple(row for row in rows if row.kind is NodeKind.bad_in_service)[:SHOWN],
        resolved=tuple(lists["incidents that ended"][:SHOWN]),
        runs=tuple(lists["runs"][:SHOWN]),
        people=tuple(lists["words of people"][:SHOWN]),
        cut=tuple(name for name, found in lists.items() if len(found) > SHOWN),
    )


def markdown(one: Handover, said: Callable[[str], str] = str) -> str:
    """`said`: a finished sentence in the language of the one who asks."""
    strip = one.strip
    open_now = ", ".join(f"{count} {severity}" for severity, count in strip.open_by_severity if count)
    parts = {
        "Stands above all": [f"{banner.title} {banner.text}" for banner in strip.banners],
        "Waits for a person": [f"{row.title}: {row.word}. {row.why}" for row in one.waits],
        "Known bad and in service": [f"{row.name}: {_why_bad(row)}" for row in one.known_bad],
        "Open": [_open(incident) for incident in one.open],
        "Ended in this shift": [_ended(incident) for incident in one.resolved],
        "Runs of this shift": [f"{_at(row.run.created_at)} {row.title}: {row.word}" for row in one.runs],
        "What people did": [_person(row) for row in one.people],
    }
    lines = [
        said(f"# Hand-over of {plain(one.cluster)}"),
        "",
        said(f"{words.utc(one.since)} to {words.utc(one.until)}"),
        "",
        said(f"- In service: {strip.in_service:,} of {strip.nodes:,} nodes (floor {strip.floor:,})"),
        said(
            f"- Out by healer {strip.out_healer}, by Slurm {strip.out_slurm}, by people {strip.out_person}; "
            f"known bad in service {strip.known_bad}"
        ),
        said(f"- Slots held {strip.slots_used} of {strip.slots_limit}; open incidents: {open_now or 'none'}"),
    ]
    for title, rows in parts.items():
        lines += listed(title, rows, said)
    if one.cut:
        lines += ["", said(f"The first {SHOWN} are listed of: {', '.join(one.cut)}.")]
    return "\n".join(lines) + "\n"


def _why_bad(row: NodeRow) -> str:
    return ", ".join(one.title for one in row.incidents[:3])


def _open(one: OpenIncident) -> str:
    seen = f", {one.acknowledged_by} looks after it" if one.acknowledged_by else ""
    return f"{one.severity.value} {place(one.root)}: {one.title} ({one.id[:8]}, {_at(one.opened)}){seen}"


def _ended(one: Incident) -> str:
    why = f": {one.closed_why}" if one.closed_why else ""
    return f"{one.severity.value} {place(one.root)}: {one.title} ({one.short_id}){why}"


def _person(row: AuditRow) -> str:
    said = f": {row.words}" if row.words else ""
    return f"{_at(row.record.at)} {row.record.actor} {row.record.verb} {row.name}{said}"


def _at(moment: datetime) -> str:
    return f"{moment:%m-%d %H:%M}"
