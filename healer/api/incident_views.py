"""One incident, run or job as answers show it, with everything related to it. Pure.

JSON names are the field names."""

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np

from healer.engine.records import IncidentRecord, JobHistory
from healer.model import (
    AuditRecord,
    Decision,
    Finding,
    Incident,
    IncidentVerdict,
    LogEntry,
    Message,
    Playbook,
    Ruleset,
    Run,
    Similar,
    SlurmJob,
    Step,
    StepEvent,
    Verb,
    VerdictAt,
)
from healer.model.goodput import GoodputRow
from healer.model.telemetry import StepBatch
from healer.observations.step_grid import RankPace, StepGrid, deviation, grid, median_over_ranks, slowest
from healer.playbooks import entries_by_step
from healer.ports.answers import Note, RunRecord, SentMessage
from healer.text import NO_WORDS, say, to_plain, to_text


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` is evidence, finding, verdict, decision, step, note, person or message. `at` is the event's own
    time."""

    at: datetime
    kind: str
    text: str
    by: str = ""
    data: dict[str, Any] = {}


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a run. `state` is the last event of its log, `pending` before the first.

    `undo` says how the step is taken back, empty when it cannot be or has nothing to take back.
    """

    id: str
    title: str
    state: str
    attempt: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    text: str = ""
    undo: str = ""
    evidence: dict[str, Any] = {}


class RunDetail(Run, frozen=True, kw_only=True):
    """A run as lists show it, and how far it is."""

    title: str
    steps: list[StepView]
    log: list[LogEntry]
    decisions: list[Decision]


class IncidentDetail(Incident, frozen=True, kw_only=True):
    """An incident as lists show it, and everything related to it. `runs` come with steps and log.

    Evidence, findings, verdict and action are separate: `evidence` is what was read, `findings` what
    detectors claim, `verdict` what healer holds true now (`verdicts`: from when on it held what, oldest
    first, the newest 50), `decisions` and `runs` what is done about it. `jobs` are the jobs hit as Slurm
    still shows them; `state` UNKNOWN where it has forgotten them.
    """

    findings: list[Finding]
    verdict: IncidentVerdict
    verdicts: list[VerdictAt]
    decisions: list[Decision]
    runs: list[RunDetail]
    timeline: list[TimelineEntry]
    jobs: list[SlurmJob]
    similar: list[Similar]
    notes: list[Note]
    messages: list[Message]
    audit: list[AuditRecord]


class JobStepView(msgspec.Struct, frozen=True, kw_only=True):
    """One step over all ranks that reported it: seconds, medians except `slowest_compute_s`."""

    step: int
    at: datetime | None
    ranks: int
    step_s: float | None = None
    compute_s: float | None = None
    slowest_compute_s: float | None = None
    slowest_rank: int | None = None


class RankView(RankPace, frozen=True, kw_only=True):
    """How a rank did over the last 20 steps: `slower` is compute per work above its stage (0.18: 18 %)."""


class StepTimesView(msgspec.Struct, frozen=True, kw_only=True):
    """Step times of the last 30 minutes, 200 steps at most, of the job's life `restart`.

    `whole_only`: the job reports no compute time, so it is unknown which rank is slow.
    """

    restart: int
    ranks: int
    whole_only: bool
    steps: list[JobStepView]
    slowest: list[RankView]


class CheckpointView(msgspec.Struct, frozen=True, kw_only=True):
    restart: int
    step: int
    path: str
    durable: bool
    at: datetime
    #: As the job reported it; None if it did not.
    sha256: str | None = None


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """`job` is None when Slurm no longer knows it; `step_times` when none came in the last 30 minutes.

    `gpu_hours_lost`: the sum of what its lives lost, by the incidents that hit it (`hit`); None while that is
    unknown. `gpu_hours_at_most`: a life reported no durable checkpoint, so all of it counts. `done` says in
    sentences what healer did to the job, or why it did nothing, oldest first. `errors` are lines that the
    driver logged of the job's own programs (Xid 43, 45), counted by code: alone they accuse no node.
    """

    cluster: str
    id: str
    job: SlurmJob | None
    nodes: list[str]
    incidents: list[Incident]
    requeues: list[dict[str, Any]] = []
    done: list[dict[str, Any]] = []
    errors: list[dict[str, Any]] = []
    step_times: StepTimesView | None = None
    checkpoints: list[CheckpointView] = []
    gpu_hours_lost: float | None = None
    gpu_hours_at_most: bool = False
    #: What its GPU-hours were spent on (docs/jobs.md); None: not counted yet.
    goodput: GoodputRow | None = None


#: How a done step is undone. Verbs that are missing leave nothing, or cannot be undone.
_UNDO = {
    Verb.drain: say("api.undo_drain"),
    Verb.reserve: say("api.undo_reserve"),
    Verb.exclude: say("api.undo_exclude"),
    Verb.down: say("api.undo_drain"),
}
_ENDS = frozenset({StepEvent.done, StepEvent.failed, StepEvent.skipped, StepEvent.undone})


def run_detail(record: RunRecord, rules: Ruleset) -> RunDetail:
    playbook = rules.playbooks.get(record.run.playbook)
    return RunDetail(
        **msgspec.structs.asdict(record.run),
        title=playbook.title if playbook else record.run.playbook,
        steps=steps_of(playbook, record.log),
        log=list(record.log),
        decisions=list(record.decisions),
    )


def steps_of(playbook: Playbook | None, log: Sequence[LogEntry]) -> list[StepView]:
    """The playbook's steps in order, each with what its log says; a step per job where it ran per job."""
    by_key = entries_by_step(log)
    views: list[StepView] = []
    for step in playbook.steps if playbook else ():
        keys = [key for key in by_key if key == step.id or key.startswith(step.id + ":")]
        views += [_step_view(key, step, by_key.pop(key)) for key in keys] or [_step_view(step.id, step, [])]
    views += [_step_view(key, None, entries) for key, entries in by_key.items()]
    return views


def _step_view(key: str, step: Step | None, entries: Sequence[LogEntry]) -> StepView:
    title = (step.title or step.id) if step else key
    if not entries:
        return StepView(id=key, title=title, state="pending")
    last = entries[-1]
    evidence: dict = {}
    for entry in entries:
        evidence |= entry.data
    done = last.event is StepEvent.done and step is not None and step.do is not None
    return StepView(
        id=key,
        title=title if key == (step.id if step else key) else f"{title} ({key.partition(':')[2]})",
        state=last.event.value,
        attempt=max(entry.attempt for entry in entries),
        started_at=entries[0].at,
        ended_at=last.at if last.event in _ENDS else None,
        text=last.text,
        undo=_UNDO.get(step.do, NO_WORDS) if done and step and step.do else "",
        evidence=evidence,
    )


def incident_detail(record: IncidentRecord, rules: Ruleset) -> IncidentDetail:
    incident = record.incident
    jobs = record.snapshot.jobs if record.snapshot else {}
    # Equal times keep the order of the lists: cause before effect.
    timeline = [*_seen(record), *_judged(record), *_done(record), *map(_message, record.messages)]
    return IncidentDetail(
        **msgspec.structs.asdict(incident),
        findings=list(record.findings),
        decisions=list(record.decisions),
        runs=[run_detail(run, rules) for run in record.runs],
        timeline=sorted(timeline, key=lambda entry: entry.at),
        jobs=[jobs.get(job) or SlurmJob(id=job, state="UNKNOWN") for job in incident.jobs_hit],
        similar=list(record.similar),
        verdict=record.verdict,
        verdicts=list(record.verdicts),
        notes=list(record.notes),
        messages=[sent.message for sent in record.messages],
        audit=list(record.records),
    )


def _seen(record: IncidentRecord) -> Iterator[TimelineEntry]:
    for seen in record.incident.evidence:
        yield TimelineEntry(at=seen.at, kind="evidence", text=seen.text, data={"line": seen.line})
    for finding in record.findings:
        data = {"rule": finding.rule, "fault": finding.fault}
        yield TimelineEntry(at=finding.at, kind="finding", text=finding.text, data=data)


def _judged(record: IncidentRecord) -> Iterator[TimelineEntry]:
    """Each verdict whose sentence differs from the one before it, and the decisions."""
    before = None
    for verdict in record.verdicts:
        sentence, data = verdict.verdict.sentence, {"certainty": verdict.verdict.certainty}
        if sentence != before:
            yield TimelineEntry(at=verdict.at, kind="verdict", text=sentence, data=data)
        before = sentence
    for decision in record.decisions:
        answers = to_plain(decision.answers)
        data = {"outcome": decision.outcome.value, "guard": decision.guard, "answers": answers}
        yield TimelineEntry(at=decision.at, kind="decision", text=decision.why, data=data)


def _done(record: IncidentRecord) -> Iterator[TimelineEntry]:
    """What runs and people did."""
    for run in record.runs:
        for entry in run.log:
            text = entry.text or f"{entry.step}: {entry.event.value}"
            data = {"run": run.run.id, "step": entry.step, "event": entry.event.value}
            yield TimelineEntry(at=entry.at, kind="step", text=text, by=run.run.by, data=data)
    for note in record.notes:
        yield TimelineEntry(at=note.at, kind="note", text=note.text, by=note.by)
    for word in record.records:
        if word.actor != "healer" and word.verb != "incident.noted":
            yield TimelineEntry(at=word.at, kind="person", text=word.verb, by=word.actor, data=word.data)


def _message(sent: SentMessage) -> TimelineEntry:
    data = {"state": sent.state, "page": sent.page, "error": sent.error, "reference": sent.reference}
    data["channels"] = to_plain(sent.channels)
    return TimelineEntry(at=sent.at, kind="message", text=sent.message.title, data=data)


def job_view(cluster: str, job: str, history: JobHistory, steps: StepTimesView | None) -> JobView | None:
    """None if neither Slurm nor healer knows the job."""
    shown = history.snapshot.jobs.get(job) if history.snapshot else None
    if shown is None and history.empty and steps is None:
        return None

    def plain(rows: object) -> list[dict[str, Any]]:
        return list(msgspec.to_builtins(rows, builtin_types=(datetime,), enc_hook=to_text))

    return JobView(
        cluster=cluster,
        id=job,
        job=shown,
        nodes=list(shown.nodes) if shown else [],
        incidents=list(history.incidents),
        requeues=plain(history.requeues),
        done=plain(history.done),
        errors=plain(history.errors),
        checkpoints=[CheckpointView(**checkpoint) for checkpoint in plain(history.checkpoints)],
        step_times=steps,
        gpu_hours_lost=history.gpu_hours_lost,
        gpu_hours_at_most=history.gpu_hours_at_most,
    )


STEPS = timedelta(minutes=30)


def step_times(batches: Sequence[StepBatch], slurm_nodes: Sequence[str]) -> StepTimesView | None:
    made = grid(batches, slurm_nodes=slurm_nodes)
    if made is None:
        return None
    ranks = slowest(made, deviation(made)) if made.has_compute else []
    return StepTimesView(
        restart=made.restart,
        ranks=len(made.rank),
        whole_only=not made.has_compute,
        steps=_steps(made),
        slowest=[RankView(**msgspec.structs.asdict(pace)) for pace in ranks],
    )


def _steps(made: StepGrid) -> list[JobStepView]:
    whole, compute = median_over_ranks(made.step_s), median_over_ranks(made.compute_s)
    reported = np.isfinite(made.compute_s)
    most = np.where(reported, made.compute_s, -np.inf).argmax(axis=0)
    found = []
    for index, step in enumerate(made.step.tolist()):
        worst = int(most[index]) if reported[:, index].any() else None
        at = float(made.at[index])
        found.append(
            JobStepView(
                step=step,
                at=datetime.fromtimestamp(at, UTC) if math.isfinite(at) else None,
                ranks=int(np.isfinite(made.step_s[:, index]).sum()),
                step_s=_finite(whole[index]),
                compute_s=_finite(compute[index]),
                slowest_compute_s=None if worst is None else _finite(made.compute_s[worst, index]),
                slowest_rank=None if worst is None else int(made.rank[worst]),
            )
        )
    return found


def _finite(value: float) -> float | None:
    return round(float(value), 6) if math.isfinite(value) else None
