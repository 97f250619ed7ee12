"""The packaged product: the shipped units under a real systemd, as docs/install.md installs them. Needs root.

PostgreSQL, Redis and a simulated Slurm of the worker's user are outside of its machine, as at a site. A start
takes about ten seconds: one for a whole file of tests.
"""

import json
import os
import pwd
import secrets
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import httpx
import psycopg
import redis
import sqlalchemy as sa

from healer.embedded.database_logins import OWNER, SUPERUSER
from healer.embedded.guardian import Guardian
from healer.embedded.postgres import LOGINS, Postgres
from healer.embedded.redis import find_binary
from healer.sim.sim_slurm import reads_socket
from tests.support.processes import clean_environ, free_port
from tests.support.relays import relay_options
from tests.support.stack import lay_database
from tests.support.systemd_machine import SITE, SystemdMachine, systemd_machine
from tests.support.units import PARTS, read_unit
from tests.support.up import ROOT, is_ready
from tests.support.wait import wait_until

#: `healer-upgrade` runs as a user that systemd makes up, which no database knows: its login has a password.
_OWNERS_PASSWORD = "of-the-owner"
_ETC = "/etc/healer/credentials"


class Packaged:
    """healer on a machine of its own. `folder` is `SITE` within it; `optional` names drop-ins of each part,
    `values` the text of their credentials, `mounts` folders in `folder` and where else they are, `settings`
    lines of healer.toml."""

    def __init__(
        self,
        folder: Path,
        optional: Mapping[str, tuple[str, ...]] | None = None,
        values: Mapping[str, str] | None = None,
        mounts: Mapping[str, str] | None = None,
        **settings: str,
    ) -> None:
        self.folder, self.sim = folder, folder / "sim" / "sim.sock"
        self._optional, self._values = dict(optional or {}), dict(values or {})
        self._mounts = dict(mounts or {})
        port = free_port()
        self.url, self.http = f"http://127.0.0.1:{port}", httpx.Client(timeout=20)
        self._settings = {
            "HEALER_CLUSTER": "pod1", "HEALER_LISTEN": f"127.0.0.1:{port}", "HEALER_SLURM_ADAPTERS": "sim",
            "HEALER_SIM_SOCKET": f"{SITE}/sim/sim.sock", "HEALER_MODE": "auto", **settings,
        }  # fmt: skip
        self.broker_url = f"redis://:{secrets.token_hex(16)}@127.0.0.1:{free_port()}/0"
        self._headers: dict[tuple[str, ...], dict[str, str]] = {}
        self._left = ExitStack()
        self.postgres: Postgres
        self.machine: SystemdMachine

    # --- life ---------------------------------------------------------------------------------------------

    def __enter__(self) -> "Packaged":
        with ExitStack() as stack:
            stack.callback(self.http.close)
            self._start_servers(stack)
            self._start_slurm(stack)
            self.machine = stack.enter_context(systemd_machine(self.folder))
            self._lay_files()
            self.machine.run("systemctl", "start", "healer-upgrade")
            self.machine.run("systemctl", "start", "healer.target")
            wait_until(lambda: is_ready(self.url), 60, what="the API is ready")
            assert self.failed() == ""
            self._left = stack.pop_all()
        return self

    def __exit__(self, *about: object) -> None:
        self._left.close()

    def _start_servers(self, stack: ExitStack) -> None:
        guardian = Guardian(self.folder / "guardian.log")
        stack.callback(guardian.release)
        logins = {"root": (*LOGINS, SUPERUSER)} | {f"healer-{part}": (f"healer_{part}",) for part in PARTS}
        lay_database(self.folder / "data")
        self.postgres = Postgres(self.folder / "data", popen=guardian.popen, logins=logins)
        self.postgres.start()
        stack.callback(self.postgres.stop)
        assert self.postgres.process is not None
        guardian.add("postgres", self.postgres.process.pid)
        # As Debian's /run/postgresql: any user reaches the socket, and the kernel says who it is.
        self.postgres.sockets.chmod(0o755)
        (self.postgres.sockets / ".s.PGSQL.5432").chmod(0o777)
        hba = self.postgres.pgdata / "pg_hba.conf"
        with psycopg.connect(plain(self.database_url(SUPERUSER)), autocommit=True) as link:
            link.execute(f"ALTER ROLE {OWNER} PASSWORD '{_OWNERS_PASSWORD}'".encode())
            hba.write_text(f"local all {OWNER} scram-sha-256\n{hba.read_text()}")
            link.execute("SELECT pg_reload_conf()")
        broker, binary = sa.make_url(self.broker_url), find_binary()
        assert binary is not None, "no Redis was found: tools/setup --system installs it"
        command = [binary, "--bind", "127.0.0.1", "--port", str(broker.port), "--save", "",
                   "--requirepass", str(broker.password)]  # fmt: skip
        self._spawn(stack, "redis", command)
        wait_until(self._broker_answers, 20, what="Redis answers")

    def _broker_answers(self) -> bool:
        try:
            return bool(redis.Redis.from_url(self.broker_url).ping())
        except redis.ConnectionError:
            return False

    def _start_slurm(self, stack: ExitStack) -> None:
        self.sim.parent.mkdir()
        command = [sys.executable, "-m", "healer.sim.sim_slurm", "--socket", self.sim, "--nodes", "32"]
        self._spawn(stack, "sim-slurm", command)
        wait_until(self.sim.exists, 30, what="the simulated Slurm listens")
        os.chown(self.sim, pwd.getpwnam("healer-worker").pw_uid, -1)
        reads_socket(self.sim).chmod(0o666)

    def _spawn(self, stack: ExitStack, name: str, command: list[str | Path]) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *command],
                stdout=log, stderr=log, cwd=ROOT, env=clean_environ(),
            )  # fmt: skip
        stack.callback(process.wait)
        stack.callback(process.terminate)

    def _lay_files(self) -> None:
        for name, where in self._mounts.items():
            mounts = 'mkdir -p "$2" && mount --bind "$1" "$2"'
            self.machine.run("sh", "-c", mounts, "sh", f"{SITE}/{name}", where)
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in self._settings.items()]
        self.machine.write("/etc/healer/healer.toml", "".join(lines))
        values = {"broker-url": self.broker_url, "token-key": "ab" * 32} | self._values
        for part in (*PARTS, "upgrade"):
            optional = self._optional.get(part, ())
            self.machine.add(part, *optional)
            role = f"healer_{part}" if part != "upgrade" else OWNER
            for name, path in read_unit(part, *optional).credentials.items():
                value = values.get(name) or self.database_url(role).replace(str(self.folder), SITE)
                self.machine.write(str(path), value, mode=0o600)
        self.machine.run("systemctl", "daemon-reload")

    # --- what can be asked --------------------------------------------------------------------------------

    def database_url(self, role: str) -> str:
        """As that login, by root of this machine."""
        login = f"{OWNER}:{_OWNERS_PASSWORD}" if role == OWNER else role
        return self.postgres.url_of("healer", login)

    def run(self, *arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """`healer ARGUMENTS` as root of the machine, as docs/install.md says."""
        environ = [
            "HEALER_CONFIG=/etc/healer/healer.toml", f"HEALER_URL={self.url}",
            f"HEALER_DATABASE_URL_FILE={_ETC}/api/database-url",
            f"HEALER_TOKEN_KEY_FILE={_ETC}/api/token-key",
            "HEALER_AUDIT_DIR=/var/lib/healer/audit", "HEALER_DATA_DIR=/root/healer",
        ]  # fmt: skip
        done = self.machine.execute("env", *environ, "/opt/healer/.venv/bin/healer", *arguments)
        assert not check or done.returncode == 0, f"healer {' '.join(arguments)}: {done.stderr}{done.stdout}"
        return done

    def headers(self, role: str, *options: str) -> dict[str, str]:
        """With a token of that role that counts: the same each time."""
        asked = (role, *options)
        if asked not in self._headers:
            made = self.run("token", "create", "--role", role, *relay_options(role, options))
            headers = {"Authorization": f"Bearer {made.stdout.split()[-1]}"}
            answers = lambda: self.http.get(f"{self.url}/api/v1/nodes", headers=headers).status_code  # noqa: E731
            wait_until(lambda: answers() not in (401, 503), 20, what="the token counts")
            self._headers[asked] = headers
        return self._headers[asked]

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
    """For psycopg itself."""
    return sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
