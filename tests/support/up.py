"""The whole product as a process: `healer up` on a folder of its own.

with Stack(scratch, HEALER_MODE="auto") as stack:
    stack.http.get(f"{stack.url}/api/v1/nodes", headers=stack.headers("viewer"))
"""

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

import httpx
import sqlalchemy as sa

from healer.adapters.postgres.roles import login_url
from healer.adapters.postgres.tokens import PostgresTokens
from healer.adapters.token_key import KEY_FILE, token_key
from healer.commands import person
from healer.embedded import running
from healer.engine.token_making import checked_token
from healer.model.grants import ACTING
from healer.ports.callers import NewToken
from tests.support.forked import Forked, popen, run
from tests.support.processes import clean_environ, descendants, free_port, living
from tests.support.relays import new_token
from tests.support.seals import sealed
from tests.support.stack import lay_database, lay_proofs
from tests.support.wait import wait_until

ROOT = Path(__file__).parents[2]
UP = ("-m", "healer", "up")
READY_S = 60.0
STOP_S = 15.0


class Stack:
    """`environ` are settings by name. `command` is what is started; `--data-dir` and `--listen` are added.
    With `first` it makes its database, as every first start does; else it finds one. `healer` is `forked`
    unless how it was started matters."""

    def __init__(
        self,
        folder: Path,
        *,
        command: tuple[str, ...] = UP,
        data_dir: Path | None = None,
        first: bool = False,
        port: int | None = None,
        forked: bool = True,
        **environ: str,
    ) -> None:
        self.data_dir = data_dir or folder / "data"
        self.environ = clean_environ(**environ, HEALER_DATA_DIR=str(self.data_dir))
        self.output = folder / "healer-up.txt"
        self._command, self._first, self._given = command, first, port
        self._is_forked = forked and command == UP and not first
        self._seen: set[int] = set()
        #: Made once: each of httpx's own functions would read all certificates that there are.
        self.http = httpx.Client(timeout=20)
        self._tokens: dict[tuple[str, ...], str] = {}
        self.port = 0
        self.process: subprocess.Popen[bytes] | Forked | None = None

    # --- life -------------------------------------------------------------------------------------------

    def start(self, *, ready: bool = True) -> "Stack":
        """Starts it; with `ready` returns when it has printed that it is ready."""
        self.port = self._given or free_port()
        if ready and not self._first and not self.data_dir.exists():
            lay_database(self.data_dir)
            lay_proofs(self.data_dir)
        program = (
            (*self._command, "--listen", f"127.0.0.1:{self.port}")
            if "healer" in self._command
            else (*self._command, str(self.data_dir), str(self.port))
        )
        with self.output.open("wb") as output:
            if self._is_forked:
                self.process = popen(program[2:], self.environ, output)
            else:
                self.process = subprocess.Popen(
                    [sys.executable, *program],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=self.environ,
                    cwd=ROOT,
                    start_new_session=True,
                )
        if ready:
            wait_until(self._ready_or_dead, READY_S, what="`healer up` says that it is ready")
            assert self.process.poll() is None, self.said()
            self.see()
        return self

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Asks it to end, as Ctrl-C or an init system does; returns its exit status."""
        assert self.process is not None
        self.see()
        self.process.send_signal(number)
        return self.process.wait(STOP_S)

    def kill(self) -> None:
        """SIGKILL to `healer up` alone; what it started is not touched."""
        assert self.process is not None
        self.see()
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> "Stack":
        try:
            return self.start()
        except BaseException:
            self.__exit__(None, None, None)  # no one else would end what was started
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.http.close()
        if self.process is not None and self.process.poll() is None:
            self.stop()
        for pid in self.left():  # only after a failure of the product; the test has said so
            os.kill(pid, signal.SIGKILL)

    # --- what one can ask -------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def pids(self) -> dict[str, int]:
        """Processes by name: `postgres`, `redis`, `api`, `detector`, `scheduler`, `worker`, `up`."""
        found = running.find(self.data_dir)
        return found.parts | found.servers | {"up": found.pid}

    def said(self) -> str:
        """All it has printed so far."""
        return self.output.read_text(errors="replace")

    def log(self, part: str) -> str:
        return (self.data_dir / "log" / f"{part}.log").read_text(errors="replace")

    def see(self) -> set[int]:
        """Remembers all processes of the tree, for `left`."""
        assert self.process is not None
        self._seen |= descendants(self.process.pid)
        return self._seen

    def left(self) -> set[int]:
        """Processes once seen in the tree that still live."""
        return living(self._seen)

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """`healer ARGUMENTS` with this installation's settings."""
        done = run(arguments, self.environ | {"HEALER_URL": self.url}, timeout=240)
        assert not check or done.returncode == 0, (
            f"healer {' '.join(arguments)}: {done.stderr or done.stdout}"
        )
        return done

    def token_key(self) -> bytes:
        """The key of its tokens' digests."""
        return token_key(self.data_dir / KEY_FILE)

    def token(self, role: str, *options: str) -> str:
        """A new token of that role; `options` as `healer token create` takes them."""
        if "--once" in options:
            return self.run("token", "create", "--role", role, *options).stdout.split()[-1]
        bound = dict(zip((name.removeprefix("--") for name in options[::2]), options[1::2], strict=True))
        named = {"name": person()} if role in ACTING else {}
        return self.make_token(new_token(role, **(named | bound)))

    def make_token(self, new: NewToken) -> str:
        """Made as `healer token create` does, which would cost a second of a process."""
        now = datetime.now(UTC)
        db = sa.create_engine(login_url(running.find(self.data_dir).database_url, "healer_api"))
        try:
            tokens = PostgresTokens(db, self.environ.get("HEALER_CLUSTER", "pod1"), self.token_key())
            return sealed(tokens, tokens.create(checked_token(new, now), now=now, by=person()))
        finally:
            db.dispose()

    def headers(self, role: str, *options: str) -> dict[str, str]:
        """With a token of that role: the same each time."""
        asked = (role, *options)
        if asked not in self._tokens:
            self._tokens[asked] = self.token(role, *options)
        return {"Authorization": f"Bearer {self._tokens[asked]}"}

    def _ready_or_dead(self) -> bool:
        assert self.process is not None
        return "healer is ready" in self.said() or self.process.poll() is not None


def is_ready(url: str) -> bool:
    """Whether /readyz there says so; False if nothing answers."""
    try:
        return httpx.get(f"{url}/readyz", timeout=2, verify=False).status_code == 200
    except httpx.HTTPError:
        return False
