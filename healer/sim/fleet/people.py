"""The people around healer: technicians who repair, engineers who answer late or find faults themselves.

They use the same commands as the console: approve, reject, cancel, and start playbooks.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import cast

from healer.engine.command import Commands
from healer.engine.command import Site as Managed
from healer.model import Run, RunState
from healer.model.faults import is_of_place
from healer.model.goodput import Spent
from healer.playbooks import takes_restarts
from healer.ports.commanding import RunRequest
from healer.ports.request_errors import Conflict, GuardRefused, Invalid
from healer.ports.scheduling import Scheduler
from healer.sim.fleet.menders import Healer
from healer.sim.fleet.schedule import Fault
from healer.sim.fleet.site import CLUSTER, Record, Site

WHO = "people"
#: Playbooks that people start by hand: for a node that stops or slows the job, and for its return.
BY_HAND, RETURN = "gpu-fatal", "return-to-service"
#: People retry after this many seconds while slurmctld does not answer.
AWAY_AGAIN_S = 60.0
_REPAIRS = frozenset({RunState.waiting})
_ASKS = frozenset({RunState.proposed, RunState.waiting_approval})


class People:
    """Handles, after each turn, whatever newly needs a person."""

    def __init__(self, site: Site, healer: Healer) -> None:
        self.site, self.healer = site, healer
        self._seen: dict[str, RunState] = {}
        self._blocked: str | None = None
        #: Slow nodes that people know of.
        self._reported: set[str] = set()
        self._asked = self._word = 0
        self._answers = site.scenario.people.answer_min * 60
        #: What people did, by kind.
        self.did = Counter[str]()
        self.stuck: list[str] = []
        #: Faults that people found before healer had reported their node.
        self.undiagnosed: set[str] = set()
        healer.on_fault = self._notice
        scheduler = cast(Scheduler, healer.controller)
        managed = Managed(healer.ledger, scheduler, lambda _runs: healer.wake())
        self._commands = Commands({CLUSTER: managed}, lambda: healer.rules, site.clock)

    def look(self) -> None:
        for run in list(self.healer.runs.values()):
            if self._seen.get(run.id) is not run.state:
                self._seen[run.id] = run.state
                self._changed(run)
        self._watch_job()
        self._watch_slow()

    def forget(self, runs: set[str]) -> None:
        """Forgets runs that were removed from the ledger."""
        for name in runs:
            self._seen.pop(name, None)

    def _notice(self, fault: Fault) -> None:
        """People notice even a fault that stops nothing after some time."""
        if (fault.way.hardware or fault.way.slower > 1) and fault.way_name != "unplanned-work":
            self._later(fault.notice_s, lambda: self._if_noticed(fault))

    def _if_noticed(self, fault: Fault) -> None:
        """Slow nodes and wrong numbers show in jobs alone: where none runs, people cannot notice them."""
        way, node = fault.way, fault.node
        running = (job for job in self.site.snapshot().jobs.values() if job.state == "RUNNING")
        if not (way.slower > 1 or way.wrong_numbers) or any(
            node in self.site.workers(job) for job in running
        ):
            self._by_hand(fault)
        elif fault in self.site.active.get(node, ()):
            self._later(fault.notice_s, lambda: self._if_noticed(fault))

    # --- runs that wait for a person ---

    def _changed(self, run: Run) -> None:
        if run.state is RunState.waiting and run.node is None and run.question:
            self._later(self._answers, lambda: self._approve_step(run.id))
        elif run.state in _REPAIRS and run.node:
            self._later(self._repair_s(run), lambda: self._repair(run))
        elif run.state in _ASKS:
            self._later(self._answers, lambda: self._approve(run.id))
        elif run.state is RunState.stuck:
            self.stuck.append(f"{run.playbook} on {run.node or run.job}: {run.question}")
            self._later(self._answers, lambda: self._cancel(run.id))

    def _repair_s(self, run: Run) -> float:
        """Seconds that people need: the repair of a broken node, or a look at one that is not."""
        faults = self.site.active.get(run.node or "", ())
        hardware = [fault.repair_s for fault in faults if fault.way.hardware]
        again = "did not take" in self.site.nodes.faults(run.node or "")
        last = [
            record.fault.repair_s for record in self.site.records.values() if record.fault.node == run.node
        ]
        return max(hardware, default=last[-1] if again and last else self._answers)

    def _repair(self, run: Run) -> None:
        current = self.healer.runs.get(run.id)
        if current is None or current.state is not RunState.waiting or run.node is None:
            return
        self.did["repairs"] += 1
        if "did not take" in self.site.nodes.faults(run.node):
            self.site.mend_found(run.node)
        else:
            self.site.mend(run.node)
        self.healer.hush(run.node)
        self._ask(RETURN, run.node)

    def _approve(self, name: str, *, restarts: bool = True) -> None:
        """Approves a run with a real cause, else rejects it. `restarts`: agree to restart jobs that it waits
        for."""
        run = self.healer.runs.get(name)
        if run is None or run.state not in _ASKS:
            return
        if not self._is_right(run):
            self.did["rejections"] += 1
            self._end(run, RunState.rejected)
            return
        named = self._stopped_jobs(run) if restarts else ()
        # A restart that is refused is not insisted on; another run on the node is waited for.
        self._say_yes(run, named, lambda refused: self._approve(name, restarts=restarts and not refused))

    def _is_right(self, run: Run) -> bool:
        """Whether the node has a fault or Slurm took it out of service, or the job of the run is stalled."""
        if run.node is None:
            return run.job == self.site.job and self.site.work.doing is Spent.hung
        shown = self.site.snapshot().nodes.get(run.node)
        return bool(self.site.active.get(run.node)) or (shown is not None and shown.held)

    def _say_yes(self, run: Run, restart: Sequence[str], again: Callable[[bool], None]) -> None:
        """Approves; if refused, calls `again` later: True if a guard or Slurm refused, False on a
        conflict."""
        self._word += 1
        request = f"approval-{self._word}"
        try:
            self._commands.approve(run.id, by=WHO, reason="looked at", request=request, restart=restart)
        except (GuardRefused, Conflict, Invalid) as error:
            refused = not isinstance(error, Conflict)
            self._later(AWAY_AGAIN_S, lambda: again(refused))
        else:
            self.did["approvals"] += 1
            if restart:
                self.did["restarts agreed to"] += 1
        self.healer.wake()

    def _stopped_jobs(self, run: Run) -> tuple[str, ...]:
        """The large job if the run would wait for it although the fault of its node has stopped it: the
        approval then includes its restart."""
        job = self.site.snapshot().jobs[self.site.job]
        faults = self.site.active.get(run.node or "", ())
        offered = takes_restarts(self.healer.rules.playbooks[run.playbook])
        if (
            not offered
            or run.node not in self.site.workers(job)
            or not any(fault.way.stops for fault in faults)
        ):
            return ()
        return (job.id,)

    def _approve_step(self, name: str) -> None:
        """Answers a run on a job that asks before it continues."""
        run = self.healer.runs.get(name)
        if run is None or run.state is not RunState.waiting:
            return
        if not self._is_right(run):
            self.did["rejections"] += 1
            self._end(run, RunState.cancelled)
            return
        self._say_yes(run, (), lambda _: self._approve_step(name))

    def _cancel(self, name: str) -> None:
        """Gives up a stuck run; its node is repaired by hand."""
        run = self.healer.runs.get(name)
        if run is None or run.state is not RunState.stuck:
            return
        self.did["stuck runs"] += 1
        self._end(run, RunState.cancelled)
        if run.node and self.site.slurm.node(run.node).held:
            self._later(self._repair_s(run), lambda: self._give_back(run.node or ""))

    def _give_back(self, node: str) -> None:
        self.site.mend(node)
        self.site.mend_found(node)
        self._ask(RETURN, node)

    def _end(self, run: Run, state: RunState) -> None:
        self._word += 1
        end = self._commands.reject if state is RunState.rejected else self._commands.cancel
        end(run.id, by=WHO, reason="looked at", request=f"end-{self._word}")
        self.healer.wake()

    def _ask(self, playbook: str, node: str) -> None:
        self._asked += 1
        self._start(playbook, node, f"{self._asked:06d}-{WHO}")

    def _start(self, playbook: str, node: str, name: str) -> None:
        """What a guard refuses, or another run on the node keeps from it, is asked for again later."""
        request = RunRequest(id=name, playbook=playbook, cluster=CLUSTER, by=WHO, reason="by hand", node=node)
        try:
            self._commands.start(request)
        except (GuardRefused, Conflict):
            self._later(AWAY_AGAIN_S, lambda: self._start_if_wanted(playbook, node, name))
        self.healer.wake()

    def _start_if_wanted(self, playbook: str, node: str, name: str) -> None:
        """A return while the node is out; a drain while it is in service with its fault."""
        is_out = self.site.slurm.node(node).held
        if is_out if playbook == RETURN else not is_out and self.site.active.get(node):
            self._start(playbook, node, name)

    # --- faults that healer does not act on ---

    def _watch_job(self) -> None:
        """People see a stalled job: soon if healer has reported its node, later if they have to search."""
        fault = self.site.blocking() if self.site.work.doing is Spent.hung else None
        if fault is None or fault.id == self._blocked:
            return
        self._blocked = fault.id
        if fault.way.hardware:
            self.site.agenda.at(self.site.later(fault.answer_s), lambda: self._if_reported(fault))
            self.site.agenda.at(self.site.later(fault.find_s), lambda: self._by_hand(fault))

    def _watch_slow(self) -> None:
        """People answer a report of a node that slows the job as they answer any that names a node."""
        for fault in (fault for faults in self.site.active.values() for fault in faults):
            is_reported = self.site.records[fault.id].found_at is not None
            if fault.way.slower > 1 and is_reported and fault.id not in self._reported:
                self._reported.add(fault.id)
                self._later(fault.answer_s, lambda fault=fault: self._by_hand(fault))

    def _if_reported(self, fault: Fault) -> None:
        record = self._open_record(fault)
        if record is None:
            return
        if record.found_at is None:
            self.site.agenda.at(self.site.later(60), lambda: self._if_reported(fault))
        elif (self.site.now - record.found_at).total_seconds() >= fault.answer_s:
            self._by_hand(fault)
        else:
            rest = fault.answer_s - (self.site.now - record.found_at).total_seconds()
            # Never at this same moment again: what is left may be less than a microsecond.
            self.site.agenda.at(self.site.later(rest + 1), lambda: self._if_reported(fault))

    def _open_record(self, fault: Fault) -> Record | None:
        """The fault's record while it is there and its node in service; None otherwise."""
        held = fault in self.site.active.get(fault.node, ())
        record = self.site.records[fault.id]
        return record if held and record.out_at is None and not record.by_hand else None

    def _by_hand(self, fault: Fault) -> None:
        record = self._open_record(fault)
        if record is None:
            return
        if self.healer.controller.away or self._is_of_place(fault.node):
            self._later(AWAY_AGAIN_S, lambda: self._by_hand(fault))
            return
        record.by_hand = True
        if record.found_at is None:
            self.undiagnosed.add(fault.id)
        self.did["taken out by hand"] += 1
        self._ask(BY_HAND, fault.node)
        self._later(self._answers, lambda: self._past_healer(fault))

    def _is_of_place(self, node: str) -> bool:
        """People who read that a switch or a rack is at fault take none of its nodes out."""
        incidents = self.healer.incidents.values()
        places = (incident for incident in incidents if incident.is_open and is_of_place(incident.fault))
        return any(part.node == node for place in places for part in place.affected)

    def _past_healer(self, fault: Fault) -> None:
        """Drains in Slurm directly where a guard still holds the run that a person started."""
        record = self.site.records[fault.id]
        if fault not in self.site.active.get(fault.node, ()) or record.out_at is not None:
            return
        if self.healer.controller.away:
            self._later(AWAY_AGAIN_S, lambda: self._past_healer(fault))
            return
        self.did["taken out past healer"] += 1
        self.site.slurm.person_drain(fault.node, "broken, taken out by hand", WHO)
        if self.site.blocking() is not None:
            self.site.slurm.requeue(self.site.job)
            self.site.slurm.start_now(self.site.job)
        self._later(fault.repair_s, lambda: self._after_person(fault.node))
        self.healer.wake()

    def _after_person(self, node: str) -> None:
        self.site.mend(node)
        self.site.mend_found(node)
        self.site.slurm.resume(node)
        self.healer.wake()

    def _later(self, seconds: float, do: Callable[[], None]) -> datetime:
        moment = self.site.later(seconds)
        self.site.agenda.at(moment, do)
        return moment
