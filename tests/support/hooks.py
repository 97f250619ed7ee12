"""A made-up node for `healer-hook`, and a server that answers it as a test wants."""

import json
import socket
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

HOOK = Path(__file__).parents[2] / "healer" / "hooks" / "healer-hook"
BOOT = "00000000-0000-4000-8000-000000000001"
LOST = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
FATAL = "NVRM: Xid (PCI:0000:9b:00): 95, pid=1234, name=python, Uncontained ECC error"
TOKEN = "heal_test_secretsecretsecret"
MOUNTS = "/dev/vda / ext4 rw,relatime 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/vdb /scratch xfs rw,noatime 0 0\n"
#: Longer than a prolog or epilog may take, whatever hangs: the promise is 5 s.
PROMISED_S = 5.0


class Healer:
    """Answers every report with `answer`: an object as JSON, bytes as they are, or nothing at all (None)."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = {"verdict": "healthy", "may_refuse": False, "reason": ""} if answer is None else answer
        self.status = 202
        #: In place of both, for each request: (status, answer) for its reports.
        self.judge: Callable[[list[dict[str, Any]]], tuple[int, Any]] | None = None
        #: Of its answer; that of a refusal that is healer's own.
        self.kind = "application/problem+json"
        self.hangs = False
        self.requests: list[tuple[str, Mapping[str, str], list[dict[str, Any]]]] = []
        self._over = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    raw = zlib.decompress(raw, 31)
                outer.requests.append((self.path, dict(self.headers), json.loads(raw)))
                if outer.hangs:
                    outer._over.wait(20)
                    return
                status, answer = outer.status, outer.answer
                if outer.judge is not None:
                    status, answer = outer.judge(outer.requests[-1][2])
                body = (
                    answer
                    if isinstance(answer, bytes)
                    else json.dumps(answer, separators=(",", ":")).encode()
                )
                self.send_response(status)
                self.send_header("Content-Type", outer.kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    @property
    def reports(self) -> list[dict[str, Any]]:
        """All reports so far, in the order in which they came."""
        return [report for _, _, reports in self.requests for report in reports]

    def __enter__(self) -> "Healer":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._over.set()
        self.server.shutdown()
        self.server.server_close()
        self._thread.join(5)


def unused_url() -> str:
    """An address where a connection is refused."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


class HookNode:
    """A folder in place of the node's /, with the files that the probes read, and the hook's settings."""

    def __init__(self, folder: Path, url: str, **settings: str) -> None:
        self.root = folder / "root"
        self.spool = folder / "spool"
        self.conf = folder / "hook.conf"
        for part in ("dev", "proc/sys/kernel/random", "usr/bin", "tmp", "scratch"):
            (self.root / part).mkdir(parents=True)
        self.boot(BOOT)
        self.put("proc/mounts", MOUNTS)
        self.put("proc/stat", "cpu  1 2 3\nprocs_running 2\nprocs_blocked 1\n")
        (self.root / "dev/kmsg").touch()
        token = folder / "token"
        token.write_text(TOKEN + "\n")
        self.settings = {
            "HEALER_URL": url,
            "HEALER_TOKEN_FILE": str(token),
            "HEALER_HOOK_SPOOL": str(self.spool),
            "HEALER_HOOK_ROOT": str(self.root),
            "HEALER_HOOK_JITTER_S": "0",
            **settings,
        }
        self.seq = 0

    def boot(self, boot_id: str) -> None:
        self.put("proc/sys/kernel/random/boot_id", boot_id + "\n")

    def put(self, path: str, text: str, mode: int = 0o644) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def kernel(self, *lines: str, priority: int = 3) -> None:
        """Records of /dev/kmsg; a priority of 8 and above is a program's, not the kernel's."""
        with (self.root / "dev/kmsg").open("a") as file:
            for line in lines:
                self.seq += 1
                micros = int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)
                file.write(f"{priority},{self.seq},{micros},-;{line}\n SUBSYSTEM=pci\n")

    def program(self, path: str, script: str) -> Path:
        self.put(path, f"#!/bin/sh\n{script}\n", 0o755)
        return self.root / path

    def port(self, device: str = "mlx5_0", state: str = "4: ACTIVE", downed: int = 0) -> None:
        where = f"sys/class/infiniband/{device}/ports/1"
        self.put(f"{where}/state", state + "\n")
        self.put(f"{where}/phys_state", "5: LinkUp\n")
        self.put(f"{where}/rate", "400 Gb/sec (4X NDR)\n")
        self.put(f"{where}/counters/link_downed", f"{downed}\n")

    def run(
        self, hook: str, *options: str, hook_file: Path = HOOK, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs the hook as slurmd does: no PATH, nothing of ours in the environment."""
        return subprocess.run(
            self.command(hook, *options, hook_file=hook_file),
            env={"SLURMD_NODENAME": "gpu0001", **(environ or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=PROMISED_S if hook != "health-check" else 60,
        )

    def command(self, hook: str, *options: str, hook_file: Path = HOOK) -> list[str]:
        self.conf.write_text("# settings\n" + "".join(f"{key}={one}\n" for key, one in self.settings.items()))
        return [str(hook_file), hook, "--conf", str(self.conf), *options]

    @property
    def spooled(self) -> list[dict[str, Any]]:
        files = sorted(self.spool.glob("*.json")) if self.spool.is_dir() else []
        return [json.loads(file.read_text()) for file in files]


def life(job: int, restarts: int) -> dict[str, str]:
    """The environment that Slurm gives a hook for its job."""
    return {"SLURM_JOB_ID": str(job), "SLURM_JOB_RESTART_COUNT": str(restarts)}


def check_of(report: dict[str, Any], name: str) -> str | None:
    """What a check of the report says; None where it was not made."""
    return next((one["text"] for one in report["checks"] if one["name"] == name), None)


def smi(*gpus: str, extra: str = "") -> str:
    """A script that prints the parts of `nvidia-smi -q -x` that are read."""
    listed = "".join(f'<gpu id="{gpu}"><uuid>GPU-{gpu}</uuid></gpu>' for gpu in gpus)
    xml = f"<?xml version='1.0' ?><nvidia_smi_log><attached_gpus>{len(gpus)}</attached_gpus>{listed}"
    return f"cat <<'END'\n{xml}{extra}</nvidia_smi_log>\nEND"


def with_process(name: str) -> str:
    """The same of one GPU, with a process of this name on it."""
    info = f"<process_info><process_name>{name}</process_name></process_info>"
    return smi("a").replace("</uuid></gpu>", f"</uuid><processes>{info}</processes></gpu>")
