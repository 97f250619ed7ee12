"""Building blocks of the console's stories: kernel lines, a whole run, and a long past."""

import random
from datetime import timedelta

from healer.engine.records import IncidentRecord
from healer.model import FaultClass, IncidentState, Message, Outcome, RunState, Severity
from healer.ports.answers import Note, SentMessage
from tests.support.console_sample import CLUSTER, NOW, Story, milliseconds, node_name

XID79 = (
    "Xid 79: GPU fell off the bus",
    "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
)
XID154 = (
    "Xid 154: the driver asks for a GPU reset",
    "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 "
    "(GPU Reset Required)",
)
XID94 = (
    "Xid 94: Contained memory error: only that job is affected",
    "NVRM: Xid (PCI:0000:9b:00): 94, pid=212345, name=python3, Contained: SM (0x1). RST: No, D-RST: No",
)
XID31 = (
    "Xid 31: GPU page fault (MMU)",
    "NVRM: Xid (PCI:0000:9b:00): 31, pid=88121, name=<script>alert(1)</script>, Ch 00000008, MMU Fault: "
    "ENGINE GRAPHICS GPC0 GPCCLIENT_T1_0 faulted @ 0x7f21_4a000000. Fault is of type FAULT_PDE "
    "ACCESS_TYPE_VIRT_READ",
)


def drained(story: Story, jobs: tuple[str, ...]) -> None:
    story.decide(2003.1, Outcome.act, "Starting gpu-reset on gpu0017: every guard allows it.")
    log = [
        (2004, "drain", "started", "", 1),
        (2016, "drain", "done", "Drained: healer:gpu-lost", 1),
        (2021, "list-jobs", "done", ", ".join(jobs), 1),
    ]
    for job in jobs:
        log += [
            (2024, f"requeue:{job}", "started", "", 1),
            (
                2410,
                f"requeue:{job}",
                "done",
                f"Job {job} was requeued (restart 1) and waits for Slurm's next scheduling pass",
                1,
            ),
        ]
    log += [
        (2415, "wait-drained", "waiting", "Slurm still shows work on gpu0017: it must be empty first.", 1),
        (9300, "wait-drained", "done", "", 1),
        (9312, "reset", "started", "nvidia-smi --gpu-reset -i 3", 1),
    ]
    story.run("drain-reset-verify", RunState.running, log)
    story.records += [
        story.record(2016, "healer", "node.drained", why="healer:gpu-lost"),
        story.record(74000, "mara", "incident.acknowledged"),
    ]
    story.notes.append(
        Note(
            at=story.opened + timedelta(seconds=95),
            by="mara",
            text="Second time this month; serial 1653222000123. If the reset fails, open an RMA.",
        )
    )
    story.messages.append(
        SentMessage(
            at=story.opened + milliseconds(2050),
            kind="notify",
            state="sent",
            message=Message(
                id="m1",
                cluster=CLUSTER,
                title="GPU 3 of gpu0017 fell off the bus",
                text="",
                severity=Severity.P1,
                page=True,
            ),
        )
    )


def history(count: int) -> list[IncidentRecord]:
    """Resolved incidents of the past, to fill pages."""
    rng = random.Random(11)
    rules = (
        (
            "gpu-application",
            "xid-13",
            "Xid 13: Graphics/compute engine exception (often out-of-bounds access)",
        ),
        ("gpu-degraded", "xid-63", "Xid 63: Row remap (or page retirement) recorded: fixed at next reset"),
    )
    found = []
    for number in range(count):
        rule, fault, title = rng.choice(rules)
        story = Story(
            1000 + number,
            rule,
            fault,
            node_name(rng.randint(1, 32)),
            minutes_ago=60 * 24 + number * 37,
            gpu=rng.randint(0, 7),
            fault_class=FaultClass.application,
            title=title,
            severity=Severity.P3,
            state=IncidentState.resolved,
            closed=NOW - timedelta(hours=23),
            closed_why="well again",
        )
        found.append(story.detail())
    return found
