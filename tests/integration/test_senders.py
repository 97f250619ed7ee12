"""Who sends what, kept in PostgreSQL: summed by token and route, the latest first."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
import sqlalchemy as sa

from healer.adapters.postgres.arrivals import PostgresSenders
from healer.adapters.postgres.retention import tidy
from healer.api.quotas import PAIRS, REST, Senders
from healer.model import Role, Sender
from healer.ports.callers import Caller
from healer.ports.request_errors import Unavailable

AT = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)


def sent(
    who: str, source: str = "metrics", *, cluster: str = "pod1", node: str = "", at: datetime = AT
) -> Sender:
    return Sender(
        cluster=cluster, who=who, source=source, node=node, requests=2, bytes=100, first_seen=at, last_seen=at
    )


def test_repeated_lines_are_appended(fresh_database: sa.Engine) -> None:
    book = PostgresSenders(fresh_database)
    book.add([])
    book.add([sent("b"), sent("a", node="gpu0001"), sent("a", "kernel-log"), sent("c", cluster="pod2")])
    later = AT + timedelta(minutes=1)
    book.add([sent("a", node="gpu0001", at=later)])
    first, *rest = book.senders(["pod1"], 10)
    assert first == Sender(
        cluster="pod1", who="a", source="metrics", node="gpu0001", requests=4, bytes=200,
        first_seen=AT, last_seen=later,
    )  # fmt: skip
    assert [(one.who, one.source) for one in rest] == [("a", "kernel-log"), ("b", "metrics")]
    assert len(book.senders(None, 10)) == 4 and len(book.senders(None, 2)) == 2
    assert [one.who for one in book.senders(None, 10, node="gpu0001")] == ["a"]


def test_silent_tokens_come_first_however_many_others_there_are(fresh_database: sa.Engine) -> None:
    book, now = PostgresSenders(fresh_database), AT + timedelta(hours=3)

    def sends(who: str, source: str, *, every_s: float, until_min: float, cluster: str = "pod1") -> Sender:
        last = now - timedelta(minutes=until_min)
        count = int((last - AT).total_seconds() / every_s) + 1
        row = sent(who, source, cluster=cluster)
        return msgspec.structs.replace(row, requests=count, first_seen=AT, last_seen=last)

    nodes = [f"node pod1/gpu{number:04d}" for number in range(9)]
    book.add([sends(node, "heartbeat", every_s=10, until_min=0.1) for node in nodes])
    # Its jobs are over, and its heartbeats go on.
    book.add([sends("node pod1/gpu0001", "hooks/epilog", every_s=10, until_min=40)])
    gone = "node pod1/gpu0077"
    book.add([sends(gone, route, every_s=10, until_min=16) for route in ("heartbeat", "metrics")])
    book.add([sends("job pod1/4711", "step-times", every_s=10, until_min=60)])
    # It sends when something happens: about every hour.
    book.add([sends("alertmanager", "alertmanager", every_s=3_000, until_min=60)])
    book.add([sends("relay", "kernel-log", every_s=10, until_min=60, cluster="pod2")])

    tokens, silent, heard = book.heard("pod1", 4, now)
    assert (tokens, silent) == (12, 1)
    rows = [(each.sender.who, each.sender.source, each.silent) for each in heard]
    assert rows[:2] == [(gone, "heartbeat", True), (gone, "metrics", True)]
    assert [silent for *_, silent in rows[2:]] == [False, False]
    assert book.heard("pod1", 4, now - timedelta(minutes=2)).silent == 0


def test_one_who_sends_no_more_is_forgotten_after_a_week(fresh_database: sa.Engine) -> None:
    book = PostgresSenders(fresh_database)
    book.add([sent("gone"), sent("here", at=AT + timedelta(days=3))])
    tidy(fresh_database, AT + timedelta(days=8))
    assert [one.who for one in book.senders(None, 10)] == ["here"]


def test_ten_thousand_senders_are_one_statement(fresh_database: sa.Engine) -> None:
    book = PostgresSenders(fresh_database)
    many = [sent(f"node pod1/gpu{number:05d}") for number in range(10_000)]
    book.add(many)
    book.add(many)
    assert {one.requests for one in book.senders(None, 20_000)} == {4}


def test_a_process_sums_up_and_keeps_what_it_could_not_write(fresh_database: sa.Engine) -> None:
    class Book(PostgresSenders):
        away = True

        def add(self, counts: Sequence[Sender]) -> None:
            if self.away:
                raise Unavailable("away")
            super().add(counts)

    book = Book(fresh_database)
    senders = Senders(book, lambda: AT, "pod1")
    caller = Caller(id="1", name="prometheus", role=Role.signals)
    senders.heard(caller, "metrics", 10)
    with pytest.raises(Unavailable):
        senders.flush()
    senders.heard(caller, "metrics", 5)
    book.away = False
    senders.flush()
    assert [(one.requests, one.bytes) for one in book.senders(None, 10)] == [(2, 15)]


def test_pairs_of_one_process_are_bounded(fresh_database: sa.Engine) -> None:
    senders = Senders(PostgresSenders(fresh_database), lambda: AT, "pod1")
    for number in range(PAIRS + 5):
        senders.heard(Caller(id=str(number), name=str(number), role=Role.signals), "metrics", 1)
    assert len(senders._counted) == PAIRS + 1
    assert senders._counted["pod1", REST, "metrics"].requests == 5
