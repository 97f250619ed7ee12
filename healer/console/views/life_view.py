"""The life line of a node: a year of incidents, drains, repairs, and changed parts and versions."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from healer.console import words
from healer.console.views.svg_lanes import Lane, LaneChart, Mark, Span, month_ticks
from healer.model import Incident, Inventory, Severity, SlurmNode, Verb
from healer.model.slurm import HEALER
from healer.ports.answers import NodeLife
from healer.text import say

#: What the life line looks back.
LIFE = timedelta(days=365)

_TONES = {Severity.P0: "bad", Severity.P1: "bad", Severity.P2: "warn"}
_GOOD = (Verb.resume, Verb.undrain)


def life_line(life: NodeLife, shown: SlurmNode, inventory: Inventory | None, now: datetime) -> LaneChart:
    """`shown`: the node as Slurm shows it now, with the drain that is on it."""
    since = now - LIFE
    return LaneChart(
        id="life",
        title=say("console.life_title", node=shown.name),
        note=say("console.life_note"),
        since=since,
        until=now,
        lanes=(
            _incidents(life),
            Lane(name=say("console.lanes_out"), spans=tuple(_outs(life, shown))),
            Lane(name=say("console.life_repairs"), marks=tuple(_repairs(life))),
            Lane(name=say("console.life_parts"), marks=tuple(_parts(life))),
            Lane(name=say("console.life_versions"), marks=tuple(_versions(inventory))),
        ),
        ticks=month_ticks(since, now),
    )


def _incidents(life: NodeLife) -> Lane:
    """A mark where each was opened."""
    marks = []
    for incident in life.incidents:
        tone, url = _TONES.get(incident.severity, "plain"), _page(incident.id)
        marks.append(Mark(at=incident.opened, text=_titled(incident), tone=tone, url=url))
    return Lane(name=say("console.reports_incidents"), marks=tuple(marks))


def _titled(incident: Incident) -> str:
    text = words.labelled(incident.severity.value, incident.title)
    if incident.closed is None:
        return say("console.life_open", text=text)
    lasted = words.span((incident.closed - incident.opened).total_seconds())
    return say("console.life_closed_after", text=text, span=lasted)


def _outs(life: NodeLife, shown: SlurmNode) -> Iterator[Span]:
    """healer's drains; others' as far as incidents or Slurm show them."""
    for out in life.outs:
        by = say("console.life_out_by", who=HEALER.name)
        url = _page(out.incident) if out.incident else ""
        yield Span(begin=out.drained_at, end=out.released_at, text=by, tone="ask", url=url)
    for incident in life.incidents:
        if incident.owner and incident.owner_since:
            by, url = say("console.life_out_by", who=incident.owner), _page(incident.id)
            yield Span(begin=incident.owner_since, end=incident.closed, text=by, tone="warn", url=url)
    lasting = any(out.released_at is None for out in life.outs) or any(
        incident.owner and incident.is_open for incident in life.incidents
    )
    if shown.owner is not None and shown.reason_at is not None and not lasting:
        text = say("console.life_out_by", who=str(shown.owner))
        yield Span(begin=shown.reason_at, end=None, text=text, tone="warn")


def _repairs(life: NodeLife) -> Iterator[Mark]:
    for step in life.steps:
        tone = "good" if step.verb in _GOOD else "ask"
        text = say(f"console.life_step_{step.verb}")
        yield Mark(at=step.at, text=text, tone=tone, url=f"/runs/{step.run}")


def _parts(life: NodeLife) -> Iterator[Mark]:
    for burst in life.parts:
        text = say("console.life_replaced", place=burst.pci or "", part=burst.part)
        yield Mark(at=burst.began_at, text=text, tone="ask")


def _versions(inventory: Inventory | None) -> Iterator[Mark]:
    """Each change of a fact, and the last boot."""
    if inventory is None:
        return
    last = [(fact, value, at) for fact, (value, at) in inventory.changed.items()]
    for fact, value, at in (*inventory.earlier, *last):
        yield Mark(at=at, text=say("console.life_changed", fact=say(f"words.fact_{fact}"), value=value))
    if inventory.booted_at is not None:
        yield Mark(at=inventory.booted_at, text=say("console.life_booted"))


def _page(incident: str) -> str:
    return f"/incidents/{incident}"
