"""Runs that people ask for: those asked for at the same time begin in one transaction, over one picture.

Each is judged after the other, and sees what was granted before it (`healer.decisions.gate.after`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from healer.adapters.postgres import audit, gate, inbox
from healer.adapters.postgres.engine import translated
from healer.adapters.postgres.lane import ALONE, Lane
from healer.adapters.postgres.ledger import set_run_state
from healer.adapters.postgres.lines import write_decisions, write_entries, write_runs
from healer.adapters.postgres.run_rows import incident_of, run_of
from healer.adapters.postgres.snapshots import PostgresSnapshots
from healer.adapters.postgres.tables import runs
from healer.decisions import (
    JudgeResult,
    after,
    beginning,
    decision_of,
    first_verb,
    is_untouched,
    judge,
    restart_refused,
    slot_later,
    stands_beside,
    with_restarts,
)
from healer.decisions.sweeps import since_of, sweeping, with_one_more
from healer.model import (
    REMOVING_VERBS,
    AuditRecord,
    Command,
    CommandKind,
    Decision,
    GateFacts,
    Incident,
    LogEntry,
    Outcome,
    Playbook,
    Ruleset,
    Run,
    RunState,
    Slot,
    SlurmJob,
    StepEvent,
)
from healer.playbooks.inputs import InputInvalid, taken
from healer.ports.clock import Clock
from healer.ports.people_commands import RunRequest
from healer.ports.request_errors import Conflict, GuardRefused, Invalid, NotFound
from healer.ports.transactions import Poke

#: A person's run takes over one of these on the same node.
_TAKEN_OVER = ["waiting", "held", "stuck", "proposed", "waiting_approval"]


@dataclass(frozen=True)
class Asked:
    """A request with its playbook, its job as Slurm knows it, and the jobs to be restarted with it."""

    request: RunRequest
    playbook: Playbook
    job: SlurmJob | None
    restart: Mapping[str, int]


class Starts:
    """Begins runs; tells the workers of those that may begin now."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        snapshots: PostgresSnapshots,
        rules: Callable[[], Ruleset],
        clock: Clock,
        poke: Poke,
    ) -> None:
        self._snapshots, self._rules, self._clock, self._poke = snapshots, rules, clock, poke
        self._lane = Lane[Asked](engine, self._work)

    def start(self, asked: Asked) -> Run:
        """The run as it stands then. Raises Conflict, GuardRefused, NotFound, Invalid."""
        try:
            with translated():
                answer: Run | JudgeResult = self._lane.do(asked)
        except IntegrityError as error:
            raise Conflict(_works_on(asked.request.node)) from error
        if isinstance(answer, Run):
            return answer
        assert answer.answer is not None
        raise GuardRefused(answer.answer)  # stored first: only now it may be raised

    def _work(self, conn: sa.Connection, many: Sequence[Asked]) -> Sequence[object]:
        """A run for each, the verdict that refused it, or what was wrong with the request."""
        cluster, seen = many[0].request.cluster, set[str]()
        results: list[object] = []
        with conn.begin():
            facts = gate.lock_gate(conn, cluster, self._snapshots, self._clock.now())
            names = [one.request.id for one in many]
            known = conn.execute(sa.select(runs.c.id, runs.c.doc).where(runs.c.id.in_(names)))
            standing = {row.id: msgspec.convert(row.doc, Run) for row in known}
            batch = _Batch(conn, self._rules(), self._clock, _waiting_on(conn, cluster, many))
            for one in many:
                about = {one.request.id, f"node {one.request.node}", f"job {one.request.job}"}
                mine = about - {"node None", "job None"}
                if one.request.cluster != cluster or seen & mine:
                    results.append(ALONE)
                elif one.request.id in standing:
                    results.append(standing[one.request.id])
                else:
                    seen |= mine
                    result, facts = batch.begin(one, facts)
                    results.append(result)
            batch.store()
        if due := [run.id for run in batch.runs if run.state is RunState.running]:
            self._poke(due)
        return results


class _Batch:
    """What one transaction begins, under the gate's lock."""

    def __init__(
        self, conn: sa.Connection, rules: Ruleset, clock: Clock, waiting: Sequence[tuple[str, Run]]
    ) -> None:
        self._conn, self._rules, self._clock, self._waiting = conn, rules, clock, waiting
        self.runs: list[Run] = []
        self._slots: list[Slot] = []
        self._decisions: list[Decision] = []
        self._records: list[AuditRecord] = []

    def store(self) -> None:
        gate.grant_slots(self._conn, self._slots)
        write_runs(self._conn, self.runs)
        write_decisions(self._conn, self._decisions)
        audit.append_many(self._conn, self._records)

    def begin(self, asked: Asked, facts: GateFacts) -> tuple[object, GateFacts]:
        """The run, the verdict that refuses it or the error, and the facts for the next one."""
        try:
            incident = incident_of(self._conn, asked.request, facts)
            run = run_asked(asked, incident, self._clock.now())
        except (NotFound, Invalid) as error:
            return error, facts
        facts = with_sweeps(self._conn, facts, asked.playbook, self._rules, run.created_at)
        proposal = beginning(run, asked.playbook, incident)
        verdict = restart_refused(run, incident, facts, self._rules, run.created_at) or judge(
            proposal, facts, self._rules, run.created_at
        )
        acts = verdict.outcome is Outcome.act
        if acts and (conflict := self._conflict(run, facts)) is not None:
            return conflict, facts
        self._decisions.append(decision_of(proposal, verdict, run.created_at))
        kept = {} if acts else {"guard": verdict.guard, "why": verdict.why}
        if verdict.outcome is Outcome.refused:
            self._audit(asked.request, "run.refused", kept)
            return verdict, facts
        if not acts:
            run = msgspec.structs.replace(run, state=RunState.held, question=verdict.why)
            self._audit(asked.request, "run.held", kept)
            self.runs.append(run)
            return run, facts
        if not run.beside:
            self._take_over(run)
            free(self._conn, run, facts, self._rules, run.created_at)
        if (slot := slot_for(run, asked.playbook, incident)) is not None:
            self._slots.append(slot)
        self._audit(asked.request, "run.started", kept)
        self.runs.append(run)
        facts = after(facts, proposal, run.id, run.created_at)
        sweeps = asked.playbook.name in sweeping(self._rules)
        return run, with_one_more(facts, run) if sweeps else facts

    def _conflict(self, run: Run, facts: GateFacts) -> Conflict | None:
        """Who works on the node already. The gate's lock is held: nobody else begins meanwhile."""
        if run.beside:
            return self._twice(run)
        other = _working(self._conn, run, facts)
        if other is None or is_untouched(other, self._rules.playbooks.get(other.playbook), facts):
            return None
        return Conflict(_works_on(run.node))

    def _twice(self, run: Run) -> Conflict | None:
        """Runs that stand beside others: of one playbook one at a time on a node."""
        query = sa.select(runs.c.id).where(
            runs.c.cluster == run.cluster,
            runs.c.node == run.node,
            runs.c.playbook == run.playbook,
            runs.c.state == "running",
            ~runs.c.shadow,
        )
        other = self._conn.scalar(query)
        does = f"run {other} does the same on {run.node}: wait for it or cancel it"
        return None if other is None else Conflict(does)

    def _take_over(self, run: Run) -> None:
        """A person's run takes over one that only waits on the same node."""
        for name, other in self._waiting:
            if other.node != run.node:
                continue
            why = f"taken over by {run.by} with {run.playbook} ({run.id})"
            set_run_state(self._conn, name, RunState.done, why=why, at=run.created_at)
            entry = LogEntry(
                run=name,
                at=run.created_at,
                epoch=other.epoch + 1,
                step="taken-over",
                event=StepEvent.skipped,
                text=why,
            )
            write_entries(self._conn, [entry])

    def _audit(self, request: RunRequest, verb: str, data: dict[str, Any]) -> None:
        told = {
            "playbook": request.playbook,
            "node": request.node,
            "job": request.job,
            "reason": request.reason,
            **({"restart": list(request.restart)} if request.restart else {}),
            **data,
        }
        record = AuditRecord(
            cluster=request.cluster,
            at=self._clock.now(),
            actor=request.by,
            verb=verb,
            subject=f"run/{request.id}",
            data=told,
        )
        self._records.append(record)


def with_sweeps(
    conn: sa.Connection, facts: GateFacts, playbook: Playbook, rules: Ruleset, now: datetime
) -> GateFacts:
    """What the guard over sweeps looks at, where this playbook is one; as it is, where it was read before."""
    books = sweeping(rules)
    if playbook.name not in books or facts.sweeps is not None:
        return facts
    known = gate.read_sweeps(conn, facts.cluster, books, since_of(rules, facts.cluster, now))
    return msgspec.structs.replace(facts, sweeps=known)


def run_asked(asked: Asked, incident: Incident | None, now: datetime) -> Run:
    """The run as it would begin now. A job has many names (`4700_3`, `4711+1`): the run has the one by
    which Slurm lists and restarts it, which caps, fences and guards know it by. Raises Invalid."""
    request, playbook, job = asked.request, asked.playbook, asked.job
    run = Run(
        id=request.id,
        cluster=request.cluster,
        playbook=playbook.name,
        state=RunState.running,
        by=request.by,
        reason=request.reason,
        created_at=now,
        node=request.node,
        job=job.id if job else request.job,
        incident=incident.id if incident else None,
        rule=incident.rule if incident else playbook.name,
        beside=stands_beside(playbook),
        input={
            "reason_text": f"{request.by}: {request.reason}",
            "restarts": job.restarts if job else None,
            **_inputs(playbook, request),
        },
    )
    return with_restarts(run, asked.restart, request.by)


def slot_for(run: Run, playbook: Playbook, incident: Incident | None) -> Slot | None:
    """What a run is granted with its begin; None where it takes nothing yet."""
    if first_verb(playbook) not in REMOVING_VERBS or run.node is None or slot_later(playbook):
        return None
    return Slot(
        cluster=run.cluster,
        node=run.node,
        incident=run.incident,
        run=run.id,
        granted_at=run.created_at,
        unusable=incident.unusable if incident else False,
    )


def free(conn: sa.Connection, run: Run, facts: GateFacts, rules: Ruleset, now: datetime) -> None:
    """Ends the run that works on the node if it has only waited until now: a person goes first.

    The gate's lock is held: what has no slot now takes nothing before this commits, and nothing after it.
    """
    other = _working(conn, run, facts)
    if other is None or not is_untouched(other, rules.playbooks.get(other.playbook), facts):
        return
    why = f"taken over by {run.approved_by or run.by} with {run.playbook} ({run.id})"
    set_run_state(conn, other.id, RunState.done, why=why, at=now)
    if other.incident is not None:
        told = Command(
            kind=CommandKind.run_changed,
            cluster=other.cluster,
            at=now,
            by=other.by,
            incident=other.incident,
            reason=why,
            data={"run": other.id, "playbook": other.playbook, "state": "done", "early": True},
        )
        inbox.put_command(conn, told, request=f"{run.id}:over:{other.id}")


def _working(conn: sa.Connection, run: Run, facts: GateFacts) -> Run | None:
    """The other run that works on this run's node."""
    name = facts.running.get(run.node or "")
    return run_of(conn, name) if name is not None and name != run.id else None


def _works_on(node: str | None) -> str:
    return f"another run is working on {node}: wait for it or cancel it"


def _waiting_on(conn: sa.Connection, cluster: str, many: Sequence[Asked]) -> list[tuple[str, Run]]:
    nodes = [one.request.node for one in many if one.request.node is not None]
    rows = conn.execute(
        sa.select(runs.c.id, runs.c.doc).where(
            runs.c.cluster == cluster, runs.c.node.in_(nodes), runs.c.state.in_(_TAKEN_OVER)
        )
    )
    return [(name, msgspec.convert(doc, Run)) for name, doc in rows]


def _inputs(playbook: Playbook, request: RunRequest) -> dict[str, Any]:
    """What the person gave, as the playbook's types say. Raises Invalid, which names the input."""
    if not playbook.inputs and not request.inputs:
        return {}
    try:
        return {"inputs": taken(playbook, request.inputs)}
    except InputInvalid as error:
        raise Invalid(f"inputs.{error.name}", str(error)) from error
