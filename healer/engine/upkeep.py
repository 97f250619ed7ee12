"""What the walk puts right under the gate's lock before it decides: slots, vetoes, the breaker."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from healer.decisions import (
    COOLDOWN,
    JudgeResult,
    after_news,
    beginning,
    decision_of,
    judge,
    next_breaker,
    releases,
    storm_roots,
    take_backs,
)
from healer.decisions.sweeps import in_turn, is_scheduled, since_of, sweeping, with_one_more
from healer.incidents import Correlator, find_vetoes, idle_slots, slots_of_gone_nodes
from healer.model import (
    AuditRecord,
    FaultClass,
    GateFacts,
    Guard,
    Incident,
    IncidentState,
    Inventory,
    Outcome,
    Ruleset,
    Run,
    RunState,
    Slot,
    Veto,
)
from healer.observations import Picture
from healer.observations.picture import NodePicture
from healer.ports.transactions import WalkTx
from healer.telling.messages import breaker_page

#: A person takes or forgets a reference rarely, and nothing is done for it.
REFERENCES_EVERY = timedelta(seconds=15)
#: Whose turn it is to be swept is looked at so often.
SWEEPS_EVERY = timedelta(seconds=30)
#: Guards that say the same of every node: the first answer is enough.
HOLDS_ALL = frozenset({Guard.stale, Guard.breaker, Guard.cooldown})
#: What a detector tells again while it stands: drains of others, silence.
TOLD_ANEW = FaultClass.informational


class Upkeep:
    """One walk's. `runs` are those that have not ended; what is ended here is taken out of it."""

    def __init__(
        self, tx: WalkTx, rules: Ruleset, picture: Picture, work: Correlator, *, now: datetime
    ) -> None:
        self.tx, self.rules, self.picture, self.work, self.now = tx, rules, picture, work, now

    def put_right(self, facts: GateFacts, runs: dict[str, Run]) -> GateFacts:
        return self._breaker(self._slots(facts, runs))

    def _slots(self, facts: GateFacts, runs: dict[str, Run]) -> GateFacts:
        """Slots whose node a person has given back, or whose drain never came: they are free again."""
        freed = set[str]()
        for slot in idle_slots(facts, runs.values(), self.tx.run):
            if self._changed(slot, freed):
                continue
            self.tx.release_slot(slot.node, at=self.now, why="its run ended before the node was drained")
            freed.add(slot.node)
        for slot in slots_of_gone_nodes(facts, self.now):
            self.tx.release_slot(slot.node, at=self.now, why="Slurm no longer knows the node")
            freed.add(slot.node)
        for slot, veto in find_vetoes(facts, runs.values(), self.rules, self.now):
            # `runs` were read after the slots: one that gave its node back in between is in neither.
            if self._returns_it(slot, runs) or self._changed(slot, freed):
                continue
            self._veto(slot, veto, runs)
            freed.add(slot.node)
        left = tuple(slot for slot in facts.slots if slot.node not in freed)
        return msgspec.structs.replace(facts, slots=left)

    def _changed(self, slot: Slot, freed: set[str]) -> bool:
        """Its run wrote to it after the facts were read. One that it gave back is free."""
        known = self.tx.slot_of(slot.node)
        if known is None:
            freed.add(slot.node)
        return known is None or (known.run, known.drained_at) != (slot.run, slot.drained_at)

    def _returns_it(self, slot: Slot, runs: Mapping[str, Run]) -> bool:
        """A run of ours has just lifted the drain; its slot goes with the next thing that it writes."""
        at_work = [run for run in runs.values() if run.node == slot.node and run.state is RunState.running]
        return any(not run.shadow and self.tx.is_returning(run.id) for run in at_work)

    def _veto(self, slot: Slot, veto: Veto, runs: dict[str, Run]) -> None:
        why = f"{veto.by} resumed {veto.node}: healer leaves it alone until {veto.until:%d %b %H:%M} UTC"
        self.tx.add_veto(veto)
        self.tx.release_slot(veto.node, at=self.now, why=why)
        self.picture.clear(veto.node, self.now)
        data: dict[str, object] = {"why": why, "incident": slot.incident}
        self.tx.audit(healers_record(self.picture, "node.vetoed", f"node/{veto.node}", data, self.now))
        for name in [run.id for run in runs.values() if run.node == veto.node and not run.shadow]:
            self.tx.set_run_state(name, RunState.cancelled, why=why, at=self.now)
            del runs[name]
        over = {"state": IncidentState.resolved, "closed": self.now, "updated": self.now, "closed_why": why}
        for one in open_on(self.work, veto.node):
            self.work.put(msgspec.structs.replace(one, **over, run=None))

    def release(self, facts: GateFacts, runs: Mapping[str, Run]) -> list[str]:
        """Jobs that a permitted prolog left held, and those that need not be kept off a node any more; the
        runs that were set going for it."""
        bad = {name for one in self.work.by_id.values() if one.is_open for name in one.bad_nodes}
        at_work = {run.job for run in runs.values() if run.job is not None}
        back = [run for run in take_backs(facts.snapshot, bad, self.now) if run.job not in at_work]
        held = releases(facts, self.picture.ran_on, self.rules, self.now)
        begun = [run for run in (*held, *back) if self.tx.run(run.id) is None]
        for run in begun:
            self.tx.create_run(run)
            data = {"playbook": run.playbook, "job": run.job, "reason": run.reason}
            self.tx.audit(healers_record(self.picture, "run.started", f"run/{run.id}", data, self.now))
        return [run.id for run in begun]

    def sweeps_due(self) -> bool:
        """It is time to look whose turn it is to be swept."""
        at = self.picture.swept_at
        waited = at is None or abs(self.now - at) >= SWEEPS_EVERY
        return waited and self.picture.slurm is not None and is_scheduled(self.rules, self.picture.cluster)

    def with_sweeps(self, facts: GateFacts, runs: Mapping[str, Run]) -> GateFacts:
        """The facts with those of sweeps, where this walk may ask for one: a person's may be held."""
        books = sweeping(self.rules)
        waits = any(run.state is RunState.held and run.playbook in books for run in runs.values())
        if not waits and not self.sweeps_due():
            return facts
        known = self.tx.sweeps(books, since_of(self.rules, self.picture.cluster, self.now))
        return msgspec.structs.replace(facts, sweeps=known)

    def sweep(self, facts: GateFacts) -> tuple[GateFacts, list[str]]:
        """Sweeps whose turn it is, as many as the gate lets begin; the facts after them."""
        if not self.sweeps_due():
            return facts, []
        self.picture.swept_at = self.now
        begun: list[str] = []
        for run in in_turn(facts, self.rules, self.now):
            proposal = beginning(run, self.rules.playbooks[run.playbook], None)
            verdict = judge(proposal, facts, self.rules, self.now)
            if verdict.guard in HOLDS_ALL or _is_full(verdict):
                break
            if verdict.outcome is not Outcome.act:
                continue
            self.tx.add_decision(decision_of(proposal, verdict, self.now))
            self.tx.create_run(run)
            data = {"playbook": run.playbook, "node": run.node, "reason": run.reason}
            self.tx.audit(healers_record(self.picture, "run.started", f"run/{run.id}", data, self.now))
            facts = with_one_more(facts, run)
            begun.append(run.id)
        return facts, begun

    def _breaker(self, facts: GateFacts) -> GateFacts:
        breaker = facts.breaker
        if breaker.canary is not None:
            canary = self.tx.run(breaker.canary)
            state = canary.state if canary is not None else RunState.cancelled
            if state is RunState.running and self._stands(facts, breaker.canary):
                state = RunState.waiting
            breaker = after_news(breaker, breaker.canary, state, self.now)
        roots = storm_roots(self.work.by_id.values(), facts, self.rules, self.now)
        nodes = len(facts.snapshot.gpu_nodes) if facts.snapshot else 0
        breaker, opened = next_breaker(breaker, roots, facts.actions, nodes, self.rules, self.now)
        if breaker != facts.breaker:
            self.tx.save_breaker(breaker)
        if opened:
            self.tx.queue_message(breaker_page(breaker, self.now))
            data = {"why": breaker.why, "roots": sorted({root.node for root in breaker.roots})}
            subject = f"breaker/{breaker.cluster}"
            self.tx.audit(healers_record(self.picture, "breaker.opened", subject, data, self.now))
        return msgspec.structs.replace(facts, breaker=breaker)

    def _stands(self, facts: GateFacts, run: str) -> bool:
        """The canary's drain was read back long ago: it may wait for an empty node for a day yet."""
        drained = (slot.drained_at for slot in facts.slots if slot.run == run)
        return any(at is not None and self.now - at >= COOLDOWN for at in drained)


def _is_full(verdict: JudgeResult) -> bool:
    """As many nodes are in sweep as may be."""
    answer = verdict.answer
    if answer is None or answer.guard is not Guard.sweep or not answer.limit:
        return False
    return (answer.used or 0) >= answer.limit


def open_on(work: Correlator, node: str) -> list[Incident]:
    """Open incidents of faults on the node; drains of others and silence speak for themselves."""
    fits = (one for one in work.by_id.values() if one.is_open and one.root.node == node)
    return [one for one in fits if one.fault_class is not TOLD_ANEW]


def healers_record(
    picture: Picture, verb: str, subject: str, data: Mapping[str, Any], now: datetime
) -> AuditRecord:
    return AuditRecord(
        cluster=picture.cluster, at=now, actor="healer", verb=verb, subject=subject, data=dict(data)
    )


def note_inventories(tx: WalkTx, picture: Picture, now: datetime) -> None:
    """Stores what nodes told anew of themselves, and reads from time to time what nodes should be."""
    nodes = (picture.nodes[name] for name in sorted(picture.facts_changed))
    tx.save_inventories([_inventory(picture, one, now) for one in nodes])
    if picture.references_at is None or now - picture.references_at >= REFERENCES_EVERY:
        picture.references = {one.kind: one for one in tx.references()}
        picture.references_at = now


def _inventory(picture: Picture, node: NodePicture, now: datetime) -> Inventory:
    return Inventory(
        node=node.name,
        at=node.facts_at or now,
        facts=node.facts,
        changed=dict(picture.new_versions.get(node.name, {})),
        booted_at=node.booted_at,
    )
