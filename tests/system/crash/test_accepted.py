"""kill -9 of each process and of PostgreSQL under senders of every kind: what was answered 2xx is stored.

Of metrics PostgreSQL's own death may take the last moment (docs/signals.md, "What a 2xx means").
"""

import contextlib
import os
import signal
from collections.abc import Iterator

import psycopg
import pytest

from tests.support.away import connect, ready, spooled
from tests.support.posting import EVENTS, METRICS, Poster, posting
from tests.support.processes import descendants
from tests.support.stack import scratch_folder
from tests.support.up import Stack
from tests.support.wait import wait_until

pytestmark = pytest.mark.crash

VICTIMS = ("api", "detector", "scheduler", "worker", "redis", "postgres")


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


def kill(stack: Stack, victim: str) -> None:
    """With all its children: of PostgreSQL no process is left that could still write to the log."""
    first = stack.pids()[victim]
    os.kill(first, signal.SIGSTOP)
    for pid in (*(descendants(first) - {first}), first):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: stack.pids().get(victim, first) != first, 60, what=f"{victim} has a successor")


def posted(posters: dict[str, Poster]) -> dict[str, int]:
    """How many of each were accepted. Raises what ended one of them."""
    for one in posters.values():
        if one.error is not None:
            raise one.error
    return {route: len(one.accepted) for route, one in posters.items()}


def all_beyond(posters: dict[str, Poster], before: dict[str, int]) -> bool:
    return all(count > before[route] + 20 for route, count in posted(posters).items())


@pytest.mark.parametrize("victim", VICTIMS)
def test_acknowledged_records_survive_any_crash(stack: Stack, token: str, victim: str) -> None:
    with posting(stack, token, EVENTS | METRICS) as posters:
        wait_until(lambda: min(posted(posters).values()) > 20, 60, what="all kinds are accepted")
        kill(stack, victim)
        before = posted(posters)
        wait_until(lambda: all_beyond(posters, before), 60, what="all kinds are accepted again")
    missing = gone(stack, posters)
    assert not any(missing[route] for route in posters if route in EVENTS or victim != "postgres"), missing
    for route in METRICS:
        assert_one_stretch(missing[route], posters[route].accepted)


def test_of_metrics_alone_the_last_moment_goes_with_postgresql(stack: Stack, token: str) -> None:
    """Beside events they are safe with these: what waits for the disk takes along what came before it."""
    with posting(stack, token, METRICS) as posters:
        wait_until(lambda: min(posted(posters).values()) > 50, 60, what="all forms are accepted")
        kill(stack, "postgres")
        before = posted(posters)
        wait_until(lambda: all_beyond(posters, before), 60, what="all forms are accepted again")
    missing = gone(stack, posters)
    for route, poster in posters.items():
        print(f"{len(missing[route])} of {len(poster.accepted)} answered reports of {route} are missing")
        assert_one_stretch(missing[route], poster.accepted)


def gone(stack: Stack, posters: dict[str, Poster]) -> dict[str, list[int]]:
    """What of each was answered and is not stored, once healer has settled."""
    wait_until(lambda: spooled(stack).get("entries") == 0, 60, what="the spool is empty")
    wait_until(lambda: ready(stack).get("ready"), 60, what="healer is ready again")
    with connect(stack) as database:
        missing = {route: absent(poster, database) for route, poster in posters.items()}
        database.execute("TRUNCATE samples")  # of metrics no row tells which test it is of
    return missing


def absent(poster: Poster, database: psycopg.Connection) -> list[int]:
    """What was answered and is not stored. What had no answer was sent again: no event is there twice."""
    stored = poster.stored(database)
    if poster.route in EVENTS and poster.route != "step-times":  # windows know each step once
        assert len(stored) == len(set(stored)), poster.route
    return sorted(set(poster.accepted) - set(stored))


def assert_one_stretch(missing: list[int], accepted: list[int]) -> None:
    """Nothing that is older than what was kept."""
    if missing:
        assert missing == [one for one in accepted if missing[0] <= one <= missing[-1]]
