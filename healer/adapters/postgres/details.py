"""One incident or run with all that hangs on it: joined from rows that were read before. Pure."""

from collections.abc import Sequence

import msgspec

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
    SlurmSnapshot,
    Step,
    StepEvent,
    Verb,
    VerdictAt,
)
from healer.playbooks import BEGIN
from healer.ports.api_answers import IncidentDetail, Note, RunDetail, StepView, TimelineEntry

#: How a done step is taken back. Verbs that are missing leave nothing, or cannot be taken back.
_UNDO = {
    Verb.drain: "resume the node: playbook resume",
    Verb.reserve: "delete the reservation",
    Verb.exclude: "take the exclusion back",
    Verb.down: "resume the node: playbook resume",
}
_ENDS = frozenset({StepEvent.done, StepEvent.failed, StepEvent.skipped, StepEvent.undone})


def run_detail(run: Run, log: Sequence[LogEntry], decisions: Sequence[Decision], rules: Ruleset) -> RunDetail:
    playbook = rules.playbooks.get(run.playbook)
    return RunDetail(
        **msgspec.structs.asdict(run),
        title=playbook.title if playbook else run.playbook,
        steps=steps_of(playbook, log),
        log=list(log),
        decisions=list(decisions),
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


def incident_detail(
    incident: Incident,
    *,
    findings: list[Finding],
    decisions: list[Decision],
    runs: list[RunDetail],
    notes: list[Note],
    messages: list[tuple[Message, TimelineEntry]],
    records: list[AuditRecord],
    similar: list[Similar],
    verdict: IncidentVerdict,
    verdicts: list[VerdictAt],
    snapshot: SlurmSnapshot | None,
) -> IncidentDetail:
    jobs = snapshot.jobs if snapshot else {}
    timeline = _seen(incident, findings) + _judged(verdicts, decisions) + _done(runs, notes, records)
    timeline += [entry for _, entry in messages]
    return IncidentDetail(
        **msgspec.structs.asdict(incident),
        findings=findings,
        decisions=decisions,
        runs=runs,
        timeline=sorted(timeline, key=lambda entry: entry.at),
        jobs=[jobs.get(job) or SlurmJob(id=job, state="UNKNOWN") for job in incident.jobs_hit],
        similar=similar,
        verdict=verdict,
        verdicts=verdicts,
        notes=notes,
        messages=[message for message, _ in messages],
        audit=records,
    )


def _seen(incident: Incident, findings: list[Finding]) -> list[TimelineEntry]:
    """What was noticed. Equal moments keep the order of the lists: cause before effect."""
    made = [
        TimelineEntry(at=one.at, kind="evidence", text=one.text, data={"line": one.line})
        for one in incident.evidence
    ]
    made += [
        TimelineEntry(at=one.at, kind="finding", text=one.text, data={"rule": one.rule, "fault": one.fault})
        for one in findings
    ]
    return made


def _judged(verdicts: list[VerdictAt], decisions: list[Decision]) -> list[TimelineEntry]:
    """Each verdict that reads otherwise than the one before it, and what was decided."""
    made = [
        TimelineEntry(
            at=one.at, kind="verdict", text=one.verdict.sentence, data={"certainty": one.verdict.certainty}
        )
        for before, one in zip([None, *verdicts], verdicts, strict=False)
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
        for one in decisions
    ]
    return made


def _done(runs: list[RunDetail], notes: list[Note], records: list[AuditRecord]) -> list[TimelineEntry]:
    """What runs and people did."""
    made = []
    for run in runs:
        made += [
            TimelineEntry(
                at=entry.at,
                kind="step",
                text=entry.text or f"{entry.step}: {entry.event.value}",
                by=run.by,
                data={"run": run.id, "step": entry.step, "event": entry.event.value},
            )
            for entry in run.log
        ]
    made += [TimelineEntry(at=one.at, kind="note", text=one.text, by=one.by) for one in notes]
    made += [
        TimelineEntry(at=one.at, kind="person", text=one.verb, by=one.actor, data=one.data)
        for one in records
        if one.actor != "healer" and one.verb != "incident.noted"
    ]
    return made
