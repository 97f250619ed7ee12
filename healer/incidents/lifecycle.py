"""How an incident changes after it opened: by commands, by news of runs, and at its end."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

import msgspec

from healer.detection.protocol import Pair
from healer.detection.reported import fault_of
from healer.detection.silence import JUST_BACK, is_just_back
from healer.incidents.certainty import last_heard
from healer.incidents.growth import add_ruled_out, end_incident
from healer.incidents.part_history import (
    Cleared,
    asks_for_more,
    find_cleared,
    ladder_of_burst,
    part_of,
    rung_of,
)
from healer.incidents.second_look import SECOND_LOOK, after_look
from healer.model import (
    ENDED_RUN_STATES,
    HARDWARE,
    PROBATION,
    REMEDY_LADDER,
    Cause,
    Command,
    CommandKind,
    ContextKind,
    ContextRule,
    FaultBurst,
    FaultClass,
    GoneAfter,
    Incident,
    IncidentState,
    Remedy,
    Review,
    RuledOut,
    Ruleset,
    RunState,
    Sense,
    Sharing,
    SlurmNode,
    SlurmSnapshot,
    Verdict,
)
from healer.model.faults import (
    HEALER_DRAIN,
    LINK_BACK,
    LINK_LOST,
    NODE_SILENT,
    OUTAGES,
    PORT_STAYS_DOWN,
    REPEATS,
    SENDER_SILENT,
    SERVER_AWAY,
    SHARED_FAULT,
    Trait,
    check_of,
    fault_is,
    fits,
    wave_rule,
)
from healer.model.gate import CLOCKS_DIFFER
from healer.model.slurm import is_our_reservation, is_ours
from healer.observations import Picture
from healer.text import Said, quoted, say

#: Incidents without an action end by themselves after this time without new evidence.
QUIET = {
    FaultClass.application: timedelta(hours=1),  # lines of the job's other nodes may be this late
    FaultClass.unknown: timedelta(hours=24),
    FaultClass.degraded: timedelta(hours=24),
    FaultClass.informational: timedelta(minutes=10),
}
#: If only a ticket was wanted and it is filed, the incident ends after this time without a sign.
TICKET_QUIET = timedelta(hours=24)
#: An incident of a measured signal ends when the signal has been good for this long.
CLEAR_FOR = timedelta(minutes=5)
#: Without a report for this long, and not known to be gone: its source no longer measures it.
FORGOTTEN_AFTER = timedelta(hours=24)
#: How long after planned work a fault from within it has to be seen again.
PROOF = timedelta(minutes=30)
#: How long the ports of a switch must be up after it lost all of them at once.
PORTS_UP_FOR = timedelta(minutes=30)
#: The incident ended, but its ticket did not.
LEFT_TO_TICKET = "incidents.left_to_ticket"
_WELL, _NOT_REPORTED = "incidents.well_again", "incidents.not_reported"
_NOTHING_NEW = "incidents.nothing_new"
#: How these two texts begin in incidents of versions that stored no keys.
_WITHOUT_KEY = ("well again", "nobody tells of it any more")


def jobs_listed(incident: Incident, jobs: Iterable[str]) -> tuple[str, ...]:
    """The jobs hit, once a run has listed these. The first list replaces the estimate. A later one, such as
    at the node's return, is added to it."""
    return tuple(sorted({*(incident.jobs_hit if incident.jobs_hit_final else ()), *jobs}))


def ended(at: datetime, why: Said) -> dict[str, object]:
    """What changes in an incident that ends."""
    over: dict[str, object] = {"state": IncidentState.resolved, "closed": at, "closed_why": why}
    return over | {"run": None, "held_by": None, "p0_since": None}


def apply_command(incident: Incident, command: Command) -> Incident:
    """The incident after a command. Unknown words in its data are ignored; missing ones are errors."""
    data, at = command.data, command.at
    change: dict[str, object] = {"updated": at}
    match command.kind:
        case CommandKind.acknowledge:
            # Of two people at once the first keeps it. `assign` is how a person takes it over.
            change["acknowledged_by"] = incident.acknowledged_by or command.by
        case CommandKind.assign:
            change["acknowledged_by"] = str(data["to"])
        case CommandKind.resolve:
            change |= ended(at, _by_person("resolved", command))
        case CommandKind.reopen if incident.is_open and incident.stopped_by is None:
            return incident  # another person was first, and healer may be working on it
        case CommandKind.reopen:
            change |= _reopened(incident, at)
        case CommandKind.review:
            change |= {"review": Review(data["review"]), "review_cause": data.get("cause") or None}
        case CommandKind.merge:
            change |= ended(at, _by_person("merged", command)) | {"merged_into": str(data["into"])}
        case CommandKind.jobs_hit:
            change |= {"jobs_hit": jobs_listed(incident, data["jobs"]), "jobs_hit_final": True}
            change["drained_at"] = incident.drained_at or at
            if incident.state is IncidentState.open:  # its plan is being carried out now
                change["state"] = IncidentState.mitigating
        case CommandKind.run_changed if data.get("playbook") == SECOND_LOOK:
            look = data.get("look")
            return after_look(incident, str(data["run"]), look, at) if look else incident
        case CommandKind.run_changed:
            change |= _run_changed(incident, data, command.by, at) | _cause_by_tests(incident, data)
            change["tried"] = _remedy_tried(incident, data)
        case CommandKind.node_returned:
            change |= ended(at, _by_person("returned", command))
            change["probation_until"] = at + PROBATION
            change["nodes"] = {name: Verdict.watch for name in incident.nodes}
            change["known_bad_in_service"] = False
            change["tried"] = _remedy_tried(incident, data)
            change |= _cause_by_tests(incident, data)
        case CommandKind.split:
            pass  # the walk splits off its parts
    return msgspec.structs.replace(incident, **change)


def _reopened(incident: Incident, at: datetime) -> dict[str, object]:
    change: dict[str, object] = {"state": IncidentState.open, "closed": None, "closed_why": None}
    change |= {"decision_key": "", "stopped_by": None, "merged_into": None, "run": None, "p0_since": None}
    change |= {"acknowledged_by": None, "reopened_at": at}
    if incident.waits_since is not None:  # the person confirms the fault, so nothing is awaited
        change |= {"waits_since": None, "seen_again": at}
    return change


def _by_person(what: str, command: Command) -> Said:
    return say(f"incidents.person_{what}", who=quoted(command.by), reason=quoted(command.reason))


def _cause_by_tests(incident: Incident, data: Mapping[str, object]) -> dict[str, object]:
    """The cause by the run's tests; until then the rules' cause is only an assumption."""
    if data.get("tests") == "failed" and incident.cause in {Cause.unclear, Cause.transient}:
        return {"cause": Cause.permanent}
    if data.get("tests") == "passed" and incident.cause is Cause.unclear:
        return {"cause": Cause.transient}
    return {}


def _remedy_tried(incident: Incident, data: Mapping[str, object]) -> Remedy:
    """The highest remedy carried out so far: of the run's steps, or everything that was requested if a person
    declares a repair."""
    done = [incident.tried, Remedy(str(data.get("tried", Remedy.none)))]
    if data.get("repaired"):
        done.append(rung_of(incident.remedy))
    return max(done, key=REMEDY_LADDER.index)


def _run_changed(incident: Incident, data: Mapping[str, object], by: str, at: datetime) -> dict[str, object]:
    if not incident.is_open:
        return {}
    state = RunState(str(data["state"]))
    returning = data.get("playbook") == "resume"
    is_own = incident.run == data.get("run")
    if data.get("beside") and not is_own:
        return {}  # the restart of a job while a plan still waits
    if state is RunState.running:
        return {"state": IncidentState.verifying if returning else IncidentState.mitigating}
    if is_own and state is RunState.done and data.get("early") and incident.root.node is not None:
        return {"run": None, "state": IncidentState.open}
    if is_own and state is RunState.done and incident.root.node is None:
        # Ended early: the life of the job in question is over.
        if not (data.get("restarted") or data.get("early")):
            return {"state": IncidentState.open}  # nothing was taken: over once the fault is known to be gone
        # A requeued job has a new life: what happens to that one is news.
        return ended(at, say("incidents.run_done", playbook=str(data.get("playbook"))))
    if is_own and state in {RunState.cancelled, RunState.rejected, RunState.undone}:
        return {"run": None, "state": IncidentState.open, "stopped_by": by}
    if not is_own and state in ENDED_RUN_STATES:  # another run, by a person
        return {"state": IncidentState.mitigating if incident.run else IncidentState.open}
    return {}


def close_if_over(
    incident: Incident,
    picture: Picture,
    now: datetime,
    *,
    measured: bool = False,
    has_ticket: Callable[[str], bool] = lambda _: False,
) -> Incident:
    """Ends an incident whose cause is gone by itself; an incident that healer works on ends only with its
    run.

    The caller withdraws a run that only waits for permission. `measured`: ticks over the fleet report on it,
    and `clear_since` is recorded. `has_ticket`: whether the ticket of the incident of this id was filed.
    """
    if incident.state is not IncidentState.open:
        return incident
    over = _why_measured_over if measured else _why_gone
    why = (
        _why_not_seen_again(incident, now)
        or over(incident, picture, now)
        or _why_left_to_ticket(incident, has_ticket, now)
    )
    if why is None:
        return incident
    return msgspec.structs.replace(end_incident(incident, why, now), held_by=None, run=None)


def _why_not_seen_again(incident: Incident, now: datetime) -> Said | None:
    over = incident.waits_since
    if over is None or now - over < PROOF:
        return None
    minutes = int(PROOF.total_seconds() // 60)
    after = "work" if incident.plan else "boot"
    return say(f"incidents.not_seen_after_{after}", minutes=minutes)


#: How long after planned work its nodes take to come back (`worked_on` in rules/context.yaml).
COMES_BACK = timedelta(minutes=10)


def confirm_unhealed(rules: Ruleset, picture: Picture, incident: Incident, now: datetime) -> Incident:
    """The incident, marked as seen again if a dead part has outlived planned maintenance: only a boot could
    have brought it back, and the node is heard afterwards still in the boot of the fault. Needed because such
    a fault is reported only once."""
    since, node = incident.waits_since, picture.node(incident.root.node or "")
    work = entry_of_plan(rules, incident)
    if since is None or not incident.unusable or work is None or work.when is not ContextKind.maintenance:
        return incident
    heard = node.last_heard_at is not None and node.last_heard_at > since and now - since >= COMES_BACK
    bursts = picture.history.placed_in(incident.id)
    if not heard or not bursts or any(_may_have_ended(rules, picture, burst) for _, burst in bursts):
        return incident
    return msgspec.structs.replace(incident, waits_since=None, seen_again=now)


def entry_of_plan(rules: Ruleset, incident: Incident) -> ContextRule | None:
    """The entry of `rules/context.yaml` for the planned work under which it arose."""
    return next((entry for entry in rules.context if entry.name == incident.plan), None)


def _may_have_ended(rules: Ruleset, picture: Picture, burst: FaultBurst) -> bool:
    """Whether another boot or a repair may have ended it, or something less than a boot ends such a fault."""
    node, ladder = picture.node(burst.node), ladder_of_burst(rules, picture, burst)
    needs_boot = ladder is not None and ladder.gone_after in {GoneAfter.boot, GoneAfter.seen}
    repaired = node.cleared_at is not None and node.cleared_at >= burst.last_at
    return not needs_boot or repaired or burst.boot_id is None or burst.boot_id != node.boot_id


def _why_left_to_ticket(incident: Incident, has_ticket: Callable[[str], bool], now: datetime) -> Said | None:
    """Why the incident is left to its ticket: nothing else was wanted, it is filed, and no sign has come for
    long. People continue from the ticket."""
    if not is_planned(incident) or rung_of(incident.remedy) is not Remedy.none:
        return None
    if now - max(incident.updated, last_heard(incident)) <= TICKET_QUIET or not has_ticket(incident.id):
        return None
    return say("incidents.left_to_ticket", hours=int(TICKET_QUIET.total_seconds() // 3600))


def is_planned(incident: Incident) -> bool:
    """A remedy or ticket is planned: proof ends such an incident, silence does not."""
    wanted = rung_of(incident.remedy) is not Remedy.none or Remedy.ticket in incident.remedy
    return wanted and incident.fault_class is FaultClass.degraded


def is_unfinished(incident: Incident, returned: Command) -> bool:
    """healer returned the node after repairing another fault, and did less than this one asks for. A node
    that a person returns counts as repaired."""
    if returned.by != "healer" or incident.fault_class not in HARDWARE:
        return False
    return asks_for_more(incident.remedy, Remedy(str(returned.data.get("tried", Remedy.none))))


def is_measured(rules: Ruleset, incident: Incident) -> bool:
    """Whether ticks over the fleet report that its cause is gone."""
    if fault_is(incident.fault, Trait.sampled):
        return True
    return _is_detected(rules, incident.rule)


def measured_pairs(rules: Ruleset, picture: Picture, incident: Incident) -> tuple[Pair, ...]:
    """The faults and parts that a tick over the fleet must find gone before the incident is over; empty if
    ticks do not measure it."""
    if is_measured(rules, incident):
        return ((incident.fault, incident.root),)
    if incident.root.node is not None:  # the usual case: not a place
        return ()
    sharing = next((sharing for sharing in rules.sharings if sharing.fault == incident.fault), None)
    return _pairs_of_place(rules, picture, incident, sharing) if sharing is not None else ()


def _pairs_of_place(
    rules: Ruleset, picture: Picture, incident: Incident, sharing: Sharing
) -> tuple[Pair, ...]:
    """The measured faults at the parts of a place. Empty if a part has another fault, which no tick
    withdraws. Without ports of devices, and without faults that add up or last according to kernel lines."""
    since = incident.opened - sharing.within
    found: list[Pair] = []
    for where in incident.affected:
        bursts = picture.history.on(where.node or "", part_of(picture, where))
        faults = {
            burst.fault for _, burst in bursts if burst.last_at >= since and fits(burst.fault, sharing.faults)
        }
        if not all(_is_detected(rules, fault) for fault in faults):
            return ()
        found += [(fault, where) for fault in sorted(faults)]
    return tuple(found)


def _is_detected(rules: Ruleset, fault: str) -> bool:
    rule = rules.by_name.get(fault)
    return rule is not None and rule.detection


def find_clear_since(incident: Incident, picture: Picture, pairs: Iterable[Pair]) -> datetime | None:
    """Since when all `pairs` are gone, by the last tick over the fleet; without a tick, as recorded
    before."""
    if picture.sensed is None:
        return incident.clear_since
    since = [picture.sensed.clear_since.get(pair) for pair in pairs]
    cleared = [at for at in since if at is not None]
    return max(cleared) if cleared and len(cleared) == len(since) else None


def _why_measured_over(incident: Incident, picture: Picture, now: datetime) -> Said | None:
    """Why a measured fault is over. A fatal one is ended only by a person or its run: a counter at rest does
    not mean a repaired GPU. A request by the driver is over when the driver no longer makes it.

    Judged at the time of the tick that reported it: an old tick says nothing about now.
    """
    if incident.fault_class is FaultClass.fatal and not fault_is(incident.fault, Trait.shown_ask):
        return None
    if now - last_heard(incident) > FORGOTTEN_AFTER and not is_planned(incident):
        return say("incidents.not_reported")
    cleared = _find_well_again(incident, picture)
    return cleared.why if cleared is not None else None


def _find_well_again(incident: Incident, picture: Picture) -> Cleared | None:
    """The proof that ticks have found the measured fault gone for long enough."""
    since = incident.clear_since
    if since is None or picture.sensed is None or picture.sensed.at - since < CLEAR_FOR:
        return None
    return Cleared(why=say("incidents.well_again", time=f"{since:%H:%M:%S}"), at=since)


def find_withdrawn(rules: Ruleset, picture: Picture, incident: Incident) -> Cleared | None:
    """The proof that the fault of a drained node is over: a line, or the gauge that showed it, says that the
    repair was completed or the request withdrawn."""
    if fault_is(incident.fault, Trait.shown_ask):
        return _find_well_again(incident, picture)
    return find_auto_resolve(rules, picture, incident)


def ended_by_itself(incident: Incident) -> bool:
    """The measured fault ended or was no longer reported, without a person or a run."""
    why = quoted(incident.closed_why or "")
    return why.key in (_WELL, _NOT_REPORTED) if why.key else why.startswith(_WITHOUT_KEY)


def explained_by_root(merged: Incident) -> bool:
    """healer merged it, not a person."""
    return quoted(merged.closed_why or "").key == "incidents.explained"


def ended_by_quiet(incident: Incident) -> bool:
    return quoted(incident.closed_why or "").key == _NOTHING_NEW


def is_left_to_ticket(incident: Incident) -> bool:
    return quoted(incident.closed_why or "").key == LEFT_TO_TICKET


def note_heard_again(incident: Incident, picture: Picture, now: datetime) -> Incident:
    """Records since when a silent node sends again, even while Slurm does not reach it; the run reads
    this."""
    node = incident.root.node
    if incident.fault != NODE_SILENT or not incident.is_open or node is None:
        return incident
    speaks = _sends_again(picture, node, incident, now)
    since = (incident.clear_since or picture.node(node).beats[-1]) if speaks else None
    return incident if since == incident.clear_since else msgspec.structs.replace(incident, clear_since=since)


def _why_gone(incident: Incident, picture: Picture, now: datetime) -> Said | None:
    node = incident.root.node
    shown = picture.slurm_node(node)
    if fault_is(incident.fault, Trait.drain):
        if shown is None:
            return None
        if not shown.held:
            return say("incidents.lifted_in_slurm")
        if is_ours(shown.reason):
            if fault_is(incident.fault, Trait.slurm_drain):
                return say("incidents.we_drained")
            # Both may have drained it at the same instant: only this incident knows about their drain.
            return say("incidents.drain_replaced", who=incident.owner)
        theirs = fault_of(shown, picture.slurm)
        return None if theirs in (None, incident.fault) else say("incidents.held_by", who=str(shown.owner))
    if fault_is(incident.fault, Trait.alert):
        if (incident.fault, incident.root) in picture.alerts.standing:
            return None
        if all(evidence.sense is Sense.alert for evidence in incident.evidence):
            return say("incidents.alert_resolved")
    if fault_is(incident.fault, Trait.watched):
        lasts = picture.looked_at is None or (incident.fault, incident.root) in picture.standing
        return None if lasts else say("incidents.not_shown")
    if (check := check_of(incident.fault)) is not None and node:
        _, passed_at = picture.node(node).checks.get(check, (None, None))
        return (
            say("incidents.check_passes") if passed_at is not None and passed_at > incident.opened else None
        )
    if incident.fault == HEALER_DRAIN:
        lifted = picture.slurm is not None and shown is not None and node not in _kept_out(picture.slurm)
        return say("incidents.drain_lifted") if lifted else None
    if incident.fault in {NODE_SILENT, SENDER_SILENT} and node:
        return _why_not_silent(incident, node, shown, picture, now)
    if fault_is(wave_rule(incident.fault), Trait.slurm_drain):
        return _why_all_lifted(incident, picture)
    if incident.fault in OUTAGES:
        over = all(_is_back(picture, part.node, incident, now) for part in incident.affected if part.node)
        return say("incidents.nodes_speak") if over else None
    if incident.fault == PORT_STAYS_DOWN and node:
        ups = picture.history.of(node, part_of(picture, incident.root), LINK_BACK)
        return say("incidents.link_is_back") if ups and ups[-1].last_at > last_heard(incident) else None
    if _ports_are_back(picture, incident, now):
        return say("incidents.link_is_back")
    if incident.fault == SERVER_AWAY and _server_is_back(picture, incident):
        return say("incidents.server_answers")
    # Incidents that the breaker holds are folded into their wave, until a person resets the breaker.
    quiet = None if is_planned(incident) or incident.folded else QUIET.get(incident.fault_class)
    if quiet is not None and now - incident.updated > quiet:
        return say("incidents.nothing_new", minutes=int(quiet.total_seconds() // 60))
    return None


def _why_not_silent(
    incident: Incident, node: str, shown: SlurmNode | None, picture: Picture, now: datetime
) -> Said | None:
    booted_at = picture.node(node).booted_at
    if booted_at is not None and now - booted_at < JUST_BACK:
        return None  # Slurm's report of the reboot may follow; it is the same event
    if _sends_again(picture, node, incident, now) and (shown is None or shown.responding):
        return say("incidents.node_speaks")
    if incident.fault == NODE_SILENT and shown is not None and shown.responding:
        return say("incidents.node_reached")  # a silent sender has its own incident
    return None


def _why_all_lifted(wave: Incident, picture: Picture) -> Said | None:
    """Why it is over: Slurm no longer keeps any of its nodes out for their common cause."""
    names = {part.node for part in wave.affected}
    held = picture.slurm.held_nodes if picture.slurm is not None else ()
    lasts = any(
        node.name in names and fault_of(node, picture.slurm) == wave_rule(wave.fault) for node in held
    )
    return None if lasts or picture.slurm is None else say("incidents.lifted_in_slurm")


def healer_drains(picture: Picture) -> list[SlurmNode]:
    """Nodes that healer keeps out: by its reason, including DOWN, or by its reservation for tests. Without
    nodes that were returned since Slurm was read."""
    slurm = picture.slurm
    if slurm is None:
        return []
    out = {name for name in _kept_out(slurm) if not _is_returned_since(picture, name, slurm.taken_at)}
    return [node for name, node in slurm.nodes.items() if name in out] if out else []


def _kept_out(slurm: SlurmSnapshot) -> set[str]:
    ours = (reservation for reservation in slurm.reservations.values() if is_our_reservation(reservation))
    reserved = {name for reservation in ours for name in reservation.nodes}
    return reserved | {node.name for node in slurm.held_nodes if is_ours(node.reason)}


def _is_returned_since(picture: Picture, name: str, taken_at: datetime) -> bool:
    node = picture.nodes.get(name)
    return node is not None and node.cleared_at is not None and taken_at <= node.cleared_at + CLOCKS_DIFFER


def _sends_again(picture: Picture, node: str, incident: Incident, now: datetime) -> bool:
    """The node has sent since the incident opened. An empty memory after a restart proves nothing."""
    state = picture.node(node)
    heard = bool(state.beats) and state.beats[-1] > incident.opened
    return heard and state.silent_since(now) is None


def _is_back(picture: Picture, node: str, incident: Incident, now: datetime) -> bool:
    """Whether the outage is over for this node: the node is judged alone, or sends regularly again and has
    been back for some minutes. A place that goes silent again within those is in the same outage (law 2).
    Slurm notices later, so what it still says about the node then belongs to the outage too."""
    if node in picture.silence.alone:
        return True
    sender = picture.node(node)
    heard = _sends_again(picture, node, incident, now) and sender.keeps_cadence(now)
    return heard and not is_just_back(sender, now)


def _ports_are_back(picture: Picture, incident: Incident, now: datetime) -> bool:
    """The ports of a switch lost their links in one event, as when it boots, and all have been up for a
    while. Drops that add up over hours are not one event."""
    of_ports = incident.fault.startswith(SHARED_FAULT) or incident.fault == f"{REPEATS}{LINK_LOST}"
    if not of_ports or not incident.root.switch or now - incident.updated < PORTS_UP_FOR:
        return False
    last_lost: list[datetime] = []
    for node in {part.node or "" for part in incident.affected}:
        lost = {key[0]: burst.last_at for key, burst in picture.history.on(node) if key[1] == LINK_LOST}
        for part, at in lost.items():
            ups = picture.history.of(node, part, LINK_BACK)
            if not ups or not at < ups[-1].last_at <= now - PORTS_UP_FOR:
                return False
        if not lost:
            return False
        last_lost.append(max(lost.values()))
    return bool(last_lost) and max(last_lost) - min(last_lost) < PORTS_UP_FOR


def _server_is_back(picture: Picture, incident: Incident) -> bool:
    nodes = {part.node for part in incident.affected if part.node}
    back = (picture.servers_back.get((incident.root.device or "", node)) for node in nodes)
    return bool(nodes) and all(at is not None and at >= incident.opened for at in back)


def find_auto_resolve(rules: Ruleset, picture: Picture, incident: Incident) -> Cleared | None:
    """Why the fault is over, by the last report; None: some of it may still be present."""
    bursts = picture.history.placed_in(incident.id)
    if not incident.is_open or not bursts or is_measured(rules, incident):
        return None
    found = list[Cleared]()
    for part, burst in reversed(bursts):  # one that is still present is mostly a late one
        cleared = find_cleared(rules, picture, part, burst)
        if cleared is None:
            return None
        found.append(cleared)
    at = max(cleared.at for cleared in found)
    return msgspec.structs.replace(found[0], at=at, proven=all(cleared.proven for cleared in found))


def waits_for_repair(
    rules: Ruleset, picture: Picture, incidents: Iterable[str], *, but_part: str | None = None
) -> bool:
    """Whether a line placed a fault in one of these incidents that only a reset, a boot or a test ends, and
    no such event is known since. `but_part`: a part of the node that does not count."""
    return any(
        part != but_part and _waits_for_repair(rules, picture, part, burst)
        for name in incidents
        for part, burst in picture.history.placed_in(name)
    )


def _waits_for_repair(rules: Ruleset, picture: Picture, part: str, burst: FaultBurst) -> bool:
    if burst.fault_class not in HARDWARE or _is_detected(rules, burst.fault):
        return False  # ticks find measured faults again
    ladder = ladder_of_burst(rules, picture, burst)
    lasts = ladder is not None and ladder.gone_after is not GoneAfter.test
    if not lasts and burst.fault_class is not FaultClass.fatal:
        return False
    cleared = find_cleared(rules, picture, part, burst)
    return cleared is None or not cleared.proven


def is_untreated(incident: Incident) -> bool:
    """Nothing was done for it, so nothing needs to be proven or returned."""
    return incident.state is IncidentState.open and incident.drained_at is None


def auto_resolve(incident: Incident, cleared: Cleared, now: datetime) -> Incident:
    cause = incident.cause
    if cleared.replaced:
        cause = Cause.permanent
    elif cause is Cause.unclear:
        cause = Cause.transient
    return msgspec.structs.replace(
        incident,
        **ended(now, cleared.why),
        cause=cause,
        updated=now,
        clear_since=now,
        tried=_done_by(incident, cleared),
        known_bad_in_service=False,
    )


def _done_by(incident: Incident, cleared: Cleared) -> Remedy:
    """The part of the requested remedy that must have been carried out. An unrequested boot does not
    count."""
    asked = min(rung_of(incident.remedy), cleared.done, key=REMEDY_LADDER.index)
    return max(incident.tried, asked, key=REMEDY_LADDER.index)


def note_cleared(incident: Incident, cleared: Cleared, now: datetime) -> Incident:
    """Records once why the incident is still open although the fault is over."""
    if any(entry.what == cleared.why for entry in incident.set_aside):
        return incident
    why = say("incidents.tests_decide" if cleared.proven else "incidents.may_outlive")
    return add_ruled_out(incident, RuledOut(at=now, what=cleared.why, why=why, component=incident.root))


#: The most titles per node.
_MOST = 4


def open_faults(incidents: Iterable[Incident]) -> dict[str, tuple[str, ...]]:
    """Node -> titles of its open incidents of hardware or found by comparison. Drains and silence say nothing
    about its speed."""
    found: dict[str, tuple[str, ...]] = {}
    for incident in incidents:
        node = incident.root.node
        if node is None or not incident.is_open or incident.clear_since is not None:
            continue
        titles = found.get(node, ())
        if (incident.fault_class in HARDWARE or fault_is(incident.fault, Trait.sampled)) and len(
            titles
        ) < _MOST:
            found[node] = (*titles, incident.title)
    return found
