"""A real Slurm with many nodes on this machine, for the tests, the demo and the benchmarks.

Every node is a slurmd with its own port and 8 fake H100 GPUs. slurmctld and munged are separate from the
machine's Slurm and munge. Everything is in one directory and under one guardian process (`slurm_guard`),
which stops it when this process ends in any way.
"""

import os
import platform
import random
import select
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from healer.embedded.user import EmbeddedError, system_users
from healer.model.vocabulary import UserError
from healer.text import Said, say

PROGRAMS = ("munged", "slurmctld", "slurmd", "scontrol", "sinfo", "squeue", "sbatch", "scancel")
PACKAGES = ("slurm-wlm", "slurm-client", "munge")
CLUSTER = "pod1"
PARTITION = "train"
GPUS_PER_NODE = 8
#: Ports below the kernel's ephemeral range (32768), so that no outgoing connection takes one meanwhile.
_PORTS = range(12000, 32000)
#: sockaddr_un has 108 bytes with the final zero. The longest socket names are munge's and those of job steps;
#: with too long a path a job ends at once without an error message.
_LONGEST_SOCKET_PATH = 107
_SOCKETS = ("run/munge.sock.lock", "spool/gpu0001/gpu0001_1234567.4294967291")
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

_CONF = """\
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={slurmd_port}
AuthType=auth/munge
AuthInfo=socket={directory}/run/munge.sock,cred_expire={cred_expire_s}
CredType=cred/munge
SlurmUser={slurm_user}
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool/%n
SlurmctldPidFile={directory}/state/slurmctld.pid
SlurmdPidFile={directory}/run/slurmd-%n.pid
SlurmctldLogFile={directory}/log/slurmctld.log
SlurmdLogFile={directory}/log/slurmd-%n.log
SlurmctldDebug=info
LogTimeFormat=iso8601_ms
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
JobRequeue=1
KillWait=2
MinJobAge=300
SchedulerParameters=sched_interval=2,bf_interval=2
SlurmdParameters=config_overrides
MpiDefault=none
SwitchType=switch/none
{extra}\
NodeName={nodes} NodeHostname=localhost NodeAddr={addresses} Port=[{first_port}-{last_port}] CPUs=16 \
Sockets=1 CoresPerSocket=16 ThreadsPerCore=1 RealMemory=1000 Gres=gpu:h100:{gpus} Feature=h100 State=UNKNOWN
PartitionName={partition} Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class SlurmNotStarted(UserError):
    """The embedded Slurm did not start; the text says what is missing and where its logs are."""


def available() -> Said | None:
    """None if a real Slurm can be started here, else one sentence with the reason."""
    if platform.system() != "Linux":
        return say("embedded.slurm_needs_linux")
    if os.geteuid() != 0:
        return say("embedded.slurm_needs_root")
    missing = [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]
    if missing:
        programs = ", ".join(missing)
        return say("embedded.slurm_not_installed", programs=programs, packages=" ".join(PACKAGES))
    return None


def install(timeout_s: float = 600) -> None:
    """Installs Debian's Slurm and munge. Raises SlurmNotStarted."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise SlurmNotStarted(say("embedded.only_root_can_install", packages=" ".join(PACKAGES)))
    # RUNLEVEL=1 keeps the packages from starting their daemons.
    env = dict(os.environ, DEBIAN_FRONTEND="noninteractive", RUNLEVEL="1")
    flags = ["-q", "-y", "--no-install-recommends"]
    for command in (["apt-get", "update", "-q"], ["apt-get", "install", *flags, *PACKAGES]):
        line = " ".join(command)
        try:
            done = subprocess.run(
                command, env=env, capture_output=True, text=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise SlurmNotStarted(
                say("embedded.took_longer_than_s", line=line, timeout_s=timeout_s)
            ) from error
        if done.returncode:
            raise SlurmNotStarted(say("embedded.failed", line=line, why=done.stderr.strip()[-500:]))


class RealSlurm:
    """Slurm with `nodes` nodes (`gpu0001` …) of 8 H100 GPUs, partition `train`.

    `directory` must be short (it contains sockets) and is emptied at the start. A requeued job may start
    again after `cred_expire_s` + 1 s; below 5, Slurm uses its default, 120. `conf`: settings of slurm.conf
    (default ClusterName: pod1).
    """

    #: Of the nodes, as slurm.conf has them.
    addresses = "127.0.0.1"

    def __init__(
        self,
        directory: Path | str,
        nodes: int = 32,
        *,
        cred_expire_s: int = 5,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        if not 1 <= nodes <= 9999:
            raise ValueError(f"nodes: {nodes} is not in 1 to 9999")
        self.directory = Path(directory).resolve()
        self.nodes = nodes
        self.node_names = tuple(f"gpu{number:04d}" for number in range(1, nodes + 1))
        self.slurm_conf = self.directory / "slurm.conf"
        self.slurmctld_log = self.directory / "log" / "slurmctld.log"
        self._settings = {"ClusterName": CLUSTER, "SlurmdTimeout": "30", **(conf or {})}
        self.cluster = self._settings["ClusterName"]
        self._cred_expire_s = cred_expire_s
        self._guardian: subprocess.Popen[bytes] | None = None

    @property
    def env(self) -> dict[str, str]:
        """The environment of programs that use this Slurm."""
        return {"PATH": _PATH, "LC_ALL": "C", "SLURM_CONF": str(self.slurm_conf)}

    def start(self, timeout_s: float = 120) -> None:
        """Starts everything and returns when all nodes are idle. Raises SlurmNotStarted."""
        why_not = available()
        if why_not:
            raise SlurmNotStarted(why_not)
        if any(len(str(self.directory / name)) > _LONGEST_SOCKET_PATH for name in _SOCKETS):
            raise SlurmNotStarted(say("embedded.path_too_long_hold", directory=str(self.directory)))
        self._write_files()
        self._start_guardian()
        deadline = time.monotonic() + timeout_s
        try:
            self._order("start munged")
            socket_path = self.directory / "run/munge.sock"
            self._wait(socket_path.exists, deadline, say("embedded.munged_no_socket"))
            self._order("start slurmctld")
            self._wait(self._controller_answers, deadline, say("embedded.slurmctld_silent"))
            self._order("start-all")
            self._wait(self._all_idle, deadline, say("embedded.nodes_not_idle"))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends all processes of this Slurm. May be called again."""
        guardian, self._guardian = self._guardian, None
        if guardian is None:
            return
        assert guardian.stdin is not None and guardian.stdout is not None
        guardian.stdin.close()
        try:
            guardian.wait(timeout=15)
        except subprocess.TimeoutExpired:
            guardian.kill()
            guardian.wait()
        guardian.stdout.close()

    def __enter__(self) -> "RealSlurm":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run(self, *command: str, timeout_s: float = 20) -> str:
        """Runs one of Slurm's commands, which gets no input, and returns its output. Raises
        CalledProcessError."""
        done = subprocess.run(
            command, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=timeout_s, check=False,
        )  # fmt: skip
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
        return done.stdout

    def _start_guardian(self) -> None:
        self._guardian = subprocess.Popen(
            self._guardian_command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            cwd=Path(__file__).parents[2],
            env={"PATH": _PATH},
        )

    def _guardian_command(self) -> list[str]:
        # Tests replace it, to start another Slurm.
        return [sys.executable, "-S", "-m", "healer.embedded.slurm_guard", str(self.directory)]

    def _order(self, order: str) -> None:
        guardian = self._guardian
        if guardian is None or guardian.stdin is None or guardian.stdout is None:
            raise SlurmNotStarted(say("embedded.embedded_slurm_running"))
        os.write(guardian.stdin.fileno(), order.encode() + b"\n")
        readable, _, _ = select.select([guardian.stdout], [], [], 60)
        answer = (
            os.read(guardian.stdout.fileno(), 4096).decode().strip()
            if readable
            else say("embedded.no_answer")
        )
        if answer not in {"ok", "none"}:
            raise SlurmNotStarted(
                say(
                    "embedded.guardian_embedded_slurm_said",
                    order=order,
                    answer=answer or say("commands.nothing"),
                )
            )

    def _wait(self, done: Callable[[], bool], deadline: float, failure: Said) -> None:
        while not done():
            if time.monotonic() > deadline:
                logs = self.directory / "log"
                raise SlurmNotStarted(
                    say("embedded.embedded_slurm_did_start", failure=failure, logs=str(logs))
                )
            time.sleep(0.05 if self.nodes < 200 else 0.25)

    def _controller_answers(self) -> bool:
        try:
            return "is UP" in self.run("scontrol", "ping")
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return False

    def _all_idle(self) -> bool:
        try:
            return self.run("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == str(self.nodes)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return False

    def _own_state(self) -> str:
        """Gives the controller's files to its user, and returns that: healer's worker, who then may change
        this Slurm as on a site; root where there is no such user or it cannot enter the folder."""
        try:
            worker = system_users().worker
        except EmbeddedError:
            return "root"
        if not worker.drop or not worker.can_enter(self.directory):
            return "root"
        for part in ("state", "log"):
            worker.chown(self.directory / part)
        return worker.name

    def _write_files(self) -> None:
        if self.directory.exists() and any(self.directory.iterdir()) and not self.slurm_conf.exists():
            raise SlurmNotStarted(say("embedded.holds_other_files_embedded", directory=str(self.directory)))
        shutil.rmtree(self.directory, ignore_errors=True)
        for part in ("state", "log", "dev", "cgroup", "run"):
            (self.directory / part).mkdir(parents=True)
        for node in self.node_names:
            (self.directory / "spool" / node).mkdir(parents=True)
        for index in range(GPUS_PER_NODE):
            # Copies of /dev/null: Slurm counts device files and never opens them.
            os.mknod(self.directory / f"dev/nvidia{index}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        key = self.directory / "run/munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        names = f"gpu[{1:04d}-{self.nodes:04d}]"
        base = free_ports(self.nodes + 2)
        (self.directory / "nodes").write_text("\n".join(self.node_names))
        self.slurm_conf.write_text(
            _CONF.format(
                partition=PARTITION,
                gpus=GPUS_PER_NODE,
                directory=self.directory,
                slurm_user=self._own_state(),
                nodes=names,
                addresses=self.addresses,
                controller_port=base,
                slurmd_port=base + 1,
                first_port=base + 2,
                last_port=base + 1 + self.nodes,
                cred_expire_s=self._cred_expire_s,
                extra="".join(f"{name}={value}\n" for name, value in self._settings.items()),
            )
        )
        devices = f"{self.directory}/dev/nvidia[0-{GPUS_PER_NODE - 1}]"
        (self.directory / "gres.conf").write_text(f"NodeName={names} Name=gpu Type=h100 File={devices}\n")
        # An empty folder, because Slurm 22.05 cannot disable cgroups (24.11 can).
        (self.directory / "cgroup.conf").write_text(
            f"CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nCgroupMountpoint={self.directory}/cgroup\n"
        )


def free_ports(count: int) -> int:
    """The first of `count` consecutive free ports. Raises SlurmNotStarted."""
    for _ in range(50):
        first = random.randrange(_PORTS.start, _PORTS.stop - count)  # noqa: S311
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise SlurmNotStarted(say("embedded.no_free_ports_row", n=count, start=_PORTS.start, stop=_PORTS.stop))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104
        except OSError:
            return False
        return True
