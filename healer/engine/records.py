"""Data that the API and the console both derive from stored rows."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from healer.incidents.impact import gpus_of, losses_by_restart
from healer.incidents.incident_verdict import newest_verdict
from healer.incidents.node_history import similar_to
from healer.incidents.part_history import describe_fault
from healer.model import (
    AuditRecord,
    Decision,
    Finding,
    HitBasis,
    Incident,
    IncidentVerdict,
    JobHit,
    Reference,
    Ruleset,
    Similar,
    differences,
    merged_facts,
    node_kind,
)
from healer.model.goodput import WASTED, GoodputRow, Prices, Spent, effective
from healer.model.shown import cell_text
from healer.model.slurm import is_fresh
from healer.observations.seal_state import seal_problems
from healer.observations.slurm_poll import troubles
from healer.ports.answers import (
    SEAL,
    CheckpointSeen,
    GoodputSum,
    IncidentRows,
    JobRows,
    NodeRows,
    Pulse,
    Readiness,
    Requeue,
    RunRecord,
)
from healer.ports.queries import AuditQuery, Queries
from healer.ports.request_errors import Unavailable
from healer.text import NO_WORDS, joined, quoted, said_by, say


class IncidentRecord(IncidentRows, frozen=True, kw_only=True):
    """An incident with its present verdict, up to five similar incidents (same part and node first, then same
    fault), and its audit records, oldest first."""

    verdict: IncidentVerdict
    similar: tuple[Similar, ...] = ()
    records: tuple[AuditRecord, ...] = ()


#: The newest audit records of an incident, at most this many.
_RECORDS = 200


def incident_record(
    rows: IncidentRows, rules: Ruleset, queries: Queries, *, of_runs: bool = False, job: str | None = None
) -> IncidentRecord:
    """`of_runs`: include the audit records of its runs. `job`: for a caller who may see only this job."""
    if job is not None:
        rows = _rows_of_one_job(rows, job)
    subjects = [f"incident/{rows.incident.id}"]
    if of_runs:
        subjects += [f"run/{row.run.id}" for row in rows.runs]
    # Audit records may name any job.
    records = queries.audit.page(AuditQuery(subjects=subjects), limit=_RECORDS).items if job is None else []
    nodes = rows.snapshot.nodes if rows.snapshot is not None else {}
    similar = similar_to(
        rows.incident,
        rows.alike,
        lambda node: nodes[node].gpu_model if node in nodes else "",
        queries.incidents.cures,
    )
    return IncidentRecord(
        **{name: getattr(rows, name) for name in IncidentRows.__struct_fields__},
        verdict=newest_verdict(rows.verdicts, rows.incident, rules),
        similar=tuple(similar),
        records=tuple(reversed(records)),
    )


class JobHistory(JobRows, frozen=True, kw_only=True):
    """What healer knows about a job. `gpu_hours_lost`: lost over all its restarts, by the incidents that hit
    it (`Incident.hit`); None if unknown. `gpu_hours_at_most`: the loss may be less."""

    gpu_hours_lost: float | None = None
    gpu_hours_at_most: bool = False


def compared_facts(
    rows: NodeRows, references: Sequence[Reference]
) -> tuple[dict[str, str], Reference | None, dict[str, str]]:
    """The node's facts, the reference of its kind, and the facts that differ from it."""
    facts = merged_facts(rows.node, rows.inventory.facts if rows.inventory else None)
    kind = node_kind(rows.node.gpu_model)
    reference = next((reference for reference in references if reference.kind == kind), None)
    return facts, reference, differences(facts, reference) if reference is not None else {}


def job_history(rows: JobRows, job: str, rules: Ruleset) -> JobHistory:
    shown = rows.snapshot.jobs.get(job) if rows.snapshot else None
    lost = gpu_hours_lost(
        gpus_of(shown, rows.snapshot.nodes if rows.snapshot else {}),
        rows.requeues,
        rows.checkpoints,
        hit=bool(rows.incidents),
        lives=losses_by_restart(job, rows.incidents),
    )
    fields = {name: getattr(rows, name) for name in JobRows.__struct_fields__}
    fields["errors"] = tuple(
        msgspec.structs.replace(error, text=describe_fault(rules, error.fault)) for error in rows.errors
    )
    return JobHistory(**fields, gpu_hours_lost=lost.hours, gpu_hours_at_most=lost.at_most)


def of_one_job(history: JobHistory, job: str) -> JobHistory:
    """The history without what its incidents say about other jobs, for a caller who may see only this one."""
    alone = tuple(incident_of_one_job(incident, job) for incident in history.incidents)
    return msgspec.structs.replace(history, incidents=alone)


def incident_of_one_job(incident: Incident, job: str) -> Incident:
    of_job = (None, job)
    return msgspec.structs.replace(
        incident,
        jobs_hit=(job,),
        hit=tuple(hit for hit in incident.hit if hit.job == job),
        evidence=tuple(sign for sign in incident.evidence if sign.job in of_job),
        affected=tuple(part for part in incident.affected if part.job in of_job),
    )


def _rows_of_one_job(rows: IncidentRows, job: str) -> IncidentRows:
    """The rows, restricted to this job. Texts by people and messages are left out, because they may name any
    job. Runs on the node keep their progress and what they did to this job."""
    of_job = (None, job)
    findings = (
        _finding_of_one_job(finding, job) for finding in rows.findings if finding.component.job in of_job
    )
    snapshot = rows.snapshot
    if snapshot is not None:
        shown = {name: found for name, found in snapshot.jobs.items() if name == job}
        snapshot = msgspec.structs.replace(snapshot, jobs=shown)
    return IncidentRows(
        incident=incident_of_one_job(rows.incident, job),
        findings=tuple(finding for finding in findings if finding is not None),
        decisions=_about_job(rows.decisions, job),
        runs=tuple(
            _run_of_one_job(run, rows.incident.jobs_hit, job) for run in rows.runs if run.run.job in of_job
        ),
        snapshot=snapshot,
    )


def _finding_of_one_job(finding: Finding, job: str) -> Finding | None:
    """The finding with evidence of this job only; None if all its evidence is of other jobs."""
    of_job = (None, job)
    evidence = tuple(sign for sign in finding.evidence if sign.job in of_job)
    if finding.evidence and not evidence:
        return None
    return msgspec.structs.replace(
        finding,
        jobs=(job,) if job in finding.jobs else (),
        evidence=evidence,
        affected=tuple(part for part in finding.affected if part.job in of_job),
    )


def _about_job(decisions: Iterable[Decision], job: str) -> tuple[Decision, ...]:
    return tuple(made for made in decisions if made.proposal is not None and made.proposal.job == job)


def _run_of_one_job(record: RunRecord, jobs_hit: Iterable[str], job: str) -> RunRecord:
    if record.run.job == job:
        return record
    others = {*jobs_hit} - {job}
    named = ((entry, entry.step.rpartition(":")[2]) for entry in record.log)
    return RunRecord(
        run=msgspec.structs.replace(record.run, question=None, input={}),
        log=tuple(
            entry if whose == job else msgspec.structs.replace(entry, text=NO_WORDS, data={})
            for entry, whose in named
            if whose not in others
        ),
        decisions=_about_job(record.decisions, job),
        plan=record.plan,
    )


#: Bases of a loss: work was lost, and the amount is known.
_LOST = frozenset({HitBasis.checkpoint, HitBasis.start})


class Lost(NamedTuple):
    """GPU-hours that a job lost; None if unknown. `at_most`: the job reported no durable checkpoint between
    two restarts, so all of that time counts."""

    hours: float | None
    at_most: bool = False


def gpu_hours_lost(
    gpus: int,
    again: Sequence[Requeue],
    seen: Sequence[CheckpointSeen],
    *,
    hit: bool,
    lives: Mapping[int, JobHit] | None = None,
) -> Lost:
    """What the job lost at each restart count: from its incidents (`lives`), else GPUs × the time from the
    last durable checkpoint to the requeue.

    Unknown for a job hit by an incident of an earlier version that healer did not requeue, for a requeue
    without a durable checkpoint, and for a job whose GPUs Slurm does not report.
    """
    losses = {life: loss for life, loss in (lives or {}).items() if loss.basis in _LOST}
    unknown = {life for life, loss in (lives or {}).items() if loss.basis is HitBasis.unknown}
    requeued = {incident.restarts: incident for incident in again if incident.restarts not in losses}
    if unknown - requeued.keys() or (hit and not lives and not again):
        return Lost(None)
    hours = sum((loss.lost_gpu_hours or 0.0 for loss in losses.values()), 0.0)
    for requeue in requeued.values():
        saved = [
            point.at
            for point in seen
            if point.durable and point.restart == requeue.restarts and point.at <= requeue.at
        ]
        if not saved or not gpus:
            return Lost(None)
        hours += gpus * (requeue.at - max(saved)).total_seconds() / 3600
    return Lost(round(hours, 2), any(loss.at_most for loss in losses.values()))


def goodput_rows(sums: Iterable[GoodputSum], prices: Prices) -> list[GoodputRow]:
    """One row per name, most GPU-hours first; with prices if all its partitions have one."""
    by_name: dict[str, list[GoodputSum]] = {}
    for each in sums:
        by_name.setdefault(each.name, []).append(each)
    rows = [_goodput_row(name, its, prices) for name, its in by_name.items()]
    return sorted(rows, key=lambda row: (-row.total, row.name))


def under_one_name(sums: Iterable[GoodputSum]) -> list[GoodputSum]:
    return [msgspec.structs.replace(each, name="") for each in sums]


NO_HOURS = GoodputRow(name="", gpu_hours={}, total=0.0)


def goodput_csv(rows: Iterable[GoodputRow], by: str) -> str:
    """CSV for a spreadsheet; a cell is empty if its value is unknown."""
    file = io.StringIO()
    write = csv.writer(file, lineterminator="\n").writerow
    write([by, *(f"{spent}_gpu_hours" for spent in Spent), "gpu_hours", "effective", "cost", "wasted"])
    for row in rows:
        hours = (row.gpu_hours.get(spent, 0.0) for spent in Spent)
        write([cell_text(row.name), *hours, row.total, row.effective, row.cost, row.wasted])
    return file.getvalue()


def _goodput_row(name: str, sums: Sequence[GoodputSum], prices: Prices) -> GoodputRow:
    hours: dict[Spent, float] = {}
    cost, wasted = 0.0, 0.0
    for each in sums:
        hours[each.spent] = hours.get(each.spent, 0.0) + each.gpu_hours
        # Time in the queue uses no GPU.
        price = prices.of(each.partition) if each.spent is not Spent.queued else 0.0
        cost += each.gpu_hours * price if price is not None else math.nan
        wasted += each.gpu_hours * (price or 0.0) if each.spent in WASTED else 0.0
    priced = not math.isnan(cost)
    return GoodputRow(
        name=name,
        gpu_hours={spent: round(hours[spent], 4) for spent in Spent if spent in hours},
        total=round(sum(hours.values()), 4),
        effective=effective(hours.items()),
        cost=round(cost, 2) if priced else None,
        wasted=round(wasted, 2) if priced else None,
    )


def readiness(pulses: Callable[[], Sequence[Pulse]], now: datetime, *, stale_s: float) -> Readiness:
    """Whether healer can work: the database, a fresh Slurm snapshot, and a running detector.

    With several clusters the checks are named by cluster (`slurm pod1`), and one healthy cluster is enough.
    """
    checks: dict[str, dict[str, Any]] = {"database": {"ok": True, "text": say("engine.database_answers")}}
    try:
        found = {pulse.cluster: _checks_of(pulse, now, stale_s) for pulse in pulses()}
    except Unavailable as error:
        return Readiness(ready=False, checks={"database": {"ok": False, "text": said_by(error)}})
    for cluster, cluster_checks in found.items():
        checks |= (
            {f"{name} {cluster}": check for name, check in cluster_checks.items()}
            if len(found) > 1
            else cluster_checks
        )
    ready = any(all(check["ok"] for check in cluster_checks.values()) for cluster_checks in found.values())
    return Readiness(ready=ready, checks=checks)


def _checks_of(pulse: Pulse, now: datetime, stale_s: float) -> dict[str, dict[str, Any]]:
    """The checks of one cluster's Slurm and detector."""
    if pulse.taken_at is None:
        slurm: dict[str, Any] = {"ok": False, "text": say("engine.no_picture", cluster=pulse.cluster)}
    else:
        age = (now - pulse.taken_at).total_seconds()
        is_ahead = age < -stale_s
        shown = (
            say("engine.picture_ahead", ahead_s=-age) if is_ahead else say("engine.picture_age", age_s=age)
        )
        fresh = is_fresh(pulse.taken_at, now, stale_s)
        slurm = {"ok": fresh, "text": quoted(pulse.error or shown), "age_s": age, "limit_s": stale_s}
    if found := troubles(pulse.controller):
        # Informational: healer can work while the snapshot is fresh.
        slurm["troubles"] = [
            {"what": trouble.trouble, "since": trouble.since, "text": trouble.text} for trouble in found
        ]
    text = say("engine.detector_runs" if pulse.detector else "engine.no_detector")
    seal = {"ok": True, "text": say("engine.audit_sealed")}
    if problems := seal_problems(pulse.seal, now):
        # An unreachable witness blocks nothing: it gets all records later.
        seal = {"ok": SEAL not in problems, "text": joined(problems.values(), "space")}
    return {"slurm": slurm, "detector": {"ok": pulse.detector, "text": text}, "seal": seal}
