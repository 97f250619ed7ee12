"""One incident, run or job as answers show it, with all that hangs on it. Pure.

JSON names are the field names."""

import math
from collections.abc import Sequence
from dataclasses import asdict
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
from healer.model.telemetry import StepBatch
from healer.observations.step_grid import (
    StepGrid,
    deviation,
    grid,
    median_over_ranks,
    slowest,
)
from healer.playbooks import BEGIN
from healer.ports.answers import Note, RunRecord, SentMessage


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` is evidence, finding, verdict, decision, step, note, person or message. `at` is the event's own
    time."""

    at: datetime
    kind: str
    text: str
    by: str = ""
    data: dict[str, Any] = {}


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a run as it stands. `state` is the last event of its log, `pending` before the first.

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
    """An incident as lists show it, and all that hangs on it. `runs` come with steps and log.

    Evidence, findings, verdict and action stand apart: `evidence` is what was read, `findings` what detectors
    claim, `verdict` what healer holds true now (`verdicts`: from when on it held what, oldest first, the
    newest 50), `decisions` and `runs` what is done about it. `jobs` are the jobs hit as Slurm still shows
    them; `state` UNKNOWN where it has forgotten them.
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
    """One step over all ranks that told it: seconds, medians but for `slowest_compute_s`."""

    step: int
    at: datetime | None
    ranks: int
    step_s: float | None = None
    compute_s: float | None = None
    slowest_compute_s: float | None = None
    slowest_rank: int | None = None


class RankView(msgspec.Struct, frozen=True, kw_only=True):
    """How a rank did over the last 20 steps: `slower` is compute per work above its stage (0.18: 18 %)."""

    rank: int
    node: str | None
    gpu: int | None
    stage: int | None
    slower: float
    last: float | None
    compute_s: float | None
    slow_steps: int


class StepTimesView(msgspec.Struct, frozen=True, kw_only=True):
    """Step times of the last 30 minutes, 200 steps at most, of the job's life `restart`.

    `whole_only`: the job tells no compute time, so nobody can say which rank is slow.
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
    #: As the job told it; None where it made none.
    sha256: str | None = None


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """`job` is None when Slurm no longer knows it; `step_times` when none came in the last 30 minutes.

    `gpu_hours_lost`: the sum of what its lives lost, as the incidents that hit it tell (`hit`); None while
    that is not known. `gpu_hours_at_most`: a life told no durable checkpoint, so all of it counts. `done`
    says in sentences what healer did to the job, or why it did nothing, oldest first. `errors` are lines that
    the driver logged of its own programs (Xid 43, 45), counted by code: alone they accuse no node.
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


#: How a done step is taken back. Verbs that are missing leave nothing, or cannot be taken back.
_UNDO = {
    Verb.drain: "resume the node: playbook resume",
    Verb.reserve: "delete the reservation",
    Verb.exclude: "take the exclusion back",
    Verb.down: "resume the node: playbook resume",
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
    by_key: dict[str, list[LogEntry]] = {}
    for entry in log:
        if entry.step != BEGIN:  # what conditions rest on: no step
            by_key.setdefault(entry.step, []).append(entry)
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
        undo=_UNDO.get(step.do, "") if done and step and step.do else "",
        evidence=evidence,
    )


def incident_detail(record: IncidentRecord, rules: Ruleset) -> IncidentDetail:
    incident = record.incident
    jobs = record.snapshot.jobs if record.snapshot else {}
    timeline = _seen(record) + _judged(record) + _done(record)
    timeline += [_message(one) for one in record.messages]
    return IncidentDetail(
        **msgspec.structs.asdict(incident),
        findings=list(record.findings),
        decisions=list(record.decisions),
        runs=[run_detail(one, rules) for one in record.runs],
        timeline=sorted(timeline, key=lambda entry: entry.at),
        jobs=[jobs.get(job) or SlurmJob(id=job, state="UNKNOWN") for job in incident.jobs_hit],
        similar=list(record.similar),
        verdict=record.verdict,
        verdicts=list(record.verdicts),
        notes=list(record.notes),
        messages=[one.message for one in record.messages],
        audit=list(record.records),
    )


def _seen(record: IncidentRecord) -> list[TimelineEntry]:
    """What was noticed. Equal moments keep the order of the lists: cause before effect."""
    made = [
        TimelineEntry(at=one.at, kind="evidence", text=one.text, data={"line": one.line})
        for one in record.incident.evidence
    ]
    made += [
        TimelineEntry(at=one.at, kind="finding", text=one.text, data={"rule": one.rule, "fault": one.fault})
        for one in record.findings
    ]
    return made


def _judged(record: IncidentRecord) -> list[TimelineEntry]:
    """Each verdict that reads otherwise than the one before it, and what was decided."""
    made = [
        TimelineEntry(
            at=one.at, kind="verdict", text=one.verdict.sentence, data={"certainty": one.verdict.certainty}
        )
        for before, one in zip([None, *record.verdicts], record.verdicts, strict=False)
        if before is None or before.verdict.sentence != one.verdict.sentence
    ]
    made += [
        TimelineEntry(
            at=one.at,
            kind="decision",
            text=one.why,
            data={
                "outcome": one.outcome.value,
                "guard": one.guard,
                "answers": msgspec.to_builtins(one.answers),
            },
        )
        for one in record.decisions
    ]
    return made


def _done(record: IncidentRecord) -> list[TimelineEntry]:
    """What runs and people did."""
    made = []
    for run in record.runs:
        made += [
            TimelineEntry(
                at=entry.at,
                kind="step",
                text=entry.text or f"{entry.step}: {entry.event.value}",
                by=run.run.by,
                data={"run": run.run.id, "step": entry.step, "event": entry.event.value},
            )
            for entry in run.log
        ]
    made += [TimelineEntry(at=one.at, kind="note", text=one.text, by=one.by) for one in record.notes]
    made += [
        TimelineEntry(at=one.at, kind="person", text=one.verb, by=one.actor, data=one.data)
        for one in record.records
        if one.actor != "healer" and one.verb != "incident.noted"
    ]
    return made


def _message(one: SentMessage) -> TimelineEntry:
    data = {"state": one.state, "page": one.page, "error": one.error, "reference": one.reference}
    data["channels"] = [msgspec.to_builtins(channel) for channel in one.channels]
    return TimelineEntry(at=one.at, kind="message", text=one.message.title, data=data)


def job_view(cluster: str, job: str, known: JobHistory, steps: StepTimesView | None) -> JobView | None:
    """None where neither Slurm nor healer knows the job."""
    shown = known.snapshot.jobs.get(job) if known.snapshot else None
    if shown is None and known.empty:
        if steps is None:
            return None
        return JobView(cluster=cluster, id=job, job=None, nodes=[], incidents=[], step_times=steps)
    return JobView(
        cluster=cluster,
        id=job,
        job=shown,
        nodes=list(shown.nodes) if shown else [],
        incidents=list(known.incidents),
        requeues=[msgspec.to_builtins(one, builtin_types=(datetime,)) for one in known.requeues],
        done=[msgspec.to_builtins(one, builtin_types=(datetime,)) for one in known.done],
        errors=[msgspec.to_builtins(one, builtin_types=(datetime,)) for one in known.errors],
        checkpoints=[CheckpointView(**msgspec.structs.asdict(one)) for one in known.checkpoints],
        step_times=steps,
        gpu_hours_lost=known.gpu_hours_lost,
        gpu_hours_at_most=known.gpu_hours_at_most,
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
        slowest=[RankView(**asdict(one)) for one in ranks],
    )


def _steps(made: StepGrid) -> list[JobStepView]:
    whole, compute = median_over_ranks(made.step_s), median_over_ranks(made.compute_s)
    told = np.isfinite(made.compute_s)
    most = np.where(told, made.compute_s, -np.inf).argmax(axis=0)
    found = []
    for index, step in enumerate(made.step.tolist()):
        worst = int(most[index]) if told[:, index].any() else None
        at = float(made.at[index])
        found.append(
            JobStepView(
                step=step,
                at=datetime.fromtimestamp(at, UTC) if math.isfinite(at) else None,
                ranks=int(np.isfinite(made.step_s[:, index]).sum()),
                step_s=_known(whole[index]),
                compute_s=_known(compute[index]),
                slowest_compute_s=None if worst is None else _known(made.compute_s[worst, index]),
                slowest_rank=None if worst is None else int(made.rank[worst]),
            )
        )
    return found


def _known(value: float) -> float | None:
    return round(float(value), 6) if math.isfinite(value) else None
