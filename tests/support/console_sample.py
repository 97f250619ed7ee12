"""A sample cluster for the console: nodes, jobs and a dozen incidents in every state, all from one seed."""

import hashlib
import random
from datetime import UTC, datetime, timedelta

import msgspec

from healer.console.reads import IncidentDetail, Note, RunDetail, SentMessage, Standing
from healer.model import (
    Answer,
    AnswerKind,
    AuditRecord,
    Breaker,
    BreakerState,
    Cause,
    Component,
    Decision,
    Evidence,
    FaultClass,
    Finding,
    Guard,
    Incident,
    IncidentState,
    LogEntry,
    Message,
    Mode,
    Outcome,
    Pause,
    Proposal,
    Remedy,
    Review,
    Root,
    Run,
    RunState,
    Severity,
    SlurmJob,
    SlurmNode,
    StepEvent,
    Verb,
    Verdict,
)

NOW = datetime(2026, 11, 20, 3, 16, 40, 512000, tzinfo=UTC)
CLUSTER = "pod1"


class Sample(msgspec.Struct, kw_only=True):
    """Everything a fake site serves; tests change it in place."""

    standing: Standing
    details: dict[str, IncidentDetail]
    runs: dict[str, RunDetail]
    records: list[AuditRecord]


def digest(*parts: object) -> str:
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()


def node_name(number: int) -> str:
    return f"gpu{number:04d}"


def _ms(milliseconds: float) -> timedelta:
    return timedelta(milliseconds=milliseconds)


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
    (Guard.pause, "Nothing is paused here.", None, None),
    (Guard.mode, "Rule is in mode auto.", None, None),
    (Guard.breaker, "Breaker is closed: 1 root in 5 min, opens at 5.", 1, 5),
    (Guard.stale, "Slurm was read 0.8 s ago; 30 s is the bound.", 0.8, 30),
    (Guard.ownership, "No person's drain, no veto.", None, None),
    (Guard.protected, "Not on the protected list.", None, None),
    (Guard.maintenance, "No planned work here.", None, None),
    (Guard.slots, "2 slots held, 10 allowed at once.", 2, 10),
    (Guard.rack, "0 nodes out in rack r005, 1 allowed.", 0, 1),
    (Guard.switch, "1 node out under leaf01, 8 allowed.", 1, 8),
    (Guard.partition, "3 nodes out in partition train, 312 allowed.", 3, 312),
    (Guard.hourly, "2 slots granted in the last hour, 25 allowed.", 2, 25),
    (Guard.floor, "1,238 nodes would stay in service; 1,125 must.", 1238, 1125),
    (Guard.repeat, "No drain of this node in the last 6 h.", None, None),
    (Guard.consent, "Surely unusable: its jobs may be requeued.", None, None),
)


def answers(against: dict[Guard, Answer] | None = None) -> tuple[Answer, ...]:
    against = against or {}
    return tuple(
        against.get(guard, Answer(guard=guard, kind=AnswerKind.allow, why=why, used=used, limit=limit))
        for guard, why, used, limit in _GUARDS
    )


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
                at=self.opened - _ms(4 - index),
                arrived_at=self.opened + _ms(index),
                component=self.root,
                text=text,
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
        self.runs: list[RunDetail] = []
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
                    arrived_at=self.opened + _ms(0.6),
                    text=self.incident.title,
                    confidence=0.99 if self.incident.unusable else 0.9,
                    evidence=self.evidence,
                    unusable=self.incident.unusable,
                ),
            )

    def record(self, ms: float, actor: str, verb: str, **data: object) -> AuditRecord:
        return AuditRecord(
            cluster=CLUSTER,
            at=self.opened + _ms(ms),
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
                at=self.opened + _ms(ms),
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
            created_at=self.opened + _ms(ms),
            node=self.root.node,
            incident=self.incident.id,
            rule=self.incident.rule,
            **fields,  # type: ignore[arg-type]
        )
        entries = tuple(
            LogEntry(
                run=run.id, at=self.opened + _ms(at), epoch=1, step=step, event=StepEvent(event), text=text,
                attempt=attempt, seq=index,
            )
            for index, (at, step, event, text, attempt) in enumerate(log)
        )  # fmt: skip
        self.runs.append(RunDetail(run=run, log=entries, decisions=()))
        return run

    def detail(self) -> IncidentDetail:
        return IncidentDetail(
            incident=self.incident,
            findings=self.findings,
            decisions=tuple(self.decisions),
            runs=tuple(self.runs),
            notes=tuple(self.notes),
            records=tuple(self.records),
            messages=tuple(self.messages),
        )


XID79 = (
    "Xid 79, GPU has fallen off the bus",
    "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
)
XID154 = (
    "Xid 154, driver asks: GPU reset required",
    "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
)
XID94 = (
    "Xid 94, contained ECC error",
    "NVRM: Xid (PCI:0000:9b:00): 94, pid=212345, name=python3, Contained: SM (0x1). RST: No, D-RST: No",
)
XID31 = (
    "Xid 31, MMU fault",
    "NVRM: Xid (PCI:0000:9b:00): 31, pid=88121, name=<script>alert(1)</script>, Ch 00000008, MMU Fault: ENGINE "
    "GRAPHICS GPC0 GPCCLIENT_T1_0 faulted @ 0x7f21_4a000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
)


def _drained(story: Story, jobs: tuple[str, ...]) -> None:
    story.decide(2003.1, Outcome.act, "All guards allow. Smallest remedy that can work: drain, then reset.")
    log = [
        (2004, "drain", "started", "", 1),
        (2016, "drain", "done", "Reason read back from Slurm.", 1),
        (2021, "list-jobs", "done", f"{len(jobs)} job hit: {', '.join(jobs)}", 1),
    ]
    for job in jobs:
        log += [
            (2024, f"requeue:{job}", "started", "", 1),
            (2410, f"requeue:{job}", "done", "Asked to start at once; pending, restart count 1.", 1),
        ]
    log += [
        (2415, "wait-drained", "waiting", "Until Slurm shows no job on the node.", 1),
        (9300, "wait-drained", "done", "", 1),
        (9312, "reset", "started", "nvidia-smi --gpu-reset -i 3", 1),
    ]
    story.run("drain-reset-verify", RunState.running, log)
    story.records += [
        story.record(2016, "healer", "node.drained", why="healer:gpu-lost"),
        story.record(74000, "mara", "incident.acknowledged"),
    ]
    story.notes.append(Note(at=story.opened + timedelta(seconds=95), by="mara", text="Second time this month; "
                            "serial 1653222000123. If the reset fails, open an RMA."))  # fmt: skip
    story.messages.append(
        SentMessage(
            at=story.opened + _ms(2050),
            kind="notify",
            state="sent",
            message=Message(id="m1", cluster=CLUSTER, title="gpu0017: GPU 3 has fallen off the bus", text="",
                            severity=Severity.P1, page=True),
        )
    )  # fmt: skip


def stories(jobs: tuple[str, ...]) -> list[Story]:
    told: list[Story] = []

    lost = Story(
        1, "gpu-lost", "xid-79", node_name(17), minutes_ago=4.2, gpu=3, lines=(XID79, XID154),
        fault_class=FaultClass.fatal, title="GPU has fallen off the bus", state=IncidentState.mitigating,
        severity=Severity.P1, cause=Cause.permanent, remedy=(Remedy.drain_then_reset, Remedy.ticket),
        nodes={node_name(17): Verdict.isolate}, jobs_hit=jobs, jobs_hit_final=True, unusable=True,
        acknowledged_by="mara", counted={"xid-45": 126},
    )  # fmt: skip
    _drained(lost, jobs)
    told.append(lost)

    floor = Answer(guard=Guard.floor, kind=AnswerKind.hold, used=27, limit=28,
                   why="27 nodes would stay in service; 28 must (90 % of 32).")  # fmt: skip
    bad = Story(
        2, "gpu-remap-failed", "xid-64", node_name(9), minutes_ago=22, gpu=6,
        lines=(("Xid 64, row remapping failed", "NVRM: Xid (PCI:0000:9b:00): 64, pid=1712, name=python3, "
                "Row Remapper: Failed to remap row"),),
        fault_class=FaultClass.fatal, title="Row remapping failed", severity=Severity.P0, cause=Cause.permanent,
        remedy=(Remedy.drain_then_reset,), nodes={node_name(9): Verdict.isolate}, jobs_hit=("4712",),
        unusable=True, known_bad_in_service=True,
    )  # fmt: skip
    bad.decide(2002, Outcome.held, "The floor of service would be broken.", floor=floor)
    bad.run("drain-reset-verify", RunState.held, [(2003, "drain", "held", floor.why, 1)])
    bad.messages.append(
        SentMessage(at=bad.opened + _ms(2040), kind="notify", state="listed",
                    message=Message(id="m2", cluster=CLUSTER, title="gpu0009 is known bad and in service", text="",
                                    severity=Severity.P0, page=True))
    )  # fmt: skip
    told.append(bad)

    switch = Story(
        3, "nvswitch-fatal", "sxid-20034", node_name(5), minutes_ago=11,
        lines=(("SXid 20034, LTSSM fault up", "nvidia-nvswitch2: SXid (PCI:0000:87:00.0): 20034, Fatal, Link 30 "
                "LTSSM Fault Up"),),
        fault_class=FaultClass.fatal, title="NVSwitch link lost", severity=Severity.P1, cause=Cause.fabric,
        remedy=(Remedy.reboot_node,), nodes={node_name(5): Verdict.isolate}, jobs_hit=(jobs[0],),
    )  # fmt: skip
    switch.decide(2002, Outcome.held, "Rule nvswitch-fatal is in mode approve.", approval=Answer(
        guard=Guard.approval, kind=AnswerKind.hold, why="A person must approve: rule nvswitch-fatal is in mode "
        "approve."))  # fmt: skip
    switch.run("drain-reboot-verify", RunState.waiting_approval, [], mode=Mode.approve,
               approve_until=NOW + timedelta(minutes=19))  # fmt: skip
    told.append(switch)

    slots = Answer(guard=Guard.slots, kind=AnswerKind.hold, why="10 slots held, 10 allowed at once.", used=10,
                   limit=10, frees_at=NOW + timedelta(minutes=8))  # fmt: skip
    held = Story(
        4, "driver-asks", "driver-asks-reset", node_name(12), minutes_ago=7, gpu=0, lines=(XID154,),
        fault_class=FaultClass.degraded, title="The driver asks for a GPU reset", severity=Severity.P2,
        cause=Cause.transient, remedy=(Remedy.reset_gpu_when_idle,), nodes={node_name(12): Verdict.suspect},
    )  # fmt: skip
    held.decide(2002, Outcome.held, "No slot is free.", slots=slots)
    held.run("drain-reset-verify", RunState.held, [(2003, "drain", "held", slots.why, 1)])
    told.append(held)

    stuck = Story(
        5, "gpu-fatal", "xid-95", node_name(20), minutes_ago=48, gpu=1,
        lines=(("Xid 95, uncontained ECC error", "NVRM: Xid (PCI:0000:9b:00): 95, Uncontained: LTC TAG (0x2,0x0)"),),
        fault_class=FaultClass.fatal, title="Uncontained ECC error", severity=Severity.P1, cause=Cause.permanent,
        state=IncidentState.mitigating, nodes={node_name(20): Verdict.isolate}, remedy=(Remedy.drain_then_reset,),
        jobs_hit=("4713",), jobs_hit_final=True,
    )  # fmt: skip
    stuck.decide(2002, Outcome.act, "All guards allow.")
    stuck.run(
        "drain-reset-verify",
        RunState.stuck,
        [
            (2004, "drain", "started", "", 1),
            (2019, "drain", "done", "Reason read back from Slurm.", 1),
            (3100, "reset", "started", "", 1),
            (63100, "reset", "failed", "No answer from the node within 60 s.", 1),
            (64100, "reset", "started", "", 2),
            (124100, "reset", "failed", "No answer from the node within 60 s.", 2),
        ],
        question="The reset of GPU 1 did not answer twice. Try again, or cancel and repair by hand?",
    )
    told.append(stuck)

    person = Story(
        6, "person-drain", "person-drain", node_name(26), minutes_ago=60 * 29, lines=(),
        fault_class=FaultClass.informational, title="Drained by a person", severity=Severity.P3,
        cause=Cause.maintenance, owner="jonas", owner_since=NOW - timedelta(hours=29),
        nodes={node_name(26): Verdict.watch},
    )  # fmt: skip
    told.append(person)

    slurm = Story(
        7, "slurm-drain", "slurm-drain:kill-task-failed", node_name(30), minutes_ago=33, lines=(
            ("Slurm drained the node: Kill task failed", ""),),
        fault_class=FaultClass.degraded, title="Slurm drained the node: Kill task failed",
        severity=Severity.P2, cause=Cause.transient, state=IncidentState.verifying,
        nodes={node_name(30): Verdict.suspect},
    )  # fmt: skip
    told.append(slurm)

    suggest = Story(
        8, "gpu-degraded", "xid-94", node_name(23), minutes_ago=16, gpu=4, lines=(XID94,),
        fault_class=FaultClass.degraded, title="Contained ECC error", severity=Severity.P2, cause=Cause.transient,
        remedy=(Remedy.reset_gpu_when_idle,), nodes={node_name(23): Verdict.suspect}, jobs_hit=("4711",),
    )  # fmt: skip
    suggest.decide(
        2002,
        Outcome.held,
        "Rule gpu-degraded is in mode suggest.",
        mode=Answer(
            guard=Guard.mode,
            kind=AnswerKind.hold,
            why="Rule gpu-degraded is in mode suggest: a person starts it.",
        ),
    )
    suggest.run("drain-reset-verify", RunState.proposed, [], mode=Mode.suggest)
    told.append(suggest)

    silent = Story(
        9, "node-silent", "node-silent", node_name(2), minutes_ago=1.5, lines=(
            ("No heartbeat for 34 s; the sender kept 10 s", ""),),
        fault_class=FaultClass.unknown, title="Node does not answer", severity=Severity.P2,
        nodes={node_name(2): Verdict.watch},
    )  # fmt: skip
    silent.decide(2002, Outcome.nothing, "Slurm still hears the node: nothing is done.")
    told.append(silent)

    app = Story(
        10, "gpu-application", "xid-31", node_name(8), minutes_ago=130, gpu=2, lines=(XID31,),
        fault_class=FaultClass.application, title="MMU fault in a job's own process", severity=Severity.P3,
        cause=Cause.application, state=IncidentState.resolved, closed=NOW - timedelta(minutes=99),
        closed_why="The job's own fault; nothing is wrong with the node.", jobs_hit=("4690",),
    )  # fmt: skip
    app.decide(2001, Outcome.nothing, "The fault is the application's: no remedy on the node.")
    told.append(app)

    healed = Story(
        11, "gpu-fatal", "xid-119", node_name(14), minutes_ago=60 * 7, gpu=5,
        lines=(("Xid 119, GSP RPC timeout", "NVRM: Xid (PCI:0000:9b:00): 119, pid=1, name=systemd, Timeout after 45s "
                "of waiting for RPC response from GPU5 GSP!"),),
        fault_class=FaultClass.fatal, title="GSP does not answer", severity=Severity.P1, cause=Cause.transient,
        state=IncidentState.resolved, closed=NOW - timedelta(hours=6.6), closed_why="Reset, verified, returned.",
        review=Review.true_fault, review_cause="GSP hang", jobs_hit=("4655",), jobs_hit_final=True,
        remedy=(Remedy.drain_then_reset,),
    )  # fmt: skip
    healed.decide(2002, Outcome.act, "All guards allow.")
    healed.run(
        "drain-reset-verify",
        RunState.done,
        [
            (2004, "drain", "started", "", 1),
            (2014, "drain", "done", "Reason read back from Slurm.", 1),
            (2020, "reset", "started", "", 1),
            (18040, "reset", "done", "8 GPUs, no pending remap.", 1),
            (18050, "verify", "started", "dcgmi diag -r 2", 1),
            (128050, "verify", "done", "All tests pass.", 1),
            (128060, "resume", "started", "", 1),
            (128072, "resume", "done", "In service again; watched until 20:16.", 1),
        ],
    )
    told.append(healed)

    alarm = Story(
        12, "gpu-degraded", "xid-94", node_name(3), minutes_ago=60 * 20, gpu=7, lines=(XID94,),
        fault_class=FaultClass.degraded, title="Contained ECC error", severity=Severity.P3,
        state=IncidentState.resolved, closed=NOW - timedelta(hours=19), closed_why="Resolved by mara.",
        review=Review.false_alarm, review_cause="Test injection",
    )  # fmt: skip
    told.append(alarm)

    shadow = Story(
        13, "nvswitch-degraded", "sxid-12028", node_name(28), minutes_ago=75, lines=(
            ("SXid 12028, egress non-posted PRIV error", "nvidia-nvswitch0: SXid (PCI:0000:85:00.0): 12028, Non-fatal, "
             "Link 31 egress non-posted PRIV error"),),
        fault_class=FaultClass.degraded, title="NVSwitch reports a non-fatal error", severity=Severity.P3,
        cause=Cause.fabric, nodes={node_name(28): Verdict.watch},
    )  # fmt: skip
    shadow.decide(2002, Outcome.act, "All guards allow. Mode shadow: nothing is touched.")
    shadow.run("drain-reboot-verify", RunState.running, [(2004, "drain", "done", "Would drain gpu0028.", 1)],
               mode=Mode.shadow, shadow=True)  # fmt: skip
    told.append(shadow)
    return told


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
        breaker=Breaker(cluster=CLUSTER, state=BreakerState.open, since=NOW - timedelta(minutes=2), roots=roots,
                        why="3 roots by nvswitch-fatal in 5 min, all under leaf02"),
        pauses=(
            Pause(id="pause-1", scope="rule", name="nvswitch-degraded", by="mara", since=NOW - timedelta(hours=3),
                  reason="Firmware roll-out on su1, false alarms expected", until=NOW + timedelta(hours=2)),
        ),
    )  # fmt: skip


def history(count: int) -> list[IncidentDetail]:
    """Resolved incidents of the past, to fill pages."""
    rng = random.Random(11)
    rules = (
        ("gpu-application", "xid-13", "Graphics engine exception"),
        ("gpu-degraded", "xid-63", "Row remapped"),
    )
    found = []
    for number in range(count):
        rule, fault, title = rng.choice(rules)
        story = Story(
            1000 + number, rule, fault, node_name(rng.randint(1, 32)), minutes_ago=60 * 24 + number * 37,
            gpu=rng.randint(0, 7), fault_class=FaultClass.application, title=title, severity=Severity.P3,
            state=IncidentState.resolved, closed=NOW - timedelta(hours=23), closed_why="Nothing to do.",
        )  # fmt: skip
        found.append(story.detail())
    return found
