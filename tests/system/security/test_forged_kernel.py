"""Who runs programs on a node makes the real kernel log much, but never as the kernel's own fault.

The kernel, healer-follow, Debian's journald and Debian's rsyslog are the real ones; the real API judges.
"""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support.api import Api, serving
from tests.support.follower import Hub, following
from tests.support.real_kernel import crash, journald, run_out_of_memory, say_to_journald, write
from tests.support.rsyslog import Rsyslog
from tests.support.wait import wait_until

pytestmark = pytest.mark.crash
FAULT = "NVRM: Xid (PCI:0000:9b:00): 79, pid=4711, name=python, GPU has fallen off the bus."
#: Numbers that a writer gives for the kernel's facility; 2048 is 0 in the eight bits that the kernel keeps.
PREFIXES = ("", "<0>", "<2>", "<3>", "<7>", "<2048>", "<2051>", "<-5>", "<4294967299>", "<0><3>", "< 3>")


def forge(folder: Path, mark: str) -> None:
    """All that a user on the node can do; `mark` is in the crash, which comes last."""
    for prefix in PREFIXES:
        write(f"{prefix}{FAULT}")
        write(f"{prefix}kernel: {FAULT}")
    write(f"<3>x\n{FAULT}\n<3>{FAULT}")
    write(f"3,1,1,-;{FAULT}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:9b:00.0")
    write(f"<3>x\r\x1b[2K{FAULT}\x00")
    run_out_of_memory(f"{mark}-{FAULT}")
    crash(folder, f"{mark}\n{FAULT}")
    crash(folder, f"{mark}\n3,9999999,1,-;{FAULT}")
    crash(folder, f"{mark}\\x0a{FAULT}")
    crash(folder, f"{mark} end of NVRM: Xid")


def codes(database: sa.Engine) -> list[int]:
    with database.connect() as conn:
        docs = conn.execute(sa.text("SELECT doc FROM inbox ORDER BY id")).scalars()
        return [doc["code"] for doc in docs if "code" in doc]


def judged(database: sa.Engine, sent: list[tuple[str, Any]]) -> list[int]:
    """The faults that healer finds in what was sent, by a token of the node."""
    with serving(database) as (api, client):
        headers = api.headers("signals", node="gpu0001")
        for path, body in sent:
            answer = client.post(path, json=body, headers=headers)
            assert answer.status_code == 202, answer.text
        found = codes(database)
        _control(api, client, headers)
        assert codes(database) == [*found, 79], "healer finds such a line where the kernel says it"
    return found


def _control(_: Api, client: Any, headers: dict[str, str]) -> None:
    entry = {"time": "2026-11-20T03:00:00Z", "seq": 1, "line": FAULT}
    body = {"node": "gpu0001", "boot_id": "of-the-control", "entries": [entry]}
    assert client.post("/api/v1/signals/kernel-log", json=body, headers=headers).json()["accepted"] == 1


def run(command: list[Any]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def sent(hub: Hub, route: str) -> list[tuple[str, Any]]:
    return [(f"/api/v1/{route}", body) for body in hub.bodies(route)]


def followed(scratch: Path, hub: Hub, mark: str, *options: str) -> list[tuple[str, Any]]:
    with following(scratch / "node", hub.url) as node:
        node.start(*options)
        wait_until(lambda: any(f"{mark} end" in line for line in hub.lines()), 60, what="the last crash")
    lines = [line for line in hub.lines() if mark in line]
    assert any("\\x0aNVRM: Xid" in line for line in lines), "the forged name came, within its record"
    assert any("oom_memcg=" in line and FAULT in line for line in lines), "and the container's"
    assert not [line for line in hub.lines() if line.partition("] ")[2].startswith(FAULT)]
    return sent(hub, "signals/kernel-log")


def test_the_kernel_refuses_a_container_s_name_with_a_line_end() -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        run_out_of_memory(f"healer\n{FAULT}")
    assert b"Invalid argument" in refused.value.stderr


@pytest.fixture
def mark() -> str:
    return f"c{os.getpid() % 100000}.{os.urandom(2).hex()}"


def test_the_follower(fresh_database: sa.Engine, scratch: Path, mark: str) -> None:
    forge(scratch, mark)
    with Hub() as hub:
        came = followed(scratch, hub, mark, "--kmsg", "/dev/kmsg")
    assert judged(fresh_database, came) == []


def test_the_journal(fresh_database: sa.Engine, scratch: Path, mark: str) -> None:
    forge(scratch, mark)
    with journald(scratch) as journalctl, Hub() as hub:
        say_to_journald(scratch, FAULT)
        said = [journalctl, "_TRANSPORT=journal", "_TRANSPORT=syslog", "--output=cat"]
        wait_until(lambda: run(said).splitlines().count(FAULT) == 2, 30, what="journald took both")
        came = followed(scratch, hub, mark, "--journal", str(journalctl))
    assert judged(fresh_database, came) == []


@pytest.mark.parametrize("everything", [False, True], ids=["the documented filter", "no filter"])
def test_rsyslog(fresh_database: sa.Engine, scratch: Path, mark: str, everything: bool) -> None:
    forge(scratch, mark)
    with Hub() as hub:
        rsyslog = Rsyslog(scratch, hub.url, "heal_test_token", everything=everything)
        rsyslog.kmsg = Path("/dev/kmsg")
        try:
            rsyslog.start()
            has_come: Callable[[], bool] = lambda: f"{mark} end" in json.dumps(hub.bodies("signals/logs"))  # noqa: E731
            wait_until(has_come, 60, what="the last crash")
        finally:
            rsyslog.close()
        came = sent(hub, "signals/logs")
    assert judged(fresh_database, came) == []
