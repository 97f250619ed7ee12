"""The parts as their systemd units give them: each its own user, login, secrets and system calls."""

import os
import pwd
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
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
from healer.embedded.database_logins import OWNER
from healer.embedded.descent import as_user, code_folders
from healer.embedded.guardian import Guardian
from healer.embedded.postgres import LOGINS, Postgres
from healer.embedded.user import ServerUser
from healer.ports.node_exec import NodeError
from healer.sim.sim_slurm import SimClient, reads_socket
from tests.support.processes import clean_environ, free_port, memory_holds
from tests.support.sink import Sink, serve_sink
from tests.support.stack import lay_database, scratch_folder
from tests.support.units import Machine, read_unit
from tests.support.up import ROOT, is_ready
from tests.support.wait import wait_until

pytestmark = pytest.mark.crash
PARTS = ("api", "detector", "scheduler", "worker")
DROP_INS = {"worker": ("bmc",), "scheduler": ("webhooks",)}
#: Made here, so that no source file holds the whole of it.
CANARY = "".join(("canary-", "9fKd", "2mQx", "-of-the-bmcs"))


class Site:
    """The parts on a machine of their own, with a simulated Slurm that the worker's user runs."""

    def __init__(self, folder: Path, sink: Sink) -> None:
        self.machine, self.port = Machine(folder), free_port()
        self.url, self.http = f"http://127.0.0.1:{self.port}", httpx.Client(timeout=20)
        self.guardian = Guardian(folder / "guardian.log")
        logins = {"root": LOGINS} | {f"healer-{part}": (f"healer_{part}", BROKER) for part in PARTS}
        lay_database(folder / "data")
        self.postgres = Postgres(folder / "data", popen=self.guardian.popen, logins=logins)
        self.sim = folder / "sim" / "sim.sock"
        self.sink = sink
        self.parts: dict[str, subprocess.Popen[bytes]] = {}
        self.slurm: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.postgres.start()
        assert self.postgres.process is not None
        self.guardian.add("postgres", self.postgres.process.pid)
        # As Debian's /run/postgresql: any user reaches the socket, and the kernel says who it is.
        self.postgres.sockets.chmod(0o755)
        (self.postgres.sockets / ".s.PGSQL.5432").chmod(0o777)
        self._lay_files()
        command = [sys.executable, "-m", "healer.sim.sim_slurm", "--socket", str(self.sim), "--nodes", "32"]
        with (self.machine.root / "sim.log").open("wb") as log:
            self.slurm = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *command],
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=clean_environ(),
            )
        wait_until(self.sim.exists, 30, what="the simulated Slurm listens")
        os.chown(self.sim, pwd.getpwnam("healer-worker").pw_uid, -1)
        reads_socket(self.sim).chmod(0o666)
        self.command("db", "upgrade", role=OWNER)
        for part in PARTS:
            self.parts[part] = self.machine.start(read_unit(part, *DROP_INS.get(part, ())), **self.environ)
        wait_until(lambda: is_ready(self.url) or self.dead(), 60, what="the API is ready")
        assert not (dead := self.dead()), dead

    @property
    def environ(self) -> dict[str, str]:
        return {"HEALER_LISTEN": f"127.0.0.1:{self.port}"}

    def _lay_files(self) -> None:
        root = self.machine.place
        self.sim.parent.mkdir()
        for folder in ("/etc/healer", "/var/lib/healer", "/run/credentials"):
            root(folder).mkdir(parents=True)
        audit = root("/var/lib/healer/audit")
        audit.mkdir()
        worker = pwd.getpwnam("healer-worker").pw_uid
        subprocess.run(["chown", f"{worker}:healer", audit], check=True)
        audit.chmod(0o2750)
        root("/etc/healer/credentials").mkdir(mode=0o700)
        root("/etc/healer/healer.toml").write_text(
            f'HEALER_CLUSTER = "pod1"\nHEALER_SLURM_ADAPTERS = ["sim"]\nHEALER_SIM_SOCKET = "{self.sim}"\n'
            'HEALER_MODE = "auto"\nHEALER_BMC_URL = "https://{node}-bmc"\nHEALER_BMC_USER = "healer"\n'
        )
        for part in PARTS:
            self.machine.give(
                read_unit(part, *DROP_INS.get(part, ())),
                database_url=self.login(f"healer_{part}"),
                broker_url=f"sqla+{self.login(BROKER)}",
                token_key="ab" * 32,
                bmc_password=CANARY,
                webhook_secret="whsec_" + "c2VjcmV0LW9mLXRoZS1zaXRl",
                notify_url=self.sink.url,
            )

    def login(self, role: str) -> str:
        return self.postgres.url_of("healer", role)

    def command(self, *arguments: str, role: str = "healer_api") -> str:
        """`healer ARGUMENTS` as root, with the API's key."""
        key = self.machine.place("/etc/healer/credentials/api/token-key")
        environ = clean_environ(
            HEALER_CONFIG=str(self.machine.place("/etc/healer/healer.toml")),
            HEALER_DATABASE_URL=self.login(role), HEALER_TOKEN_KEY_FILE=str(key),
            HEALER_DATA_DIR=str(self.machine.root / "root"), HEALER_URL=self.url,
            HEALER_AUDIT_DIR=str(self.machine.place("/var/lib/healer/audit")),
        )  # fmt: skip
        command = [sys.executable, "-m", "healer", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=ROOT, check=False)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def headers(self, role: str, *options: str) -> dict[str, str]:
        secret = self.command("token", "create", "--role", role, *options).split()[-1]
        headers = {"Authorization": f"Bearer {secret}"}
        asked = f"{self.url}/api/v1/nodes"
        wait_until(lambda: self.http.get(asked, headers=headers).status_code != 401, 20, what="it counts")
        return headers

    def dead(self) -> dict[str, str]:
        """What parts that have ended said last."""
        log = self.machine.root / "log"
        ended = [part for part, process in self.parts.items() if process.poll() is not None]
        return {part: (log / f"{part}.log").read_text()[-1500:] for part in ended}

    def stop(self) -> None:
        self.http.close()
        for process in (*self.parts.values(), *filter(None, [self.slurm])):
            process.send_signal(signal.SIGTERM)
        for process in (*self.parts.values(), *filter(None, [self.slurm])):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.postgres.stop()
        self.guardian.release()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with scratch_folder() as folder, serve_sink() as sink:
        made = Site(folder, sink)
        try:
            made.start()
            yield made
        finally:
            made.stop()


def uids(pid: int) -> set[int]:
    [line] = [
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Uid:")
    ]
    return {int(word) for word in line.split()[1:]}


def test_every_part_is_its_own_user_without_rights_and_with_a_filter_of_system_calls(site: Site) -> None:
    for part, process in site.parts.items():
        assert uids(process.pid) == {pwd.getpwnam(f"healer-{part}").pw_uid}
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status
        assert "CapEff:\t0000000000000000" in status


def test_the_worker_alone_holds_the_bmcs_password(site: Site) -> None:
    holders = set()
    for part, process in site.parts.items():
        assert CANARY.encode() not in Path(f"/proc/{process.pid}/environ").read_bytes()
        if memory_holds(process.pid, CANARY.encode()):
            holders.add(part)
    assert holders == {"worker"}


_OPEN = "import sys; open(sys.argv[1]).read()"


@pytest.mark.parametrize("part", PARTS)
def test_a_part_reads_neither_the_secrets_nor_the_files_nor_the_memory_of_another(
    site: Site, part: str
) -> None:
    place = site.machine.place
    others = [each for each in PARTS if each != part]
    paths = [place(f"/run/credentials/healer-{each}.service/database-url") for each in others]
    paths += [place("/etc/healer/credentials/worker/bmc-password")]
    paths += [Path(f"/proc/{site.parts[each].pid}/{what}") for each in others for what in ("environ", "maps")]
    if part != "worker":
        paths.append(place("/var/lib/healer/worker/audit-key"))
    for path in paths:
        user = f"healer-{part}"
        done = subprocess.run(
            ["/usr/bin/python3", "-c", _OPEN, str(path)], user=user, group=user, extra_groups=[],
            capture_output=True, text=True, cwd="/", check=False,
        )  # fmt: skip
        assert "PermissionError" in done.stderr, (path, done.stderr)


def enters(url: sa.URL) -> str:
    try:
        psycopg.connect(url.set(drivername="postgresql").render_as_string()).execute("SELECT 1")
    except psycopg.OperationalError as error:
        return str(error)
    return "entered"


@pytest.mark.parametrize("part", PARTS)
def test_a_part_connects_as_its_own_role_and_no_other(site: Site, part: str) -> None:
    entry = pwd.getpwnam(f"healer-{part}")
    user = ServerUser(entry.pw_uid, entry.pw_gid, entry.pw_name, drop=True)
    roles = (*(f"healer_{each}" for each in PARTS), OWNER, "healer_auditor", "postgres")
    urls = {role: sa.make_url(site.login(role)) for role in roles}
    answers = {role: as_user(user, partial(enters, url), code_folders()) for role, url in urls.items()}
    assert answers.pop(f"healer_{part}") == "entered"
    assert {role for role, answer in answers.items() if "Peer authentication failed" not in answer} == set()


def test_a_person_s_drain_is_carried_out_sealed_and_verified(site: Site) -> None:
    body = {"node": "gpu0001", "reason": "a person's own drain"}
    headers = site.headers("operator")
    asked = site.http.post(f"{site.url}/api/v1/playbooks/drain/runs", json=body, headers=headers)
    assert asked.status_code == 202, asked.text

    def drained() -> bool:
        return SimClient(site.sim).snapshot().nodes["gpu0001"].drain

    wait_until(lambda: drained() or site.dead(), 40, what="the worker drained it")
    assert site.dead() == {}
    auditor = site.headers("auditor")

    def verified() -> dict[str, object]:
        return site.http.get(f"{site.url}/api/v1/audit/verify", headers=auditor).json()

    wait_until(lambda: verified()["records"], 20, what="the worker seals")
    found = verified()
    assert (found["ok"], found["broken"]) == (True, []), found
    assert "audit-keys.pub" in os.listdir(site.machine.place("/var/lib/healer/audit"))


def test_a_page_of_a_part_without_the_channel_s_secret_still_leaves(site: Site) -> None:
    """The scheduler alone knows where pages go."""
    now = datetime.now(UTC).isoformat()
    line = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=python, GPU has fallen off the bus."
    entries = [{"time": now, "seq": 1, "line": line}]
    body = {"cluster": "pod1", "node": "gpu0007", "boot_id": str(uuid4()), "entries": entries}
    headers = site.headers("signals", "--vouches", "kernel")
    asked = site.http.post(f"{site.url}/api/v1/signals/kernel-log", json=body, headers=headers)
    assert asked.status_code == 202, asked.text
    wait_until(lambda: site.sink.ids() or site.dead(), 40, what="a page came to the site's own address")
    assert site.dead() == {}


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
