"""Figures of a period as tables: how fast, how good, what it cost."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from healer.console import words
from healer.console.views import Shown
from healer.console.views.fleet_view import NodeKind, NodeRow
from healer.console.views.runs_view import asks, run_row
from healer.console.views.standing_view import Strip
from healer.console.views.timeline_view import audit_row
from healer.console.words import listed, plain
from healer.incidents.incident_verdict import place
from healer.model import AuditRecord, Incident, Run
from healer.ports.answers import Group, OpenIncident, Period, RuleFigures, Saved, Spread, Standing
from healer.text import Said, joined, quoted, say

#: Value of the query parameter -> length.
PERIODS = {
    "12h": timedelta(hours=12),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
    "90d": timedelta(days=90),
}
PERIOD_WORDS = {
    "12h": say("console.reports_last_shift_12_h"),
    "24h": "24 h",
    "7d": say("console.reports_7_days"),
    "30d": say("console.reports_30_days"),
    "90d": say("console.reports_90_days"),
}
RULES_SHOWN = 100


def reports(period: Period) -> Shown:
    stats = period.stats
    return Shown(
        times=(
            _time("detect", stats.detect),
            _time("decide", stats.decide),
            _time("drain", stats.drain),
            _time("return", stats.to_return),
        ),
        facts=tuple(_facts(period)),
        by_class=tuple(map(_group, period.by_class)),
        by_cause=tuple(map(_group, period.by_cause)),
        rules=tuple(map(_rule, period.by_rule[:RULES_SHOWN])),
        rules_more=max(0, len(period.by_rule) - RULES_SHOWN),
    )


def _facts(period: Period) -> list[tuple[str, str, str]]:
    """(name, figure, its basis)."""
    stats = period.stats
    rows: list[tuple[str, str, str]] = [
        (
            say("console.reports_incidents"),
            words.number(stats.incidents),
            say("console.reports_still_open", n=words.number(stats.open)),
        )
    ]
    if stats.gpu_hours_lost is None:
        lost, rests = say("console.incident_not_known"), say("console.reports_no_loss_reported")
    else:
        lost, rests = _hours(stats.gpu_hours_lost), say("console.reports_by_jobs_hit_each_life")
        if stats.gpu_hours_at_most:
            at_most = _hours(stats.gpu_hours_at_most)
            rests = joined(
                [rests, say("console.reports_upper_bound_without_checkpoint", at_most=at_most)], "nothing"
            )
    if stats.jobs_unknown:
        unknown = words.counted(stats.jobs_unknown, "job" if stats.gpu_hours_lost is None else "more_job")
        rests = joined([rests, say("console.reports_unknown_for", counted=unknown)], "nothing")
    rows.append((say("console.reports_gpu_hours_lost"), lost, rests))
    rows.append(_saved(stats.saved))
    drained = sum(figures.drained for figures in period.by_rule)
    false = say("console.reports_false_alarm_drains", counted=words.counted(drained, "drain"))
    rows.append((say("console.reports_false_drains"), words.number(stats.false_drains), false))
    again = say(
        "console.reports_came_back", relapsed=period.relapsed, counted=words.counted(period.returned, "node")
    )
    rate = f"{period.relapsed / period.returned:.0%}" if period.returned else "–"
    rows.append(
        (
            say("console.reports_relapses"),
            rate,
            say("console.reports_fault_again_after_return", again=again),
        )
    )
    return rows


def _saved(saved: Saved) -> tuple[str, str, str]:
    alone = say("console.reports_restarted_by_healer_alone", counted=words.counted(saved.jobs, "job"))
    if saved.gpu_hours is None or saved.people_s is None:
        handled = words.counted(saved.people, "incident")
        few = say("console.reports_too_few_to_compare", counted=handled)
        return (
            say("console.reports_gpu_hours_saved"),
            say("console.incident_not_known"),
            joined([alone, few], "semicolon"),
        )
    took = say("console.reports_people_response_time", span=words.span(saved.people_s), people=saved.people)
    return (
        say("console.reports_gpu_hours_saved"),
        _hours(saved.gpu_hours),
        say("console.reports_beside_median", alone=alone, took=took),
    )


def _hours(hours: float) -> str:
    return f"{hours:,.{0 if hours >= 100 else 1 if hours >= 1 else 2}f}"


def _time(step: str, spread: Spread) -> Shown:
    """`step`: by which the catalogue names it. A dash if nothing was measured."""
    return Shown(
        name=say(f"console.time_to_{step}"),
        meaning=say(f"console.time_to_{step}_means"),
        count=spread.count,
        median=_span(spread.p50_s),
        p90=_span(spread.p90_s),
        most=_span(spread.max_s),
    )


def _group(group: Group) -> Shown:
    """`median / p90` of each part."""
    return Shown(
        name=group.name.replace("_", " "),
        incidents=group.incidents,
        detect=_pair(group.detect),
        decide=_pair(group.decide),
        drain=_pair(group.drain),
        to_return=_pair(group.to_return),
    )


def _pair(spread: Spread) -> str:
    if not spread.count:
        return "–"
    return say("console.reports_pair", median=_span(spread.p50_s), p90=_span(spread.p90_s))


def _span(seconds: float | None) -> str:
    """A dash if it was not measured. Clock skew may make a time negative: that is shown as 0."""
    return "–" if seconds is None else words.span(max(0.0, seconds))


def _rule(figures: RuleFigures) -> Shown:
    if figures.precision is None:
        return Shown(figures=figures, precision=say("console.reports_not_judged"), tone="plain")
    text = say(
        "console.reports_of",
        precision=figures.precision,
        true_faults=figures.true_faults,
        true_faults2=figures.true_faults + figures.false_alarms,
    )
    return Shown(figures=figures, precision=text, tone="good" if figures.precision >= 0.95 else "warn")


#: Rows of each list; the pages of incidents, runs and audit have all.
SHOWN = 100
#: Sign-ins and tokens are left to the audit.
DOORS = ("access.", "session.", "token.")


class Shift(NamedTuple):
    """What was read of a shift: incidents that ended since it began, the newest runs, records of people."""

    since: datetime
    ended: Sequence[Incident]
    runs: Sequence[Run]
    records: Sequence[AuditRecord]


def handover(standing: Standing, strip: Strip, rows: Sequence[NodeRow], shift: Shift, now: datetime) -> Shown:
    """Each list most pressing first, or newest first. `cut` names the lists that were too long."""
    open_ = sorted(standing.open_incidents, key=lambda incident: (incident.severity, incident.opened))
    runs = [run_row(run, now) for run in shift.runs if run.created_at >= shift.since and not run.shadow]
    people = [audit_row(record, standing.cluster) for record in shift.records]
    lists = {
        say("console.reports_open_incidents"): open_,
        say("console.reports_incidents_ended"): shift.ended,
        say("console.reports_runs"): runs,
        say("console.reports_words_people"): people,
    }
    return Shown(
        cluster=standing.cluster,
        since=shift.since,
        until=now,
        strip=strip,
        waits=tuple(run_row(run, now) for run in standing.asking if asks(run)),
        open=tuple(open_[:SHOWN]),
        known_bad=tuple(row for row in rows if row.kind is NodeKind.bad_in_service)[:SHOWN],
        resolved=tuple(shift.ended[:SHOWN]),
        runs=tuple(runs[:SHOWN]),
        people=tuple(people[:SHOWN]),
        cut=tuple(name for name, found in lists.items() if len(found) > SHOWN),
    )


def markdown(shift: Shown, translate: Callable[[str], str] = str) -> str:
    """The hand-over in Markdown. `translate`: to the language of the request."""
    lines = [
        translate(say("console.reports_hand_over", plain=plain(shift.cluster))),
        "",
        translate(say("console.lanes_from_to", begin=words.utc(shift.since), end=words.utc(shift.until))),
        "",
        *map(translate, _capacity(shift.strip)),
    ]
    for title, rows in _sections(shift).items():
        lines += listed(title, rows, translate)
    if shift.cut:
        cut = joined(shift.cut, "comma")
        lines += ["", translate(say("console.reports_first_are_listed", shown=SHOWN, cut=cut))]
    return "\n".join(lines) + "\n"


def _capacity(strip: Strip) -> list[Said]:
    open_now = (
        joined((str(count), severity), "space") for severity, count in strip.open_by_severity if count
    )
    return [
        say(
            "console.reports_service_nodes_floor",
            in_service=strip.in_service,
            nodes=strip.nodes,
            floor=strip.floor,
        ),
        say(
            "console.reports_out_by_healer_by_slurm",
            out_healer=strip.out_healer,
            out_slurm=strip.out_slurm,
            out_person=strip.out_person,
            known_bad=strip.known_bad,
        ),
        say(
            "console.reports_slots_held_open_incidents",
            slots_used=strip.slots_used,
            slots_limit=strip.slots_limit,
            open_now=joined(open_now, "comma") or say("console.none"),
        ),
    ]


def _sections(shift: Shown) -> dict[Said, list[str]]:
    """By heading."""
    return {
        say("console.reports_banners"): [
            joined([banner.title, banner.text], "space") for banner in shift.strip.banners
        ],
        say("console.reports_waits_for_person"): [
            say("console.reports_waits", title=quoted(row.title), word=quoted(row.word), why=quoted(row.why))
            for row in shift.waits
        ],
        say("console.reports_known_bad_in_service"): [
            say("words.labelled", label=row.name, text=_why_bad(row)) for row in shift.known_bad
        ],
        say("console.reports_open_now"): [_open(incident) for incident in shift.open],
        say("console.reports_ended_in_shift"): [_ended(incident) for incident in shift.resolved],
        say("console.reports_runs_of_shift"): [
            say("console.reports_run", at=_at(row.run.created_at), title=row.title, word=quoted(row.word))
            for row in shift.runs
        ],
        say("console.reports_what_people_did"): [_person(row) for row in shift.people],
    }


def _why_bad(row: NodeRow) -> str:
    return joined((incident.title for incident in row.incidents[:3]), "comma")


def _open(incident: OpenIncident) -> str:
    seen = (
        say("console.reports_looks_after", acknowledged_by=incident.acknowledged_by)
        if incident.acknowledged_by
        else ""
    )
    heading, name = _heading(incident), incident.id[:8]
    return say("console.reports_open", heading=heading, name=name, at=_at(incident.opened), seen=seen)


def _ended(incident: Incident) -> str:
    heading, name = _heading(incident), incident.short_id
    if not incident.closed_why:
        return say("console.reports_ended", heading=heading, name=name)
    return say("console.reports_ended_because", heading=heading, name=name, why=quoted(incident.closed_why))


def _heading(incident: Incident | OpenIncident) -> str:
    where = joined((incident.severity.value, place(incident.root)), "space")
    return words.labelled(where, incident.title)


def _person(row: Shown) -> str:
    did = f"{_at(row.record.at)} {row.record.actor} {row.record.verb} {row.name}"
    return words.labelled(did, row.words) if row.words else did


def _at(moment: datetime) -> str:
    return f"{moment:%m-%d %H:%M}"
