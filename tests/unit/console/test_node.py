"""What a node measured, in words: unknown is a dash, growth is an error, a throttle reason has a name."""

from datetime import datetime, timedelta

import msgspec
import numpy as np

from healer.console.views import Shown, node_view
from healer.model import (
    Catalogue,
    Column,
    Component,
    IncidentState,
    Part,
    Scope,
    Severity,
    Signal,
    SignalKind,
)
from healer.model.telemetry import Report
from healer.ports.answers import OpenIncident
from tests.support import console_telemetry
from tests.support.console_sample import CLUSTER, NOW


def signal(name: str, unit: str, kind: SignalKind = SignalKind.gauge, **fields: object) -> Signal:
    return Signal(name=name, unit=unit, kind=kind, scope=Scope.gpu, text="", source="", **fields)  # type: ignore[arg-type]


COUNTER, ENUM, BITS = SignalKind.counter, SignalKind.enum, SignalKind.bits
REASONS = {"gpu_idle": 1, "sw_power_cap": 4, "hw_thermal_slowdown": 64}
CATALOGUE = Catalogue(
    signals={
        one.name: one
        for one in (
            signal("gpu_temp_c", "°C", stale_s=60),
            signal("sm_clock_mhz", "MHz"),
            signal("ecc_sbe_volatile_total", "count", COUNTER),
            signal("ecc_dbe_volatile_total", "count", COUNTER),
            signal("row_remap_pending", "bool"),
            signal("row_remap_failed", "bool"),
            signal("clock_event_reasons", "bits", BITS, bits=REASONS),
            signal("ib_symbol_error_total", "count", COUNTER),
            signal("ib_rcv_bytes_total", "B", COUNTER),
            signal("ib_state", "state", ENUM, words={"down": 1, "active": 4}),
        )
    }
)
PORT = Part(port="mlx5_0/1")


def reports_of(*rows: tuple[float, Column, float]) -> tuple[list[Report], dict[int, Column]]:
    """Rows are (s before now, column, value)."""
    columns = {column: number for number, column in enumerate({column: 0 for _, column, _ in rows})}
    reports = []
    for before_s, column, value in rows:
        at = NOW - timedelta(seconds=before_s)
        reports.append(
            Report("c", "n1", at, at, np.array([columns[column]], np.int32), np.array([float(value)]))
        )
    return reports, {number: column for column, number in columns.items()}


def measured(
    *rows: tuple[float, Column, float],
    gpus: int = 0,
    incidents: tuple[OpenIncident, ...] = (),
    wanted: str = "",
) -> Shown:
    reports, columns = reports_of(*rows)
    node = node_view.NodeNow(name="n1", gpus=gpus, incidents=incidents, now=NOW)
    return node_view.measured(reports, columns, CATALOGUE, node, wanted)


def gpu(name: str, index: int = 0) -> Column:
    return Column(name, Part(gpu=index))


def incident(opened: datetime = NOW, gpu_index: int | None = 0) -> OpenIncident:
    return OpenIncident(
        id="1" * 64, severity=Severity.P2, state=IncidentState.open, rule="hot", title="Hot",
        root=Component(cluster="c", node="n1", gpu=gpu_index), opened=opened,
    )  # fmt: skip


def test_node_without_values_has_no_rows_and_no_chart() -> None:
    view = measured(gpus=8)
    assert (view.gpus, view.links, view.chart, view.seen) == ((), (), None, None)


def test_the_newest_value_is_shown_and_an_old_one_is_unknown() -> None:
    view = measured(
        (40, gpu("gpu_temp_c"), 70), (10, gpu("gpu_temp_c"), 61), (300, gpu("gpu_temp_c", 1), 88), gpus=3
    )
    cells = [row.figures[1] for row in view.gpus]
    assert [cell.text for cell in cells] == ["61 °C", "–", "–"]
    assert cells[1].title == "last 88 °C, 5 min ago"
    assert cells[2].title == "never reported"
    assert view.gpus[2].seen is None


def test_errors_and_remaps_are_described_in_words() -> None:
    view = measured(
        (5, gpu("ecc_sbe_volatile_total"), 3), (5, gpu("ecc_dbe_volatile_total"), 1),
        (5, gpu("row_remap_pending"), 1), (5, gpu("row_remap_failed"), 0),
        (5, gpu("ecc_sbe_volatile_total", 1), 0), (5, gpu("row_remap_pending", 1), 0),
    )  # fmt: skip
    bad, good = view.gpus
    assert (bad.ecc.text, bad.ecc_bad) == ("1 uncorrected, 3 corrected", True)
    assert (bad.remap.text, bad.remap_bad) == ("pending", True)
    assert (good.ecc.text, good.remap.text, good.ecc_bad, good.remap_bad) == ("none", "none", False, False)


def test_a_lower_clock_says_why_and_whether_that_is_trouble() -> None:
    view = measured(
        (5, gpu("clock_event_reasons", 0), 0x44), (5, gpu("clock_event_reasons", 1), 0x4),
        (5, gpu("clock_event_reasons", 2), 0), (5, gpu("clock_event_reasons", 3), 0x8000),
    )  # fmt: skip
    assert [(row.throttle, row.throttle_bad) for row in view.gpus] == [
        ("sw power cap, hw thermal slowdown", True),
        ("sw power cap", False),
        ("none", False),
        ("bits 0x8000", True),
    ]


def test_links_are_named_when_an_error_counter_grew_or_they_are_down() -> None:
    view = measured(
        (600, Column("ib_symbol_error_total", PORT), 10), (300, Column("ib_symbol_error_total", PORT), 14),
        (5, Column("ib_symbol_error_total", PORT), 3),
        (600, Column("ib_rcv_bytes_total", PORT), 1), (5, Column("ib_rcv_bytes_total", PORT), 9e9),
        (5, Column("ib_state", Part(port="mlx5_1/1")), 1), (5, Column("ib_state", PORT), 4),
        (600, Column("ib_symbol_error_total", Part(port="mlx5_2/1")), 7),
        (5, Column("ib_symbol_error_total", Part(port="mlx5_2/1")), 7),
    )  # fmt: skip
    # 4 grew, then the counter was reset and shows 3.
    assert [(row.part, row.what, row.grown, row.total) for row in view.links] == [
        ("mlx5_0/1", "ib_symbol_error_total", "+7", "3"),
        ("mlx5_1/1", "ib_state", "", "down"),
    ]


def test_a_counter_is_drawn_as_growth_per_minute() -> None:
    rows = [(60 - 15 * index, Column("ib_symbol_error_total", PORT), 2.0 * index) for index in range(4)]
    view = measured(*rows, wanted="ib_symbol_error_total")
    assert view.chart is not None
    assert view.chart.data["s"][0]["v"] == [8.0, 8.0, 8.0]
    assert view.chart.title.endswith("per minute")


def test_one_signal_is_drawn_with_a_line_for_each_gpu_and_their_median() -> None:
    rows = [(5, gpu("sm_clock_mhz", index), 1700 + index) for index in range(3)]
    view = measured(*rows, (5, gpu("gpu_temp_c"), 61), incidents=(incident(NOW - timedelta(minutes=2)),))
    assert view.signal == "sm_clock_mhz"
    assert [name for name, _ in view.signals] == ["gpu_temp_c", "sm_clock_mhz"]
    assert view.chart is not None
    assert [line["l"] for line in view.chart.data["s"]] == ["GPU 0", "GPU 1", "GPU 2", "node median"]
    assert [moment.label for moment in view.chart.moments] == ["hot"]
    assert measured(*rows, wanted="<script>").signal == "sm_clock_mhz"


def test_a_gpu_with_an_open_incident_carries_it() -> None:
    view = measured((5, gpu("gpu_temp_c"), 61), (5, gpu("gpu_temp_c", 1), 61), incidents=(incident(),))
    assert [len(row.incidents) for row in view.gpus] == [1, 0]


def test_scores_kept_by_the_version_before_are_shown_without_scorers_that_are_gone() -> None:
    score = console_telemetry.unusual(CLUSTER, "gpu0001")
    assert score is not None
    gone = msgspec.structs.replace(score.ways[0], way="distance", score=2.13)
    shown = node_view.unusual_row(msgspec.structs.replace(score, ways=(gone, *score.ways)))
    assert shown is not None
    assert (shown.score, shown.above) == ("0.71", True)
    assert node_view.unusual_row(msgspec.structs.replace(score, ways=(gone,))) is None
