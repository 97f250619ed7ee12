"""`healer api` as a process of its own on a real database, and its memory."""

import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa

from healer.adapters.postgres.engine import make_engine
from healer.adapters.postgres.node_rows import PostgresSnapshots
from healer.adapters.postgres.tokens import PostgresTokens, adopt_key
from healer.adapters.token_key import KEY_FILE
from healer.model import SlurmNode, SlurmSnapshot
from tests.support.forked import HEALER, fork
from tests.support.processes import NOT_ROOT, clean_environ, free_port
from tests.support.relays import new_token
from tests.support.seals import seal_all
from tests.support.wait import wait_until

CLUSTER = "pod1"
PROGRAM = ("-m", "healer", "api")
TOKEN_KEY = bytes(range(32))
RULES = Path(__file__).parents[2] / "rules"
MB = 2**20


@dataclass
class ApiProcess:
    """Where it answers, and who may ask."""

    port: int
    pid: int
    engine: sa.Engine
    folder: Path
    scheme: str = "http"
    #: What its clients check its certificate by.
    trust: ssl.SSLContext | bool = True
    _tokens: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def token(self, role: str = "signals", **bound: Any) -> str:
        """The same one for the same words."""
        key = repr((role, sorted(bound.items())))
        if key not in self._tokens:
            tokens = PostgresTokens(self.engine, CLUSTER, TOKEN_KEY)
            bound = {"name": key} | bound
            self._tokens[key] = tokens.create(new_token(role, **bound), now=datetime.now(UTC), by="test")
            seal_all(self.engine)
        return self._tokens[key]

    def headers(self, role: str = "signals", **bound: Any) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token(role, **bound)}"}

    def client(self, role: str = "signals", **bound: Any) -> httpx.Client:
        base = f"{self.url}/api/v1"
        return httpx.Client(base_url=base, headers=self.headers(role, **bound), timeout=60, verify=self.trust)

    def rss(self) -> int:
        """Bytes of memory now."""
        return self._memory("VmRSS")

    def peak(self) -> int:
        """The most since `forget_peak`."""
        return self._memory("VmHWM")

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def _memory(self, what: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(what + ":"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"no {what} of {self.pid}")

    def losses(self) -> dict[tuple[str, str], int]:
        """(route, reason) -> count, as the API reports it; up to some seconds old."""
        with self.client("viewer") as client:
            found = client.get("/signals/losses").json()["items"]
        counts: dict[tuple[str, str], int] = {}
        for one in found:
            key = one["source"], one["reason"]
            counts[key] = counts.get(key, 0) + one["count"]
        return counts


@contextmanager
def api_process(
    database: sa.Engine,
    folder: Path,
    *,
    nodes: int = 16,
    files: int | None = None,
    program: Sequence[str] = (),
    **settings: str,
) -> Iterator[ApiProcess]:
    """Started, with `nodes` nodes gpu0001… of 8 GPUs in Slurm's picture. `files`: its limit of open files;
    `program`: what Python runs, where a process that was forked would not do."""
    url = database.url.render_as_string(hide_password=False)
    engine = make_engine(url)
    names = [f"gpu{number:04d}" for number in range(1, nodes + 1)]
    shown = {name: SlurmNode(name=name, state=("IDLE",), gpus=8, gpu_model="h100") for name in names}
    PostgresSnapshots(engine).put(
        SlurmSnapshot(cluster=CLUSTER, taken_at=datetime.now(UTC), nodes=shown, jobs={})
    )
    (folder / "data").mkdir()
    (folder / "data" / KEY_FILE).write_text(TOKEN_KEY.hex())
    with engine.begin() as conn:
        adopt_key(conn, TOKEN_KEY, datetime.now(UTC))
    port = free_port()
    # A copy: an edit of the shipped rules meanwhile would make the process read them again.
    shutil.copytree(RULES, folder / "rules")
    environ = clean_environ(
        HEALER_RULES_DIR=str(folder / "rules"),
        HEALER_DATA_DIR=str(folder / "data"),
        HEALER_DATABASE_URL=url,
        HEALER_REDIS_URL="redis://127.0.0.1:1/0",
        HEALER_CLUSTER=CLUSTER,
        HEALER_SLURM_ADAPTERS="sim",
        HEALER_SIM_SOCKET=str(folder / "none.sock"),
        HEALER_LISTEN=f"127.0.0.1:{port}",
        **settings,
    )
    log = folder / "api.log"
    scheme = "https" if "HEALER_TLS_CERT" in settings else "http"

    limited = [] if files is None else ["prlimit", f"--nofile={files}:{files}"]
    with log.open("wb") as out:
        process = (
            subprocess.Popen(
                [*limited, *NOT_ROOT, sys.executable, *(program or PROGRAM)],
                env=environ, stdout=out, stderr=out,
            )
            if limited or program
            else fork(HEALER, ["api"], environ, out, is_root=False)
        )  # fmt: skip
    try:

        def answers() -> bool:
            assert process.poll() is None, log.read_text()
            try:
                return httpx.get(f"{scheme}://127.0.0.1:{port}/healthz", timeout=5, verify=False).is_success
            except httpx.HTTPError:
                return False

        wait_until(answers, what="healer api answers", timeout_s=60)
        yield ApiProcess(port, process.pid, engine, folder, scheme)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        engine.dispose()
