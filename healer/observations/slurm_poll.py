"""The state of slurmctld, how often it may be polled, and the places of its nodes.

The state is for people and for the pace of polling. No action on a node follows from it.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

import msgspec

from healer.model import BLOCK, Controller, Place, SlurmNode, SlurmSnapshot, Topology, Trouble, WatchSettings
from healer.text import Said, joined, quoted, say, unstopped

#: Slurm is polled at most this often, and for no more than a fortieth of the time, but with pauses of at
#: most `REST_MAX_S`: a snapshot older than `stale_s` (30 s) holds everything, and one poll may fail before
#: that. With a twentieth of the time, polls were 8% of the requests that a slurmctld of 1,250 nodes got.
POLL_S, REST_PER_S_SPENT = 2.0, 40
REST_MAX_S = 12.0
#: A longer pause ends early if a sweep holds nodes; this is how often that is checked. A user's job that
#: wants one of them must not wait over 10 s, and the run's look and Slurm's own start take about 4 of them.
SWEEP_CHECK_S = 5.0
#: While one of these lasts, each pause is twice as long as the one before.
_PRESSED = frozenset({Trouble.slow, Trouble.backlog})


class Report(NamedTuple):
    """One trouble for a page: `text` is a sentence without its full stop."""

    trouble: Trouble
    since: datetime
    text: Said


def noted(
    seen: Controller, before: Controller | None, limits: WatchSettings, *, other_cluster: bool = False
) -> Controller:
    """`seen` with its troubles, each since the poll that first showed it.

    While it does not answer, its figures are the last known ones, and what they showed continues.
    """
    if seen.problem and before is not None:
        seen = msgspec.structs.replace(
            before, at=seen.at, problem=seen.problem, adapter=seen.adapter, fallbacks=seen.fallbacks
        )
    since: Mapping[Trouble, datetime] = before.since if before else {}
    shown = [trouble for trouble in Trouble if _is_shown(trouble, seen, before, limits, other_cluster)]
    return msgspec.structs.replace(seen, since={trouble: since.get(trouble, seen.at) for trouble in shown})


def _is_shown(
    trouble: Trouble, seen: Controller, before: Controller | None, limits: WatchSettings, other_cluster: bool
) -> bool:
    match trouble:
        case Trouble.away:
            return bool(seen.problem) and not other_cluster
        case Trouble.other_cluster:
            return other_cluster
        case Trouble.backup:
            return seen.role == "backup"
        case Trouble.slow:
            return (seen.answer_s or 0) > limits.slow_s
        case Trouble.backlog:
            return (seen.threads or 0) >= limits.threads or (seen.agent_queue or 0) >= limits.agent_queue
        case Trouble.accounting:
            return _grows(seen, before)
        case Trouble.passed_over:
            return bool(seen.fallbacks)


def _grows(seen: Controller, before: Controller | None) -> bool:
    """slurmdbd accepts nothing: its queue has grown, and not shrunk since. A working slurmdbd empties it."""
    queue = seen.dbd_queue or 0
    last = before.dbd_queue if before else None
    if before is None or last is None or queue == 0:
        return False
    return queue > last or (queue == last and Trouble.accounting in before.since)


def troubles(controller: Controller | None) -> list[Report]:
    """The troubles for a page, worst first; empty if all is well or nothing is known."""
    if controller is None:
        return []
    return [
        Report(trouble, controller.since[trouble], _text(trouble, controller))
        for trouble in Trouble
        if trouble in controller.since
    ]


def _text(trouble: Trouble, seen: Controller) -> Said:
    match trouble:
        case Trouble.away:
            return say("observations.slurm_away", problem=unstopped(quoted(seen.problem or "")))
        case Trouble.other_cluster:
            return unstopped(quoted(seen.problem or ""))
        case Trouble.backup:
            if seen.host:
                return say("observations.backup_on", host=seen.host)
            return say("observations.backup")
        case Trouble.slow:
            return say("observations.slow", seconds=seen.answer_s or 0)
        case Trouble.backlog:
            return say("observations.backlog", figures=joined(_backlog(seen), "and"))
        case Trouble.accounting:
            return say("observations.accounting", records=seen.dbd_queue)
        case Trouble.passed_over:
            passed = joined((unstopped(quoted(reason)) for reason in seen.fallbacks), "semicolon")
            adapter = seen.adapter or say("observations.next_adapter")
            return say("observations.passed_over", adapter=adapter, passed=passed)


def _backlog(seen: Controller) -> Iterator[Said]:
    if seen.threads is not None:
        yield say("observations.requests", n=seen.threads)
    if seen.agent_queue is not None:
        yield say("observations.messages", n=seen.agent_queue)


def rest_s(spent_s: float, controller: Controller, last_s: float) -> float:
    """Seconds to pause after a poll that took `spent_s`, where `last_s` is the pause before it.

    Longer and longer while slurmctld is slow or behind, and at once as before after that.
    """
    wanted = max(POLL_S, REST_PER_S_SPENT * spent_s)
    if is_pressed(controller):
        wanted = max(wanted, 2 * last_s)
    return min(REST_MAX_S, wanted)


def is_pressed(controller: Controller) -> bool:
    """slurmctld is slow or behind: nothing makes healer ask more often."""
    return not _PRESSED.isdisjoint(controller.since)


#: Node -> its switches, leaf first; or the block of topology/block, marked as one.
Switches = Mapping[str, tuple[str, ...]]


class Placing:
    """Adds places to snapshots. While nothing has changed, it returns the same mapping of nodes."""

    def __init__(self) -> None:
        self._last: tuple[Mapping[str, SlurmNode], Topology, Switches, Mapping[str, SlurmNode]] | None = None

    def placed(self, snapshot: SlurmSnapshot, topology: Topology, switches: Switches) -> SlurmSnapshot:
        last = self._last
        same = last and last[0] is snapshot.nodes and last[1] is topology and last[2] is switches
        if last and same:
            return msgspec.structs.replace(snapshot, nodes=last[3])
        found = with_places(snapshot, topology, switches)
        self._last = (snapshot.nodes, topology, switches, found.nodes)
        return found


def with_places(snapshot: SlurmSnapshot, topology: Topology, switches: Switches) -> SlurmSnapshot:
    """If the snapshot has no place: the file's, else that of Slurm's own tree."""
    if not topology.places and not switches:
        return snapshot
    nodes = {
        name: placed(node, topology.place(snapshot.cluster, name), switches.get(name, ()))
        for name, node in snapshot.nodes.items()
    }
    return msgspec.structs.replace(snapshot, nodes=nodes)


def placed(node: SlurmNode, place: Place, above: tuple[str, ...] = ()) -> SlurmNode:
    """A Slurm block is what the site says it is: nodes that share one NVLink domain."""
    blocks = tuple(name.removeprefix(BLOCK) for name in above if name.startswith(BLOCK))
    above = tuple(name for name in above if not name.startswith(BLOCK))
    leaf = node.switch or place.switch or (above[0] if above else "")
    if place == Place() and not leaf and not blocks:
        return node
    return msgspec.structs.replace(
        node,
        rack=node.rack or place.rack,
        switch=leaf,
        pod=node.pod or place.pod,
        domain=node.domain or place.domain or (blocks[0] if blocks else ""),
        pdu=node.pdu or place.pdu,
        row=node.row or place.row,
        # Slurm's tree says nothing about a leaf that is not above the node.
        switches=above[above.index(leaf) :] if leaf in above else (leaf,) if leaf else (),
    )
