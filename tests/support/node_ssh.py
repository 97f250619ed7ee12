"""Nodes behind a real sshd each, on a free port of this machine, with healer-node over stand-ins."""

import getpass
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from healer.adapters.nodes.request_signing import make_key
from healer.adapters.nodes.ssh import Ssh, SshSettings
from healer.adapters.nodes.verbs import NodeVerbs
from healer.embedded.user import WORKER
from tests.support.processes import free_port
from tests.support.stand_ins import StandIns
from tests.support.wait import wait_until

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/bin:/sbin:/bin") or "/usr/sbin/sshd"
#: sshd as root wants /run/sshd, which its own service makes; here it has a /run of its own.
_AS_ROOT = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs run /run && mkdir /run/sshd && exec "$@"', "sh")


def keygen(path: Path, *options: str) -> Path:
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path), *options]
    subprocess.run(words, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    return path


class SshNode:
    """One node: its sshd, its healer-node, its programs."""

    def __init__(self, site: "SshSite", name: str) -> None:
        self.name, self.port = name, free_port()
        self.folder = site.folder / name
        self.programs = StandIns(self.folder)
        self.host_key = keygen(self.folder / "host_key")
        self.authorized = self.folder / "authorized_keys"
        self.forced = f"{self.programs.program} --conf {self.programs.conf} --as healer"
        self.programs.configure(NODE=name, REQUEST_KEYS=str(site.signing_key.with_suffix(".pub")))
        self.authorize(site.key)
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def authorize(self, key: Path) -> None:
        public = key.with_suffix(".pub").read_text()
        self.authorized.write_text(f'command="{self.forced}",restrict {public}')

    def start(self) -> None:
        options = {
            "Port": self.port, "ListenAddress": "127.0.0.1", "HostKey": self.host_key, "UsePAM": "no",
            "AuthorizedKeysFile": self.authorized, "StrictModes": "no", "PidFile": "none",
            "PasswordAuthentication": "no", "KbdInteractiveAuthentication": "no",
            "PermitRootLogin": "forced-commands-only", "LogLevel": "VERBOSE", "MaxStartups": "100",
            # The shell that sshd starts reads files there: not those of the user who runs the tests.
            "SetEnv": f"HOME={self.folder}",
        }  # fmt: skip
        conf = self.folder / "sshd_config"
        conf.write_text("".join(f"{name} {value}\n" for name, value in options.items()))
        command = [*(_AS_ROOT if os.geteuid() == 0 else ()), SSHD, "-D", "-e", "-f", str(conf)]
        with (self.folder / "sshd.log").open("wb") as said:
            self.process = subprocess.Popen(command, stdout=said, stderr=said)
        wait_until(lambda: "Server listening" in self.said(), 10, what=f"sshd of {self.name} listens")

    def said(self) -> str:
        return (self.folder / "sshd.log").read_text()

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def known_hosts_line(self) -> str:
        return f"{self.name} {self.host_key.with_suffix('.pub').read_text()}"


class SshSite:
    """healer's key, its known_hosts, and the nodes. Files lie in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.key = keygen(folder / "healer_key")
        self.signing_key = folder / "signing_key"
        make_key(self.signing_key)
        self.known_hosts, self.config = folder / "known_hosts", folder / "ssh_config"
        self.known_hosts.touch()
        self.config.touch()
        self.nodes: list[SshNode] = []

    def let_worker_read(self) -> None:
        """The worker of a site that root started has a user of its own. Call it when the site has started."""
        if os.geteuid() != 0:
            return
        worker = pwd.getpwnam(WORKER)
        for path in (self.key, self.signing_key, self.known_hosts, self.config):
            os.chown(path, worker.pw_uid, worker.pw_gid)
        for folder in (self.folder, *self.folder.parents):
            if not folder.stat().st_mode & 0o001:
                folder.chmod(folder.stat().st_mode | 0o011)

    def node(self, name: str) -> SshNode:
        one = SshNode(self, name)
        self.nodes.append(one)
        with self.known_hosts.open("a") as file:
            file.write(one.known_hosts_line())
        self.address(name, one.port)
        return one

    def address(self, name: str, port: int) -> None:
        with self.config.open("a") as file:
            file.write(f"Host {name}\n  HostName 127.0.0.1\n  Port {port}\n")

    def settings(self, **more: object) -> SshSettings:
        values = {"key_file": self.key, "known_hosts": self.known_hosts, "config": self.config}
        values["signing_key_file"] = self.signing_key
        return SshSettings(**{**values, "user": getpass.getuser(), **more})  # type: ignore[arg-type]

    def ssh(self, **more: object) -> Ssh:
        return Ssh(self.settings(**more), pause_s=0.1)

    def exec(self, **more: object) -> NodeVerbs:
        """Patient: a call only ends early where it hangs. In the name of a run."""
        return NodeVerbs(self.ssh(**more), read_s=40, effect_s=40).of_run("run-1")


@contextmanager
def ssh_site(folder: Path) -> Iterator[SshSite]:
    one = SshSite(folder)
    try:
        yield one
    finally:
        for node in one.nodes:
            node.programs.finish()
            node.stop()
