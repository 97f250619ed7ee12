"""What goes on at a node now, in plain words for people: what its faults are judged by meanwhile."""

from datetime import datetime

from healer.decisions.places import planned_window
from healer.incidents.goings import PICTURE_LASTS, ContextTable, Going, at_jobs, at_node, table_of
from healer.model import ContextKind, Inventory, NodeContext, Ruleset, SlurmNode, SlurmSnapshot

#: What begins with a moment, and lasts as long as `rules/context.yaml` has an entry for.
_BEGINS = {
    ContextKind.booted: "first minutes after boot",
    ContextKind.new_driver: "driver update",
    ContextKind.job_start: "start-up of its job",
}


def context_of(
    rules: Ruleset, snapshot: SlurmSnapshot, node: SlurmNode, told: Inventory | None, now: datetime
) -> tuple[NodeContext, ...]:
    """`told`: what is kept of the node's own word. Nothing where Slurm's picture is too old to say."""
    if now - snapshot.taken_at > PICTURE_LASTS:
        return ()
    table = table_of(rules.context)
    found = at_node(
        node,
        planned=planned_window(rules, snapshot.cluster, node, now, snapshot),
        booted_at=told.booted_at if told is not None else None,
        driver=told.changed.get("driver") if told is not None else None,
    )
    if (started := at_jobs(snapshot.jobs_on(node.name))) is not None:
        found.append(started)
    shown = (_shown(one, table, snapshot, node, now) for one in found)
    return tuple(one for one in shown if one is not None)


def _shown(
    one: Going, table: ContextTable, snapshot: SlurmSnapshot, node: SlurmNode, now: datetime
) -> NodeContext | None:
    if one.since is None:
        until = one.until
        if one.kind is ContextKind.maintenance and until is None:
            until = _reserved_until(snapshot, node)
        return NodeContext(kind=one.kind, text=_with_end(one.text, until, now), until=until)
    until = one.since + table.lasts(one.kind)
    if now >= until:
        return None
    text = _with_end(_BEGINS[one.kind], until, now)
    if one.kind is ContextKind.new_driver:
        text = f"{text}: {one.text}"
    return NodeContext(kind=one.kind, text=text, since=one.since, until=until)


def _reserved_until(snapshot: SlurmSnapshot, node: SlurmNode) -> datetime | None:
    """When Slurm's maintenance of the node ends; None where it tells no end, or none that all share."""
    held = [one.until for one in snapshot.reservations.values() if one.maintenance and node.name in one.nodes]
    ends = [until for until in held if until is not None]
    return max(ends) if ends and len(ends) == len(held) else None


def _with_end(text: str, until: datetime | None, now: datetime) -> str:
    if until is None:
        return text
    day = "" if until.date() == now.date() else f"{until:%Y-%m-%d} "
    return f"{text} until {day}{until:%H:%M} UTC"
