"""The queue of incidents: which come first and match the filters, what healer does about each, who has it."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum

import msgspec

from healer.console import words
from healer.console.views import Shown
from healer.console.views.buttons import nothing_bars, run_buttons
from healer.console.views.pauses_view import Cap
from healer.console.views.runs_view import RunRow, asks, last_decision, run_row
from healer.incidents.incident_verdict import place
from healer.model import AnswerKind, Incident, IncidentState, Role, Run, Severity, SlurmJob
from healer.ports.answers import OpenIncident, RunRecord, Standing
from healer.text import Said, joined, name_some, quoted, say

#: Jobs that a row names.
_JOBS = 2


class Needs(StrEnum):
    """What an open incident waits for: anyone's decision, someone to take it, or the viewer."""

    decision = "decision"
    nobody = "nobody"
    me = "me"


NEEDS_WORDS = {needs: say(f"console.needs_{needs}") for needs in Needs}


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The filters of the URL. `me` is the viewer."""

    severity: Severity | None = None
    state: IncidentState | None = None
    needs: Needs | None = None
    text: str = ""
    me: str = ""


def queue(found: Iterable[OpenIncident], asking: Collection[str], wanted: Wanted) -> list[OpenIncident]:
    """Matching incidents, most urgent first. `asking`: ids of incidents whose run asks a person."""
    fit = [incident for incident in found if _fits(incident, asking, wanted)]
    fit.sort(key=lambda incident: incident.opened, reverse=True)
    fit.sort(key=lambda incident: _urgency(incident, asking))
    return fit


def _urgency(incident: OpenIncident, asking: Collection[str]) -> tuple[Severity, bool, bool, bool]:
    """By severity; then those that wait for a person, those known bad in service, those not acknowledged."""
    return (
        incident.severity,
        incident.id not in asking,
        not incident.known_bad_in_service,
        incident.acknowledged_by is not None,
    )


def _fits(incident: OpenIncident, asking: Collection[str], wanted: Wanted) -> bool:
    if wanted.severity not in (None, incident.severity) or wanted.state not in (None, incident.state):
        return False
    needed = {
        None: True,
        Needs.decision: incident.id in asking,
        Needs.nobody: incident.acknowledged_by is None,
        Needs.me: incident.acknowledged_by == wanted.me,
    }
    return needed[wanted.needs] and (not wanted.text or _holds(incident, wanted.text.lower()))


def _holds(incident: OpenIncident, text: str) -> bool:
    """Searches the same fields as `IncidentQuery.text`."""
    parts = (
        incident.rule,
        incident.title,
        incident.fault,
        str(incident.root),
        *incident.nodes,
        *incident.jobs_hit,
    )
    return incident.id.startswith(text) or any(text in part.lower() for part in parts)


def asking_ids(asking: Iterable[Run]) -> frozenset[str]:
    return frozenset(run.incident for run in asking if run.incident and asks(run))


def queue_row(incident: Incident, run: Run | None, now: datetime) -> Shown:
    """`doing` is what healer does, `waits` for what, each empty where there is nothing to say. `run`: the
    newest that works on the incident and has not ended."""
    doing, tone, waits = _doing(incident, run, now)
    return Shown(
        incident=incident,
        place=place(incident.root),
        jobs=_jobs(incident),
        doing=doing,
        tone=tone,
        waits=waits,
        who=_who(incident),
    )


def _jobs(incident: Incident) -> str:
    users: Mapping[str, str] = {impact.job: impact.user for impact in incident.hit if impact.user}
    named = [
        say("console.queue_of", job=job, users=users[job]) if job in users else job
        for job in incident.jobs_hit
    ]
    return name_some(named, _JOBS)


def _doing(incident: Incident, run: Run | None, now: datetime) -> tuple[str, str, str]:
    if not incident.is_open:
        return "", "plain", incident.closed_why or ""
    bad = say("console.queue_known_bad_service") if incident.known_bad_in_service else ""
    if run is not None:
        row = run_row(run, now)
        held = (
            say("console.queue_guard_holds", held_by=incident.held_by)
            if incident.held_by and not row.why
            else ""
        )
        doing = say("words.labelled", label=run.playbook, text=quoted(row.word))
        return doing, row.tone, joined(filter(None, (bad, row.why, held)), "space")
    if incident.owner:
        return (
            say("console.queue_leaves_node_owner"),
            "plain",
            say("console.queue_keeps_drained", owner=incident.owner),
        )
    if incident.held_by:
        return (
            say("console.queue_held_back"),
            "bad" if bad else "warn",
            joined(filter(None, (bad, say("console.queue_guard", held_by=incident.held_by))), "space"),
        )
    if bad:
        return say("console.queue_cannot_drain"), "bad", bad
    if incident.settle_until > now:
        return (
            say("console.queue_gathers_what_belongs"),
            "live",
            say("console.queue_decides", ago=words.ago(incident.settle_until, now)),
        )
    if incident.state is IncidentState.verifying:
        return say("console.queue_watches_node"), "live", ""
    return say("console.queue_nothing_own"), "plain", ""


def _who(incident: Incident) -> str:
    if incident.is_open:
        return incident.acknowledged_by or ""
    if incident.merged_into:
        return say("console.queue_part", merged_into=incident.merged_into[:8])
    return incident.review.value.replace("_", " ") if incident.review else say("console.incident_review")


#: So many with their previews; the page of runs has all.
SHOWN = 20
JOBS_SHOWN = 8


def most_urgent(rows: Sequence[RunRow], standing: Standing) -> list[RunRow]:
    """By the severity of the incident, then the oldest. What a person asked for without one is like P2."""
    by_id = {incident.id: incident for incident in standing.open_incidents}

    def order(row: RunRow) -> tuple[str, float]:
        incident = by_id.get(row.run.incident or "")
        return (incident.severity if incident else Severity.P2, row.run.created_at.timestamp())

    return sorted((row for row in rows if row.asks), key=order)


def approval(
    row: RunRow,
    detail: RunRecord | None,
    standing: Standing,
    takes: Mapping[str, str],
    role: Role,
    bars: Callable[[Run], Said | None] = nothing_bars,
) -> Shown:
    """`against` are guards that held or refused it when it was last judged; `jobs` run on its node now, and
    `jobs_more` are not listed. `takes`: playbook -> what it takes of the cluster."""
    run, picture = row.run, standing.snapshot
    incident = next((incident for incident in standing.open_incidents if incident.id == run.incident), None)
    jobs: list[SlurmJob] = []
    if picture is not None:
        named = picture.jobs.get(run.job) if run.job else None
        jobs = picture.jobs_on(run.node) if run.node else [named] if named else []
    decision = last_decision(detail) if detail else None
    against = (
        [answer for answer in decision.answers if answer.kind is not AnswerKind.allow] if decision else []
    )
    return Shown(
        row=row,
        severity=incident.severity if incident else None,
        incident=incident,
        plan=detail.plan if detail else (),
        takes=takes.get(run.playbook, ""),
        jobs=tuple(jobs[:JOBS_SHOWN]),
        jobs_more=max(0, len(jobs) - JOBS_SHOWN),
        jobs_known=picture is not None and (run.node is None or run.node in picture.nodes),
        why=decision.why if decision else "",
        against=against,
        # Keys would fit several of them: here each is pressed by itself.
        buttons=tuple(msgspec.structs.replace(button, key="") for button in run_buttons(run, role, bars)),
    )


def room(caps: Sequence[Cap]) -> str:
    """`Floor of service: 3 left; Slots: 1 left; …`, of the whole cluster."""
    left = (say("console.queue_left", name=quoted(cap.name), left=cap.left) for cap in caps[:3])
    return joined(left, "semicolon")
