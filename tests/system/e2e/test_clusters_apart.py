"""What belongs to one cluster touches no other: mode, pause, roles, breaker, Slurm that hangs, a federation.

One healer over four simulated Slurms, with nodes and jobs of the same names.
"""

import os
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from healer.model import SlurmJob, SlurmNode
from healer.settings import own_sim_socket
from healer.sim.sim_slurm import SimClient
from tests.support.site import PCI, WIDE_GUARDS, XID_79, boot_of
from tests.support.stack import scratch_folder
from tests.support.up import Stack
from tests.support.wait import wait_until

MODES = {"pod1": "auto", "pod2": "auto", "pod3": "auto", "quiet": "shadow"}
#: Roots of one fault class that open the breaker of 32 nodes.
ROOTS = 3


class Four:
    def __init__(self, stack: Stack) -> None:
        self.stack = stack

    def slurm(self, cluster: str) -> SimClient:
        return SimClient(own_sim_socket(self.stack.data_dir, cluster))

    def fault(self, cluster: str, node: str) -> None:
        """The GPU is lost; the line's sender is bound to the cluster."""
        line = XID_79.format(pci=PCI[0])
        entry = {"time": datetime.now(UTC).isoformat(), "seq": time.time_ns(), "line": line}
        body = {"cluster": cluster, "node": node, "boot_id": boot_of(node), "entries": [entry]}
        headers = self.stack.headers("signals", "--cluster", cluster, "--vouches", "kernel")
        sent = self.post("signals/kernel-log", headers, **body)
        assert sent == (202, 1), sent

    def post(self, path: str, headers: dict[str, str], **body: Any) -> tuple[int, Any]:
        """The status, and how many signals were accepted or the new thing's id."""
        answer = self.stack.http.post(f"{self.stack.url}/api/v1/{path}", json=body, headers=headers)
        return answer.status_code, answer.json().get("accepted", answer.json().get("id"))

    def get(self, path: str, headers: dict[str, str] | None = None, **query: str) -> Any:
        headers = headers or self.stack.headers("viewer")
        answer = self.stack.http.get(f"{self.stack.url}/api/v1/{path}", params=query, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def node(self, cluster: str, name: str) -> SlurmNode:
        return self.slurm(cluster).node(name)

    def job(self, cluster: str, name: str) -> SlurmJob:
        found = self.slurm(cluster).job(name)
        assert found is not None
        return found

    def drains(self, cluster: str, node: str) -> None:
        wait_until(lambda: self.node(cluster, node).drain, 20, what=f"{node} of {cluster} is drained")

    def holds(self, cluster: str, node: str, guard: str) -> None:
        """A run on the node waits for that guard."""

        def is_held() -> bool:
            found = self.get("incidents", cluster=cluster, node=node)["items"]
            decisions = [each for one in found for each in self.get(f"incidents/{one['id']}")["decisions"]]
            return any(
                answer["guard"] == guard and answer["kind"] != "allow"
                for decision in decisions
                for answer in decision["answers"]
            )

        wait_until(is_held, 20, what=f"{node} of {cluster} is held by {guard}")
        assert not self.node(cluster, node).drain


@pytest.fixture(scope="module")
def four() -> Iterator[Four]:
    with scratch_folder() as folder:
        file = folder / "healer.toml"
        tables = [
            f'[clusters.{name}]\nHEALER_SLURM_ADAPTERS = "sim"\nHEALER_MODE = "{mode}"\n'
            for name, mode in MODES.items()
        ]
        file.write_text("".join(tables))
        settings = WIDE_GUARDS | {"HEALER_BREAKER_SHARE": "0.05", "HEALER_SETTLE_S": "0.2"}
        with Stack(folder, HEALER_CONFIG=str(file), **settings) as stack:
            made = Four(stack)

            def all_seen() -> bool:
                checks = stack.http.get(f"{stack.url}/readyz", timeout=10).json()["checks"]
                return all(checks[f"slurm {name}"]["ok"] for name in MODES)

            wait_until(all_seen, 30, what="all Slurms are seen")
            yield made


def test_the_mode_of_one_cluster_is_no_other_ones(four: Four) -> None:
    four.fault("quiet", "gpu0001")
    four.fault("pod1", "gpu0001")
    four.drains("pod1", "gpu0001")
    four.holds("quiet", "gpu0001", "mode")


def test_a_pause_of_one_cluster_holds_no_other(four: Four) -> None:
    operator = four.stack.headers("operator")
    paused, name = four.post(
        "pauses", operator, scope="cluster", name="pod2", reason="a test of one cluster alone"
    )
    assert paused == 201
    four.fault("pod2", "gpu0001")
    four.fault("pod3", "gpu0001")
    four.drains("pod3", "gpu0001")
    four.holds("pod2", "gpu0001", "pause")
    url = f"{four.stack.url}/api/v1/pauses/{name}"
    ended = four.stack.http.request("DELETE", url, json={"reason": "over"}, headers=operator)
    assert ended.status_code < 300, ended.text
    four.drains("pod2", "gpu0001")


def test_roles_of_one_cluster_neither_see_nor_act_in_another(four: Four) -> None:
    here = four.stack.headers("operator", "--cluster", "pod1")
    assert {one["cluster"] for one in four.get("nodes", here)["items"]} == {"pod1"}
    assert {one["cluster"] for one in four.get("incidents", here)["items"]} == {"pod1"}
    drain = {"node": "gpu0032", "reason": "a test of roles"}
    assert four.post("playbooks/drain/runs", here, cluster="pod2", **drain)[0] == 403
    assert four.post("pauses", here, scope="cluster", name="pod2", reason="not mine")[0] == 403
    assert four.post("playbooks/drain/runs", here, cluster="pod1", **drain)[0] == 202
    four.drains("pod1", "gpu0032")
    assert not four.node("pod2", "gpu0032").drain
    admin = four.stack.headers("admin", "--cluster", "pod1")
    assert four.post("breaker/reset", admin, cluster="pod2", reason="not mine")[0] == 403
    # The mode of a rule is one for all clusters, as the files of rules are.
    assert four.post("rules/gpu-lost/mode", admin, mode="shadow", reason="not mine")[0] == 403
    sender = four.stack.headers("signals", "--cluster", "pod1", "--vouches", "kernel")
    entry = {"line": XID_79.format(pci=PCI[0])}
    assert four.post("signals/kernel-log", sender, cluster="pod2", node="gpu0009", entries=[entry])[0] == 403


def test_a_job_of_a_federation_is_requeued_in_the_cluster_where_it_runs(four: Four) -> None:
    """Slurm shows it in each cluster under one id: running in one, revoked in its origin."""
    sites = {"origin": "pod1", "siblings": ("pod1", "pod2")}
    job = four.slurm("pod2").add_job(required=["gpu0007"], **sites)
    copy = four.slurm("pod1").add_job(state="REVOKED", required=["gpu0007"], **sites)
    assert job == copy
    other = four.slurm("pod1").add_job(required=["gpu0007"])
    wait_until(lambda: four.job("pod2", job).state == "RUNNING", what="it runs")

    def is_seen() -> bool:
        answer = four.stack.http.get(
            f"{four.stack.url}/api/v1/jobs/pod2/{job}", headers=four.stack.headers("viewer")
        )
        return answer.status_code == 200 and answer.json()["nodes"] == ["gpu0007"]

    wait_until(is_seen, 20, what="healer sees where it runs")
    four.fault("pod2", "gpu0007")
    wait_until(lambda: four.job("pod2", job).restarts == 1, 20, what="it is requeued in pod2")
    assert (four.job("pod1", copy).state, four.job("pod1", copy).restarts) == ("REVOKED", 0)
    assert (four.job("pod1", other).state, four.job("pod1", other).restarts) == ("RUNNING", 0)
    assert not four.node("pod1", "gpu0007").drain


def test_a_slurm_that_hangs_delays_no_other_cluster(four: Four) -> None:
    slurm = four.stack.pids()["sim-slurm-quiet"]
    os.kill(slurm, signal.SIGSTOP)
    try:
        four.fault("quiet", "gpu0002")
        four.fault("pod1", "gpu0002")
        four.drains("pod1", "gpu0002")
        assert four.get("nodes", cluster="pod1")["items"]
    finally:
        os.kill(slurm, signal.SIGCONT)


def test_a_storm_of_one_cluster_opens_its_breaker_alone(four: Four) -> None:
    def state(cluster: str) -> str:
        return four.get("breaker", cluster=cluster)["state"]

    for number in range(ROOTS):
        four.fault("pod1", f"gpu00{10 + number}")
    wait_until(lambda: state("pod1") == "open", 20, what="the breaker of pod1 opens")
    assert {state(name) for name in ("pod2", "pod3", "quiet")} == {"closed"}
    four.fault("pod3", "gpu0003")
    four.drains("pod3", "gpu0003")
    reset, _ = four.post("breaker/reset", four.stack.headers("admin"), cluster="pod1", reason="looked at")
    assert reset == 200
    assert state("pod1") == "half_open"
