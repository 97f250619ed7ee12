"""How an incident lives on after it opened: people's words, runs' news, and its end."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

import msgspec

from healer.detection.reported import fault_of
from healer.detection.silence import is_fleet
from healer.incidents.growth import last_heard, with_set_aside
from healer.incidents.part_history import Cleared, find_cleared, rung_of
from healer.model import (
    ENDED_RUN_STATES,
    HARDWARE,
    PROBATION,
    REMEDY_LADDER,
    Cause,
    Command,
    CommandKind,
    FaultClass,
    Incident,
    IncidentState,
    Remedy,
    Review,
    Ruleset,
    RunState,
    Sense,
    SetAside,
    SlurmNode,
    Verdict,
)
from healer.model.faults import (
    FLEET_SILENT,
    HEALER_DRAIN,
    NODE_SILENT,
    PLACES_SILENT,
    SENDER_SILENT,
    SERVER_AWAY,
    Trait,
    check_of,
    fault_is,
)
from healer.model.slurm import is_our_reservation, is_ours
from healer.observations import Picture

#: Incidents that nobody acts on end by themselves after this long without new evidence.
QUIET = {
    FaultClass.application: timedelta(minutes=10),
    FaultClass.unknown: timedelta(hours=24),
    FaultClass.degraded: timedelta(hours=24),
    FaultClass.informational: timedelta(minutes=10),
}
#: An incident of a measured signal ends when that is known to be well again for so long.
CLEAR_FOR = timedelta(minutes=5)
#: Nobody has told of it for so long, and nobody knows it to be gone: whoever measured it does not any more.
UNTOLD_FOR = timedelta(hours=24)
_WELL, _UNTOLD = "well again", "nobody tells of it any more"


def apply_command(incident: Incident, command: Command) -> Incident:
    """The incident after one command. Unknown words in its data are ignored, missing ones are errors."""
    data, at = command.data, command.at
    change: dict[str, object] = {"updated": at}
    match command.kind:
        case CommandKind.acknowledge:
            change["acknowledged_by"] = command.by
        case CommandKind.resolve:
            change |= {"state": IncidentState.resolved, "closed": at, "run": None, "held_by": None}
            change["p0_since"] = None
            change["closed_why"] = f"resolved by {command.by}: {command.reason}"
        case CommandKind.reopen:
            change |= {"state": IncidentState.open, "closed": None, "closed_why": None, "decision_key": ""}
            change |= {"stopped_by": None, "merged_into": None, "run": None, "p0_since": None}
        case CommandKind.review:
            change |= {"review": Review(data["review"]), "review_cause": data.get("cause") or None}
        case CommandKind.merge:
            change |= {"state": IncidentState.resolved, "closed": at, "merged_into": str(data["into"])}
            change |= {"run": None, "held_by": None, "p0_since": None}
            change["closed_why"] = f"merged by {command.by}: {command.reason}"
        case CommandKind.jobs_hit:
            change |= {"jobs_hit": tuple(data["jobs"]), "jobs_hit_final": True}
            change["drained_at"] = at
        case CommandKind.run_changed:
            change |= _run_changed(incident, data, command.by, at) | _tested(incident, data)
            change["tried"] = _tried(incident, data)
        case CommandKind.node_returned:
            change |= {"state": IncidentState.resolved, "closed": at, "run": None, "held_by": None}
            change["p0_since"] = None
            change["closed_why"] = f"returned to service by {command.by}: {command.reason}"
            change["probation_until"] = at + PROBATION
            change["nodes"] = {name: Verdict.watch for name in incident.nodes}
            change["known_bad_in_service"] = False
            change["tried"] = _tried(incident, data)
            change |= _tested(incident, data)
        case CommandKind.split:
            pass  # the walk takes its parts out of it
    return msgspec.structs.replace(incident, **change)


def _tested(incident: Incident, data: Mapping[str, object]) -> dict[str, object]:
    """What the run's tests say of the cause. What rules take it for until then is no more than a guess."""
    if data.get("tests") == "failed" and incident.cause in {Cause.unclear, Cause.transient}:
        return {"cause": Cause.permanent}
    if data.get("tests") == "passed" and incident.cause is Cause.unclear:
        return {"cause": Cause.transient}
    return {}


def _tried(incident: Incident, data: Mapping[str, object]) -> Remedy:
    """What was done for it by now: a run's own steps, or all that was asked for, by a person's word."""
    done = [incident.tried, Remedy(str(data.get("tried", Remedy.none)))]
    if data.get("repaired"):
        done.append(rung_of(incident.remedy))
    return max(done, key=REMEDY_LADDER.index)


def _run_changed(incident: Incident, data: Mapping[str, object], by: str, at: datetime) -> dict[str, object]:
    if not incident.is_open:
        return {}
    state = RunState(str(data["state"]))
    returning = data.get("playbook") == "resume"
    if state is RunState.running:
        return {"state": IncidentState.verifying if returning else IncidentState.mitigating}
    own = incident.run == data.get("run")
    if own and state is RunState.done and data.get("early"):
        return {"run": None, "state": IncidentState.open}
    if own and state is RunState.done and incident.root.node is None:
        if not data.get("restarted"):
            return {"state": IncidentState.open}  # nothing is given back: over once it is known to be gone
        # A job that was put back has another life: what befalls that is news.
        why = f"its run of {data.get('playbook')} is done"
        over: dict[str, object] = {"run": None, "held_by": None, "p0_since": None}
        return over | {"state": IncidentState.resolved, "closed": at, "closed_why": why}
    if own and state in {RunState.cancelled, RunState.rejected, RunState.undone}:
        return {"run": None, "state": IncidentState.open, "stopped_by": by}
    if not own and state in ENDED_RUN_STATES:  # a person's run beside it
        return {"state": IncidentState.mitigating if incident.run else IncidentState.open}
    return {}


def close_what_is_over(
    incident: Incident, picture: Picture, now: datetime, *, measured: bool = False
) -> Incident:
    """Ends an incident whose cause is gone by itself; one that healer works on ends only with its run.

    A run that only waits for leave is the caller's to withdraw. `measured`: as `is_measured` says.
    """
    if incident.state is not IncidentState.open:
        return incident
    why = _measured_over(incident, picture, now) if measured else _gone(incident, picture, now)
    if why is None:
        return incident
    return msgspec.structs.replace(
        incident,
        state=IncidentState.resolved,
        closed=now,
        updated=now,
        closed_why=why,
        held_by=None,
        run=None,
    )


def is_measured(rules: Ruleset, incident: Incident) -> bool:
    """Whether ticks over the fleet tell when its cause is gone."""
    if fault_is(incident.fault, Trait.sampled):
        return True
    rule = rules.by_name.get(incident.rule)
    return rule is not None and rule.detection


def clear_since(incident: Incident, picture: Picture) -> datetime | None:
    """Since when the last tick over the fleet knows the cause to be gone; without one, as it was known."""
    if picture.sensed is None:
        return incident.clear_since
    return picture.sensed.clear_since.get((incident.fault, incident.root))


def _measured_over(incident: Incident, picture: Picture, now: datetime) -> str | None:
    """A fatal one ends with a person or its run alone: a counter that stands still is no repaired GPU.

    By the time of the tick that said so: one that came long ago says nothing of now.
    """
    if incident.fault_class is FaultClass.fatal:
        return None
    since = clear_since(incident, picture)
    if now - last_heard(incident) > UNTOLD_FOR:
        return _UNTOLD
    if since is None or picture.sensed is None or picture.sensed.at - since < CLEAR_FOR:
        return None
    return f"{_WELL} since {since:%H:%M:%S} UTC"


def ended_by_itself(incident: Incident) -> bool:
    """What was measured is gone, or is told no more; no person and no run had a hand in it."""
    return (incident.closed_why or "").startswith((_WELL, _UNTOLD))


def heard_again(incident: Incident, picture: Picture, now: datetime) -> Incident:
    """Notes since when a silent node speaks again, also while Slurm does not reach it: whoever drives the run
    reads it there."""
    node = incident.root.node
    if incident.fault != NODE_SILENT or not incident.is_open or node is None:
        return incident
    speaks = _speaks(picture, node, incident, now)
    since = (incident.clear_since or picture.node(node).beats[-1]) if speaks else None
    return incident if since == incident.clear_since else msgspec.structs.replace(incident, clear_since=since)


def _gone(incident: Incident, picture: Picture, now: datetime) -> str | None:
    node = incident.root.node
    shown = picture.slurm.nodes.get(node) if picture.slurm and node else None
    if fault_is(incident.fault, Trait.drain):
        if shown is None:
            return None
        if not shown.held:
            return "the drain was lifted in Slurm"
        if is_ours(shown.reason):
            if fault_is(incident.fault, Trait.slurm_drain):
                return "healer drained the node"
            # Both may have drained in the same instant: then theirs is gone, and nobody else would know.
            return f"healer's drain stands where {incident.owner}'s stood: ask whether theirs still holds"
        theirs = fault_of(shown, picture.slurm)
        return f"held by {shown.owner} now" if theirs not in (None, incident.fault) else None
    if fault_is(incident.fault, Trait.alert):
        if (incident.fault, incident.root) in picture.alerts.standing:
            return None
        if all(one.sense is Sense.alert for one in incident.evidence):
            return "the alert is resolved, or nobody repeats it"
    if fault_is(incident.fault, Trait.watched):
        stands = picture.looked_at is None or (incident.fault, incident.root) in picture.standing
        return None if stands else "Slurm shows it no more"
    if (check := check_of(incident.fault)) is not None and node:
        _, passed_at = picture.node(node).checks.get(check, (None, None))
        return "the check passes again" if passed_at is not None and passed_at > incident.opened else None
    if incident.fault == HEALER_DRAIN:
        kept = any(one.name == node for one in our_drains(picture))
        return None if kept or shown is None else "the drain was lifted"
    if incident.fault in {NODE_SILENT, SENDER_SILENT} and node:
        if _speaks(picture, node, incident, now) and (shown is None or shown.responding):
            return "the node speaks again"
        if incident.fault == NODE_SILENT and shown is not None and shown.responding:
            return "Slurm reaches the node again"  # its sender alone is silent, which is told by itself
        return None
    if incident.fault in PLACES_SILENT:
        if all(_speaks(picture, one.node, incident, now) for one in incident.affected if one.node):
            return "the nodes speak again"
        return None
    if incident.fault == SERVER_AWAY and _server_is_back(picture, incident):
        return "the server answers all that told of it"
    if incident.fault == FLEET_SILENT:
        return "the nodes speak again" if _fleet_speaks(picture, now) else None
    quiet = QUIET.get(incident.fault_class)
    if quiet is not None and now - incident.updated > quiet:
        return f"nothing new for {int(quiet.total_seconds() // 60)} min"
    return None


def our_drains(picture: Picture) -> list[SlurmNode]:
    """Nodes that healer keeps out: by its words, DOWN ones too, or by its reservation for tests."""
    slurm = picture.slurm
    if slurm is None:
        return []
    ours = (one for one in slurm.reservations.values() if is_our_reservation(one))
    reserved = {name for one in ours for name in one.nodes}
    held = {node.name for node in slurm.held_nodes if is_ours(node.reason)}
    out = held | reserved
    return [node for name, node in slurm.nodes.items() if name in out] if out else []


def _speaks(picture: Picture, node: str, incident: Incident, now: datetime) -> bool:
    """Heard since the incident opened: after a restart an empty memory is no sign of life."""
    known = picture.node(node)
    heard = bool(known.beats) and known.beats[-1] > incident.opened
    return heard and known.silent_since(now) is None


def _server_is_back(picture: Picture, incident: Incident) -> bool:
    nodes = {one.node for one in incident.affected if one.node}
    back = (picture.servers_back.get((incident.root.device or "", node)) for node in nodes)
    return bool(nodes) and all(at is not None and at >= incident.opened for at in back)


def _fleet_speaks(picture: Picture, now: datetime) -> bool:
    """So few are silent that it is theirs again; each of them is told by itself then."""
    senders = list(picture.senders())
    silent = sum(1 for node in senders if node.silent_since(now) is not None)
    return bool(senders) and not is_fleet(silent, len(senders))


def find_auto_resolve(rules: Ruleset, picture: Picture, incident: Incident) -> Cleared | None:
    """Why all that was told of it is over, by what was told last; None: some of it still stands, for all that
    anybody knows."""
    bursts = picture.history.placed_in(incident.id)
    if not incident.is_open or not bursts or is_measured(rules, incident):
        return None
    found = [find_cleared(rules, picture, part, burst) for part, burst in bursts]
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return None
    return msgspec.structs.replace(known[-1], proven=all(one.proven for one in known))


def is_untreated(incident: Incident) -> bool:
    """Then nothing is left to be proven or given back."""
    return incident.state is IncidentState.open and incident.drained_at is None


def auto_resolve(incident: Incident, cleared: Cleared, now: datetime) -> Incident:
    cause = incident.cause
    if cleared.replaced:
        cause = Cause.permanent
    elif cause is Cause.unclear:
        cause = Cause.transient
    return msgspec.structs.replace(
        incident,
        state=IncidentState.resolved,
        cause=cause,
        closed=now,
        updated=now,
        closed_why=cleared.why,
        clear_since=now,
        tried=_done_by(incident, cleared),
        held_by=None,
        run=None,
        p0_since=None,
        known_bad_in_service=False,
    )


def _done_by(incident: Incident, cleared: Cleared) -> Remedy:
    """Of what was asked for, as much as must have been done. A boot that nobody asked for is none of it."""
    asked = min(rung_of(incident.remedy), cleared.done, key=REMEDY_LADDER.index)
    return max(incident.tried, asked, key=REMEDY_LADDER.index)


def note_cleared(incident: Incident, cleared: Cleared, now: datetime) -> Incident:
    """Once each: a person reads why it is still open."""
    if any(one.what == cleared.why for one in incident.set_aside):
        return incident
    if not cleared.proven:
        why = "the fault may have outlived that: a test has to tell"
    else:
        why = "healer is at work on it: its tests decide"
    return with_set_aside(incident, SetAside(at=now, what=cleared.why, why=why, component=incident.root))


#: Titles of one node that are passed on.
_MOST = 4


def open_faults(incidents: Iterable[Incident]) -> dict[str, tuple[str, ...]]:
    """Node -> titles of its open incidents of hardware, or of what comparing found. What people or Slurm do
    with a node, and who is silent, says nothing of how fast it is."""
    found: dict[str, tuple[str, ...]] = {}
    for one in incidents:
        node = one.root.node
        if node is None or not one.is_open or one.clear_since is not None:
            continue
        known = found.get(node, ())
        if (one.fault_class in HARDWARE or fault_is(one.fault, Trait.sampled)) and len(known) < _MOST:
            found[node] = (*known, one.title)
    return found
