"""A dozen incidents in every state, each with its decisions, runs, notes and messages."""

from datetime import timedelta

from healer.model import (
    Answer,
    AnswerKind,
    Cause,
    FaultClass,
    Guard,
    HitBasis,
    IncidentState,
    JobHit,
    Message,
    Mode,
    Outcome,
    Remedy,
    Review,
    RuledOut,
    RunState,
    Severity,
    Verdict,
)
from healer.ports.answers import SentMessage
from tests.support.console_blocks import XID31, XID79, XID94, XID154, drained
from tests.support.console_sample import CLUSTER, NOW, Story, milliseconds, node_name


def stories(jobs: tuple[str, ...]) -> list[Story]:
    collected: list[Story] = []

    lost = Story(
        1,
        "gpu-lost",
        "xid-79",
        node_name(17),
        minutes_ago=4.2,
        gpu=3,
        lines=(XID79, XID154),
        fault_class=FaultClass.fatal,
        title="Xid 79: GPU fell off the bus",
        state=IncidentState.mitigating,
        severity=Severity.P1,
        cause=Cause.permanent,
        remedy=(Remedy.drain_then_reset, Remedy.ticket),
        nodes={node_name(17): Verdict.isolate},
        jobs_hit=jobs,
        jobs_hit_final=True,
        unusable=True,
        acknowledged_by="mara",
        counted={"xid-45": 126},
        confidence=1.0,
        set_aside=(RuledOut(at=NOW, what="Node does not respond", why="the node reports again"),),
        hit=tuple(
            JobHit(
                job=job,
                user="mara",
                gpus=128,
                nodes=16,
                basis=HitBasis.checkpoint,
                started_at=NOW - timedelta(hours=20),
                since=NOW - timedelta(minutes=34),
                ended_at=NOW - timedelta(minutes=4),
                lost_gpu_hours=64.0,
            )
            for job in jobs
        ),
    )
    drained(lost, jobs)
    collected.append(lost)

    floor = Answer(
        guard=Guard.floor,
        kind=AnswerKind.hold,
        used=28,
        limit=28,
        why="28 of 32 nodes in service, capacity floor 28: gpu0009 must stay.",
    )
    bad = Story(
        2,
        "gpu-remap-failed",
        "xid-64",
        node_name(9),
        minutes_ago=22,
        gpu=6,
        lines=(
            (
                "Xid 64: Row remap (or page retirement) could not be recorded",
                "NVRM: Xid (PCI:0000:9b:00): 64, pid=1712, name=python3, Row Remapper: Failed to remap row",
            ),
        ),
        fault_class=FaultClass.fatal,
        title="Xid 64: Row remap (or page retirement) could not be recorded",
        severity=Severity.P0,
        cause=Cause.permanent,
        remedy=(Remedy.drain_then_reset,),
        nodes={node_name(9): Verdict.isolate},
        jobs_hit=("4712",),
        unusable=True,
        known_bad_in_service=True,
    )
    bad.decide(2002, Outcome.held, floor.why, floor=floor)
    bad.run("drain-reset-verify", RunState.held, [(2003, "drain", "held", floor.why, 1)])
    bad.messages.append(
        SentMessage(
            at=bad.opened + milliseconds(2040),
            kind="notify",
            state="listed",
            message=Message(
                id="m2",
                cluster=CLUSTER,
                title="gpu0009: known bad and in service",
                text="",
                severity=Severity.P0,
                page=True,
            ),
        )
    )
    collected.append(bad)

    switch = Story(
        3,
        "nvswitch-fatal",
        "sxid-20034",
        node_name(5),
        minutes_ago=11,
        lines=(
            (
                "SXid 20034: NVLink DL/PL: ltssm fault up",
                "nvidia-nvswitch2: SXid (PCI:0000:87:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            ),
        ),
        fault_class=FaultClass.fatal,
        title="SXid 20034: NVLink DL/PL: ltssm fault up",
        severity=Severity.P1,
        cause=Cause.fabric,
        remedy=(Remedy.reboot_node,),
        nodes={node_name(5): Verdict.isolate},
        jobs_hit=(jobs[0],),
    )
    switch.decide(
        2002,
        Outcome.held,
        "Rule nvswitch-fatal is in approve mode.",
        approval=Answer(
            guard=Guard.approval,
            kind=AnswerKind.hold,
            why="Rule nvswitch-fatal is in approve mode.",
        ),
    )
    switch.run(
        "drain-reboot-verify",
        RunState.waiting_approval,
        [],
        mode=Mode.approve,
        approve_until=NOW + timedelta(minutes=19),
    )
    collected.append(switch)

    slots = Answer(
        guard=Guard.slots,
        kind=AnswerKind.hold,
        why="10 of 10 slots used.",
        used=10,
        limit=10,
        frees_at=NOW + timedelta(minutes=8),
    )
    held = Story(
        4,
        "driver-asks",
        "driver-asks-reset",
        node_name(12),
        minutes_ago=7,
        gpu=0,
        lines=(XID154,),
        fault_class=FaultClass.degraded,
        title="Xid 154: the driver asks for a GPU reset",
        severity=Severity.P2,
        cause=Cause.transient,
        remedy=(Remedy.reset_gpu_when_idle,),
        nodes={node_name(12): Verdict.suspect},
    )
    held.decide(2002, Outcome.held, slots.why, slots=slots)
    held.run("drain-reset-verify", RunState.held, [(2003, "drain", "held", slots.why, 1)])
    collected.append(held)

    stuck = Story(
        5,
        "gpu-fatal",
        "xid-95",
        node_name(20),
        minutes_ago=48,
        gpu=1,
        lines=(
            (
                "Xid 95: Uncontained memory error: all jobs on the GPU are affected",
                "NVRM: Xid (PCI:0000:9b:00): 95, Uncontained: LTC TAG (0x2,0x0)",
            ),
        ),
        fault_class=FaultClass.fatal,
        title="Xid 95: Uncontained memory error: all jobs on the GPU are affected",
        severity=Severity.P1,
        cause=Cause.permanent,
        state=IncidentState.mitigating,
        nodes={node_name(20): Verdict.isolate},
        remedy=(Remedy.drain_then_reset,),
        jobs_hit=("4713",),
        jobs_hit_final=True,
    )
    stuck.decide(2002, Outcome.act, "Every guard allows it.")
    stuck.run(
        "drain-reset-verify",
        RunState.stuck,
        [
            (2004, "drain", "started", "", 1),
            (2019, "drain", "done", "Drained: healer:gpu-fatal", 1),
            (3100, "reset", "started", "", 1),
            (63100, "reset", "failed", "The connection to gpu0020 was lost: ssh gave no reason", 1),
            (64100, "reset", "started", "", 2),
            (124100, "reset", "failed", "The connection to gpu0020 was lost: ssh gave no reason", 2),
        ],
        question="The connection to gpu0020 was lost: ssh gave no reason",
    )
    collected.append(stuck)

    person = Story(
        6,
        "person-drain",
        "person-drain",
        node_name(26),
        minutes_ago=60 * 29,
        lines=(),
        fault_class=FaultClass.informational,
        title="Drained by jonas: no reason given",
        severity=Severity.P3,
        cause=Cause.maintenance,
        owner="jonas",
        owner_since=NOW - timedelta(hours=29),
        nodes={node_name(26): Verdict.watch},
    )
    collected.append(person)

    slurm = Story(
        7,
        "slurm-drain",
        "slurm-drain:kill-task-failed",
        node_name(30),
        minutes_ago=33,
        lines=(("Drained by Slurm: Kill task failed", ""),),
        fault_class=FaultClass.degraded,
        title="Drained by Slurm: Kill task failed",
        severity=Severity.P2,
        cause=Cause.transient,
        state=IncidentState.verifying,
        nodes={node_name(30): Verdict.suspect},
    )
    collected.append(slurm)

    suggest = Story(
        8,
        "gpu-degraded",
        "xid-94",
        node_name(23),
        minutes_ago=16,
        gpu=4,
        lines=(XID94,),
        fault_class=FaultClass.degraded,
        title="Xid 94: Contained memory error: only that job is affected",
        severity=Severity.P2,
        cause=Cause.transient,
        remedy=(Remedy.reset_gpu_when_idle,),
        nodes={node_name(23): Verdict.suspect},
        jobs_hit=("4711",),
    )
    suggest.decide(
        2002,
        Outcome.held,
        "Rule gpu-degraded is in suggest mode: a person starts the run.",
        mode=Answer(
            guard=Guard.mode,
            kind=AnswerKind.hold,
            why="Rule gpu-degraded is in suggest mode: a person starts the run.",
        ),
    )
    suggest.run("drain-reset-verify", RunState.proposed, [], mode=Mode.suggest)
    collected.append(suggest)

    silent = Story(
        9,
        "node-silent",
        "node-silent",
        node_name(2),
        minutes_ago=1.5,
        lines=(("Its sender has been silent since 03:14:36 UTC; Slurm still reaches the node (IDLE)", ""),),
        fault_class=FaultClass.unknown,
        title="Node does not respond",
        severity=Severity.P2,
        nodes={node_name(2): Verdict.watch},
    )
    silent.decide(
        2002,
        Outcome.nothing,
        "No signal reports gpu0002 now: a second signal must agree before healer acts.",
    )
    collected.append(silent)

    app = Story(
        10,
        "gpu-application",
        "xid-31",
        node_name(8),
        minutes_ago=130,
        gpu=2,
        lines=(XID31,),
        fault_class=FaultClass.application,
        title="Xid 31: GPU page fault (MMU)",
        severity=Severity.P3,
        cause=Cause.application,
        state=IncidentState.resolved,
        closed=NOW - timedelta(minutes=99),
        closed_why="well again",
        jobs_hit=("4690",),
    )
    app.decide(
        2001,
        Outcome.nothing,
        "Rule gpu-application has no playbook: healer notifies people and does nothing else.",
    )
    collected.append(app)

    healed = Story(
        11,
        "gpu-fatal",
        "xid-119",
        node_name(14),
        minutes_ago=60 * 7,
        gpu=5,
        lines=(
            (
                "Xid 119: GSP firmware did not answer an RPC",
                "NVRM: Xid (PCI:0000:9b:00): 119, pid=1, name=systemd, Timeout after 45s "
                "of waiting for RPC response from GPU5 GSP!",
            ),
        ),
        fault_class=FaultClass.fatal,
        title="Xid 119: GSP firmware did not answer an RPC",
        severity=Severity.P1,
        cause=Cause.transient,
        state=IncidentState.resolved,
        closed=NOW - timedelta(hours=6.6),
        closed_why="well again; back 2 min after the drain; after a GPU reset",
        review=Review.true_fault,
        review_cause="INC-20655",
        jobs_hit=("4655",),
        jobs_hit_final=True,
        remedy=(Remedy.drain_then_reset,),
    )
    healed.decide(2002, Outcome.act, "Every guard allows it.")
    healed.run(
        "drain-reset-verify",
        RunState.done,
        [
            (2004, "drain", "started", "", 1),
            (2014, "drain", "done", "Drained: healer:gpu-fatal", 1),
            (2020, "reset", "started", "", 1),
            (18040, "reset", "done", "gpu0014: the memory of 8 GPUs is healthy, nothing is pending", 1),
            (18050, "verify", "started", "Starting the tests of gpu0014", 1),
            (128050, "verify", "done", "all 8 tests passed", 1),
            (128060, "resume", "started", "", 1),
            (128072, "resume", "done", "gpu0014 is in service (IDLE)", 1),
        ],
    )
    collected.append(healed)

    alarm = Story(
        12,
        "gpu-degraded",
        "xid-94",
        node_name(3),
        minutes_ago=60 * 20,
        gpu=7,
        lines=(XID94,),
        fault_class=FaultClass.degraded,
        title="Xid 94: Contained memory error: only that job is affected",
        severity=Severity.P3,
        state=IncidentState.resolved,
        closed=NOW - timedelta(hours=19),
        closed_why="resolved by mara: INC-20661",
        review=Review.false_alarm,
        review_cause="INC-20661",
    )
    collected.append(alarm)

    shadow = Story(
        13,
        "nvswitch-degraded",
        "sxid-12028",
        node_name(28),
        minutes_ago=75,
        lines=(
            (
                "SXid 12028: port egress: egress privrsperr",
                "nvidia-nvswitch0: SXid (PCI:0000:85:00.0): 12028, Non-fatal, "
                "Link 31 egress non-posted PRIV error",
            ),
        ),
        fault_class=FaultClass.degraded,
        title="SXid 12028: port egress: egress privrsperr",
        severity=Severity.P3,
        cause=Cause.fabric,
        nodes={node_name(28): Verdict.watch},
    )
    shadow.decide(2002, Outcome.act, "Every guard allows it.")
    shadow.run(
        "drain-reboot-verify",
        RunState.running,
        [(2004, "drain", "done", "shadow: would drain gpu0028", 1)],
        mode=Mode.shadow,
        shadow=True,
    )
    collected.append(shadow)
    return collected
