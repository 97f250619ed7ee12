"""What the guards look up about a node (place, planned work, settings, activity), and how they answer."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from functools import lru_cache, partial

import msgspec

from healer.incidents.context import PICTURE_LASTS, Activity, ContextTable, at_jobs, at_node, table_of
from healer.model import (
    Answer,
    AnswerKind,
    ContextKind,
    GateFacts,
    Guard,
    GuardSettings,
    Inventory,
    Maintenance,
    NodeContext,
    Place,
    Proposal,
    Ruleset,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
)
from healer.model.rules import Topology
from healer.model.slurm import ByIdentity, counted_gpu_nodes, is_planned_work
from healer.text import Said, say

_NUMBERS = re.compile(r"\[([0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*)\]")
_FEATURE = "feature:"


def settings_of(rules: Ruleset, cluster: str) -> GuardSettings:
    return rules.cluster_guards.get(cluster, rules.guards)


def node_of(proposal: Proposal, facts: GateFacts) -> SlurmNode | None:
    """The proposal's node in the Slurm snapshot; None without a snapshot, and for an unknown node."""
    return facts.slurm_node(proposal.node)


def job_of(proposal: Proposal, facts: GateFacts) -> SlurmJob | None:
    if facts.snapshot is None or proposal.job is None:
        return None
    return facts.snapshot.jobs.get(proposal.job)


def parts_of(proposal: Proposal, facts: GateFacts) -> list[SlurmJob]:
    """The proposal's job, including the components of a heterogeneous one, which Slurm restarts as a whole.
    Each component has a partition, a QOS and nodes of its own."""
    job = job_of(proposal, facts)
    if job is None or facts.snapshot is None or not job.het_job:
        return [job] if job is not None else []
    return [part for part in facts.snapshot.jobs.values() if part.het_job == job.het_job]


def settings_of_node(rules: Ruleset, cluster: str, node: SlurmNode | None) -> list[GuardSettings]:
    """The settings of each partition of the node; the strictest applies. Never empty."""
    partitions = node.partitions if node else ()
    return [rules.guards_in(cluster, name) for name in partitions] or [settings_of(rules, cluster)]


def settings_of_job(rules: Ruleset, cluster: str, job: SlurmJob | None) -> GuardSettings:
    return rules.guards_in(cluster, job.partition) if job else settings_of(rules, cluster)


def place_of(rules: Ruleset, cluster: str, node: SlurmNode) -> Place:
    """Rack, switch, pod and NVLink domain: from Slurm's picture (a recording may carry them), else from the
    site's topology file."""
    return _place_in(rules.topology.of(cluster), node)


def _place_in(topology: Topology, node: SlurmNode) -> Place:
    listed = topology.places.get(node.name, Place())
    return Place(
        rack=node.rack or listed.rack,
        switch=node.switch or listed.switch,
        pod=node.pod or listed.pod,
        domain=node.domain or listed.domain,
    )


def matches(pattern: str, node: SlurmNode) -> bool:
    """Whether the node matches one pattern of `protected` or `maintenance`: a name, a glob, a hostlist, or
    `feature:<glob>`.

    `gpu[0001-0016,0020]` is a hostlist (digits only between the brackets, equal width); any other bracket
    belongs to a glob.
    """
    if pattern.startswith(_FEATURE):
        return any(fnmatchcase(feature, pattern[len(_FEATURE) :]) for feature in node.features)
    return any(fnmatchcase(node.name, name) for name in _expand(pattern))


@lru_cache(maxsize=256)
def _expand(pattern: str) -> tuple[str, ...]:
    return tuple(_names(pattern))


def _names(pattern: str) -> Iterator[str]:
    found = _NUMBERS.search(pattern)
    if found is None:
        yield pattern
        return
    head, tail = pattern[: found.start()], pattern[found.end() :]
    for part in found[1].split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            for rest in _names(tail):
                yield f"{head}{number:0{len(first)}d}{rest}"


def window_of(windows: tuple[Maintenance, ...], node: SlurmNode, now: datetime) -> Maintenance | None:
    """The window of planned work that the node is in now; `until` is exclusive."""
    for window in windows:
        begun = window.since is None or window.since <= now
        over = window.until is not None and window.until <= now
        if begun and not over and any(matches(pattern, node) for pattern in window.nodes):
            return window
    return None


def may_be_planned(rules: Ruleset, cluster: str) -> bool:
    """Whether the site's lists name any planned work for this cluster, now or ever."""
    return any(_windows(rules, cluster))


def _windows(rules: Ruleset, cluster: str) -> Iterator[Maintenance]:
    """All windows of the site's lists for this cluster and its partitions."""
    for settings in (settings_of(rules, cluster), *rules.partition_guards.values()):
        yield from settings.maintenance


def ended_windows(
    rules: Ruleset, cluster: str, nodes: Iterable[SlurmNode], since: datetime, now: datetime
) -> dict[str, datetime]:
    """Node -> the end of its last window of planned work in the site's list that ended in (since, now]."""
    found: dict[str, datetime] = {}
    ends = (window.until for window in _windows(rules, cluster))
    if not any(until is not None and since < until <= now for until in ends):
        return found
    for node in nodes:
        for settings in (settings_of(rules, cluster), *settings_of_node(rules, cluster, node)):
            for window in settings.maintenance:
                over = window.until is not None and since < window.until <= now
                if over and any(matches(pattern, node) for pattern in window.nodes):
                    found[node.name] = max(window.until or now, found.get(node.name, since))
    return found


def has_bound(rules: Ruleset, cluster: str, since: datetime, now: datetime) -> bool:
    """Whether a window of the site's list begins or ends in (since, now]."""
    bounds = (bound for window in _windows(rules, cluster) for bound in (window.since, window.until))
    return any(bound is not None and since < bound <= now for bound in bounds)


def nodes_in_windows(
    rules: Ruleset, cluster: str, nodes: Iterable[SlurmNode], now: datetime
) -> frozenset[str]:
    """The nodes in planned work by the site's list."""
    if not may_be_planned(rules, cluster):
        return frozenset()
    listed = (node.name for node in nodes if _listed_window(rules, cluster, node, now) is not None)
    return frozenset(listed)


def _listed_window(rules: Ruleset, cluster: str, node: SlurmNode, now: datetime) -> Maintenance | None:
    """Planned work by the site's list, for the cluster or for the node's partitions."""
    for settings in (settings_of(rules, cluster), *settings_of_node(rules, cluster, node)):
        if window := window_of(settings.maintenance, node, now):
            return window
    return None


def planned_window(
    rules: Ruleset, cluster: str, node: SlurmNode, now: datetime, snapshot: SlurmSnapshot | None
) -> Maintenance | None:
    """Planned work by the site's list or by Slurm's own flag.

    Neither healer's reservation for tests counts, nor power saving of a node that is out of service.
    """
    if window := _listed_window(rules, cluster, node, now):
        return window
    if is_planned_work(snapshot, node):
        return Maintenance(nodes=(node.name,), why=say("decisions.shown_as", state="+".join(node.state)))
    return None


def rides(proposal: Proposal, facts: GateFacts) -> bool:
    """The node already has its slot, so this step takes no further capacity."""
    return proposal.ride or proposal.node in facts.held


class Fleet(msgspec.Struct, frozen=True):
    """Names of the nodes that the caps and the floor count."""

    names: frozenset[str]
    #: Of these, by Slurm: `out` take no new jobs, `planned` are in planned work.
    out: frozenset[str]
    planned: frozenset[str]
    #: partition -> its nodes
    partitions: Mapping[str, frozenset[str]]

    def in_partition(self, name: str) -> frozenset[str]:
        return self.partitions.get(name, frozenset())


def fleet_of(snapshot: SlurmSnapshot) -> Fleet:
    return _fleet(ByIdentity(snapshot.nodes))


def nodes_at(snapshot: SlurmSnapshot, rules: Ruleset, kind: str) -> Mapping[str, frozenset[str]]:
    """Place -> its nodes, for places of this `kind`: rack, switch or domain."""
    return _at(ByIdentity(snapshot.nodes), ByIdentity(rules.topology.of(snapshot.cluster)), kind)


@lru_cache(maxsize=4)
def _fleet(nodes: ByIdentity[Mapping[str, SlurmNode]]) -> Fleet:
    fleet = counted_gpu_nodes(nodes)
    # Ten thousand nodes have only a few states: each state is judged once.
    by_state = {node.state: node for node in fleet}
    out = {state for state, node in by_state.items() if not node.in_service}
    planned = {state for state, node in by_state.items() if node.planned}
    return Fleet(
        names=frozenset(node.name for node in fleet),
        out=frozenset(node.name for node in fleet if node.state in out),
        planned=frozenset(node.name for node in fleet if node.state in planned),
        partitions=_names_by_place((name, node) for node in fleet for name in node.partitions),
    )


@lru_cache(maxsize=12)
def _at(
    nodes: ByIdentity[Mapping[str, SlurmNode]], topology: ByIdentity[Topology], kind: str
) -> Mapping[str, frozenset[str]]:
    where = ((getattr(_place_in(topology.value, node), kind), node) for node in counted_gpu_nodes(nodes))
    return _names_by_place((name, node) for name, node in where if name)


def _names_by_place(pairs: Iterable[tuple[str, SlurmNode]]) -> Mapping[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for name, node in pairs:
        found.setdefault(name, set()).add(node.name)
    return {name: frozenset(there) for name, there in found.items()}


# --- how a guard answers


def _answer(
    kind: AnswerKind,
    guard: Guard,
    why: Said,
    *,
    limit: float | None = None,
    used: float | None = None,
    frees_at: datetime | None = None,
) -> Answer:
    return Answer(guard=guard, kind=kind, why=why, limit=limit, used=used, frees_at=frees_at)


allow = partial(_answer, AnswerKind.allow)
hold = partial(_answer, AnswerKind.hold)
refuse = partial(_answer, AnswerKind.refuse)


def unknown_node(guard: Guard, proposal: Proposal, facts: GateFacts) -> Answer:
    """The hold of a guard that needs the node and does not have it."""
    if facts.snapshot is None:
        return hold(guard, say("decisions.no_picture"))
    if proposal.node is None:
        return hold(guard, say("decisions.names_no_node"))
    return hold(guard, say("decisions.unknown_node", node=proposal.node))


# --- current activity on a node, as sentences for people ----------------------------------------------------


def context_of(
    rules: Ruleset, snapshot: SlurmSnapshot, node: SlurmNode, inventory: Inventory | None, now: datetime
) -> tuple[NodeContext, ...]:
    """The activity at the node now. `inventory`: the node's own report. Empty if the Slurm snapshot is too
    old."""
    if now - snapshot.taken_at > PICTURE_LASTS:
        return ()
    table = table_of(rules.context)
    found = at_node(
        node,
        planned=planned_window(rules, snapshot.cluster, node, now, snapshot),
        booted_at=inventory.booted_at if inventory is not None else None,
        driver=inventory.changed.get("driver") if inventory is not None else None,
    )
    if (started := at_jobs(snapshot.jobs_on(node.name))) is not None:
        found.append(started)
    shown = (_shown(activity, table, snapshot, node, now) for activity in found)
    return tuple(context for context in shown if context is not None)


def _shown(
    activity: Activity, table: ContextTable, snapshot: SlurmSnapshot, node: SlurmNode, now: datetime
) -> NodeContext | None:
    if activity.since is None:  # otherwise it lasts as long as `rules/context.yaml` says
        until = activity.until
        if activity.kind is ContextKind.maintenance and until is None:
            until = _reserved_until(snapshot, node, now)
        return NodeContext(kind=activity.kind, text=_with_end(activity.text, until, now), until=until)
    until = activity.since + table.lasts(activity.kind)
    if now >= until:
        return None
    text = _with_end(say(f"decisions.context_{activity.kind}"), until, now)
    if activity.kind is ContextKind.new_driver:
        text = say("decisions.new_version", text=text, version=activity.text)
    return NodeContext(kind=activity.kind, text=text, since=activity.since, until=until)


def _reserved_until(snapshot: SlurmSnapshot, node: SlurmNode, now: datetime) -> datetime | None:
    """When the last of Slurm's maintenance reservations on the node now ends; None if one has no end."""
    held = [
        reservation.until
        for reservation in snapshot.reservations.values()
        if reservation.maintenance and node.name in reservation.nodes and reservation.is_on(now)
    ]
    ends = [until for until in held if until is not None]
    return max(ends) if ends and len(ends) == len(held) else None


def _with_end(text: Said, until: datetime | None, now: datetime) -> Said:
    if until is None:
        return text
    day = "" if until.date() == now.date() else f"{until:%Y-%m-%d} "
    return say("decisions.until", text=text, time=f"{day}{until:%H:%M}")
