"""kill -9 of each process and of PostgreSQL under senders of every kind: what was answered 2xx is stored."""

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from tests.support.away import connect, ready, spooled
from tests.support.posting import EVENTS, METRICS, posting
from tests.support.processes import descendants
from tests.support.stack import make_scratch
from tests.support.up import Stack
from tests.support.wait import wait_until

pytestmark = pytest.mark.crash

VICTIMS = ("api", "detector", "scheduler", "worker", "redis", "postgres")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(make_scratch(), HEALER_SLURM_ADAPTERS="sim", HEALER_MODE="shadow") as one:
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


@pytest.mark.parametrize("victim", VICTIMS)
def test_what_was_answered_is_stored_whoever_dies(stack: Stack, token: str, victim: str) -> None:
    with posting(stack, token) as posters:

        def all_beyond(counts: dict[str, int]) -> bool:
            return all(len(one.accepted) > counts[route] for route, one in posters.items())

        wait_until(lambda: all_beyond(dict.fromkeys(posters, 20)), 60, what="all kinds are accepted")
        kill(stack, victim)
        counts = {route: len(one.accepted) + 20 for route, one in posters.items()}
        wait_until(lambda: all_beyond(counts), 60, what="all kinds are accepted again")
    wait_until(lambda: spooled(stack).get("entries") == 0, 60, what="the spool is empty")
    wait_until(lambda: ready(stack).get("ready"), 60, what="healer is ready again")
    with connect(stack) as database:
        for route, poster in posters.items():
            stored = poster.stored(database)
            assert set(poster.accepted) <= set(stored), (route, set(poster.accepted) - set(stored))
            if route != "step-times":  # what had no answer was sent again; windows know each step once
                assert len(stored) == len(set(stored)), route
    assert set(posters) == set(EVENTS)


@pytest.mark.parametrize("victim", ["api", "postgres"])
def test_metrics_lose_nothing_with_healer_and_their_last_moment_with_postgresql(
    stack: Stack, token: str, victim: str
) -> None:
    with posting(stack, token, METRICS) as posters:
        (poster,) = posters.values()
        wait_until(lambda: len(poster.accepted) > 100, 60, what="metrics are accepted")
        kill(stack, victim)
        before = len(poster.accepted)
        wait_until(lambda: len(poster.accepted) > before + 50, 60, what="metrics are accepted again")
    with connect(stack) as database:
        stored = set(poster.stored(database))
        database.execute("TRUNCATE samples")
    missing = sorted(set(poster.accepted) - stored)
    print(f"{victim}: {len(missing)} of {len(poster.accepted)} answered reports are missing")
    if victim == "api":
        assert not missing
    elif missing:
        # One stretch: nothing that is older than what was kept.
        assert all(one in missing for one in poster.accepted if missing[0] <= one <= missing[-1])
