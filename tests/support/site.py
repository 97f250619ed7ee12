"""A whole site: a real Slurm of 32 nodes, `healer up` beside it, and its users' hands.

Everything that is done or asked goes the way a user's would: HTTP with a token, and Slurm's own commands.
What was sent is kept as a recording in the contract's form.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psycopg
import pytest

from healer.embedded import running
from healer.embedded.embedded_slurm import RealSlurm
from healer.model import SlurmJob, SlurmNode
from tests.support import slurm as slurm_support
from tests.support.relays import new_token
from tests.support.slurm import real_slurm  # noqa: F401 - a fixture
from tests.support.stack import memory, scratch_folder
from tests.support.up import UP, Stack
from tests.support.wait import wait_until

CLUSTER = "pod1"
#: PCI addresses of GPU 0 … 7, as an HGX H100 board has them.
PCI = tuple(f"0000:{bus}:00" for bus in ("18", "2a", "3a", "5d", "9a", "ab", "ba", "db"))
#: No limit on how many nodes are out: a matter of other tests.
WIDE_GUARDS = {
    "HEALER_GUARD_MAX_SHARE": "1.0",
    "HEALER_GUARD_MAX_NODES": "32",
    "HEALER_GUARD_MIN_SERVICE_SHARE": "0.0",
    "HEALER_GUARD_SHARE_PER_HOUR": "1.0",
    "HEALER_GUARD_RACK_SHARE": "1.0",
    "HEALER_GUARD_PARTITION_SHARE": "1.0",
    "HEALER_BREAKER_SHARE": "1.0",
}
#: Set to a folder, the recordings of the session are written there.
RECORD = "RECORDINGS"

XID_79 = "NVRM: Xid (PCI:{pci}): 79, pid=4242, name=python3, GPU has fallen off the bus."
XID_48 = (
    "NVRM: Xid (PCI:{pci}): 48, pid=4242, name=python3, An uncorrectable double bit error (DBE) has been "
    "detected on GPU in the framebuffer at partition 6, subpartition 0."
)
GPU_AT = "NVRM: GPU at PCI:{pci}: GPU-{uuid}"


class Site:
    """One `healer up` on the session's Slurm. `name` is the recording's, if it is to be one."""

    def __init__(
        self, cluster: RealSlurm, folder: Path, *, program: tuple[str, ...] = UP, **environ: str
    ) -> None:
        self.slurm = cluster
        self.scheduler = slurm_support.hands(cluster)
        settings = {"HEALER_MODE": "auto", "HEALER_SETTLE_S": "0.5", "HEALER_SLURM_ADAPTERS": "cli"}
        self.stack = Stack(
            folder,
            command=program,
            data_dir=None,
            **(settings | environ),
            SLURM_CONF=str(cluster.slurm_conf),
        )
        self.jobs: list[str] = []
        self.sent: list[dict[str, Any]] = []
        self._clients: dict[str, httpx.Client] = {}
        self._log_from = cluster.slurmctld_log.stat().st_size
        self._seq = 0

    # --- life -------------------------------------------------------------------------------------------

    def __enter__(self) -> "Site":
        self.stack.start()
        return self

    def __exit__(self, *about: Any) -> None:
        for client in self._clients.values():
            client.close()
        self.stack.__exit__(*about)
        slurm_support.clean(self.slurm, self.jobs)

    def clean(self) -> None:
        """Ends incidents and jobs and lifts every drain, for the next story on the same site.

        In this order: a node whose fault is known is drained as soon as the other drain is lifted.
        """
        asked: dict[str, httpx.Response] = {}
        try:
            wait_until(lambda: not self._end_incidents(asked), 20, what="no incident is open", every_s=0.1)
        except AssertionError:
            raise AssertionError(f"these incidents stay open: {self._end_incidents(asked)}") from None
        slurm_support.clean(self.slurm, self.jobs)

    def _end_incidents(self, asked: dict[str, httpx.Response]) -> list[str]:
        """Resolves what is open, also what opens meanwhile, and returns it; `asked`: the answer to each.

        202: the detector was busy, or is coming back, and applies it when it can. 409: it cannot be ended
        now, or has ended meanwhile. What was accepted is not asked for again: it has to come.
        """
        still = self.open_incidents()
        for one in still:
            if one["id"] not in asked or asked[one["id"]].status_code == 409:
                path = f"/incidents/{one['id']}/resolve"
                answer = self.api("operator").post(path, json={"reason": "the story is told"})
                assert answer.status_code in {200, 202, 409}, f"{path}: {answer.status_code} {answer.text}"
                asked[one["id"]] = answer
        return [f"{one['id'][:8]} {one['rule']}: {asked[one['id']].text[:500]}" for one in still]

    # --- people and senders ------------------------------------------------------------------------------

    def api(self, role: str) -> httpx.Client:
        """A client of the REST API with a token of that role."""
        if role not in self._clients:
            headers = {"Authorization": f"Bearer {self.token(role)}"}
            self._clients[role] = httpx.Client(
                base_url=f"{self.stack.url}/api/v1", headers=headers, timeout=20
            )
        return self._clients[role]

    def token(self, role: str, name: str | None = None, **bound: str) -> str:
        """A new token, bound to `node` or `job` if one is given (see `relays`)."""
        return self.stack.make_token(new_token(role, name=name or f"test {role}", **bound))

    def get(self, path: str, **query: Any) -> Any:
        answer = self.api("viewer").get(path, params=query)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
        return answer.json()

    def post(self, path: str, body: dict[str, Any], *, role: str = "operator", status: int = 200) -> Any:
        answer = self.api(role).post(path, json=body)
        assert answer.status_code == status, f"{path}: {answer.status_code} {answer.text}"
        return answer.json()

    def signal(self, route: str, body: Any) -> dict[str, Any]:
        """Sends a signal; it must be accepted whole."""
        self.record(f"signals/{route}", body)
        answer = self.api("signals").post(f"/signals/{route}", json=body)
        assert answer.status_code == 202, f"{answer.status_code} {answer.text}"
        counts = answer.json()
        assert not counts["rejected"] and not counts["unrecognised"], counts
        return counts

    def kernel_body(self, node: str, *lines: str) -> dict[str, Any]:
        entries = []
        for line in lines:
            self._seq += 1
            entries.append({"time": datetime.now(UTC).isoformat(), "seq": self._seq, "line": line})
        return {"cluster": CLUSTER, "node": node, "boot_id": boot_of(node), "entries": entries}

    def kernel(self, node: str, *lines: str, gpu: int = 0) -> dict[str, Any]:
        """Lines of the node's kernel, about its GPU `gpu`."""
        filled = [line.format(pci=PCI[gpu]) for line in lines]
        return self.signal("kernel-log", self.kernel_body(node, *filled))

    def inventory(self, node: str) -> None:
        """A heartbeat that maps GPUs to addresses."""
        gpus = [{"index": index, "pci": pci} for index, pci in enumerate(PCI)]
        beat = {"cluster": CLUSTER, "node": node, "boot_id": boot_of(node), "gpus": gpus}
        self.signal("heartbeat", beat | {"time": datetime.now(UTC).isoformat()})

    def resume(self, node: str, reason: str = "board replaced", **about: str) -> httpx.Response:
        """A person asks for the node's return."""
        body = {"cluster": CLUSTER, "node": node, "reason": reason, **about}
        return self.api("operator").post("/playbooks/resume/runs", json=body)

    # --- Slurm, as its users have it ----------------------------------------------------------------------

    def sbatch(self, *options: str, gpus: int = 8) -> str:
        """Submits a batch job that runs until it is ended, and waits until it runs."""
        job = slurm_support.sbatch(self.slurm, *options, gpus=gpus)
        self.jobs.append(job)
        wait_until(lambda: self.job(job).state == "RUNNING", 20, what=f"job {job} runs", every_s=0.1)
        return job

    def job(self, job: str) -> SlurmJob:
        found = self.scheduler.job(job)
        assert found is not None, f"Slurm does not know job {job}"
        return found

    def node(self, name: str) -> SlurmNode:
        return self.scheduler.node(name)

    def shown(self, name: str) -> list[str]:
        """What `scontrol show node` says of state, reason, user and time, to the byte."""
        text = self.slurm.run("scontrol", "show", "node", name)
        return [line.strip() for line in text.splitlines() if "Reason=" in line or "State=" in line]

    def scontrol(self, *words: str) -> None:
        self.slurm.run("scontrol", "update", *words)

    def log(self) -> str:
        """slurmctld's own log since this site started."""
        with self.slurm.slurmctld_log.open("rb") as file:
            file.seek(self._log_from)
            return file.read().decode(errors="replace")

    def drains(self, node: str) -> int:
        """How often this node was set to DRAIN, by slurmctld's own log."""
        return len(re.findall(rf"update_node: node {node} state set to DRAIN", self.log()))

    def drained_by_us(self, node: str) -> bool:
        shown = self.node(node)
        return shown.drain and shown.reason.startswith("healer:")

    # --- what healer says ---------------------------------------------------------------------------------

    def incidents(self, node: str, **query: Any) -> list[dict[str, Any]]:
        return self.get("/incidents", node=node, **query)["items"]

    def open_incidents(self) -> list[dict[str, Any]]:
        return [one for one in self.get("/incidents", limit=500)["items"] if one["state"] != "resolved"]

    def incident(self, node: str) -> dict[str, Any]:
        """The newest incident of the node, once there is one."""
        return wait_until(lambda: self.incidents(node), 10, what=f"an incident of {node}", every_s=0.1)[0]

    def runs(self, node: str) -> list[dict[str, Any]]:
        """The node's runs, newest first."""
        return self.get("/runs", node=node)["items"]

    def run_in(self, node: str, *states: str, timeout_s: float = 20, shadow: bool | None = None) -> Any:
        """The node's newest run once it is in one of `states`."""

        def found() -> Any:
            runs = [one for one in self.runs(node) if shadow is None or one["shadow"] is shadow]
            return runs[0] if runs and runs[0]["state"] in states else None

        return wait_until(found, timeout_s, what=f"a run on {node} is {' or '.join(states)}", every_s=0.1)

    def steps(self, run: str) -> dict[str, dict[str, Any]]:
        return {step["id"]: step for step in self.get(f"/runs/{run}")["steps"]}

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Reads the database itself, for data without a route."""
        with self.database() as conn:
            return conn.execute(statement, values).fetchall()  # type: ignore[arg-type]

    def database(self) -> psycopg.Connection:
        url = running.find(self.stack.data_dir).database_url
        return psycopg.connect(
            url.replace("postgresql+psycopg:", "postgresql:"), connect_timeout=5, autocommit=True
        )

    def audit_holds(self) -> None:
        """`healer audit verify` says that the chain is whole, with all that was done in it."""
        wait_until(lambda: not self.sql("SELECT 1 FROM audit_unsealed LIMIT 1"), 10, what="all is sealed")
        done = self.stack.run("audit", "verify", "--json", check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads(done.stdout)["ok"] is True

    # --- recording ----------------------------------------------------------------------------------------

    def record(self, route: str, body: Any) -> None:
        self.sent.append({"at": datetime.now(UTC).isoformat(), "route": route, "body": body})

    def snapshot(self) -> None:
        """Puts what Slurm shows now into the recording."""
        seen = self.scheduler.snapshot()
        nodes = [msgspec.to_builtins(node) for node in seen.nodes.values()]
        jobs = [msgspec.to_builtins(job) for job in seen.jobs.values() if job.id in self.jobs]
        self.record("slurm/nodes", {"cluster": CLUSTER, "nodes": nodes})
        self.record("slurm/jobs", {"cluster": CLUSTER, "jobs": jobs})

    def keep(self, name: str) -> None:
        """Ends the recording with what Slurm shows; writes it where the session keeps recordings."""
        self.snapshot()
        folder = os.environ.get(RECORD)
        if folder:
            text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in self.sent)
            (Path(folder) / f"{name}.jsonl").write_text(text)


def stays(check: Callable[[], bool], for_s: float, *, what: str = "") -> None:
    """It is true now and at every look for this long."""
    until = time.monotonic() + for_s
    wait_until(lambda: _still(check, what) and time.monotonic() > until, for_s + 10, every_s=0.05)


def _still(check: Callable[[], bool], what: str) -> bool:
    assert check(), f"not true any more: {what}"
    return True


def boot_of(node: str) -> str:
    """A boot id of that node; the same in every test."""
    return f"00000000-0000-4000-8000-{int(node[-4:]):012d}"


@contextmanager
def site_on(cluster: RealSlurm, *, program: tuple[str, ...] = UP, **environ: str) -> Iterator[Site]:
    """A fresh site; afterwards nothing of it runs, and Slurm is as it was."""
    with scratch_folder(memory()) as folder:
        site = Site(cluster, folder, program=program, **environ)
        try:
            with site:
                yield site
        except BaseException:
            keep_logs(site)
            raise


def keep_logs(site: Site) -> None:
    """After a failure the product's logs are what one reads."""
    print(f"\n--- healer up said:\n{site.stack.said()}")
    for log in sorted((site.stack.data_dir / "log").glob("*.log")):
        print(f"--- {log.name}:\n{log.read_text(errors='replace')[-3000:]}")


@pytest.fixture
def site(real_slurm: RealSlurm) -> Iterator[Site]:  # noqa: F811
    """A fresh site in mode auto with the default guards and a settling time of 0.5 s."""
    with site_on(real_slurm) as one:
        yield one
