"""Small clusters, rulesets and proposals for tests of the gate."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from healer.decisions import judge
from healer.model import (
    Answer,
    Breaker,
    Cause,
    Component,
    Evidence,
    FaultClass,
    GateFacts,
    Guard,
    GuardSettings,
    Incident,
    Mode,
    Playbook,
    Proposal,
    Remedy,
    Rule,
    Ruleset,
    Sense,
    Severity,
    Slot,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
    Step,
    Topology,
    Verb,
)

NOW = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
CLUSTER = "pod1"


def name(number: int) -> str:
    return f"gpu{number:04d}"


def ago(**span: float) -> datetime:
    return NOW - timedelta(**span)


def later(**span: float) -> datetime:
    return NOW + timedelta(**span)


def node(number: int, **fields: Any) -> SlurmNode:
    """Rack of 8 nodes, switch of 32, partition `train`; idle."""
    given = {
        "name": name(number),
        "state": ("IDLE",),
        "gpus": 8,
        "rack": f"r{(number - 1) // 8:02d}",
        "switch": f"leaf{(number - 1) // 32:02d}",
        "partitions": ("train",),
    }
    return SlurmNode(**(given | fields))


def snapshot(
    nodes: int | Iterable[SlurmNode] = 32, jobs: Iterable[SlurmJob] = (), taken_at: datetime = NOW
) -> SlurmSnapshot:
    fleet = [node(number) for number in range(1, nodes + 1)] if isinstance(nodes, int) else nodes
    return SlurmSnapshot(
        cluster=CLUSTER,
        taken_at=taken_at,
        nodes={one.name: one for one in fleet},
        jobs={job.id: job for job in jobs},
    )


def facts(nodes: int | Iterable[SlurmNode] = 32, **fields: Any) -> GateFacts:
    jobs = fields.pop("jobs", ())
    given = {"cluster": CLUSTER, "snapshot": snapshot(nodes, jobs), "breaker": Breaker(cluster=CLUSTER)}
    return GateFacts(**(given | fields))


def slot(number: int, **fields: Any) -> Slot:
    given = {"cluster": CLUSTER, "node": name(number), "incident": None, "run": f"r{number}"}
    return Slot(**(given | {"granted_at": ago(hours=2)} | fields))


DRAIN = Playbook(
    name="gpu-fatal",
    title="Take it out",
    target="node",
    steps=(Step(id="drain", do=Verb.drain), Step(id="ticket", do=Verb.ticket)),
)
TICKET = Playbook(name="ticket", title="Tell", target="node", steps=(Step(id="ticket", do=Verb.ticket),))

GPU_LOST = Rule(
    name="gpu-lost",
    title="GPU fell off the bus",
    faults=("xid-79",),
    severity=Severity.P1,
    cause=Cause.permanent,
    remedy=(Remedy.drain_then_reset, Remedy.ticket),
    playbook="gpu-fatal",
)
GPU_FATAL = msgspec.structs.replace(GPU_LOST, name="gpu-fatal", faults=("xid-95",))
TOLD = msgspec.structs.replace(GPU_LOST, name="told", faults=("xid-31",), playbook=None)


def rules(guards: GuardSettings | None = None, **fields: Any) -> Ruleset:
    given = {
        "version": "test",
        "xids": {},
        "sxids": {},
        "rules": (GPU_LOST, GPU_FATAL, TOLD),
        "guards": guards or GuardSettings(),
        "playbooks": {"gpu-fatal": DRAIN, "ticket": TICKET},
        "topology": Topology(),
        "default_mode": Mode.auto,
    }
    return Ruleset(**(given | fields))


def drain(number: int = 1, **fields: Any) -> Proposal:
    return propose(Verb.drain, number, **fields)


def propose(verb: Verb, number: int = 1, **fields: Any) -> Proposal:
    given = {"cluster": CLUSTER, "verb": verb, "node": name(number), "rule": "gpu-lost", "incident": "inc1"}
    return Proposal(**(given | {"playbook": "gpu-fatal", "fatal": True} | fields))


def requeue(job: str = "4711", **fields: Any) -> Proposal:
    return propose(Verb.requeue, job=job, **({"restarts": 0} | fields))


def job(id: str = "4711", **fields: Any) -> SlurmJob:
    given = {"id": id, "state": "RUNNING", "nodes": (name(1),), "partition": "train"}
    return SlurmJob(**(given | fields))


#: The line of the kernel that reported it.
LOST = Evidence(
    digest="1",
    at=NOW,
    component=Component(cluster=CLUSTER, node=name(1), gpu=3),
    text="Xid 79",
    sense=Sense.kernel,
    fatal=True,
)


def incident(number: int = 1, **fields: Any) -> Incident:
    given = {
        "id": f"{number:08x}{'0' * 24}",
        "cluster": CLUSTER,
        "rule": "gpu-lost",
        "fault": "xid-79",
        "fault_class": FaultClass.fatal,
        "title": "GPU 3 fell off the bus",
        "root": Component(cluster=CLUSTER, node=name(number), gpu=3),
        "opened": ago(seconds=10),
        "updated": ago(seconds=10),
        "settle_until": ago(seconds=8),
        "severity": Severity.P1,
        "evidence": (LOST,),
    }
    return Incident(**(given | fields))


def answer(
    guard: Guard, proposal: Proposal, known: GateFacts, site: Ruleset | None = None, now: datetime = NOW
) -> Answer:
    """What one guard says inside the gate."""
    answers = judge(proposal, known, site or rules(), now).answers
    return next(one for one in answers if one.guard is guard)
