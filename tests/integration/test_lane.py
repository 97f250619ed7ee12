"""Requests that share one connection: none suffers from another, and none is left waiting."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from healer.adapters.postgres.engine import Lane, alone
from healer.adapters.postgres.tables import run_log
from healer.model import RunState, StepEvent
from healer.ports.commanding import ALONE
from healer.ports.transactions import GateTx, LeaseLost, RunClaim
from tests.support.ledgers import (
    START,
    Broken,
    PostgresBench,
    begin,
    claimed,
    decision,
    entry,
    facts,
    lock_waits,
    node,
    run,
    slot,
)
from tests.support.wait import wait_until

MANY = 12


class Slow:
    """Work that waits at its first turn until it is let go, and notes what went together."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.turns: list[list[str]] = []

    def __call__(self, conn: sa.Connection, items: Sequence[str]) -> Sequence[object]:
        self.turns.append(list(items))
        if len(self.turns) == 1:
            self.begun.set()
            assert self.go.wait(20)
        with conn.begin():
            for item in items:
                conn.execute(sa.text("SELECT CAST(:item AS integer)"), {"item": item})
        return [int(item) for item in items]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(MANY + 1) as made:
        yield made


def waiting(lane: Lane[str], count: int) -> Callable[[], bool]:
    return lambda: len(lane._queue) == count


def test_commands_that_come_during_a_turn_share_the_next_one(
    fresh_database: sa.Engine, pool: ThreadPoolExecutor
) -> None:
    work = Slow()
    lane = Lane[str](fresh_database, work)
    first = pool.submit(lane.do, "0")
    assert work.begun.wait(20)
    others = [pool.submit(lane.do, str(number)) for number in range(1, MANY)]
    wait_until(waiting(lane, MANY - 1), 20, what="the others wait")
    work.go.set()
    assert [one.result(20) for one in (first, *others)] == list(range(MANY))
    assert [len(turn) for turn in work.turns] == [1, MANY - 1]
    assert lane.session == 1


def test_command_that_cannot_share_a_turn_gets_its_own(
    fresh_database: sa.Engine, pool: ThreadPoolExecutor
) -> None:
    work = Slow()

    def start(conn: sa.Connection, items: Sequence[str]) -> Sequence[object]:
        """As `start_runs` does of two runs on one node."""
        return [result if place == 0 else ALONE for place, result in enumerate(work(conn, items))]

    lane = Lane[str](fresh_database, start)
    first = pool.submit(lane.do, "0")
    assert work.begun.wait(20)
    others = [pool.submit(lane.do, number) for number in ("1", "2")]
    wait_until(waiting(lane, 2), 20, what="the others wait")
    work.go.set()
    assert [one.result(20) for one in (first, *others)] == [0, 1, 2]
    assert [len(turn) for turn in work.turns] == [1, 2, 1]


def test_command_that_the_database_refuses_fails_alone(
    fresh_database: sa.Engine, pool: ThreadPoolExecutor
) -> None:
    work = Slow()
    lane = Lane[str](fresh_database, work)
    first = pool.submit(lane.do, "0")
    assert work.begun.wait(20)
    good, bad = pool.submit(lane.do, "1"), pool.submit(lane.do, "no number")
    wait_until(waiting(lane, 2), 20, what="the others wait")
    work.go.set()
    assert (first.result(20), good.result(20)) == (0, 1)
    with pytest.raises(DBAPIError):
        bad.result(20)
    assert lane.do("3") == 3
    assert lane.session == 1, "a refusal costs no session"


def test_background_work_is_done_and_blocks_no_request(
    fresh_database: sa.Engine, pool: ThreadPoolExecutor
) -> None:
    work = Slow()
    lane = Lane[str](fresh_database, work)
    first = pool.submit(lane.do, "0")
    assert work.begun.wait(20)
    lane.post("1")
    work.go.set()
    assert first.result(20) == 0
    wait_until(lambda: ["1"] in work.turns, 20, what="it is done")
    assert pool.submit(lane.do, "2").result(20) == 2


def test_a_session_that_ended_while_nothing_was_asked_is_replaced(fresh_database: sa.Engine) -> None:
    work = Slow()
    work.go.set()
    lane = Lane[str](fresh_database, work)
    assert lane.do("1") == 1
    with fresh_database.connect() as conn:
        ended = sa.text(
            "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND backend_type = 'client backend'"
        )
        assert conn.execute(ended).all()
    assert lane.do("2") == 2
    assert lane.session == 2


# --- runs that go together ---


@pytest.fixture
def real(fresh_database: sa.Engine) -> PostgresBench:
    return PostgresBench(fresh_database)


class Together:
    """The claims of `MANY` runs, and their calls at the same moment: in one turn, behind one that is slow."""

    def __init__(self, real: PostgresBench, stack: ExitStack, pool: ThreadPoolExecutor) -> None:
        begin(real, *(run(f"r{number}", number) for number in range(MANY + 1)))
        self._real, self._pool = real, pool
        self.claims = [claimed(stack, real, f"r{number}") for number in range(MANY + 1)]

    def call(self, act: Callable[[int, RunClaim], object]) -> list[object]:
        """What each answered, or the error it was given."""
        begun, go = threading.Event(), threading.Event()

        def holds_up(_: GateTx) -> None:
            begun.set()
            assert go.wait(20)

        claims = self._real.ledger._claims
        first = self._pool.submit(self.claims[MANY].gate, holds_up)
        assert begun.wait(20)
        others = [self._pool.submit(act, number, self.claims[number]) for number in range(MANY)]
        wait_until(lambda: len(claims.gate._queue) == MANY, 20, what="all are at the gate")
        go.set()
        first.result(20)
        return [one.exception(20) or one.result() for one in others]


def lines(real: PostgresBench) -> dict[str, list[str]]:
    with real.engine.connect() as conn:
        rows = conn.execute(sa.select(run_log.c.run, run_log.c.event).order_by(run_log.c.seq)).all()
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row.run, []).append(row.event)
    return found


def test_runs_judged_together_see_what_was_granted_before_them(
    real: PostgresBench, pool: ThreadPoolExecutor
) -> None:
    """The cap of one slot binds among those who come at once, too."""
    with ExitStack() as stack:
        together = Together(real, stack, pool)

        def asks(number: int, claim: RunClaim) -> object:
            def judge(tx: GateTx) -> bool:
                tx.add_decision(decision(run=f"r{number}"))
                if tx.facts.slots:
                    return False
                tx.grant_slot(slot(number, run=f"r{number}"))
                tx.write(entry("drain", StepEvent.started, run=f"r{number}"))
                return True

            return claim.gate(judge)

        granted = [number for number, answer in enumerate(together.call(asks)) if answer is True]
    assert len(granted) == 1
    assert [one.node for one in facts(real).slots] == [node(granted[0])]
    assert lines(real) == {f"r{granted[0]}": ["started"]}
    assert len(real.decisions()) == MANY


def test_failed_or_ended_run_does_not_block_the_others_of_its_turn(
    real: PostgresBench, pool: ThreadPoolExecutor
) -> None:
    with ExitStack() as stack:
        together = Together(real, stack, pool)
        with real.ledger.transaction() as tx:
            tx.set_run_state("r1", RunState.waiting, why="ann", at=START)

        def asks(number: int, claim: RunClaim) -> object:
            def judge(tx: GateTx) -> int:
                tx.grant_slot(slot(number, run=f"r{number}"))
                tx.write(entry("drain", StepEvent.started, run=f"r{number}"))
                if number == 2:
                    raise Broken
                return number

            return claim.gate(judge)

        answers = together.call(asks)
    assert isinstance(answers[1], LeaseLost)
    assert isinstance(answers[2], Broken)
    others = [number for number in range(MANY) if number not in {1, 2}]
    assert [answers[number] for number in others] == others
    assert lines(real) == {f"r{number}": ["started"] for number in others}
    assert {one.node for one in facts(real).slots} == {node(number) for number in others}


def test_writes_that_go_together_prove_each_run_by_itself(
    real: PostgresBench, pool: ThreadPoolExecutor
) -> None:
    with ExitStack() as stack:
        together = Together(real, stack, pool)
        with real.ledger.transaction() as tx:
            tx.set_run_state("r3", RunState.waiting, why="ann", at=START)
        barrier = threading.Barrier(MANY)

        def writes(number: int) -> BaseException | None:
            barrier.wait(20)
            try:
                together.claims[number].write(entry(run=f"r{number}"))
            except LeaseLost as error:
                return error
            return None

        errors = list(pool.map(writes, range(MANY)))
    assert [number for number, error in enumerate(errors) if error is not None] == [3]
    assert lines(real) == {f"r{number}": ["done"] for number in range(MANY) if number != 3}


def test_a_batch_that_waits_for_one_run_holds_no_other(real: PostgresBench, pool: ThreadPoolExecutor) -> None:
    """Else two who lock the same runs wait for each other: the detector, too, which ends then."""
    begin(real, *(run(f"r{number}", number) for number in range(3)))
    with (
        ExitStack() as stack,
        real.engine.connect() as first,
        real.engine.connect() as second,
        alone(real.engine).connect() as looking,
    ):
        claims = [claimed(stack, real, f"r{number}") for number in range(3)]
        lane = real.ledger._claims.lane
        first.execute(_LOCK_RUN, {"run": "r0"})
        second.execute(_LOCK_RUN, {"run": "r2"})
        begun = [pool.submit(claims[0].write, entry(run="r0"))]
        wait_until(lambda: lock_waits(looking) == 1, 20, what="the first write waits")
        begun += [pool.submit(claims[1].write, entry(run="r1"))]
        begun += [pool.submit(claims[2].set_state, RunState.stuck, why="x")]
        wait_until(lambda: len(lane._queue) == 2, 20, what="the others form a batch")
        first.commit()
        wait_until(lambda: begun[0].done() and lock_waits(looking) == 1, 20, what="the batch waits for r2")
        second.execute(sa.text("SET LOCAL lock_timeout = 200"))
        second.execute(_LOCK_RUN, {"run": "r1"})
        second.commit()
        for one in begun:
            one.result(20)
    assert lines(real) == {"r0": ["done"], "r1": ["done"]}


_LOCK_RUN = sa.text("SELECT id FROM runs WHERE id = :run FOR UPDATE")
