"""Guard `sweep`, the order in which nodes are swept, and the hot spare that replaces a lost node.

A sweep is healer's own job on an idle node. It takes no capacity in the sense of the other caps: it yields to
every other job, and ends when this guard no longer allows it. So the guard is asked before the job is
submitted, and again while it is queued or runs.

Formula (n: GPU nodes that Slurm knows): max(1, min(max_nodes, floor(max_share * n))) in sweep at once.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

import msgspec

from healer.decisions.node_facts import allow, hold, job_of, matches, node_of, settings_of, unknown_node
from healer.model import (
    Answer,
    BreakerState,
    FaultClass,
    GateFacts,
    Guard,
    GuardSettings,
    NodeStatus,
    Proposal,
    Ruleset,
    Run,
    RunState,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
    Sweeps,
    Verb,
)
from healer.model.detection import EARLIEST
from healer.model.run import run_id
from healer.text import Said, at, say

#: The playbook that healer starts by itself; a person may start any playbook that sweeps.
PLAYBOOK = "sweep"
#: Prefix of the names of sweep jobs.
SWEEP_JOBS = "healer-sweep-"
#: Slurm's reasons for pending jobs that a free node would help.
_WANTS_NODES = frozenset({"Resources", "Priority"})
#: A node whose sweep ended without a verdict is not tried again before this time.
TRIED_AGAIN = timedelta(hours=1)
#: How many intervals to look back; a node tested earlier counts as never tested.
TURNS = 2


def sweep_job(run: str) -> str:
    """The name of the run's job. The jobs of groups have such names too, so that the clean-up of left-over
    sweeps covers them."""
    return f"{SWEEP_JOBS}{run[:8]}"


def tests_since(rules: Ruleset, cluster: str, now: datetime) -> datetime:
    """Start of the period in which tests are looked up."""
    return now - TURNS * settings_of(rules, cluster).sweep.every


def sweep_limit(settings: GuardSettings, nodes: int) -> int:
    share = Fraction(str(settings.sweep.max_share)) * nodes
    return max(1, min(settings.sweep.max_nodes, math.floor(share)))


def sweep(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Guard `sweep`: nodes that are idle, healthy, needed by no job and due, a few at once.
    `proposal.granted`: its job is submitted, and the guard says whether it may stay."""
    node, snapshot, sweeps = node_of(proposal, facts), facts.snapshot, facts.sweeps
    if snapshot is None or node is None:
        return unknown_node(Guard.sweep, proposal, facts)
    if sweeps is None:
        return hold(Guard.sweep, say("decisions.sweeps_unknown"))
    settings = settings_of(rules, facts.cluster)
    limit = sweep_limit(settings, len(snapshot.gpu_nodes))
    others = sum(name != node.name for name in sweeps.running)
    if proposal.by is None and facts.breaker.state is BreakerState.half_open:
        return hold(Guard.sweep, say("decisions.swept_when_closed"), limit=limit)
    if why := _unfit(node, proposal, facts, sweeps, now):
        return hold(Guard.sweep, why, limit=limit, used=others)
    if (job := wanted_by(node, snapshot)) is not None:
        why = say(
            "decisions.job_could_use",
            job=job.title,
            partition=job.partition,
            reason=job.reason,
            node=node.name,
        )
        return hold(Guard.sweep, why, limit=0, used=1)
    figures: dict[str, Any] = {"limit": limit, "used": others}
    if proposal.granted:
        return allow(Guard.sweep, say("decisions.nobody_wants", node=node.name, **figures), **figures)
    if others >= limit and not proposal.suspect:  # these particular nodes are requested
        return hold(Guard.sweep, say("decisions.in_sweep", **figures), **figures)
    # Its turn was checked when the run began; since then the node counts as tried.
    begun = sweeps.running.get(node.name, "") == proposal.run
    asks_turn = proposal.by is None and not begun and not proposal.borrows
    turn = _turn(node.name, sweeps, settings) if asks_turn else None
    if turn is not None and turn > now:
        why = say("decisions.tested_lately", node=node.name, when=at(turn))
        return hold(Guard.sweep, why, frees_at=turn, **figures)
    return allow(Guard.sweep, say("decisions.idle_in_turn", node=node.name, **figures), **figures)


def _unfit(
    node: SlurmNode, proposal: Proposal, facts: GateFacts, sweeps: Sweeps, now: datetime
) -> Said | None:
    """Why this node cannot be swept, at anyone's request; None if it can."""
    ailing, name = sweeps.ailing.get(node.name), node.name
    if proposal.granted:
        if node.held or not node.in_service or node.planned:
            return say("decisions.leaves_service", node=name, status=say(f"words.node_{node.status}"))
        if ailing is FaultClass.fatal:
            return say("decisions.fatal_open", node=name)
        return None
    if node.status is not NodeStatus.idle or facts.snapshot is None or facts.snapshot.jobs_on(name):
        return say("decisions.idle_alone", node=name, status=say(f"words.node_{node.status}"))
    if ailing is not None and not (proposal.suspect and ailing is not FaultClass.fatal):
        return say("decisions.fault_open", kind=say(f"words.class_{ailing}"), node=name)
    if (run := facts.running.get(name)) is not None:
        return say("decisions.run_works", run=run, node=name)
    if (run := sweeps.running.get(name)) is not None and run != proposal.run:
        return say("decisions.run_sweeps", run=run, node=name)
    reservations = facts.snapshot.reservations.values()
    kept = next(
        (
            reservation
            for reservation in reservations
            if name in reservation.nodes and reservation.is_soon(now)
        ),
        None,
    )
    return say("decisions.reservation_soon", name=kept.name, node=name) if kept is not None else None


def wanted_by(node: SlurmNode, snapshot: SlurmSnapshot) -> SlurmJob | None:
    """A pending job that could start on this node; None if there is none."""
    return next(
        (
            job
            for partition in node.partitions
            for job in snapshot.waiting_in(partition)
            if job.reason in _WANTS_NODES
            and not job.name.startswith(SWEEP_JOBS)
            and node.name not in job.excluded
            and _lets_in(job, node, snapshot)
        ),
        None,
    )


def _lets_in(job: SlurmJob, node: SlurmNode, snapshot: SlurmSnapshot) -> bool:
    """Whether the job's reservation covers the node: a job with a reservation runs only on its nodes."""
    reservation = snapshot.reservations.get(job.reservation) if job.reservation else None
    return reservation is None or node.name in reservation.nodes


def _turn(node: str, sweeps: Sweeps, settings: GuardSettings) -> datetime | None:
    """When the node is next due; None if it was neither tested nor tried recently."""
    tested, begun = sweeps.tested.get(node), sweeps.begun.get(node)
    moments = (tested and tested + settings.sweep.every, begun and begun + TRIED_AGAIN)
    return max((moment for moment in moments if moment is not None), default=None)


# --- in turn ---


def may_begin_by_itself(rules: Ruleset) -> bool:
    """The playbook only sweeps: playbooks that take capacity start for an incident or at a person's
    request."""
    playbook = rules.playbooks.get(PLAYBOOK)
    if playbook is None or playbook.target != "node":
        return False
    return {step.do for step in playbook.steps} <= {None, Verb.sweep}


def sweep_runs(facts: GateFacts, rules: Ruleset, now: datetime) -> Iterator[Run]:
    """Runs that may be proposed now, one for each idle node that is due, longest untested first. The caller
    asks the gate about each, and stops when it has started enough."""
    if facts.snapshot is None or facts.sweeps is None:
        return
    sweeps, settings = facts.sweeps, settings_of(rules, facts.cluster)
    due = [
        node
        for node in facts.snapshot.gpu_nodes
        if node.status is NodeStatus.idle and (_turn(node.name, sweeps, settings) or now) <= now
    ]
    due.sort(
        key=lambda node: (
            sweeps.tested.get(node.name, EARLIEST),
            sweeps.begun.get(node.name, EARLIEST),
            node.name,
        )
    )
    for node in due:
        yield _run(facts.cluster, node.name, now)


def _run(cluster: str, node: str, now: datetime) -> Run:
    return Run(
        id=run_id(f"{PLAYBOOK}|{cluster}|{node}|{now.isoformat()}"),
        cluster=cluster,
        playbook=PLAYBOOK,
        state=RunState.running,
        by="healer",
        reason=say("decisions.its_turn"),
        created_at=now,
        node=node,
        rule=PLAYBOOK,
        alongside=True,
        input={"reason_text": "healer: its turn to be tested"},
    )


def with_sweep(facts: GateFacts, run: Run) -> GateFacts:
    """The facts with this run begun, for the next proposal of the same transaction."""
    sweeps = facts.sweeps or Sweeps()
    running = {**sweeps.running, run.node or "": run.id}
    return msgspec.structs.replace(facts, sweeps=msgspec.structs.replace(sweeps, running=running))


#: Distance between nodes whose switches are unknown: more than any path through a tree of switches.
_FAR = 99


def free_spares(snapshot: SlurmSnapshot, settings: GuardSettings) -> list[SlurmNode]:
    """Nodes of the spares' reservation that could be handed over now: idle, in service, not protected. None
    where Slurm replaces them itself: it refuses the change."""
    held = snapshot.reservations.get(settings.spares.reservation) if settings.spares else None
    if held is not None and held.replaces:
        return []
    kept = (snapshot.nodes.get(name) for name in (held.nodes if held else ()))
    return [node for node in kept if node is not None and _is_free(node, settings)]


def _is_free(node: SlurmNode, settings: GuardSettings) -> bool:
    if node.base != "IDLE" or node.busy or not node.in_service or node.planned:
        return False
    return not any(matches(pattern, node) for pattern in settings.protected)


def nearest_spare(
    lost: SlurmNode,
    job: SlurmJob | None,
    spares: Iterable[SlurmNode],
    probation: Mapping[str, datetime] | None = None,
) -> SlurmNode | None:
    """The nearest spare with the lost node's GPUs and partition: same leaf switch first, then fewest hops.
    None if none fits.

    `probation`: node -> until when. A node that came back recently fails again more often than any other,
    which under a large job stops all of its nodes: such a spare is taken last, longest back first.
    """
    until = probation or {}
    fitting = [spare for spare in spares if spare.name != lost.name and _fits(spare, lost, job)]
    order = lambda spare: (until.get(spare.name, EARLIEST), hops(lost, spare), spare.name)  # noqa: E731
    return min(fitting, key=order, default=None)


def _fits(spare: SlurmNode, lost: SlurmNode, job: SlurmJob | None) -> bool:
    if (spare.gpus, spare.gpu_model) != (lost.gpus, lost.gpu_model):
        return False
    # A job that was submitted to a reservation runs on that reservation's nodes only.
    if job is not None and (spare.name in job.excluded or job.reservation):
        return False
    if job is not None and lost.name in job.required:
        return False  # no other node will do, and among the spares the lost one would no longer admit it
    if job is None or not job.partition:
        return set(lost.partitions) <= set(spare.partitions)
    # A requeued job waits in all partitions that it asked for: `a,b` (seen on 22.05).
    return any(partition in spare.partitions for partition in job.partition.split(","))


def hops(node: SlurmNode, other: SlurmNode) -> int:
    """Levels up to the first switch that both nodes are under; 0 is the same leaf."""
    theirs = _path(other)
    return next((level for level, switch in enumerate(_path(node)) if switch in theirs), _FAR)


def _path(node: SlurmNode) -> tuple[str, ...]:
    return node.switches or ((node.switch,) if node.switch else ())


def spares(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Guard `spares`: the spare that replaces a job's lost node, while there is one.

    It never holds a restart: without a spare the job waits in the queue like any other.
    """
    settings = settings_of(rules, facts.cluster)
    if settings.spares is None:
        return allow(Guard.reserved, say("decisions.no_spares_named"))
    name, lost = settings.spares.reservation, node_of(proposal, facts)
    if facts.snapshot is None or lost is None:
        return allow(Guard.reserved, say("decisions.no_node_lost"))
    held = facts.snapshot.reservations.get(name)
    if held is None:
        return allow(Guard.reserved, say("decisions.no_spares_shown", name=name))
    free = free_spares(facts.snapshot, settings)
    figures: dict[str, Any] = {"free": len(free), "all": len(held.nodes), "name": name, "node": lost.name}
    used = len(held.nodes) - len(free)
    job = job_of(proposal, facts)
    chosen = nearest_spare(lost, job and facts.snapshot.whole(job.leader), free)
    if lost.name in held.nodes:
        why = say("decisions.is_a_spare", **figures)
    elif chosen is None:
        why = say("decisions.no_spare_fits", **figures)
    else:
        why = say("decisions.spare_chosen", spare=chosen.name, **figures)
    return allow(Guard.reserved, why, limit=len(held.nodes), used=used)
