"""What stands in Slurm and nobody works on, and what the ledger holds that Slurm does not show. Ours alone.

Most of it ends by itself within a walk or two; what is young is left out, so that the list is what stays.
"""

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta

from healer.decisions.remarks import kept_off, remark_in
from healer.model import GateFacts, Incident, Run, RunState, SlurmNode, SlurmSnapshot
from healer.model.drift import Drift, DriftKind, Repair
from healer.model.notes import is_our_note
from healer.model.reasons import is_ours
from healer.model.reserved import is_our_reservation, our_reservation

#: A run, a walk or a poll may still be at it.
GRACE = timedelta(seconds=60)


def drifts(
    facts: GateFacts, runs: Collection[Run], incidents: Collection[Incident], now: datetime
) -> list[Drift]:
    """`runs`: those that have not ended; `incidents`: the open ones. By kind, then by node.

    Nothing without a picture.
    """
    if facts.snapshot is None:
        return []
    real = [run for run in runs if not run.shadow]
    found = (
        *_forgotten(facts, facts.snapshot, real, incidents, now),
        *_slots(facts, facts.snapshot, real),
        *_reservations(facts.snapshot, real, now),
        *_notes(facts.snapshot, real),
        *_exclusions(facts.snapshot, real, incidents),
        *_runs(facts.snapshot, real, now),
    )
    order = list(DriftKind)
    return sorted(found, key=lambda one: (order.index(one.kind), one.node or "", one.name))


def _old(since: datetime | None, now: datetime) -> bool:
    return since is not None and now - since > GRACE


def _forgotten(
    facts: GateFacts,
    snapshot: SlurmSnapshot,
    runs: list[Run],
    incidents: Collection[Incident],
    now: datetime,
) -> Iterator[Drift]:
    ids, open_ids = {run.id for run in runs}, {one.id for one in incidents}
    spoken_for = {slot.node for slot in facts.slots if slot.run in ids or slot.incident in open_ids}
    spoken_for |= {run.node for run in runs}
    # The incident that says just this speaks for nobody.
    spoken_for |= {one.root.node for one in incidents if one.fault != "healer-drain"}
    for node in snapshot.nodes.values():
        ours = node.held and is_ours(node.reason)
        if ours and node.name not in spoken_for and _old(node.reason_at, now):
            yield Drift(
                kind=DriftKind.forgotten_drain,
                cluster=facts.cluster,
                node=node.name,
                what=f"Out by healer, and no run or open incident speaks for it: {node.reason}",
                would=_VALIDATED,
                repair=Repair.validate,
                since=node.reason_at,
            )


_VALIDATED = "It is tested, and returns where it passes (playbook validate)."


def _slots(facts: GateFacts, snapshot: SlurmSnapshot, runs: list[Run]) -> Iterator[Drift]:
    working = {run.node for run in runs if run.state is RunState.running}
    vetoed = {veto.node for veto in facts.vetoes}
    for slot in facts.slots:
        node = snapshot.nodes.get(slot.node)
        back = node is not None and node.in_service and our_reservation(snapshot, slot.node) is None
        seen = slot.drained_at is not None and snapshot.taken_at - slot.drained_at > GRACE
        if back and seen and slot.node not in working | vetoed:
            yield Drift(
                kind=DriftKind.idle_slot,
                cluster=facts.cluster,
                node=slot.node,
                name=slot.run,
                what="It is in service, and still counts as out by healer",
                would="Its slot is free again.",
                repair=Repair.free_slot,
                since=slot.drained_at,
            )


def _reservations(snapshot: SlurmSnapshot, runs: list[Run], now: datetime) -> Iterator[Drift]:
    working = {run.node for run in runs}
    for kept in snapshot.reservations.values():
        if not is_our_reservation(kept) or not working.isdisjoint(kept.nodes) or not _old(kept.since, now):
            continue
        node = next((name for name in kept.nodes if name in snapshot.nodes), None)
        yield Drift(
            kind=DriftKind.left_reservation,
            cluster=snapshot.cluster,
            node=node,
            name=kept.name,
            what=f"The reservation {kept.name} for tests stands, and no run tests {', '.join(kept.nodes)}",
            would=_VALIDATED if node else "It is ended.",
            repair=Repair.validate if node else Repair.end_reservation,
            since=kept.since,
        )


def _notes(snapshot: SlurmSnapshot, runs: list[Run]) -> Iterator[Drift]:
    working = {run.node for run in runs}
    for node in snapshot.nodes.values():
        if not (is_our_note(node.extra) or is_our_note(node.comment)) or node.name in working:
            continue
        if _ours(node) or our_reservation(snapshot, node.name) is not None:
            continue
        yield Drift(
            kind=DriftKind.left_note,
            cluster=snapshot.cluster,
            node=node.name,
            what="healer's note stands on a node that healer does not hold",
            would="The note is taken away.",
            repair=Repair.clear_note,
        )


def _ours(node: SlurmNode) -> bool:
    return node.held and is_ours(node.reason)


def _exclusions(snapshot: SlurmSnapshot, runs: list[Run], incidents: Collection[Incident]) -> Iterator[Drift]:
    bad = {name for one in incidents for name in one.bad_nodes}
    at_work = {run.job for run in runs}
    for job in kept_off(snapshot):
        back = [node for node in remark_in(job.admin_comment).off if node not in bad]
        if back and job.id not in at_work:
            yield Drift(
                kind=DriftKind.left_exclusion,
                cluster=snapshot.cluster,
                name=job.id,
                what=f"healer keeps job {job.id} off {', '.join(back)}, which is not known bad any more",
                would="The job may use them again (playbook release).",
                repair=Repair.release,
            )


def _runs(snapshot: SlurmSnapshot, runs: list[Run], now: datetime) -> Iterator[Drift]:
    for run in runs:
        if run.node is not None and run.node not in snapshot.nodes and _old(run.created_at, now):
            yield Drift(
                kind=DriftKind.unknown_node,
                cluster=snapshot.cluster,
                node=run.node,
                name=run.id,
                what=f"The run of {run.playbook} ({run.state}) works on a node that Slurm does not know",
                would="The run is cancelled.",
                repair=Repair.cancel_run,
                since=run.created_at,
            )
