"""One incident of what others share: of a place (`rules/sharing.yaml`), or of a wave."""

from collections.abc import Sequence

import msgspec

from healer.incidents import growth, shared, waves
from healer.incidents.book import Book
from healer.incidents.same import is_free
from healer.model import HARDWARE, WAVE_FAULT, WAVE_RULE, Finding, Incident, Rule, Sharing


def gather(book: Book, touched: Sequence[Incident]) -> None:
    """Where enough nodes of one place have what its fault looks like, it is the place's."""
    keys = {
        (sharing.name, place): sharing
        for one in touched
        for sharing, place in book.places.keys(one.fault, one.root)
    }
    for (_, place), sharing in sorted(keys.items(), key=lambda item: item[0]):
        members = members_of(book, sharing, place)
        if members and shared.is_shared(sharing, members, book.places.size(sharing.place, place)):
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
    return known or book.open_over(shared.finding_of(sharing, root, place, members))


def take_in(book: Book, over: Incident, members: Sequence[Incident], *, merge: bool = True) -> None:
    """They are parts of it. Merged, but for what healer works on and what is surely unusable (law 2)."""
    known = {over.root, *over.affected}
    fresh = [one for one in members if one.root not in known]
    if fresh:
        book.put(growth.over(book.by_id[over.id], fresh, book.now))
    for one in members if merge else ():
        if is_free(one) and not one.unusable and not one.acknowledged_by:
            book.merge(one, over)
    if over.fault_class in HARDWARE:
        book.absorb(book.by_id[over.id])


def follow(book: Book, over: Incident, finding: Finding) -> None:
    """Told of a part of what an open incident covers: evidence, and no incident of its own."""
    after = growth.followed(over, finding, book.hits.jobs(finding), book.now)
    if after is over:
        return
    rule = book.rules.by_name.get(over.fault.removeprefix(WAVE_FAULT))
    alone = rule is not None and rule.playbook is None and over.fault.startswith(WAVE_FAULT)
    if rule is not None and alone and len(after.affected) > len(over.affected):
        wave = waves.grown(after, book.places, book.picture)  # they may share less than the first ones
        after = msgspec.structs.replace(after, root=wave.root, title=waves.title_of(wave, rule))
    book.put(after)
    book.placed.append((over.id, finding))


# --- waves --------------------------------------------------------------------------------------------------


def note_waves(book: Book, touched: Sequence[Incident]) -> None:
    limit = waves.limit_of(book.rules, book.picture)
    if limit is None or WAVE_RULE not in book.rules.by_name:
        return
    for name in sorted({one.rule for one in touched if one.is_open}):
        if rule := book.rules.by_name.get(name):
            _note_wave(book, rule, limit)


def _note_wave(book: Book, rule: Rule, limit: int) -> None:
    """What healer would act on stays an incident, which the breaker holds; the rest is merged."""
    alike = book.these(book.index.of_rule(rule.name))
    members = [one for one in alike if waves.may_be_of_wave(one, rule, book.places)]
    newest = max(members, key=lambda one: one.opened, default=None)
    known = wave_of(book, rule, newest.root.node if newest else None)
    if known is not None:
        wave = waves.going_on(known, members, book.places, book.picture)
    else:
        wave = waves.wave_among(members, book.places, book.picture, limit, book.now)
    if wave is None:
        return
    title = waves.title_of(wave, rule)
    if known is None:
        known = book.open_over(waves.finding_of(wave, rule, title), **waves.told_as(wave, rule))
    if known is not None:
        book.put(msgspec.structs.replace(known, root=wave.root, title=title))
        take_in(book, book.by_id[known.id], wave.members, merge=rule.playbook is None)


def wave_of(book: Book, rule: Rule, node: str | None) -> Incident | None:
    """The open wave that a fault of this rule on this node now belongs to."""
    known = book.these(book.index.of_fault(f"{WAVE_FAULT}{rule.name}"))
    return next((one for one in known if waves.goes_on(one, node, book.picture, book.now)), None)


def end_waves(book: Book) -> None:
    """A wave over incidents that the breaker held is over when the last of them is."""
    for one in book.these(book.index.of_rule(WAVE_RULE)):
        rule = book.rules.by_name.get(one.fault.removeprefix(WAVE_FAULT))
        quiet = book.now - one.updated > waves.GOES_ON
        if rule is None or rule.playbook is None or one.folded:
            continue
        if quiet and not book.index.of_rule(rule.name):
            book.put(growth.ended(one, "nothing of it is open any more", book.now))
