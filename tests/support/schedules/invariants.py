"""What may never be seen, whatever dies when. Counted from the tables and from Slurm, not by the guards.

`Watch.tick` looks after each second of a schedule, `Watch.effect` at each call that changes something,
`Watch.end` when all has come to rest. A breach is a sentence; the schedule's seed plays it again.
"""

from collections import Counter
from fractions import Fraction

from healer.actions.under_test import TEST_JOBS
from healer.decisions.sweeps import SWEEP_JOBS
from healer.model import ENDED_RUN_STATES, LogEntry, Run, RunState, Slot, StepEvent
from healer.model.slurm import is_our_reservation, is_ours, slurm_kind
from tests.support.schedules.world import NODES, RACK, SWEEPS, WRITE_S, Effect, World

#: A drain of ours may stand so long before an incident or a run must speak for it (`forgotten.GRACE` and what
#: a walk takes until it comes to it, with a detector that died).
FORGOTTEN_S = 150.0
#: A clock that leapt back is believed in what it wrote down before, for as long as it had leapt.
LEAPT_S = 300.0
#: A pause takes effect within a second; a call that was under way may still end.
PAUSE_S = 1.0 + WRITE_S
#: A sweep's job is gone so soon after another job waits, also when its worker died.
GIVES_WAY_S = 60.0
#: A run that gets its slot just before the end has so long to come to rest.
SETTLES_S = 300
#: Messages and notes take no slot.
_NOTES = frozenset({"annotate", "remark", "notify"})
#: States in which a run is over, or waits for a person.
_AT_REST = ENDED_RUN_STATES | {
    RunState.stuck, RunState.waiting, RunState.held, RunState.proposed, RunState.waiting_approval
}  # fmt: skip


class Watch:
    """One schedule's. `breaches`: each once."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.breaches: list[str] = []
        self._unspoken: dict[str, float] = {}
        self._paused_at: dict[str, float] = {}
        self._seen = 0
        self._in_the_way: float | None = None
        world.store.on_grant = self.granted
        world.on_effect = self.effect

    def say(self, text: str) -> None:
        if text not in self.breaches:
            self.breaches.append(text)
            self.world.hub.log(f"BREACH: {text}")

    # --- when a slot is granted

    def granted(self, slot: Slot) -> None:
        guards, slots = self.world.guards, self.world.store.tables.slots
        counted = [one for one in slots.values() if not one.unusable]
        if not slot.unusable:
            most = max(1, min(guards.max_nodes, int(Fraction(str(guards.max_share)) * NODES)))
            if len(counted) > most:
                self.say(f"{len(counted)} slots, {most} allowed, with that of {slot.node}")
            rack = [one for one in counted if _rack(one.node) == _rack(slot.node)]
            most = max(1, int(Fraction(str(guards.rack_share)) * RACK))
            if len(rack) > most:
                self.say(f"{len(rack)} slots in rack {_rack(slot.node)}, {most} allowed")
        shown = self.world.store.snapshot
        if shown is None:
            self.say(f"a slot for {slot.node} without a picture of Slurm")
            return
        kept = {name for one in shown.reservations.values() if is_our_reservation(one) for name in one.nodes}
        out = {one.name for one in shown.nodes.values() if not one.in_service} | set(slots) | kept
        least = min(-(-Fraction(str(guards.min_service_share)) * NODES // 1), NODES - 1)
        was_out = not shown.nodes[slot.node].in_service or slot.node in kept
        if NODES - len(out) < least and not was_out:
            self.say(f"{NODES - len(out)} nodes in service after {slot.node}, the floor is {least}")

    # --- at each effect

    def effect(self, one: Effect) -> None:
        tables, at = self.world.store.tables, one.at.timestamp()
        run = tables.runs.get(one.run)
        if run is None:
            self.say(f"{one.verb} {one.target} by {one.process} without a run")
            return
        if run.shadow:
            self.say(f"the shadow run {run.id} did {one.verb} {one.target}")
        taken_over = self.world.claimed.get(one.run, 0) > one.epoch
        if taken_over:
            self.say(
                f"{one.process} did {one.verb} {one.target} for {one.run}, which another worker had taken"
            )
        log = tables.log.get(one.run, [])
        if one.verb not in _NOTES and not any(entry.event is StepEvent.started for entry in log):
            self.say(f"{one.verb} {one.target} before its step was stored as started")
        standing = {one.name for one in tables.pauses} & {"", run.node}
        paused = [self._paused_at[name] for name in standing if name in self._paused_at]
        gives_way = one.verb == "cancel" and self._is_sweep(one)
        if one.verb not in _NOTES and not gives_way and any(at - began > PAUSE_S for began in paused):
            self.say(f"{one.verb} {one.target} for {one.run} {at - min(paused):.0f} s after a pause")
        self._owner(one)
        job = self.world.slurm.job(one.target) if one.verb == "cancel" else None
        if job is not None and (job.user != "root" or not job.name.startswith((SWEEP_JOBS, TEST_JOBS))):
            self.say(f"{one.verb} of job {job.id} of {job.user}, which is not healer's own")

    def _is_sweep(self, one: Effect) -> bool:
        run = self.world.store.tables.runs.get(one.run)
        return run is not None and run.playbook == "sweep"

    def _owner(self, one: Effect) -> None:
        """A person's drain of some age is neither lifted nor reworded."""
        node = one.before
        if one.verb not in {"drain", "resume", "undrain", "down", "reboot"} or not node.held:
            return
        since = node.reason_at
        drained_still = since is not None and (one.at - since).total_seconds() > WRITE_S + 1
        theirs = node.reason and not is_ours(node.reason) and slurm_kind(node.reason) is None
        if theirs and drained_still:
            self.say(f"{one.verb} on {one.target}, which {node.reason_user} holds: {node.reason}")

    # --- after each second

    def tick(self, _: World) -> None:
        world, now = self.world, self.world.true.now().timestamp()
        tables = world.store.tables
        standing = {one.name for one in tables.pauses}
        self._paused_at = {name: self._paused_at.get(name, now) for name in standing}
        at_work = Counter(
            run.node
            for run in tables.runs.values()
            if run.state is RunState.running and not run.shadow and not run.alongside and run.node
        )
        for node, count in at_work.items():
            if count > 1:
                self.say(f"{count} runs work on {node}")
        self._requeued()
        self._spoken_for(now)
        self._swept(now)

    def _requeued(self) -> None:
        """Each restart that we caused was granted, by its count; none was caused twice."""
        effects = [one for one in self.world.effects[self._seen :] if one.verb in {"requeue", "revive"}]
        self._seen = len(self.world.effects)
        uses = {(use.job, use.restarts) for use in self.world.store.tables.requeues}
        for one in effects:
            if one.before is not None and (one.before.id, one.before.restarts) not in uses:
                self.say(f"{one.verb} of job {one.target} at restart {one.before.restarts} was never granted")
        cap = self.world.guards.requeues_per_job
        for job, count in Counter(job for job, _ in uses).items():
            if count > cap:
                self.say(f"job {job} was granted {count} restarts, {cap} allowed")

    def _swept(self, now: float) -> None:
        """A sweep has one job, few run at once, and none is in the way for long."""
        jobs = self.world.slurm.snapshot().jobs.values()
        ours = [job for job in jobs if job.name.startswith(SWEEP_JOBS) and "COMPLETING" not in job.flags]
        live = [job for job in ours if job.active or job.state == "PENDING"]
        for comment, count in Counter(job.comment for job in live).items():
            if count > 1:
                self.say(f"{count} jobs for the sweep {comment}")
        runs = self.world.store.tables.runs.values()
        going = [run for run in runs if run.playbook == "sweep" and run.state is RunState.running]
        if len(going) > SWEEPS:
            self.say(f"{len(going)} sweeps at once, {SWEEPS} allowed")
        wanted = any(
            job.state == "PENDING" and job.user != "root" and job.reason in {"Resources", "Priority"}
            for job in jobs
        )
        self._in_the_way = (self._in_the_way or now) if live and wanted else None
        longest_s = GIVES_WAY_S + (LEAPT_S if self.world.leapt else 0)
        if self._in_the_way is not None and now - self._in_the_way > longest_s:
            self.say(f"a job waits, and {[job.name for job in live]} of ours are still there")

    def _spoken_for(self, now: float) -> None:
        """Each drain of ours has an open incident, or a run at work on it."""
        world, tables = self.world, self.world.store.tables
        shown = world.slurm.snapshot()
        kept = {name for one in shown.reservations.values() if is_our_reservation(one) for name in one.nodes}
        ours = {one.name for one in shown.nodes.values() if one.held and is_ours(one.reason)} | kept
        spoken = {one.root.node for one in tables.incidents.values() if one.is_open}
        known = {one.id for one in tables.incidents.values() if one.is_open}
        # A person was notified that nothing justifies the drain, and accepted it.
        mismatches = (one for one in tables.incidents.values() if one.fault == "healer-drain")
        spoken |= {
            one.root.node for one in mismatches if (one.closed_why or "").startswith("resolved by ann")
        }
        spoken |= {slot.node for slot in tables.slots.values() if slot.incident in known}
        spoken |= {
            run.node for run in tables.runs.values() if run.state not in ENDED_RUN_STATES and not run.shadow
        }
        self._unspoken = {node: self._unspoken.get(node, now) for node in ours - spoken}
        for node, since in self._unspoken.items():
            if now - since > FORGOTTEN_S + (LEAPT_S if world.leapt else 0):
                self.say(f"no incident needs our drain of {node}")

    # --- at the end

    def settle(self) -> None:
        """Plays on while a run is at work, for `SETTLES_S` at most."""
        for _ in range(SETTLES_S // 3):
            if not self._at_work():
                return
            self.world.go_on(3)
            self.tick(self.world)

    def end(self) -> None:
        world = self.world
        shown = world.slurm.snapshot()
        kept = {name for one in shown.reservations.values() if is_our_reservation(one) for name in one.nodes}
        tables = world.store.tables
        for run in self._at_work():
            self.say(f"run {run.id} of {run.playbook} is still {run.state}")
        for run in tables.runs.values():
            if run.state is RunState.stuck and "within healer" in (run.question or ""):
                self.say(f"run {run.id}: {run.question}")
        for slot in tables.slots.values():
            run = tables.runs.get(slot.run)
            back = shown.nodes[slot.node].in_service and slot.node not in kept
            if (run is None or run.state in ENDED_RUN_STATES) and back:
                self.say(
                    f"the slot of {slot.node} is kept by run {slot.run}, which has ended; it is in service"
                )
        left = [job.id for job in shown.jobs.values() if job.name.startswith(SWEEP_JOBS) and job.active]
        if left:
            self.say(f"jobs {left} of sweeps are left")
        self._audited()

    def _at_work(self) -> list[Run]:
        """Runs that neither rest nor wait with a shown reason: a guard, a job that goes on, a test."""
        tables = self.world.store.tables
        shown = {StepEvent.waiting, StepEvent.held}
        logs = (
            (run, tables.log.get(run.id, [])) for run in tables.runs.values() if run.state not in _AT_REST
        )
        return [run for run, log in logs if not run.question and not (log and log[-1].event in shown)]

    def _audited(self) -> None:
        """Each effect has its record: the step's own, or that a person ended the run it belongs to."""
        tables = self.world.store.tables
        audited_runs = {one.data.get("run") for one in tables.audit}
        for run in {one.run for one in self.world.effects if one.verb not in _NOTES}:
            if run not in audited_runs and run not in self.world.people_did:
                self.say(f"run {run} did something, and no audit record names it")
        audited = {(one.data.get("run"), one.data.get("step")) for one in tables.audit}
        for name, log in tables.log.items():
            for entry in log:
                if _effect(entry) and (name, entry.step) not in audited:
                    self.say(f"step {entry.step} of run {name} is done and was not audited")


def _effect(entry: LogEntry) -> bool:
    return entry.event in {StepEvent.done, StepEvent.undone} and "verb" in entry.data


def _rack(node: str) -> int:
    return (int(node[3:]) - 1) // RACK
