"""`healer up`, the whole product on a simulated Slurm: names, restarts, and how it ends."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.processes import free_port, name_of
from tests.support.stack import scratch_folder
from tests.support.up import Stack, is_ready
from tests.support.wait import wait_until

pytestmark = pytest.mark.crash
PARTS = ("api", "detector", "scheduler", "worker")


@pytest.fixture
def stack(scratch: Path) -> Iterator[Stack]:
    with Stack(scratch, forked=False, HEALER_SLURM_ADAPTERS="sim") as stack:
        yield stack


@pytest.fixture(scope="module")
def running() -> Iterator[Stack]:
    """Started for the first time, with a named cluster, by a caller who has a PostgreSQL of their own."""
    other = {"PGPORT": "6543", "PGHOSTADDR": "192.0.2.1", "PGSERVICE": "other", "PGOPTIONS": "-c role=other"}
    with (
        scratch_folder() as folder,
        Stack(folder, first=True, HEALER_SLURM_ADAPTERS="sim", HEALER_CLUSTER="x", **other) as stack,
    ):
        yield stack


def nodes(stack: Stack) -> httpx.Response:
    return stack.http.get(f"{stack.url}/api/v1/nodes", headers=stack.headers("viewer"))


def test_every_process_that_is_killed_comes_back_and_it_is_ready_again(stack: Stack) -> None:
    for part in PARTS:
        assert name_of(stack.pids()[part]) == f"healer {part}"
    killed = {name: stack.pids()[name] for name in (*PARTS, "postgres", "redis")}
    for pid in killed.values():
        os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: stack.pids().keys() >= killed.keys() and not stack.pids().items() & killed.items(),
        20,
        what="every killed process has a successor",
    )
    wait_until(lambda: is_ready(stack.url), 40, what="/readyz answers 200 again")
    assert stack.stop(signal.SIGINT) == 0
    assert stack.left() == set()


def test_nothing_of_the_product_is_left_10_s_after_kill_9_of_the_parent(stack: Stack) -> None:
    stack.kill()
    wait_until(lambda: not stack.left(), 10, what="every process of the tree has ended")


def test_a_wrong_setting_ends_the_start_with_its_sentence(scratch: Path) -> None:
    stack = Stack(scratch, forked=False, HEALER_SLURM_ADAPTERS="sim", HEALER_MODE="automatic")
    stack.start(ready=False)
    assert stack.process is not None
    assert stack.process.wait(30) == 2
    assert stack.said().startswith("healer: HEALER_MODE must be one of")


def test_postgresql_variables_of_the_caller_do_not_redirect_healer(running: Stack) -> None:
    assert nodes(running).status_code == 200


def test_the_simulated_slurm_is_the_cluster_that_was_named(running: Stack) -> None:
    shown = wait_until(lambda: nodes(running).json()["items"], 20, what="the nodes are shown")
    assert {one["cluster"] for one in shown} == {"x"}
    assert len(shown) == 32


def test_the_doctor_finds_nothing_wrong_with_a_running_installation(running: Stack) -> None:
    checks = json.loads(running.run("doctor", "--json").stdout)["checks"]
    from_the_first_record = {"disk", "rules in use"}
    assert {check["name"] for check in checks} - from_the_first_record == {
        "files",
        "PostgreSQL settings",
        "backup",
        "seal",
        "rules",
        "guards",
        "database",
        "tables",
        "clock",
        "clock of this machine",
        "broker",
        "slurm sim",
        "slurm",
        "nodes",
        "node actions",
        "site commands",
        "recording",
        "public URL",
        "break-glass",
        "api",
        "users of the parts",
    }
    assert all(check["ok"] for check in checks)


def test_the_doctor_says_how_to_repair_what_is_wrong(scratch: Path) -> None:
    stack = Stack(
        scratch,
        HEALER_SLURM_ADAPTERS="sim",
        HEALER_SIM_SOCKET=str(scratch / "no.sock"),
        HEALER_DATABASE_URL=f"postgresql:///healer?host={scratch}",
        HEALER_REDIS_URL=f"unix://{scratch}/no.sock",
        HEALER_LISTEN=f"127.0.0.1:{free_port()}",
    )
    done = stack.run("doctor", "--json", check=False)
    assert done.returncode == 1, done.stderr
    wrong = {check["name"]: check for check in json.loads(done.stdout)["checks"] if not check["ok"]}
    assert set(wrong) == {"database", "broker", "slurm sim", "api"}
    assert all(check["repair"] for check in wrong.values())
