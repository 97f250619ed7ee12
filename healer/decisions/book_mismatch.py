"""Differences between Slurm and the ledger in what healer itself did: drains without a run or incident, slots
of nodes that are back or gone, leftovers on jobs.

A drain without a run, an open incident or a slot remains when a run is cancelled midway, or when a person
resolves the incident of a drained node. Only this comparison finds it.
"""

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

import msgspec

from healer.decisions.comments import OURS, remark_in
from healer.model import (
    REMOVING_VERBS,
    RETURNING_VERBS,
    Component,
    Evidence,
    FaultClass,
    Finding,
    GateFacts,
    Incident,
    Mode,
    Permit,
    Ruleset,
    Run,
    RunState,
    Sense,
    Slot,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
    Veto,
)
from healer.model.faults import HEALER_DRAIN
from healer.model.gate import CLOCKS_DIFFER, is_held_after_launch
from healer.model.node import Drift, DriftKind, Repair
from healer.model.run import is_our_note, run_id
from healer.model.slurm import (
    is_our_reservation,
    is_ours,
    is_out_for,
    our_reservation,
)
from healer.text import Said, say

#: A younger difference may still be resolved by a run, a walk or a poll.
GRACE = timedelta(seconds=60)
#: If the job's restart count is unknown, only a hold found this soon is attributed to the prolog.
RELEASE_WITHIN = timedelta(minutes=10)


def forgotten_drains(
    drains: Collection[SlurmNode],
    facts: GateFacts,
    runs: Collection[Run],
    incidents: Collection[Incident],
    now: datetime,
) -> list[Finding]:
    """One finding for each of healer's `drains` that is older than `GRACE` and has no run or incident."""
    spoken_for = _accounted_for(facts, runs, incidents)
    drained = ((node, *_why_out(facts.snapshot, node)) for node in drains if node.name not in spoken_for)
    return [
        _finding_of(facts.cluster, node, word, since, now)
        for node, word, since in drained
        if since is not None and now - since > GRACE
    ]


def _accounted_for(
    facts: GateFacts, runs: Collection[Run], incidents: Collection[Incident]
) -> set[str | None]:
    """Nodes that a run or an open incident accounts for; incidents about forgotten drains do not count."""
    run_ids, incident_ids = {run.id for run in runs}, {incident.id for incident in incidents}
    nodes = {slot.node for slot in facts.slots if slot.run in run_ids or slot.incident in incident_ids}
    about = (incident for incident in incidents if incident.fault != HEALER_DRAIN)
    return (
        nodes
        | {run.node for run in runs if not run.shadow}
        | {incident.root.node for incident in about if _is_out_for(incident, facts.snapshot)}
    )


def _is_out_for(incident: Incident, snapshot: SlurmSnapshot | None) -> bool:
    """healer's drain or test reservation of the node is for this incident. Another fault of the node, such as
    one that came while it was out, accounts for neither."""
    node = snapshot.nodes.get(incident.root.node or "") if snapshot is not None else None
    return node is None or is_out_for(snapshot, node, incident.id)


def _why_out(snapshot: SlurmSnapshot | None, node: SlurmNode) -> tuple[Said, datetime | None]:
    """What keeps the node out of service, as a sentence, and since when."""
    kept = our_reservation(snapshot, node.name)
    if kept is None or _ours(node):
        return say("decisions.drained_forgotten", reason=node.reason), node.reason_at
    return say("decisions.reserved_forgotten", name=kept.name), kept.since


def _finding_of(cluster: str, node: SlurmNode, text: Said, at: datetime, now: datetime) -> Finding:
    where = Component(cluster=cluster, node=node.name)
    digest = sha256(f"healer-drain|{cluster}|{node.name}|{text}|{at}".encode()).hexdigest()
    return Finding(
        rule="forgotten-drain",
        fault=HEALER_DRAIN,
        fault_class=FaultClass.informational,
        component=where,
        at=at,
        arrived_at=now,
        text=text,
        confidence=1.0,
        evidence=(Evidence(digest=digest, at=at, component=where, text=text, sense=Sense.slurm),),
    )


#: What is missing from a snapshot younger than this is gone.
FRESH = timedelta(seconds=10)


def since_when(slot: Slot) -> tuple[str, datetime]:
    """The slot's node, and when it was drained. A worker may have died between the drain and its record:
    then since when it may have been."""
    return slot.node, slot.drained_at or slot.granted_at


def drains_shown(facts: GateFacts) -> set[tuple[str, datetime]]:
    """The nodes that Slurm's picture shows as drained for their slots, and since when (`since_when`)."""
    nodes = facts.snapshot.nodes if facts.snapshot is not None else {}
    return {
        since_when(slot)
        for slot in facts.slots
        if slot.node in nodes and nodes[slot.node].drain and _is_for(slot, nodes[slot.node])
    }


def _is_for(slot: Slot, node: SlurmNode) -> bool:
    """The drain is the slot's: by its record, or by its reason."""
    return slot.drained_at is not None or is_ours(node.reason, slot.incident or slot.run)


def find_vetoes(
    facts: GateFacts,
    runs: Collection[Run],
    rules: Ruleset,
    now: datetime,
    shown: Collection[tuple[str, datetime]],
) -> list[tuple[Slot, Veto]]:
    """A veto for each node that healer had drained and a person has resumed (law 5).

    `shown`: drains that an earlier picture showed. The clocks of the machines that poll and drain may differ,
    and a picture from before the drain lacks it too.
    """
    returning = {run.node for run in runs if run.state is RunState.running and _only_returns(run, rules)}
    found = []
    for slot in facts.slots:
        node = facts.slurm_node(slot.node)
        if facts.snapshot is None or node is None or node.drain or slot.node in returning:
            continue
        if not _is_back(node, facts.snapshot) or is_vetoed(slot, facts.vetoes):
            continue
        _, drained_at = drained = since_when(slot)
        was_shown = drained in shown
        if slot.drained_at is None and not was_shown:
            continue
        if facts.snapshot.taken_at - drained_at < (CLOCKS_DIFFER if was_shown else GRACE):
            continue
        # Never expires at once: the worker learns from the veto that the slot is free.
        until = now + max(timedelta(hours=rules.guards.veto_h), GRACE)
        at = max(now, drained_at)
        found.append((slot, Veto(node=slot.node, by="A person", at=at, until=until)))
    return found


def _only_returns(run: Run, rules: Ruleset) -> bool:
    """Whether the run returns nodes and takes none: only such a run lifts healer's drain by itself."""
    playbook = rules.playbooks.get(run.playbook)
    verbs = {step.do for step in playbook.steps} if playbook else set()
    return bool(verbs & RETURNING_VERBS) and not verbs & REMOVING_VERBS and not run.shadow


def is_vetoed(slot: Slot, vetoes: Collection[Veto]) -> bool:
    """A person has resumed the drain that the slot is for."""
    node, since = since_when(slot)
    return any(veto.node == node and veto.at >= since for veto in vetoes)


def slots_over(facts: GateFacts, now: datetime) -> list[tuple[Slot, str]]:
    """Slots that no longer hold a node, and why.

    A veto or the end of a run alone frees no slot: the Slurm snapshot, and the time when the worker last
    lifted the drain, show whether healer may still keep the node out.
    """
    if facts.snapshot is None:
        return []
    found = ((slot, _why_over(slot, facts, facts.snapshot, now)) for slot in facts.slots)
    return [(slot, why) for slot, why in found if why]


def _why_over(slot: Slot, facts: GateFacts, shown: SlurmSnapshot, now: datetime) -> str | None:
    node, since = shown.nodes.get(slot.node), shown.taken_at - slot.granted_at
    if node is None:  # missing from a fresh snapshot: there is no node to return
        fresh = bool(shown.nodes) and now - shown.taken_at <= FRESH
        return "Slurm no longer knows the node" if fresh and since > timedelta(0) else None
    if slot.drained_at is None:
        # The run may have ended between the Slurm call and its log entry.
        ended = facts.unmade.get(slot.node)
        over = ended is not None and shown.taken_at - ended >= CLOCKS_DIFFER and since >= GRACE
        out = _ours(node) or our_reservation(shown, node.name) is not None
        return "its run ended before the node was drained" if over and not out else None
    resumed = shown.taken_at - slot.drained_at >= CLOCKS_DIFFER and _is_back(node, shown)
    return f"a person resumed {slot.node}" if resumed and is_vetoed(slot, facts.vetoes) else None


def _is_back(node: SlurmNode, snapshot: SlurmSnapshot) -> bool:
    """Nothing keeps the node out: a person resumed it. A node that is DOWN is not back: healer may have
    requested a reboot, which takes every drain away, or Slurm or a person set it DOWN; nor is a node in
    healer's own tests."""
    return not node.held and our_reservation(snapshot, node.name) is None


def left_slot(facts: GateFacts, node: str, run: str) -> Slot | None:
    """The node's slot, if the node has been in service for long and no run but `run` works there."""
    slot, shown = facts.held.get(node), facts.snapshot
    back = slot is not None and shown is not None and _is_in_service_again(slot, shown)
    return slot if back and facts.running.get(node) in (None, run) else None


def _is_in_service_again(slot: Slot, shown: SlurmSnapshot) -> bool:
    node = shown.nodes.get(slot.node)
    back = node is not None and node.in_service and our_reservation(shown, slot.node) is None
    return back and slot.drained_at is not None and shown.taken_at - slot.drained_at > GRACE


def find_mismatches(
    facts: GateFacts, runs: Collection[Run], incidents: Collection[Incident], now: datetime
) -> list[Drift]:
    """Differences by kind, then by node; empty without a snapshot.

    `runs`: those that have not ended; `incidents`: the open ones. Most differences resolve themselves within
    a walk or two, so young ones are left out.
    """
    if facts.snapshot is None:
        return []
    real = [run for run in runs if not run.shadow]
    found = (
        *_forgotten(facts, facts.snapshot, real, incidents, now),
        *_slots(facts, facts.snapshot, real),
        *_reservations(facts.snapshot, real, now),
        *_notes(facts.snapshot, real),
        *_exclusions(facts.snapshot, real, incidents),
        *_runs(facts.snapshot, real, now),
    )
    order = list(DriftKind)
    return sorted(
        found, key=lambda incident: (order.index(incident.kind), incident.node or "", incident.name)
    )


def _old(since: datetime | None, now: datetime) -> bool:
    return since is not None and now - since > GRACE


def _forgotten(
    facts: GateFacts, snapshot: SlurmSnapshot, runs: list[Run], incidents: Collection[Incident], now: datetime
) -> Iterator[Drift]:
    spoken_for = _accounted_for(facts, runs, incidents)
    for node in snapshot.nodes.values():
        if _ours(node) and node.name not in spoken_for and _old(node.reason_at, now):
            yield Drift(
                kind=DriftKind.forgotten_drain,
                cluster=facts.cluster,
                node=node.name,
                what=say("decisions.out_forgotten", reason=node.reason),
                would=say("decisions.is_validated"),
                repair=Repair.validate,
                since=node.reason_at,
            )


def _slots(facts: GateFacts, snapshot: SlurmSnapshot, runs: list[Run]) -> Iterator[Drift]:
    working = {run.node for run in runs if run.state is RunState.running}
    vetoed = {veto.node for veto in facts.vetoes}
    for slot in facts.slots:
        if _is_in_service_again(slot, snapshot) and slot.node not in working | vetoed:
            yield Drift(
                kind=DriftKind.idle_slot,
                cluster=facts.cluster,
                node=slot.node,
                name=slot.run,
                what=say("decisions.still_counted"),
                would=say("decisions.slot_freed"),
                repair=Repair.free_slot,
                since=slot.drained_at,
            )


def _reservations(snapshot: SlurmSnapshot, runs: list[Run], now: datetime) -> Iterator[Drift]:
    working = {run.node for run in runs}
    for kept in snapshot.reservations.values():
        if not is_our_reservation(kept) or not working.isdisjoint(kept.nodes) or not _old(kept.since, now):
            continue
        node = next((name for name in kept.nodes if name in snapshot.nodes), None)
        gone = next(iter(kept.nodes), None)
        yield Drift(
            kind=DriftKind.left_reservation,
            cluster=snapshot.cluster,
            node=node or gone,
            name=kept.name,
            what=say("decisions.reservation_left", name=kept.name, nodes=", ".join(kept.nodes)),
            would=say("decisions.is_validated" if node else "decisions.reservation_ended"),
            repair=Repair.validate if node else Repair.end_reservation,
            since=kept.since,
        )


def _notes(snapshot: SlurmSnapshot, runs: list[Run]) -> Iterator[Drift]:
    working = {run.node for run in runs}
    for node in snapshot.nodes.values():
        if not (is_our_note(node.extra) or is_our_note(node.comment)) or node.name in working:
            continue
        if _ours(node) or our_reservation(snapshot, node.name) is not None:
            continue
        yield Drift(
            kind=DriftKind.left_note,
            cluster=snapshot.cluster,
            node=node.name,
            what=say("decisions.note_left"),
            would=say("decisions.note_cleared"),
            repair=Repair.clear_note,
        )


def _ours(node: SlurmNode) -> bool:
    return node.held and is_ours(node.reason)


def _exclusions(snapshot: SlurmSnapshot, runs: list[Run], incidents: Collection[Incident]) -> Iterator[Drift]:
    bad = {name for mismatch in incidents for name in mismatch.bad_nodes}
    at_work = {run.job for run in runs}
    for job in kept_off(snapshot):
        back = [node for node in remark_in(job.admin_comment).off if node not in bad]
        if back and job.id not in at_work:
            yield Drift(
                kind=DriftKind.left_exclusion,
                cluster=snapshot.cluster,
                name=job.id,
                what=say("decisions.exclusion_left", job=job.id, nodes=", ".join(back)),
                would=say("decisions.exclusion_lifted"),
                repair=Repair.release,
            )


def _runs(snapshot: SlurmSnapshot, runs: list[Run], now: datetime) -> Iterator[Drift]:
    for run in runs:
        if run.node is not None and run.node not in snapshot.nodes and _old(run.created_at, now):
            state = say(f"words.run_{run.state}")
            yield Drift(
                kind=DriftKind.unknown_node,
                cluster=snapshot.cluster,
                node=run.node,
                name=run.id,
                what=say("decisions.node_gone", playbook=run.playbook, state=state),
                would=say("decisions.run_cancelled"),
                repair=Repair.cancel_run,
                since=run.created_at,
            )


# --- what healer left on jobs, or what Slurm did to jobs because of healer; separate runs undo it


def kept_off(snapshot: SlurmSnapshot | None) -> list[SlurmJob]:
    """Pending jobs that healer excludes from some nodes; only a pending job's list can be changed."""
    jobs = snapshot.jobs.values() if snapshot is not None else ()
    waiting = (job for job in jobs if OURS in job.admin_comment and job.state == "PENDING" and not job.active)
    return [job for job in waiting if remark_in(job.admin_comment).off]


def runs_to_lift_exclusions(
    snapshot: SlurmSnapshot | None, known_bad: Collection[str], now: datetime
) -> list[Run]:
    """A run for each job that is excluded from a node which is no longer known bad in service.

    The run's id contains the hour, so that an exclusion that survives a run gets another one in the next
    hour.
    """
    found = []
    for job in kept_off(snapshot):
        back = sorted(set(remark_in(job.admin_comment).off) - set(known_bad))
        if not back or snapshot is None:
            continue
        key = f"off|{snapshot.cluster}|{job.id}|{job.restarts}|{','.join(back)}|{now:%Y%m%d%H}"
        reason = say("decisions.not_known_bad", nodes=", ".join(back))
        about = {"cluster": snapshot.cluster, "playbook": "release", "reason": reason}
        found.append(_run_for(job, key, now, Mode.auto, **about))
    return found


def runs_to_release_jobs(
    facts: GateFacts, ran_on: Mapping[str, tuple[int, tuple[str, ...]]], rules: Ruleset, now: datetime
) -> list[Run]:
    """A run for each job that Slurm holds because a permitted prolog failed; its id is derived from the
    permit.

    Only for the job's next restart count, because a later hold has another cause. Slurm forgets the nodes of
    a requeued job, so `ran_on` has where it was last seen: (restart count, nodes). A job seen under the
    permit's restart count only on other nodes is left out; a job that was too short for any snapshot is
    included.
    """
    if facts.snapshot is None:
        return []
    nodes, jobs = facts.snapshot.nodes, facts.snapshot.jobs
    found = []
    for permit in facts.permits:
        job, node = jobs.get(permit.job or ""), nodes.get(permit.node)
        if permit.hook != "prolog" or job is None or not is_held_after_launch(job):
            continue
        if node is None or not node.drain:
            continue  # no hook has failed there, whatever the job's report says
        if permit.restarts is None:
            if now - permit.at > RELEASE_WITHIN:
                continue
        elif job.restarts != permit.restarts + 1:
            continue
        restarts, where = ran_on.get(job.id, (None, ()))
        if restarts == job.restarts - 1 and permit.node not in where:
            continue
        key = f"release|{permit.cluster}|{permit.node}|{permit.hook}|{permit.id}"
        reason = say("decisions.prolog_permitted", node=permit.node)
        about = {"cluster": permit.cluster, "playbook": "release-held", "reason": reason}
        found.append(_run_for(job, key, now, _mode(permit, facts, rules), **about))
    return found


#: Slurm delays a requeued job by `cred_expire` + 1 s (121 by default). A longer wait has another cause.
PUT_BACK_WAIT = timedelta(minutes=10)
#: Job -> restart count, nodes of its last life, and its begin time when it was first seen to wait after that
#: life.
PutBacks = Mapping[str, tuple[int, tuple[str, ...], datetime]]


def jobs_put_back(snapshot: SlurmSnapshot | None, put_back: PutBacks) -> list[SlurmJob]:
    """Jobs that only the begin time of a requeue keeps from starting. Left out: jobs that someone holds, and
    jobs whose begin time is no longer the one that Slurm set."""
    jobs = snapshot.jobs if snapshot is not None else {}
    return [
        jobs[name]
        for name, (restarts, _, begin_at) in put_back.items()
        if name in jobs and _waits_for_begin(jobs[name], restarts, begin_at)
    ]


def _waits_for_begin(job: SlurmJob, restarts: int, begin_at: datetime) -> bool:
    if job.state != "PENDING" or job.held_by or job.leader != job.id or job.restarts != restarts:
        return False
    since = job.submit_at or begin_at
    return (
        job.reason.startswith("BeginTime")
        and job.eligible_at == begin_at
        and timedelta(0) < begin_at - since
        and not is_begin_chosen(job)
    )


def is_begin_chosen(job: SlurmJob) -> bool:
    """Whether a person chose when the job begins: Slurm takes a requeue for a new submission, and lets the
    job wait for minutes only."""
    begin_at, since = job.eligible_at, job.submit_at
    return begin_at is not None and since is not None and begin_at - since > PUT_BACK_WAIT


def runs_to_start_jobs(
    facts: GateFacts, put_back: PutBacks, incidents: Mapping[str, Incident], mode: Mode, now: datetime
) -> list[Run]:
    """A run for each job that Slurm requeued because a node went DOWN, one per such node, because a spare may
    have to be found for it. `incidents`: node -> its open incident.

    None for a job that healer requeued: that run starts it. None in the modes in which a person must agree
    first: the wait would be over before.
    """
    if facts.snapshot is None or mode in {Mode.suggest, Mode.approve}:
        return []
    found, nodes = [], facts.snapshot.nodes
    ours = {(use.job, use.restarts + 1) for use in facts.requeues}
    for job in jobs_put_back(facts.snapshot, put_back):
        if (job.id, job.restarts) in ours:
            continue
        _, ran_on, begin_at = put_back[job.id]
        lost = (node for node in ran_on if node in incidents and node in nodes and nodes[node].base == "DOWN")
        for node in lost:
            key = f"begin|{facts.cluster}|{job.id}|{job.restarts}|{node}"
            about = {"cluster": facts.cluster, "playbook": "start-requeued", "incident": incidents[node].id}
            reason = say("decisions.slurm_requeued", node=node)
            run = _run_for(job, key, now, mode, reason=reason, **about)
            more = {"node": node, "begin_at": begin_at.isoformat()}
            found.append(msgspec.structs.replace(run, alongside=True, input=run.input | more))
    return found


def _mode(permit: Permit, facts: GateFacts, rules: Ruleset) -> Mode:
    """Auto for the gate's own permit, which the gate has already granted; else the mode of the failed check's
    rule."""
    if permit.run is not None:
        return Mode.auto
    rule = rules.by_name.get(permit.check)
    return facts.modes.get(permit.check) or (rules.mode_of(rule) if rule else rules.default_mode)


def _run_for(job: SlurmJob, key: str, now: datetime, mode: Mode, **about: Any) -> Run:
    """healer's own run for that job; its id is derived from `key`."""
    return Run(
        id=run_id(key),
        state=RunState.running,
        by="healer",
        created_at=now,
        job=job.id,
        mode=mode,
        shadow=mode in {Mode.shadow, Mode.off},
        input={"restarts": job.restarts},
        **about,
    )
