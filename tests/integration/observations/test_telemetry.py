"""What is kept of reports, against a slow reference that knows nothing of rings."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from healer.model import (
    Component,
    GpuModel,
    Part,
    Scope,
    SignalKind,
    SlurmJob,
    SlurmNode,
    Topology,
)
from healer.model.telemetry import Report
from healer.observations import telemetry_windows as module
from healer.observations.axes import GPUS_MAX
from healer.observations.report_order import ClockStepped
from healer.observations.telemetry_windows import Telemetry
from healer.sim.stores import MemoryColumns
from tests.support.measured import CLUSTER, Sender, after, catalogue, job, node, shown, signal

pytestmark = pytest.mark.heavy

GPU0, GPU1 = Part(gpu=0), Part(gpu=1)
HEAT, REPLAY = ("heat_c", GPU0), ("replay_total", GPU1)
PORT, NVLINK = ("crc_total", Part(port="eth0")), ("speed", Part(gpu=0, link=2))
LOAD, SWAPPED = ("load", Part()), ("swapped_total", Part())
SERIES = [HEAT, REPLAY, ("heat_c", GPU1), PORT, NVLINK, LOAD, SWAPPED]
COUNTERS = {"replay_total", "crc_total", "swapped_total"}
Series = tuple[str, str, Part]


class Site:
    """A telemetry and what writes its reports."""

    def __init__(self, gpu_models: tuple[GpuModel, ...] = ()) -> None:
        self.book = MemoryColumns()
        self.sender = Sender(self.book)
        self.telemetry = Telemetry(CLUSTER, catalogue(), gpu_models)

    def hear(self, *reports: Report) -> None:
        self.telemetry.update(reports, self.book)

    def say(self, at_s: float, values: dict[tuple[str, Part], float], *, name: str = "gpu0") -> None:
        self.hear(self.sender.report(name, at_s, values))

    def row(self, scope: Scope, node: str, part: Part) -> int | None:
        where = Component(cluster=CLUSTER, node=node, gpu=part.gpu, link=part.link, nic=part.port)
        return self.telemetry.axis(scope).row(where)


# --- against the reference ---


@dataclass
class Samples:
    """One series, as a dictionary by slot: the last value, or growth and seconds."""

    last: float = math.nan
    at_s: float = -math.inf
    slots: dict[int, float] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    #: Value before the last fall, and when.
    high: float = math.nan
    fell_s: float = -math.inf


class Reference:
    """Sample by sample, as the rules of the windows are written."""

    def __init__(self) -> None:
        self.series: dict[Series, Samples] = defaultdict(Samples)
        self.head = -(10**9)
        self.late = self.out_of_order = self.future = 0

    def update(self, batch: "list[Drawn]") -> None:
        dated = []
        for one in batch:
            ahead = one.at_s > one.arrived_s + 5
            self.future += ahead
            dated.append((one.arrived_s if ahead else one.at_s, one))
        dated.sort(key=lambda item: item[0])
        if dated:
            self.head = max(self.head, math.floor(dated[-1][0] / 5))
        sent: set[tuple[Series, float]] = set()
        for at_s, one in dated:
            for (name, part), value in one.values.items():
                if math.isnan(value):
                    continue
                if (again := ((one.node, name, part), at_s)) in sent:
                    self.out_of_order += 1  # twice of one moment, however old
                else:
                    sent.add(again)
                    self.take(self.series[one.node, name, part], name in COUNTERS, at_s, value)

    def take(self, series: Samples, counter: bool, at_s: float, value: float) -> None:
        slot = math.floor(at_s / 5)
        if slot <= self.head - 180:
            self.late += 1
            return
        if at_s <= series.at_s:
            self.out_of_order += 1
            return
        slight = counter and at_s - series.at_s <= 900 and 0 < series.last - value < max(1, series.last / 100)
        value = series.last if slight else value
        if not counter:
            series.slots[slot] = value
        elif at_s - series.at_s <= 900 and value < series.last:
            still = at_s - series.fell_s <= 900 and series.high > series.last
            series.high, series.fell_s = (series.high if still else series.last), at_s
        elif at_s - series.at_s <= 900:
            grew = value - series.last
            if series.last < series.high <= value and at_s - series.fell_s <= 900:
                grew = 0.0 if value - series.high < series.high - series.last else grew
                series.high = math.nan
            series.slots[slot] = series.slots.get(slot, 0.0) + grew
            series.seconds[slot] += at_s - series.at_s
        series.last, series.at_s = value, at_s

    def window(self, series: Samples, slots: int, end: int) -> list[float]:
        self.head = max(self.head, end)
        kept = range(self.head - 179, self.head + 1)
        return [
            series.slots.get(slot, math.nan) if slot in kept else math.nan
            for slot in range(end - slots + 1, end + 1)
        ]


@dataclass
class Drawn:
    node: str
    at_s: float
    arrived_s: float
    values: dict[tuple[str, Part], float]

    def __post_init__(self) -> None:
        self.arrived_s = min(self.arrived_s, self.at_s + 30)  # slow clocks: tests of their own


#: Quarters of a second, so that sums in binary fractions are exact.
MOMENTS = st.one_of(st.integers(0, 400), st.integers(0, 12_000)).map(lambda quarters: quarters / 4)
REPORTS = st.builds(
    Drawn,
    node=st.sampled_from(["gpu0", "gpu1"]),
    at_s=MOMENTS,
    arrived_s=MOMENTS,
    values=st.dictionaries(
        st.sampled_from(SERIES),
        st.one_of(st.just(math.nan), st.integers(0, 6).map(float)),
        min_size=1,
        max_size=5,
    ),
)


@given(
    batches=st.lists(st.lists(REPORTS, max_size=6), max_size=8),
    looks=st.lists(st.tuples(MOMENTS, st.sampled_from([1, 5, 60, 61, 897, 900])), min_size=1, max_size=4),
)
@example(  # two reports of one node in one slot and one batch: both count
    batches=[[Drawn("gpu0", at_s, at_s, {REPLAY: at_s}) for at_s in (1.0, 3.0, 2.0)]], looks=[(3.0, 60)]
)
@settings(max_examples=300, deadline=None)
def test_windows_growth_and_last_values_are_those_of_the_reference(
    batches: list[list[Drawn]], looks: list[tuple[float, float]]
) -> None:
    site, reference = Site(), Reference()
    zero_s = after(0).timestamp()
    assert zero_s % 5 == 0
    for batch in batches:
        site.hear(
            *(site.sender.report(one.node, one.at_s, one.values, arrived_s=one.arrived_s) for one in batch)
        )
        reference.update(batch)
    for now_s, seconds in looks:
        slots, end = math.ceil(seconds / 5), math.floor(now_s / 5)
        for (where, name, part), series in reference.series.items():
            scope = catalogue().signals[name].scope
            row = site.row(scope, where, part)
            assert row is not None
            expected = reference.window(series, slots, end)
            found = site.telemetry.window(name, seconds, after(now_s))
            np.testing.assert_array_equal(found[:, row], np.array(expected, np.float32))
            age_s = now_s - series.at_s
            fresh = series.last if -5 <= age_s <= 90 else math.nan
            np.testing.assert_array_equal(site.telemetry.value(name, after(now_s))[row], fresh)
            known_age = max(0.0, age_s) if math.isfinite(age_s) else math.nan
            np.testing.assert_array_equal(site.telemetry.age_s(name, after(now_s))[row], known_age)
            if name in COUNTERS:
                grew, covered = site.telemetry.increase(name, seconds, after(now_s))
                finite = [one for one in expected if not math.isnan(one)]
                np.testing.assert_array_equal(grew[row], sum(finite) if finite else math.nan)
                first = end - slots + 1
                watched = [
                    series.seconds[first + place] for place, one in enumerate(expected) if not math.isnan(one)
                ]
                assert covered[row] == sum(watched)
    counts = site.telemetry.counts
    assert (counts.late, counts.future) == (reference.late, reference.future)
    assert counts.out_of_order == reference.out_of_order


# --- what comes in ---


def test_a_request_sent_again_counts_once() -> None:
    site = Site()
    first, second = site.sender.report("gpu0", 0, {REPLAY: 10}), site.sender.report("gpu0", 5, {REPLAY: 14})
    site.hear(first, second)
    site.hear(first, second, second)
    grew, covered = site.telemetry.increase("replay_total", 60, after(5))
    assert (grew[0], covered[0]) == (4, 5)
    assert site.telemetry.counts.out_of_order == 3


def test_of_one_node_the_newest_moments_of_a_call_count_and_the_others_are_dropped() -> None:
    site = Site()
    many = [site.sender.report("gpu0", at_s, {HEAT: at_s, REPLAY: at_s}) for at_s in range(0, 500, 5)]
    site.hear(*many, site.sender.report("gpu1", 0, {HEAT: 7}))
    assert site.telemetry.counts.dropped == 2 * 92
    found = site.telemetry.window("heat_c", 900, after(495))
    row, other = site.row(Scope.gpu, "gpu0", GPU0), site.row(Scope.gpu, "gpu1", GPU0)
    assert found[:, row][~np.isnan(found[:, row])].tolist() == [460, 465, 470, 475, 480, 485, 490, 495]
    assert np.nansum(found[:, other]) == 7


def test_a_scrape_that_comes_in_many_pieces_is_one_moment() -> None:
    site = Site()
    ports = [("crc_total", Part(port=f"eth{number}")) for number in range(40)]
    for at_s in (0, 15):
        site.hear(*(site.sender.report("gpu0", at_s, {port: at_s, HEAT: at_s}) for port in ports))
    grew, _ = site.telemetry.increase("crc_total", 60, after(15))
    assert grew.tolist() == [15] * 40
    assert (site.telemetry.counts.dropped, site.telemetry.counts.out_of_order) == (0, 2 * 39)


# --- clocks ---


def test_samples_from_a_host_whose_clock_is_ahead_count_as_now() -> None:
    site = Site()
    ahead = site.sender.report("gpu0", 3600, {HEAT: 50}, arrived_s=3600)
    site.telemetry.update([ahead], site.book, after(10))
    assert site.telemetry.value("heat_c", after(10)).tolist() == [50]
    assert site.telemetry.counts.future == 1
    site.telemetry.update([site.sender.report("gpu1", 15, {HEAT: 60})], site.book, after(15))
    assert site.telemetry.value("heat_c", after(15)).tolist() == [50, 60]
    site.telemetry.check_clock(after(15))


def test_a_picture_from_a_host_whose_clock_is_ahead_is_of_now() -> None:
    site = Site()
    for taken_s, now_s, gpus in ((3600, 10, 8), (11, 20, 4)):
        site.telemetry.show(shown(node("gpu0", gpus=gpus), at_s=taken_s), Topology(), after(now_s))
    assert site.telemetry.value("slurm_gpus", after(20)).tolist() == [4]
    site.telemetry.check_clock(after(20))


def test_future_samples_are_unknown_and_reveal_a_clock_set_back() -> None:
    site = Site()
    site.say(100, {HEAT: 50})
    assert np.isnan(site.telemetry.value("heat_c", after(94.5))).all()
    site.telemetry.check_clock(after(92))
    with pytest.raises(ClockStepped, match="03:01:25"):
        site.telemetry.check_clock(after(85))


def lagging(site: Site, lags: Sequence[float]) -> None:
    """A report each 15 s, each so much older than its arrival; counts seconds of its own clock."""
    for step, lag_s in enumerate(lags):
        now_s = 15 * step
        report = site.sender.report("gpu0", now_s - lag_s, {HEAT: step, REPLAY: now_s}, arrived_s=now_s)
        site.telemetry.update([report], site.book, after(now_s))


@pytest.mark.parametrize("lag_s", [60, 100, 3600])
def test_a_node_with_a_slow_clock_is_heard_as_if_its_clock_were_right(lag_s: float) -> None:
    site = Site()
    lagging(site, [lag_s + step % 3 for step in range(40)])
    now = after(39 * 15)
    assert site.telemetry.slow_clocks == 1
    assert site.telemetry.value("heat_c", now)[0] == 39
    grew, covered = site.telemetry.increase("replay_total", 120, now)
    assert grew[1] / covered[1] == pytest.approx(1, rel=0.05)


def test_a_slow_clock_that_is_set_right_goes_on_at_once() -> None:
    site = Site()
    lagging(site, [100] * 40 + [0] * 4)
    assert site.telemetry.slow_clocks == 0
    now = after(43 * 15)
    assert site.telemetry.value("heat_c", now)[0] == 43
    grew, _ = site.telemetry.increase("replay_total", 5, now)
    assert grew[1] == 15


def test_a_backlog_that_is_being_sent_stays_as_old_as_it_is() -> None:
    site = Site()
    lagging(site, [800 - 14 * step for step in range(40)])
    assert site.telemetry.slow_clocks == 0
    assert np.isnan(site.telemetry.value("heat_c", after(39 * 15))[0])


def test_later_rows_do_not_move_existing_values() -> None:
    site = Site()
    for number in range(200):
        site.say(0, {HEAT: float(number), REPLAY: 0.0}, name=f"gpu{number}")
    site.say(5, {HEAT: -1.0}, name="gpu3")
    heat = site.telemetry.value("heat_c", after(5))
    expected = {f"gpu{number}": float(number) for number in range(200)} | {"gpu3": -1.0}
    for name, value in expected.items():
        row = site.row(Scope.gpu, name, GPU0)
        assert row is not None
        assert heat[row] == value


def test_unknown_or_impossible_series_are_counted_and_harm_no_others() -> None:
    site = Site()
    odd = {
        ("nobody_knows", GPU0): 1.0,
        ("heat_c", Part()): 1.0,  # a GPU's signal without a GPU
        ("heat_c", Part(gpu=GPUS_MAX)): 1.0,
        ("load", GPU0): 1.0,
        ("crc_total", GPU0): 1.0,  # a link's signal without link or port
        ("slurm_gpus", Part()): 1.0,  # never from the wire
    }
    site.say(0, odd | {HEAT: 40.0})
    counts = site.telemetry.counts
    assert (counts.samples, counts.unknown_columns) == (1, len(odd))
    assert site.telemetry.value("heat_c", after(0)).tolist() == [40.0]


def test_a_number_that_is_not_in_the_book_yet_is_asked_for_again() -> None:
    site, late = Site(), MemoryColumns()
    report = site.sender.report("gpu0", 0, {HEAT: 1.0})
    site.telemetry.update([report], late)
    assert site.telemetry.counts.unknown_columns == 1
    site.hear(site.sender.report("gpu0", 5, {HEAT: 2.0}))
    assert site.telemetry.value("heat_c", after(5)).tolist() == [2.0]


def test_numbers_that_cannot_be_columns_are_unknown() -> None:
    site = Site()
    report = site.sender.report("gpu0", 0, {HEAT: 1.0, REPLAY: 2.0, LOAD: 3.0})
    report.columns[:2] = (-1, 2**31 - 1)
    site.hear(report)
    assert site.telemetry.counts.unknown_columns == 2
    assert site.telemetry.value("load", after(0)).tolist() == [3.0]


def test_samples_of_another_cluster_are_dropped() -> None:
    site = Site()
    site.hear(site.sender.report("gpu0", 0, {HEAT: 1.0}, cluster="other"))
    assert site.telemetry.counts.dropped == 1
    assert site.telemetry.axis(Scope.node).n == 0


def test_an_empty_report_and_one_without_a_known_value_are_nothing() -> None:
    site = Site()
    site.say(0, {})
    site.say(0, {HEAT: math.nan})
    assert site.telemetry.counts.samples == 0


def test_signals_beyond_the_limit_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIGNALS_MAX", 1)
    site = Site()
    site.say(0, {HEAT: 1.0, REPLAY: 2.0, LOAD: 3.0})
    assert site.telemetry.counts.dropped == 1
    assert site.telemetry.value("heat_c", after(0)).tolist() == [1.0]
    assert np.isnan(site.telemetry.value("replay_total", after(0))).all()


def test_windows_of_an_axis_never_need_more_than_their_share_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BYTES_MAX", 180 * 10 * 10)  # ten rows of a gauge and a counter
    site = Site()
    site.say(0, {("heat_c", Part(gpu=gpu)): float(gpu) for gpu in range(8)} | {REPLAY: 1.0})
    site.say(0, {("heat_c", Part(gpu=gpu)): float(gpu) for gpu in range(8)}, name="gpu1")
    assert site.telemetry.axis(Scope.gpu).n == 10
    assert site.telemetry.counts.dropped == 6
    assert site.telemetry.value("heat_c", after(0)).tolist() == [*range(8), 0, 1]


# --- what is read ---


def test_catalogue_signal_without_senders_is_unknown_everywhere() -> None:
    site = Site()
    site.say(0, {HEAT: 1.0})
    assert np.isnan(site.telemetry.value("replay_total", after(0))).all()
    assert np.isnan(site.telemetry.age_s("replay_total", after(0))).all()
    assert np.isnan(site.telemetry.window("replay_total", 60, after(0))).all()
    grew, covered = site.telemetry.increase("replay_total", 60, after(0))
    assert np.isnan(grew).all()
    assert covered.tolist() == [0.0]


def test_names_and_windows_that_cannot_be_are_errors() -> None:
    site = Site()
    with pytest.raises(KeyError):
        site.telemetry.value("nobody_knows", after(0))
    with pytest.raises(ValueError, match="longer than 900 s"):
        site.telemetry.window("heat_c", 901, after(0))
    with pytest.raises(ValueError, match="heat_c is no counter"):
        site.telemetry.increase("heat_c", 60, after(0))


def test_a_value_of_a_bit_mask_is_exact() -> None:
    site = Site()
    site.telemetry = Telemetry(CLUSTER, catalogue(signal("mask", SignalKind.bits, Scope.gpu)))
    site.say(0, {("mask", GPU0): float(2**40 + 1)})
    assert site.telemetry.value("mask", after(0)).tolist() == [float(2**40 + 1)]


def test_slots_of_a_window_have_their_times() -> None:
    site = Site()
    assert (site.telemetry.times(15, after(12)) - after(0).timestamp()).tolist() == [0, 5, 10]


# --- Slurm ---


def value_by_node(site: Site, name: str, at_s: float) -> dict[str | None, float]:
    components = site.telemetry.axis(Scope.node).components()
    values = site.telemetry.value(name, after(at_s)).tolist()
    return {where.node: value for where, value in zip(components, values, strict=True)}


def see(site: Site, *nodes: SlurmNode, jobs: tuple[SlurmJob, ...] = (), at_s: float = 0.0) -> None:
    site.telemetry.show(shown(*nodes, jobs=jobs, at_s=at_s), Topology())


def test_slurm_picture_is_exposed_as_signals() -> None:
    site = Site()
    see(
        site,
        node("idle", gpus=4),
        node("part", gpus=8, state="MIXED"),
        node("whole", gpus=8, state="ALLOCATED+DRAIN"),
        node("down", state="DOWN"),
        node("mute", state="IDLE+NOT_RESPONDING"),
        node("cpu", gpus=0, model=""),
        jobs=(job("7", {"part": (0, 3)}), job("8", None, "whole"), job("9", {"part": ()})),
    )
    names = ("idle", "part", "whole", "down", "mute", "cpu")
    assert value_by_node(site, "slurm_gpus", 0) == dict(zip(names, (4, 8, 8, 8, 8, 0), strict=True))
    assert value_by_node(site, "slurm_allocated", 0) == dict(zip(names, (0, 1, 1, 0, 0, 0), strict=True))
    assert value_by_node(site, "slurm_gpus_allocated", 0) == dict(zip(names, (0, 2, 8, 0, 0, 0), strict=True))
    assert value_by_node(site, "slurm_drained", 0) == dict(zip(names, (0, 0, 1, 1, 1, 0), strict=True))


def test_cores_are_those_that_slurm_configures() -> None:
    site = Site()
    see(site, msgspec.structs.replace(node("told", gpus=4), cpus=128), node("untold", gpus=4))
    cores = value_by_node(site, "slurm_cpus", 0)
    assert cores["told"] == 128
    assert "untold" not in cores or cores["untold"] != cores["untold"]


def test_gpu_count_of_two_jobs_is_unknown_if_one_is_missing() -> None:
    site = Site()
    see(site, node("gpu0"), jobs=(job("7", {"gpu0": (0,)}), job("8", None, "gpu0")))
    assert math.isnan(value_by_node(site, "slurm_gpus_allocated", 0)["gpu0"])
    assert value_by_node(site, "slurm_allocated", 0) == {"gpu0": 1}


def test_a_picture_that_grew_old_is_unknown_and_an_older_one_is_not_taken() -> None:
    site = Site()
    see(site, node("gpu0", gpus=4), at_s=10)
    see(site, node("gpu0", gpus=8), at_s=5)
    assert value_by_node(site, "slurm_gpus", 100) == {"gpu0": 4}
    assert math.isnan(value_by_node(site, "slurm_gpus", 101)["gpu0"])


def test_the_same_picture_taken_again_keeps_its_signals_fresh() -> None:
    site = Site()
    picture = shown(node("gpu0", gpus=4))
    for at_s in (0, 60, 120):
        again = shown(at_s=at_s)
        site.telemetry.show(
            type(picture)(cluster=CLUSTER, taken_at=again.taken_at, nodes=picture.nodes, jobs=picture.jobs),
            Topology(),
        )
    assert value_by_node(site, "slurm_gpus", 200) == {"gpu0": 4}
    window = site.telemetry.window("slurm_gpus", 125, after(120))[:, 0]
    assert np.flatnonzero(~np.isnan(window)).tolist() == [0, 12, 24]


def test_room_for_the_gpus_that_slurm_shows_is_there_before_they_are_heard_of() -> None:
    site = Site()
    site.say(0, {("heat_c", Part(gpu=gpu)): 1.0 for gpu in range(8)})
    see(site, *(node(f"gpu{number}") for number in range(40)))
    before = site.telemetry.nbytes
    for number in range(40):
        site.say(5, {("heat_c", Part(gpu=gpu)): 1.0 for gpu in range(8)}, name=f"gpu{number}")
    assert site.telemetry.nbytes == before


H100 = GpuModel(name="H100", match=("*h100*",), values={"slowdown_temp_c": 87.0}, source="test")
ANY = GpuModel(name="any", match=("*",), values={"power_w": 300.0}, source="test")


def test_first_matching_model_entry_gives_its_ratings_ignoring_case() -> None:
    site = Site((H100, ANY))
    names = ("nvidia_H100_80gb", "a100", "")
    for number in range(3):
        site.say(0, {HEAT: 1.0, LOAD: 1.0, PORT: 1.0}, name=f"gpu{number}")
    assert np.isnan(site.telemetry.spec("slowdown_temp_c")).all()
    see(site, *(node(f"gpu{number}", model=model) for number, model in enumerate(names)))
    for scope in (Scope.gpu, Scope.node, Scope.link):
        np.testing.assert_array_equal(site.telemetry.spec("slowdown_temp_c", scope), [87, np.nan, np.nan])
    np.testing.assert_array_equal(site.telemetry.spec("power_w"), [np.nan, 300, np.nan])
    assert site.telemetry.model_of() == list(names)
    site.telemetry.models((ANY,))
    np.testing.assert_array_equal(site.telemetry.spec("slowdown_temp_c"), [np.nan] * 3)


def test_values_measured_before_a_repair_are_dropped_even_if_they_come_late() -> None:
    site = Site()
    for name in ("gpu0", "gpu1"):
        site.say(0, {HEAT: 60.0, REPLAY: 0.0, LOAD: 1.0, PORT: 0.0}, name=name)
        site.say(10, {HEAT: 61.0, REPLAY: 5.0, LOAD: 2.0, PORT: 5.0}, name=name)
    site.telemetry.forget("gpu0", after(12))
    (own, own1), (other, _) = (
        [site.row(Scope.gpu, name, part) for part in (GPU0, GPU1)] for name in ("gpu0", "gpu1")
    )
    assert own is not None
    assert other is not None
    heat = site.telemetry.value("heat_c", after(14))
    assert np.isnan(heat[own])
    assert heat[other] == 61
    assert np.isnan(site.telemetry.window("heat_c", 60, after(14))[:, own]).all()
    site.say(11, {HEAT: 62.0})
    assert np.isnan(site.telemetry.value("heat_c", after(14))[own])
    assert site.telemetry.counts.late == 1
    site.say(25, {HEAT: 63.0, REPLAY: 9.0, LOAD: 3.0})
    assert site.telemetry.value("heat_c", after(26))[own] == 63
    assert np.isnan(site.telemetry.increase("replay_total", 60, after(26))[0][own1])
    assert site.telemetry.value("load", after(26))[site.row(Scope.node, "gpu0", Part())] == 3


def test_a_rebuild_takes_nothing_of_before_a_repair() -> None:
    site = Site()
    site.telemetry.forget("gpu0", after(12))
    site.say(10, {HEAT: 61.0})
    site.say(13, {LOAD: 1.0})
    row = site.row(Scope.gpu, "gpu0", GPU0)
    assert row is None or np.isnan(site.telemetry.value("heat_c", after(14))[row])
    assert site.telemetry.value("load", after(14))[site.row(Scope.node, "gpu0", Part())] == 1


@pytest.mark.parametrize(
    "slices",
    [
        node("gpu0", gpus=56, model="1g.10gb"),
        SlurmNode(name="gpu0", gpus=32, gpu_model="h100", gpus_shared=True),
    ],
)
def test_slices_of_gpus_are_no_count_of_gpus(slices: SlurmNode) -> None:
    site = Site()
    site.telemetry.show(shown(slices, node("gpu1")), Topology())
    gpus = site.telemetry.value("slurm_gpus", after(0))
    rows = [site.row(Scope.node, name, Part()) for name in ("gpu0", "gpu1")]
    assert np.isnan(gpus[rows[0]])
    assert gpus[rows[1]] == 8
