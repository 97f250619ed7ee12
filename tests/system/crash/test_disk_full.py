"""No room on the disk of PostgreSQL, or of the spool: what is refused hears so, what was accepted stays."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.support.away import Fleet as Senders
from tests.support.away import compare, connect, frozen, ready, spooled, superuser_url
from tests.support.small_disk import MIB, filled, mounted
from tests.support.stack import lay_database, lay_proofs
from tests.support.up import Stack
from tests.support.wait import wait_until

pytestmark = pytest.mark.crash

NODES = [f"gpu{number:04d}" for number in range(1, 33)]


@pytest.fixture
def stack(scratch: Path) -> Iterator[Stack]:
    """PostgreSQL on 200 MiB, the spool on one."""
    data = scratch / "data"
    data.mkdir(mode=0o711)
    with (
        mounted(data / "postgres", 200),
        mounted(data / "spool", 1),
    ):
        lay_database(data)
        lay_proofs(data)
        with Stack(scratch, HEALER_SLURM_ADAPTERS="sim", HEALER_MODE="auto") as one:
            wait_until(lambda: ready(one).get("ready"), 60, what="healer is ready")
            yield one


def post(stack: Stack, token: str, route: str, body: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"}
    return stack.http.post(f"{stack.url}/api/v1/signals/{route}", json=body, headers=headers, timeout=20)


def well_again(stack: Stack) -> None:
    wait_until(lambda: spooled(stack).get("entries") == 0, 120, what="the spool is empty", every_s=0.2)
    wait_until(lambda: ready(stack).get("ready"), 120, what="healer is ready again", every_s=0.2)
    assert "disk" not in ready(stack)["checks"]
    stack.run("audit", "verify")
    with connect(stack) as database:
        assert database.execute("SELECT count(*) FROM runs WHERE state = 'stuck'").fetchone() == (0,)
        twice = "SELECT node FROM runs WHERE state NOT IN ('done', 'undone', 'rejected', 'cancelled') AND"
        assert not database.execute(f"{twice} node IS NOT NULL GROUP BY node HAVING count(*) > 1").fetchall()


def metrics_refused(stack: Stack, token: str) -> httpx.Response | None:
    answer = post(stack, token, "metrics", {"node": "gpu0001", "host": {"load1": 1.0}})
    assert answer.status_code in (202, 503)
    return answer if answer.status_code == 503 else None


def test_the_database_has_no_room(stack: Stack, scratch: Path) -> None:
    token, viewer = stack.token("signals"), stack.headers("viewer")
    senders = Senders(stack.url, token, NODES, every_s=0.005, lines=20)
    with senders.sending():
        wait_until(lambda: senders.count > 200, 30, what="events are accepted")
        with filled(scratch / "data" / "postgres", left_bytes=MIB // 4):
            # First the spool takes what the database cannot, then it is full too.
            wait_until(lambda: senders.answers[503] > 5, 120, what="senders hear 503", every_s=0.2)
            state = ready(stack)
            assert not state["ready"]
            assert not all(check["ok"] for check in state["checks"].values())
            assert state["checks"]["spool"]["entries"] > 0
            # A small one may still find room that others have just left.
            refused = wait_until(lambda: metrics_refused(stack, token), 30, what="metrics are refused too")
            assert int(refused.headers["Retry-After"]) >= 1
            assert refused.json()["detail"]
            before = senders.count
        wait_until(lambda: senders.count > before + 200, 120, what="events are accepted again", every_s=0.2)
    well_again(stack)
    with connect(stack) as database:
        result = compare(senders.accepted, senders.stored(database))
    assert (result.missing, result.twice, result.out_of_order) == (0, 0, 0), result

    def lost() -> set[str]:
        answer = stack.http.get(f"{stack.url}/api/v1/signals/losses", headers=viewer, timeout=20)
        return {one["reason"] for one in answer.json()["items"]}

    wait_until(lambda: lost() & {"disk_full", "spool_full"}, 30, what="it is counted what was refused")


def test_the_spool_has_no_room(stack: Stack, scratch: Path) -> None:
    token = stack.token("signals")
    senders = Senders(stack.url, token, NODES, every_s=0.005, lines=20)
    with senders.sending():
        wait_until(lambda: senders.count > 200, 30, what="events are accepted")
        with frozen(stack):
            wait_until(lambda: senders.answers[503] > 5, 60, what="senders hear 503", every_s=0.2)
            many = [{"job": "1", "step": step, "path": "x" * 500, "durable": True} for step in range(2000)]
            answer = post(stack, token, "checkpoints", many)
            assert answer.status_code == 503
            assert "the spool cannot be written: No space left on device" in answer.json()["detail"]
            assert int(answer.headers["Retry-After"]) >= 1
    well_again(stack)
    with connect(stack) as database:
        result = compare(senders.accepted, senders.stored(database))
    assert (result.missing, result.twice, result.out_of_order) == (0, 0, 0), result


def test_the_database_cannot_write_its_log_and_falls(stack: Stack, scratch: Path) -> None:
    """PostgreSQL ends itself when it cannot write its log, and cannot start again before there is room."""
    token = stack.token("signals")
    senders = Senders(stack.url, token, NODES, every_s=0.02, lines=2)
    with senders.sending():
        wait_until(lambda: senders.count > 200, 30, what="events are accepted")
        connect(stack).close()
        with filled(scratch / "data" / "postgres"):
            wait_until(lambda: _asked_for_a_new_log(stack), 60, what="PostgreSQL has ended", every_s=0.1)
            before = senders.count
            wait_until(lambda: senders.count > before + 200, 60, what="events are accepted meanwhile")
            assert not ready(stack)["ready"]
        wait_until(lambda: ready(stack).get("ready"), 120, what="healer is ready again", every_s=0.2)
    well_again(stack)
    with connect(stack) as database:
        result = compare(senders.accepted, senders.stored(database))
    assert (result.missing, result.twice, result.out_of_order) == (0, 0, 0), result


def _asked_for_a_new_log(stack: Stack) -> bool:
    """Has it begin a new file of its log again and again; True once it has fallen over that."""
    try:
        with psycopg.connect(superuser_url(stack), connect_timeout=5, autocommit=True) as database:
            database.execute("SELECT pg_logical_emit_message(true, 'test', repeat('x', 1000))")
            database.execute("SELECT pg_switch_wal()")
    except (psycopg.Error, ProcessLookupError, KeyError):  # KeyError: it is not running just now
        return "PANIC" in stack.log("postgres")
    return False
