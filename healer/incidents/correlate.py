"""Findings -> incidents: by node, by job, by cable, and by what they share: a place of `rules/sharing.yaml`,
or a wave."""

from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec

from healer.incidents.book import Book, asks_for, higher, remedy_of
from healer.incidents.growth import (
    NEAR,
    cover_parts,
    end_incident,
    follow_finding,
    heard_with,
    kept,
    make_own_again,
    marked,
    merge_into,
    other_root,
    proven_by,
    rank_told,
    verdicts,
    with_evidence_of,
    with_parts,
)
from healer.incidents.placers import (
    Both,
    Placement,
    Way,
    are_apart,
    is_explained,
    is_free,
    is_weaker,
    packets_lost,
    placement_of,
    wave_of,
    worse_while_busy,
)
from healer.incidents.shared import (
    EXPLAINS_FOR,
    GOES_ON,
    covers,
    grown_wave,
    is_of_outage,
    is_shared,
    may_be_of_wave,
    place_finding,
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
    WAVE_RULE,
    FaultClass,
    Finding,
    Guard,
    Incident,
    IncidentState,
    Rule,
    Severity,
    Sharing,
    Verdict,
)
from healer.model.faults import OUTAGES, PLACES_SILENT, Trait, fault_is, silences_behind, wave_rule

#: So many pieces of one sense are kept beside an incident that they did not open.
BESIDE_KEPT = 10


def take_findings(book: Book, findings: Sequence[Finding]) -> None:
    """Puts each finding where it belongs. Roots first, so that what they explain finds them."""
    before = dict(book.changed)
    for finding in sorted(findings, key=_roots_first):
        take_finding(book, marked(finding))
    book.write_counts()
    touched = [one for name, one in book.changed.items() if before.get(name) is not one and one.is_open]
    gather(book, touched)
    note_waves(book, touched)
    end_waves(book)
    book.close_book()


def take_finding(book: Book, finding: Finding) -> None:
    apply_placement(book, finding, placement_of(finding, book))


def apply_placement(book: Book, finding: Finding, placement: Placement) -> None:
    """Performs what the placers decided."""
    match placement:
        case Placement(Way.count, Incident() as incident):
            book.count(incident, finding)
        case Placement(Way.wait):
            book.picture.teardowns.append(finding)
        case Placement(Way.beside, Incident() as incident):
            _stand_beside(book, incident, finding)
        case Placement(Way.join, Incident() as incident):
            _join(book, incident, finding)
        case Placement(Way.join_nodes, Incident() as incident):
            _join(book, incident, finding)
            joined = book.by_id[incident.id]
            asks = asks_for(book.policies.of(finding), finding)
            book.put(msgspec.structs.replace(joined, nodes=verdicts(finding, asks=asks) | joined.nodes))
        case Placement(Way.cover, Incident() as incident):
            follow(book, incident, finding)
        case Placement(Way.open | Way.move as way, Incident() as incident):
            _open(book, incident, finding, new=way is Way.open)


def _stand_beside(book: Book, incident: Incident, finding: Finding) -> None:
    if len(incident.evidence) >= EVIDENCE_KEPT:
        return
    # A flood of alerts must not push out what the incident is about.
    sense = finding.evidence[0].sense
    alike = [one for one in incident.evidence if one.sense is sense]
    if len(alike) >= BESIDE_KEPT:
        return
    known = {one.digest for one in incident.evidence} | {one.text for one in alike}
    fresh = tuple(one for one in finding.evidence if not {one.digest, one.text} & known)
    if fresh:
        count = incident.evidence_count + len(fresh)
        evidence = (*incident.evidence, *fresh)
        book.put(msgspec.structs.replace(incident, evidence=evidence, evidence_count=count))


def _join(book: Book, incident: Incident, finding: Finding) -> None:
    before, incident = incident, proven_by(incident, finding, _told_at(book, finding), book.now)
    known = {one.digest for one in incident.evidence}
    fresh = tuple(one for one in finding.evidence if one.digest not in known)
    heard = heard_with(incident, finding)
    if not fresh:
        # It still stands: that is news, although it is no new evidence.
        if heard != incident.heard or incident is not before:
            book.put(msgspec.structs.replace(incident, heard=heard))
        return
    rule = book.policies.of(finding)
    unknown = finding.fault_class is incident.fault_class is FaultClass.unknown
    # Worse news of the same thing makes it as urgent as that; what is only watched does not.
    watched = book.policies.is_watched(rule)
    joined = msgspec.structs.replace(
        incident,
        evidence=kept((*incident.evidence, *fresh)),
        evidence_count=incident.evidence_count + len(fresh),
        heard=heard,
        affected=with_parts(incident, (*finding.affected, finding.component)),
        unusable=incident.unusable or finding.unusable,
        remedy=higher(incident.remedy, remedy_of(rule, finding)),
        nodes=verdicts(finding, asks=False) | incident.nodes if unknown else _judged(incident, finding, rule),
        severity=incident.severity if watched else min(incident.severity, rule.severity),
        jobs_hit=book.hits.with_more(incident, finding),
        updated=book.now,
        title=finding.headline if _has_grown(incident, finding) else incident.title,
    )
    if incident.jobs_hit_final and finding.fault_class is FaultClass.fatal:
        book.wider[incident.id] = finding.unusable and not incident.unusable
    book.put(other_root(joined, finding))
    book.placed.append((incident.id, finding))
    cover_silences(book, book.by_id[incident.id])


def _judged(incident: Incident, finding: Finding, rule: Rule) -> dict[str, Verdict]:
    """What was only seen of the node is a fault that may wait as soon as something is asked for it."""
    node = finding.component.node or ""
    seen = incident.nodes.get(node) is Verdict.watch and incident.fault_class is FaultClass.degraded
    asked = verdicts(finding, asks=asks_for(rule, finding)).get(node) is Verdict.suspect
    return incident.nodes | {node: Verdict.suspect} if seen and asked else incident.nodes


def _told_at(book: Book, finding: Finding) -> datetime:
    """By our clock: of a line when it was written, of what stands when it was looked at."""
    first, node = finding.evidence[0], finding.component.node
    if not first.line or node is None:
        return finding.arrived_at
    return book.picture.node(node).moment(finding.at, finding.arrived_at)


def _has_grown(incident: Incident, finding: Finding) -> bool:
    """More nodes of a place went silent than its title says."""
    return finding.fault in PLACES_SILENT and len(finding.affected) > len(incident.affected)


def _open(book: Book, incident: Incident, finding: Finding, *, new: bool) -> None:
    """`new`: no incident that has just opened becomes this one."""
    if new:
        book.born.add(incident.id)
    book.put(incident)
    book.placed.append((incident.id, finding))
    if finding.fault_class in HARDWARE:
        absorb(book, incident)
    elif finding.fault_class is FaultClass.application:
        absorb_teardowns(book, incident)
    cover_silences(book, book.by_id[incident.id])


def _roots_first(finding: Finding) -> tuple[bool, int, bool, bool]:
    """What the driver asks for comes of a fault that its own line names better."""
    asks = fault_is(finding.fault, Trait.driver_ask)
    return finding.evidence_only, -rank_told(finding), finding.teardown, asks


# --- what others share --------------------------------------------------------------------------------------


def gather(book: Book, touched: Sequence[Incident]) -> None:
    """Where enough nodes of one place have what its fault looks like, it is the place's."""
    keys = {
        (sharing.name, place): sharing
        for one in touched
        for sharing, place in book.places.keys(one.fault, one.root)
    }
    for (_, place), sharing in sorted(keys.items(), key=lambda item: item[0]):
        members = members_of(book, sharing, place)
        if members and is_shared(sharing, members, book.places.size(sharing.place, place)):
            over = _of_place(book, sharing, place, members)
            if over is not None:
                take_in(book, over, members)


def members_of(book: Book, sharing: Sharing, place: str) -> list[Incident]:
    """Incidents of the last minutes that may be the place's, the oldest first."""
    known = book.these(book.index.of_share(sharing.name, place))
    return [one for one in known if book.now - one.opened <= sharing.within]


def _of_place(book: Book, sharing: Sharing, place: str, members: Sequence[Incident]) -> Incident | None:
    """The incident of the place: the one that is open, or a new one."""
    root = book.places.root(sharing.place, place)
    known = next((one for one in book.at(None, (), root) if one.rule == sharing.name), None)
    return known or book.open_over(place_finding(sharing, root, place, members))


def take_in(book: Book, over: Incident, members: Sequence[Incident], *, merge: bool = True) -> None:
    """They are parts of it. Merged, but for what healer works on and what is surely unusable (law 2)."""
    known = {over.root, *over.affected}
    fresh = [one for one in members if one.root not in known]
    if fresh:
        book.put(cover_parts(book.by_id[over.id], fresh, book.now))
    for one in members if merge else ():
        if is_free(one) and not one.unusable and not one.acknowledged_by:
            book.merge(one, over)
    if over.fault_class in HARDWARE:
        absorb(book, book.by_id[over.id])


def follow(book: Book, over: Incident, finding: Finding) -> None:
    """Told of a part of what an open incident covers: evidence, and no incident of its own."""
    after = follow_finding(over, finding, book.hits.jobs(finding), book.now)
    if after is over:
        return
    rule = book.rules.by_name.get(wave_rule(over.fault))
    alone = rule is not None and not book.policies.acts(rule) and over.rule == WAVE_RULE
    if rule is not None and alone and len(after.affected) > len(over.affected):
        wave = grown_wave(after, book.places, book.picture)  # they may share less than the first ones
        after = msgspec.structs.replace(after, root=wave.root, title=wave_title(wave, rule))
    book.put(after)
    book.placed.append((over.id, finding))


# --- what a new root explains -------------------------------------------------------------------------------


def absorb(book: Book, root: Incident) -> None:
    """Waiting teardowns of its job, milder incidents of node or job."""
    absorb_teardowns(book, root)
    for other in book.at(root.root.node, root.jobs_hit, root.root):
        both = Both(other, root, book.policies)
        if other.id == root.id or not other.is_open:
            continue
        apart, worse = are_apart(both), worse_while_busy(both)
        if not apart and is_weaker(both):
            book.merge(other, root)
            book.put(with_evidence_of(book.by_id[root.id], [other]))
        elif worse:
            book.put(msgspec.structs.replace(other, worse=root.id))
        elif not apart and other.run is None and is_explained(both):
            book.merge(other, root)
    for other in book.these(book.index.hard(None, root.jobs_hit)):
        if other.id != root.id and packets_lost(Both(other, root, book.policies)):
            book.merge(other, root)


def absorb_teardowns(book: Book, root: Incident) -> None:
    """Those that waited for their root."""
    node = root.root.node
    waiting = [one for one in book.picture.teardowns if book.now - one.arrived_at <= NEAR]
    book.picture.teardowns.clear()
    for one in waiting:
        same_node = node is not None and node == one.component.node
        if same_node or not book.hits.jobs(one).isdisjoint(root.jobs_hit):
            book.count(root, one)
        else:
            book.picture.teardowns.append(one)


def cover_silences(book: Book, one: Incident) -> None:
    """Nodes fall silent one by one: those told before their number showed what they share are merged."""
    outages = (other for fault in sorted(OUTAGES) for other in book.these(book.index.of_fault(fault)))
    around = (*book.at(one.root.node, (), one.root), *outages)
    over = next((other for other in around if covers(other, one)), None)
    if over is not None:  # told of a node that an open incident explains already
        _merge_silence(book, one, over)
        return
    for fault in sorted(silences_behind(one.fault)):
        for other in book.these(book.index.of_fault(fault)):
            if other.run is None and covers(one, other):
                _merge_silence(book, other, one)
    for node in [part.node for part in one.affected] if one.fault in PLACES_SILENT else ():
        for other in book.at(node, (), None):
            told_just_before = one.opened - other.opened <= EXPLAINS_FOR
            hard = other.unusable or other.fault_class is FaultClass.fatal
            if is_of_outage(other.fault) and told_just_before and not hard and is_free(other):
                book.merge(other, one)
    place = one.root.device or one.root.switch
    for sharing in book.places.of_itself(one.fault) if place else ():
        take_in(book, book.by_id[one.id], members_of(book, sharing, place or ""))


def _merge_silence(book: Book, silence: Incident, outage: Incident) -> None:
    """The members of a narrower outage are members of the wider one: that lasts until all are back."""
    if silence.fault in PLACES_SILENT:
        outage = book.by_id[outage.id]
        book.put(msgspec.structs.replace(outage, affected=with_parts(outage, silence.affected)))
    book.merge(silence, book.by_id[outage.id])


# --- waves --------------------------------------------------------------------------------------------------


def note_waves(book: Book, touched: Sequence[Incident]) -> None:
    limit = wave_limit(book.rules, book.picture)
    if limit is None or WAVE_RULE not in book.rules.by_name:
        return
    for name in sorted({one.rule for one in touched if one.is_open}):
        if rule := book.rules.by_name.get(name):
            _note_wave(book, rule, limit)


def _note_wave(book: Book, rule: Rule, limit: int) -> None:
    """What healer would act on stays an incident, which the breaker holds; the rest is merged."""
    alike = book.these(book.index.of_rule(rule.name))
    members = [one for one in alike if may_be_of_wave(one, rule, book.places)]
    newest = max(members, key=lambda one: one.opened, default=None)
    known = wave_of(book, rule, newest.root.node if newest else None)
    if known is not None:
        wave = wave_going_on(known, members, book.places, book.picture)
    else:
        wave = wave_among(members, book.places, book.picture, limit, book.now)
    if wave is None:
        return
    title = wave_title(wave, rule)
    if known is None:
        known = book.open_over(wave_finding(wave, rule, title), **wave_fields(wave, rule))
    if known is not None:
        book.put(msgspec.structs.replace(known, root=wave.root, title=title))
        take_in(book, book.by_id[known.id], wave.members, merge=not book.policies.acts(rule))


def end_waves(book: Book) -> None:
    """A wave over incidents that the breaker held is over when the last of them is."""
    for one in book.these(book.index.of_rule(WAVE_RULE)):
        rule = book.rules.by_name.get(wave_rule(one.fault))
        quiet = book.now - one.updated > GOES_ON
        if rule is None or not book.policies.acts(rule) or one.folded:
            continue
        if quiet and not book.index.of_rule(rule.name):
            book.put(end_incident(one, "nothing of it is open any more", book.now))


def waves_that_act(book: Book) -> Iterator[Incident]:
    """Open waves of faults that healer would do something about."""
    for one in book.these(book.index.of_rule(WAVE_RULE)):
        rule = book.rules.by_name.get(wave_rule(one.fault))
        if rule is not None and book.policies.acts(rule):
            yield one


def of_wave(book: Book, wave: Incident) -> list[Incident]:
    """Its parts that are incidents of their own now, and that nothing was done for."""
    parts = {one.node for one in wave.affected}
    theirs = book.these(book.index.of_rule(wave_rule(wave.fault)))
    return [one for one in theirs if one.root.node in parts and one.state is IncidentState.open]


def held_by_breaker(members: Sequence[Incident]) -> list[Incident]:
    """Of those the ones that it alone keeps from acting, and on which no person has said anything."""
    return [
        one
        for one in members
        if one.held_by is Guard.breaker and not (one.acknowledged_by or one.review or one.stopped_by)
    ]


def fold(book: Book, wave: Incident, members: Sequence[Incident]) -> None:
    """Merges them. Those that are surely unusable are known bad there as they were before (law 2)."""
    book.put(cover_parts(wave, members, book.now))
    grown = book.by_id[wave.id]
    bad = {one.root.node or "": Verdict.isolate for one in members if one.unusable}
    names = {one.root.node for one in members if one.root.node}
    book.put(
        msgspec.structs.replace(
            grown,
            nodes=dict(sorted((grown.nodes | bad).items())),
            folded=tuple(sorted({*wave.folded, *names})),
            severity=min(wave.severity, *(one.severity for one in members)),
            known_bad_in_service=wave.known_bad_in_service
            or any(one.known_bad_in_service for one in members),
        )
    )
    for one in members:
        idle = msgspec.structs.replace(one, run=None, held_by=None, p0_since=None, known_bad_in_service=False)
        book.put(merge_into(idle, wave, book.now))


def unfold(book: Book, wave: Incident, members: Sequence[Incident], by: str | None = None) -> None:
    """They are incidents of their own again. `by`: that is a person's word, and nothing but a person merges
    them again."""
    for one in members:
        own = make_own_again(one, book.now)
        book.put(msgspec.structs.replace(own, acknowledged_by=by) if by is not None else own)
    if not wave.folded:
        return
    left = tuple(sorted({*wave.folded} - {one.root.node for one in members}))
    urgency = wave.severity if left else max(wave.severity, Severity.P1)
    told = msgspec.structs.replace(wave, folded=left, severity=urgency, updated=book.now)
    book.put(msgspec.structs.replace(told, known_bad_in_service=bool(told.bad_nodes)))
