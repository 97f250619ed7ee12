"""What speaks for a hang beside step times: GPUs at rest, and links that went down."""

from datetime import timedelta

import pytest

from healer.detection.hang_evidence import at_rest, ports_down
from healer.detection.reported import REPORTS_KEPT as KEPT
from healer.model import Part, SlurmJob, Topology
from healer.observations.telemetry_windows import Telemetry
from healer.signals.wire import kernel_log_observations
from healer.sim.stores import MemoryColumns
from tests.support.loop import Site, name, rules_in, shipped
from tests.support.measured import CLUSTER, Sender, after, job, node, shown

HELD = {"n1": (0, 1), "n2": (0, 1)}
JOB = job("7", HELD)


class Nodes:
    """Two nodes with two GPUs each, measured every 10 s."""

    def __init__(self) -> None:
        self.book = MemoryColumns()
        self.sender, self.at_s = Sender(self.book), 0.0
        self.telemetry = Telemetry(CLUSTER, shipped().catalogue)

    def measure(self, seconds: float, values: dict[tuple[str, str, Part], float]) -> None:
        """By (node, signal, part)."""
        until_s = self.at_s + seconds
        while self.at_s < until_s:
            self.at_s += 10
            picture = shown(node("n1", gpus=2), node("n2", gpus=2), jobs=(JOB,), at_s=self.at_s)
            self.telemetry.show(picture, Topology(), after(self.at_s))
            reports = []
            for host in ("n1", "n2"):
                own = {(signal, part): value for (at, signal, part), value in values.items() if at == host}
                if own:
                    reports.append(self.sender.report(host, self.at_s, own))
            self.telemetry.update(reports, self.book, after(self.at_s))

    def gpus(
        self, seconds: float, util: float, power_w: float, *, nodes: tuple[str, ...] = ("n1", "n2")
    ) -> None:
        gpu_fields = {"gpu_util_percent": util, "power_w": power_w, "power_limit_w": 700.0}
        parts = [(host, signal, Part(gpu=gpu)) for host in nodes for gpu in (0, 1) for signal in gpu_fields]
        self.measure(seconds, {(host, signal, part): gpu_fields[signal] for host, signal, part in parts})

    def rests(self, held: SlurmJob = JOB) -> bool | None:
        return at_rest(self.telemetry, held, after(self.at_s))


@pytest.mark.parametrize(
    ("util", "power_w", "rests"), [(100, 650, False), (100, 200, True), (2, 90, True), (100, 350.1, False)]
)
def test_gpus_rest_when_idle_or_only_waiting_for_others(util: float, power_w: float, rests: bool) -> None:
    """NCCL's kernel spins at full use and little power."""
    site = Nodes()
    site.gpus(90, util, power_w)
    assert site.rests() is rests


def test_a_pause_of_less_than_a_minute_is_no_rest() -> None:
    site = Nodes()
    site.gpus(60, 100, 650)
    site.gpus(40, 0, 90)
    assert site.rests() is False
    site.gpus(60, 0, 90)
    assert site.rests() is True


def test_idleness_is_unknown_if_one_gpu_is_not_measured() -> None:
    site = Nodes()
    assert site.rests() is None
    site.gpus(90, 0, 90, nodes=("n1",))
    assert site.rests() is None
    site.gpus(90, 0, 90)
    assert site.rests() is True
    assert site.rests(job("7", {"n1": (0, 1, 5)})) is None
    site.at_s += 300
    assert site.rests() is None, "old figures say nothing of now"


def port(value: float, signal: str = "ib_state") -> dict[tuple[str, str, Part], float]:
    return {("n1", signal, Part(port="mlx5_0")): value}


@pytest.mark.parametrize(("signal", "up", "down"), [("ib_state", 4, 1), ("net_carrier", 1, 0)])
def test_a_port_that_was_up_and_is_down_went_down_just_now(signal: str, up: float, down: float) -> None:
    site = Nodes()
    site.measure(60, port(up, signal))
    assert ports_down(site.telemetry, ["n1", "n2"], after(site.at_s)) == {}
    site.measure(20, port(down, signal))
    found = ports_down(site.telemetry, ["n1", "n2"], after(site.at_s))
    assert found.keys() == {"n1"} and found["n1"].text == "port mlx5_0 went down"
    assert abs((found["n1"].at - after(70)).total_seconds()) <= 5
    site.measure(20, port(up, signal))
    assert ports_down(site.telemetry, ["n1", "n2"], after(site.at_s)) == {}


def test_a_port_that_never_was_up_did_not_go_down() -> None:
    site = Nodes()
    site.measure(60, port(1))
    assert ports_down(site.telemetry, ["n1"], after(site.at_s)) == {}


def test_a_line_of_a_link_that_is_down_is_kept_for_a_while() -> None:
    """It opens no incident: once it may be a switch that restarts."""
    site = Site(4, rules=rules_in())
    lines = ("mlx5_core 0000:5c:00.0 ibs1f0: Link down", "eth9: something else")
    entries = [{"line": line, "time": site.now.isoformat()} for line in lines]
    body = {"cluster": CLUSTER, "node": name(2), "entries": entries}
    parsed = kernel_log_observations(
        body, lambda *_: True, site.now, cluster=CLUSTER, book=shipped().kernel_lines
    )
    site.walk(*parsed.observations)
    assert site.picture.node_reports.keys() == {name(2)} and site.open_incidents == []
    assert "Link down" in site.picture.node_reports[name(2)].text
    site.clock.advance(KEPT.total_seconds() - 10)
    site.walk()
    assert site.picture.node_reports.keys() == {name(2)}
    site.clock.advance(timedelta(seconds=20).total_seconds())
    site.walk()
    assert site.picture.node_reports == {}
