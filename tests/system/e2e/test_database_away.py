"""The database stops answering for half a minute while a fleet reports: nothing that was accepted is lost."""

import os
import signal
from collections.abc import Iterator

import httpx
import pytest

from tests.support.away import Fleet, compare, connect, frozen, ready, spool_files, spooled
from tests.support.posting import EVENTS, METRICS, Poster, post, posting
from tests.support.stack import scratch_folder
from tests.support.up import Stack
from tests.support.wait import wait_until

pytestmark = pytest.mark.crash

NODES = [f"gpu{number:04d}" for number in range(1, 33)]
#: More than one reading of tokens, pictures and standings, and longer than any sender waits.
AWAY_ENTRIES = 600


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with (
        scratch_folder() as folder,
        Stack(folder, HEALER_SLURM_ADAPTERS="sim", HEALER_MODE="shadow") as one,
    ):
        wait_until(lambda: ready(one).get("ready"), 60, what="healer is ready")
        yield one


@pytest.fixture(scope="module")
def token(stack: Stack) -> str:
    return stack.token("signals")


def test_a_database_that_hangs_costs_no_event(stack: Stack, token: str) -> None:
    fleet = Fleet(stack.url, token, NODES, every_s=0.02, lines=2)
    with fleet.sending():
        wait_until(lambda: fleet.count > 100, 30, what="events are accepted")
        with frozen(stack):
            before = fleet.count
            wait_until(lambda: fleet.count > before + AWAY_ENTRIES, 60, what="events are accepted meanwhile")
            readiness = ready(stack)
            assert not readiness["ready"] and not readiness["checks"]["database"]["ok"]
            assert readiness["checks"]["spool"]["entries"] > AWAY_ENTRIES / 2
            assert "have been waiting for the database since" in readiness["checks"]["spool"]["text"]
            others(stack, token)
        more = fleet.count
        wait_until(lambda: fleet.count > more + 100, 60, what="events are accepted afterwards")
    wait_until(lambda: spooled(stack).get("entries") == 0, 60, what="the spool is empty")
    assert not spool_files(stack)
    with connect(stack) as database:
        result = compare(fleet.accepted, fleet.stored(database))
    assert (result.missing, result.twice, result.out_of_order) == (0, 0, 0), result
    assert result.answered > AWAY_ENTRIES
    wait_until(lambda: ready(stack).get("ready"), 60, what="healer is ready again")


def others(stack: Stack, token: str) -> None:
    """What a sender of signals may do meanwhile, and what no client may."""
    signals = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=f"{stack.url}/api/v1", headers=signals, timeout=20) as client:
        job = {"job": "4711", "restart": 0, "samples": [{"step": 1, "rank": 0, "step_s": 1.5}]}
        assert client.post("/signals/step-times", json=job).status_code == 202
        checkpoint = {"job": "4711", "restart": 0, "step": 7, "path": "/ckpt/7", "durable": True}
        assert client.post("/signals/checkpoints", json=checkpoint).status_code == 202
        hook = client.post("/signals/hooks/prolog", json={"node": "gpu0001", "job": "4711", "restarts": 0})
        assert hook.status_code == 202, hook.text
        assert hook.json()["may_refuse"] is False, "without the gate no client is refused"
        metrics = client.post("/signals/metrics", json={"node": "gpu0001", "host": {"load1": 1.0}})
        assert metrics.status_code == 503 and int(metrics.headers["Retry-After"]) >= 1
        unknown = {"Authorization": "Bearer heal_00000000_" + "x" * 43}
        strange = client.post("/signals/checkpoints", json=checkpoint, headers=unknown)
        assert strange.status_code == 503, "an unknown client is not believed"
        assert client.post("/signals/checkpoints", json=checkpoint).status_code == 202
        assert client.get("/nodes").status_code in {403, 503}, "the memory serves signals alone"


def test_steps_checkpoints_and_hooks_sent_during_the_outage_are_stored(stack: Stack) -> None:
    """The step times and the checkpoint of the previous test are in their usual tables."""
    with connect(stack) as database:
        kinds = database.execute(
            "SELECT kind, count(*) FROM inbox WHERE doc #>> '{component,job}' = '4711' GROUP BY kind"
        ).fetchall()
        steps = database.execute("SELECT count(*) FROM samples WHERE kind = 'steps' AND subject = '4711'")
        assert dict(kinds)["checkpoint"] == 1
        assert steps.fetchone() == (1,)
        hooks = database.execute("SELECT count(*) FROM inbox WHERE kind = 'hook'").fetchone()
        assert hooks == (1,)
    viewer = stack.headers("viewer")

    def counted() -> int:
        lost = stack.http.get(f"{stack.url}/api/v1/signals/losses", headers=viewer, timeout=20).json()[
            "items"
        ]
        found = [one for one in lost if (one["source"], one["reason"]) == ("metrics", "database_away")]
        return sum(one["count"] for one in found)

    wait_until(lambda: counted() >= 1, 60, what="what was refused is counted", every_s=0.2)


def test_an_api_that_is_killed_meanwhile_loses_nothing(stack: Stack, token: str) -> None:
    """What it had accepted lies on disk; the next one takes it over, and stores it before all else."""
    fleet = Fleet(stack.url, token, NODES, every_s=0.02, lines=2)
    with fleet.sending():
        wait_until(lambda: fleet.count > 100, 30, what="events are accepted")
        with frozen(stack):
            before = fleet.count
            wait_until(lambda: fleet.count > before + 300, 60, what="events are accepted meanwhile")
            kill_api(stack)
            assert spool_files(stack)
        more = fleet.count
        wait_until(lambda: fleet.count > more + 100, 60, what="events are accepted afterwards")
    wait_until(lambda: spooled(stack).get("entries") == 0, 60, what="the spool is empty")
    with connect(stack) as database:
        result = compare(fleet.accepted, fleet.stored(database))
    assert (result.missing, result.twice, result.out_of_order) == (0, 0, 0), result


def kill_api(stack: Stack) -> None:
    first = stack.pids()["api"]
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: stack.pids().get("api", first) != first, 60, what="the API has a successor")


def test_a_database_that_is_back_and_takes_nothing_costs_no_event(stack: Stack, token: str) -> None:
    """As a standby that was not promoted yet: it answers every question, and refuses every INSERT."""
    fleet = Fleet(stack.url, token, NODES, every_s=0.02, lines=2)
    with fleet.sending():
        wait_until(lambda: fleet.count > 100, 30, what="events are accepted")
        with frozen(stack):
            before = fleet.count
            wait_until(lambda: fleet.count > before + 200, 60, what="events are accepted meanwhile")
            waiting = spooled(stack)["entries"]
        read_only(stack, "on")
        try:
            more = fleet.count
            wait_until(lambda: fleet.count > more + 300, 60, what="events are accepted by the spool")
            assert spooled(stack)["entries"] > 0 and waiting > 0
        finally:
            read_only(stack, "off")
        last = fleet.count
        wait_until(lambda: fleet.count > last + 100, 60, what="events are accepted afterwards")
    wait_until(lambda: spooled(stack).get("entries") == 0, 60, what="the spool is empty")
    with connect(stack) as database:
        result = compare(fleet.accepted, fleet.stored(database))
    assert (result.missing, result.twice, result.out_of_order) == (0, 0, 0), result


def test_every_kind_of_event_is_accepted_meanwhile_and_no_metrics(stack: Stack, token: str) -> None:
    with posting(stack, token, EVENTS) as posters:
        wait_until(lambda: all_beyond(posters, 5), 30, what="all kinds are accepted")
        with frozen(stack):
            before = max(len(one.accepted) for one in posters.values())
            wait_until(lambda: all_beyond(posters, before + 20), 60, what="all kinds are accepted meanwhile")
            assert spooled(stack)["entries"] > 0
            assert_metrics_are_refused(stack, token)
            kill_api(stack)
        after = max(len(one.accepted) for one in posters.values())
        wait_until(lambda: all_beyond(posters, after + 20), 60, what="all kinds are accepted afterwards")
    wait_until(lambda: spooled(stack).get("entries") == 0, 60, what="the spool is empty")
    with connect(stack) as database:
        for route, poster in posters.items():
            stored = poster.stored(database)
            assert set(poster.accepted) <= set(stored), (route, set(poster.accepted) - set(stored))
            if route != "step-times":  # windows know each step once
                assert len(stored) == len(set(stored)), route


def all_beyond(posters: dict[str, Poster], count: int) -> bool:
    return all(one.error is None and len(one.accepted) > count for one in posters.values())


def assert_metrics_are_refused(stack: Stack, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=f"{stack.url}/api/v1", headers=headers, timeout=20) as client:
        for route, way in METRICS.items():
            answer = post(client, route, way, way.body("0", 1))
            assert answer.status_code == 503 and int(answer.headers["Retry-After"]) >= 1, (route, answer.text)


def read_only(stack: Stack, value: str) -> None:
    """For every session there is, and every one that comes."""
    with connect(stack) as database:
        database.execute("SET default_transaction_read_only = off")
        database.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}".encode())
        database.execute("SELECT pg_reload_conf()")
