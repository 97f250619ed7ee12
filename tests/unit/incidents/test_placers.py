"""The placers: each looks and changes nothing, the first that answers decides, the last always answers."""

import msgspec
import pytest

from healer.incidents import PLACERS, Book, take_findings
from healer.incidents.correlate import apply_placement
from healer.incidents.placers import Way, open_own, placement_of
from healer.model import Component, Evidence, FaultClass, Finding, Sense
from healer.observations import Picture
from tests.support.loop import CLUSTER, START, name, rules_in


def finding_of(
    fault: str, fault_class: FaultClass = FaultClass.fatal, node: int = 1, **more: bool
) -> Finding:
    where = Component(cluster=CLUSTER, node=name(node))
    evidence = Evidence(digest=f"{fault}{node}", at=START, component=where, text=fault, sense=Sense.kernel)
    finding = Finding(
        rule="",
        fault=fault,
        fault_class=fault_class,
        component=where,
        at=START,
        arrived_at=START,
        text=fault,
        confidence=1.0,
        evidence=(evidence,),
    )
    return msgspec.structs.replace(finding, **more)


@pytest.fixture
def book() -> Book:
    """A GPU of the first node is gone."""
    made = Book(rules_in(), [], Picture(CLUSTER, watching_since=START), START)
    take_findings(made, [finding_of("xid-79")])
    return made


@pytest.mark.parametrize(
    ("finding", "way"),
    [
        (finding_of("alert:HostDown", FaultClass.informational, evidence_only=True), Way.evidence),
        (finding_of("alert:HostDown", FaultClass.informational, node=2, evidence_only=True), Way.drop),
        (finding_of("xid-45", FaultClass.application, teardown=True), Way.count),
        (finding_of("xid-45", FaultClass.application, node=2, teardown=True), Way.wait),
        (finding_of("xid-63", FaultClass.degraded), Way.join),
        (finding_of("xid-79", node=2), Way.open),
        (finding_of("xid-79"), Way.join),
    ],
)
def test_a_finding_goes_where_the_first_placer_puts_it(book: Book, finding: Finding, way: Way) -> None:
    assert placement_of(finding, book).way is way


def test_new_incident_moves_to_the_root_fault_that_arrives_later(book: Book) -> None:
    take_findings(book, [finding_of("xid-63", FaultClass.degraded, node=2)])
    moved = placement_of(finding_of("xid-79", node=2), book)
    before = next(one for one in book.by_id.values() if one.root.node == name(2))
    assert (moved.way, moved.incident and moved.incident.id) == (Way.move, before.id)
    assert moved.incident and moved.incident.fault == "xid-79"


def test_placers_change_nothing_until_one_is_applied(book: Book) -> None:
    before, placed = dict(book.by_id), list(book.placed)
    finding = finding_of("xid-79", node=3)
    for placer in PLACERS:
        placer(finding, book)
    assert (book.by_id, book.placed) == (before, placed)
    apply_placement(book, finding, placement_of(finding, book))
    assert len(book.by_id) == len(before) + 1


def test_the_last_placer_always_answers(book: Book) -> None:
    assert PLACERS[-1] is open_own


@pytest.mark.parametrize("fault", ["node-stopped-job", "straggler", "hook:probe", "hook:fs-full"])
@pytest.mark.parametrize("place", ["switch-silent", "shared:leaf-switch", "switch-offline"])
def test_finding_on_a_member_joins_the_outage_of_its_place(fault: str, place: str) -> None:
    book = Book(rules_in(), [], Picture(CLUSTER, watching_since=START), START)
    members = tuple(Component(cluster=CLUSTER, node=name(number)) for number in (1, 2, 3))
    out = finding_of(place, FaultClass.degraded)
    leaf = Component(cluster=CLUSTER, switch="leaf1")
    take_findings(book, [msgspec.structs.replace(out, component=leaf, affected=members)])
    (incident,) = book.by_id.values()
    book.picture.silence.broken = frozenset({name(2), name(3)} if place.startswith("shared:") else ())
    found = placement_of(finding_of(fault, FaultClass.degraded, node=2), book)
    assert (found.way, found.incident and found.incident.id) == (Way.cover, incident.id)
    assert placement_of(finding_of(fault, FaultClass.degraded, node=4), book).way is Way.open
