"""Evidence that did not count is listed once each, and counted."""

from datetime import UTC, datetime

from healer.incidents.growth import SET_ASIDE_KEPT, add_ruled_out
from healer.model import Component, FaultClass, Incident, RuledOut

AT = datetime(2026, 11, 20, 3, tzinfo=UTC)
GPU = Component(cluster="pod1", node="gpu0001", gpu=3)


def incident() -> Incident:
    return Incident(
        id="a" * 32,
        cluster="pod1",
        rule="gpu-lost",
        fault="xid-79",
        fault_class=FaultClass.fatal,
        title="GPU has fallen off the bus",
        root=GPU,
        opened=AT,
        updated=AT,
        settle_until=AT,
    )


def aside(what: str, where: Component = GPU, count: int = 1) -> RuledOut:
    return RuledOut(at=AT, what=what, why="teardown", component=where, count=count)


def test_the_same_thing_again_only_counts() -> None:
    one = add_ruled_out(add_ruled_out(incident(), aside("Xid 45")), aside("Xid 45", count=3))
    assert [(it.what, it.count, it.component) for it in one.set_aside] == [("Xid 45", 4, GPU)]


def test_finding_about_two_components_covers_neither() -> None:
    other = Component(cluster="pod1", node="gpu0002", gpu=1)
    one = add_ruled_out(add_ruled_out(incident(), aside("Xid 45")), aside("Xid 45", other))
    assert [(it.count, it.component) for it in one.set_aside] == [(2, None)]


def test_only_the_first_twenty_are_kept_and_those_still_count() -> None:
    one = incident()
    for number in range(30):
        one = add_ruled_out(one, aside(f"Xid {number}"))
    assert len(one.set_aside) == SET_ASIDE_KEPT
    again = add_ruled_out(add_ruled_out(one, aside("Xid 29")), aside("Xid 0"))
    assert [it.count for it in again.set_aside] == [2, *[1] * 19]
