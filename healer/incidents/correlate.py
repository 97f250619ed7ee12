"""Findings to incidents: by node, job and cable, and by what they share: a place of `rules/sharing.yaml`, or
a wave."""

from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec

from healer.incidents.book import Book, asks_for_action, merge_remedies, remedy_of, verdicts
from healer.incidents.certainty import (
    add_reports,
    is_newly_proven,
    is_news,
    lacks_senses,
    limit_evidence,
    mark_claims,
    rank_of_finding,
)
from healer.incidents.growth import (
    NEAR,
    add_evidence_of,
    add_parts,
    confirm_after_work,
    cover_parts,
    end_incident,
    follow_finding,
    fresh_evidence,
    jobs_of_all,
    merge_into,
    reopen_merged,
    widen_root,
)
from healer.incidents.lifecycle import is_measured
from healer.incidents.part_history import part_of, rung_of
from healer.incidents.placers import (
    NewRoot,
    Placement,
    Way,
    are_apart,
    has_lost_packets,
    is_explained,
    is_free,
    is_weaker,
    is_worse_while_busy,
    placement_of,
    wave_of,
)
from healer.incidents.shared import (
    EXPLAINS_FOR,
    GOES_ON,
    drains_finding,
    drains_title,
    explains_silence,
    grown_wave,
    is_shared,
    may_be_of_wave,
    may_follow_outage,
    outage_of,
    place_finding,
    reporters_of,
    wave_among,
    wave_fields,
    wave_finding,
    wave_going_on,
    wave_limit,
    wave_title,
)
from healer.model import (
    EVIDENCE_KEPT,
    HARDWARE,
    REMEDY_LADDER,
    WAVE_FAULT,
    WAVE_RULE,
    Cause,
    Component,
    FaultClass,
    Finding,
    Guard,
    Incident,
    IncidentState,
    Remedy,
    Rule,
    Severity,
    Sharing,
    Verdict,
)
from healer.model.faults import (
    OUTAGES,
    PLACES_SILENT,
    REPEATS,
    Trait,
    fault_is,
    once,
    silences_behind,
    wave_rule,
)
from healer.observations.silences import Outage
from healer.text import say

#: The most evidence per sense that an incident keeps from findings that only add evidence.
BESIDE_KEPT = 10


def take_findings(book: Book, findings: Sequence[Finding]) -> None:
    """Places each finding. Roots come first, so that their effects find them."""
    before = dict(book.changed)
    for finding in sorted(findings, key=_roots_first):
        take_finding(book, mark_claims(finding))
    book.write_counts()
    touched = [
        incident
        for name, incident in book.changed.items()
        if before.get(name) is not incident and incident.is_open
    ]
    open_shared_places(book, touched)
    open_waves(book, touched)
    open_shared_drains(book, touched)
    end_waves(book)
    book.close_book()


def take_finding(book: Book, finding: Finding) -> None:
    apply_placement(book, finding, placement_of(finding, book))


def apply_placement(book: Book, finding: Finding, placement: Placement) -> None:
    """Applies the placers' decision."""
    match placement:
        case Placement(Way.count, Incident() as incident):
            book.count(incident, finding)
        case Placement(Way.wait):
            book.picture.teardowns.append(finding)
        case Placement(Way.evidence, Incident() as incident):
            _add_evidence(book, incident, finding)
        case Placement(Way.join, Incident() as incident):
            _join(book, incident, finding)
        case Placement(Way.join_nodes, Incident() as incident):
            _join(book, incident, finding)
            joined = book.by_id[incident.id]
            asks = asks_for_action(book.policies.of(finding), finding)
            book.put(msgspec.structs.replace(joined, nodes=verdicts(finding, asks=asks) | joined.nodes))
        case Placement(Way.cover, Incident() as incident):
            cover_finding(book, incident, finding)
        case Placement(Way.open | Way.move as way, Incident() as incident):
            _open(book, incident, finding, new=way is Way.open)


def _add_evidence(book: Book, incident: Incident, finding: Finding) -> None:
    if len(incident.evidence) >= EVIDENCE_KEPT:
        return
    # A flood of alerts must not push out the incident's main evidence.
    sense = finding.evidence[0].sense
    alike = [item for item in incident.evidence if item.sense is sense]
    if len(alike) >= BESIDE_KEPT:
        return
    repeated = {item.digest for item in incident.evidence} | {item.text for item in alike}
    fresh = tuple(item for item in finding.evidence if not {item.digest, item.text} & repeated)
    if fresh:
        count = incident.evidence_count + len(fresh)
        evidence = (*incident.evidence, *fresh)
        book.put(msgspec.structs.replace(incident, evidence=evidence, evidence_count=count))


def _join(book: Book, incident: Incident, finding: Finding) -> None:
    before = incident
    if incident.waits_since is not None:
        found_at, of_boot = _reported_at(book, finding), _is_of_boot(book, finding)
        incident = confirm_after_work(incident, finding, found_at, book.now, of_boot=of_boot)
    fresh = fresh_evidence(incident, finding)
    heard = add_reports(incident, finding)
    if not fresh:
        # The fault lasts: news for the senses, but no new evidence.
        if incident is not before or is_news(incident, heard):
            book.put(msgspec.structs.replace(incident, heard=heard))
        return
    rule = book.policies.of(finding)
    unknown = finding.fault_class is incident.fault_class is FaultClass.unknown
    # A worse finding of the same fault raises the severity, unless its rule is in shadow.
    watched = book.policies.is_watched(rule)
    beyond_repair = not watched and _is_beyond_repair(incident, finding, rule)
    joined = msgspec.structs.replace(
        incident,
        evidence=limit_evidence((*incident.evidence, *fresh)),
        evidence_count=incident.evidence_count + len(fresh),
        heard=heard,
        affected=add_parts(incident, (*finding.affected, finding.component)),
        unusable=incident.unusable or finding.unusable,
        remedy=merge_remedies(incident.remedy, remedy_of(rule, finding)),
        nodes=verdicts(finding, asks=False) | incident.nodes if unknown else _judged(incident, finding, rule),
        cause=Cause.permanent if beyond_repair else incident.cause,
        severity=incident.severity if watched else min(incident.severity, rule.severity),
        jobs_hit=book.hits.with_more(incident, finding),
        updated=book.now,
        title=finding.headline if _has_grown(incident, finding) else incident.title,
    )
    if incident.jobs_hit_final and finding.fault_class is FaultClass.fatal:
        book.wider[incident.id] = is_newly_proven(incident, joined)
    book.put(widen_root(joined, finding))
    book.placed.append((_part_for_repair(book, incident, finding, rule) or incident.id, finding))
    cover_silences(book, book.by_id[incident.id])


def _part_for_repair(book: Book, incident: Incident, finding: Finding, rule: Rule) -> str | None:
    """The part of a measured incident for a line that asks for a repair: the incident ends once its cause is
    no longer measured, and the line's repair is planned then (law 10). None if the measured cause asks for an
    equal remedy itself, whose repair covers the line too."""
    node, measured = finding.component.node, book.rules.by_name.get(incident.rule)
    asked, rung = rung_of(remedy_of(rule, finding)), rung_of(measured.remedy if measured is not None else ())
    rung = max(rung, Remedy.requeue_job, key=REMEDY_LADDER.index)  # a requeue repairs nothing
    more = REMEDY_LADDER.index(asked) > REMEDY_LADDER.index(rung)
    lasts = bool(finding.evidence[0].line) and finding.fault_class in HARDWARE and node is not None
    if not (more and lasts and is_measured(book.rules, incident)):
        return None
    part = part_of(book.picture, finding.component)
    for burst in reversed(book.picture.history.of(node or "", part, finding.fault)):
        root = book.root_of(burst.incident) if burst.incident else None
        if root is not None and root.id == incident.id:
            return burst.incident
    new = book.opened(finding)
    if book.earlier(new.id) is None:
        book.put(merge_into(new, incident, book.now))
    return new.id


def _is_beyond_repair(incident: Incident, finding: Finding, rule: Rule) -> bool:
    """No reset mends what the finding reports of the incident's node, whose cause is still open."""
    lasts = finding.fault_class is FaultClass.fatal and rule.cause is Cause.permanent
    here = incident.root.node is not None and incident.root.node == finding.component.node
    return lasts and here and incident.cause in {Cause.unclear, Cause.transient}


def _judged(incident: Incident, finding: Finding, rule: Rule) -> dict[str, Verdict]:
    """Verdicts of the nodes: watch becomes suspect as soon as a finding asks for an action."""
    node = finding.component.node or ""
    seen = incident.nodes.get(node) is Verdict.watch and incident.fault_class is FaultClass.degraded
    asked = verdicts(finding, asks=asks_for_action(rule, finding)).get(node) is Verdict.suspect
    return incident.nodes | {node: Verdict.suspect} if seen and asked else incident.nodes


def _reported_at(book: Book, finding: Finding) -> datetime:
    """By healer's clock: for a line the time it was written, for a condition the time of the check."""
    first, node = finding.evidence[0], finding.component.node
    if not first.line or node is None:
        return finding.arrived_at
    return book.picture.node(node).moment(finding.at, finding.arrived_at)


def _is_of_boot(book: Book, finding: Finding) -> bool:
    """Whether the node has reported the fault in the boot in which it is."""
    where = finding.component
    part, boot = part_of(book.picture, where), book.picture.node(where.node or "").boot_id
    bursts = book.picture.history.of(where.node or "", part, once(finding.fault))
    return boot is not None and any(burst.boot_id == boot for burst in bursts)


def _has_grown(incident: Incident, finding: Finding) -> bool:
    """More nodes of a place are silent than the title says."""
    return finding.fault in PLACES_SILENT and len(finding.affected) > len(incident.affected)


def _open(book: Book, incident: Incident, finding: Finding, *, new: bool) -> None:
    """Adds an incident. `new`: it does not replace one that has just opened."""
    if new:
        book.born.add(incident.id)
    book.put(incident)
    book.placed.append((incident.id, finding))
    if finding.fault_class in HARDWARE:
        absorb_effects(book, incident)
    elif finding.fault_class is FaultClass.application:
        absorb_teardowns(book, incident)
    cover_silences(book, book.by_id[incident.id])


def _roots_first(finding: Finding) -> tuple[bool, int, bool, bool]:
    """Sort key: roots first; a request by the driver comes after the line that names its fault more
    precisely."""
    asks = fault_is(finding.fault, Trait.driver_ask)
    return finding.evidence_only, -rank_of_finding(finding), finding.teardown, asks


# --- what others share --------------------------------------------------------------------------------------


def open_shared_places(book: Book, touched: Sequence[Incident]) -> None:
    """Opens an incident of a place if enough of its nodes have the fault."""
    keys = {
        (sharing.name, place): sharing
        for incident in touched
        for sharing, place in book.places.keys(incident.fault, incident.root)
    }
    for (_, place), sharing in sorted(keys.items(), key=lambda item: item[0]):
        members = members_of(book, sharing, place)
        if members and is_shared(sharing, members, book.places.size(sharing.place, place)):
            over = _of_place(book, sharing, place, members)
            if over is not None:
                # Incidents of signs that added up at the place before are its first members.
                slowly = book.at(None, (), book.places.root(sharing.place, place))
                signs = [
                    other for other in slowly if other.fault.startswith(REPEATS) and other not in members
                ]
                cover_members(book, over, [*signs, *members])


def members_of(book: Book, sharing: Sharing, place: str) -> list[Incident]:
    """Recent incidents that may belong to the place, the oldest first."""
    incidents = book.these(book.index.of_share(sharing.name, place))
    return [incident for incident in incidents if book.now - incident.opened <= sharing.within]


def _of_place(book: Book, sharing: Sharing, place: str, members: Sequence[Incident]) -> Incident | None:
    """The place's incident: the open one, or a new one."""
    root = book.places.root(sharing.place, place)
    open_incident = next(
        (incident for incident in book.at(None, (), root) if incident.rule == sharing.name), None
    )
    return open_incident or book.open_over(place_finding(sharing, root, place, members))


def cover_members(book: Book, over: Incident, members: Sequence[Incident], *, merge: bool = True) -> None:
    """Covers the incidents as parts. They are merged, except those that healer works on and those that are
    certainly unusable (law 2)."""
    parts = {over.root, *over.affected}
    fresh = [incident for incident in members if incident.root not in parts]
    if fresh:
        book.put(cover_parts(book.by_id[over.id], fresh, book.now))
    for incident in members if merge else ():
        if is_free(incident) and not incident.unusable and not incident.acknowledged_by:
            book.merge(incident, over)
    if over.fault_class in HARDWARE:
        absorb_effects(book, book.by_id[over.id])


def cover_finding(book: Book, over: Incident, finding: Finding) -> None:
    """Adds a finding about a covered part to the open incident as evidence, without an incident of its
    own."""
    after = follow_finding(over, finding, book.hits.jobs(finding), book.now)
    if after is over:
        return
    rule = book.rules.by_name.get(wave_rule(over.fault))
    alone = rule is not None and not book.policies.acts(rule) and over.rule == WAVE_RULE
    if rule is not None and alone and len(after.affected) > len(over.affected):
        wave = grown_wave(after, book.places, book.picture)  # together, the nodes may share less
        after = msgspec.structs.replace(after, root=wave.root, title=wave_title(wave, rule))
    book.put(after)
    book.placed.append((over.id, finding))


# --- what a new root explains -------------------------------------------------------------------------------


def absorb_effects(book: Book, root: Incident) -> None:
    """Merges waiting teardowns of its job, and milder incidents of its node or job, into a new root."""
    absorb_teardowns(book, root)
    for other in book.at(root.root.node, root.jobs_hit, root.root):
        both = NewRoot(other, root, book.policies)
        if other.id == root.id or not other.is_open:
            continue
        apart, worse = are_apart(both), is_worse_while_busy(both)
        if not apart and is_weaker(both):
            book.merge(other, root)
            book.put(add_evidence_of(book.by_id[root.id], [other]))
        elif worse:
            book.put(msgspec.structs.replace(other, worse=root.id))
        elif not apart and is_free(other) and is_explained(both):
            book.merge(other, root)
    for other in book.these(book.index.hard(None, root.jobs_hit)):
        if other.id != root.id and has_lost_packets(NewRoot(other, root, book.policies)):
            book.merge(other, root)


def absorb_teardowns(book: Book, root: Incident) -> None:
    """Counts waiting teardowns on their root."""
    node = root.root.node
    waiting = [finding for finding in book.picture.teardowns if book.now - finding.arrived_at <= NEAR]
    book.picture.teardowns.clear()
    for finding in waiting:
        same_node = node is not None and node == finding.component.node
        if same_node or not book.hits.jobs(finding).isdisjoint(root.jobs_hit):
            book.count(root, finding)
        else:
            book.picture.teardowns.append(finding)


def cover_silences(book: Book, incident: Incident) -> None:
    """Merges incidents of silent nodes that were reported before enough nodes were silent to show the shared
    place."""
    outages = (other for fault in sorted(OUTAGES) for other in book.these(book.index.of_fault(fault)))
    around = (*book.at(incident.root.node, (), incident.root), *outages)
    over = next((other for other in around if _covers_silence(book, other, incident)), None)
    if over is not None:  # an open incident explains the node's silence
        _merge_silence(book, incident, over)
        return
    for fault in sorted(silences_behind(incident.fault)):
        for other in book.these(book.index.of_fault(fault)):
            if other.run is None and _covers_silence(book, incident, other):
                _merge_silence(book, other, incident)
    if incident.fault in OUTAGES:
        _merge_losses(book, incident)
    place = incident.root.device or incident.root.switch
    for sharing in book.places.of_itself(incident.fault) if place else ():
        cover_members(book, book.by_id[incident.id], members_of(book, sharing, place or ""))


def _merge_losses(book: Book, outage: Incident) -> None:
    """Merges what its members reported just before about links, packets and file servers, if only members
    report it."""
    members = {part.node for part in outage.affected if part.node}
    there = [other for node in sorted(members) for other in book.at(node, (), None)]
    of_places = [other for other in book.by_id.values() if other.is_open and other.root.node is None]
    for other in (*there, *of_places):
        reporters = reporters_of(other.root, other.affected)
        theirs = bool(reporters) and reporters <= members and may_follow_outage(other.fault)
        just_before = outage.opened - other.opened <= EXPLAINS_FOR
        hard = other.unusable or other.fault_class is FaultClass.fatal
        if theirs and just_before and not hard and is_free(other):
            book.merge(other, outage)


def _covers_silence(book: Book, outage: Incident, other: Incident) -> bool:
    return explains_silence(outage, other) or _is_within(book, other, outage)


def _is_within(book: Book, narrow: Incident, wide: Incident) -> bool:
    """Whether all nodes of the narrow outage are at the place of the wide one, the wide one reaches beyond,
    and both began together."""
    if not {narrow.fault, wide.fault} <= PLACES_SILENT or abs(narrow.opened - wide.opened) > EXPLAINS_FOR:
        return False
    inner, outer = outage_of(narrow), outage_of(wide)
    return _all_at(book, inner, outer) and not _all_at(book, outer, inner)


def _all_at(book: Book, outage: Outage, place: Outage) -> bool:
    """Whether all nodes of `outage` are at the place of `place`."""
    assert place.kind is not None
    nodes = (Component(cluster=book.picture.cluster, node=node) for node in outage.nodes)
    return all(book.places.of(node, place.kind) == place.place for node in nodes)


def _merge_silence(book: Book, silence: Incident, outage: Incident) -> None:
    """Adds the members of a narrower outage to the wider one, which lasts until all are back. Known facts
    about the same node move with it."""
    outage = book.by_id[outage.id]  # a merge just before may have widened it
    if silence.root.node is not None and silence.root.node == outage.root.node:
        outage = msgspec.structs.replace(
            add_evidence_of(outage, [silence]),
            nodes=silence.nodes | outage.nodes,
            jobs_hit=jobs_of_all(outage.jobs_hit, silence.jobs_hit),
        )
        book.put(outage)
    elif silence.fault in PLACES_SILENT:
        outage = msgspec.structs.replace(outage, affected=add_parts(outage, silence.affected))
        book.put(outage)
    book.merge(silence, outage)


# --- waves --------------------------------------------------------------------------------------------------


def open_waves(book: Book, touched: Sequence[Incident]) -> None:
    names = {incident.rule for incident in touched if incident.is_open}
    limit = wave_limit(book.rules, book.picture) if names else None
    if limit is None or WAVE_RULE not in book.rules.by_name:
        return
    for name in sorted(names):
        if rule := book.rules.by_name.get(name):
            _open_or_grow_wave(book, rule, limit)


def _open_or_grow_wave(book: Book, rule: Rule, limit: int) -> None:
    """Opens or extends the wave of a rule. Incidents that healer would act on stay, held by the breaker, as
    do those with a plan; others are merged."""
    alike = book.these(book.index.of_rule(rule.name))
    members = [
        incident
        for incident in alike
        if may_be_of_wave(incident, rule, book.places) and not lacks_senses(incident, rule, book.now)
    ]
    newest = max(members, key=lambda incident: incident.opened, default=None)
    open_wave = wave_of(book, rule, newest.root.node if newest else None)
    if open_wave is not None:
        wave = wave_going_on(open_wave, members, book.places, book.picture, rule)
    else:
        wave = wave_among(members, book.places, book.picture, limit, book.now, rule)
    if wave is None:
        return
    title = wave_title(wave, rule)
    if open_wave is None:
        held = any(book.policies.treats(rule, member.remedy) for member in wave.members)
        fields = wave_fields(wave, held=held)
        open_wave = book.open_over(wave_finding(wave, rule, title), **fields)
    if open_wave is not None:
        book.put(msgspec.structs.replace(open_wave, root=wave.root, title=title))
        cover_members(book, book.by_id[open_wave.id], wave.members, merge=False)
        rest = [member for member in wave.members if not book.policies.treats(rule, member.remedy)]
        cover_members(book, book.by_id[open_wave.id], rest)


#: Slurm's drains within this time may have one cause: a shared job, file server or deployment.
DRAINED_TOGETHER = 3


def open_shared_drains(book: Book, touched: Sequence[Incident]) -> None:
    """Opens one incident for nodes that Slurm itself took out for the same cause, so that people are asked
    once. It is as urgent as a wave once it is as large as one."""
    rule, limit = book.rules.by_name.get(WAVE_RULE), wave_limit(book.rules, book.picture)
    drains = {incident.fault for incident in touched if fault_is(incident.fault, Trait.slurm_drain)}
    for fault in sorted(drains if rule is not None else ()):
        alike = book.these(book.index.of_fault(fault))
        members = [incident for incident in alike if is_free(incident) and not incident.plan]
        recent = book.these(book.index.of_fault(f"{WAVE_FAULT}{fault}"))
        over = next((wave for wave in recent if book.now - wave.updated <= GOES_ON), None)
        if over is not None:
            wave = wave_going_on(over, members, book.places, book.picture)
        else:
            wave = wave_among(members, book.places, book.picture, DRAINED_TOGETHER, book.now)
        if wave is None:
            continue
        title = drains_title(wave, fault)
        over = over or book.open_over(drains_finding(wave, fault, title), remedy=(Remedy.notify,))
        if over is not None:
            severity = Severity.P1 if limit is not None and len(wave.nodes) >= limit else Severity.P2
            book.put(msgspec.structs.replace(over, root=wave.root, title=title, severity=severity))
            cover_members(book, book.by_id[over.id], wave.members)


def end_waves(book: Book) -> None:
    """Ends waves over incidents that the breaker held, once the last of those is over."""
    for incident in book.these(book.index.of_rule(WAVE_RULE)):
        rule = book.rules.by_name.get(wave_rule(incident.fault))
        quiet = book.now - incident.updated > GOES_ON
        if rule is None or not book.policies.acts(rule) or incident.folded:
            continue
        if quiet and not book.index.of_rule(rule.name):
            book.put(end_incident(incident, say("incidents.nothing_open"), book.now))


def waves_that_act(book: Book) -> Iterator[Incident]:
    """Open waves of faults that healer would act on."""
    for incident in book.these(book.index.of_rule(WAVE_RULE)):
        rule = book.rules.by_name.get(wave_rule(incident.fault))
        if rule is not None and book.policies.acts(rule):
            yield incident


def members_of_wave(book: Book, wave: Incident) -> list[Incident]:
    """The wave's parts that are incidents of their own, and have no action yet."""
    parts = {part.node for part in wave.affected}
    theirs = book.these(book.index.of_rule(wave_rule(wave.fault)))
    return [
        incident
        for incident in theirs
        if incident.root.node in parts and incident.state is IncidentState.open
    ]


def held_by_breaker(members: Sequence[Incident]) -> list[Incident]:
    """The members that only the breaker holds, and that no person has acknowledged, reviewed or stopped."""
    return [
        incident
        for incident in members
        if incident.held_by is Guard.breaker
        and not (incident.acknowledged_by or incident.review or incident.stopped_by)
    ]


def fold_into_wave(book: Book, wave: Incident, members: Sequence[Incident]) -> None:
    """Merges the members into the wave. Certainly unusable ones remain known bad (law 2)."""
    book.put(cover_parts(wave, members, book.now))
    grown = book.by_id[wave.id]
    bad = {incident.root.node or "": Verdict.isolate for incident in members if incident.unusable}
    names = {incident.root.node for incident in members if incident.root.node}
    book.put(
        msgspec.structs.replace(
            grown,
            nodes=dict(sorted((grown.nodes | bad).items())),
            folded=tuple(sorted({*wave.folded, *names})),
            severity=min(wave.severity, *(incident.severity for incident in members)),
            known_bad_in_service=wave.known_bad_in_service
            or any(incident.known_bad_in_service for incident in members),
        )
    )
    for incident in members:
        idle = msgspec.structs.replace(
            incident, run=None, held_by=None, p0_since=None, known_bad_in_service=False
        )
        book.put(merge_into(idle, wave, book.now))


def unfold_from_wave(book: Book, wave: Incident, members: Sequence[Incident], by: str | None = None) -> None:
    """Makes the members incidents of their own again. `by`: the person who split them, after which only a
    person merges them again."""
    for incident in members:
        member = reopen_merged(incident, book.now)
        if by is not None:
            member = msgspec.structs.replace(member, acknowledged_by=by, worse=None, gives_way_to=None)
        book.put(member)
    if not wave.folded:
        return
    left = tuple(sorted({*wave.folded} - {incident.root.node for incident in members}))
    urgency = wave.severity if left else max(wave.severity, Severity.P1)
    changed = msgspec.structs.replace(wave, folded=left, severity=urgency, updated=book.now)
    book.put(msgspec.structs.replace(changed, known_bad_in_service=bool(changed.bad_nodes)))
