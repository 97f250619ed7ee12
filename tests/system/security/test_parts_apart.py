"""The parts as the shipped units give them, under a real systemd: user, login, secrets and walls of each."""

import os
import pwd
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from uuid import uuid4

import httpx
import psycopg
import pytest
import sqlalchemy as sa

from healer.adapters.nodes.request_signing import make_key, read_key
from healer.adapters.postgres.roles import BROKER
from healer.embedded.database_logins import OWNER, SUPERUSER
from healer.embedded.descent import as_user, code_folders
from healer.embedded.guardian import Guardian
from healer.embedded.postgres import LOGINS, Postgres
from healer.embedded.user import ServerUser
from healer.ports.node_exec import NodeError
from healer.sim.sim_slurm import SimClient, reads_socket
from tests.support.processes import clean_environ, free_port, memory_holds
from tests.support.sink import Sink, serve_sink
from tests.support.site import stays
from tests.support.stack import lay_database, scratch_folder
from tests.support.systemd_machine import SITE, SystemdMachine, as_part, systemd_machine
from tests.support.units import PARTS, read_unit
from tests.support.up import ROOT, is_ready
from tests.support.wait import wait_until

pytestmark = pytest.mark.crash
DROP_INS = {"worker": ("bmc",), "scheduler": ("webhooks",)}
#: Made here, so that no source file holds the whole of it.
CANARY = "".join(("canary-", "9fKd", "2mQx", "-of-the-bmcs"))
#: `healer-upgrade` runs as a user that systemd makes up, which no database knows: its login has a password.
OWNERS_PASSWORD = "of-the-owner"


class Site:
    """healer on a machine of its own. The database and a simulated Slurm of the worker's user are outside."""

    def __init__(self, folder: Path, sink: Sink) -> None:
        self.folder, self.sink, self.port = folder, sink, free_port()
        self.url, self.http = f"http://127.0.0.1:{self.port}", httpx.Client(timeout=20)
        self.sim = folder / "sim" / "sim.sock"
        self.postgres: Postgres
        self.machine: SystemdMachine

    def start(self, stack: ExitStack) -> None:
        stack.callback(self.http.close)
        self._start_database(stack)
        self._start_slurm(stack)
        self.machine = stack.enter_context(systemd_machine(self.folder))
        self._lay_files()
        self.machine.run("systemctl", "start", "healer-upgrade")
        self.machine.run("systemctl", "start", "healer.target")
        wait_until(lambda: is_ready(self.url), 60, what="the API is ready")
        assert self.failed() == ""

    def _start_database(self, stack: ExitStack) -> None:
        guardian = Guardian(self.folder / "guardian.log")
        logins = {"root": (*LOGINS, SUPERUSER)} | {
            f"healer-{part}": (f"healer_{part}", *([BROKER] if part != "scraper" else [])) for part in PARTS
        }
        lay_database(self.folder / "data")
        self.postgres = Postgres(self.folder / "data", popen=guardian.popen, logins=logins)
        self.postgres.start()
        stack.callback(guardian.release)
        stack.callback(self.postgres.stop)
        assert self.postgres.process is not None
        guardian.add("postgres", self.postgres.process.pid)
        # As Debian's /run/postgresql: any user reaches the socket, and the kernel says who it is.
        self.postgres.sockets.chmod(0o755)
        (self.postgres.sockets / ".s.PGSQL.5432").chmod(0o777)
        hba = self.postgres.pgdata / "pg_hba.conf"
        with psycopg.connect(plain(self.postgres.url_of("healer", SUPERUSER)), autocommit=True) as link:
            link.execute(f"ALTER ROLE {OWNER} PASSWORD '{OWNERS_PASSWORD}'".encode())
            hba.write_text(f"local all {OWNER} scram-sha-256\n{hba.read_text()}")
            link.execute("SELECT pg_reload_conf()")

    def _start_slurm(self, stack: ExitStack) -> None:
        self.sim.parent.mkdir()
        command = [sys.executable, "-m", "healer.sim.sim_slurm", "--socket", str(self.sim), "--nodes", "32"]
        with (self.folder / "sim.log").open("wb") as log:
            slurm = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *command],
                stdout=log, stderr=log, cwd=ROOT, env=clean_environ(),
            )  # fmt: skip
        stack.callback(slurm.wait)
        stack.callback(slurm.terminate)
        wait_until(self.sim.exists, 30, what="the simulated Slurm listens")
        os.chown(self.sim, pwd.getpwnam("healer-worker").pw_uid, -1)
        reads_socket(self.sim).chmod(0o666)

    def _lay_files(self) -> None:
        self.machine.write("/etc/healer/healer.toml", (
            f'HEALER_CLUSTER = "pod1"\nHEALER_LISTEN = "127.0.0.1:{self.port}"\n'
            f'HEALER_SLURM_ADAPTERS = ["sim"]\nHEALER_SIM_SOCKET = "{SITE}/sim/sim.sock"\n'
            'HEALER_MODE = "auto"\nHEALER_BMC_URL = "https://{node}-bmc"\nHEALER_BMC_USER = "healer"\n'
        ))  # fmt: skip
        values = {
            "broker-url": f"sqla+{self.login(BROKER)}", "token-key": "ab" * 32, "bmc-password": CANARY,
            "webhook-secret": "whsec_" + "c2VjcmV0LW9mLXRoZS1zaXRl", "notify-url": self.sink.url,
        }  # fmt: skip
        for part in (*PARTS, "upgrade"):
            role = f"healer_{part}" if part != "upgrade" else f"{OWNER}:{OWNERS_PASSWORD}"
            self.machine.add(part, *DROP_INS.get(part, ()))
            for name, path in read_unit(part, *DROP_INS.get(part, ())).credentials.items():
                value = values.get(name) or self.login(role)
                self.machine.write(str(path), value, mode=0o600)
        self.machine.run("systemctl", "daemon-reload")

    def login(self, role: str) -> str:
        """The URL as parts know it."""
        return self.postgres.url_of("healer", role).replace(str(self.folder), SITE)

    def command(self, *arguments: str) -> str:
        """`healer ARGUMENTS` as root of the machine, as docs/install.md says."""
        environ = [
            "HEALER_CONFIG=/etc/healer/healer.toml", f"HEALER_URL={self.url}",
            "HEALER_DATABASE_URL_FILE=/etc/healer/credentials/api/database-url",
            "HEALER_TOKEN_KEY_FILE=/etc/healer/credentials/api/token-key",
            "HEALER_AUDIT_DIR=/var/lib/healer/audit", "HEALER_DATA_DIR=/root/healer",
        ]  # fmt: skip
        return self.machine.run("env", *environ, "/opt/healer/.venv/bin/healer", *arguments)

    def headers(self, role: str, *options: str) -> dict[str, str]:
        secret = self.command("token", "create", "--role", role, *options).split()[-1]
        headers = {"Authorization": f"Bearer {secret}"}
        asked = f"{self.url}/api/v1/nodes"
        wait_until(lambda: self.http.get(asked, headers=headers).status_code != 401, 20, what="it counts")
        return headers

    def post_line(self, headers: dict[str, str], node: str) -> httpx.Response:
        """A line of the kernel's log: a GPU that fell off the bus."""
        line = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=python, GPU has fallen off the bus."
        entries = [{"time": datetime.now(UTC).isoformat(), "seq": 1, "line": line}]
        body = {"cluster": "pod1", "node": node, "boot_id": str(uuid4()), "entries": entries}
        return self.http.post(f"{self.url}/api/v1/signals/kernel-log", json=body, headers=headers)

    def failed(self) -> str:
        """What units that failed or were restarted said last."""
        units = [f"healer-{part}.service" for part in PARTS]
        shown = self.machine.run("systemctl", "show", "--property=Id,ActiveState,NRestarts", *units)
        bad = [
            entry
            for entry in shown.strip().split("\n\n")
            if "=active" not in entry or "NRestarts=0" not in entry
        ]
        return "\n".join(bad + [self.machine.journal(part) for part in PARTS if part in str(bad)])


def plain(url: str) -> str:
    return sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with scratch_folder() as folder, serve_sink() as sink, ExitStack() as stack:
        made = Site(folder, sink)
        made.start(stack)
        yield made


def uids(pid: int) -> set[int]:
    [line] = [
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Uid:")
    ]
    return {int(word) for word in line.split()[1:]}


def test_every_part_is_its_own_user_without_rights_and_with_a_filter_of_system_calls(site: Site) -> None:
    for part in PARTS:
        pid = site.machine.main_pid(part)
        assert uids(pid) == {pwd.getpwnam(f"healer-{part}").pw_uid}
        status = Path(f"/proc/{pid}/status").read_text()
        assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status
        assert "CapEff:\t0000000000000000" in status


def test_the_worker_alone_holds_the_bmcs_password(site: Site) -> None:
    holders = set()
    for part in PARTS:
        pid = site.machine.main_pid(part)
        assert CANARY.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
        if memory_holds(pid, CANARY.encode()):
            holders.add(part)
    assert holders == {"worker"}


_OPEN = """
import sys
for path in sys.argv[1:]:
    try:
        open(path, "rb").read(1)
        print("read", path)
    except OSError as error:
        print(type(error).__name__, path)
"""
_HIDDEN = ("PermissionError", "FileNotFoundError")


@pytest.mark.parametrize("part", PARTS)
def test_a_part_reads_neither_the_secrets_nor_the_files_nor_the_memory_of_another(
    site: Site, part: str
) -> None:
    others = [each for each in PARTS if each != part]
    paths = [f"/run/credentials/healer-{each}.service/database-url" for each in others]
    paths += [f"/etc/healer/credentials/{each}/database-url" for each in PARTS]
    paths += ["/etc/healer/credentials/worker/bmc-password", "/root/.bashrc", "/dev/kmsg"]
    for each in others:
        inside = site.machine.run(
            "systemctl", "show", "--property=MainPID", "--value", f"healer-{each}"
        ).strip()
        paths += [f"/proc/{inside}/{what}" for what in ("environ", "maps", "mem")]
    if part != "worker":
        paths.append("/var/lib/healer/worker/audit-key")
    own = f"/run/credentials/healer-{part}.service/database-url"
    done = as_part(site.machine, part, _OPEN, [own, "/etc/healer/healer.toml", *paths])
    answers = {line.split(" ", 1)[1]: line.split(" ", 1)[0] for line in done.stdout.splitlines()}
    assert [answers.pop(path) for path in (own, "/etc/healer/healer.toml")] == ["read", "read"], done.stderr
    assert set(answers) == set(paths)
    assert {path: said for path, said in answers.items() if said not in _HIDDEN} == {}


_WRITE = """
import sys
for folder in sys.argv[1:]:
    try:
        open(folder + "/written-by-an-attacker", "w").close()
        print("wrote", folder)
    except OSError as error:
        print(type(error).__name__, folder)
"""
_NOT_OWN = (
    "/opt/healer/healer",
    "/opt/packages",
    "/etc/healer",
    "/etc",
    "/usr/bin",
    "/var/lib",
    "/srv/site",
    "/home",
)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_writes_its_own_folder_and_no_code_rules_or_system(site: Site, part: str) -> None:
    others = [f"/var/lib/healer/{each}" for each in PARTS if each != part]
    places = [
        f"/var/lib/healer/{part}",
        *_NOT_OWN,
        *others,
        *(["/var/lib/healer/audit"] if part != "worker" else []),
    ]
    done = as_part(site.machine, part, _WRITE, places)
    wrote = {line.split(" ", 1)[1] for line in done.stdout.splitlines() if line.startswith("wrote")}
    assert wrote == {f"/var/lib/healer/{part}"}, done.stderr
    assert len(done.stdout.splitlines()) == len(places)


def enters(url: sa.URL) -> str:
    try:
        psycopg.connect(url.set(drivername="postgresql").render_as_string()).execute("SELECT 1")
    except psycopg.OperationalError as error:
        return str(error)
    return "entered"


_REFUSED = "Peer authentication failed|no password supplied"


@pytest.mark.parametrize("part", PARTS)
def test_a_part_connects_as_its_own_role_and_no_other(site: Site, part: str) -> None:
    entry = pwd.getpwnam(f"healer-{part}")
    user = ServerUser(entry.pw_uid, entry.pw_gid, entry.pw_name, drop=True)
    roles = (*(f"healer_{each}" for each in PARTS), OWNER, "healer_auditor", "postgres")
    urls = {role: sa.make_url(site.postgres.url_of("healer", role)) for role in roles}
    answers = {role: as_user(user, partial(enters, url), code_folders()) for role, url in urls.items()}
    assert answers.pop(f"healer_{part}") == "entered"
    assert {role for role, answer in answers.items() if not re.search(_REFUSED, answer)} == set()


def test_a_person_s_drain_is_carried_out_sealed_and_verified(site: Site) -> None:
    body = {"node": "gpu0001", "reason": "a person's own drain"}
    headers = site.headers("operator")
    asked = site.http.post(f"{site.url}/api/v1/playbooks/drain/runs", json=body, headers=headers)
    assert asked.status_code == 202, asked.text

    def drained() -> bool:
        return SimClient(site.sim).snapshot().nodes["gpu0001"].drain

    wait_until(lambda: drained() or site.failed(), 40, what="the worker drained it")
    assert site.failed() == ""
    auditor = site.headers("auditor")

    def verified() -> dict[str, object]:
        return site.http.get(f"{site.url}/api/v1/audit/verify", headers=auditor).json()

    wait_until(lambda: verified()["records"], 20, what="the worker seals")
    found = verified()
    assert (found["ok"], found["broken"]) == (True, []), found
    assert "audit-keys.pub" in site.machine.run("ls", "/var/lib/healer/audit").split()


_CONNECT = """
import socket, sys
for path in sys.argv[1:]:
    with socket.socket(socket.AF_UNIX) as link:
        try:
            link.connect(path)
            print("connected", path)
        except OSError as error:
            print(type(error).__name__, path)
"""


@pytest.mark.parametrize("part", PARTS)
def test_the_worker_alone_reaches_what_changes_slurm(site: Site, part: str) -> None:
    reads, writes = reads_socket(Path(SITE, "sim", "sim.sock")), f"{SITE}/sim/sim.sock"
    done = as_part(site.machine, part, _CONNECT, [str(reads), writes])
    changes = "connected" if part == "worker" else "PermissionError"
    assert done.stdout.splitlines() == [f"connected {reads}", f"{changes} {writes}"], done.stderr


@pytest.mark.parametrize("name", ["nobody", "daemon", "healer-upgrade"])
def test_another_user_of_the_machine_is_no_user_of_the_database(site: Site, name: str) -> None:
    uid = pwd.getpwnam(name).pw_uid if name != "healer-upgrade" else 61184  # of those that systemd makes up
    user = ServerUser(uid, uid, name, drop=True)
    roles = (*(f"healer_{each}" for each in PARTS), OWNER, "healer_auditor", "postgres")
    for role in roles:
        url = sa.make_url(site.postgres.url_of("healer", role))
        assert re.search(_REFUSED, as_user(user, partial(enters, url), code_folders())), role


def test_a_relay_s_forged_lines_drain_no_more_than_a_slot(site: Site) -> None:
    """As `test_forged_evidence`, of parts that are walled off from each other."""
    headers = site.headers("signals", "--name", "rack 3 relay")
    nodes = [f"gpu{number:04d}" for number in range(20, 26)]
    before = drained_nodes(site)
    for node in nodes:
        assert site.post_line(headers, node).status_code == 202
    viewer = site.headers("viewer")

    def accused() -> set[str]:
        """Nodes with an incident."""
        asked = f"{site.url}/api/v1/incidents"
        found = {node: site.http.get(asked, headers=viewer, params={"node": node}).json() for node in nodes}
        return {node for node, answer in found.items() if answer["items"]}

    wait_until(lambda: accused() == {*nodes}, 30, what="an incident each")
    stays(lambda: len(drained_nodes(site) - before) <= 1, 5.0, what="no cap is passed")
    assert site.failed() == ""


def drained_nodes(site: Site) -> set[str]:
    return {node.name for node in SimClient(site.sim).snapshot().nodes.values() if node.drain}


def test_a_page_of_a_part_without_the_channel_s_secret_still_leaves(site: Site) -> None:
    """The scheduler alone knows where pages go."""
    asked = site.post_line(site.headers("signals", "--vouches", "kernel"), "gpu0007")
    assert asked.status_code == 202, asked.text
    wait_until(lambda: site.sink.ids() or site.failed(), 40, what="a page came to the site's own address")
    assert site.failed() == ""


# --- the form in which systemd shows a credential -----------------------------------------------------------


def give_by_list(path: Path, uid: int) -> None:
    """Root's file that an access list lets this user read, as `LoadCredential` makes it."""
    none = 0xFFFFFFFF
    entries = ((0x01, 4, none), (0x02, 4, uid), (0x04, 0, none), (0x10, 4, none), (0x20, 0, none))
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(path, "system.posix_acl_access", packed)


def test_the_signing_key_may_be_a_credential_and_no_file_that_others_read(scratch: Path) -> None:
    entry = pwd.getpwnam("healer-worker")
    worker = ServerUser(entry.pw_uid, entry.pw_gid, entry.pw_name, drop=True)

    def read(path: Path) -> str:
        def work() -> str:
            try:
                return f"read {type(read_key(path)).__name__}"
            except NodeError as error:
                return str(error)

        return as_user(worker, work, code_folders())

    names = ("credential", "own", "shared", "open")
    paths = {name: scratch / f"{name}.key" for name in names}
    for path in paths.values():
        make_key(path)
    give_by_list(paths["credential"], entry.pw_uid)
    for name, mode in (("own", 0o600), ("shared", 0o640)):
        os.chown(paths[name], entry.pw_uid, entry.pw_gid)
        paths[name].chmod(mode)
    paths["open"].chmod(0o644)
    assert paths["credential"].stat().st_mode & 0o777 == 0o440, "the mode shows the list's mask"
    said = {name: read(path) for name, path in paths.items()}
    assert said["credential"].startswith("read ") and said["own"].startswith("read ")
    assert "can be read by others" in said["shared"] and "can be read by others" in said["open"]


# --- and when a part dies --------------------------------------------------------------------------


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_is_killed_is_started_again(site: Site, part: str) -> None:
    before = site.machine.main_pid(part)
    os.kill(before, signal.SIGKILL)
    inside = ["systemctl", "show", "--property=NRestarts,ActiveState", "--value", f"healer-{part}"]
    wait_until(lambda: set(site.machine.run(*inside).split()) >= {"1", "active"}, 20, what="it is back")
    wait_until(lambda: is_ready(site.url), 30, what="the API is ready")
    assert site.machine.main_pid(part) != before
