"""Where a node stands, what the site has planned for it, and which settings bind it."""

import re
from collections.abc import Iterator
from datetime import datetime
from fnmatch import fnmatchcase
from functools import lru_cache

from healer.model import (
    GateFacts,
    GuardSettings,
    Maintenance,
    Place,
    Proposal,
    Ruleset,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
)
from healer.model.reserved import only_ours

_NUMBERS = re.compile(r"\[([0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*)\]")
_FEATURE = "feature:"


def settings_of(rules: Ruleset, cluster: str) -> GuardSettings:
    return rules.cluster_guards.get(cluster, rules.guards)


def node_of(proposal: Proposal, facts: GateFacts) -> SlurmNode | None:
    """The proposal's node as Slurm's picture shows it; None without a picture, and for an unknown node."""
    if facts.snapshot is None or proposal.node is None:
        return None
    return facts.snapshot.nodes.get(proposal.node)


def job_of(proposal: Proposal, facts: GateFacts) -> SlurmJob | None:
    if facts.snapshot is None or proposal.job is None:
        return None
    return facts.snapshot.jobs.get(proposal.job)


def settings_of_node(rules: Ruleset, cluster: str, node: SlurmNode | None) -> list[GuardSettings]:
    """The settings of each partition that the node is in; the strictest of them binds. Never empty."""
    partitions = node.partitions if node else ()
    return [rules.guards_in(cluster, name) for name in partitions] or [settings_of(rules, cluster)]


def settings_of_job(rules: Ruleset, cluster: str, job: SlurmJob | None) -> GuardSettings:
    return rules.guards_in(cluster, job.partition) if job else settings_of(rules, cluster)


def place_of(rules: Ruleset, node: SlurmNode) -> Place:
    """Rack, switch, NVLink domain: Slurm's picture first (a recording may carry them), then the site's
    topology file."""
    known = rules.topology.places.get(node.name, Place())
    return Place(
        rack=node.rack or known.rack,
        switch=node.switch or known.switch,
        pod=node.pod or known.pod,
        domain=node.domain or known.domain,
    )


def matches(pattern: str, node: SlurmNode) -> bool:
    """One pattern of `protected` or `maintenance`: a name, a glob, a hostlist, or `feature:<glob>`.

    `gpu[0001-0016,0020]` is a hostlist (digits only between the brackets, equal width); every other bracket
    is the glob's.
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
    """The window of planned work that the node is in now. `until` itself is outside."""
    for window in windows:
        begun = window.since is None or window.since <= now
        over = window.until is not None and window.until <= now
        if begun and not over and any(matches(pattern, node) for pattern in window.nodes):
            return window
    return None


def may_be_planned(rules: Ruleset, cluster: str) -> bool:
    """Whether the site's lists name any planned work for this cluster, now or ever."""
    everywhere = (settings_of(rules, cluster), *rules.partition_guards.values())
    return any(settings.maintenance for settings in everywhere)


def planned_window(
    rules: Ruleset, cluster: str, node: SlurmNode, now: datetime, snapshot: SlurmSnapshot | None
) -> Maintenance | None:
    """Planned work by the site's list (of the cluster or of the node's partitions) or by Slurm's own flag.

    Our own reservation for tests is none.
    """
    for settings in (settings_of(rules, cluster), *settings_of_node(rules, cluster, node)):
        if window := window_of(settings.maintenance, node, now):
            return window
    if node.planned and not only_ours(snapshot, node):
        return Maintenance(nodes=(node.name,), why=f"Slurm shows it as {'+'.join(node.state)}")
    return None


def rides(proposal: Proposal, facts: GateFacts) -> bool:
    """The node has its slot already, so this step takes nothing more."""
    return proposal.ride or proposal.node in facts.held
