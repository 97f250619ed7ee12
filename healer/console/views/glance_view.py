"""An incident on one time axis: signals, decisions, steps, the node out of service, and the jobs it hit."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from healer.console import words
from healer.console.views.svg_lanes import Lane, LaneChart, Mark, Span, offset_ticks
from healer.console.views.timeline_view import TimelineRow
from healer.engine.records import IncidentRecord
from healer.incidents.impact import loss_text
from healer.model import Incident, JobHit, LogEntry, Outcome, StepEvent, Verb
from healer.ports.answers import CheckpointSeen, RunRecord
from healer.text import joined, quoted, say

if TYPE_CHECKING:
    from healer.model.telemetry import StepBatch

#: Jobs that have a lane of their own: those with the most GPUs.
JOBS_DRAWN = 3
#: How far back a job's steps are read, and how far apart.
_STEPS_SINCE, _STEPS_APART = timedelta(minutes=30), timedelta(minutes=1)
#: Lives of a job whose ends are read to the second.
_LIVES = 10
#: Time shown before the first signal.
_BEFORE = timedelta(seconds=1)

_ENDS = (StepEvent.done, StepEvent.failed, StepEvent.skipped, StepEvent.undone)
_RETURNING = (Verb.resume, Verb.undrain, "undo drain")
_RESTARTING = (Verb.requeue, Verb.revive)
_REPAIRING = (Verb.reset_gpu, Verb.restart_service, Verb.reboot, Verb.power_cycle)


class JobProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What a hit job reported: its checkpoints, and its latest steps by life."""

    checkpoints: tuple[CheckpointSeen, ...] = ()
    steps: tuple["StepsSeen", ...] = ()


class StepsSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Finished steps of one life of a job."""

    restart: int
    first: int
    last: int
    begin: datetime
    end: datetime


def steps_seen(batches: Sequence["StepBatch"]) -> tuple[StepsSeen, ...]:
    """Of each life that reported finished steps, by restart count."""
    found: dict[int, StepsSeen] = {}
    for batch in batches:
        if batch.doing is not None or not len(batch.step):
            continue
        here = StepsSeen(
            restart=batch.restart,
            first=int(batch.step.min()),
            last=int(batch.step.max()),
            begin=datetime.fromtimestamp(float(batch.at.min()), UTC),
            end=datetime.fromtimestamp(float(batch.at.max()), UTC),
        )
        before = found.get(batch.restart, here)
        found[batch.restart] = StepsSeen(
            restart=batch.restart,
            first=min(before.first, here.first),
            last=max(before.last, here.last),
            begin=min(before.begin, here.begin),
            end=max(before.end, here.end),
        )
    return tuple(found[restart] for restart in sorted(found))


def step_moments(incident: Incident, job: str, now: datetime) -> list[datetime]:
    """The moments about which batches of the job's steps are read: where its hit lives ended, and each minute
    of the last half hour."""
    since = now - _STEPS_SINCE
    ends = [hit.ended_at for hit in incident.hit if hit.job == job and hit.ended_at is not None]
    return [
        *(since + number * _STEPS_APART for number in range(_STEPS_SINCE // _STEPS_APART + 1)),
        *sorted(end for end in ends if since < end < now)[-_LIVES:],
    ]


def jobs_drawn(incident: Incident) -> list[str]:
    """The jobs that get a lane: those with the most GPUs."""
    gpus = {hit.job: hit.gpus for hit in incident.hit}
    return sorted(incident.jobs_hit, key=lambda job: (-gpus.get(job, 0), job))[:JOBS_DRAWN]


def glance(
    detail: IncidentRecord, rows: Sequence[TimelineRow], jobs: Mapping[str, JobProgress], now: datetime
) -> LaneChart:
    """`rows`: the incident's timeline, which says the same in words; `jobs`: progress by job."""
    incident = detail.incident
    lanes = (
        _signals(rows),
        _decisions(detail, rows),
        _steps(detail, rows),
        _people(rows),
        _out_of_service(detail),
        *(_job(detail, job, jobs[job]) for job in jobs_drawn(incident) if job in jobs),
    )
    moments = (mark.at for lane in lanes for mark in lane.marks if mark.moment and mark.at <= now)
    times = [incident.opened, *(row.at for row in rows), *moments]
    return LaneChart(
        id="glance",
        title=say("console.lanes_incident"),
        note=say("console.lanes_incident_note"),
        since=min(times) - _BEFORE,
        until=now if incident.is_open else max(times),
        lanes=lanes,
        ticks=offset_ticks(incident.opened),
        zero=incident.opened,
    )


def _marks_of(
    rows: Sequence[TimelineRow], *kinds: str, moment: str = "", at: datetime | None = None
) -> Iterator[Mark]:
    """`moment`: the name of the first of them, or of the first at this time."""
    for row in rows:
        if row.kind not in kinds:
            continue
        name = moment if at in (None, row.at) else ""
        moment = "" if name else moment
        text = say("words.labelled", label=quoted(row.kind), text=quoted(row.text))
        tone = row.tone if row.tone in ("warn", "bad") else "ask" if name else "plain"
        yield Mark(at=row.at, text=text, tone=tone, moment=name)


def _signals(rows: Sequence[TimelineRow]) -> Lane:
    marks = [*_marks_of(rows, "evidence", moment=say("console.moment_signal")), *_marks_of(rows, "finding")]
    return Lane(name=say("console.health_signals"), marks=tuple(marks))


def _decisions(detail: IncidentRecord, rows: Sequence[TimelineRow]) -> Lane:
    incident = detail.incident
    detected = say("console.moment_detected")
    marks = [
        Mark(at=incident.opened, text=incident.title, tone="bad", moment=detected),
        *_marks_of(rows, "verdict"),
    ]
    acted = min((each.at for each in detail.decisions if each.outcome is Outcome.act), default=None)
    decided = say("console.moment_decided") if acted else ""
    marks += _marks_of(rows, "decision", moment=decided, at=acted)
    if incident.closed:
        resolved = say("console.moment_resolved")
        why = incident.closed_why or resolved
        marks.append(Mark(at=incident.closed, text=why, tone="good", moment=resolved))
    return Lane(name=say("console.lanes_decisions"), marks=tuple(marks))


def _people(rows: Sequence[TimelineRow]) -> Lane:
    return Lane(name=say("console.lanes_people"), marks=tuple(_marks_of(rows, "person", "message")))


def _steps(detail: IncidentRecord, rows: Sequence[TimelineRow]) -> Lane:
    """Each line of the runs' logs, and how long each step took."""
    marks = list(_marks_of(rows, "step"))
    for run, entry in _done(detail):
        if _verb(entry) in _REPAIRING:
            marks.append(
                _named(entry.at, say(f"console.moment_{_verb(entry)}"), _step_text(run, entry), "ask")
            )
    spans = [span for run in detail.runs if not run.run.shadow for span in _spans_of(run)]
    return Lane(name=say("console.lanes_steps"), marks=tuple(marks), spans=tuple(spans))


def _spans_of(run: RunRecord) -> Iterator[Span]:
    """From the start of each step to its end; a running step has none."""
    begun: dict[str, LogEntry] = {}
    for entry in run.log:
        if entry.event is StepEvent.started:
            begun.setdefault(entry.step, entry)
        elif entry.event in _ENDS and (start := begun.pop(entry.step, None)):
            tone = "bad" if entry.event is StepEvent.failed else "good"
            yield Span(begin=start.at, end=entry.at, text=_step_text(run, entry), tone=tone)
    over = run.run.ended_at
    for entry in begun.values():
        yield Span(begin=entry.at, end=over, text=_step_text(run, entry), tone="ask")


def _step_text(run: RunRecord, entry: LogEntry) -> str:
    return joined(filter(None, (run.run.playbook, entry.step)), "space")


def _out_of_service(detail: IncidentRecord) -> Lane:
    """From each drain that was read back to the return of its node."""
    incident = detail.incident
    marks: list[Mark] = []
    drained: dict[str, LogEntry] = {}
    spans: list[Span] = []
    for run, entry in sorted(_done(detail), key=lambda pair: pair[1].at):
        node = run.run.node or ""
        if _verb(entry) == Verb.drain and node not in drained:
            drained[node] = entry
            marks.append(_named(entry.at, say("console.moment_drain"), node, "warn"))
        elif _verb(entry) in _RETURNING and node in drained:
            spans.append(_out_span(node, drained.pop(node).at, entry.at))
            marks.append(_named(entry.at, say("console.moment_resume"), node, "good"))
    spans += [_out_span(node, entry.at, incident.closed) for node, entry in drained.items()]
    return Lane(name=say("console.lanes_out"), marks=tuple(marks), spans=tuple(spans))


def _named(at: datetime, moment: str, what: str, tone: str) -> Mark:
    return Mark(at=at, text=words.labelled(moment, what), tone=tone, moment=moment)


def _out_span(node: str, begin: datetime, end: datetime | None) -> Span:
    return Span(begin=begin, end=end, text=say("console.lanes_out_of", node=node), tone="warn")


def _job(detail: IncidentRecord, job: str, progress: JobProgress) -> Lane:
    """Its lives, lost work, durable checkpoints, requeues, and the steps that it reported last."""
    hits = [hit for hit in detail.incident.hit if hit.job == job]
    # Drawing order: lost work over the steps that were lost.
    spans = [span for hit in hits for span in _life(hit)]
    spans += [_steps_span(steps, hits) for steps in progress.steps]
    spans += [span for hit in hits for span in _lost(hit)]
    marks = [
        Mark(at=seen.at, text=say("console.lanes_checkpoint", step=seen.step))
        for seen in progress.checkpoints
        if seen.durable
    ]
    for _, entry in _done(detail):
        if _verb(entry) in _RESTARTING and entry.step.endswith(f":{job}"):
            moment = _moment_of(detail, "requeue", job)
            marks.append(Mark(at=entry.at, text=entry.text or moment, tone="ask", moment=moment))
    if (again := _next_life(detail, job, hits)) is not None:
        spans.append(again)
        marks.append(_named(again.begin, _moment_of(detail, "again", job), job, "good"))
    return Lane(name=say("console.runs_job", job=job), marks=tuple(marks), spans=tuple(spans))


def _life(hit: JobHit) -> Iterator[Span]:
    if hit.started_at is not None:
        text = say("console.lanes_life", restart=hit.restart)
        yield Span(begin=hit.started_at, end=hit.ended_at, text=text)


def _lost(hit: JobHit) -> Iterator[Span]:
    if hit.since is not None and hit.ended_at is not None:
        yield Span(begin=hit.since, end=hit.ended_at, text=loss_text(hit), tone="bad")


def _steps_span(steps: StepsSeen, hits: Sequence[JobHit]) -> Span:
    text = say("console.lanes_job_steps", first=steps.first, last=steps.last, restart=steps.restart)
    later = any(steps.restart > hit.restart for hit in hits)
    return Span(begin=steps.begin, end=steps.end, text=text, tone="good" if later else "plain")


def _next_life(detail: IncidentRecord, job: str, hits: Sequence[JobHit]) -> Span | None:
    """The life of the job after the one that was hit, as Slurm shows it; None if it has begun yet another."""
    shown = detail.snapshot.jobs.get(job) if detail.snapshot else None
    restart = max((hit.restart for hit in hits), default=0)
    if shown is None or shown.start_at is None or shown.state == "PENDING" or shown.restarts != restart + 1:
        return None
    if shown.start_at < detail.incident.opened:
        return None
    text = say("console.lanes_runs_again")
    return Span(begin=shown.start_at, end=shown.end_at, text=text, tone="good")


def _moment_of(detail: IncidentRecord, name: str, job: str) -> str:
    """The name of a moment of a job; with the job where there are several."""
    moment = say(f"console.moment_{name}")
    return joined((moment, job), "space") if len(detail.incident.jobs_hit) > 1 else moment


def _done(detail: IncidentRecord) -> Iterator[tuple[RunRecord, LogEntry]]:
    """What runs did, without shadow runs."""
    for run in detail.runs:
        for entry in run.log:
            if not run.run.shadow and entry.event in (StepEvent.done, StepEvent.undone):
                yield run, entry


def _verb(entry: LogEntry) -> str:
    """What the step did; a log of an earlier version has it only in the step's name."""
    return str(entry.data.get("verb") or entry.step.partition(":")[0])
