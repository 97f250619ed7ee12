"""A node that boots under a job without being asked to: every job on it is lost.

Requested boots do not count: healer's own, a person's, or one that Slurm was asked for. What is planned for
the node is judged with all other faults (`healer.incidents.context`).
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from healer.detection.protocol import PictureLook
from healer.model import Component, Evidence, FaultClass, Finding, OwnerKind, Sense, SlurmJob, SlurmNode
from healer.model.faults import REBOOTED
from healer.observations import NodePicture, Picture
from healer.signals.identity import digest_of
from healer.text import say

#: A boot is heard of within this time; used where neither Slurm nor the last signal of the old boot dates it.
HEARD_WITHIN = timedelta(minutes=2)
_ASKED_FOR = frozenset({"REBOOT_REQUESTED", "REBOOT_ISSUED", "POWERING_UP", "POWERING_DOWN", "POWERED_DOWN"})


def reboot_findings(walk: PictureLook) -> list[Finding]:
    """One for each node of which another boot is heard while jobs of the boot before are on it."""
    found = []
    for name in sorted(walk.picture.changes.booted):
        shown = walk.picture.slurm.nodes.get(name) if walk.picture.slurm is not None else None
        if shown is None or _is_asked_for(shown):
            continue
        node = walk.picture.node(name)
        if jobs := sorted(set(_jobs_of_boot_before(walk.picture, node, shown))):
            found.append(_finding(walk.picture.cluster, node, jobs, walk.now))
    return found


def _is_asked_for(node: SlurmNode) -> bool:
    owner = node.owner if node.held else None
    theirs = owner is not None and owner.kind is not OwnerKind.slurm
    return theirs or not _ASKED_FOR.isdisjoint(node.state)


def _jobs_of_boot_before(picture: Picture, node: NodePicture, shown: SlurmNode) -> Iterator[str]:
    assert picture.slurm is not None and node.booted_at is not None
    jobs = picture.slurm.jobs
    running = [job for job in picture.slurm.jobs_on(node.name) if job.state == "RUNNING"]
    lost = [job for job in picture.slurm.failed_on(node.name) if job.state == "NODE_FAIL"]
    for job in (*running, *lost):
        if _began_before(job, node, shown):
            yield job.leader
    for leader in picture.allocations.ended_on(node.name, node.booted_at):
        if leader in jobs and jobs[leader].state in {"PENDING", "RUNNING"} and not _is_on(jobs[leader], node):
            yield leader  # Slurm has put it back


def _is_on(job: SlurmJob, node: NodePicture) -> bool:
    return job.state == "RUNNING" and node.name in job.nodes


def _began_before(job: SlurmJob, node: NodePicture, shown: SlurmNode) -> bool:
    last_signal = node.old_boot_heard_at
    if job.start_at is None or node.booted_at is None:
        return True
    if shown.boot_at is not None and (last_signal is None or shown.boot_at > last_signal):
        return job.start_at < shown.boot_at
    return job.start_at <= max(last_signal or job.start_at, node.booted_at - HEARD_WITHIN)


def _finding(cluster: str, node: NodePicture, jobs: list[str], now: datetime) -> Finding:
    where = Component(cluster=cluster, node=node.name)
    text = say("detection.booted_under_jobs", node=node.name, jobs=", ".join(jobs[:5]))
    evidence = Evidence(
        digest=digest_of(REBOOTED, cluster, node.name, node.boot or ""),
        at=node.booted_at or now,
        component=where,
        text=text,
        arrived_at=now,
        sense=Sense.slurm,
    )
    return Finding.from_evidence(
        evidence,
        rule="",
        fault=REBOOTED,
        fault_class=FaultClass.degraded,
        title=say("detection.booted_under_job"),
        confidence=1.0,
        jobs=tuple(jobs),
    )
