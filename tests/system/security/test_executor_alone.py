"""The whole product as a process tree: the worker alone has what it acts with, and takes run ids alone."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import sqlalchemy as sa
from kombu.messaging import Producer
from sqlalchemy.exc import ProgrammingError

from healer.adapters.postgres.roles import login_url
from healer.adapters.postgres.tables import runs
from healer.embedded import running
from healer.settings import own_sim_socket
from healer.sim.sim_slurm import SimClient
from tests.support.processes import memory_holds
from tests.support.up import Stack
from tests.support.wait import wait_until
from workers.app import ADVANCE, make_app, queue_name

#: Made here, so that no source file and no other process holds the whole of it.
CANARY = "".join(("canary-", "q7Zk", "0vXw", "-of-the-bmcs"))
CAP = 2


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    from tests.support.stack import scratch_folder

    with scratch_folder() as folder:
        key = folder / "key"
        key.write_text("none\n")
        with Stack(
            folder,
            HEALER_CLUSTER="pod1",
            HEALER_SLURM_ADAPTERS="sim",
            HEALER_MODE="auto",
            HEALER_GUARD_MAX_NODES=str(CAP),
            HEALER_GUARD_MAX_SHARE="1.0",
            HEALER_GUARD_SHARE_PER_HOUR="1.0",
            HEALER_GUARD_RACK_SHARE="1.0",
            HEALER_GUARD_PARTITION_SHARE="1.0",
            HEALER_BMC_URL="https://{node}-bmc",
            HEALER_BMC_USER="healer",
            HEALER_BMC_PASSWORD=CANARY,
            HEALER_SSH_KEY_FILE=str(key),
        ) as found:
            yield found


def slurm_of(stack: Stack) -> SimClient:
    return SimClient(own_sim_socket(stack.data_dir))


def drained(stack: Stack) -> list[str]:
    return [node.name for node in slurm_of(stack).snapshot().nodes.values() if node.drain]


def test_no_other_process_holds_what_the_worker_acts_with(stack: Stack) -> None:
    pids = stack.pids()
    assert {"api", "detector", "scheduler", "worker", "up"} <= pids.keys()
    for pid in stack.see() | set(pids.values()):
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue  # a short command that has ended
        assert CANARY.encode() not in environ and b"HEALER_SSH_KEY_FILE" not in environ, pid
    holders = {name for name, pid in pids.items() if memory_holds(pid, CANARY.encode())}
    assert holders == {"worker"}
    os.kill(pids["worker"], signal.SIGKILL)

    def has_successor() -> bool:
        worker = stack.pids().get("worker")
        return worker not in (None, pids["worker"]) and memory_holds(worker, CANARY.encode())

    wait_until(has_successor, 30, what="the worker's successor has them too")


def test_the_parts_are_forked_from_a_process_without_what_acts() -> None:
    """What is loaded before the fork is in every part."""
    program = "import sys; from healer.bootstrap.tree_parts import preload; preload(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    acts = ("healer.bootstrap.executor", "healer.adapters.nodes", "healer.adapters.bmc")
    acts += (
        "healer.adapters.commands",
        "healer.adapters.slurm.cli_client",
        "healer.adapters.slurm.preferred",
    )
    modules = loaded.stdout.split()
    assert "healer.bootstrap.web" in modules
    assert [
        name for name in modules if name in acts or name.startswith(tuple(f"{one}." for one in acts))
    ] == []


#: What somebody who writes to Redis itself puts into the queue: no message, or one that lacks what each has.
NO_MESSAGES = (
    *(b"garbage", b"\xff\xfe", b"{}", b"[]", b"3", b"null", b'{"body": 3}', b'{"body": "", "headers": {}}'),
    b'{"body": "W10=", "headers": {}, "properties": {}}',
    b'{"body": "W10=", "headers": 3, "properties": {"delivery_tag": "a", "delivery_info": 3}}',
)


def forge_messages(stack: Stack) -> None:
    """What somebody who reaches the broker can say."""
    broker = running.find(stack.data_dir).broker_url
    app = make_app(broker, "pod1")
    order = {"playbook": "drain", "node": "gpu0003", "cluster": "pod1", "state": "running"}
    for args in (
        [order],
        [[ADVANCE, "gpu0003"]],
        [],
        [3],
        [None],
        ["none"],
        ["a\0b"],
        ["r" * 100_000],
        ["x"] * 99,
    ):
        app.send_task(ADVANCE, args=args)
    app.send_task(ADVANCE, kwargs={"run": "none", "node": "gpu0003"})
    for task in ("workers.tasks.drain", "healer.adapters.slurm.cli_client.CliScheduler.drain", "os.system"):
        app.send_task(task, args=["gpu0003", "healer:x inc:00000000 x"])
    app.send_task("celery.map", args=[{"task": "os.system", "args": ()}, ["true"]])
    app.send_task("celery.chain", args=[], link=app.signature("os.system", args=["true"]))
    with app.connection_for_write() as connection:
        Producer(connection).publish(
            pickle.dumps(order),
            routing_key=queue_name("pod1"),
            content_type="application/x-python-serialize",
            content_encoding="binary",
        )
    queue = redis.Redis.from_url(broker.replace("redis+socket", "unix"))
    queue.lpush(queue_name("pod1"), *NO_MESSAGES)


def start(stack: Stack, node: str) -> str:
    body = {"node": node, "reason": "a person's own drain"}
    answer = stack.http.post(
        f"{stack.url}/api/v1/playbooks/drain/runs", json=body, headers=stack.headers("operator")
    )
    assert answer.status_code == 202, answer.text
    return answer.headers["location"].rpartition("/")[2]


def test_forged_messages_have_no_effect(stack: Stack) -> None:
    before = drained(stack)
    forge_messages(stack)
    start(stack, "gpu0001")
    wait_until(lambda: "gpu0001" in drained(stack), 30, what="the worker goes on with what is asked properly")
    assert set(drained(stack)) == {*before, "gpu0001"}
    assert "a message that names no runs is dropped" in stack.log("worker")


def forge_row(stack: Stack, like: str, **fields: str) -> None:
    """A run in state `running`, written as that other one was."""
    with sa.create_engine(running.find(stack.data_dir).database_url).begin() as conn:
        row = conn.execute(sa.select(runs).where(runs.c.id == like)).one()._asdict()
        new = fields | {"state": "running", "epoch": 0}
        doc = {
            name: row["doc"][name] for name in row["doc"] if name not in ("ended_at", "lease_until", "why")
        }
        row |= {"ended_at": None, "lease_until": None, "wake_at": None, "doc": doc | new}
        row |= {name: value for name, value in new.items() if name in row}
        conn.execute(sa.insert(runs).values(row))


def test_forged_rows_are_asked_of_the_gate(stack: Stack) -> None:
    """Somebody with the API's role in the database writes runs as if they were approved."""
    found = running.find(stack.data_dir)
    template = start(stack, "gpu0002")
    wait_until(lambda: "gpu0002" in drained(stack), 30, what="the cap is used up")
    forged = [f"r-forged-{number}" for number in range(10, 30)]
    for run in forged:
        forge_row(stack, template, id=run, node=f"gpu00{run[-2:]}", approved_by="root")
    make_app(found.broker_url, "pod1").send_task(ADVANCE, args=forged)

    def all_judged() -> bool:
        headers = stack.headers("viewer")
        answers = [stack.http.get(f"{stack.url}/api/v1/runs/{run}", headers=headers).json() for run in forged]
        return all(answer.get("steps") or answer.get("why") for answer in answers)

    wait_until(all_judged, 30, what="the worker asked the gate for each")
    assert len(drained(stack)) <= CAP


def try_as_api(stack: Stack, statement: str, **values: str) -> None:
    """What the API's login may write, it writes."""
    url = login_url(running.find(stack.data_dir).database_url, "healer_api")
    with contextlib.suppress(ProgrammingError), sa.create_engine(url).begin() as conn:
        conn.execute(sa.text(statement), values)


def test_forged_slots_drain_no_third_node(stack: Stack) -> None:
    """Somebody with the API's role writes slots, ends runs, and says what steps did: the caps are as full."""
    template = start(stack, "gpu0002")
    wait_until(lambda: len(drained(stack)) == CAP, 30, what="the cap is used up")
    before, forged = drained(stack), [f"r-slot-{number}" for number in ("06", "07", "08", "09", "30")]
    for run in forged:
        node = f"gpu00{run[-2:]}"
        forge_row(stack, template, id=run, node=node, approved_by="root")
        grant = (
            "INSERT INTO slots (cluster, node, run, unusable, granted_at) "
            "VALUES ('pod1', :node, :run, true, now())"
        )
        try_as_api(stack, grant, node=node, run=run)
        told = (
            "INSERT INTO run_log (run, at, step, event, doc) SELECT :run, at, step, event, "
            "doc || jsonb_build_object('run', CAST(:run AS text)) FROM run_log WHERE run = :like"
        )
        try_as_api(stack, told, run=run, like=template)
    try_as_api(stack, "UPDATE slots SET released_at = now()")
    try_as_api(stack, "DELETE FROM slots")
    ends = "UPDATE runs SET state = 'cancelled', ended_at = now() - interval '1 hour' WHERE id = :run"
    try_as_api(stack, ends, run=template)
    make_app(running.find(stack.data_dir).broker_url, "pod1").send_task(ADVANCE, args=forged)

    def all_held() -> bool:
        headers = stack.headers("viewer")
        answers = [stack.http.get(f"{stack.url}/api/v1/runs/{run}", headers=headers).json() for run in forged]
        return all("slots used" in (answer.get("why") or answer.get("question") or "") for answer in answers)

    wait_until(all_held, 30, what="the worker asked the gate for each")
    assert drained(stack) == before


def test_a_message_about_a_run_of_another_cluster_has_no_effect(stack: Stack) -> None:
    found = running.find(stack.data_dir)
    forge_row(stack, start(stack, "gpu0005"), id="r-of-pod2", node="gpu0031", cluster="pod2")
    app = make_app(found.broker_url, "pod1")
    app.send_task(ADVANCE, args=["r-of-pod2"])
    queue = redis.Redis.from_url(found.broker_url.replace("redis+socket", "unix"))
    wait_until(lambda: queue.llen(queue_name("pod1")) == 0, 20, what="the worker took the message")
    app.send_task(ADVANCE, args=["none"])
    wait_until(lambda: queue.llen(queue_name("pod1")) == 0, 20, what="and the one after it")
    with sa.create_engine(found.database_url).connect() as conn:
        claims = conn.execute(sa.select(runs.c.epoch).where(runs.c.id == "r-of-pod2")).scalar()
    assert claims == 0 and "gpu0031" not in drained(stack)
