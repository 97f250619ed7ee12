"""Lemons: what a node has had and what jobs say of it come to a score; people alone never make one."""

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from healer.detection.lemons import (
    AWAY,
    EVERY,
    LEMON_NODE,
    LIMIT,
    OTHERS_MOST,
    OVER,
    Lemons,
    scores,
    sentence,
)
from healer.incidents.node_history import lemon_record
from healer.model import (
    Component,
    FaultClass,
    IncidentState,
    LemonScore,
    NodeHistory,
    NodeRecord,
    Review,
    Severity,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
)
from healer.observations.job_marks import JobMarks
from healer.ports.transactions import LedgerAway
from tests.support.looks import look
from tests.unit.actions.test_verbs import CLUSTER, INCIDENT, NODE, START

DAY = timedelta(days=1)


def ago(days: float) -> datetime:
    return START - days * DAY


def past(*days: float, node: str = "n1", **more: Any) -> NodeRecord:
    return NodeRecord(node=node, faults=tuple((ago(day), f"xid-{int(day)}") for day in days), **more)


def score_of(one: NodeRecord, marks: JobMarks | None = None) -> float:
    found = scores("c", [one], marks.marks if marks else {}, START)
    return next((each.score for each in found if each.node == one.node), 0.0)


def picture(*jobs: SlurmJob, names: tuple[str, ...] = ("n1", "n2", "n3")) -> SlurmSnapshot:
    nodes = {name: SlurmNode(name=name, state=("IDLE",)) for name in names}
    return SlurmSnapshot(cluster="c", taken_at=START, nodes=nodes, jobs={one.id: one for one in jobs})


def ended(job: str, *nodes: str, state: str = "FAILED", user: str = "ann", **more: Any) -> SlurmJob:
    return SlurmJob(id=job, state=state, nodes=nodes, user=user, **more)


def days_of(marks: JobMarks, days: int, *jobs: SlurmJob) -> datetime:
    """The same jobs, under new numbers, once a day."""
    now = ago(days)
    for day in range(days):
        now = ago(days - day - 1)
        marks.look(picture(*(msgspec.structs.replace(one, id=f"{one.id}-{day}") for one in jobs)), now)
    return now


# --- the score ---


def test_a_fault_is_worth_one_today_and_a_third_after_a_month() -> None:
    assert score_of(past(0)) == 1.0
    assert score_of(past(30)) == pytest.approx(0.37)
    assert score_of(past()) == 0.0


def test_several_faults_of_several_kinds_with_tickets_pass_the_limit() -> None:
    score_input = past(1, 5, 9, tickets=(ago(1), ago(5)), out=0.3)
    assert score_of(score_input) >= LIMIT
    assert score_of(past(1, 5)) < LIMIT
    text = sentence(scores("c", [score_input], {}, START)[0])
    assert (
        text.startswith("score 3.") and "3 faults" in text and "out of service for 30% of two weeks 0" in text
    )


def test_one_fault_and_one_ticket_are_in_the_singular() -> None:
    text = sentence(scores("c", [past(0, tickets=(ago(0),))], {}, START)[0])
    assert ": 1 fault 1, 1 repair ticket " in text


def test_time_out_of_service_is_shown_and_worth_nothing() -> None:
    """It cannot fail meanwhile."""
    assert score_of(past(1, 5, out=1.0)) == score_of(past(1, 5))


def test_marks_of_people_and_jobs_alone_never_make_a_lemon() -> None:
    marks = JobMarks()
    jobs = [ended(f"{user}", "n1", user=user) for user in "abcdefgh"]
    sound = [ended(f"{user}x", "n2", "n3", user=user, state="COMPLETED") for user in "abcdefgh"]
    lost = [ended("z", "n1", user="z", state="NODE_FAIL", failed_node="n1")]
    off = [SlurmJob(id=f"p{user}", state="PENDING", user=user, excluded=("n1",)) for user in "abcdefgh"]
    days_of(marks, 10, *jobs, *sound, *lost, *off)
    assert score_of(past(), marks) == OTHERS_MOST < LIMIT
    assert score_of(past(0), marks) >= LIMIT


def test_nodes_are_in_order_and_what_is_nothing_is_left_out() -> None:
    found = scores("c", [past(20, node="n2"), past(1, 2, node="n1"), past(80, node="n3")], {}, START)
    assert [one.node for one in found] == ["n1", "n2"]


# --- what jobs say ---


def test_a_person_counts_once_a_day_however_many_jobs_fail() -> None:
    marks = JobMarks()
    marks.look(picture(*(ended(f"{number}", "n1") for number in range(1000))), START)
    assert (marks.marks["n1"].failed, marks.marks["n1"].ended) == (1.0, 1.0)
    marks.look(picture(*(ended(f"{number}", "n1") for number in range(1000))), START + DAY)
    assert marks.marks["n1"].failed == pytest.approx(0.93, abs=0.01)  # shown still: counted once, and fading


def test_jobs_on_many_nodes_are_shared_and_slurms_word_names_one() -> None:
    marks = JobMarks()
    marks.look(picture(ended("7", "n1", "n2", state="NODE_FAIL", failed_node="n2")), START)
    assert (marks.marks["n1"].failed_of_many, marks.marks["n1"].node_failed) == (0.5, 0.0)
    assert (marks.marks["n2"].failed_of_many, marks.marks["n2"].node_failed) == (0.5, 1.0)


def test_failing_as_often_as_everywhere_is_worth_nothing() -> None:
    marks = JobMarks()
    users = [f"u{number}" for number in range(10)]
    everywhere = [
        ended(f"{user}-{node}", node, user=user, state="FAILED" if index < 3 else "COMPLETED")
        for index, user in enumerate(users)
        for node in ("n1", "n2", "n3")
    ]
    days_of(marks, 10, *everywhere)
    assert score_of(past(), marks) == 0.0


def test_healers_own_exclusions_and_unknown_nodes_do_not_count() -> None:
    marks = JobMarks(own_exclusions=lambda job: ("n1",))
    off = SlurmJob(id="7", state="PENDING", user="ann", excluded=("n1", "n2", "gone"))
    marks.look(picture(off), START)
    assert list(marks.marks) == ["n2"]
    assert list(marks.marks["n2"].excluded_by) == ["ann"]


def test_words_fade_are_forgotten_and_are_kept_over_a_restart() -> None:
    marks = JobMarks()
    marks.look(picture(ended("7", "n1", end_at=START)), START)
    again = JobMarks()
    again.load(marks.pack())
    assert again.marks["n1"].failed == 1.0
    again.look(picture(ended("7", "n1", end_at=START)), START + timedelta(minutes=2))
    assert again.marks["n1"].failed == pytest.approx(1.0, abs=0.01)  # it was counted before
    again.look(picture(), START + 90 * DAY)
    assert again.marks == {}
    with pytest.raises(ValueError, match="no marks"):
        again.load(b"x")


def test_whom_today_counted_is_known_after_a_restart() -> None:
    """An array goes on failing on one node while healer is upgraded."""
    marks = JobMarks()
    marks.look(picture(ended("7", "n1", end_at=START), ended("8", "n1")), START)
    again = JobMarks()
    again.load(marks.pack())
    later = START + timedelta(minutes=2)
    again.look(picture(ended("8", "n1"), ended("9", "n1", end_at=later)), later)
    assert (again.marks["n1"].failed, again.marks["n1"].ended) == pytest.approx((1.0, 1.0), abs=0.01)


def test_without_a_picture_nothing_is_said() -> None:
    marks = JobMarks()
    marks.look(None, START)
    assert marks.marks == {}


# --- what healer holds of a node ---


def incident(number: int, days: float, fault: str = "xid-79", **fields: Any) -> Any:
    defaults: dict[str, Any] = {
        "id": f"{number:032x}", "fault": fault, "opened": ago(days), "closed": ago(days - 0.1),
        "state": IncidentState.resolved, "fault_class": FaultClass.fatal,
    }  # fmt: skip
    return msgspec.structs.replace(INCIDENT, **(defaults | fields))


def test_faults_of_the_hardware_count_and_notes_false_alarms_and_others_do_not() -> None:
    history = NodeHistory(
        incidents=(
            incident(1, 9),
            incident(2, 8, "xid-31", fault_class=FaultClass.application),
            incident(3, 7, "gpu-hot", fault_class=FaultClass.degraded, severity=Severity.P3),
            incident(4, 6, review=Review.false_alarm),
            incident(5, 5, root=Component(cluster=CLUSTER, node="other")),
            incident(6, 4, "slurm-drain:prolog", fault_class=FaultClass.degraded),
            incident(
                7, 3, "nic-lost", fault_class=FaultClass.degraded, severity=Severity.P2, drained_at=ago(3)
            ),
        ),
        ticketed=frozenset({f"{7:032x}"}),
    )
    record = lemon_record(history, NODE, START)
    assert [fault for _, fault in record.faults] == ["xid-79", "nic-lost"]
    assert record.tickets == (ago(3),)
    assert record.out == pytest.approx(0.2 / 14)  # of the drain too


def test_lemon_record_drops_repaired_faults_but_keeps_cleared_ones() -> None:
    old, new = incident(1, 9), incident(3, 2)
    repaired = incident(2, 5, LEMON_NODE, closed=ago(4), closed_why="returned to service")
    by_itself = incident(2, 5, LEMON_NODE, closed=ago(4), closed_why="well again since 03:00:00 UTC")
    assert len(lemon_record(NodeHistory(incidents=(old, repaired, new)), NODE, START).faults) == 1
    assert len(lemon_record(NodeHistory(incidents=(old, by_itself, new)), NODE, START).faults) == 2


# --- findings ---


class Book:
    def __init__(self) -> None:
        self.pasts: list[NodeRecord] = []
        self.kept: list[LemonScore] = []
        self.asked = 0
        self.away = False

    def read(self, since: datetime, now: datetime) -> list[NodeRecord]:
        self.asked += 1
        if self.away:
            raise LedgerAway("away")
        return self.pasts

    def keep(self, found: list[LemonScore], now: datetime) -> None:
        self.kept = found


def test_lemon_is_reported_each_hour_and_clears_below_a_lower_limit() -> None:
    book = Book()
    lemons = Lemons("c", JobMarks(), book.read, book.keep)
    where = Component(cluster="c", node="n1")
    watched = frozenset({(LEMON_NODE, where)})
    book.pasts = [past(0, 1, 2, tickets=(ago(1),)), past(0, node="n2"), past(0, 1, 2, 3, node="gone")]
    sensed = lemons.tick(look(START, slurm=picture(), watched=()))
    assert [(one.fault, one.component, one.fault_class) for one in sensed.findings] == [
        (LEMON_NODE, where, FaultClass.informational)
    ]
    assert [one.node for one in book.kept] == ["gone", "n1", "n2"]
    assert lemons.tick(look(START + timedelta(minutes=5), slurm=picture(), watched=watched)).findings == ()
    again = lemons.tick(look(START + EVERY, slurm=picture(), watched=watched))
    assert again.findings[0].evidence[0].digest == sensed.findings[0].evidence[0].digest
    assert again.clear_since == {}
    assert book.asked == 2
    book.pasts = [past(0)]  # the others were false alarms
    assert book.kept[-1].score < OVER
    over = lemons.tick(look(START + 2 * EVERY, slurm=picture(), watched=watched))
    assert (over.findings, dict(over.clear_since)) == ((), {(LEMON_NODE, where): START + 2 * EVERY})


def test_a_ledger_that_is_away_says_nothing_and_is_asked_again_soon() -> None:
    book = Book()
    lemons = Lemons("c", JobMarks(), book.read, book.keep)
    watched = frozenset({(LEMON_NODE, Component(cluster="c", node="n1"))})
    book.away = True
    sensed = lemons.tick(look(START, slurm=picture(), watched=watched))
    assert (sensed.findings, sensed.clear_since) == ((), {})
    lemons.tick(look(START + AWAY / 2, slurm=picture(), watched=watched))
    assert book.asked == 1
    book.away, book.pasts = False, [past(0, 1, 2, tickets=(ago(1),))]
    assert lemons.tick(look(START + AWAY, slurm=picture(), watched=watched)).findings
