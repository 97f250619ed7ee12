"""A sample cluster for the console: nodes, jobs and a dozen incidents in every state, all from one seed."""

import hashlib
import random
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path

import msgspec

from healer.engine.records import IncidentRecord
from healer.incidents.incident_verdict import verdict_of
from healer.model import (
    Answer,
    AnswerKind,
    AuditRecord,
    Breaker,
    BreakerState,
    Component,
    Decision,
    Evidence,
    Finding,
    Guard,
    Incident,
    LogEntry,
    Outcome,
    Pause,
    Proposal,
    Root,
    Ruleset,
    Run,
    RunState,
    Sense,
    SlurmJob,
    SlurmNode,
    StepEvent,
    Verb,
    VerdictAt,
)
from healer.ports.answers import Note, RunRecord, SentMessage, Standing
from healer.rulebook.ruleset import load


@lru_cache(maxsize=1)
def shipped() -> Ruleset:
    """The rules that ship."""
    return load(Path(__file__).parents[2] / "rules", prove=False)


NOW = datetime(2026, 11, 20, 3, 16, 40, 512000, tzinfo=UTC)
CLUSTER = "pod1"


class Sample(msgspec.Struct, kw_only=True):
    """Everything a fake site serves; tests change it in place."""

    standing: Standing
    details: dict[str, IncidentRecord]
    runs: dict[str, RunRecord]
    records: list[AuditRecord]


def digest(*parts: object) -> str:
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()


def node_name(number: int) -> str:
    return f"gpu{number:04d}"


def milliseconds(count: float) -> timedelta:
    return timedelta(milliseconds=count)


def nodes_of(count: int) -> dict[str, SlurmNode]:
    rng = random.Random(7)
    nodes = {}
    for number in range(1, count + 1):
        rack = (number - 1) // 4
        busy = rng.random() < 0.83
        nodes[node_name(number)] = SlurmNode(
            name=node_name(number),
            state=("ALLOCATED",) if busy else ("IDLE",),
            gpus=8,
            gpu_model="h100",
            driver="580.65.06",
            rack=f"r{rack + 1:03d}",
            switch=f"leaf{rack // 8 + 1:02d}",
            pod=f"su{rack // 32 + 1}",
            partitions=("train",),
            boot_id=digest("boot", number)[:12],
            boot_at=NOW - timedelta(days=12),
        )
    return nodes


def jobs_of(nodes: dict[str, SlurmNode]) -> dict[str, SlurmJob]:
    busy = [name for name, node in nodes.items() if node.base == "ALLOCATED"]
    jobs = {}
    people = ("mara", "jonas", "li", "okafor", "priya")
    for index in range(0, len(busy), 16):
        number = str(4711 + index // 16)
        jobs[number] = SlurmJob(
            id=number,
            state="RUNNING",
            nodes=tuple(busy[index : index + 16]),
            gpus={name: tuple(range(8)) for name in busy[index : index + 16]},
            name=("llm-70b-pretrain", "vit-sweep", "moe-8x22", "eval-suite")[index // 16 % 4],
            user=people[index // 16 % len(people)],
            partition="train",
        )
    return jobs


_GUARDS = (
    (Guard.pause, "No pause applies.", None, None),
    (Guard.mode, "Rule gpu-fatal is in auto mode.", None, None),
    (Guard.breaker, "The circuit breaker is closed.", 1, 5),
    (Guard.stale, "The Slurm snapshot is 0.8 s old.", 0.8, 30),
    (Guard.ownership, "No one else holds gpu0017.", None, None),
    (Guard.protected, "gpu0017 is not protected.", None, None),
    (Guard.maintenance, "No maintenance is planned on gpu0017 now.", None, None),
    (Guard.slots, "2 of 10 slots used.", 2, 10),
    (Guard.rack, "0 of 1 slots in rack r005 (4 nodes) used.", 0, 1),
    (Guard.switch, "1 of 8 slots in switch leaf01 (32 nodes) used.", 1, 8),
    (Guard.partition, "3 of 312 slots in partition train (1250 nodes) used.", 3, 312),
    (Guard.hourly, "2 of 25 hourly slots used.", 2, 25),
    (Guard.floor, "1239 of 1250 nodes in service, capacity floor 1125; 1238 after this.", 1238, 1125),
    (Guard.repeat, "No remedy is repeated.", None, None),
    (Guard.consent, "Job 4711 is requeueable and its node is certainly unusable.", None, None),
)


def answers(against: dict[Guard, Answer] | None = None) -> tuple[Answer, ...]:
    against = against or {}
    asked = [
        against.get(guard, Answer(guard=guard, kind=AnswerKind.allow, why=why, used=used, limit=limit))
        for guard, why, used, limit in _GUARDS
    ]
    known = {answer.guard for answer in asked}
    return (*asked, *(answer for answer in against.values() if answer.guard not in known))


class Story:
    """Collects one incident and what belongs to it."""

    def __init__(
        self, number: int, rule: str, fault: str, node: str, *, minutes_ago: float, **fields: object
    ):
        self.opened = NOW - timedelta(minutes=minutes_ago)
        gpu = fields.pop("gpu", None)
        self.root = Component(
            cluster=CLUSTER, node=node, gpu=gpu, pci="0000:9b:00" if gpu is not None else None
        )
        lines = fields.pop("lines", ())
        self.evidence = tuple(
            Evidence(
                digest=digest(rule, node, number, index),
                at=self.opened - milliseconds(4 - index),
                arrived_at=self.opened + milliseconds(index),
                component=self.root,
                text=text,
                sense=Sense.kernel if line else Sense.slurm,
                line=line,
            )
            for index, (text, line) in enumerate(lines)
        )
        self.incident = Incident(
            id=digest(CLUSTER, rule, node, number),
            cluster=CLUSTER,
            rule=rule,
            fault=fault,
            root=self.root,
            opened=self.opened,
            updated=self.opened,
            settle_until=self.opened + timedelta(seconds=2),
            evidence=self.evidence,
            evidence_count=len(self.evidence),
            **fields,  # type: ignore[arg-type]
        )
        self.decisions: list[Decision] = []
        self.runs: list[RunRecord] = []
        self.notes: list[Note] = []
        self.messages: list[SentMessage] = []
        self.records = [self.record(0.4, "healer", "incident.opened", why=self.incident.title)]
        self.findings: tuple[Finding, ...] = ()
        if self.evidence:
            self.findings = (
                Finding(
                    rule=rule,
                    fault=fault,
                    fault_class=self.incident.fault_class,
                    component=self.root,
                    at=self.opened,
                    arrived_at=self.opened + milliseconds(0.6),
                    text=self.incident.title,
                    confidence=0.99 if self.incident.unusable else 0.9,
                    evidence=self.evidence,
                    unusable=self.incident.unusable,
                ),
            )

    def record(self, ms: float, actor: str, verb: str, **data: object) -> AuditRecord:
        return AuditRecord(
            cluster=CLUSTER,
            at=self.opened + milliseconds(ms),
            actor=actor,
            verb=verb,
            subject=f"incident/{self.incident.id}",
            data=dict(data),
        )

    def decide(
        self, ms: float, outcome: Outcome, why: str, verb: Verb = Verb.drain, **against: Answer
    ) -> None:
        blocked = {answer.guard: answer for answer in against.values()}
        self.decisions.append(
            Decision(
                at=self.opened + milliseconds(ms),
                cluster=CLUSTER,
                incident=self.incident.id,
                playbook="gpu-reset",
                outcome=outcome,
                why=why,
                proposal=Proposal(cluster=CLUSTER, verb=verb, node=self.root.node),
                answers=answers(blocked),
                guard=next(iter(blocked), None),
            )
        )

    def run(
        self, playbook: str, state: RunState, log: list[tuple], *, ms: float = 2004, **fields: object
    ) -> Run:
        run = Run(
            id=f"run-{digest('run', self.incident.id, playbook)[:12]}",
            cluster=CLUSTER,
            playbook=playbook,
            state=state,
            by=str(fields.pop("by", "healer")),
            reason=self.incident.title,
            created_at=self.opened + milliseconds(ms),
            node=self.root.node,
            incident=self.incident.id,
            rule=self.incident.rule,
            **fields,  # type: ignore[arg-type]
        )
        entries = tuple(
            LogEntry(
                run=run.id,
                at=self.opened + milliseconds(at),
                epoch=1,
                step=step,
                event=StepEvent(event),
                text=text,
                attempt=attempt,
                seq=index,
            )
            for index, (at, step, event, text, attempt) in enumerate(log)
        )
        self.runs.append(RunRecord(run=run, log=entries, decisions=()))
        return run

    def detail(self) -> IncidentRecord:
        verdict = verdict_of(self.incident, shipped())
        return IncidentRecord(
            incident=self.incident,
            verdict=verdict,
            verdicts=(VerdictAt(at=self.opened + milliseconds(1), verdict=verdict),),
            findings=self.findings,
            decisions=tuple(self.decisions),
            runs=tuple(self.runs),
            notes=tuple(self.notes),
            records=tuple(self.records),
            messages=tuple(self.messages),
        )


def set_state(
    nodes: dict[str, SlurmNode], number: int, state: tuple[str, ...], reason: str, user: str
) -> None:
    name = node_name(number)
    if name in nodes:
        nodes[name] = msgspec.structs.replace(
            nodes[name], state=state, reason=reason, reason_user=user, reason_at=NOW - timedelta(minutes=4)
        )


def storm(sample: Sample) -> None:
    """Opens the breaker with three roots under one switch, and pauses a rule."""
    roots = tuple(
        Root(
            node=node_name(40 + i),
            rule="nvswitch-fatal",
            at=NOW,
            incident=digest("storm", i),
            switch="leaf02",
        )
        for i in range(3)
    )
    sample.standing = msgspec.structs.replace(
        sample.standing,
        breaker=Breaker(
            cluster=CLUSTER,
            state=BreakerState.open,
            since=NOW - timedelta(minutes=2),
            roots=roots,
            why="3 nodes with nvswitch-fatal in 5 min, limit 3 (all under switch leaf02)",
        ),
        pauses=(
            Pause(
                id="pause-1",
                scope="rule",
                name="nvswitch-degraded",
                by="mara",
                since=NOW - timedelta(hours=3),
                reason="Firmware roll-out on su1, false alarms expected",
                until=NOW + timedelta(hours=2),
            ),
        ),
    )
    sample.records += pause_records()


def pause_records() -> list[AuditRecord]:
    """Two pauses that are over: one was ended, one ended by itself."""

    def record(hours_ago: float, verb: str, number: int, **data: object) -> AuditRecord:
        return AuditRecord(
            cluster=CLUSTER,
            at=NOW - timedelta(hours=hours_ago),
            actor="jonas",
            verb=verb,
            subject=f"pause/past-{number}",
            data=data,
        )

    def pause(number: int, hours_ago: float, **fields: object) -> dict:
        since = NOW - timedelta(hours=hours_ago)
        return {"id": f"past-{number}", "by": "jonas", "since": since.isoformat(), "request": "r", **fields}

    until = (NOW - timedelta(hours=30)).isoformat()
    work = pause(1, 40, scope="all", reason="Power work in row 3", until=until)
    upgrade = pause(2, 9, scope="node", name="gpu0012", reason="<b>BIOS</b> upgrade", cluster=CLUSTER)
    return [
        record(40, "pause.set", 1, **work),
        record(9, "pause.set", 2, **upgrade),
        record(8.5, "pause.ended", 2, reason="upgraded & tested", request="r2"),
    ]
