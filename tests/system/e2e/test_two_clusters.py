"""One healer for two real Slurms with nodes of the same names: what is away or stormy disturbs no other."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from healer.adapters.slurm.cli_client import CliScheduler
from healer.embedded import embedded_slurm as slurm
from tests.support.breakable_slurm import BreakableSlurm
from tests.support.site import PCI, XID_79, boot_of
from tests.support.stack import scratch_folder
from tests.support.up import Stack
from tests.support.wait import wait_until

pytestmark = pytest.mark.slurm

CLUSTERS = ("pod1", "pod2")
#: Four nodes are few for shares: these let all of them go, and leave the breaker's three roots.
WIDE: Any = {
    "HEALER_GUARD_MAX_SHARE": "1.0",
    "HEALER_GUARD_SHARE_PER_HOUR": "1.0",
    "HEALER_GUARD_RACK_SHARE": "1.0",
    "HEALER_GUARD_PARTITION_SHARE": "1.0",
    "HEALER_GUARD_MIN_SERVICE_SHARE": "0",
}


class Two:
    """Both Slurms, and `healer up` over them."""

    def __init__(self, folder: Path) -> None:
        self.slurms = {
            name: BreakableSlurm(folder / name, 4, conf={"ClusterName": name, "SlurmdTimeout": "300"})
            for name in CLUSTERS
        }
        file = folder / "healer.toml"
        file.write_text(
            "".join(
                f'[clusters.{name}]\nSLURM_CONF = "{one.slurm_conf}"\nHEALER_SLURM_ADAPTERS = "cli"\n'
                for name, one in self.slurms.items()
            )
        )
        self.stack = Stack(folder, HEALER_MODE="auto", HEALER_SETTLE_S="0.5", HEALER_CONFIG=str(file), **WIDE)
        self._seq = 0

    def start(self) -> None:
        token = self.stack.token("viewer")
        self.stack.environ["HEALER_TOKEN"] = token  # for what is typed at the terminal
        bearer = {"Authorization": f"Bearer {token}"}
        self.api = httpx.Client(base_url=f"{self.stack.url}/api/v1", headers=bearer, timeout=20)
        self.sender = self.stack.headers("signals")
        self.operator = self.stack.headers("operator")

    def fault(self, cluster: str, node: str) -> None:
        """The node's kernel log reports a lost GPU; the sender's token is unrestricted."""
        assert self.send(node, cluster=cluster).json()["accepted"] == 1

    def send(self, node: str, **about: str) -> httpx.Response:
        self._seq += 1
        line = XID_79.format(pci=PCI[0])
        entry = {"time": datetime.now(UTC).isoformat(), "seq": self._seq, "line": line}
        body = {"node": node, "boot_id": boot_of(node), "entries": [entry], **about}
        return httpx.post(
            f"{self.stack.url}/api/v1/signals/kernel-log", json=body, headers=self.sender, timeout=20
        )

    def previews(self, cluster: str) -> int:
        """The status of what a person sees before a drain: Slurm itself is asked for it."""
        body = {"node": "gpu0004", "cluster": cluster, "dry_run": True}
        url = f"{self.stack.url}/api/v1/playbooks/drain/runs"
        return httpx.post(url, json=body, headers=self.operator, timeout=20).status_code

    def get(self, path: str, **query: str) -> Any:
        answer = self.api.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def drained(self, cluster: str) -> list[str]:
        """By Slurm's own word, nodes that healer drained there."""
        nodes = CliScheduler(str(self.slurms[cluster].slurm_conf)).snapshot().nodes.values()
        return sorted(one.name for one in nodes if one.drain and one.reason.startswith("healer:"))

    def drains(self, cluster: str, node: str) -> None:
        wait_until(lambda: node in self.drained(cluster), 20, what=f"{node} of {cluster} is drained")

    def ready(self) -> tuple[int, dict[str, Any]]:
        answer = self.stack.http.get(f"{self.stack.url}/readyz", timeout=10)
        return answer.status_code, answer.json()["checks"]

    def away(self, cluster: str) -> dict[str, Any] | None:
        """What /readyz says of its controller while that is away."""
        troubles = self.ready()[1][f"slurm {cluster}"].get("troubles", ())
        return next((one for one in troubles if one["what"] == "away"), None)

    def breaker(self, cluster: str) -> str:
        return self.get("/breaker", cluster=cluster)["state"]


@pytest.fixture
def two() -> Iterator[Two]:
    why_not = slurm.available()
    if why_not:
        pytest.fail(f"These tests need a real Slurm. {why_not}", pytrace=False)
    with scratch_folder() as folder:
        one = Two(folder)
        try:
            for cluster in one.slurms.values():
                cluster.start()
            # pod2 is away from the very start: the others must not wait for it.
            one.slurms["pod2"].kill_controller()
            with one.stack:
                one.start()
                yield one
                one.api.close()
        finally:
            print(one.stack.said() if one.stack.output.exists() else "")
            for cluster in one.slurms.values():
                cluster.stop()


def test_two_clusters_of_one_healer(two: Two) -> None:
    a_cluster_that_was_never_seen_disturbs_no_other(two)
    nodes_of_the_same_name_are_two(two)
    one_goes_away_and_the_other_has_its_storm(two)


def a_cluster_that_was_never_seen_disturbs_no_other(two: Two) -> None:
    assert {
        "detector-pod1",
        "detector-pod2",
        "worker-pod1",
        "scheduler-pod2",
        "api",
    } <= two.stack.pids().keys()
    two.fault("pod1", "gpu0001")
    two.drains("pod1", "gpu0001")
    wait_until(lambda: two.away("pod2"), 20, what="pod2 is reported to be away")
    status, checks = two.ready()
    assert status == 200
    assert checks["slurm pod1"]["ok"] and not checks["slurm pod2"]["ok"]
    assert two.send("gpu0001", cluster="pod2").status_code == 503  # its senders try again
    two.slurms["pod2"].start_controller()
    wait_until(lambda: two.ready()[1]["slurm pod2"]["ok"], 20, what="pod2 is seen")


def nodes_of_the_same_name_are_two(two: Two) -> None:
    assert two.drained("pod2") == []
    said = two.send("gpu0002").json()
    assert said["accepted"] == 0 and "cluster: missing" in said["rejected"][0]["reason"]
    assert [one["cluster"] for one in two.get("/nodes", q="gpu0001")["items"]] == ["pod1", "pod2"]
    assert [one["cluster"] for one in two.get("/incidents")["items"]] == ["pod1"]
    assert two.get("/incidents", cluster="pod2")["items"] == []
    assert two.get("/nodes/pod2/gpu0001")["verdict"] == "healthy"
    assert two.get("/nodes/pod1/gpu0001")["verdict"] == "isolate"
    assert two.api.get("/reconcile").status_code == 422  # which cluster is never guessed
    bound = ("token", "create", "--role", "signals", "--node", "gpu0001")
    assert two.stack.run(*bound, check=False).returncode != 0
    two.stack.run(*bound, "--cluster", "pod2")
    shown = two.stack.run("nodes", "--search", "gpu0001").stdout
    assert "CLUSTER" in shown and "pod2" in shown


def one_goes_away_and_the_other_has_its_storm(two: Two) -> None:
    two.slurms["pod2"].kill_controller()
    away = wait_until(lambda: two.away("pod2"), 20, what="pod2 is away")
    assert away and away["since"] and two.away("pod1") is None
    assert (two.previews("pod1"), two.previews("pod2")) == (200, 409)
    two.fault("pod1", "gpu0002")
    two.drains("pod1", "gpu0002")
    two.fault("pod1", "gpu0003")  # the third root within 5 minutes
    wait_until(lambda: two.breaker("pod1") == "open", 20, what="the breaker of pod1 opens")
    assert two.breaker("pod2") == "closed"
    two.slurms["pod2"].start_controller()
    wait_until(lambda: two.away("pod2") is None, 30, what="pod2 is back")
    two.fault("pod2", "gpu0001")
    two.drains("pod2", "gpu0001")
    assert two.drained("pod2") == ["gpu0001"]
    (run,) = two.get("/runs", cluster="pod2")["items"]
    assert (run["cluster"], run["node"]) == ("pod2", "gpu0001")
