"""What the breaker holds stands in its wave: one incident, one page, one thing to decide.

Each was decided by itself first, so that the breaker counts it and the audit shows what kept it back. Once a
person has reset the breaker it is an incident of its own again: the canary first, after it all the others.
"""

from collections.abc import Iterator, Sequence

import msgspec

from healer.incidents import growth
from healer.incidents.book import Book
from healer.model import WAVE_FAULT, WAVE_RULE, Finding, Guard, Incident, IncidentState, Severity, Verdict


def waves_that_act(book: Book) -> Iterator[Incident]:
    """Open waves of faults that healer would do something about."""
    for one in book.these(book.index.of_rule(WAVE_RULE)):
        rule = book.rules.by_name.get(rule_of(one))
        if rule is not None and rule.playbook is not None:
            yield one


def rule_of(wave: Incident) -> str:
    return wave.fault.removeprefix(WAVE_FAULT)


def of_wave(book: Book, wave: Incident) -> list[Incident]:
    """Its parts that are incidents of their own now, and that nothing was done for."""
    parts = {one.node for one in wave.affected}
    theirs = book.these(book.index.of_rule(rule_of(wave)))
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
    book.put(growth.over(wave, members, book.now))
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
        book.put(growth.merged(idle, wave, book.now))


def unfold(book: Book, wave: Incident, members: Sequence[Incident]) -> None:
    """They are incidents of their own again."""
    for one in members:
        book.put(growth.own_again(one, book.now))
    take_out(book, wave, members)


def split(book: Book, incident: Incident, parts: Sequence[Incident], by: str) -> None:
    """As `unfold`, by a person's word: nothing but a person merges them again."""
    for one in parts:
        book.put(msgspec.structs.replace(growth.own_again(one, book.now), acknowledged_by=by))
    take_out(book, incident, parts)


def take_out(book: Book, wave: Incident, members: Sequence[Incident]) -> None:
    """What is left of the wave."""
    if not wave.folded:
        return
    left = tuple(sorted({*wave.folded} - {one.root.node for one in members}))
    urgency = wave.severity if left else max(wave.severity, Severity.P1)
    told = msgspec.structs.replace(wave, folded=left, severity=urgency, updated=book.now)
    book.put(msgspec.structs.replace(told, known_bad_in_service=bool(told.bad_nodes)))


def folded_into(book: Book, finding: Finding) -> Incident | None:
    """The wave in which the incident of the finding's node and rule stands: this is more of it. That the node
    is surely unusable is news, where it was not known."""
    node, rule = finding.component.node, book.policies.of(finding)
    for one in book.these(book.index.of_fault(f"{WAVE_FAULT}{rule.name}")):
        if node in one.folded and not (finding.unusable and one.nodes.get(node or "") is not Verdict.isolate):
            return one
    return None
