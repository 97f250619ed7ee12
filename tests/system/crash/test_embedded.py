"""The process tree: clean stop, nothing left after SIGKILL, servers that come back, one tree per folder."""

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from healer.embedded import running
from healer.embedded.database_logins import DATABASE, OWNER
from healer.embedded.postgres import Postgres
from healer.embedded.user import server_user
from tests.support.processes import clean_environ, free_port, living, name_of
from tests.support.stack import scratch_folder
from tests.support.up import Stack, is_ready
from tests.support.wait import wait_until

pytestmark = pytest.mark.crash
PROGRAM = ("-m", "tests.support.tree_program")


@pytest.fixture
def stubborn_tree(scratch: Path) -> Iterator[Stack]:
    with Stack(scratch, command=(*PROGRAM, "--stubborn")) as stack:
        yield stack


@pytest.fixture
def tree(scratch: Path) -> Iterator[Stack]:
    with Stack(scratch, command=PROGRAM) as stack:
        yield stack


@pytest.fixture(scope="module")
def lasting() -> Iterator[Stack]:
    """One tree for all tests that leave it as whole as they found it."""
    with scratch_folder() as folder, Stack(folder, command=PROGRAM) as stack:
        yield stack


def database(stack: Stack) -> psycopg.Connection:
    folder = running.find(stack.data_dir).database_url.partition("?host=")[2]
    return psycopg.connect(host=folder, user=OWNER, dbname=DATABASE, autocommit=True)


def answers(stack: Stack) -> bool:
    try:
        with database(stack) as connection:
            return connection.execute("SELECT 1").fetchone() == (1,)
    except psycopg.OperationalError:
        return False


def test_it_is_ready_with_tables_and_leaves_nothing_after_ctrl_c(scratch: Path) -> None:
    with Stack(scratch, command=PROGRAM, first=True) as tree:
        with database(tree) as connection:
            assert connection.execute("SELECT count(*) FROM incidents").fetchone() == (0,)
        with urllib.request.urlopen(f"{tree.url}/readyz", timeout=5) as answer:
            assert answer.status == 200
        assert tree.stop(signal.SIGINT) == 0
        assert tree.left() == set()
        assert "nothing is left running" in tree.said()


def test_a_second_ctrl_c_does_not_wait_for_a_stubborn_part(stubborn_tree: Stack) -> None:
    assert stubborn_tree.process is not None
    stubborn_tree.see()
    stubborn_tree.process.send_signal(signal.SIGINT)
    wait_until(lambda: "stopping" in stubborn_tree.said(), what="it says that it stops")
    stubborn_tree.process.send_signal(signal.SIGINT)
    assert stubborn_tree.process.wait(4) == 0, "less than the 5 s that a part is given"
    assert stubborn_tree.left() == set()


def test_a_reader_that_is_gone_ends_nothing_and_keeps_nothing_running(scratch: Path) -> None:
    """`healer up | tee log`, and Ctrl-C ends tee first; a terminal that was closed."""
    port, data_dir = free_port(), scratch / "data"
    program = [sys.executable, *PROGRAM, str(data_dir), str(port)]
    environ = clean_environ()
    with subprocess.Popen(program, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as tree:
        said = tree.stdout
        assert said is not None
        try:
            wait_until(lambda: b"healer is ready" in said.readline(), 30, what="it is ready")
            said.close()
            found = running.find(data_dir)
            os.kill(found.parts["api"], signal.SIGKILL)
            wait_until(lambda: running.find(data_dir).parts.get("api") not in {None, found.parts["api"]}, 10)
            everybody = {*running.find(data_dir).parts.values(), *found.servers.values()}
            tree.send_signal(signal.SIGTERM)
            assert tree.wait(20) == 0
            assert living(everybody) == set()
        finally:
            tree.kill()


def test_closed_streams_are_no_reason_not_to_start(scratch: Path) -> None:
    """`healer up >&- 2>&- <&-`, as some that start daemons do."""
    port = free_port()
    program = f'exec "{sys.executable}" {" ".join(PROGRAM)} "{scratch / "data"}" {port} <&- >&- 2>&-'
    with subprocess.Popen(program, shell=True, env=clean_environ()) as tree:
        try:
            wait_until(lambda: is_ready(f"http://127.0.0.1:{port}"), 30, what="it is ready")
            tree.send_signal(signal.SIGTERM)
            assert tree.wait(20) == 0
        finally:
            tree.kill()


def test_nothing_is_left_10_s_after_kill_9_of_the_parent(stubborn_tree: Stack) -> None:
    stubborn_tree.kill()
    wait_until(lambda: not stubborn_tree.left(), 10, what="every process of the tree has ended")


def test_data_survives_kill_9_of_the_parent_and_the_next_start_finds_it(scratch: Path, tree: Stack) -> None:
    with database(tree) as connection:
        connection.execute("INSERT INTO gate (cluster, breaker) VALUES ('pod1', '{}')")
    tree.kill()
    with Stack(scratch, command=PROGRAM) as again, database(again) as connection:
        assert connection.execute("SELECT cluster FROM gate").fetchone() == ("pod1",)
    assert tree.left() == set(), "the next start waits for the old guardian"


@pytest.mark.parametrize("name", ["postgres", "redis", "api", "family"])
def test_killed_process_is_started_again(lasting: Stack, name: str) -> None:
    before = lasting.pids()[name]
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: lasting.pids()[name] != before, what=f"another {name}")
    wait_until(lambda: answers(lasting), what="the database answers")
    lasting.see()


def test_committed_data_survives_kill_9_of_postgresql(lasting: Stack) -> None:
    with database(lasting) as connection:
        connection.execute("INSERT INTO gate (cluster, breaker) VALUES ('pod1', '{}')")
    before = lasting.pids()["postgres"]
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: lasting.pids()["postgres"] != before and answers(lasting), what="the database is back")
    with database(lasting) as connection:
        assert connection.execute("SELECT cluster FROM gate").fetchone() == ("pod1",)


def test_a_killed_guardian_is_replaced_and_still_cleans_up(tree: Stack) -> None:
    named = wait_until(
        lambda: [pid for pid in tree.see() if name_of(pid).startswith("healer guardian")],
        what="the guardian has its name",
    )
    (guardian,) = named
    os.kill(guardian, signal.SIGKILL)
    wait_until(lambda: "a new one was started" in tree.said(), what="another guardian")
    tree.kill()
    wait_until(lambda: not tree.left(), 10, what="every process of the tree has ended")


def test_a_second_tree_on_one_data_directory_is_refused_by_name(scratch: Path, lasting: Stack) -> None:
    other = Stack(scratch, command=PROGRAM, data_dir=lasting.data_dir)
    other.output = scratch / "other.txt"
    other.start(ready=False)
    assert other.process is not None
    assert other.process.wait(20) != 0
    assert f"another healer (process {lasting.pids()['up']}) runs on {lasting.data_dir}" in other.said()
    assert answers(lasting)


def test_the_same_command_twice_hears_of_the_folder_and_not_of_the_port(lasting: Stack) -> None:
    """Another address alone would not help."""
    done = subprocess.run(
        [sys.executable, "-m", "healer", "up", "--listen", f"127.0.0.1:{lasting.port}"],
        env=clean_environ(HEALER_DATA_DIR=str(lasting.data_dir), HEALER_SLURM_ADAPTERS="sim"),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"healer: another healer (process {lasting.pids()['up']}) runs on {lasting.data_dir}: stop it, or "
        "choose another with --data-dir or HEALER_DATA_DIR.\n"
    )


def test_a_proxy_of_the_environment_does_not_hide_our_own_address(scratch: Path) -> None:
    closed = f"http://127.0.0.1:{free_port()}"
    with Stack(scratch, command=PROGRAM, http_proxy=closed, https_proxy=closed, all_proxy=closed) as stack:
        assert "healer is ready" in stack.said()


def test_a_stale_lock_file_with_a_living_process_id_does_not_stop_the_start(scratch: Path) -> None:
    server = Postgres(scratch / "data")
    server.start()
    assert server.process is not None
    server.process.kill()
    server.process.wait()
    # What a container leaves after a crash: the old number now belongs to somebody else, of the same user.
    user = server_user()
    bystander = subprocess.Popen(["sleep", "60"], **user.popen())
    try:
        stale = server.pgdata / "postmaster.pid"
        lines = stale.read_text().splitlines()
        stale.write_text("\n".join([str(bystander.pid), *lines[1:]]) + "\n")
        server.start()
        server.stop()
        assert living({bystander.pid}), "a bystander is not touched"
    finally:
        bystander.kill()
        bystander.wait()


def test_an_orphaned_server_is_ended_before_the_next_one_starts(scratch: Path) -> None:
    orphan = Postgres(scratch / "data")
    orphan.start()
    assert orphan.process is not None
    following = Postgres(scratch / "data")
    following.start()
    assert orphan.process.wait(5) == 0
    following.stop()


def test_only_the_servers_user_and_root_reach_the_database(scratch: Path) -> None:
    server = Postgres(scratch / "data")
    server.start()
    try:
        for folder in (server.pgdata, server.sockets):
            assert not folder.stat().st_mode & (0o077 if folder == server.pgdata else 0o027)
            assert folder.stat().st_uid == server.user.uid
        with psycopg.connect(host=str(server.sockets), user=OWNER, dbname=DATABASE) as connection:
            assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
            assert connection.execute("SHOW fsync").fetchone() == ("on",)
        rules = (server.pgdata / "pg_hba.conf").read_text().splitlines()
        assert [rule for rule in rules if not rule.startswith("#")] == ["local all all peer map=healer"]
    finally:
        server.stop()
