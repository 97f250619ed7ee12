"""Three hosts that run the files of deploy/ha: each with a network, a disk and a wall clock of its own."""

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psycopg

from healer.adapters.system_clock import SystemClock
from healer.embedded.postgres import working_in
from healer.sim.sim_slurm import SimScheduler, SimServer
from tests.support.ha_machines import Clock, Disk, build_clock, disks
from tests.support.processes import NOT_ROOT, clean_environ
from tests.support.stack import free_shared_memory, scratch_folder
from tests.support.tls import certificates
from tests.support.up import ROOT
from tests.support.wait import wait_until

#: A network for documentation, which no site has.
_NETWORK, _BRIDGE = "198.51.100.", "healer-ha"
HOSTS = ("ha1", "ha2", "ha3")
PARTS = ("detector", "scheduler", "worker", "api")
CLUSTER = "pod1"
#: Two plain Redis behind HAProxy, as in deploy/ha; a master that Sentinel chooses; the first host's Redis
#: without HAProxy; the database.
BROKERS = ("redis", "sentinel", "direct", "database")
#: The name of both hosts for people and nodes.
SITE = "healer.example"


def address_of(host: str) -> str:
    return f"{_NETWORK}{HOSTS.index(host) + 1}"


_NAMESPACES = Path("/run/netns")


def ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True)


@contextmanager
def networks() -> Iterator[None]:
    """A bridge with the three hosts at it."""
    _remove_networks()
    had_namespaces = _NAMESPACES.is_mount()
    try:
        ip("link", "add", _BRIDGE, "type", "bridge")
        ip("address", "add", f"{_NETWORK}254/24", "dev", _BRIDGE)
        ip("link", "set", _BRIDGE, "up")
        for host in HOSTS:
            ip("netns", "add", host)
            ip("link", "add", f"{host}-a", "type", "veth", "peer", "name", "eth0", "netns", host)
            ip("link", "set", f"{host}-a", "master", _BRIDGE, "up")
            ip("-n", host, "address", "add", f"{address_of(host)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", host, "link", "set", device, "up")
        yield
    finally:
        _remove_networks()
        if not had_namespaces:  # `ip netns add` mounts their folder, and leaves it so
            subprocess.run(["umount", _NAMESPACES], check=False, capture_output=True)


def _remove_networks() -> None:
    for host in HOSTS:
        ip("link", "delete", f"{host}-a", check=False)
        ip("netns", "delete", host, check=False)
    ip("link", "delete", _BRIDGE, check=False)


class Drained(NamedTuple):
    at: float
    node: str
    reason: str
    #: What healer has out of service since; empty where it had this node out already.
    out: frozenset[str]
    #: Slurm showed this very drain already.
    again: bool


class CountedSlurm(SimScheduler):
    """The simulated Slurm, and what healer asked it for: drains, returns to service, requeues."""

    def __init__(self, nodes: int) -> None:
        super().__init__(CLUSTER, SystemClock(), nodes)
        self.drains: list[Drained] = []
        self.returns: list[tuple[float, str]] = []
        self.returned_by_people: dict[str, float] = {}
        self.requeues: list[str] = []
        self._out: set[str] = set()
        self._counting = threading.Lock()

    def drain(self, nodes: Any, reason: str) -> None:
        shown = {node: self.node(node) for node in _names(nodes)}
        super().drain(nodes, reason)
        with self._counting:
            for node, before in shown.items():
                was_out = node in self._out
                self._out.add(node)
                out = frozenset[str]() if was_out else frozenset(self._out)
                again = before.drain and before.reason == reason
                self.drains.append(Drained(time.monotonic(), node, reason, out, again))

    def undrain(self, nodes: Any) -> None:
        self._note_return(nodes)
        super().undrain(nodes)

    def resume(self, nodes: Any) -> None:
        self._note_return(nodes)
        super().resume(nodes)

    def _note_return(self, nodes: Any) -> None:
        with self._counting:
            self._out -= {*_names(nodes)}
            self.returns += [(time.monotonic(), node) for node in _names(nodes)]

    def person_returns(self, node: str) -> None:
        with self._counting:
            self._out.discard(node)
        super().resume(node)
        self.returned_by_people[node] = time.monotonic()

    def requeue(self, job: str) -> None:
        super().requeue(job)
        self.requeues.append(job)


def _names(nodes: Any) -> list[str]:
    return [nodes] if isinstance(nodes, str) else [*nodes]


_SENTINEL = """
port 26379
bind {host.address}
protected-mode no
dir {host.root}/var
sentinel monitor healer {first} 6379 2
sentinel down-after-milliseconds healer 5000
sentinel failover-timeout healer 10000
"""
#: Of HAProxy: the one that Sentinel made the master.
_MASTER = (
    ("PING", "+PONG", " on-marked-up shutdown-backup-sessions", " backup"),
    ("INFO\\ replication", "role:master", "", ""),
)


@dataclass
class Host:
    """One of the three: its files below `root`, and the programs that run on it, by name."""

    name: str
    disk: Disk
    clock: Clock
    logs: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return self.disk.root

    @property
    def address(self) -> str:
        return address_of(self.name)

    def start(self, name: str, *command: str | Path, user: str = "root", **environ: str) -> None:
        """As systemd does with `Restart=always`."""
        again = 'while :; do "$0" "$@"; sleep 1; done'
        as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        slowed = self.disk.slowed("sh", "-c", again, *as_user, *command)
        direct = {
            name: value for name, value in clean_environ().items() if not name.lower().endswith("_proxy")
        }
        with (self.logs / f"{self.name}-{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                ["ip", "netns", "exec", self.name, *slowed],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd="/",
                env=direct | self.clock.environ | environ, start_new_session=True,
            )  # fmt: skip

    def signal(self, number: int) -> None:
        """To every process."""
        found = subprocess.run(["ip", "netns", "pids", self.name], check=True, capture_output=True, text=True)
        for pid in found.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), number)

    def kill(self, *names: str) -> None:
        """SIGKILL, as at a loss of power; all that runs here without names, the database's server too."""
        for name in names or tuple(self.running):
            process = self.running.pop(name)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if not names or "patroni" in names:
            self.kill_server()

    def kill_server(self) -> None:
        for pid in working_in(self.root / "var/lib/postgresql/healer"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def get(self, port: int, path: str, scheme: str = "http") -> httpx.Response | None:
        url = f"{scheme}://{self.address}:{port}{path}"
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(url, headers={"Host": SITE}, timeout=2, verify=False, trust_env=False)
        return None


class Site:
    """What runs on the three hosts. `hosts[:2]` have the database and healer, the third has etcd alone."""

    def __init__(
        self, folder: Path, made: list[Disk], nodes: int, cap: int | None = None, broker: str = "redis"
    ) -> None:
        self.folder, self._cap, self._broker = folder, cap or nodes, broker
        self.logs, library = folder / "log", build_clock(folder)
        self.logs.mkdir()
        self.hosts = [Host(disk.root.name, disk, Clock(disk.root, library), self.logs) for disk in made]
        self.secrets = folder / "secrets"
        self.secrets.mkdir(mode=0o700)
        parts = ("owner", "api", "detector", "scheduler", "scraper", "worker", "broker")
        for name in (*parts, "superuser", "replication"):
            (self.secrets / f"password_{name}").write_text(secrets.token_hex(16))
        self.bin = max(Path("/usr/lib/postgresql").glob("*/bin"))
        self.slurm = CountedSlurm(nodes)
        self._server = SimServer(self.slurm, folder / "slurm.sock")

    def password(self, name: str) -> str:
        return (self.secrets / f"password_{name}").read_text()

    def start(self) -> None:
        (self.folder / "audit").mkdir()
        os.chown(self.folder / "audit", pwd.getpwnam("healer-worker").pw_uid, -1)
        self._server.start()
        for host in self.hosts:
            self._lay(host)
            self.start_etcd(host)
        for host in self.hosts[:2]:
            self.start_patroni(host)
        wait_until(self.primary, 60, what="a primary", every_s=0.2)
        wait_until(lambda: self.standby() is not None, 60, what="a synchronous standby", every_s=0.2)
        self._make_database()
        for host in self.hosts[:2]:
            self.start_broker(host)
            self.start_haproxy(host)
        self.healer("db", "upgrade", part="owner")
        if self._broker == "sentinel":
            for host in self.hosts:
                self.start_sentinel(host)
        for part in PARTS:
            for host in self.hosts[:2]:
                self.start_part(host, part)
        wait_until(self.is_ready, 90, what="healer is ready", every_s=0.5)

    def stop(self) -> None:
        for host in self.hosts:
            host.kill()
        self._server.stop()

    def _lay(self, host: Host) -> None:
        for below in ("var/lib/etcd", "var/lib/postgresql", "etc/haproxy", "healer"):
            (host.root / below).mkdir(parents=True)
        all_addresses = " ".join(address_of(name) for name in HOSTS)
        environ = {**os.environ, "SITE": SITE, "ROOT": str(host.root), "SECRETS": str(self.secrets)}
        command = [ROOT / "deploy/ha/fill.sh", host.name, host.address, all_addresses, host.root / "etc"]
        subprocess.run(command, check=True, env=environ | {"POSTGRES_BIN": str(self.bin)})
        shutil.copy(certificates(host.root / "etc").server, host.root / "etc/haproxy/healer.pem")
        if self._broker == "sentinel":
            config = host.root / "etc/haproxy.cfg"
            text = config.read_text()
            for plain, by_role in zip(*_MASTER, strict=True):
                text = text.replace(plain, by_role)
            config.write_text(text)
        user = pwd.getpwnam("healer-db")
        for path in (host.root / "var/lib/postgresql", host.root / "etc/patroni.yml"):
            os.chown(path, user.pw_uid, user.pw_gid)
        for folder in (host.root / "etc", host.root / "var", host.root / "var/lib"):
            folder.chmod(0o755)

    # --- the programs, by the files of deploy/ha

    def start_etcd(self, host: Host) -> None:
        lines = (host.root / "etc/etcd.env").read_text().splitlines()
        environ = dict(line.split("=", 1) for line in lines if line.startswith("ETCD_"))
        host.start("etcd", "etcd", **environ)

    def start_patroni(self, host: Host) -> None:
        host.start("patroni", "patroni", host.root / "etc/patroni.yml", user="healer-db")

    def start_broker(self, host: Host) -> None:
        follows = ["--replicaof", f"{self.hosts[0].address} 6379"] if self._is_follower(host) else []
        host.start("redis", "redis-server", host.root / "etc/redis.conf", *follows)

    def broker(self) -> Host:
        """The host whose Redis is in use; the first one with a Redis, unless Sentinel chose the other."""
        with_redis = [host for host in self.hosts[:2] if "redis" in host.running]
        for host in with_redis:
            words = ["redis-cli", "-h", host.address, "INFO", "replication"]
            found = subprocess.run(
                ["ip", "netns", "exec", host.name, *words], capture_output=True, check=False
            )
            if b"role:master" in found.stdout:
                return host
        return with_redis[0]

    def _is_follower(self, host: Host) -> bool:
        return self._broker == "sentinel" and host is not self.hosts[0]

    def start_sentinel(self, host: Host) -> None:
        file = host.root / "etc/sentinel.conf"
        if not file.exists():  # Sentinel writes into it
            file.write_text(_SENTINEL.format(host=host, first=self.hosts[0].address))
        host.start("sentinel", "redis-server", file, "--sentinel")

    def start_haproxy(self, host: Host) -> None:
        host.start("haproxy", "haproxy", "-db", "-f", host.root / "etc/haproxy.cfg")

    def start_part(self, host: Host, part: str) -> None:
        user = NOT_ROOT if part == "api" else ()
        host.start(part, *user, ROOT / ".venv/bin/healer", part, **self.environ(host, part))

    def environ(self, host: Host, part: str) -> dict[str, str]:
        login = "healer" if part == "owner" else f"healer_{part}"
        lines = (host.root / "etc/healer.env").read_text().splitlines()
        data = host.root / "healer" / part
        data.mkdir(exist_ok=True)
        audit = self.folder / "audit"
        return dict(line.split("=", 1) for line in lines if line.startswith("HEALER_")) | {
            "HEALER_DATABASE_URL": f"postgresql://{login}:{self.password(part)}@127.0.0.1:5000/healer",
            **self._broker_urls(),
            "HEALER_DATA_DIR": str(data),
            "HEALER_AUDIT_DIR": str(audit),
            "HEALER_TOKEN_KEY_FILE": str(self.folder / "token-key"),
            "HEALER_CLUSTER": CLUSTER,
            "HEALER_MODE": "auto",
            "HEALER_SLURM_ADAPTERS": "sim",
            "HEALER_SIM_SOCKET": str(self.folder / "slurm.sock"),
            "C_FORCE_ROOT": "1",
            **{f"HEALER_GUARD_{name}": "1.0" for name in ("MAX_SHARE", "SHARE_PER_HOUR", "RACK_SHARE")},
            "HEALER_GUARD_PARTITION_SHARE": "1.0",
            "HEALER_GUARD_MAX_NODES": str(self._cap),
            "HEALER_GUARD_MIN_SERVICE_SHARE": "0",
            "HEALER_BREAKER_SHARE": "1.0",
        }  # fmt: skip

    def _broker_urls(self) -> dict[str, str]:
        """Where it is another than in deploy/ha."""
        login = f"healer_broker:{self.password('broker')}"
        urls = {
            "database": f"sqla+postgresql+psycopg://{login}@127.0.0.1:5000/healer",
            "direct": f"redis://{self.hosts[0].address}:6379/0",
        }
        return {"HEALER_REDIS_URL": urls[self._broker]} if self._broker in urls else {}

    def healer(self, *words: str, part: str = "api") -> str:
        """A command of healer's on a host that lives."""
        host = next(host for host in self.hosts[:2] if "haproxy" in host.running)
        command = ["ip", "netns", "exec", host.name, ROOT / ".venv/bin/healer", *words]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env=clean_environ(**self.environ(host, part)),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    # --- the database

    def primary(self) -> Host | None:
        return self._with_role("primary")

    def standby(self) -> Host | None:
        return self._with_role("synchronous")

    def _with_role(self, role: str) -> Host | None:
        for host in self.hosts[:2]:
            answer = host.get(8008, f"/{role}") if "patroni" in host.running else None
            if answer is not None and answer.status_code == 200:
                return host
        return None

    def rebuild_standby(self) -> None:
        """As a person does with one that runs and receives nothing."""
        primary = self.primary()
        host = next(host for host in self.hosts[:2] if host is not primary)
        words = ["-c", host.root / "etc/patroni.yml", "reinit", "healer", host.name, "--force"]
        subprocess.run(["ip", "netns", "exec", host.name, "patronictl", *words], check=False)

    def connect(self, database: str = "healer") -> psycopg.Connection[Any]:
        primary = wait_until(self.primary, 30, what="a primary")
        assert primary is not None
        return psycopg.connect(
            host=str(primary.root / "var/lib/postgresql"), user="postgres", dbname=database, autocommit=True,
            password=self.password("superuser"),
        )  # fmt: skip

    def _make_database(self) -> None:
        primary = self.primary()
        assert primary is not None
        environ = {"PATH": f"{self.bin}:{os.environ['PATH']}", "SECRETS": str(self.secrets)}
        environ |= {"PGHOST": primary.address, "PGUSER": "postgres", "PGPASSWORD": self.password("superuser")}
        inside = ["ip", "netns", "exec", primary.name]
        login = f"ALTER ROLE healer_broker LOGIN PASSWORD '{self.password('broker')}'"
        path = "ALTER ROLE healer_broker SET search_path = healer_broker"
        for command in (
            ["createdb", "healer"],
            [ROOT / "deploy/compose/roles.sh"],
            ["psql", "-qc", login, "-c", path],
        ):
            subprocess.run(
                [*inside, *command], check=True, capture_output=True, env=environ | {"POSTGRES_DB": "healer"}
            )

    # --- what people and nodes see

    def ready_hosts(self) -> list[Host]:
        return [host for host, answer in self._readiness() if answer and answer.status_code == 200]

    def unready(self) -> str:
        """What the hosts say that are not ready, for people."""
        said = [(host.name, answer.text if answer else "no answer") for host, answer in self._readiness()
                if not answer or answer.status_code != 200]  # fmt: skip
        return "; ".join(f"{name}: {text}" for name, text in said)

    def _readiness(self) -> list[tuple[Host, httpx.Response | None]]:
        return [(host, host.get(443, "/readyz", "https")) for host in self.hosts[:2] if "api" in host.running]

    def is_ready(self) -> bool:
        return bool(self.ready_hosts())

    def start_again(self, host: Host, name: str) -> None:
        start = {"etcd": self.start_etcd, "patroni": self.start_patroni, "redis": self.start_broker}
        start |= {"haproxy": self.start_haproxy, "sentinel": self.start_sentinel}
        if name in start:
            start[name](host)
        else:
            self.start_part(host, name)


@contextmanager
def running_site(nodes: int, cap: int | None = None, broker: str = "redis") -> Iterator[Site]:
    """`cap`: so many nodes may be out of service at once. `broker`: one of `BROKERS`."""
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        made = stack.enter_context(disks(folder, HOSTS))
        stack.enter_context(networks())
        stack.callback(free_shared_memory, folder)
        site = Site(folder, made, nodes, cap, broker)
        stack.callback(site.stop)
        site.start()
        yield site
