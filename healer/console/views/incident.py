"""One incident for a person: one sentence, whom it hit, what was done, what is left."""

from collections.abc import Mapping
from datetime import datetime

import msgspec

from healer.console import words
from healer.console.reads import IncidentDetail, RunDetail, Standing
from healer.console.views.buttons import Button, quiet_buttons
from healer.console.views.left import Left, left_for_you
from healer.console.views.runs import RunRow, StepRow, run_row, steps
from healer.model import (
    Component,
    Incident,
    IncidentState,
    Role,
    Run,
    SlurmJob,
    SlurmNode,
    StepEvent,
    Verb,
)

STATE_WORDS = {
    IncidentState.open: "open",
    IncidentState.mitigating: "mitigating",
    IncidentState.verifying: "verifying",
    IncidentState.resolved: "resolved",
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
    #: What became of this job, from the runs' logs: the step and its end, its sentence, and whether its owner
    #: was told in Slurm; empty while nothing was done.
    done: str = ""
    said: str = ""
    told: str = ""


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    row: RunRow
    steps: tuple[StepRow, ...]


class IncidentView(msgspec.Struct, frozen=True, kw_only=True):
    incident: Incident
    place: str
    sentence: str
    since: datetime
    sure: str
    jobs: tuple[JobHit, ...]
    jobs_note: str
    runs: tuple[RunView, ...]
    left: tuple[Left, ...]
    quiet: tuple[Button, ...]
    slurm: SlurmNode | None
    counted: str
    affected: str


def place(root: Component) -> str:
    """`GPU 3 of gpu0017`, `NVSwitch 2 of gpu0005`, `gpu0009`, `switch leaf-3`, `pdu-r01`, `job 4711`."""
    part = ""
    if root.gpu is not None:
        part = f"GPU {root.gpu}"
    elif root.link is not None:
        part = f"NVLink {root.link}"
    elif root.nic:
        part = root.nic
    elif root.switch and root.node:
        part = root.switch
    elif root.pci:
        part = f"the device at {root.pci}"
    elif root.part and root.device:
        part = root.part
    whole = root.node or (f"switch {root.switch}" if root.switch else "") or root.device or ""
    if not whole:
        whole = f"job {root.job}" if root.job else f"cluster {root.cluster}"
    return f"{part} of {whole}" if part else whole


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


def sure(incident: Incident, detail: IncidentDetail | None = None) -> str:
    """How sure healer is, and of what."""
    cause = "cause unclear" if incident.cause.value == "unclear" else f"cause {incident.cause.value}"
    if incident.unusable:
        return f"surely unusable, {cause}"
    best = max((finding.confidence for finding in detail.findings), default=None) if detail else None
    return f"{f'confidence {best:.0%}' if best is not None else incident.fault_class.value}, {cause}"


def incident_view(
    detail: IncidentDetail, standing: Standing | None, role: Role, now: datetime
) -> IncidentView:
    """`standing` gives Slurm's view of the node and of the jobs; without it they stay unknown."""
    incident = detail.incident
    snapshot = standing.snapshot if standing else None
    node = snapshot.nodes.get(incident.root.node) if snapshot and incident.root.node else None
    jobs = tuple(
        _job(job, snapshot.jobs if snapshot else {}, detail.runs) for job in sorted(incident.jobs_hit)
    )
    counted = ", ".join(f"{number:,} × {fault}" for fault, number in sorted(incident.counted.items()))
    return IncidentView(
        incident=incident,
        place=place(incident.root),
        sentence=incident.title,
        since=incident.opened,
        sure=sure(incident, detail),
        jobs=jobs,
        jobs_note=_jobs_note(incident),
        runs=tuple(
            RunView(row=run_row(run.run, now), steps=tuple(steps(run.log, incident.opened)))
            for run in detail.runs
        ),
        left=tuple(left_for_you(detail, node, role, now)),
        quiet=tuple(quiet_buttons(incident, role)),
        slurm=node,
        counted=counted,
        affected=affected(incident.affected),
    )


def _jobs_note(incident: Incident) -> str:
    if incident.jobs_hit_final:
        return "Listed after the drain was read back: no job could start on the node any more."
    if incident.jobs_hit:
        return "Best guess so far; the list is final once the drain was read back."
    return ""


def _job(job: str, known: Mapping[str, SlurmJob], runs: tuple[RunDetail, ...]) -> JobHit:
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
    if slurm is None:
        return JobHit(id=job, done=done, said=said, told=told)
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
