"""A real Slurm 24.11 with slurmrestd, in the root that tools/trixie makes: the newest that Debian has.

It is driven like `BreakableSlurm`. Its daemons run in mount and process
namespaces of their own. `bin_dir` holds Slurm's commands as small wrappers for this machine's programs.
"""

import atexit
import functools
import json
import os
import shutil
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx

from healer.embedded.embedded_slurm import SlurmNotStarted, free_ports
from tests.support.breakable_slurm import BreakableSlurm
from tests.support.slurm import CRED_EXPIRE_S, NODES, SLURMD_TIMEOUT_S, Hooks

ROOT = Path("/var/cache/healer/trixie")
#: A user in it with no rights in Slurm.
PLAIN_USER = "user"
#: slurmrestd's own user and group in it.
REST_UID = 990
_COMMANDS = ("scontrol", "squeue", "sinfo", "sdiag", "sbatch", "salloc", "srun", "scancel", "sacct")


class TrixieSlurm(BreakableSlurm):
    """Slurm 24.11; `rest_url` and `rest_socket` are where slurmrestd answers, to a `token()`."""

    def __init__(
        self,
        directory: Path | str,
        nodes: int = NODES,
        *,
        conf: dict[str, str] | None = None,
    ) -> None:
        self.jwt_key = Path(directory).resolve() / "jwt.key"
        jwt = {"AuthAltTypes": "auth/jwt", "AuthAltParameters": f"jwt_key={self.jwt_key}"}
        super().__init__(
            directory,
            nodes,
            cred_expire_s=CRED_EXPIRE_S,
            conf={"ReturnToService": "1", "SlurmdTimeout": str(SLURMD_TIMEOUT_S)} | jwt | (conf or {}),
        )
        self.bin_dir = self.directory / "bin"
        self.rest_socket = self.directory / "rest/socket"
        self.rest_port = 0

    @property
    def rest_url(self) -> str:
        return f"http://127.0.0.1:{self.rest_port}"

    @property
    def env(self) -> dict[str, str]:
        env = super().env
        return env | {"PATH": f"{self.bin_dir}:{env['PATH']}"}

    def start(self, timeout_s: float = 120) -> None:
        if not (ROOT / "complete").exists():
            raise SlurmNotStarted(f"There is no Slurm 24.11 in {ROOT}; tools/trixie makes it (as root).")
        super().start(timeout_s)
        self.start_rest()

    def kill_rest(self) -> None:
        self._order("kill slurmrestd")

    def start_rest(self, timeout_s: float = 20) -> None:
        # Left by one that was killed; the next could not bind it.
        self.rest_socket.unlink(missing_ok=True)
        self._order("start slurmrestd")
        self._wait(self._rest_answers, time.monotonic() + timeout_s, "slurmrestd does not answer")

    def token(self, user: str = "root", lifespan_s: int = 3600) -> str:
        """A JWT for this user, signed with the key of now."""
        said = self.run("scontrol", "token", f"username={user}", f"lifespan={lifespan_s}")
        return said.strip().removeprefix("SLURM_JWT=")

    def new_key(self) -> None:
        """Another signing key: tokens of before are refused from now on. slurmctld is restarted for it."""
        self.kill_controller()
        _write_key(self.jwt_key)
        self.start_controller()

    def _rest_answers(self) -> bool:
        try:
            headers = {"X-SLURM-USER-TOKEN": self.token()}
            return httpx.get(
                f"{self.rest_url}/slurm/v0.0.42/ping", headers=headers, timeout=10, verify=False
            ).is_success
        except httpx.TransportError:
            return False

    def _write_files(self) -> None:
        super()._write_files()
        _write_key(self.jwt_key)
        (self.directory / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
        self.rest_socket.parent.mkdir()
        os.chown(self.rest_socket.parent, REST_UID, REST_UID)
        self.rest_port = free_ports(1)
        inside = Path("/srv", self.rest_socket.relative_to(self.directory))
        (self.directory / "rest-listen").write_text(f"127.0.0.1:{self.rest_port} unix:{inside}")

    def _own_state(self) -> str:
        return "root"  # its system knows no other of ours

    def _start_guardian(self) -> None:
        super()._start_guardian()
        assert self._guardian is not None
        self.bin_dir.mkdir()
        for name in _COMMANDS:
            wrapper = self.bin_dir / name
            wrapper.write_text(_WRAPPER.format(socket=self.bin_dir / "hands.sock"))
            wrapper.chmod(0o755)
        _serve_commands(self.bin_dir / "hands.sock", self._guardian.pid)

    def _guardian_command(self) -> list[str]:
        # Our folder has the same path inside as outside, since both see the same folder of temporary files.
        # slurmrestd, which may not look into root's, sees ours as /srv.
        shared = tempfile.gettempdir()
        mounts = (
            f'mkdir -p "{ROOT}{shared}" && mount --bind "{shared}" "{ROOT}{shared}"'
            f' && mount --bind "{self.directory}" "{ROOT}/srv" && mount -t proc proc "{ROOT}/proc"'
        )
        return [
            "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation=private",
            "sh", "-c", f'{mounts} && exec "$@"', "sh",
            sys.executable, "-S", "-m", "tests.support.trixie_guard", str(self.directory), str(ROOT),
        ]  # fmt: skip


#: Its commands need root's way into its system; healer's parts, which have none, ask this process for them.
_WRAPPER = """\
#!/usr/bin/python3 -S
import json, os, socket, sys
text = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()
asked = [os.path.basename(sys.argv[0]), sys.argv[1:], text, dict(os.environ)]
with socket.socket(socket.AF_UNIX) as link:
    link.connect("{socket}")
    link.sendall(json.dumps(asked).encode())
    link.shutdown(socket.SHUT_WR)
    code, out, err = json.load(link.makefile())
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""


def _serve_commands(path: Path, guardian: int) -> None:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            name, arguments, text, environ = json.loads(self.rfile.read())
            enter = ["nsenter", f"--target={guardian}", "--mount", "chroot", str(ROOT), f"/usr/bin/{name}"]
            done = subprocess.run(
                [*enter, *arguments], input=text, capture_output=True, text=True, env=environ, check=False
            )
            self.wfile.write(json.dumps([done.returncode, done.stdout, done.stderr]).encode())

    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True
        request_queue_size = 128

    path.unlink(missing_ok=True)
    server = Server(str(path), Handler)
    path.chmod(0o666)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()


@functools.cache
def started() -> TrixieSlurm:
    """The Slurm 24.11 of this process, up to its end."""
    directory = Path(tempfile.mkdtemp(prefix="ht-"))
    directory.chmod(0o711)
    conf = {"PrologFlags": "ForceRequeueOnFail"} | Hooks(directory).write()
    cluster = TrixieSlurm(directory / "s", conf=conf)
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    atexit.register(cluster.stop)
    cluster.start()
    return cluster


def _write_key(path: Path) -> None:
    path.touch(mode=0o600)
    path.write_bytes(os.urandom(32))
