"""A commit whose wait for the synchronous standby was cut: it is visible, and may vanish at a failover."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from healer.adapters.postgres import tables
from healer.adapters.postgres.audit_rows import PostgresChain, append
from healer.adapters.postgres.engine import make_engine
from healer.adapters.postgres.gate_facts import PostgresHooks
from healer.adapters.postgres.inbox import PostgresSignals
from healer.adapters.postgres.loops import BEAT_S, DEAD_AFTER_S, Heartbeat, lock_held, part_lock, wait_to_lead
from healer.adapters.postgres.node_rows import PostgresSnapshots
from healer.adapters.postgres.tokens import PostgresIdempotency
from healer.bootstrap.storage_checks import check_storage
from healer.model import HookRequest, Permit
from healer.ports.callers import StoredResponse
from healer.ports.request_errors import Unavailable
from healer.ports.signal_stores import Arrival
from healer.settings import load
from tests.support.command_desk import Desk
from tests.support.ledgers import CLUSTER, START, PostgresBench, record
from tests.support.loop import LOST, lines, name
from tests.support.replicated import PRIMARY, STANDBY, Pair, replicated
from tests.support.wait import wait_until

Engines = Callable[..., sa.Engine]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with replicated() as made:
        yield made


@pytest.fixture
def engines(pair: Pair) -> Iterator[Engines]:
    made = []

    def engine(url: str = "", **more: Any) -> sa.Engine:
        made.append(make_engine(url or pair.primary.url(), **more))
        return made[-1]

    yield engine
    for one in made:
        one.dispose()


class CutAfterClaim:
    """A ledger of which a claim is made as ever. After it the standby gets nothing, and no commit waits."""

    def __init__(self, real: Any, pair: Pair, how: str = "pg_cancel_backend") -> None:
        self._real, self._pair, self._how = real, pair, how

    @contextmanager
    def claim(self, run: str) -> Iterator[Any]:
        with self._real.claim(run) as claim:
            self._pair.freeze()
            with self._pair.cutting(self._how):
                yield claim

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def started(engine: sa.Engine) -> list[str]:
    log = tables.run_log.c
    with engine.connect() as conn:
        return list(conn.scalars(sa.select(log.step).where(log.event == "started")))


def drained(desk: Desk) -> bool:
    return desk.slurm.node(name(1)).held


def after(desk: Desk, engine: sa.Engine) -> Desk:
    """The workers go on at the same Slurm with this database."""
    later = Desk(PostgresBench(engine))
    later.slurm = desk.slurm
    later.driver.tools = msgspec.structs.replace(later.driver.tools, scheduler=desk.slurm)
    later.poll()
    return later


@pytest.mark.parametrize("how", ["pg_cancel_backend", "pg_terminate_backend"])
@pytest.mark.parametrize("fails_over", [True, False])
def test_a_started_that_may_vanish_permits_no_effect(
    pair: Pair, engines: Engines, how: str, fails_over: bool
) -> None:
    worker = engines()
    desk = Desk(PostgresBench(worker))
    run = desk.people.start(desk.ask()).id
    desk.driver.ledger = CutAfterClaim(desk.ledger, pair, how)
    desk.driver.drive(run)
    # The wait was cut between `started` and the call to Slurm. An ending backend shows its rows a bit later.
    assert wait_until(partial(started, worker), what="the commit is visible") == ["drain"]
    assert not drained(desk)

    if fails_over:
        pair.fail_over()
        survivor = engines(pair.standby.url())
        assert started(survivor) == []
        desk = after(desk, survivor)
    else:
        pair.thaw()
        desk.driver.ledger = desk.ledger
    desk.work(run)
    assert drained(desk)
    assert desk.audited().count("node.drained") == 1


def test_a_run_left_so_is_not_taken_up_before_the_standby_has_it(pair: Pair, engines: Engines) -> None:
    desk = Desk(PostgresBench(engines()))
    run = desk.people.start(desk.ask()).id
    desk.driver.ledger = CutAfterClaim(desk.ledger, pair)
    desk.driver.drive(run)
    desk.driver.ledger = desk.ledger
    with pair.cutting():
        for _ in range(3):
            desk.clock.advance(11)
            desk.driver.drive(run)
    assert not drained(desk)
    pair.thaw()
    desk.work(run)
    assert drained(desk)


def test_an_uncertain_commit_is_not_answered_as_done(pair: Pair, engines: Engines) -> None:
    """A repeat finds the rows, but gets no answer before the standby has them."""
    engine = engines()
    signal = Arrival(lines(name(1), LOST, at=START)[0])
    ask = HookRequest(id="h1", cluster=CLUSTER, node=name(1), hook="prolog")
    permit = Permit(id="h1", cluster=CLUSTER, node=name(1), hook="prolog", at=START, until=START)
    signals, keys = PostgresSignals(engine), PostgresIdempotency(engine)
    hooks = PostgresHooks(engine, PostgresSnapshots(engine))
    answer = StoredResponse(202, {}, b"{}")
    asks = [
        lambda: signals.store([signal]),
        lambda: hooks.note(permit, START) or hooks.permit_for(ask),
        lambda: keys.once("k", "ann", b"r", START, lambda: answer),
    ]
    pair.freeze()
    with pair.cutting():
        for each in asks * 3:
            with pytest.raises(Unavailable):
                each()
    pair.thaw()
    assert [each() for each in asks] == [[False], permit, answer]


def test_waiting_detector_leads_after_a_failover(pair: Pair, engines: Engines) -> None:
    url = pair.primary.url(PRIMARY, STANDBY) + "&target_session_attrs=read-write"
    leader, waits = engines(url), engines(url)
    settings = load({"HEALER_DATABASE_URL": pair.primary.url()}, which=lambda _: None)
    assert [look.text for look in check_storage(settings) if look.name == "standbys"] == [
        "commits wait for walreceiver"
    ], "as `healer doctor` says"
    assert wait_to_lead(leader, CLUSTER, lambda _: False) is not None
    waited = [pair.fail_over]

    def stopped(seconds: float) -> bool:
        time.sleep(seconds / 10)
        if waited:
            waited.pop()()
        return False

    connection = wait_to_lead(waits, CLUSTER, stopped)
    assert connection is not None and lock_held(connection, part_lock("detector", CLUSTER))
    connection.close()


def test_a_leader_is_not_taken_for_frozen_while_no_commit_ends(pair: Pair, engines: Engines) -> None:
    leads, beats = engines(), engines()
    leader, looks = wait_to_lead(leads, CLUSTER, lambda _: True), 0
    assert leader is not None
    Heartbeat(beats, CLUSTER, "detector")()

    def stopped(_: float) -> bool:
        nonlocal looks
        looks += 1
        if looks == DEAD_AFTER_S - 5:
            pair.freeze()
        return looks >= DEAD_AFTER_S + 5

    long = f"wait_event = 'SyncRep' AND now() - xact_start > '{BEAT_S + 1} s'"
    waits = f"SELECT EXISTS (SELECT FROM pg_stat_activity WHERE {long})"
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(wait_to_lead, engines(), CLUSTER, stopped)
        wait_until(lambda: pair.primary.ask(waits), 30, what="the waiting detector's commit waits")
        pair.thaw()
        assert waiting.result() is None
    assert leader.execute(sa.text("SELECT 1")).scalar() == 1
    leader.close()


def test_the_survivor_of_several_hosts_is_written_to(pair: Pair, engines: Engines) -> None:
    engine = engines(pair.primary.url(STANDBY, PRIMARY) + "&target_session_attrs=read-write")
    serves = sa.text("SELECT current_setting('port')::int")
    with engine.connect() as conn:
        assert conn.scalar(serves) == PRIMARY
    pair.fail_over()

    def survivor() -> int | None:
        with suppress(OperationalError), engine.connect() as conn:
            return conn.scalar(serves)
        return None

    assert wait_until(survivor, what="the standby takes writes") == STANDBY


def test_a_sealer_that_takes_over_publishes_nothing_unconfirmed(pair: Pair, engines: Engines) -> None:
    chain = PostgresChain(engines())
    with engines().begin() as conn:
        append(conn, record())
    pair.freeze()
    with pair.cutting(), pytest.raises(OperationalError):
        chain.lock()
    chain.drop()
