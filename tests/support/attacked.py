"""The whole product in both forms, for tests that attack it: `healer up` of root, and the packaged units.

Both have a simulated Slurm of 32 nodes, two slots, a secret of the worker's (`CANARY`), a witness of the
audit, and two nodes that can be asked by SSH.
"""

import getpass
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from subprocess import CompletedProcess
from uuid import uuid4

import httpx
import sqlalchemy as sa

from healer.adapters.postgres.roles import login_url
from healer.embedded import running
from healer.embedded.database_logins import OWNER
from healer.settings import own_sim_socket
from healer.sim.sim_slurm import SimClient
from tests.support.node_ssh import SshSite, ssh_site
from tests.support.packaged import Packaged
from tests.support.processes import descendants
from tests.support.right_act import rules_with
from tests.support.systemd_machine import SITE
from tests.support.units import PARTS
from tests.support.up import Stack
from tests.support.wait import wait_until

FORMS = ("embedded", "packaged")
#: Made here, so that no source file and no other process holds the whole of it.
CANARY = "".join(("canary-", "q7Zk", "0vXw", "-of-the-bmcs"))
CAP = 2
#: Nodes that answer by SSH.
ASKED, DEAD, AT_WORK = "gpu0032", "gpu0030", "gpu0029"
_SETTINGS = {
    "HEALER_CLUSTER": "pod1", "HEALER_SLURM_ADAPTERS": "sim", "HEALER_MODE": "auto",
    "HEALER_GUARD_MAX_NODES": str(CAP), "HEALER_GUARD_MAX_SHARE": "1.0", "HEALER_GUARD_RACK_SHARE": "1.0",
    "HEALER_GUARD_SHARE_PER_HOUR": "1.0", "HEALER_GUARD_PARTITION_SHARE": "1.0",
    "HEALER_BMC_URL": "https://{node}-bmc", "HEALER_BMC_USER": "healer",
}  # fmt: skip
#: Tests share the machine: a look has more time than the rules that ship give it.
_PATIENT = [("playbooks/second-look.yaml", "timeout_s: 6", "timeout_s: 60")]


class Attacked(ABC):
    """One form. The attacker may have its database roles, its broker, files, users and senders' tokens."""

    url: str
    broker_url: str
    slurm: SimClient
    #: The folder of the key that signs the audit, that of its checkpoints, and the witness as healer has it.
    key_folder: Path
    checkpoints: Path
    witness_name: str

    def __init__(self, product: Stack | Packaged, folder: Path, ssh: SshSite) -> None:
        self.product, self.folder, self.ssh = product, folder, ssh
        self.http: httpx.Client = product.http
        self.witness = folder / "witness" / "healer.jsonl"

    @abstractmethod
    def database_url(self, role: str = OWNER) -> str: ...

    @abstractmethod
    def pids(self) -> dict[str, int]:
        """Of each part."""

    @abstractmethod
    def processes(self) -> set[int]:
        """All that it runs, the servers of a site apart."""

    @abstractmethod
    def log(self, part: str) -> str: ...

    def headers(self, role: str, *options: str) -> dict[str, str]:
        return self.product.headers(role, *options)

    def run(self, *arguments: str, check: bool = True) -> "CompletedProcess[str]":
        return self.product.run(*arguments, check=check)

    def relay(self, name: str) -> dict[str, str]:
        """Headers of a token for signals that nothing vouches for."""
        made = self.run("token", "create", "--role", "signals", "--name", name)
        headers = {"Authorization": f"Bearer {made.stdout.split()[-1]}"}
        asked = f"{self.url}/api/v1/nodes"
        wait_until(lambda: self.http.get(asked, headers=headers).status_code == 403, 20, what="it counts")
        return headers

    def get(self, path: str, role: str = "viewer", **query: str) -> dict[str, object]:
        asked = f"{self.url}/api/v1{path}"
        answer = self.http.get(asked, params=query, headers=self.headers(role))
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: object, headers: dict[str, str]) -> httpx.Response:
        answer = self.http.post(f"{self.url}/api/v1{path}", json=body, headers=headers)
        assert answer.is_success, answer.text
        return answer

    def say(self, headers: dict[str, str], node: str, line: str) -> None:
        """A line of the kernel's log."""
        entries = [{"time": datetime.now(UTC).isoformat(), "seq": 1, "line": line}]
        body = {"cluster": "pod1", "node": node, "boot_id": str(uuid4()), "entries": entries}
        self.post("/signals/kernel-log", body, headers)

    def incidents(self, node: str) -> list[dict[str, object]]:
        found = self.get("/incidents", node=node)["items"]
        assert isinstance(found, list)
        return found

    def drained(self) -> set[str]:
        return {node.name for node in self.slurm.snapshot().nodes.values() if node.drain}

    def sql(self, statement: str, role: str = OWNER, **values: object) -> list[tuple[object, ...]]:
        engine = sa.create_engine(self.database_url(role), poolclass=sa.NullPool)
        with engine.begin() as conn:
            done = conn.execute(sa.text(statement), values)
            return [tuple(row) for row in done] if done.returns_rows else []


class _Embedded(Attacked):
    """`healer up` with its own PostgreSQL, Redis and Slurm."""

    def __init__(self, stack: Stack, folder: Path, ssh: SshSite) -> None:
        super().__init__(stack, folder, ssh)
        self.stack, self.url = stack, stack.url
        self.broker_url = running.find(stack.data_dir).broker_url
        self.slurm = SimClient(own_sim_socket(stack.data_dir))
        self.key_folder = self.checkpoints = stack.data_dir
        self.witness_name = str(self.witness)

    def database_url(self, role: str = OWNER) -> str:
        return login_url(running.find(self.stack.data_dir).database_url, role)

    def pids(self) -> dict[str, int]:
        return {part: pid for part, pid in self.stack.pids().items() if part in PARTS}

    def processes(self) -> set[int]:
        return self.stack.see() | set(self.stack.pids().values())

    def log(self, part: str) -> str:
        return self.stack.log(part)


class _Packaged(Attacked):
    """The units under systemd."""

    def __init__(self, packaged: Packaged, folder: Path, ssh: SshSite) -> None:
        super().__init__(packaged, folder, ssh)
        self.packaged, self.url, self.broker_url = packaged, packaged.url, packaged.broker_url
        self.slurm = SimClient(packaged.sim)
        within = Path(f"/proc/{packaged.machine.init}/root/var/lib/healer")
        self.key_folder, self.checkpoints = within / "worker", within / "audit"
        self.witness_name = "/mnt/witness/healer.jsonl"

    def database_url(self, role: str = OWNER) -> str:
        return self.packaged.database_url(role)

    def pids(self) -> dict[str, int]:
        return {part: self.packaged.machine.main_pid(part) for part in PARTS}

    def processes(self) -> set[int]:
        return descendants(self.packaged.machine.init)

    def log(self, part: str) -> str:
        return self.packaged.machine.journal(part, lines=10_000)


@contextmanager
def attacked(form: str, folder: Path) -> Iterator[Attacked]:
    (folder / "witness").mkdir()
    witness = folder / "witness" / "healer.jsonl"
    witness.touch()
    witness.chmod(0o666)
    rules_with(folder, _PATIENT)
    with ExitStack() as stack:
        ssh = stack.enter_context(ssh_site(folder / "ssh"))
        for node in (ASKED, DEAD, AT_WORK):
            ssh.node(node)
        ssh.let_worker_read()
        made = _start_embedded if form == "embedded" else _start_packaged
        yield made(stack, folder, ssh)


def _start_embedded(stack: ExitStack, folder: Path, ssh: SshSite) -> Attacked:
    started = Stack(
        folder, forked=False, **_SETTINGS, **_ssh_settings(folder),
        HEALER_BMC_PASSWORD=CANARY, HEALER_AUDIT_WITNESSES=f"file://{folder}/witness/healer.jsonl",
        HEALER_SSH_KEY_FILE=str(ssh.key), HEALER_SSH_SIGNING_KEY_FILE=str(ssh.signing_key),
    )  # fmt: skip
    return _Embedded(stack.enter_context(started), folder, ssh)


def _start_packaged(stack: ExitStack, folder: Path, ssh: SshSite) -> Attacked:
    optional = {"worker": ("bmc", "ssh", "witnesses")}
    values = {
        "bmc-password": CANARY, "witnesses": "file:///mnt/witness/healer.jsonl",
        "ssh-key": ssh.key.read_text(), "ssh-signing-key": ssh.signing_key.read_text(),
    }  # fmt: skip
    mounts = {"witness": "/mnt/witness"}
    started = Packaged(folder, optional, values, mounts, **_SETTINGS, **_ssh_settings(Path(SITE)))
    return _Packaged(stack.enter_context(started), folder, ssh)


def _ssh_settings(folder: Path) -> dict[str, str]:
    """`folder` as healer sees it."""
    return {
        "HEALER_SSH_KNOWN_HOSTS": f"{folder}/ssh/known_hosts",
        "HEALER_SSH_CONFIG": f"{folder}/ssh/ssh_config",
        "HEALER_SSH_USER": getpass.getuser(),
        "HEALER_RULES_DIR": f"{folder}/rules",
    }


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that is stopped meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
