"""What every `ports.EvidenceBook` must do: in memory and in PostgreSQL; and what the latter forgets."""

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from healer.adapters.postgres import evidence as kept
from healer.adapters.postgres.engine import make_engine
from healer.adapters.postgres.evidence import PostgresEvidence, forget
from healer.model import Bundle, EvidenceFile, IncidentState
from healer.ports.node_exec import EvidenceBook, EvidenceBroken
from healer.sim.stores import MemoryEvidence
from tests.support.api import incident, save_incident

START = datetime(2026, 11, 20, 3, tzinfo=UTC)
DATA = b"0123456789" * 10


@pytest.fixture(params=["memory", "postgres"])
def book(request: pytest.FixtureRequest) -> Iterator[EvidenceBook]:
    if request.param == "memory":
        yield MemoryEvidence()
        return
    yield PostgresEvidence(request.getfixturevalue("fresh_database"))


def made(name: str, data: bytes = DATA, *, at: datetime = START, incident: str | None = "i1") -> EvidenceFile:
    bundle = Bundle(size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), parts=("dmesg: 2 lines",))
    return EvidenceFile(
        id=name, cluster="pod1", node="gpu0001", run=f"r-{name}", incident=incident, name="x.gz", at=at,
        bundle=bundle,
    )  # fmt: skip


def keep(book: EvidenceBook, file: EvidenceFile, data: bytes = DATA) -> None:
    book.add(file, 0, data)
    book.finish(file)


def test_pieces_become_a_file_and_only_a_whole_one_is_shown(book: EvidenceBook) -> None:
    file = made("e1")
    assert book.stored("e1") == 0
    book.add(file, 0, DATA[:60])
    assert (book.stored("e1"), book.files(incident="i1"), book.file("e1")) == (60, [], None)
    assert book.content("e1") == b""
    book.add(file, 60, DATA[60:])
    book.finish(file)
    assert book.files(incident="i1") == book.files(run="r-e1") == [file]
    assert (book.file("e1"), book.content("e1")) == (file, DATA)


def test_the_same_piece_and_the_same_end_again_are_nothing(book: EvidenceBook) -> None:
    file = made("e1")
    for _ in range(2):
        book.add(file, 0, DATA[:60])
    for _ in range(2):
        book.add(file, 60, DATA[60:])
        book.finish(file)
    assert (book.stored("e1"), book.content("e1")) == (100, DATA)


def test_file_that_differs_from_the_announced_digest_is_dropped(book: EvidenceBook) -> None:
    file = made("e1")
    book.add(file, 0, b"y" * 100)
    with pytest.raises(EvidenceBroken, match="gpu0001 announced"):
        book.finish(file)
    assert (book.stored("e1"), book.files(run="r-e1")) == (0, [])
    keep(book, file)
    assert book.content("e1") == DATA


def test_lists_are_of_one_incident_or_run_the_oldest_first(book: EvidenceBook) -> None:
    later, alone = made("e0", at=START + timedelta(hours=1)), made("e3", incident=None)
    for file in (later, made("e1"), alone):
        keep(book, file)
    assert [one.id for one in book.files(incident="i1")] == ["e1", "e0"]
    assert [one.id for one in book.files(run="r-e3")] == ["e3"]


def test_old_ones_go_and_the_oldest_of_too_much(
    fresh_database: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = PostgresEvidence(fresh_database)
    for day, name in ((-91, "old"), (-3, "e1"), (-2, "e2"), (-1, "e3")):
        keep(book, made(name, at=START + timedelta(days=day)))
    forget(fresh_database, START)
    assert [one.id for one in book.files()] == ["e1", "e2", "e3"]
    monkeypatch.setattr(kept, "MOST_BYTES", 250)
    forget(fresh_database, START)
    assert [one.id for one in book.files()] == ["e2", "e3"]
    monkeypatch.setattr(kept, "LOW_BYTES", 120)
    forget(fresh_database, START, low=True)
    assert [one.id for one in book.files()] == ["e3"] and book.stored("e2") == 0


def test_a_file_that_cannot_be_deleted_in_time_keeps_no_older_one(fresh_database: sa.Engine) -> None:
    """2 GB that are deleted at once take minutes on a slow disk, and a statement has seconds."""
    book = PostgresEvidence(fresh_database)
    for day, name in ((-94, "e3"), (-93, "e2"), (-92, "e1")):
        keep(book, made(name, at=START + timedelta(days=day)))
    hurried = make_engine(fresh_database.url.render_as_string(hide_password=False), statement_timeout_s=0.5)
    with fresh_database.begin() as other, pytest.raises(OperationalError):
        other.execute(sa.text("SELECT FROM evidence WHERE id = 'e1' FOR UPDATE"))
        forget(hurried, START)
    hurried.dispose()
    assert [one.id for one in book.files()] == ["e1"]


def test_those_of_an_open_incident_and_its_parts_stay_and_are_the_last_beyond_the_limit(
    fresh_database: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = PostgresEvidence(fresh_database)
    here, ended = incident(1), incident(2, state=IncidentState.resolved)
    part = incident(3, state=IncidentState.resolved, merged_into=here.id)
    with fresh_database.begin() as conn:
        for each in (here, ended, part):
            save_incident(conn, each)
    for day, name, of in ((-95, "part", part), (-93, "here", here), (-91, "ended", ended)):
        keep(book, made(name, at=START + timedelta(days=day), incident=of.id))
    forget(fresh_database, START)
    assert [one.id for one in book.files()] == ["part", "here"]
    keep(book, made("new", incident=ended.id))
    monkeypatch.setattr(kept, "LOW_BYTES", 150)
    forget(fresh_database, START, low=True)
    assert [one.id for one in book.files()] == ["part", "here"]
    monkeypatch.setattr(kept, "MOST_BYTES", 150)
    forget(fresh_database, START)
    assert [one.id for one in book.files()] == ["here"]
