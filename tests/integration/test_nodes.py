"""What every `ports.NodeExec` must do: simulated nodes in this process and over their socket, and healer-node
behind a real sshd."""

import gzip
import hashlib
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import pytest

from healer.model import GpuActivity, GpuSeen, JobOnNode, JobStacks, RecorderFile, Stack
from healer.ports.node_exec import NodeError, NodeExec, NodeUnavailable
from healer.sim.nodes import FABRIC_MANAGER, NodesClient, NodesServer, SimNodes
from healer.sim.sim_clock import SimClock
from tests.support.node_ssh import SshNode, ssh_site
from tests.support.stand_ins import USER, StandIns

NODE = "gpu0007"
TAKES_S = 10.0


class World(Protocol):
    """What drives the nodes."""

    def plant(self, node: str, fault: str, /) -> None: ...
    def faults(self, node: str, /) -> list[str]: ...
    def restarts(self, node: str, /) -> int: ...
    def diagnoses(self, node: str, /) -> list[str]: ...
    def resets(self, node: str, /) -> list[str]: ...
    def collections(self, node: str, /) -> list[str]: ...


class Advancing(Protocol):
    def advance(self, seconds: float, /) -> object: ...


class Bench:
    """One way to reach the nodes, and the nodes themselves."""

    def __init__(self, nodes: NodeExec, world: World, clock: Advancing) -> None:
        self.nodes, self.world, self.clock = nodes, world, clock


class RealWorld:
    """A node behind sshd: `unreachable` ends its sshd, the rest is its programs' matter."""

    def __init__(self, node: SshNode) -> None:
        self._node, self._of = node, node.programs
        self.programs = node.programs

    def plant(self, node: str, fault: str) -> None:
        if fault == "unreachable":
            self._node.stop()
        self._of.plant(node, fault)

    def faults(self, node: str) -> list[str]:
        return self._of.faults(node)

    def restarts(self, node: str) -> int:
        return self._of.restarts(node)

    def diagnoses(self, node: str) -> list[str]:
        return self._of.diagnoses(node)

    def resets(self, node: str) -> list[str]:
        return self._of.resets(node)

    def collections(self, node: str) -> list[str]:
        return self._of.collections(node)


class RealClock:
    """The tests end when so much time has been let pass, however long it took."""

    def __init__(self, of: StandIns) -> None:
        self._of, self._passed_s = of, 0.0

    def advance(self, seconds: float) -> None:
        self._passed_s += seconds
        if self._passed_s >= TAKES_S:
            self._of.finish()
            for key in self._of.diagnoses(NODE):
                self._of.ended("diagnose-show", key)
            for key in self._of.resets(NODE):
                self._of.ended("gpu-reset-show", key)
            for key in self._of.collections(NODE):
                self._of.ended("collect-show", key)


@pytest.fixture(params=["in process", "socket", "ssh"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    if request.param == "ssh":
        with ssh_site(tmp_path / "site") as site:
            node = site.node(NODE)
            yield Bench(site.exec(), RealWorld(node), RealClock(node.programs))
        return
    clock = SimClock(datetime(2026, 11, 20, 3, tzinfo=UTC))
    world = SimNodes(clock, diagnosis_s=TAKES_S, gpus=2)
    if request.param == "in process":
        yield Bench(world, world, clock)
        return
    server = NodesServer(world, tmp_path / "nodes.sock")
    server.start()
    client = NodesClient(server.path)
    yield Bench(client, world, clock)
    client.close()
    server.stop()


def test_a_well_node_runs_its_services_and_its_fabric_is_up(bench: Bench) -> None:
    assert bench.nodes.service_active(NODE, FABRIC_MANAGER)
    assert bench.nodes.fabric_state(NODE).healthy
    assert bench.nodes.fabric_state(NODE).state == "Completed"


def test_a_restart_brings_a_dead_fabric_manager_back(bench: Bench) -> None:
    bench.world.plant(NODE, "fabric-manager")
    assert not bench.nodes.service_active(NODE, FABRIC_MANAGER)
    assert not bench.nodes.fabric_state(NODE).healthy
    bench.nodes.restart_service(NODE, FABRIC_MANAGER)
    assert bench.nodes.service_active(NODE, FABRIC_MANAGER)
    assert bench.nodes.fabric_state(NODE).healthy
    assert bench.world.faults(NODE) == []


def test_memory_is_reported_and_a_reset_applies_pending_remaps(bench: Bench) -> None:
    well = bench.nodes.memory_state(NODE)
    assert (well.gpus, well.faults) == (2, ())
    bench.world.plant(NODE, "remap-pending")
    state = bench.nodes.memory_state(NODE)
    assert state.gpus == 2 and "a row remap is pending" in state.faults[0]
    bench.nodes.start_reset(NODE, "r1:reset:0", "all")
    bench.clock.advance(TAKES_S)
    assert bench.nodes.memory_state(NODE).faults == ()


@pytest.mark.parametrize(("fault", "left"), [("remap-failed", 2), ("gpu-missing", 1)])
def test_damage_that_a_reset_cannot_fix_is_still_reported(bench: Bench, fault: str, left: int) -> None:
    bench.world.plant(NODE, fault)
    state = bench.nodes.memory_state(NODE)
    assert state.gpus == left
    assert any("row remap failed" in one for one in state.faults) == (fault == "remap-failed")


def test_a_restart_does_not_mend_a_broken_fabric(bench: Bench) -> None:
    bench.world.plant(NODE, "fabric")
    bench.nodes.restart_service(NODE, FABRIC_MANAGER)
    state = bench.nodes.fabric_state(NODE)
    assert (state.healthy, state.status) == (False, "NVLink failure")
    assert bench.nodes.service_active(NODE, FABRIC_MANAGER)


def test_the_restart_of_another_service_leaves_the_fabric_manager_dead(bench: Bench) -> None:
    bench.world.plant(NODE, "fabric-manager")
    bench.nodes.restart_service(NODE, "nvidia-dcgm")
    assert not bench.nodes.service_active(NODE, FABRIC_MANAGER)


def test_tests_run_for_a_while_and_then_report(bench: Bench) -> None:
    bench.nodes.start_diagnosis(NODE, "r1:validate")
    assert bench.nodes.diagnosis(NODE, "r1:validate") is None
    bench.clock.advance(TAKES_S)
    diagnosis = bench.nodes.diagnosis(NODE, "r1:validate")
    assert diagnosis is not None and diagnosis.passed and diagnosis.failed == ()


def test_tests_find_a_fault_of_the_hardware_and_name_it(bench: Bench) -> None:
    bench.world.plant(NODE, "slow-gpu-3")
    bench.nodes.start_diagnosis(NODE, "r1:validate")
    bench.clock.advance(TAKES_S)
    diagnosis = bench.nodes.diagnosis(NODE, "r1:validate")
    assert diagnosis is not None and not diagnosis.passed
    assert diagnosis.failed == ("slow-gpu-3",)


def test_repeated_key_starts_no_second_request(bench: Bench) -> None:
    bench.nodes.start_diagnosis(NODE, "r1:validate")
    bench.clock.advance(TAKES_S - 1)
    bench.nodes.start_diagnosis(NODE, "r1:validate")
    bench.clock.advance(1)
    assert bench.nodes.diagnosis(NODE, "r1:validate") is not None
    assert bench.world.diagnoses(NODE) == ["r1:validate"]


def test_a_key_that_was_never_started_is_an_error_and_no_result(bench: Bench) -> None:
    with pytest.raises(NodeError, match="has no request"):
        bench.nodes.diagnosis(NODE, "r2:validate")


def test_unresponsive_node_is_distinguished_from_a_refusing_one(bench: Bench) -> None:
    bench.world.plant(NODE, "unreachable")
    for call in (
        lambda: bench.nodes.restart_service(NODE, FABRIC_MANAGER),
        lambda: bench.nodes.service_active(NODE, FABRIC_MANAGER),
        lambda: bench.nodes.fabric_state(NODE),
        lambda: bench.nodes.start_diagnosis(NODE, "k"),
        lambda: bench.nodes.diagnosis(NODE, "k"),
        lambda: bench.nodes.second_look(NODE, SAID, None, 40),
        lambda: bench.nodes.job_stacks(NODE, "9"),
        lambda: bench.nodes.job_on_node(NODE, "9"),
    ):
        with pytest.raises(NodeUnavailable, match=NODE):
            call()


def test_socket_without_a_server_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NodeUnavailable, match="did not answer"):
        NodesClient(tmp_path / "nothing.sock").fabric_state(NODE)


def test_a_call_that_is_none_is_refused(tmp_path: Path) -> None:
    server = NodesServer(SimNodes(SimClock(datetime(2026, 11, 20, 3, tzinfo=UTC))), tmp_path / "n.sock")
    server.start()
    try:
        client = NodesClient(server.path)
        with pytest.raises(ValueError, match="no call named _node"):
            client._call("_node", NODE)
        client.close()
    finally:
        server.stop()


# --- a second look -----------------------------------------------------------------------------------------

RECORD = "NVRM: Xid (PCI:0000:10:00): 79, pid=4242, name=python3, GPU has fallen off the bus."
SAID = "nvrmxidpci0000100079"


def logs(bench: Bench, *records: str) -> None:
    """The node's kernel log, with these records; its driver has GPU 0."""
    if isinstance(bench.world, SimNodes | NodesClient):
        bench.world.keep_log(NODE, *records)
        return
    assert isinstance(bench.world, RealWorld)
    bench.world.programs.kmsg(*records)
    bench.world.programs.has_gpu("0000:10:00.0")


def test_a_second_look_finds_the_record_in_the_nodes_own_log(bench: Bench) -> None:
    logs(bench, "usb 1-1: new device", RECORD)
    seen = bench.nodes.second_look(NODE, SAID, "0000:10:00", 40)
    assert [record.text for record in seen.records] == [RECORD]
    assert seen.log_from_s == 0
    assert 0 <= seen.up_s - seen.records[0].at_s < 60


@pytest.mark.parametrize(("fault", "gpu"), [(None, GpuSeen.answers), ("gpu-missing", GpuSeen.lost)])
def test_second_look_without_a_record_reports_the_gpu(bench: Bench, fault: str | None, gpu: GpuSeen) -> None:
    logs(bench, "usb 1-1: new device")
    if fault is not None:
        bench.world.plant(NODE, fault)
    seen = bench.nodes.second_look(NODE, SAID, "0000:10:00", 40)
    assert (seen.records, seen.gpu) == ((), gpu)


def test_a_node_whose_log_cannot_be_read_says_so(bench: Bench) -> None:
    seen = bench.nodes.second_look(NODE, SAID, None, 40)
    assert (seen.log_from_s, seen.records, seen.gpu) == (None, (), GpuSeen.unknown)


# --- a job that hangs --------------------------------------------------------------------------------------


def hangs(bench: Bench) -> None:
    """Job 4711 has a rank on the node that is stuck in `wait`, and the recorder has written of it."""
    if isinstance(bench.world, SimNodes):
        at = datetime(2026, 11, 20, 3, tzinfo=UTC)
        gpu = GpuActivity(pci="00000000:10:00.0", util_percent=100, power_w=182.41, power_limit_w=700)
        files = (RecorderFile(rank=12, at=at, data=b"as pickled"),)
        stack = Stack(pid=11, threads={"MainThread": ("wait (work.py:12)", "step (train.py:9)")})
        shown = JobOnNode(processes=1, gpus=(gpu, gpu), dumps=files)
        bench.world.put_job(NODE, "4711", shown, JobStacks(processes=1, stacks=(stack,)))
        return
    assert isinstance(bench.world, RealWorld)
    programs = bench.world.programs
    programs.process(11, "python3", cgroup="/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0")
    programs.configure(RECORDER=str(programs.world / "rank_"))
    (programs.world / "rank_12").write_bytes(b"as pickled")
    os.chown(programs.world / "rank_12", USER, -1)


def test_job_stack_location_and_recorder_dumps_are_returned(bench: Bench) -> None:
    hangs(bench)
    stacks = bench.nodes.job_stacks(NODE, "4711")
    assert (stacks.processes, stacks.text) == (1, "")
    assert [(one.pid, one.threads["MainThread"][0]) for one in stacks.stacks] == [(11, "wait (work.py:12)")]
    seen = bench.nodes.job_on_node(NODE, "4711")
    assert [(one.rank, one.data) for one in seen.dumps] == [(12, b"as pickled")]
    assert [(one.util_percent, one.power_w, one.power_limit_w) for one in seen.gpus] == [
        (100, 182.41, 700)
    ] * 2
    assert seen.processes == 1


def test_a_job_that_is_not_on_the_node(bench: Bench) -> None:
    assert bench.nodes.job_stacks(NODE, "9").text == "job 9 has no Python process on this node"
    seen = bench.nodes.job_on_node(NODE, "9")
    assert (seen.processes, seen.dumps, seen.text) == (0, (), "job 9 has no process on this node")


# --- the reset of a GPU ------------------------------------------------------------------------------------


def test_a_reset_ends_what_a_reset_ends(bench: Bench) -> None:
    bench.world.plant(NODE, "gpu-hung")
    bench.nodes.start_reset(NODE, "r1", "0000:10:00.0")
    bench.nodes.start_reset(NODE, "r1", "0000:10:00.0")
    bench.clock.advance(TAKES_S)
    outcome = bench.nodes.reset(NODE, "r1")
    assert outcome is not None and outcome.passed, outcome
    assert "0000:10:00.0" in outcome.text
    assert bench.world.faults(NODE) == [] and bench.world.resets(NODE) == ["r1"]


def test_a_reset_that_does_not_work_says_so(bench: Bench) -> None:
    bench.world.plant(NODE, "gpu-hung")
    bench.world.plant(NODE, "reset-fails")
    bench.nodes.start_reset(NODE, "r1", "all")
    bench.clock.advance(TAKES_S)
    outcome = bench.nodes.reset(NODE, "r1")
    assert outcome is not None and not outcome.passed and "could not be reset" in outcome.text
    assert bench.world.faults(NODE) == ["gpu-hung", "reset-fails"]


def test_unrequested_reset_is_an_error_and_so_is_an_unreachable_node(bench: Bench) -> None:
    with pytest.raises(NodeError, match="has no request r9"):
        bench.nodes.reset(NODE, "r9")
    bench.world.plant(NODE, "unreachable")
    with pytest.raises(NodeUnavailable):
        bench.nodes.start_reset(NODE, "r1", "all")


# --- what is collected on it -------------------------------------------------------------------------------


def test_logs_are_collected_once_and_read_piece_by_piece(bench: Bench) -> None:
    bench.nodes.start_collection(NODE, "r1:collect:0")
    bench.nodes.start_collection(NODE, "r1:collect:0")
    bench.clock.advance(TAKES_S)
    bundle = bench.nodes.collection(NODE, "r1:collect:0")
    assert bundle is not None and any(part.startswith("dmesg: ") for part in bundle.parts)
    data = b""
    while piece := bench.nodes.read_collection(NODE, "r1:collect:0", len(data)):
        data += piece
    assert (len(data), hashlib.sha256(data).hexdigest()) == (bundle.size_bytes, bundle.sha256)
    text = gzip.decompress(data).decode()
    assert text.startswith("===== dmesg") and "s3cr3t" not in text
    assert bench.world.collections(NODE) == ["r1:collect:0"]


def test_unrequested_logs_are_an_error_and_so_is_an_unreachable_node(bench: Bench) -> None:
    with pytest.raises(NodeError, match="has no request r9"):
        bench.nodes.collection(NODE, "r9")
    bench.world.plant(NODE, "unreachable")
    with pytest.raises(NodeUnavailable):
        bench.nodes.start_collection(NODE, "r1")
