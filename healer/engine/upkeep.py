"""The walk's updates under the gate's lock before it decides: vetoes, the breaker, releases, requeues,
sweeps."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from healer.decisions import (
    ASKING,
    COOLDOWN,
    JudgeResult,
    after_run_news,
    decision_of,
    is_untouched,
    judge,
    next_breaker,
    proposal_to_begin,
    runs_to_lift_exclusions,
    runs_to_release_jobs,
    runs_to_start_jobs,
    storm_roots,
)
from healer.decisions.book_mismatch import drains_shown, find_vetoes, is_vetoed, since_when
from healer.decisions.node_facts import settings_of
from healer.decisions.sweeps import may_begin_by_itself, sweep_runs, tests_since, with_sweep
from healer.incidents import Book
from healer.incidents.certainty import is_proven_unusable
from healer.incidents.growth import end_incident, jobs_of_all
from healer.incidents.impact import hit_at_the_time, hit_since_listed
from healer.incidents.lifecycle import ended
from healer.model import (
    ENDED_RUN_STATES,
    NODE_REMOVING,
    BreakerState,
    FaultClass,
    GateFacts,
    Guard,
    Incident,
    IncidentState,
    Inventory,
    LogEntry,
    Mode,
    Outcome,
    Remedy,
    Ruleset,
    Run,
    RunState,
    Slot,
    SlurmJob,
    StepEvent,
    Verb,
    Veto,
    audit_record,
)
from healer.model.detection import is_due
from healer.model.run import run_id
from healer.model.slurm import is_in_maintenance
from healer.observations import NodePicture, Picture
from healer.ports.transactions import WalkTx
from healer.telling.news import breaker_page
from healer.text import Said, say

#: A run waits so for long while its node is out of service.
_WAITS_OUT = frozenset({RunState.waiting, RunState.stuck})
#: Of nodes that are not in slurm.conf.
_REGISTERS_ITSELF = frozenset({"DYNAMIC_NORM", "DYNAMIC_FUTURE"})


class Walk:
    """A walk's transaction, its incidents, and the runs that it started."""

    def __init__(self, tx: WalkTx, rules: Ruleset, picture: Picture, now: datetime) -> None:
        self.tx, self.rules, self.picture, self.now = tx, rules, picture, now
        self.work = Book(rules, tx.open_incidents(), picture, now, tx.incident)
        self.known = dict(self.work.by_id)
        self.started: list[str] = []
        #: The gate's facts; None while this walk does not need the gate.
        self.facts: GateFacts | None = None
        #: Runs that have not ended, while the gate's lock is held; the walk removes those that it ends.
        self.runs: dict[str, Run] = {}

    @property
    def gate(self) -> GateFacts:
        """The gate's facts, including this walk's own grants and releases. The lock is held."""
        assert self.facts is not None
        return self.facts

    def withdraw(self, incident: Incident, why: Said) -> bool:
        """Rejects a run that waits for permission, because its cause is gone; returns whether no run works on
        the incident."""
        run = self.tx.run(incident.run) if incident.run else None
        if run is None or run.shadow or run.state in ENDED_RUN_STATES:
            return True
        if run.state not in ASKING:
            return False
        self.tx.set_run_state(run.id, RunState.rejected, why=why, at=self.now)
        return True

    def end_plan(self, incident: Incident, why: Said) -> bool:
        """Like `withdraw`; also ends a plan that waits for its moment or is stuck, if it has not taken
        anything."""
        run = self.tx.run(incident.run) if incident.run else None
        if run is None or self.facts is None or run.state not in {RunState.running, RunState.stuck}:
            return self.withdraw(incident, why)
        if not is_untouched(run, self.rules.playbooks.get(run.playbook), self.facts):
            return self.withdraw(incident, why)
        self.tx.set_run_state(run.id, RunState.done, why=why, at=self.now)
        self.facts = without_run(self.facts, run)
        return True

    def cancel(self, run: str, why: Said, incident: str | None) -> None:
        """Ends a run whose step may be under way: this record names what it has done so far."""
        self.tx.set_run_state(run, RunState.cancelled, why=why, at=self.now)
        self.audit("run.cancelled", f"run/{run}", run=run, reason=why, incident=incident)
        self.runs.pop(run, None)

    def open_incidents(self) -> list[Incident]:
        return [incident for incident in self.work.by_id.values() if incident.is_open]

    def audit(self, verb: str, subject: str, **data: Any) -> None:
        self.tx.audit(audit_record(self.picture.cluster, self.now, "healer", verb, subject, **data))

    def pass_over(self, passed: Sequence[tuple[str, str, str]]) -> None:
        """Audits findings that planned work or other activity explains, so that people can find them."""
        for node, fault, why in passed:
            self.audit("finding.passed_over", f"node/{node}", fault=fault, why=why)


#: How often references are read; people rarely change them.
REFERENCES_EVERY = timedelta(seconds=15)
#: How often due sweeps are looked for.
SWEEPS_EVERY = timedelta(seconds=30)
#: Guards that answer the same for every node, so that the first answer is enough.
HOLDS_ALL = frozenset({Guard.stale, Guard.breaker, Guard.cooldown})
#: Restarts a job in parallel to the incident's own run.
_REQUEUE = "requeue"
#: Conditions of this class are reported again while they last: other people's drains, silence.
REPORTED_AGAIN = FaultClass.informational


def settle_vetoes_and_breaker(walk: Walk) -> None:
    _apply_vetoes(walk)
    _end_lost_drains(walk)
    _update_breaker(walk)


def _apply_vetoes(walk: Walk) -> None:
    """Leaves alone any node whose drain a person has lifted. The worker frees the slots of such nodes; they
    no longer count here."""
    facts = walk.gate
    back = {slot.node for slot in facts.slots if is_vetoed(slot, facts.vetoes)}
    changes, held = walk.picture.changes, {since_when(slot) for slot in facts.slots}
    shown = changes.drains_shown = (changes.drains_shown & held) | drains_shown(facts)
    for slot, veto in find_vetoes(facts, walk.runs.values(), walk.rules, walk.now, shown):
        # A run that returned its node between the reads of slots and runs is in neither.
        if _is_being_returned(walk, slot) or _slot_changed(walk, slot, back):
            continue
        _veto(walk, slot, veto)
        back.add(slot.node)
    walk.facts = facts.without_slots(back)


def _slot_changed(walk: Walk, slot: Slot, freed: set[str]) -> bool:
    """Its run changed the slot after the facts were read; a released slot is added to `freed`."""
    stored = walk.tx.slot_of(slot.node)
    if stored is None:
        freed.add(slot.node)
    return stored is None or (stored.run, stored.drained_at) != (slot.run, slot.drained_at)


def _is_being_returned(walk: Walk, slot: Slot) -> bool:
    """healer's own run has just lifted the drain, and will release the slot with its next write."""
    at_work = [run for run in walk.runs.values() if run.node == slot.node and run.state is RunState.running]
    return any(not run.shadow and walk.tx.is_returning(run.id) for run in at_work)


def _veto(walk: Walk, slot: Slot, veto: Veto) -> None:
    why = say(
        "engine.vetoed",
        who=veto.by,
        node=veto.node,
        day=f"{veto.until:%d}",
        month=say(f"words.month_{veto.until.month}"),
        time=f"{veto.until:%H:%M}",
    )
    walk.tx.add_veto(veto)
    walk.picture.clear(veto.node, walk.now)
    walk.audit("node.vetoed", f"node/{veto.node}", why=why, incident=slot.incident)
    for name in [run.id for run in walk.runs.values() if run.node == veto.node and not run.shadow]:
        walk.cancel(name, why, slot.incident)
    for incident in open_incidents_on(walk.work, veto.node):
        end_restarts(walk, incident, why)
        walk.work.put(msgspec.structs.replace(end_incident(incident, why, walk.now), run=None))


def _end_lost_drains(walk: Walk) -> None:
    """Ends runs whose drained node was removed from Slurm and came back: Slurm drops the drain with the node,
    and the worker freed its slot.

    A dynamic node registers again by itself: its incident is decided as if it never had the run. Any other
    node was put back by a person, as after a repair: a fault has to be seen there again."""
    for incident in walk.open_incidents():
        run, shown = walk.runs.get(incident.run or ""), walk.gate.snapshot
        node = shown.nodes.get(run.node or "") if run is not None and shown is not None else None
        if run is None or node is None or incident.drained_at is None or run.shadow:
            continue
        if run.state not in _WAITS_OUT or not node.in_service or node.name in walk.gate.held:
            continue
        if walk.tx.is_returning(run.id) or walk.tx.slot_of(node.name) is not None:
            continue
        if not _has_taken(walk, run):  # `drained_at` is from before a person reopened the incident
            continue
        why = say("engine.drain_lost", node=node.name)
        walk.cancel(run.id, why, incident.id)
        walk.facts = without_run(walk.gate, run)
        change: dict[str, object] = {"run": None, "state": IncidentState.open, "drained_at": None}
        if _REGISTERS_ITSELF.isdisjoint(node.state):
            walk.picture.clear(node.name, walk.now)
            change = ended(walk.now, why)
        walk.work.put(msgspec.structs.replace(incident, **change, updated=walk.now))


def without_run(facts: GateFacts, run: Run) -> GateFacts:
    """The facts without this run at work on a node."""
    return msgspec.structs.replace(
        facts, running={node: name for node, name in facts.running.items() if name != run.id}
    )


def begin_releases(walk: Walk) -> list[str]:
    """Begins runs for jobs that a permitted prolog failure left held, for jobs that Slurm requeued after a
    node went down, and for exclusions that are no longer needed. Returns their ids."""
    bad = {name for incident in walk.work.by_id.values() if incident.is_open for name in incident.bad_nodes}
    at_work = {run.job for run in walk.runs.values() if run.job is not None}
    back = [
        run for run in runs_to_lift_exclusions(walk.gate.snapshot, bad, walk.now) if run.job not in at_work
    ]
    held = runs_to_release_jobs(walk.gate, walk.picture.allocations.ran_on, walk.rules, walk.now)
    there = {incident.root.node: incident for incident in walk.open_incidents() if incident.root.node}
    mode = walk.rules.default_mode
    start = runs_to_start_jobs(walk.gate, walk.picture.allocations.put_back, there, mode, walk.now)
    return begin_each(walk, [*held, *start, *back])


def begin_each(walk: Walk, runs: Sequence[Run]) -> list[str]:
    """Begins runs that take nothing from a node, each once; returns the ids of the new ones."""
    begun = [run for run in runs if walk.tx.run(run.id) is None]
    for run in begun:
        walk.tx.create_run(run)
        about = {"playbook": run.playbook, "job": run.job, "reason": run.reason}
        about |= {"node": run.node} if run.node is not None else {}
        about |= {"incident": run.incident} if run.incident is not None else {}
        walk.audit("run.started", f"run/{run.id}", **about)
    return [run.id for run in begun]


def begin_requeues(walk: Walk) -> list[str]:
    """Begins a run for each job that its incident's run does not requeue, in parallel to that run. Returns
    the ids."""
    begun: list[str] = []
    for incident in walk.open_incidents():
        jobs = [*_hit_late(walk, incident), *_lost_data(walk, incident)]
        run = walk.tx.run(incident.run) if jobs and incident.run else None
        if run is not None and not run.shadow and run.state not in ENDED_RUN_STATES:
            begun += _begin_requeues_of(walk, incident, run.mode, jobs)
        elif run is None and (jobs := _hit_under_their_drain(walk, incident)):
            rule = walk.rules.by_name[incident.rule]
            mode = walk.rules.mode_of(rule, walk.gate.modes)
            begun += _begin_requeues_of(walk, incident, mode, jobs)
    return begun


def _hit_under_their_drain(walk: Walk, incident: Incident) -> list[SlurmJob]:
    """Jobs on a dead GPU of a node that someone else has drained: the drain is theirs, and the jobs make no
    progress there (laws 5 and 8)."""
    rule, shown = walk.rules.by_name.get(incident.rule), walk.gate.snapshot
    playbook = walk.rules.playbooks.get(rule.playbook or "") if rule is not None else None
    node = shown.nodes.get(incident.root.node or "") if shown is not None else None
    if playbook is None or node is None or incident.held_by is not Guard.ownership or not node.drain:
        return []
    requeues = any(step.do is Verb.requeue for step in playbook.steps) and not playbook.is_plan
    if not requeues or not is_proven_unusable(incident) or incident.stopped_by is not None:
        return []
    return hit_since_listed(incident, shown, newly_unusable=True)


def _hit_late(walk: Walk, incident: Incident) -> list[SlurmJob]:
    """Jobs hit by a fault that joined the incident in this walk, after its run had listed the jobs. Also jobs
    on a dead node that the capacity floor keeps in service: they make no progress there, and start
    elsewhere."""
    stays = incident.known_bad_in_service and incident.held_by is Guard.floor
    run = walk.runs.get(incident.run or "") if stays or incident.id in walk.work.wider else None
    playbook = walk.rules.playbooks.get(run.playbook) if run is not None else None
    requeues = playbook is not None and any(step.do is Verb.requeue for step in playbook.steps)
    if not requeues or not (stays or incident.jobs_hit_final):
        return []
    newly_unusable = stays or walk.work.wider[incident.id]
    return hit_since_listed(incident, walk.gate.snapshot, newly_unusable=newly_unusable)


def _lost_data(walk: Walk, incident: Incident) -> list[SlurmJob]:
    """Jobs that lost data to a fault whose repair may wait, including a job that Slurm shows only after the
    fault."""
    if Remedy.requeue_job not in incident.remedy or incident.run is None or incident.jobs_hit_final:
        return []
    jobs = hit_at_the_time(incident, walk.gate.snapshot, walk.picture.node(incident.root.node or "").moment)
    is_news = incident.id in walk.work.changed or any(job.leader not in incident.jobs_hit for job in jobs)
    return jobs if is_news else []


def _begin_requeues_of(walk: Walk, incident: Incident, mode: Mode, jobs: Sequence[SlurmJob]) -> list[str]:
    hit = jobs_of_all(incident.jobs_hit, (job.leader for job in jobs))
    if hit != incident.jobs_hit:
        walk.work.put(msgspec.structs.replace(incident, jobs_hit=hit))
    return begin_each(walk, [_requeue(incident, mode, job, walk.now) for job in jobs])


def _requeue(incident: Incident, mode: Mode, job: SlurmJob, now: datetime) -> Run:
    """A run that requeues the job, in parallel to the incident's own; a repeat has the same id."""
    return Run(
        id=run_id(f"{incident.id}|requeue|{job.leader}|{job.restarts}|{is_proven_unusable(incident)}"),
        cluster=incident.cluster,
        playbook=_REQUEUE,
        state=RunState.running,
        by="healer",
        reason=incident.title,
        created_at=now,
        job=job.leader,
        incident=incident.id,
        rule=incident.rule,
        mode=mode,
        alongside=True,
        input={"restarts": job.restarts},
    )


def end_restarts(walk: Walk, incident: Incident, why: Said) -> None:
    """Ends the pending restarts of its jobs: a person has resolved or stopped the incident, or returned its
    node. A restart already requested from Slurm continues: it is read back and recorded."""
    whose = (_REQUEUE, "healer", incident.id)
    restarts = [run for run in walk.tx.active_runs() if (run.playbook, run.by, run.incident) == whose]
    asked = _runs_under_way(walk.tx.steps_of(incident)) if restarts else frozenset[str]()
    for run in restarts:
        if run.id not in asked:
            walk.cancel(run.id, why, incident.id)


def _runs_under_way(log: Sequence[LogEntry]) -> frozenset[str]:
    """Runs with a step that has begun and is not over: its effect may have happened. A job that was only
    asked to save its work has not been restarted."""
    begun: dict[tuple[str, str], bool] = {}
    for entry in log:
        step = entry.run, entry.step
        if entry.event is StepEvent.started or (entry.event is StepEvent.waiting and step in begun):
            begun[step] = not entry.data.get("signal")
        elif entry.event is not StepEvent.held:
            begun.pop(step, None)
    return frozenset(run for (run, _), may_have_happened in begun.items() if may_have_happened)


def sweeps_due(walk: Walk) -> bool:
    """Whether it is time to look for due sweeps."""
    if not settings_of(walk.rules, walk.picture.cluster).sweep.scheduled or walk.picture.slurm is None:
        return False
    return is_due(walk.picture.swept_at, SWEEPS_EVERY, walk.now) and may_begin_by_itself(walk.rules)


def begin_sweeps(walk: Walk) -> list[str]:
    """Begins due sweeps, as many as the gate allows. Returns the ids of the runs."""
    books, due = walk.rules.sweeping, sweeps_due(walk)
    if due or any(run.state is RunState.held and run.playbook in books for run in walk.runs.values()):
        # A person's held sweep needs these facts too, later in this walk.
        sweeps = walk.tx.sweeps(books, tests_since(walk.rules, walk.picture.cluster, walk.now))
        walk.facts = msgspec.structs.replace(walk.gate, sweeps=sweeps)
    if not due:
        return []
    walk.picture.swept_at = walk.now
    begun: list[str] = []
    for run in sweep_runs(walk.gate, walk.rules, walk.now):
        proposal = proposal_to_begin(run, walk.rules.playbooks[run.playbook], None)
        verdict = judge(proposal, walk.gate, walk.rules, walk.now)
        if verdict.guard in HOLDS_ALL or _is_full(verdict):
            break
        if verdict.outcome is not Outcome.act:
            continue
        walk.tx.add_decision(decision_of(proposal, verdict, walk.now))
        walk.tx.create_run(run)
        walk.audit("run.started", f"run/{run.id}", playbook=run.playbook, node=run.node, reason=run.reason)
        walk.facts = with_sweep(walk.gate, run)
        begun.append(run.id)
    return begun


def _update_breaker(walk: Walk) -> None:
    facts = walk.gate
    breaker = facts.breaker
    now = facts.earlier(walk.now)  # steps that fail from then on count against it
    if breaker.canary is not None:
        state = _canary_state(walk, walk.tx.run(breaker.canary))
        breaker = after_run_news(breaker, breaker.canary, state, now)
    roots = storm_roots(walk.work.by_id.values(), facts, walk.rules, walk.now)
    nodes = len(facts.snapshot.gpu_nodes) if facts.snapshot else 0
    breaker = next_breaker(breaker, roots, facts.actions, nodes, walk.rules, now)
    if breaker != facts.breaker:
        walk.tx.save_breaker(breaker)
    if breaker.state is BreakerState.open and facts.breaker.state is not BreakerState.open:
        walk.tx.queue_message(breaker_page(breaker))
        roots_named = sorted({root.node for root in breaker.roots})
        walk.audit("breaker.opened", f"breaker/{breaker.cluster}", why=breaker.why, roots=roots_named)
    walk.facts = msgspec.structs.replace(facts, breaker=breaker)


def _canary_state(walk: Walk, canary: Run | None) -> RunState:
    """What the canary shows: a lasting drain is a success, as is a repair that waits for a person; a canary
    that ended before it took a node counts as cancelled."""
    if canary is None:
        return RunState.cancelled
    if canary.state is RunState.running or (canary.state is RunState.waiting and canary.wake_at is not None):
        return RunState.waiting if _has_drained(walk, canary.id) else RunState.running
    if canary.state is RunState.done and not _has_taken(walk, canary):
        return RunState.cancelled
    return canary.state


def _has_taken(walk: Walk, run: Run) -> bool:
    """This run completed a removing step itself; the effect of another run does not count."""
    incident = walk.work.earlier(run.incident or "")
    steps = walk.tx.steps_of(incident) if incident is not None else ()
    done = (entry for entry in steps if entry.run == run.id and entry.event is StepEvent.done)
    return any(entry.data.get("verb") in NODE_REMOVING and not entry.data.get("other") for entry in done)


def _has_drained(walk: Walk, run: str) -> bool:
    """The canary's drain was read back at least a cool-down ago; the run may still wait a day for an empty
    node."""
    drained = (slot.drained_at for slot in walk.gate.slots if slot.run == run)
    return any(at is not None and walk.now - at >= COOLDOWN for at in drained)


def _is_full(verdict: JudgeResult) -> bool:
    """The limit of concurrent sweeps is reached."""
    answer = verdict.answer
    if answer is None or answer.guard is not Guard.sweep or not answer.limit:
        return False
    return (answer.used or 0) >= answer.limit


def open_incidents_on(work: Book, node: str) -> list[Incident]:
    """Open incidents of faults on the node, without other people's drains and silence."""
    fits = (incident for incident in work.by_id.values() if incident.is_open and incident.root.node == node)
    return [incident for incident in fits if incident.fault_class is not REPORTED_AGAIN]


def note_inventories(tx: WalkTx, picture: Picture, now: datetime) -> None:
    """Stores new facts that nodes reported, and reads the references from time to time."""
    nodes = (picture.nodes[name] for name in sorted(picture.facts_changed))
    tx.save_inventories([_inventory(picture, node, now) for node in nodes])
    if is_due(picture.references_at, REFERENCES_EVERY, now):
        picture.references = {reference.kind: reference for reference in tx.references()}
        picture.references_at = now


def _inventory(picture: Picture, node: NodePicture, now: datetime) -> Inventory:
    shown = picture.slurm_node(node.name)
    return Inventory(
        node=node.name,
        at=node.facts_at or now,
        facts=node.facts,
        changed=dict(picture.new_versions.get(node.name, {})),
        booted_at=node.booted_at,
        worked_until=picture.changes.work_ended.get(node.name),
        in_work=shown is not None and is_in_maintenance(picture.slurm, shown),
        in_window=node.name in picture.changes.in_window,
    )
