"""`healer up`, started by root: who its processes are, what they reach, and what the database lets them."""

import os
import pwd
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from healer.embedded import running
from tests.support.processes import living, name_of, unlogged
from tests.support.stack import scratch_folder
from tests.support.up import Stack
from tests.support.wait import wait_until

pytestmark = pytest.mark.crash
ROOT_ONLY = ("healer up", "healer guardian")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with scratch_folder() as folder, Stack(folder, first=True, HEALER_SLURM_ADAPTERS="sim") as stack:
        yield stack


def status(pid: int, field: str) -> str:
    text = Path(f"/proc/{pid}/status").read_text()
    return re.search(rf"^{field}:\s*(.*)$", text, re.M)[1]  # type: ignore[index]


def network_sockets(pid: int) -> set[str]:
    """Inodes of its sockets that are no unix sockets."""
    held = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()}
    mine = {link[8:-1] for link in held if link.startswith("socket:[")}
    unix = {line.split()[6] for line in Path("/proc/net/unix").read_text().splitlines()[1:]}
    return mine - unix


def as_user(name: str, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program of Python's as another user; its packages may lie where that user cannot read."""
    return subprocess.run(
        ["/usr/bin/python3", "-c", program, *arguments],
        user=name, group=name if name != "nobody" else "nogroup", extra_groups=[],
        capture_output=True, text=True, cwd="/", check=False,
    )  # fmt: skip


def test_no_part_is_root_and_what_stays_root_has_no_socket_of_the_network(stack: Stack) -> None:
    of = {
        "worker": "healer-worker",
        "sim-slurm": "healer-worker",
        "postgres": "healer-db",
        "redis": "healer-db",
    }
    pids = stack.pids()
    for part, pid in pids.items():
        uids = set(status(pid, "Uid").split())
        if part == "up":
            assert uids == {"0"}
            continue
        assert uids == {str(pwd.getpwnam(of.get(part, "healer")).pw_uid)}, part
        assert "0" not in status(pid, "Groups").split()
        assert set(status(pid, "CapEff") + status(pid, "CapPrm")) == {"0"}
    for part in ("api", "detector", "scheduler"):
        assert status(pids[part], "NoNewPrivs") == "1"
    roots = {pid for pid in living(stack.see()) if status(pid, "Uid").split()[0] == "0"}
    assert {name_of(pid) for pid in roots} == set(ROOT_ONLY)
    assert {name_of(pid): network_sockets(pid) for pid in roots} == {name: set() for name in ROOT_ONLY}
    assert network_sockets(pids["api"]), "which is how one would be seen"


_CONNECT = """
import socket, sys
with socket.socket(socket.AF_UNIX) as link:
    link.connect(sys.argv[1])
"""


@pytest.mark.parametrize("name", ["nobody", "daemon"])
def test_another_user_of_the_machine_does_not_reach_the_servers(stack: Stack, name: str) -> None:
    home = stack.data_dir
    for path in ("postgres/run/.s.PGSQL.5432", "redis/run/redis.sock", "sim/sim-slurm.sock"):
        done = as_user(name, _CONNECT, str(home / path))
        assert "PermissionError" in done.stderr, (path, done.stderr)


def test_the_parts_users_do_not_reach_each_others_files(stack: Stack) -> None:
    opened = "import os, sys; os.listdir(sys.argv[1])"
    for name, others in {
        "healer": ("commands", "worker-rules", "witnesses", "postgres/data", "log"),
        "healer-worker": ("spool", "postgres/data", "log"),
        "healer-db": ("spool", "commands", "log"),
    }.items():
        for folder in others:
            done = as_user(name, opened, str(stack.data_dir / folder))
            assert "PermissionError" in done.stderr, (name, folder)
    drains = as_user("healer", _CONNECT, str(stack.data_dir / "sim/sim-slurm.sock"))
    assert "PermissionError" in drains.stderr, "the calls that change Slurm are the worker's"


def connect(stack: Stack, role: str) -> psycopg.Connection:
    url = sa.make_url(running.find(stack.data_dir).database_url).set(drivername="postgresql", username=role)
    return psycopg.connect(url.render_as_string(hide_password=False), autocommit=True)


def test_no_superuser_connection_and_each_user_only_as_its_part(stack: Stack) -> None:
    with pytest.raises(psycopg.OperationalError, match="Peer authentication failed"):
        connect(stack, "postgres")
    allowed = (stack.data_dir / "postgres/data/pg_ident.conf").read_text().split("\n")
    of = {name: {line.split()[2] for line in allowed if line.startswith(f"healer {name} ")} for name in
          ("healer", "healer-worker")}  # fmt: skip
    parts = ("api", "detector", "scheduler", "scraper", "broker")
    assert of["healer"] == {f"healer_{part}" for part in parts}
    assert of["healer-worker"] == {"healer_worker", "healer_broker"}
    assert {line.split()[1] for line in allowed if line} == {"healer", "healer-worker", "root"}


def test_a_port_for_root_alone_is_refused_with_a_sentence(scratch: Path) -> None:
    limit = int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
    command = [sys.executable, "-m", "healer", "up", "--data-dir", str(scratch / "data")]
    done = subprocess.run(
        [*command, "--listen", f"127.0.0.1:{limit - 1}"], capture_output=True, text=True, cwd="/", check=False
    )
    assert done.returncode == 1
    assert "for a port below 1024, put a proxy in front of healer" in done.stderr
    wait_until(lambda: not list((scratch / "data").glob("running.json")))


#: A machine without healer's users: /etc of its own, in which useradd changes nothing outside.
FRESH_MACHINE = """
cp -a /etc/. "$1" && mount --bind "$1" /etc || exit
sed -i /^healer/d /etc/passwd /etc/group /etc/shadow /etc/gshadow
shift && exec "$@"
"""
MAKES_USERS = "from healer.embedded.user import make_users; print(make_users(), make_users())"


def on_a_fresh_machine(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    etc = folder / "etc"
    etc.mkdir()
    enter = ["unshare", "--mount", "sh", "-c", FRESH_MACHINE, "sh", str(etc)]
    environ = os.environ | {"HEALER_SLURM_ADAPTERS": "sim"}
    return subprocess.run(
        unlogged(*enter, *command), capture_output=True, text=True, env=environ, check=False
    )


def test_the_demo_of_root_makes_the_users_once(scratch: Path) -> None:
    done = on_a_fresh_machine(scratch, sys.executable, "-c", MAKES_USERS)
    assert done.stdout == "['healer', 'healer-worker', 'healer-db'] []\n", done.stderr


def test_without_the_users_root_reads_how_to_make_them(scratch: Path) -> None:
    up = [sys.executable, "-m", "healer", "up", "--data-dir", str(scratch / "data")]
    done = on_a_fresh_machine(scratch, *up)
    assert done.returncode == 1
    for name in ("healer", "healer-worker", "healer-db"):
        assert f"--shell /usr/sbin/nologin {name}" in done.stderr


#: The service user is the worker's, by another name.
ONE_USER = """
cp -a /etc/. "$1" && mount --bind "$1" /etc || exit
sed -i "s/^healer:x:[0-9]*:/healer:x:$(id -u healer-worker):/" /etc/passwd
shift && exec "$@"
"""


def test_two_users_of_one_id_are_refused(scratch: Path) -> None:
    etc = scratch / "etc"
    etc.mkdir()
    up = [sys.executable, "-m", "healer", "up", "--data-dir", str(scratch / "data")]
    enter = ["unshare", "--mount", "sh", "-c", ONE_USER, "sh", str(etc)]
    environ = os.environ | {"HEALER_SLURM_ADAPTERS": "sim"}
    done = subprocess.run(unlogged(*enter, *up), capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 1
    assert "needs a user ID of its own" in done.stderr


def test_the_key_is_the_service_users_alone(stack: Stack) -> None:
    assert (stack.data_dir / "audit-key").stat().st_uid == pwd.getpwnam("healer-worker").pw_uid
    key = stack.data_dir / "token-key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert key.stat().st_uid == pwd.getpwnam("healer").pw_uid
    for name in ("healer-worker", "healer-db", "nobody"):
        assert "PermissionError" in as_user(name, "import sys; open(sys.argv[1])", str(key)).stderr
