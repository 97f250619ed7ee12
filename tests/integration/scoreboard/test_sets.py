"""The score board reads what may be used of the public sets, and skips what is not there."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import scoreboard
from benchmarks._scoreboard import bounds, fleet, metric_worlds, repeats, slow_worlds, smap, step_times
from benchmarks._scoreboard.baselines import ALL, ecod
from benchmarks._scoreboard.table import Board, Row

pytestmark = pytest.mark.heavy


def smap_folder(folder: Path) -> Path:
    random = np.random.default_rng(2)
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
        for name in ("A-1", "M-1"):
            x = np.column_stack([random.normal(size=3000), random.random((3000, 2)) < 0.02])
            if part == "test":
                x[2000:2050, 0] += 12
            np.save(folder / part / f"{name}.npy", x)
    with (folder / "labeled_anomalies.csv").open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file)
        out.writerow(["chan_id", "spacecraft", "anomaly_sequences", "class", "num_values"])
        out.writerow(["A-1", "SMAP", "[[2000, 2030]]", "[point]", 3000])
        out.writerow(["A-1", "SMAP", "[[2020, 2049]]", "[point]", 3000])
        out.writerow(["M-1", "MSL", "[[2000, 2049]]", "[point]", 3000])
    return folder


def test_smap_alone_is_read_and_labels_that_overlap_are_one(tmp_path: Path) -> None:
    (one,) = smap.channels(smap_folder(tmp_path))
    assert (one.name, one.events) == ("A-1", ((2000, 2050),))


def test_the_board_of_smap_finds_what_is_plain(tmp_path: Path) -> None:
    own = smap.board(smap_folder(tmp_path))[0].figures
    assert own["recall"] == 1
    assert own["precision"] > 0.3
    assert 0 <= own["delay"] < 20


def fault(day: float, node: str, kind: str = "fault_start") -> dict:
    return {"event_time": day, "node_id": node, "event_type": kind, "fault_type": {}}


def test_faults_after_half_of_the_time_are_left_out(tmp_path: Path) -> None:
    days = [fault(1, "a"), fault(1.5, "a", "fault_end"), fault(100, "b"), fault(101, "c"), fault(200, "d")]
    (tmp_path / repeats.WHOLE).write_text(json.dumps(days), encoding="utf-8")
    starts = repeats.first_half(tmp_path)
    assert (starts.day.tolist(), starts.last_day) == ([1, 100], 100)


def test_a_trace_that_was_cut_before_is_used_whole(tmp_path: Path) -> None:
    (tmp_path / repeats.HALF).write_text(json.dumps([fault(1, "a"), fault(170, "a")]), encoding="utf-8")
    starts = repeats.first_half(tmp_path)
    assert (starts.day.tolist(), starts.node.tolist()) == ([1, 170], [0, 0])


def faults(rates: list[float], days: float = 200.0) -> repeats.Starts:
    """One fault of each node every 1/rate days."""
    found = sorted(
        (day, node)
        for node, rate in enumerate(rates)
        for day in np.arange(0.5 / rate, days, 1 / rate).tolist()
    )
    day, node = zip(*found, strict=True)
    return repeats.Starts(np.array(day), np.array(node), ("x",) * len(day), days)


def test_a_fault_that_comes_again_within_hours_is_one_episode() -> None:
    starts = repeats.Starts(np.array([1.0, 1.2, 1.4, 9.0]), np.array([3, 3, 3, 3]), ("x",) * 4, 20.0)
    assert repeats.episodes(starts) == [(1.0, 3), (9.0, 3)]


def test_the_ceiling_is_low_for_equal_nodes_and_high_for_ten_bad_ones() -> None:
    equal = repeats.ceiling(faults([0.005] * repeats.NODES))
    worn = repeats.ceiling(faults([0.3] * 12 + [0.002] * (repeats.NODES - 12)))
    assert 0.10 < equal["30 d"] < 0.20  # 1 - exp(-0.005 x 30)
    assert worn["30 d"] > 0.9


def test_node_that_always_faults_again_is_forecast() -> None:
    day = np.arange(0.5, 170, 1.0)
    starts = repeats.Starts(day, np.zeros(len(day), np.int64), ("",) * len(day), 170.0)
    rows = {row.name: row.figures for row in repeats.board(starts)}
    lemons, chance = rows["healer's score"], rows["random order"]
    assert (lemons["7 d"], lemons["7 d from"], lemons["7 d to"]) == pytest.approx((0.1, 0.1, 0.1))
    assert chance["7 d"] < 0.05


def test_nothing_of_the_future_is_in_an_order() -> None:
    starts = repeats.Starts(np.array([10.0, 50.0]), np.array([3, 4]), ("a", "a"), 100.0)
    for method in (repeats.healers, repeats.fading(14.0), repeats.counted):
        assert np.flatnonzero(method(starts, 20.0)).tolist() == [3]


@pytest.mark.parametrize("name", [name for name in ALL if name != "random numbers"])
def test_baselines_call_the_outlier_the_worst(name: str) -> None:
    random = np.random.default_rng(1)
    train, test = random.normal(size=(500, 3)), random.normal(size=(50, 3))
    train[:, 2] = train[:, 0] + 0.1 * train[:, 2]
    test[:, 2] = test[:, 0] + 0.1 * test[:, 2]
    test[17] = [6.0, 6.0, 3.5]
    assert ALL[name](train, test).argmax() == 17


def test_ecod_by_hand() -> None:
    train = np.array([[1.0], [2.0], [3.0], [10.0]])  # skewed to the right
    found = ecod(train, np.array([[2.0], [11.0], [0.0]]))
    np.testing.assert_allclose(found, -np.log([3 / 5, 1 / 5, 1 / 5]), atol=0.3)
    assert found[1] == pytest.approx(-np.log(1 / 5))
    assert found[0] == pytest.approx(max(-np.log(3 / 5), -np.log(4 / 5)))


def test_simulated_slow_nodes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_times, "STEPS", 330)
    monkeypatch.setattr(step_times, "CASES", ((0.004, 0.05),))
    runs = list(step_times.simulated(range(5, 6)))
    assert [run.slow for run in runs] == [5, None]
    own = step_times.board(runs)[0].figures
    assert (own["precision"], own["recall"]) == (1.0, 1.0)


def test_a_set_that_is_not_there_is_skipped_by_name(tmp_path: Path) -> None:
    skipped = [line for line in scoreboard.public(tmp_path) if isinstance(line, str)]
    assert [line.split(":")[0] for line in skipped] == ["SMAP", "StragglerAnalysis SE", "InfiniteHBD"]
    assert "labeled_anomalies.csv is not there" in skipped[0]
    assert f"{step_times.TRACE} is not there" in skipped[1]
    assert all("SCOREBOARD_DATA names no folder" in str(line) for line in scoreboard.public(None))


def test_without_pyarrow_the_trace_is_skipped_in_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / step_times.TRACE).write_bytes(b"")
    skipped = list(scoreboard.public(tmp_path))
    assert "pyarrow is not installed, and this file needs it" in str(skipped[1])


def fleet_of(faulty: set[int], moved: float) -> fleet.Watched:
    """Random features; those that are faulty lie `moved` higher in three of them from the onset on."""
    random = np.random.default_rng(3)
    x = 0.3 * random.normal(size=(fleet.TRAIN + fleet.WATCH, fleet.NODES, len(fleet.NAMES)))
    x[fleet.TRAIN + fleet.ONSET :, sorted(faulty), :18] += moved
    none = np.zeros((fleet.WATCH, fleet.NODES), bool)
    names = tuple(f"gpu{row:04}" for row in range(fleet.NODES))
    return fleet.Watched(x[: fleet.TRAIN], x[fleet.TRAIN :], none, frozenset(faulty), names)


@pytest.mark.parametrize("name", [name for name in fleet.METHODS if name != "rules"])
def test_each_method_finds_a_node_that_is_far_off(name: str) -> None:
    given = fleet_of({4, 9}, 9.0)
    tally = fleet.tally(given, fleet.METHODS[name](given))
    assert (tally.recall, tally.events) == (1.0, 2)
    assert tally.precision > 0.5


def test_a_node_called_before_its_fault_or_without_one_is_false() -> None:
    given = fleet_of({4, 9}, 0.0)
    on = np.zeros((fleet.WATCH, fleet.NODES), bool)
    on[fleet.ONSET + 5, 4] = True
    on[fleet.ONSET - 5, 9] = True
    on[50, 20] = True
    tally = fleet.tally(given, on)
    assert (tally.found, tally.events, tally.true_alarms, tally.alarms, tally.delays) == (1, 2, 1, 3, (5,))


def test_five_minutes_without_a_break() -> None:
    above = np.ones((30, 1), bool)
    above[15] = False
    found = np.flatnonzero(fleet.held(above)[:, 0])
    assert found.tolist() == [9, 10, 11, 12, 13, 14, 25, 26, 27, 28, 29]


def test_simulated_sensors_come_as_features(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SETTLE": 6, "TRAIN": 3, "WATCH": 12, "ONSET": 0}.items():
        monkeypatch.setattr(fleet, name, value)
    given = fleet.watched(3)
    assert given.known.shape == (3, fleet.NODES, len(fleet.NAMES))
    assert 0.5 < np.isfinite(given.known).mean() < 0.9
    warm = given.new[-1, :, fleet.NAMES.index("gpu temperature, hottest")]
    assert len(given.faulty) == 12
    assert warm[sorted(given.faulty)].mean() > np.median(warm) + 0.2


def test_json_has_no_infinity() -> None:
    board = Board("a set", "a note", [Row("healer", {"F1": 0.5, "delay": float("inf")})])
    assert json.loads(json.dumps(board.json(), allow_nan=False))["rows"][0]["figures"]["delay"] is None
    assert board.text().splitlines()[-1].split() == ["healer", "0.5", "-"]


def test_metrics_of_another_author_are_the_same_for_a_seed_and_bounded() -> None:
    rows = metric_worlds.board(3, 1)
    assert rows[0] == metric_worlds.board(3, 1)[0]
    own, *parts = rows[:3]
    assert own.figures["F1 from"] <= own.figures["F1"] <= own.figures["F1 to"]
    assert min(part.figures["recall"] for part in parts) <= own.figures["recall"]
    assert [row.name.partition(";")[0] for row in rows[3:]] == list(ALL)


def test_bounds_are_those_of_the_books() -> None:
    assert bounds.rate(0, 10) == pytest.approx((0, 0.29957), abs=1e-4)
    assert bounds.rate(10, 1) == pytest.approx((5.4254, 16.9622), abs=1e-3)
    assert bounds.share(8, 10) == pytest.approx((0.5408, 0.9319), abs=1e-3)
    assert bounds.median([*range(1, 11)]) == (2, 9)


def test_an_alarm_before_the_slowness_is_wrong_and_the_first_since_is_its_delay() -> None:
    drawn = slow_worlds.world(slow_worlds.CASES[0], 3, 0)
    on = np.zeros((1000, 32), bool)
    on[10:12, drawn.slow_node] = on[drawn.onset + 2 :, drawn.slow_node] = True
    said = slow_worlds.seen(drawn, on)
    assert (said.delay_s, said.wrong) == (15, 1)
    (why,) = slow_worlds.why_wrong(slow_worlds.CASES[0], 3, 0, said)
    assert why.startswith(f"job 0, node {drawn.slow_node}, step 10: ")
