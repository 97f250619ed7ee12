"""Sweeps: guard `sweep`, and whose turn it is.

A sweep is one job of healer's own on an idle node. It takes no capacity as the other caps count it: it comes
after everybody's job, and what this guard says no more ends it. So the guard is asked twice: before the job
is submitted, and as long as it is there.

Formula (n: GPU nodes that Slurm knows): max(1, min(max_nodes, floor(max_share * n))) in sweep at once.
"""

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import msgspec

from healer.decisions.guards import allow, at, hold, unknown_node
from healer.decisions.node_facts import node_of, settings_of
from healer.decisions.reservations import is_soon
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
from healer.model.run import run_id

#: What healer starts by itself; a person may start any playbook that sweeps.
PLAYBOOK = "sweep"
#: What every job of a sweep is called: `healer-sweep-<short id>`.
SWEEP_JOBS = "healer-sweep-"
#: Why a job waits that a free node would help (Slurm's words).
_WANTS_NODES = frozenset({"Resources", "Priority"})
#: A node on which a sweep began and came to no verdict is not tried again before.
TRIED_AGAIN = timedelta(hours=1)
#: Turns that are looked back; what was tested before counts as never tested.
TURNS = 2
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


def since_of(rules: Ruleset, cluster: str, now: datetime) -> datetime:
    """From when on tests are looked at."""
    return now - TURNS * settings_of(rules, cluster).sweep.every


def limit_of(settings: GuardSettings, nodes: int) -> int:
    share = Fraction(str(settings.sweep.max_share)) * nodes
    return max(1, min(settings.sweep.max_nodes, math.floor(share)))


def sweeping(rules: Ruleset) -> list[str]:
    """Playbooks with a sweep in them."""
    return list(rules.sweeping)


def sweep(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Idle and healthy, wanted by nobody, few at once, and not before its turn. `proposal.granted`: its job
    is submitted, and this asks whether it may stay."""
    node, snapshot, known = node_of(proposal, facts), facts.snapshot, facts.sweeps
    if snapshot is None or node is None:
        return unknown_node(Guard.sweep, proposal, facts)
    if known is None:
        return hold(Guard.sweep, "It is not known which nodes are in sweep.")
    settings = settings_of(rules, facts.cluster)
    limit = limit_of(settings, len(snapshot.gpu_nodes))
    others = sum(name != node.name for name in known.running)
    if proposal.by is None and facts.breaker.state is BreakerState.half_open:
        return hold(Guard.sweep, "The breaker is half-open: nodes are swept when it is closed.", limit=limit)
    if why := _unfit(node, proposal, facts, known, now):
        return hold(Guard.sweep, why, limit=limit, used=others)
    if (job := wanted_by(node, snapshot)) is not None:
        why = f"Job {job.title} waits in {job.partition} ({job.reason}) and could use {node.name}."
        return hold(Guard.sweep, why, limit=0, used=1)
    figures = f"{others} of {limit} nodes in sweep"
    if proposal.granted:
        return allow(Guard.sweep, f"Nobody wants {node.name}; {figures} beside it.", limit=limit, used=others)
    if others >= limit and not proposal.suspect:  # these very nodes are asked for
        return hold(Guard.sweep, f"{figures}.", limit=limit, used=others)
    # That its turn has come was asked when its run began, which has counted as tried since.
    begun = known.running.get(node.name, "") == proposal.run
    asks_turn = proposal.by is None and not begun and not proposal.borrows
    turn = _turn(node.name, known, settings) if asks_turn else None
    if turn is not None and turn > now:
        why = f"{node.name} was tested, or tried, of late: its turn comes at {at(turn)}."
        return hold(Guard.sweep, why, limit=limit, used=others, frees_at=turn)
    return allow(
        Guard.sweep, f"{node.name} is idle and nobody waits for it; {figures}.", limit=limit, used=others
    )


def _unfit(node: SlurmNode, proposal: Proposal, facts: GateFacts, known: Sweeps, now: datetime) -> str | None:
    """Why this node is not one to be swept, whoever wants it."""
    ailing, name = known.ailing.get(node.name), node.name
    if proposal.granted:
        if node.held or not node.in_service or node.planned:
            return f"{name} is {node.status}: it leaves service."
        if ailing is FaultClass.fatal:
            return f"A fatal fault is open on {name}."
        return None
    if node.status is not NodeStatus.idle or facts.snapshot is None or facts.snapshot.jobs_on(name):
        return f"{name} is {node.status}: idle nodes alone are swept."
    if ailing is not None and not (proposal.suspect and ailing is not FaultClass.fatal):
        return f"A {ailing} fault is open on {name}: it is tested for that."
    if (run := facts.running.get(name)) is not None:
        return f"Run {run} works on {name}."
    if (run := known.running.get(name)) is not None and run != proposal.run:
        return f"Run {run} sweeps {name} already."
    reservations = facts.snapshot.reservations.values()
    kept = next((one for one in reservations if name in one.nodes and is_soon(one, now)), None)
    return f"Reservation {kept.name} counts on {name}." if kept is not None else None


def wanted_by(node: SlurmNode, snapshot: SlurmSnapshot) -> SlurmJob | None:
    """A job that waits for nodes in a partition of this one, and that this one could help."""
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
    """A job of a reservation runs on the nodes of that alone."""
    own = snapshot.reservations.get(job.reservation) if job.reservation else None
    return own is None or node.name in own.nodes


def _turn(node: str, known: Sweeps, settings: GuardSettings) -> datetime | None:
    """When the node's turn comes; None: it was neither tested nor tried of late."""
    tested, begun = known.tested.get(node), known.begun.get(node)
    moments = (tested and tested + settings.sweep.every, begun and begun + TRIED_AGAIN)
    return max((one for one in moments if one is not None), default=None)


# --- in turn ---


def is_scheduled(rules: Ruleset, cluster: str) -> bool:
    """A person said so, and the playbook does nothing but sweep: what takes capacity is begun for an
    incident, or by a person."""
    playbook = rules.playbooks.get(PLAYBOOK)
    if not settings_of(rules, cluster).sweep.scheduled or playbook is None:
        return False
    return playbook.target == "node" and {step.do for step in playbook.steps} <= {None, Verb.sweep}


def in_turn(facts: GateFacts, rules: Ruleset, now: datetime) -> Iterator[Run]:
    """Runs that may be proposed now: of each idle node whose turn has come, the one that was tested longest
    ago first. The caller asks the gate about each, and stops where it has begun enough."""
    if facts.snapshot is None or facts.sweeps is None:
        return
    known, settings = facts.sweeps, settings_of(rules, facts.cluster)
    due = [
        node
        for node in facts.snapshot.gpu_nodes
        if node.status is NodeStatus.idle and (_turn(node.name, known, settings) or now) <= now
    ]
    due.sort(
        key=lambda node: (known.tested.get(node.name, _NEVER), known.begun.get(node.name, _NEVER), node.name)
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
        reason="its turn to be tested",
        created_at=now,
        node=node,
        rule=PLAYBOOK,
        beside=True,
        input={"reason_text": "healer: its turn to be tested"},
    )


def with_one_more(facts: GateFacts, run: Run) -> GateFacts:
    """The facts once this run was begun: so that the next one of the same transaction sees it."""
    known = facts.sweeps or Sweeps()
    running = {**known.running, run.node or "": run.id}
    return msgspec.structs.replace(facts, sweeps=msgspec.structs.replace(known, running=running))
