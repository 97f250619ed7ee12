"""What is true of a drawn recording, and the laws that its replay has to keep.

Each law is from product.md (the law of safety) and the vendor's actions in the catalogue. Where those leave
room: a failed row remap may be drained after a reboot too (a reboot does not prove the repair), a GPU's fault
may hit every job of its node where no heartbeat mapped GPUs to addresses, and planned work with faults inside
may make one incident per node.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.drawn_senders import START, Row

#: What takes a node from its users, and what ends the work of all jobs on it.
REMOVING = {"drain", "down", "reboot", "reset_gpu", "power_cycle"}
KILLING = {"down", "reboot", "power_cycle"}
#: Guards that bind even for a node that is surely unusable (law 2: the slot caps do not).
STILL_BINDING = {"floor", "breaker", "pause"}
SURE_WITHIN_S = 60
#: Every so manieth draw has quiet days after the repair, the others have six hours. With heartbeats one
#: incident (their end) is open for all those days, which costs much of the time: so they are fewer.
QUIET_EVERY, QUIET_DAYS, QUIET_DAYS_WITH_BEATS = 2, 8, 2


@dataclass(frozen=True)
class Cause:
    """One thing that truly happened."""

    kind: str
    at: float
    nodes: tuple[str, ...]
    #: Nodes that may be taken out for it; with `idle_only` not while a job runs on them.
    may_leave: frozenset[str] = frozenset()
    idle_only: bool = False
    #: Jobs that it really hit.
    hit: frozenset[str] = frozenset()
    #: How many incidents it may make.
    incidents: int = 1


@dataclass
class Drawn:
    """A recording and its truth."""

    seed: int
    #: So many quiet days follow the repair.
    quiet_days: int = 0
    rows: list[Row] = field(default_factory=list[Row])
    causes: list[Cause] = field(default_factory=list[Cause])
    #: When a node's own kernel line of a lost GPU or a failed remap arrived first.
    sure: dict[str, float] = field(default_factory=dict[str, float])
    #: Node, from, until.
    planned: list[tuple[str, float, float]] = field(default_factory=list[tuple[str, float, float]])
    jobs: dict[str, Row] = field(default_factory=dict[str, Row])
    #: When a job stopped running by itself or by Slurm.
    ended: dict[str, float] = field(default_factory=dict[str, float])
    #: When all is repaired, and Slurm shows every node well.
    repaired: float = 0.0
    #: When heartbeats end for the whole fleet, if there were any.
    telemetry_ends: float | None = None
    #: Nodes whose fault may wait and that only healer repairs.
    left_to_healer: set[str] = field(default_factory=set[str])


# --- the laws -----------------------------------------------------------------------------------------------


def broken(drawn: Drawn, document: dict[str, Any]) -> list[str]:
    """The laws that the replay broke, a sentence each."""
    laws = (
        _healthy_drained,
        _sure_in_service,
        _too_many_incidents,
        _left_open,
        _wrong_requeues,
        _killed,
        _plan_forgotten,
    )
    return [sentence for law in laws for sentence in law(drawn, document)]


def _seconds(at: str) -> float:
    return (datetime.fromisoformat(at).astimezone(UTC) - START) / timedelta(seconds=1)


def _healthy_drained(drawn: Drawn, document: dict[str, Any]) -> Iterator[str]:
    """1: what no cause takes out is not taken out; planned work and work that goes on neither."""
    repaired = _repaired(drawn)
    for action in document["actions"]:
        node, at = action["node"], _seconds(action["at"])
        if action["action"] not in REMOVING or node is None:
            continue
        causes = [cause for cause in drawn.causes if node in cause.may_leave]
        done = f"{action['action']} of {node} at {at:.0f} s"
        booted = node in repaired and at > drawn.repaired - 1
        if causes and booted and all(cause.kind != "remap_failed" for cause in causes):
            yield f"1: {done}, back with a new boot since {drawn.repaired:.0f} s ({causes[0].kind} before)"
        if not causes:
            kinds = sorted({cause.kind for cause in drawn.causes if node in cause.nodes})
            yield f"1: {done}, a node that is well ({', '.join(kinds) or 'nothing'} happened to it)"
        elif all(cause.idle_only for cause in causes) and (running := _running(drawn, document, node, at)):
            yield f"1: {done} for a fault that may wait, while {', '.join(running)} runs there"


def _repaired(drawn: Drawn) -> set[str]:
    """Nodes that Slurm shows with another boot in the end than at first."""
    first, last = dict[str, str | None](), dict[str, str | None]()
    for row in drawn.rows:
        if row["route"] == "slurm/nodes":
            for node in row["body"].get("nodes") or row["body"].get("changed", ()):
                last[node["name"]] = node.get("boot_id", last.get(node["name"]))
                first.setdefault(node["name"], last[node["name"]])
    return {name for name, boot in last.items() if boot != first[name]}


def _running(drawn: Drawn, document: dict[str, Any], node: str, at: float) -> list[str]:
    """Jobs that run on the node then, as Slurm showed and healer left them."""
    gone = {
        one["job"] for one in document["actions"] if one["action"] == "requeue" and _seconds(one["at"]) <= at
    }
    here = (job for job in drawn.jobs.values() if node in job["nodes"])
    # A document has whole seconds.
    return [job["id"] for job in here if at + 1 < drawn.ended[job["id"]] and job["id"] not in gone]


def _sure_in_service(drawn: Drawn, document: dict[str, Any]) -> Iterator[str]:
    """2: a surely dead GPU is out 60 s after its node said so, unless floor, breaker or pause hold it."""
    for node, heard in drawn.sure.items():
        latest = heard + SURE_WITHIN_S
        out = (
            one for one in document["actions"] if one["action"] in {"drain", "down"} and one["node"] == node
        )
        held = [one for one in document["held"] if one["node"] == node and one["action"] in {"drain", "down"}]
        if any(_seconds(one["at"]) <= latest for one in out):
            continue
        if any(one["guard"] in STILL_BINDING and _seconds(one["at"]) <= latest for one in held):
            continue
        guards = sorted({one["guard"] for one in held})
        yield f"2: {node} said at {heard:.0f} s that a GPU is dead; no drain in 60 s; held by {guards}"


def _too_many_incidents(drawn: Drawn, document: dict[str, Any]) -> Iterator[str]:
    """3: one incident for a cause, also at its own nodes alone, and one where all heartbeats end."""
    most = sum(cause.incidents for cause in drawn.causes)
    expected = [
        (one["rule"], one["root"].get("node"), round(_seconds(one["opened"])))
        for one in document["incidents"]
    ]
    ends = drawn.telemetry_ends or float("inf")
    found, last = (
        [one for one in expected if one[2] < ends - 1],
        [one for one in expected if one[2] >= ends - 1],
    )
    if len(last) > 1:
        yield f"3: {len(last)} incidents because all heartbeats end: {last}"
    for cause in drawn.causes:
        # An earlier cause may have had its effect here, while its own node was not heard.
        own = [one for one in found if one[1] in cause.nodes and one[2] >= cause.at - 1]
        if len(own) > cause.incidents:
            yield f"3: {len(own)} incidents at the nodes of {cause.kind}, {cause.at:.0f} s: {own}"
    if len(found) > most:
        kinds = [(cause.kind, cause.nodes[:3], round(cause.at)) for cause in drawn.causes]
        yield f"3: {len(found)} incidents for {most} causes: {found}; causes: {kinds}"


def _left_open(drawn: Drawn, document: dict[str, Any]) -> Iterator[str]:
    """4: all is repaired and days are quiet: nothing is open but the end of all heartbeats.

    A node that was taken out after the repair is still out: that is for the first law to judge.
    """
    if not drawn.quiet_days:
        return
    out = {
        one["node"]
        for one in document["actions"]
        if one["action"] in REMOVING and _seconds(one["at"]) > drawn.repaired - 1
    }
    for one in document["incidents"]:
        last = drawn.telemetry_ends is not None and _seconds(one["opened"]) >= drawn.telemetry_ends
        if (
            one["closed"] is None
            and not last
            and one["root"].get("node", "") not in out | drawn.left_to_healer
        ):
            kinds = [cause.kind for cause in drawn.causes if one["root"].get("node") in cause.nodes]
            state = f"{one['state']} after {drawn.quiet_days} quiet days"
            yield f"4: {one['rule']} at {one['root'].get('node')} is {state}; {kinds}"


def _wrong_requeues(drawn: Drawn, document: dict[str, Any]) -> Iterator[str]:
    """6: a job is requeued only when a cause hit it, once for each, and only if Slurm may."""
    done = Counter(one["job"] for one in document["actions"] if one["action"] in {"requeue", "revive"})
    for job, times in done.items():
        causes = [cause.kind for cause in drawn.causes if job in cause.hit]
        if times > len(causes):
            yield f"6: job {job} was requeued {times} times; hit by {causes}"
        first = min(_seconds(one["at"]) for one in document["actions"] if one["job"] == job)
        if first > drawn.ended.get(job, 0.0):
            yield f"6: job {job} was requeued at {first:.0f} s, after its end at {drawn.ended[job]:.0f} s"
        if drawn.jobs.get(job, {}).get("requeue") is False:
            yield f"6: job {job} was requeued, and Slurm may not requeue it"


def _killed(drawn: Drawn, document: dict[str, Any]) -> Iterator[str]:
    """A step that ends all work on a node waits for the jobs that no cause hit."""
    hit = {job for cause in drawn.causes for job in cause.hit}
    for one in document["actions"]:
        if one["action"] in KILLING and one["node"]:
            at = _seconds(one["at"])
            for job in set(_running(drawn, document, one["node"], at)) - hit:
                yield f"1: {one['action']} of {one['node']} at {at:.0f} s ends job {job}, which nothing hit"


def _plan_forgotten(drawn: Drawn, document: dict[str, Any]) -> Iterator[str]:
    """7: a plan is carried out once no job is left, and ends by a reset or a reboot, never because its line
    is not repeated (law 10).

    Where healer had drained the node, the last picture is a person's resume, and that ends it too.
    """
    ending = {"drain", "reset_gpu", "reboot", "power_cycle"}
    for one in document["incidents"]:
        node = one["root"].get("node")
        if node not in drawn.left_to_healer:
            continue
        until = _seconds(one["closed"]) if one["closed"] is not None else float("inf")
        done = [step for step in document["actions"] if step["node"] == node and step["action"] in ending]
        held = {one["guard"] for one in document["held"] if one["node"] == node}
        if any(_seconds(step["at"]) <= until for step in done):
            continue
        if one["closed"] is not None:
            yield f"7: {one['rule']} at {node} was closed at {until:.0f} s without a reset or a reboot"
        elif not held & STILL_BINDING:
            yield f"7: {one['rule']} at {node} was never carried out; held by {sorted(held)}"
