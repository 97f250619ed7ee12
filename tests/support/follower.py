"""`healer-follow` as a process, a pipe in the place of its kernel, and a small real server in healer's place.

NODE_PYTHON=/path/to/python3.6 runs it with that Python instead of the machine's.
"""

import contextlib
import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.processes import clean_environ, descendants
from tests.support.wait import wait_until

ROOT = Path(__file__).parents[2]
FOLLOW = ROOT / "healer" / "hooks" / "healer-follow"
BOOT = "0b11d014-1685-44bd-a6ed-5fc0bc1c44ae"
#: healer's own refusals have it, and no proxy's.
PROBLEM = {"Content-Type": "application/problem+json"}
XID_79 = "NVRM: Xid (PCI:0000:9b:00): 79, pid=4711, name=python, GPU has fallen off the bus."


class Hub:
    """Takes signals as healer does. `answers` are the next ones instead of 202: (status, headers, body).

    The answer None says nothing until the hub is closed. `requests` holds (path, headers, body) of what was
    taken, or is waiting for such an answer.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: deque[tuple[int, dict[str, str], Any] | None] = deque()
        self.connections = 0
        #: What it answers to heartbeats about the node.
        self.verdict: dict[str, str] | None = None
        self.chunked = False
        self.port = 0
        self._closing = threading.Event()
        self._open: set[socket.socket] = set()
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def bodies(self, route: str) -> list[Any]:
        """JSON of every request to that route, oldest first."""
        return [json.loads(body) for path, _, body in list(self.requests) if path == f"/api/v1/{route}"]

    def beats(self) -> list[Any]:
        return self.bodies("signals/heartbeat")

    def entries(self) -> list[dict[str, Any]]:
        """All kernel lines taken, in order."""
        return [entry for body in self.bodies("signals/kernel-log") for entry in body["entries"]]

    def lines(self) -> list[str]:
        return [entry["line"] for entry in self.entries()]

    def start(self) -> "Hub":
        """Serves, on the port of the last time if there was one."""
        hub, closing = self, threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                hub.connections += 1
                hub._open.add(self.request)

            def finish(self) -> None:
                hub._open.discard(self.request)
                super().finish()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                all_accepted: dict[str, Any] = {
                    "accepted": 1,
                    "duplicates": 0,
                    "unrecognised": 0,
                    "rejected": [],
                }
                if hub.verdict is not None and self.path.endswith("/heartbeat"):
                    all_accepted["verdict"] = hub.verdict
                answer = hub.answers.popleft() if hub.answers else (202, {}, all_accepted)
                headers = {name.lower(): value for name, value in self.headers.items()}
                if answer is None or answer[0] == 202:
                    hub.requests.append((self.path, headers, body))
                if answer is None:
                    closing.wait(30)
                    self.close_connection = True
                    return
                content = json.dumps(answer[2]).encode()
                self.send_response(answer[0])
                length = (
                    {"Transfer-Encoding": "chunked"} if hub.chunked else {"Content-Length": str(len(content))}
                )
                for name, value in {**answer[1], **length}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(in_chunks(content) if hub.chunked else content)

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

        self._server, self._closing = Server(("127.0.0.1", self.port), Handler), closing
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            self._closing.set()
            server.shutdown()
            server.server_close()
            for one in list(self._open):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> "Hub":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def in_chunks(content: bytes) -> bytes:
    """Two of them, and the end."""
    parts = (content[:7], content[7:], b"")
    return b"".join(b"%x;ext=1\r\n%s\r\n" % (len(part), part) for part in parts)


class Following:
    """One follower. `settings` are keys of its conf file; files lie in `folder`."""

    def __init__(self, folder: Path, url: str, **settings: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.spool = folder / "spool"
        self.kmsg, self.said = folder / "kmsg", folder / "said.txt"
        self.boot(BOOT)
        os.mkfifo(self.kmsg)
        # Open for both, so that neither side ever sees the pipe end.
        self._pipe = os.open(self.kmsg, os.O_RDWR)
        self.verdict_file = folder / "run/verdict.json"
        self.token = folder / "token"
        self.token.touch(0o600)
        self.token.write_text("heal_test_token\n")
        conf = {
            "HEALER_URL": url,
            "HEALER_TOKEN_FILE": str(self.token),
            "HEALER_HOOK_SPOOL": str(self.spool),
            "HEALER_NODE": "gpu0001",
            # There is none, unless a test starts one: this machine's own is not asked.
            "HEALER_MUNGE_SOCKET": str(folder / "munge"),
            "HEALER_VERDICT_FILE": str(self.verdict_file),
        }
        self.conf = folder / "hook.conf"
        self.configure(conf | settings)
        python = os.environ.get("NODE_PYTHON")
        self._python = [python, "-I", "-S"] if python else []
        self.program = str(FOLLOW)
        self.process: subprocess.Popen[bytes] | None = None
        self.seq = 0

    def configure(self, settings: dict[str, str]) -> None:
        self.conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def boot(self, boot_id: str) -> None:
        """The boot id that /proc shows from now on."""
        place = self.folder / "proc/sys/kernel/random"
        place.mkdir(parents=True, exist_ok=True)
        (place / "boot_id").write_text(boot_id + "\n")

    def command(self, *options: str) -> list[str]:
        fixed = ["--conf", str(self.conf), "--proc", str(self.folder / "proc")]
        return [*self._python, self.program, *fixed, *options]

    def start(self, *options: str, **environ: str) -> "Following":
        """Starts it on the pipe, or with `options` instead."""
        with self.said.open("ab") as said:
            self.process = subprocess.Popen(
                self.command(*(options or ("--kmsg", str(self.kmsg)))),
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd="/", env=clean_environ(**environ),
            )  # fmt: skip
        return self

    def stop(self, number: int = 15, timeout_s: float = 5) -> float:
        """Ends it; seconds that it took."""
        assert self.process is not None
        started = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(timeout_s)
        return time.monotonic() - started

    def say(self, *lines: str, priority: int = 4, since_s: float = 0.0) -> None:
        """The kernel prints these lines, `since_s` seconds ago."""
        for line in lines:
            micros = int((time.clock_gettime(time.CLOCK_MONOTONIC) - since_s) * 1e6)
            os.write(self._pipe, f"{priority},{self.seq},{micros},-;{line}\n".encode())
            self.seq += 1

    def burst(self, lines: list[str]) -> None:
        """Many lines, as fast as they are read."""
        for line in lines:
            self.say(line)

    def printed(self) -> str:
        return self.said.read_text(errors="replace")

    def files(self) -> dict[str, int]:
        """What lies in its folder: name -> mode."""
        return {path.name: path.lstat().st_mode for path in (self.spool / "follow").iterdir()}

    def state(self) -> dict[str, Any]:
        """What it has written down of where it is; empty while there is nothing."""
        path = self.spool / "follow/state"
        return json.loads(path.read_text()) if path.exists() else {}

    def lies(self) -> int:
        """Lines that lie in the spool."""
        files = [path for path in (self.spool / "follow").glob("lines.*") if not path.is_symlink()]
        return sum(path.read_bytes().count(b"\n") for path in files)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            # What it started does not end with it: a journalctl that waits for the next line.
            for pid in descendants(self.process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._pipe)


@contextmanager
def following(folder: Path, url: str, **settings: str) -> Iterator[Following]:
    """A follower that has not been started yet."""
    one = Following(folder, url, **settings)
    try:
        yield one
    finally:
        one.close()


def heard(hub: Hub, *lines: str, timeout_s: float = 10) -> None:
    """Waits until the hub has taken exactly these lines."""
    wait_until(lambda: hub.lines() == list(lines), timeout_s, what=f"{len(lines)} lines are delivered")


def within(node: Following, script: str, *before: str) -> str:
    """What a script prints that has a follower as `one`, and its module as `follow`; `before` starts it."""
    made = (
        "import importlib.machinery, importlib.util, sys, time\n"
        "loader = importlib.machinery.SourceFileLoader('follow', sys.argv[1])\n"
        "follow = importlib.util.module_from_spec(importlib.util.spec_from_loader('follow', loader))\n"
        "loader.exec_module(follow)\n"
        "conf, options = follow.read_conf(sys.argv[2]), {'--kmsg': sys.argv[3], '--proc': sys.argv[4]}\n"
        "one = follow.Follower(conf, options)\n"
    )
    words = [*before, sys.executable, "-c", made + script, node.program, str(node.conf), str(node.kmsg)]
    done = subprocess.run(
        [*words, str(node.folder / "proc")], env=clean_environ(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
