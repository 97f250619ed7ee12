"""Rules over the fleet: when they fire, what they report, what is clear, what a restart and a reload keep."""

from collections.abc import Iterator

import msgspec
import pytest

from healer.detection.measured import MOST_AT_ONCE, RuleEngine
from healer.model import (
    Cause,
    Component,
    DetectionRule,
    Detections,
    FaultClass,
    Finding,
    Part,
    Scope,
    Sense,
    Severity,
)
from tests.support.language_fleet import Fleet
from tests.support.looks import look

HOT = Component(cluster="c", node="n1", gpu=2)
CALM, WARM = [1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 9.0, 1.0]


def rule(when: str = "heat > 5", **fields: object) -> DetectionRule:
    made = DetectionRule(
        name="hot",
        title="Hot",
        when=when,
        scope=Scope.gpu,
        severity=Severity.P3,
        fault_class=FaultClass.degraded,
        cause=Cause.unclear,
        source="test",
    )
    return msgspec.structs.replace(made, **fields)


class Site:
    """A fleet and an engine that ticks."""

    def __init__(self, *rules: DetectionRule, **fleet: object) -> None:
        self.fleet = Fleet(**fleet)  # type: ignore[arg-type]
        self.engine = RuleEngine(rules, self.fleet.catalogue)
        self.watched: list[tuple[str, Component]] = []
        self.sensed = self.tick()

    def tick(
        self, heat: list[float] | None = None, *, seconds: float = 5.0, **more: list[float]
    ) -> Detections:
        """`heat` of n1's GPUs, None: nothing comes."""
        self.fleet.after(seconds)
        series = ({"heat": heat} if heat else {}) | more
        if series:
            self.fleet.send_gpus("n1", **series)
        self.sensed = self.engine.tick(look(self.fleet.now, self.fleet.telemetry, watched=self.watched))
        return self.sensed

    def found(self, heat: list[float] | None, times: int) -> Iterator[tuple[int, Finding]]:
        """(tick, finding) of so many ticks."""
        for number in range(times):
            for finding in self.tick(heat).findings:
                yield number, finding


def test_reported_once_held_and_again_every_five_minutes() -> None:
    site = Site(rule(for_s=30))
    repeats = list(site.found(WARM, 140))
    assert [number for number, _ in repeats] == [6, 66, 126]
    assert {finding.component for _, finding in repeats} == {HOT}
    digests = {finding.evidence[0].digest for _, finding in repeats}
    assert len(digests) == 1
    first = repeats[0][1]
    assert (first.rule, first.fault, first.fault_class) == ("hot", "hot", FaultClass.degraded)
    assert (first.evidence[0].sense, first.evidence[0].at) == (Sense.metrics, first.at)


def test_gap_restarts_the_hold() -> None:
    site = Site(rule(for_s=30))
    assert list(site.found(WARM, 6)) == []
    assert list(site.found(CALM, 1)) == []
    assert list(site.found(WARM, 6)) == []
    assert len(list(site.found(WARM, 1))) == 1


def test_the_unknown_counts_for_nothing_and_ends_a_hold_in_the_end() -> None:
    # `heat` is unknown 90 s after its last sample.
    site = Site(rule(for_s=200))
    list(site.found(WARM, 13))
    list(site.found(None, 18 + 20))  # known for 90 s more, then unknown for 100 s
    number, _ = next(site.found(WARM, 60))
    assert 8 <= number <= 12  # of 200 s it had held 150
    site = Site(rule(for_s=200))
    list(site.found(WARM, 13))
    list(site.found(None, 18 + 45))  # unknown for longer than its `for`
    assert next(site.found(WARM, 60))[0] == 40


def test_clear_is_what_is_known_false() -> None:
    site = Site(rule())
    site.tick(WARM)
    assert site.sensed.clear_since == {}
    site.tick(CALM)
    since = site.fleet.now
    assert site.sensed.clear_since == {("hot", HOT): since}
    site.tick(CALM)
    assert site.sensed.clear_since == {("hot", HOT): since}
    site.tick(None, seconds=200)
    assert site.sensed.clear_since == {}


def test_watched_incident_is_also_cleared_after_a_restart() -> None:
    site = Site(rule())
    node = Component(cluster="c", node="n1")
    with_pci = msgspec.structs.replace(HOT, pci="0000:9b:00")
    site.watched = [
        ("hot", with_pci),
        ("hot", node),
        ("other", node),
        ("hot", Component(cluster="c", node="x")),
    ]
    site.tick(CALM)
    assert site.sensed.clear_since == {("hot", with_pci): site.fleet.now, ("hot", node): site.fleet.now}
    site.tick([9.0, 1.0, 1.0, 1.0])
    assert set(site.sensed.clear_since) == {("hot", with_pci)}
    site.watched = []
    site.tick(CALM)
    assert set(site.sensed.clear_since) == {("hot", Component(cluster="c", node="n1", gpu=0))}


def test_holds_survive_a_restart_that_rebuilds_the_windows() -> None:
    site = Site(rule(for_s=60))
    for _ in range(10):
        site.fleet.after(5)
        site.fleet.send_gpus("n1", heat=WARM)
        site.engine.prime(site.fleet.telemetry, site.fleet.now)
    assert [number for number, _ in site.found(WARM, 5)] == [2]


def test_a_reload_keeps_what_the_unchanged_rules_hold() -> None:
    same, other = rule(for_s=60), rule(name="warm", for_s=60)
    site = Site(same, other)
    assert list(site.found(WARM, 12)) == []
    changed = msgspec.structs.replace(other, when="heat > 4")
    site.engine = RuleEngine([same, changed], site.fleet.catalogue, before=site.engine)
    assert [finding.rule for _, finding in site.found(WARM, 3)] == ["hot"]


def test_the_figures_and_the_chart() -> None:
    site = Site(
        rule(
            "heat > 2 * peers(heat)",
            title="Hotter than its peers",
            for_s=10,
            threshold="2 * peers(heat)",
            evidence=("work", "state", "reasons", "flag", "errors", "load"),
        )
    )
    for _ in range(4):
        site.fleet.send(
            "n1", {("state", Part(gpu=2)): 1, ("reasons", Part(gpu=2)): 4, ("flag", Part(gpu=2)): 1}
        )
        site.fleet.send("n2", {("heat", Part(gpu=gpu)): 3.0 for gpu in range(4)})
        site.tick([3.0, 3.0, 9.0, 3.0], work=[1.5, 1.5, 1234.0, 1.5])
        if site.sensed.findings:
            break
    (finding,) = site.sensed.findings
    assert finding.text == (
        "Hotter than its peers: the heat 9 (peers 3, limit 6), the work 1,234, the state Bad, "
        "the reasons hot, the flag yes, the errors unknown, the load unknown; for 10 s"
    )
    (chart,) = finding.charts
    roles = {line.role: line for line in chart.lines}
    assert set(roles) == {"own", "peers", "low", "high", "threshold"}
    assert {value for value in roles["own"].values if value is not None} == {9.0}
    assert set(roles["peers"].values) == {3.0}
    assert roles["threshold"].values == (6.0,) * len(chart.times)
    assert (chart.signal, chart.node, chart.gpu, chart.title) == ("heat", "n1", 2, "The heat, n1 GPU 2")
    assert chart.marks[0].at == finding.at


def test_a_counter_is_drawn_as_a_rate_or_as_growth() -> None:
    per_s = rule("rate(errors, 1m) > 0.5", signal="errors", threshold="0.5/1s")
    grown = rule("delta(errors, 1m) > 10", name="grown", signal="errors", threshold="10")
    site = Site(per_s, grown)
    by_rule: dict[str, Finding] = {}
    for number in range(12):
        for finding in site.tick(None, errors=[0.0, 0.0, number * 10.0, 0.0]).findings:
            by_rule.setdefault(finding.rule, finding)
    rates = next(line for line in by_rule["hot"].charts[0].lines if line.role == "own")
    assert by_rule["hot"].charts[0].unit == "count/s"
    assert [value for value in rates.values if value] == [2.0] * (len([v for v in rates.values if v]))
    growth = next(line for line in by_rule["grown"].charts[0].lines if line.role == "own")
    assert growth.values[-1] == max(value for value in growth.values if value is not None) >= 20
    assert "the errors +" in by_rule["hot"].text


def test_a_job_and_a_switch() -> None:
    job = rule("share_of(heat > 5) >= 0.5", name="job-hot", scope=Scope.job, signal="heat")
    switch = rule("count_of(heat > 5) >= 4", name="switch-hot", scope=Scope.switch, signal="heat")
    site = Site(job, switch)
    site.tick([9.0, 9.0, 9.0, 9.0])
    found = {finding.rule: finding for finding in site.sensed.findings}
    assert found["job-hot"].jobs == ("1",)
    assert found["job-hot"].component == Component(cluster="c", job="1")
    assert found["switch-hot"].component == Component(cluster="c", switch="s1")
    assert {one.node for one in found["switch-hot"].affected} == {"n1", "n2"}
    assert {line.role for line in found["job-hot"].charts[0].lines} == {"own", "low", "high"}


def test_rules_for_other_models_are_silent_and_clear() -> None:
    site = Site(rule(models=("a100*",)), rule(name="ours", models=("H1*",)))
    site.watched = [("hot", HOT)]
    site.tick(WARM)
    assert [finding.rule for finding in site.sensed.findings] == ["ours"]
    assert set(site.sensed.clear_since) == {("hot", HOT)}


def test_storm_is_reported_over_several_ticks() -> None:
    site = Site(rule(), names=[f"n{number}" for number in range(1, 30)])
    components: list[Component] = []
    counts = []
    for _ in range(4):
        for name in site.fleet.names:
            site.fleet.send_gpus(name, heat=[9.0] * 4)
        sensed = site.tick([9.0] * 4)
        counts.append(len(sensed.findings))
        components += [finding.component for finding in sensed.findings]
    assert counts == [MOST_AT_ONCE, MOST_AT_ONCE, 116 - 2 * MOST_AT_ONCE, 0]
    assert len(set(components)) == 116


def test_a_node_that_slurm_no_longer_shows_is_not_judged() -> None:
    site = Site(rule())
    from healer.model import SlurmNode, SlurmSnapshot, Topology

    node = SlurmNode(name="n2", state=("IDLE",), gpus=4, gpu_model="h100")
    left = SlurmSnapshot(cluster="c", taken_at=site.fleet.after(5), nodes={"n2": node})
    site.fleet.telemetry.show(left, Topology())
    assert site.tick(WARM).findings == ()


@pytest.mark.parametrize("field", ["when", "threshold"])
def test_a_changed_expression_is_a_changed_rule(field: str) -> None:
    site = Site(rule(for_s=60, threshold="5"))
    list(site.found(WARM, 12))
    changed = msgspec.structs.replace(
        rule(for_s=60, threshold="5"), **{field: "heat > 6" if field == "when" else "6"}
    )
    site.engine = RuleEngine([changed], site.fleet.catalogue, before=site.engine)
    assert list(site.found(WARM, 3)) == []


# --- samples, silence, and a node that came back ---


def test_one_sample_and_then_silence_holds_for_no_time() -> None:
    site = Site(rule(for_s=30))
    assert list(site.found(WARM, 1)) == []
    assert list(site.found(None, 16)) == []  # true of the last 80 s, by one sample
    assert [number for number, _ in site.found(WARM, 1)] == [0]


def test_two_samples_as_far_apart_as_the_rule_asks_are_enough() -> None:
    site = Site(rule(for_s=30))
    ticks: list[int] = []
    for number in range(12):
        ticks += [number for _ in site.tick(WARM if number % 6 == 0 else None).findings]
    assert ticks == [6]


def test_another_signal_makes_no_sample_newer() -> None:
    site = Site(rule("heat > 5 and work > 1", signal="heat", for_s=30))
    findings: list[Finding] = []
    for number in range(16):
        findings += site.tick(WARM if number == 0 else None, work=[2.0] * 4).findings
    assert findings == []


def test_silence_itself_may_hold() -> None:
    site = Site(rule("age(heat) > 60s", for_s=30))
    site.tick(WARM)
    assert [finding.component.gpu for _, finding in site.found(None, 24)] == [0, 1, 2, 3]


def test_a_sample_of_a_part_and_of_the_node_hold_for_their_rules() -> None:
    node = rule("any_of(heat > 5)", name="any-hot", scope=Scope.node, for_s=20, signal="heat")
    gpu = rule("heat > 5 and load > 3", name="hot-and-busy", for_s=20)
    site = Site(node, gpu)
    fired: set[str] = set()
    for _ in range(6):
        site.fleet.send("n1", {("load", Part()): 9.0})
        fired |= {finding.rule for finding in site.tick(WARM).findings}
    assert fired == {"any-hot", "hot-and-busy"}


def test_condition_held_on_a_returned_node_restarts_as_a_new_fact() -> None:
    shared = rule("share(heat > 5, 1m) > 0.9", name="often-hot", signal="heat")
    site = Site(rule(for_s=30), shared)
    first = {finding.rule: finding for _, finding in site.found(WARM, 20)}
    assert set(first) == {"hot", "often-hot"}
    site.fleet.telemetry.forget("n1", site.fleet.now)
    site.engine.forget(site.fleet.telemetry, "n1", site.fleet.now)
    assert list(site.found(None, 3)) == []
    again = list(site.found(WARM, 20))
    numbers = {finding.rule: number for number, finding in reversed(again)}
    assert numbers == {"hot": 6, "often-hot": 5}
    for _, finding in again:
        assert finding.evidence[0].digest != first[finding.rule].evidence[0].digest


def test_a_node_that_came_back_leaves_the_holds_of_others() -> None:
    site = Site(rule(for_s=30))
    for _ in range(5):
        site.fleet.send_gpus("n2", heat=WARM)
        site.tick(WARM)
    site.fleet.telemetry.forget("n1", site.fleet.now)
    site.engine.forget(site.fleet.telemetry, "n1", site.fleet.now)
    nodes_found = []
    for _ in range(4):
        site.fleet.send_gpus("n2", heat=WARM)
        nodes_found += [finding.component.node for finding in site.tick(WARM).findings]
    assert nodes_found == ["n2"]


def test_value_unchanged_across_a_return_is_reported_again() -> None:
    """Nothing that the rule sees changes between the ticks before and after the return."""
    site = Site(rule(for_s=30))
    assert {finding.rule for _, finding in site.found(WARM, 10)} == {"hot"}
    site.fleet.telemetry.forget("n1", site.fleet.now)
    site.engine.forget(site.fleet.telemetry, "n1", site.fleet.now)
    assert {finding.rule for _, finding in site.found(WARM, 20)} == {"hot"}


def test_another_xid_of_a_gauge_is_another_event() -> None:
    """The last Xid stays until the next one comes: that one begins when it comes."""
    site = Site(rule("heat > 0", names_xid=True, signal="heat"))
    before = [finding for _ in range(3) for finding in site.tick([0.0, 0.0, 45.0, 0.0]).findings]
    assert [finding.fault for finding in before] == ["xid-45"]
    site.tick([0.0, 0.0, 79.0, 0.0])
    at = site.fleet.now
    later = [*site.sensed.findings, *site.tick([0.0, 0.0, 79.0, 0.0]).findings]
    assert [(finding.fault, finding.at) for finding in later] == [("xid-79", at)]
