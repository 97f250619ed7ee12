"""The walk: signals -> findings -> incidents -> decisions -> runs.

The detector, the simulator and replay share it: one batch in, one transaction, a list of runs to advance out.
The caller wakes the workers; the sweep finds runs whose wake-up was lost.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial

import msgspec

from healer.decisions.node_facts import ended_windows, has_bound, nodes_in_windows, planned_window
from healer.detection import WalkInput, detect, read_all
from healer.detection.protocol import Pair
from healer.detection.reported import gauge_findings
from healer.engine.decide_incidents import decide_all, lock_gate_if_needed
from healer.engine.upkeep import Walk, end_restarts, note_inventories, open_incidents_on
from healer.incidents import (
    apply_command,
    close_if_over,
    find_clear_since,
    measured_pairs,
    note_heard_again,
    take_findings,
)
from healer.incidents.certainty import NOTED_EVERY, is_newly_proven
from healer.incidents.context import Context, apply_context, end_planned_work, split_by_context
from healer.incidents.correlate import unfold_from_wave
from healer.incidents.forecast_outcomes import settle_forecasts
from healer.incidents.growth import add_ruled_out, reopen_merged
from healer.incidents.impact import has_unsettled_hits, with_hits
from healer.incidents.incident_verdict import changed_verdict
from healer.incidents.lifecycle import (
    auto_resolve,
    confirm_unhealed,
    ended_by_quiet,
    explained_by_root,
    find_auto_resolve,
    is_unfinished,
    is_untreated,
    note_cleared,
    open_faults,
    waits_for_repair,
)
from healer.incidents.part_history import apply_history, model_on, note_settled, part_of, rung_of
from healer.incidents.placers import NewRoot, are_apart
from healer.incidents.recurrence import find_place_repeats, place_and_climb
from healer.incidents.shared import may_follow_outage, outage_of
from healer.model import (
    ENDED_RUN_STATES,
    WAVE_RULE,
    Command,
    CommandKind,
    Detections,
    Finding,
    Incident,
    Maintenance,
    Observation,
    ObservationKind,
    Remedy,
    RuledOut,
    Ruleset,
    RunState,
    Severity,
    Slot,
    SlurmNode,
    TicketStage,
)
from healer.model.faults import OUTAGES, Trait, fault_is, is_of_place
from healer.model.gate import permit_for
from healer.observations import Picture
from healer.observations.fault_history import KEPT
from healer.ports.transactions import Ledger
from healer.telling.news import notify_message, ticket_stage, ticket_update
from healer.text import NO_WORDS, from_stored, quoted, say


def walk(
    ledger: Ledger,
    rules: Ruleset,
    picture: Picture,
    batch: Sequence[Observation],
    now: datetime,
    sensed: Detections | None = None,
) -> list[str]:
    """One walk over `batch` and the findings of the last tick. Returns the ids of the runs that it
    started."""
    if sensed is not None:
        picture.sensed = sensed
    live = picture.update(batch, rules.topology)
    commands = [from_stored(seen.data, Command) for seen in batch if seen.kind is ObservationKind.command]
    for command in commands:
        if command.kind is CommandKind.node_returned:
            picture.clear(str(command.data["node"]), moment_of(command, "cleared_at"))
    _note_ended_windows(rules, picture, now)
    lines = read_all(rules, live, picture.slurm.nodes if picture.slurm is not None else None)
    findings = detect(WalkInput(rules, picture, now, lines, commands))
    if sensed is not None:
        findings += gauge_findings(rules, picture, sensed.findings)
    planned = partial(_planned_on, rules, picture, now)
    context = Context(rules, picture, now, planned)
    findings, passed = split_by_context(context, findings)
    findings = apply_history(rules, picture, batch, lines, findings, now)
    findings, added_up = split_by_context(context, findings)
    passed += added_up
    findings += find_place_repeats(rules, context)
    with ledger.transaction() as tx:
        state = Walk(tx, rules, picture, now)
        lock_gate_if_needed(state, commands, findings)
        for command in commands:
            take_command(state, command)
        _hand_over_slots(state)
        resolve_cleared(state)
        end_planned_work(context, state.work, rules)
        take_findings(state.work, without_hook_drains(state, findings))
        place_and_climb(rules, picture, state.work, state.known, now)
        state.pass_over(apply_context(context, state.work, passed, rules))
        close_all(state)
        decide_all(state, batch)
        note_merged(state)
        note_cost(state)
        settle_forecasts(tx, rules, picture, findings, state.work.placed, now)
        note_inventories(tx, picture, now)
        _save(state)
        tx.consume(batch)
    _note_for_next_walk(state, findings)
    return state.started


def _note_for_next_walk(walk: Walk, findings: Sequence[Finding]) -> None:
    """Keeps what the next walk and the senses need, after the commit."""
    picture, incidents = walk.picture, walk.work.by_id.values()
    picture.history.keep()
    picture.nodes_changed = False
    picture.facts_changed.clear()
    picture.changes.booted.clear()
    picture.note_reported(findings, walk.now)
    settling = (
        incident.settle_until for incident in walk.open_incidents() if incident.settle_until > walk.now
    )
    picture.settles_at = min(settling, default=None)
    picture.faults = open_faults(incidents)
    silent = [incident for incident in walk.open_incidents() if incident.fault in OUTAGES]
    picture.silence.outages = tuple(outage_of(outage) for outage in silent)
    picture.silence.broken = frozenset(_nodes_of_broken_places(walk))
    picture.watched = frozenset(
        pair for incident in walk.open_incidents() for pair in measured_pairs(walk.rules, picture, incident)
    )


def _nodes_of_broken_places(walk: Walk) -> Iterator[str]:
    """Nodes whose network, shared by a place, is still broken."""
    over = walk.picture.sensed.clear_since if walk.picture.sensed is not None else {}
    for place in walk.open_incidents():
        pairs = measured_pairs(walk.rules, walk.picture, place) if is_of_place(place.fault) else ()
        for fault, where in pairs:
            if where.node and may_follow_outage(fault) and (fault, where) not in over:
                yield where.node


def _note_ended_windows(rules: Ruleset, picture: Picture, now: datetime) -> None:
    """Records planned work of the site's list that ended since the last walk, or before a restart; by its
    end, or because the list was changed."""
    if picture.slurm is None:
        return
    changes, nodes = picture.changes, picture.slurm.nodes
    since, changes.windows_until = changes.windows_until or now - KEPT, now
    earlier, changes.windows_of = changes.windows_of, rules
    if earlier is rules and not has_bound(rules, picture.cluster, since, now):
        return
    ended = ended_windows(rules, picture.cluster, nodes.values(), since, now)
    before = changes.in_window
    if earlier is not None and earlier is not rules:  # with the nodes that joined the work after it began
        before |= nodes_in_windows(earlier, picture.cluster, nodes.values(), since)
    changes.in_window = nodes_in_windows(rules, picture.cluster, nodes.values(), now)
    # What was taken off the list has ended now. Kept with the node: the list no longer says when.
    lifted = nodes.keys() & before - changes.in_window
    picture.facts_changed.update(picture.node(name).name for name in before ^ changes.in_window)
    for name, at in (dict.fromkeys(lifted, now) | ended).items():
        changes.work_ended[name] = max(at, changes.work_ended.get(name, at))


def _planned_on(rules: Ruleset, picture: Picture, now: datetime, node: SlurmNode) -> Maintenance | None:
    """Planned work on the node now, from the site's list or from Slurm."""
    return planned_window(rules, picture.cluster, node, now, picture.slurm)


def _update_ticket(walk: Walk, before: Incident | None, incident: Incident) -> None:
    stage = ticket_stage(before, incident)
    if stage is not None and walk.tx.has_ticket(incident.id):
        steps = walk.tx.steps_of(incident) if stage is TicketStage.closed else []
        walk.tx.queue_message(ticket_update(incident, stage, steps, walk.now))


def _save(walk: Walk) -> None:
    walk.tx.save_bursts(walk.picture.history.changed)
    for incident in walk.work.changed.values():
        walk.tx.save_incident(incident)
        subject = f"incident/{incident.id}"
        before = walk.known.get(incident.id)
        keep_verdict(walk, before, incident)
        if before is None or (before.rule, before.root) != (incident.rule, incident.root):
            verb = "incident.opened" if before is None else "incident.moved"
            about = {"rule": incident.rule, "title": incident.title, "root": str(incident.root)}
            walk.audit(verb, subject, **about, incident=incident.id)
            if Remedy.notify in incident.remedy:
                walk.tx.queue_message(notify_message(incident, acts=_acts(walk, incident)))
        elif incident.rule == WAVE_RULE and incident.severity <= Severity.P1 < before.severity:
            walk.tx.queue_message(notify_message(incident, "grown"))
        if not incident.is_open and (before is None or before.is_open):
            walk.audit("incident.resolved", subject, why=incident.closed_why, incident=incident.id)
        _update_ticket(walk, before, incident)
    for name, finding in walk.work.placed:
        walk.tx.add_findings(name, [finding])


def _acts(walk: Walk, incident: Incident) -> bool:
    """The incident's rule has a playbook, which healer starts or proposes."""
    rule = walk.rules.by_name.get(incident.rule)
    return rule is not None and rule.playbook is not None and not walk.work.policies.is_watched(rule)


# --- commands from people and runs since the last walk


def take_command(walk: Walk, command: Command) -> None:
    incident = walk.work.earlier(command.incident) if command.incident else None
    if incident is not None and command.kind is CommandKind.merge and _is_root_of(walk, incident, command):
        return
    meant = [incident] if incident is not None else []
    if command.kind is CommandKind.node_returned:  # the node's other incidents end with it
        since = moment_of(command, "since")
        others = open_incidents_on(walk.work, str(command.data["node"]))
        # The return does not cover incidents that opened during the run.
        meant += [
            other
            for other in others
            if other.id != command.incident and other.opened <= since and not is_unfinished(other, command)
        ]
    for incident in meant:
        _apply_command(walk, incident, command)
    if command.kind is CommandKind.split and incident is not None:
        _split(walk, walk.work.by_id[incident.id], command)


def _is_root_of(walk: Walk, incident: Incident, command: Command) -> bool:
    """The incident to merge into has become a part of this one since the person asked: if each were a part of
    the other, neither would be open."""
    root = walk.work.root_of(str(command.data["into"]))
    return root is None or root.id == incident.id


def _split(walk: Walk, incident: Incident, command: Command) -> None:
    wanted = set(command.data["incidents"])
    parts = [part for part in walk.tx.merged_into(incident.id) if part.id in wanted]
    walk.known |= {part.id: part for part in parts if part.id not in walk.known}
    unfold_from_wave(walk.work, incident, [_without_ended_run(walk, part) for part in parts], command.by)


def _apply_command(walk: Walk, before: Incident, command: Command) -> None:
    walk.known.setdefault(before.id, before)
    changed = apply_command(before, command)
    if command.kind is CommandKind.merge:
        changed = _left_to_its_root(walk, changed)
    proven = is_newly_proven(before, changed)
    # The run that listed the jobs may not have seen evidence that the detector has by now.
    if proven or before.evidence_count > command.data.get("evidence_count", math.inf):
        walk.work.wider[changed.id] = proven or walk.work.wider.get(changed.id, False)
    if command.kind is CommandKind.resolve and not changed.is_open:
        note_settled(walk.picture, before, command.by, command.at)
    run = walk.tx.run(before.run) if before.run and changed.run is None else None
    if run is not None and run.state not in ENDED_RUN_STATES and run.id != command.data.get("run"):
        walk.tx.set_run_state(run.id, RunState.cancelled, why=changed.closed_why or NO_WORDS, at=walk.now)
    if _is_given_up(before, changed):
        end_restarts(walk, changed, changed.closed_why or quoted(command.reason))
    walk.work.put(changed)


def _left_to_its_root(walk: Walk, merged: Incident) -> Incident:
    """A merged incident. If a person merged it into another one of its node, that one continues from its
    drain."""
    name = merged.merged_into or ""
    root = walk.work.earlier(name)
    of_its_node = root is not None and root.root.node is not None and root.root.node == merged.root.node
    return msgspec.structs.replace(merged, worse=name if of_its_node else None)


def _is_given_up(before: Incident, after: Incident) -> bool:
    """The incident was resolved, its node was returned, or a person stopped healer. A merged incident
    continues elsewhere."""
    over = before.is_open and not after.is_open and after.merged_into is None
    return over or (before.stopped_by is None and after.stopped_by is not None)


def without_hook_drains(walk: Walk, findings: Sequence[Finding]) -> Sequence[Finding]:
    """The findings without drains that Slurm made for a permitted hook, while a run holds the node or works
    there: the run's drain step adopts them."""
    permits = walk.facts.permits if walk.facts is not None else ()
    if walk.facts is None or not permits or walk.picture.slurm is None:
        return findings
    held = {*walk.facts.held, *walk.facts.running}
    shown = walk.picture.slurm.nodes
    ours = {name for name in held if name in shown and permit_for(shown[name], permits) is not None}
    return [
        finding
        for finding in findings
        if not (fault_is(finding.fault, Trait.slurm_drain) and finding.component.node in ours)
    ]


def moment_of(command: Command, name: str) -> datetime:
    """A time in the command's data; if missing, the command's own time."""
    moment = command.data.get(name)
    return datetime.fromisoformat(moment) if moment else command.at


# --- incidents that resolve, end, or merge into a worse one


def resolve_cleared(walk: Walk) -> None:
    """Resolves incidents whose fault has cleared, before the walk's findings are placed, so that the same
    fault afterwards opens a new one."""
    for incident in walk.open_incidents():
        if (over := find_auto_resolve(walk.rules, walk.picture, incident)) is None:
            continue
        ends = over.proven and incident.drained_at is None
        if ends and incident.root.node is None and _has_unrepaired_parts(walk, incident):
            continue
        if ends and walk.end_plan(incident, over.why):
            walk.work.put(auto_resolve(incident, over, walk.now))
            _reopen_unrepaired(walk, incident)
        elif over.seen and is_untreated(incident) and incident.waits_since is None:
            # Reports from before the boot are history and trigger nothing; a new line is news.
            changed = note_cleared(incident, over, walk.now)
            walk.work.put(msgspec.structs.replace(changed, waits_since=walk.now))
        elif (changed := note_cleared(incident, over, walk.now)) != incident:
            walk.work.put(changed)


def close_all(walk: Walk) -> None:
    for name in list(walk.work.by_id):
        incident = _leave_to_worse(walk, walk.work.by_id[name])
        if incident.merged_into is not None and incident.run and name in walk.work.changed:
            walk.end_plan(incident, incident.closed_why or NO_WORDS)
        if (seen := confirm_unhealed(walk.rules, walk.picture, incident, walk.now)) is not incident:
            walk.work.put(incident := seen)
        pairs = measured_pairs(walk.rules, walk.picture, incident) if incident.is_open else ()
        if pairs:
            incident = _record_clear(walk, incident, pairs)
        elif (heard := note_heard_again(incident, walk.picture, walk.now)) is not incident:
            walk.work.put(incident := heard)
        closed = close_if_over(
            incident, walk.picture, walk.now, measured=bool(pairs), has_ticket=walk.tx.has_ticket
        )
        over = closed is not incident and not _lasts_in_parts(walk, closed, measured=bool(pairs))
        if over and walk.end_plan(incident, closed.closed_why or NO_WORDS):
            walk.work.put(closed)
            _reopen_unrepaired(walk, closed)


def _reopen_unrepaired(walk: Walk, ended: Incident) -> None:
    """Reopens incidents that were merged into one that has now ended by itself, if a line asked for a repair
    that is not known to be done: their plan ended with the merge (law 10)."""
    if ended.waits_since is not None:
        return  # it has not been confirmed since planned work or a boot, and neither have its parts
    for part in walk.tx.merged_into(ended.id):
        asks = explained_by_root(part) and rung_of(part.remedy) is not Remedy.none
        if asks and waits_for_repair(walk.rules, walk.picture, [part.id]):
            walk.known.setdefault(part.id, part)
            walk.work.put(reopen_merged(_without_ended_run(walk, part), walk.now))


def _without_ended_run(walk: Walk, part: Incident) -> Incident:
    """The incident without its run if that has ended: a plan that ended with the merge is no completed
    remedy."""
    run = walk.tx.run(part.run) if part.run else None
    over = run is None or run.state in ENDED_RUN_STATES
    return msgspec.structs.replace(part, run=None) if over else part


def _lasts_in_parts(walk: Walk, closed: Incident, *, measured: bool) -> bool:
    """A part still waits for a repair that the incident's end says nothing about: the end of a silence proves
    nothing for nodes covered by a place, and a measurement of one GPU proves nothing for another (law 10)."""
    if closed.root.node is not None:
        return measured and closed.waits_since is None and _waits_beside_root(walk, closed)
    if not ended_by_quiet(closed):
        return False
    waits = waits_for_repair(walk.rules, walk.picture, [closed.id])
    return waits or _has_unrepaired_parts(walk, closed)


def _waits_beside_root(walk: Walk, incident: Incident) -> bool:
    asks, root = rung_of(incident.remedy) is not Remedy.none, part_of(walk.picture, incident.root)
    return asks and waits_for_repair(walk.rules, walk.picture, [incident.id], but_part=root)


def _has_unrepaired_parts(walk: Walk, incident: Incident) -> bool:
    parts = [part.id for part in walk.tx.merged_into(incident.id)]
    return waits_for_repair(walk.rules, walk.picture, parts)


def _record_clear(walk: Walk, incident: Incident, pairs: Iterable[Pair]) -> Incident:
    """Records since when the cause is gone, for decisions and runs."""
    since = find_clear_since(incident, walk.picture, pairs)
    if since is not None and walk.work.policies.plans(incident.rule) and _waits_beside_root(walk, incident):
        since = None  # its plan also covers a line about another part
    changed = msgspec.structs.replace(incident, clear_since=since, ticked_at=_last_tick(walk, incident))
    if changed != incident:
        walk.work.put(changed)
    return changed


def _last_tick(walk: Walk, incident: Incident) -> datetime | None:
    """The time of the last tick, recorded if healer may act on the incident."""
    rule, noted = walk.rules.by_name.get(incident.rule), incident.ticked_at
    if rule is None or rule.playbook is None or walk.picture.sensed is None:
        return noted
    at = walk.picture.sensed.at
    return at if noted is None or at - noted >= NOTED_EVERY else noted


def _leave_to_worse(walk: Walk, incident: Incident) -> Incident:
    """Merges the incident into a worse one whose run took over the node, or if its own run only waits for
    permission.

    If healer may not act on the worse one, or a person stopped it, the run continues but does not return the
    node.
    """
    if incident.worse is None or not incident.is_open:
        return incident
    worse = walk.work.by_id.get(incident.worse)
    rule = walk.rules.by_name.get(incident.rule)
    playbook = walk.rules.playbooks.get(rule.playbook or "") if rule is not None else None
    plan = playbook is not None and playbook.is_plan  # a plan ends when its own remedy is proven
    plan = plan and incident.drained_at is None
    if (
        worse is None
        or not worse.is_open
        or (plan and are_apart(NewRoot(incident, worse, walk.work.policies)))
    ):
        walk.work.put(msgspec.structs.replace(incident, worse=None, gives_way_to=None))
        return walk.work.by_id[incident.id]
    acts = walk.work.policies.may_act(worse.rule) and worse.stopped_by is None
    run = walk.tx.run(incident.run) if incident.run else None
    idle = run is None or run.shadow or run.state in ENDED_RUN_STATES
    if idle or (acts and walk.withdraw(incident, say("engine.explained_by", incident=worse.short_id))):
        walk.work.merge(incident, worse)
        _hand_over_slots(walk)
    elif incident.gives_way_to != (leaves := worse.id if acts else None):
        walk.work.put(msgspec.structs.replace(incident, gives_way_to=leaves))
    return walk.work.by_id[incident.id]


def _hand_over_slots(walk: Walk) -> None:
    """Assigns slots of drained nodes to the worse incident, whose run takes them over."""
    if walk.facts is not None:
        slots = tuple(_handed_over(walk, slot) for slot in walk.facts.slots)
        walk.facts = msgspec.structs.replace(walk.facts, slots=slots)


def _handed_over(walk: Walk, slot: Slot) -> Slot:
    incident = walk.work.earlier(slot.incident or "")
    while incident is not None and not incident.is_open and incident.left_to:
        incident = walk.work.earlier(incident.left_to)
    return slot if incident is None else msgspec.structs.replace(slot, incident=incident.id)


# --- the incident's consequences, cost and verdict


def note_merged(walk: Walk) -> None:
    """Lists merged incidents as ruled out on the incident that explains them."""
    work = walk.work
    for incident in list(work.changed.values()):
        before, root = walk.known.get(incident.id), work.by_id.get(incident.merged_into or "")
        if root is None or (before is not None and before.merged_into == root.id):
            continue
        why = say("engine.follows_from", incident=incident.short_id)
        ruled_out = RuledOut(at=incident.opened, what=incident.title, why=why, component=incident.root)
        work.put(add_ruled_out(root, ruled_out))


def note_cost(walk: Walk) -> None:
    """Updates the confidence to that of the surest finding, and the losses of the jobs hit, as far as Slurm
    shows them."""
    work = walk.work
    for name, finding in work.placed:
        incident = work.by_id[name]
        if finding.confidence > (incident.confidence or 0.0):
            work.put(msgspec.structs.replace(incident, confidence=finding.confidence))
    for incident in [other for other in work.by_id.values() if other.is_open and has_unsettled_hits(other)]:
        with_cost = with_hits(incident, walk.picture, walk.tx.newest_durable, walk.now)
        if with_cost is not incident:
            work.put(with_cost)


def keep_verdict(walk: Walk, before: Incident | None, incident: Incident) -> None:
    """Stores the verdict if it changed."""
    verdict = changed_verdict(before, incident, walk.rules, partial(model_on, walk.rules, walk.picture))
    if verdict is not None:
        walk.tx.add_verdict(incident.id, verdict, at=walk.now)
