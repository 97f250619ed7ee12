"""What the writer's thread does: bodies are read once, one bad one harms no other, unknown names add up."""

from datetime import UTC, datetime, timedelta

import pytest

from healer.api import quotas
from healer.api.intake import Body, Intake, Refused, Translators
from healer.api.quotas import REST, Tally
from healer.model import Ruleset, UnknownSeries
from healer.ports.request_errors import Unavailable
from healer.signals.series import Unknown
from healer.signals.wire import BadBody
from healer.sim.stores import MemoryColumns
from tests.support.api import RULES

NOW = datetime(2026, 11, 20, tzinfo=UTC)


def test_a_body_is_read_once_although_the_database_was_away() -> None:
    reads: list[str] = []
    away = [False, True, True]
    put: list[list[str]] = []

    def read() -> str:
        reads.append("x")
        return "x"

    def store(entries: list[str]) -> None:
        if away.pop():
            raise Unavailable("away")
        put.append(entries)

    work = Intake(store)
    body = Body(1, read)
    for _ in range(2):
        with pytest.raises(Unavailable):
            work.store([body])
    assert work.store([body]) == ["x"]
    assert (reads, put) == (["x"], [["x"]])


def test_wrong_body_is_reported_and_the_others_are_stored() -> None:
    def bad() -> str:
        raise BadBody("no")

    def foreign() -> str:
        raise Refused("not yours")

    put: list[str] = []
    outcomes = Intake(put.extend).store([Body(1, bad), Body(1, lambda: "good"), Body(1, foreign)])
    assert put == ["good"]
    assert [type(one) for one in outcomes] == [BadBody, str, Refused]
    assert Intake(put.extend).store([Body(1, bad)])
    assert put == ["good"]


def test_a_changed_catalogue_makes_a_new_translator() -> None:
    rules: list[Ruleset] = [RULES]
    translators = Translators(lambda: rules[0], MemoryColumns())
    first = translators.current("pod1")
    assert translators.current("pod1") is first
    assert translators.current("pod2") is not first  # clusters number their nodes alike
    rules[0] = Ruleset(
        **{name: getattr(RULES, name) for name in RULES.__struct_fields__ if name != "catalogue"}
    )
    assert translators.current("pod1") is not first


class Book:
    def __init__(self) -> None:
        self.counted: list[UnknownSeries] = []
        self.away = False

    def add(self, series: list[UnknownSeries]) -> None:
        if self.away:
            raise Unavailable("away")
        self.counted += series

    def series(self, clusters: object, limit: int) -> list[UnknownSeries]:
        return self.counted


def test_the_tally_keeps_what_could_not_be_written() -> None:
    book = Book()
    tally = Tally(book)
    tally.add("pod1", [("a", Unknown(why="first", count=2))], NOW)
    book.away = True
    with pytest.raises(Unavailable):
        tally.flush()
    tally.add(
        "pod1",
        [("a", Unknown(why="second", count=3)), ("b", Unknown(why="x", count=1))],
        NOW + timedelta(seconds=5),
    )
    book.away = False
    tally.flush()
    tally.flush()
    losses = {one.name: one for one in book.counted}
    assert len(book.counted) == 2
    assert (losses["a"].count, losses["a"].first_seen, losses["b"].count) == (5, NOW, 1)
    assert (losses["a"].last_seen, losses["a"].why) == (NOW + timedelta(seconds=5), "second")


def test_the_tally_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "NAMES", 2)
    book = Book()
    tally = Tally(book)
    tally.add("pod1", [(name, Unknown(why="x", count=1)) for name in "abcda"], NOW)
    tally.flush()
    assert {one.name: one.count for one in book.counted} == {"a": 2, "b": 1, REST: 2}
