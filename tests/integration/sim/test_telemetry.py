"""A simulated fleet's sensors: one seed, the same bytes; a planted fault shows where it was planted."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from healer.sim.fleet_steps import Pace
from healer.sim.sim_clock import SimClock
from healer.sim.sim_slurm import SimScheduler
from healer.sim.sim_telemetry import GPU_SIGNALS, Sent, SimTelemetry

pytestmark = pytest.mark.heavy

START = datetime(2026, 11, 20, 3, tzinfo=UTC)
TEMP, CLOCK = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_SM_CLOCK"


class Fleet:
    """Sixteen nodes, a job of eight; the other eight stay idle."""

    def __init__(self, seed: int = 7, **options: Any) -> None:
        self.clock = SimClock(START)
        self.slurm = SimScheduler("pod1", self.clock, 16)
        self.job = self.slurm.add_job(name="pretrain", nodes=8)
        names = list(self.slurm.snapshot().nodes)
        self.sensors = SimTelemetry("pod1", names, start=START, seed=seed, **options)
        self.sensors.quiet = True
        self.sensors.show(self.slurm.snapshot())

    def run(self, seconds: float, each: float = 5.0) -> list[Sent]:
        return [self.sensors.advance(self.clock.advance(each)) for _ in range(round(seconds / each))]

    def last(self, seconds: float) -> dict[str, dict[str, Any]]:
        """What each node sent last."""
        return {body["node"]: body for body in self.run(seconds)[-1].metrics}


def samples(sent: list[Sent]) -> list[dict[str, Any]]:
    return [row for one in sent for body in one.step_times for row in body["samples"]]


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others() -> None:
    def sent(seed: int) -> bytes:
        fleet = Fleet(seed)
        fleet.sensors.plant("thermal-throttle", "gpu0002", 3)
        return msgspec.json.encode(fleet.run(300))

    assert sent(1) == sent(1)
    assert sent(1) != sent(2)


def test_busy_and_idle_gpus_differ_as_real_ones_do() -> None:
    nodes = Fleet().last(300)
    busy, idle = nodes["gpu0001"]["gpu"], nodes["gpu0012"]["gpu"]
    assert set(busy) == set(GPU_SIGNALS)
    assert all(len(values) == 8 for values in busy.values())
    assert min(busy["DCGM_FI_DEV_POWER_USAGE"]) > 500 > 100 > max(idle["DCGM_FI_DEV_POWER_USAGE"])
    assert min(busy[TEMP]) > 50 > max(idle[TEMP])
    assert max(busy[TEMP]) < 75
    assert min(busy[CLOCK]) > 1650 > max(idle[CLOCK])


def test_the_slow_rank_computes_longest_and_all_wait_for_it() -> None:
    fleet = Fleet()
    fleet.sensors.plant("slow-gpu", "gpu0003", 5)
    rows = samples(fleet.run(300))
    step = max(row["step"] for row in rows)
    last = [row for row in rows if row["step"] == step]
    assert len(last) == 64
    slow = max(last, key=lambda row: row["compute_s"])
    assert (slow["node"], slow["gpu"]) == ("gpu0003", 5)
    assert slow["compute_s"] > 1.15 * sorted(row["compute_s"] for row in last)[32]
    assert len({row["step_s"] for row in last}) == 1
    assert slow["comm_s"] == min(row["comm_s"] for row in last)


def test_a_hot_gpu_is_throttled_only_while_it_works() -> None:
    fleet = Fleet()
    fleet.sensors.plant("thermal-throttle", "gpu0002", 1)
    fleet.sensors.plant("thermal-throttle", "gpu0012", 1)
    nodes = fleet.last(300)
    hot, idle = nodes["gpu0002"]["gpu"], nodes["gpu0012"]["gpu"]
    assert hot[TEMP][1] == hot["DCGM_FI_DEV_SLOWDOWN_TEMP"][1]
    assert hot[CLOCK][1] < 0.8 * hot[CLOCK][0]
    assert hot["DCGM_FI_DEV_THERMAL_VIOLATION"][1] > 1e10
    assert hot["DCGM_FI_DEV_THERMAL_VIOLATION"][0] == 0
    assert idle["DCGM_FI_DEV_THERMAL_VIOLATION"][1] == 0


def _grows(name: str) -> Callable[[dict[str, Any], dict[str, Any]], bool]:
    return lambda faulty, well: faulty["gpu"][name][2] > 10 > well["gpu"][name][2]


def _shows(name: str, value: float) -> Callable[[dict[str, Any], dict[str, Any]], bool]:
    return lambda faulty, well: faulty["gpu"][name][2] == value != well["gpu"][name][2]


@pytest.mark.parametrize(
    ("fault", "gpu", "shown"),
    [
        ("clock-low", 2, lambda faulty, well: faulty["gpu"][CLOCK][2] < 0.8 * well["gpu"][CLOCK][2]),
        ("ecc-uncorrectable", 2, _grows("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL")),
        ("remap-pending", 2, _shows("DCGM_FI_DEV_ROW_REMAP_PENDING", 1)),
        ("remap-failed", 2, _shows("DCGM_FI_DEV_ROW_REMAP_FAILURE", 1)),
        ("pcie-width", 2, _shows("DCGM_FI_DEV_PCIE_LINK_WIDTH", 8)),
        ("pcie-replays", 2, _grows("DCGM_FI_DEV_PCIE_REPLAY_COUNTER")),
        ("nvlink-crc", 2, _grows("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL")),
        ("gpu-missing", 2, lambda faulty, well: faulty["gpu"][TEMP][2] is None and well["gpu"][TEMP][2]),
        (
            "ib-errors",
            None,
            lambda faulty, well: (
                faulty["ports"]["mlx5_0/1"]["node_infiniband_symbol_error_total"]
                > 100 + well["ports"]["mlx5_0/1"]["node_infiniband_symbol_error_total"]
            ),
        ),
    ],
)
def test_a_planted_fault_shows_where_it_was_planted_and_goes_with_its_repair(
    fault: str, gpu: int | None, shown: Callable[[dict[str, Any], dict[str, Any]], bool]
) -> None:
    fleet = Fleet()
    fleet.sensors.plant(fault, "gpu0003", gpu)
    nodes = fleet.last(200)
    assert shown(nodes["gpu0003"], nodes["gpu0004"])
    fleet.sensors.mend("gpu0003")
    fleet.sensors.reboot("gpu0003")
    nodes = fleet.last(200)
    assert not shown(nodes["gpu0003"], nodes["gpu0004"])


def test_a_silent_sensor_sends_nothing_and_a_booting_node_nothing_for_a_while() -> None:
    fleet = Fleet()
    fleet.sensors.plant("sensor-gone", "gpu0001")
    fleet.sensors.reboot("gpu0002")
    first, *_, last = ({body["node"] for body in sent.metrics} for sent in fleet.run(60))
    assert not {"gpu0001", "gpu0002"} & first
    assert "gpu0001" not in last
    assert "gpu0002" in last


def test_a_requeued_job_goes_on_from_its_last_checkpoint() -> None:
    fleet = Fleet(pace=Pace(checkpoint_every=10))
    sent = fleet.run(150)
    saved = [body for one in sent for body in one.checkpoints]
    assert [body["step"] for body in saved] == [10, 20]
    assert all(body["durable"] and body["job"] == fleet.job for body in saved)
    fleet.slurm.requeue(fleet.job)
    fleet.clock.advance(200)
    fleet.sensors.show(fleet.slurm.snapshot())
    rows = samples(fleet.run(60))
    assert min(row["step"] for row in rows) == 21
    assert {body["restart"] for one in fleet.run(60) for body in one.step_times} == {1}


def test_a_hung_job_makes_no_step_until_it_lives_again() -> None:
    fleet = Fleet()
    fleet.run(60)
    fleet.sensors.hang(fleet.job, (3, 4))
    rows = samples(fleet.run(60))
    assert rows and all("open_s" in row and "step_s" not in row for row in rows)
    ends = {row["rank"]: row["doing"] for row in rows if row["time"] == rows[-1]["time"]}
    assert {rank for rank, doing in ends.items() if doing != "collective"} == {3, 4}
    fleet.sensors.go_on(fleet.job)
    assert any("step_s" in row for row in samples(fleet.run(60)))


def test_harmless_trouble_of_scraping_comes_and_no_sample_is_invented() -> None:
    clock = SimClock(START)
    sensors = SimTelemetry("pod1", [f"n{one}" for one in range(1000)], start=START, seed=3)
    sent = [sensors.advance(clock.advance(15)) for _ in range(20)]
    stamps = [(body["node"], body["time"]) for one in sent for body in one.metrics]
    assert len(stamps) == len(set(stamps))
    assert 0 < 20_000 - len(stamps) < 60
    late = [body for one in sent for body in one.metrics if body["time"] < one.at.isoformat()[:19]]
    assert late


@pytest.mark.parametrize(
    ("fault", "node", "gpu"),
    [
        ("rust", "gpu0001", None),
        ("slow-gpu", "gpu9999", 0),
        ("slow-gpu", "gpu0001", 8),
        ("slow-gpu", None, None),
    ],
)
def test_unknown_fault_node_or_gpu_cannot_be_planted(fault: str, node: str | None, gpu: int | None) -> None:
    with pytest.raises(ValueError, match=r"fault|node|GPU"):
        Fleet().sensors.plant(fault, node, gpu)
