"""One incident for a person: one sentence, whom it hit, what was done, what is left."""

from collections.abc import Mapping
from datetime import datetime

import msgspec

from healer import model
from healer.console import words
from healer.console.views.buttons import Button, quiet_buttons
from healer.console.views.left import Left, left_for_you
from healer.console.views.runs import RunRow, StepRow, run_row, steps
from healer.incidents.hit import lost_together, lost_words
from healer.incidents.sentence import place, sure_words
from healer.incidents.verdict import aside_words
from healer.model import (
    Component,
    Incident,
    IncidentState,
    IncidentVerdict,
    Role,
    Run,
    SlurmJob,
    SlurmNode,
    StepEvent,
    Verb,
    Verdict,
)
from healer.model.similar_incident import Same
from healer.ports.console_answers import IncidentDetail, RunDetail, Standing

STATE_WORDS = {
    IncidentState.open: "open",
    IncidentState.mitigating: "mitigating",
    IncidentState.verifying: "verifying",
    IncidentState.resolved: "resolved",
}


#: What a similar incident shares with this one.
SAME_WORDS = {
    Same.part.value: "same part",
    Same.node.value: "same node",
    Same.model.value: "same fault and GPU model",
    Same.fault.value: "same fault",
}


class JobHit(msgspec.Struct, frozen=True, kw_only=True):
    """A job that the incident hit, as Slurm knows it now (all but the id empty when it no longer does)."""

    id: str
    name: str = ""
    user: str = ""
    partition: str = ""
    state: str = ""
    #: `2 nodes (gpu0003, gpu0004)`; empty while it has none.
    nodes: str = ""
    restarts: int = 0
    known: bool = False
    #: GPUs it held when it was hit, empty where Slurm did not tell, and what of its work was lost, in words.
    gpus: str = ""
    lost: str = ""
    #: What became of this job, from the runs' logs: the step and its end, its sentence, and whether its owner
    #: was told in Slurm; empty while nothing was done.
    done: str = ""
    said: str = ""
    told: str = ""


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    row: RunRow
    steps: tuple[StepRow, ...]


class VerdictView(msgspec.Struct, frozen=True, kw_only=True):
    """`nodes` are names with their verdict; `why` and `aside` sentences; `retest` what decides for good."""

    sentence: str
    sure: str
    cause: str
    nodes: tuple[tuple[str, str], ...]
    more_nodes: int
    why: tuple[str, ...]
    aside: tuple[str, ...]
    retest: str


class IncidentView(msgspec.Struct, frozen=True, kw_only=True):
    incident: Incident
    place: str
    since: datetime
    verdict: VerdictView
    jobs: tuple[JobHit, ...]
    more_jobs: int
    lost: str
    jobs_note: str
    runs: tuple[RunView, ...]
    left: tuple[Left, ...]
    quiet: tuple[Button, ...]
    slurm: SlurmNode | None
    affected: str


def affected(parts: tuple[Component, ...], show: int = 8) -> str:
    """`gpu0015 GPU 0 to 3, gpu0016 and 60 more`: one entry per node, its GPUs together."""
    gpus: dict[str, set[int]] = {}
    for part in parts:
        found = gpus.setdefault(part.node or str(part), set())
        if part.gpu is not None:
            found.add(part.gpu)
    return words.names([f"{name}{_gpus(sorted(known))}" for name, known in gpus.items()], show)


def _gpus(known: list[int]) -> str:
    if len(known) > 2 and known[-1] - known[0] == len(known) - 1:
        return f" GPU {known[0]} to {known[-1]}"
    return f" GPU {', '.join(map(str, known))}" if known else ""


#: Nodes and jobs that the page names; a fault of the fleet has a thousand.
NODES_SHOWN = 8
JOBS_SHOWN = 50


def verdict_view(verdict: IncidentVerdict) -> VerdictView:
    worst_first = sorted(verdict.nodes.items(), key=lambda pair: (-_BADNESS[pair[1]], pair[0]))
    return VerdictView(
        sentence=verdict.sentence,
        sure=sure(verdict),
        cause=verdict.cause.value,
        nodes=tuple((name, one.value) for name, one in worst_first[:NODES_SHOWN]),
        more_nodes=max(0, len(worst_first) - NODES_SHOWN),
        why=verdict.why,
        aside=tuple(aside_words(one) for one in verdict.set_aside),
        retest=verdict.retest.text if verdict.retest else "",
    )


_BADNESS = {one: rank for rank, one in enumerate(Verdict)}


def sure(verdict: IncidentVerdict) -> str:
    """`certain`, `likely, 80 %`"""
    return sure_words(verdict.certainty)


def incident_view(
    detail: IncidentDetail, standing: Standing | None, role: Role, now: datetime
) -> IncidentView:
    """`standing` gives Slurm's view of the node and of the jobs; without it they stay unknown."""
    incident = detail.incident
    snapshot = standing.snapshot if standing else None
    node = snapshot.nodes.get(incident.root.node) if snapshot and incident.root.node else None
    hit = {one.job: one for one in incident.hit}
    jobs = tuple(
        _job(job, snapshot.jobs if snapshot else {}, detail.runs, hit.get(job))
        for job in sorted(incident.jobs_hit)[:JOBS_SHOWN]
    )
    return IncidentView(
        incident=incident,
        place=place(incident.root),
        since=incident.opened,
        verdict=verdict_view(detail.verdict),
        jobs=jobs,
        more_jobs=max(0, len(incident.jobs_hit) - JOBS_SHOWN),
        lost=lost_together(incident.hit),
        jobs_note=_jobs_note(incident),
        runs=tuple(
            RunView(row=run_row(run.run, now), steps=tuple(steps(run.log, incident.opened)))
            for run in detail.runs
        ),
        left=tuple(left_for_you(detail, node, role, now)),
        quiet=tuple(quiet_buttons(incident, role, standing.open_incidents if standing else ())),
        slurm=node,
        affected=affected(incident.affected),
    )


def _jobs_note(incident: Incident) -> str:
    if incident.jobs_hit_final:
        return "Listed after the drain was read back: no job could start on the node any more."
    if incident.jobs_hit:
        return "Best guess so far; the list is final once the drain was read back."
    return ""


def _job(
    job: str, known: Mapping[str, SlurmJob], runs: tuple[RunDetail, ...], hit: model.JobHit | None
) -> JobHit:
    done = said = told = ""
    for run in runs:
        for entry in run.log:
            if not (entry.step.endswith(f":{job}") or run.run.job == job):
                continue
            if entry.data.get("verb") == Verb.notify:
                told = "Its owner was told in Slurm." if entry.event is StepEvent.done else entry.text
            elif entry.text or not done:
                done, said = f"{entry.step.split(':')[0]} {entry.event.value}", entry.text
    if said and told:
        said = f"{said.rstrip('.')}."  # another sentence follows
    slurm = known.get(job)
    gpus = words.plural(hit.gpus, "GPU") if hit and hit.gpus else ""
    lost = lost_words(hit) if hit else ""
    if slurm is None:
        user = hit.user if hit else ""
        return JobHit(id=job, user=user, gpus=gpus, lost=lost, done=done, said=said, told=told)
    state = "+".join((slurm.state, *slurm.flags))
    return JobHit(
        id=job,
        name=slurm.name,
        user=slurm.user,
        partition=slurm.partition,
        state=f"{state} ({slurm.reason})" if slurm.reason and slurm.state == "PENDING" else state,
        nodes=f"{words.plural(len(slurm.nodes), 'node')} ({words.names(slurm.nodes)})" if slurm.nodes else "",
        restarts=slurm.restarts,
        known=True,
        gpus=gpus,
        lost=lost,
        done=done,
        said=said,
        told=told,
    )


class IncidentRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the list."""

    incident: Incident
    place: str
    jobs: str
    left: str
    tone: str


def incident_row(incident: Incident, asking: Mapping[str, Run], now: datetime) -> IncidentRow:
    """`asking`: incident id -> the run that wants a person."""
    run = asking.get(incident.id)
    left, tone = "", "plain"
    if run is not None:
        row = run_row(run, now)
        left, tone = f"{run.playbook}: {row.word}", row.tone
    elif incident.known_bad_in_service and incident.is_open:
        left, tone = "known bad, in service", "bad"
    elif incident.owner and incident.is_open:
        left = f"owned by {incident.owner}"
    elif incident.is_open and incident.acknowledged_by:
        left = f"acknowledged by {incident.acknowledged_by}"
    elif not incident.is_open and incident.review:
        left = incident.review.value.replace("_", " ")
    elif not incident.is_open:
        left = "to review"
    return IncidentRow(
        incident=incident,
        place=place(incident.root),
        jobs=words.names(incident.jobs_hit, 2),
        left=left,
        tone=tone,
    )
