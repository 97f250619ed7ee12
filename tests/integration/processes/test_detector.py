"""The detector's loop over a real database: wake, walk, consume, poke, and what a restart remembers."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from healer.adapters.postgres.inbox import put_command
from healer.adapters.postgres.ledger import PostgresTx
from healer.adapters.postgres.node_rows import save_reference
from healer.adapters.postgres.tables import audit_records
from healer.model import (
    Command,
    CommandKind,
    Component,
    Controller,
    Mode,
    Observation,
    ObservationKind,
    Reference,
    Reservation,
    Ruleset,
    Severity,
    SlurmNode,
    Trouble,
    node_kind,
)
from healer.ports.transactions import LedgerAway
from healer.processes.detector_loop import BATCH
from healer.signals.identity import digest_of
from healer.signals.wire import NodeBoot, kernel_text_observations
from tests.support.detector import Place
from tests.support.loop import CLUSTER, LOST, START, beat, lines, name, rules_in


@pytest.fixture
def place(fresh_database: sa.Engine) -> Place:
    return Place(fresh_database)


def until(place: Place, seconds: float, work: Callable[[], object], step_s: float = 10) -> None:
    end = place.clock.now() + timedelta(seconds=seconds)
    while place.clock.now() < end:
        place.clock.advance(step_s)
        work()


def test_a_signal_is_walked_consumed_and_its_run_poked(place: Place) -> None:
    detector = place.detector()
    place.inbox.add(lines(name(1), LOST, at=START))
    assert detector.once() is False
    (one,) = place.incidents()
    assert place.poked == [one.run]
    assert place.inbox.unconsumed(10) == []
    detector.once()
    assert len(place.poked) == 1


def former_texts(rules: Ruleset) -> dict[str, str]:
    return {name: former for name, (_, former) in rules.digests.items()}


def test_an_upgrade_puts_no_unchanged_rule_on_trial(place: Place) -> None:
    """The version before stored the digests of rules with their titles."""
    place.ledger.note_texts(former_texts(rules_in(Mode.auto, settle_s=0.0)), 3, START)
    place.inbox.add(lines(name(1), LOST, at=START))
    place.detector().once()
    (one,) = place.incidents()
    assert place.poked == [one.run]
    with place.engine.connect() as conn:
        assert "rules.changed" not in conn.scalars(sa.select(audit_records.c.verb)).all()


def test_a_return_to_a_text_of_before_an_upgrade_is_no_trial(place: Place) -> None:
    before = rules_in(Mode.auto, settle_s=0.0)
    changed = tuple(msgspec.structs.replace(rule, severity=Severity.P2) for rule in before.rules)
    rules = edited = msgspec.structs.replace(before, version="edited", rules=changed)
    place.ledger.note_texts(former_texts(before), 3, START)
    place.ledger.note_texts(former_texts(edited), 0, START)
    detector = place.detector(rules=lambda: rules)
    detector.once()
    rules = before
    place.inbox.add(lines(name(1), LOST, at=START))
    detector.once()
    (one,) = place.incidents()
    assert place.poked == [one.run]
    with place.engine.connect() as conn:
        changes = sa.select(sa.func.count()).where(audit_records.c.verb == "rules.changed")
        assert conn.scalar(changes) == 1  # the version before recorded the edit


def test_detector_idles_without_signals_and_stops_on_request(place: Place) -> None:
    place.detector().run(lambda: len(place.waited) >= 3)
    assert place.waited == [1.0, 1.0, 1.0]


#: What a sender may know of its lines: the follower names boot and sequence number.
INFORMED = pytest.mark.parametrize("known", [{}, {"boot_id": "b1", "first_seq": 7}], ids=["bare", "numbered"])


@INFORMED
def test_new_detector_processes_lines_that_came_while_none_ran(place: Place, known: dict[str, Any]) -> None:
    place.detector()
    place.inbox.add(lines(name(1), LOST, at=START, **known))
    place.clock.advance(20)
    place.detector().once()
    assert len(place.incidents()) == 1


@INFORMED
def test_next_pass_processes_the_input_of_a_pass_that_failed(
    place: Place, known: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database goes away between the read and the commit of the first pass."""

    def away(*_: object) -> None:
        raise LedgerAway("the connection is closed")

    detector = place.detector()
    place.inbox.add(lines(name(1), LOST, at=START, **known))
    with monkeypatch.context() as patch, pytest.raises(LedgerAway):
        patch.setattr(PostgresTx, "consume", away)
        detector.once()
    assert place.incidents() == []
    detector.once()
    assert len(place.incidents()) == 1


def test_restarted_detector_opens_no_incident_twice(place: Place) -> None:
    place.inbox.add(lines(name(1), LOST, at=START))
    place.detector().once()
    known = [one.id for one in place.incidents()]
    place.clock.advance(5)
    place.detector().once()
    assert [one.id for one in place.incidents()] == known
    assert len(place.poked) == 1


def test_a_restart_knows_which_boot_is_over(place: Place) -> None:
    old, new = "boot-old", "boot-new"
    place.inbox.add([beat(name(1), START, boot_id=old)])
    place.clock.advance(60)
    place.inbox.add([beat(name(1), place.clock.now(), boot_id=new)])
    place.detector().once()
    again = place.detector()
    place.inbox.add(lines(name(1), LOST, at=place.clock.now(), boot_id=old))
    again.once()
    assert place.incidents() == []


def test_a_restart_knows_which_nodes_came_back(place: Place) -> None:
    place.clock.advance(60)
    detector = place.detector(cleared=[(name(1), START + timedelta(seconds=30))])
    reported_at = START - timedelta(
        minutes=11
    )  # with no other word of the host's clock a younger one would act
    place.inbox.add(lines(name(1), LOST, at=place.clock.now(), event_at=reported_at))
    detector.once()
    assert place.incidents() == []


def test_after_a_restart_silence_needs_three_missed_beats(place: Place) -> None:
    def beats() -> None:
        place.inbox.add([beat(name(number), place.clock.now()) for number in range(1, 11)])

    until(place, 300, beats, step_s=60)
    place.detector().once()
    place.clock.advance(300)  # the whole product was down
    place.poll()
    detector = place.detector()
    until(place, 170, lambda: (place.poll(), detector.once()))
    assert place.incidents() == []
    until(place, 30, lambda: (place.poll(), detector.once()))
    assert [one.fault for one in place.incidents()] == ["fleet-silent"]


class Heard:
    """A fleet with a heartbeat of each node every 10 s, and a walk every second."""

    def __init__(self, place: Place) -> None:
        self.place, self.detector = place, place.detector()
        #: With which they reach the walk: it grows with a backlog, or an API's clock is behind by it.
        self.late = timedelta(0)
        self.dead = set[int]()
        self.run(60)

    def run(self, seconds: float) -> None:
        until(self.place, seconds, self._second, step_s=1)

    def _second(self) -> None:
        now = self.place.clock.now()
        due = (number for number in range(1, 11) if now.second % 10 == number - 1 and number not in self.dead)
        self.place.inbox.add([beat(name(number), now - self.late) for number in due])
        self.place.poll()
        self.detector.once()


@pytest.mark.parametrize("late_s", [25, 75, 3600])
def test_a_node_whose_heartbeats_come_late_is_not_silent(place: Place, late_s: float) -> None:
    heard = Heard(place)
    heard.late = timedelta(seconds=late_s)
    heard.run(120)
    assert place.incidents() == []


def test_a_node_that_dies_is_missed_though_an_apis_clock_was_ahead(place: Place) -> None:
    heard = Heard(place)
    heard.late = -timedelta(hours=1)
    heard.run(60)
    heard.late, heard.dead = timedelta(0), {3}
    heard.run(60)
    assert [(one.rule, one.root.node) for one in place.incidents()] == [("sender-silent", name(3))]


@pytest.mark.parametrize("held_s", [20, 60, 3600])
def test_a_detector_that_was_held_up_calls_no_sender_silent(place: Place, held_s: float) -> None:
    """A commit waits for a standby, and who sends meanwhile is refused; or the clock is set."""
    heard = Heard(place)
    place.clock.advance(held_s)
    place.poll()
    until(place, 16, heard.detector.once, step_s=1)  # a follower comes again within that
    heard.run(60)
    assert place.incidents() == []


def test_a_picture_of_a_clock_that_was_ahead_hides_none_that_follows(place: Place) -> None:
    """A scheduler's host is set right, or the scheduler of another host takes over."""
    detector = place.detector()
    ahead = msgspec.structs.replace(place.slurm.snapshot(), taken_at=START + timedelta(hours=1))
    place.snapshots.put(ahead)
    detector.once()
    place.clock.advance(2)
    place.slurm.person_drain(name(3), "PSU", "ann")
    place.poll()
    detector.once()
    assert [one.rule for one in place.incidents()] == ["person-drain"]


def test_slurms_picture_reaches_the_walk(place: Place) -> None:
    detector = place.detector()
    place.slurm.person_drain(name(3), "PSU", "ann")
    detector.once()
    assert place.incidents() == []
    place.clock.advance(2)
    place.poll()
    detector.once()
    assert [(one.rule, one.owner) for one in place.incidents()] == [("person-drain", "ann")]


def test_how_slurmctld_does_reaches_the_walk(place: Place) -> None:
    detector = place.detector()
    behind = Controller(cluster=CLUSTER, at=START, agent_queue=900, since={Trouble.backlog: START})
    place.snapshots.put_controller(behind)
    until(place, 50, lambda: (place.poll(), detector.once()))
    assert place.incidents() == []
    until(place, 20, lambda: (place.poll(), detector.once()))
    assert [(one.rule, one.run) for one in place.incidents()] == [("controller-backlog", None)]
    place.snapshots.put_controller(Controller(cluster=CLUSTER, at=place.clock.now()))
    until(place, 80, lambda: (place.poll(), detector.once()))
    assert place.incidents() == []


def test_a_full_batch_says_that_there_is_more(place: Place) -> None:
    detector = place.detector()
    first = [beat(name(1), START + timedelta(milliseconds=number)) for number in range(BATCH + 1)]
    place.inbox.add([*first])
    assert detector.once() is True
    assert detector.once() is False
    assert place.inbox.unconsumed(10) == []


def test_nodes_of_the_simulated_slurm_are_nodes(place: Place) -> None:
    shown = place.snapshots.latest(CLUSTER)
    assert shown is not None
    assert isinstance(shown.nodes[name(1)], SlurmNode)
    assert shown.taken_at.tzinfo is UTC


def test_a_signal_that_cannot_be_walked_is_set_aside_and_the_others_are_walked(place: Place) -> None:
    detector = place.detector()
    place.inbox.add(lines(name(1), LOST, at=START))
    detector.once()
    (known,) = place.incidents()
    broken = Command(
        kind=CommandKind.review, cluster=CLUSTER, at=START, by="ann", incident=known.id, data={"review": "?"}
    )
    with place.engine.begin() as conn:
        put_command(conn, broken, request="broken")
    place.inbox.add(lines(name(2), LOST, at=START, boot_id="b1", first_seq=7))
    assert detector.once() is False
    assert {one.root.node for one in place.incidents()} == {name(1), name(2)}
    assert place.inbox.unconsumed(10) == []
    with place.engine.begin() as conn:
        aside = conn.execute(
            sa.select(audit_records.c.data).where(audit_records.c.verb == "signal.set_aside")
        )
        assert ["ValueError" in row.data["why"] for row in aside] == [True]


def test_that_nothing_measured_is_looked_at_is_paged_once_and_again_when_it_is_something_else(
    place: Place, fresh_database: sa.Engine
) -> None:
    def paged() -> list[str]:
        with fresh_database.connect() as conn:
            rows = conn.execute(sa.text("SELECT doc->'text'->>'text' FROM messages ORDER BY at")).scalars()
            return [text.split("\n")[0] for text in rows]

    detector = place.detector()
    detector.once()
    assert paged() == []
    detector.blind = lambda: "a rule does not do what its cases say"
    detector.once()
    detector.once()
    assert paged() == ["a rule does not do what its cases say"]
    detector.blind = lambda: ""
    detector.once()
    place.clock.advance(1)
    detector.blind = lambda: "the detection tick fails repeatedly"
    detector.once()
    assert paged() == ["a rule does not do what its cases say", "the detection tick fails repeatedly"]


LINK = "NVRM: Xid (PCI:0000:9b:00): 74, pid=7, name=python, NVLink: fatal error detected on link 6(0x10000)"


@pytest.mark.parametrize(("repaired", "knows"), [(False, True), (True, False)])
def test_what_a_node_lost_is_known_across_a_restart(place: Place, repaired: bool, knows: bool) -> None:
    """Its job may turn out to be stuck only then."""
    detector = place.detector()
    place.inbox.add(lines(name(1), LINK, at=START))
    detector.once()
    assert list(detector.picture.node_reports) == [name(1)]
    place.clock.advance(30)
    again = place.detector(cleared=[(name(1), place.clock.now())] if repaired else [])
    assert list(again.picture.node_reports) == ([name(1)] if knows else [])


def port(place: Place, state: str) -> list[Observation]:
    """A line of node 1 about a port of its network card."""
    line = f"mlx5_core 0000:ca:00.0 mlx5_0: Link {state}"
    source, now = NodeBoot(CLUSTER, name(1)), place.clock.now()
    taken = kernel_text_observations(line, lambda *_: True, now, source, book=rules_in().kernel_lines)
    return list(taken.observations)


@pytest.mark.parametrize("restarts", [False, True], ids=["one detector", "another one"])
@pytest.mark.parametrize(("back", "reported"), [(False, ["nic-stays-down"]), (True, [])])
def test_a_port_that_stays_down_is_reported_across_a_restart(
    place: Place, restarts: bool, back: bool, reported: list[str]
) -> None:
    def walk() -> None:
        place.poll()
        detector.once()

    place.slurm.add_job(required=[name(1)])
    detector = place.detector()
    until(place, 10, walk)
    place.inbox.add(port(place, "down"))
    until(place, 60, walk)
    if back:
        place.inbox.add(port(place, "up"))
        walk()
    if restarts:
        detector = place.detector()
    until(place, 210, walk)
    found = [(one.id, one.fault) for one in place.incidents()]
    assert [fault for _, fault in found] == reported
    if restarts:
        detector = place.detector()
    until(place, 120, walk)
    assert [(one.id, one.fault) for one in place.incidents()] == found


@pytest.mark.parametrize("restarts", [False, True], ids=["one detector", "another one"])
def test_a_fault_from_within_planned_work_starts_nothing_across_a_restart(
    place: Place, restarts: bool
) -> None:
    """The line of a GPU that a technician pulled arrives after the work, and after a failover."""

    def walk() -> None:
        place.poll()
        detector.once()

    detector = place.detector()
    work = Reservation(name="work", nodes=(name(1),), users=("root",), maintenance=True)
    place.slurm.reserve(work)
    until(place, 60, walk)
    pulled_at = place.clock.now()
    until(place, 30, walk)
    place.slurm.unreserve("work")
    until(place, 10, walk)
    if restarts:
        detector = place.detector()
    place.inbox.add(lines(name(1), LOST, at=place.clock.now(), event_at=pulled_at))
    until(place, 60, walk)
    (one,) = place.incidents()
    assert one.plan and place.poked == []


def self_report(node: str, at: datetime, **facts: str) -> Observation:
    return Observation(
        digest=digest_of("inventory", node, at), kind=ObservationKind.inventory,
        component=Component(cluster=CLUSTER, node=node), event_at=at, arrived_at=at, data={"facts": facts},
    )  # fmt: skip


def test_drift_from_a_good_node_is_known_across_a_restart(place: Place) -> None:
    kind = node_kind(place.slurm.snapshot().nodes[name(1)].gpu_model)
    good = Reference(
        cluster=CLUSTER, kind=kind, node=name(1), at=START, by="ann", facts={"kernel": "6.8.0-60"}
    )
    with place.engine.begin() as conn:
        save_reference(conn, good)
    place.inbox.add([self_report(name(one), START, kernel="6.5.0-18") for one in (2, 3)])
    place.detector().once()
    place.clock.advance(3600)  # the report is older than all that a restart reads again
    detector = place.detector()
    until(place, 180, detector.once)
    (one,) = place.incidents()
    assert (one.rule, one.fault) == ("drift", "drift:kernel:6.5.0-18")
    assert {where.node for where in one.affected} == {name(2), name(3)}
    detector = place.detector()
    until(place, 180, detector.once)
    assert [incident.id for incident in place.incidents()] == [one.id]
    for node in (2, 3):
        place.inbox.add([self_report(name(node), place.clock.now(), kernel="6.8.0-60")])
    until(place, 120, detector.once)
    assert place.incidents() == []
