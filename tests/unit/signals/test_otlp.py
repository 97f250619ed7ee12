"""OTLP: both encodings say the same, metrics become reports, and only marked records are kernel lines."""

import json
import math
import tracemalloc
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from healer.model import Part
from healer.signals import otlp_logs, otlp_metrics
from healer.signals.logs import KernelRecords, kernel_records
from healer.signals.otlp_metrics import SeriesNames, candidates, labels_of, read_protobuf
from healer.signals.otlp_units import Conversion
from healer.signals.otlp_values import DEPTH_MAX, any_value, message
from healer.signals.protobuf import Torn
from healer.signals.rejects import BadBody
from healer.signals.series import Measured, Names
from tests.support.collected import (
    DELTA,
    as_json,
    gauge,
    histogram,
    logs,
    metrics,
    pairs,
    point,
    record,
    total,
    value,
)
from tests.support.measuring import NOW, Bench, gpu, known, shipped
from tests.support.pushing import field, varint
from tests.support.shipped import LOST, by_logger, journalctl

NS = int(NOW.timestamp()) * 10**9
#: What the collector's Prometheus receiver says of a target.
SCRAPED = {"service.name": "dcgm", "service.instance.id": "gpu0001:9400", "server.address": "gpu0001",
           "url.scheme": "http", "host.name": "otel-collector-0"}  # fmt: skip


@pytest.fixture(params=["protobuf", "json"])
def encoding(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def bench() -> Bench:
    return Bench()


def take(bench: Bench, encoding: str, request: ExportMetricsServiceRequest) -> Measured:
    raw = as_json(request) if encoding == "json" else request.SerializeToString()
    return bench.translator.otlp(raw, known, NOW, json=encoding == "json")


def test_gauges_and_sums_become_reports(bench: Bench, encoding: str) -> None:
    request = metrics(
        SCRAPED,
        gauge("DCGM_FI_DEV_GPU_TEMP", point(61.5, {"gpu": "2"}, NS), point(60, {"gpu": "3"}, NS)),
        total("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", point(7, {"gpu": "2"}, NS)),
        gauge("node_load1", point(3.5, at_ns=NS - 5 * 10**9)),
    )
    of_gpus = {("gpu_temp_c", gpu(2)): 61.5, ("gpu_temp_c", gpu(3)): 60, ("pcie_replay_total", gpu(2)): 7}
    for _ in range(2):  # the second time all series are known
        taken = take(bench, encoding, request)
        assert [(one.node, one.at, bench.values(one)) for one in taken.reports] == [
            ("gpu0001", NOW - timedelta(seconds=5), {("load1", Part()): 3.5}),
            ("gpu0001", NOW, of_gpus),
        ]
        assert (taken.samples, taken.unrecognised, taken.rejected) == (4, 0, ())


def test_otlp_points_that_cannot_be_samples_are_rejected_with_reasons(bench: Bench, encoding: str) -> None:
    request = metrics(
        SCRAPED,
        histogram("DCGM_FI_DEV_GPU_TEMP", 2),
        total("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", point(7, {"gpu": "2"}, NS), temporality=DELTA),
        total("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", point(7, {"gpu": "2"}, NS), temporality=0),
        gauge(
            "DCGM_FI_DEV_GPU_TEMP", point(61.5, {"gpu": "2"}, NS - 3600 * 10**9), point(1.0, {"gpu": "1"}, NS)
        ),
        gauge("my.own.metric", point(1.0), point(2.0)),
    )
    taken = take(bench, encoding, request)
    assert (taken.samples, taken.unrecognised) == (1, 2)
    assert {name: one.count for name, one in taken.unknown.items()} == {"my.own.metric": 2}
    rejected = [(one.index, one.reason) for one in taken.rejected]
    assert [index for index, _ in rejected] == [0, 1, 2, 3, 4]
    assert "histogram" in rejected[0][1]
    assert "delta" in rejected[2][1]
    assert "temporality" in rejected[3][1]


def test_a_point_without_a_value_is_nothing_known(bench: Bench, encoding: str) -> None:
    request = metrics(
        SCRAPED,
        gauge(
            "DCGM_FI_DEV_GPU_TEMP", point(61.5, {"gpu": "2"}, NS, flags=1), point(math.nan, {"gpu": "1"}, NS)
        ),
    )
    assert (take(bench, encoding, request).reports, take(bench, encoding, request).rejected) == ([], ())


def test_a_point_without_a_time_is_of_now(bench: Bench, encoding: str) -> None:
    (report,) = take(bench, encoding, metrics(SCRAPED, gauge("node_load1", point(1.0)))).reports
    assert report.at == NOW


@pytest.mark.parametrize(
    ("resource", "labels", "node"),
    [
        ({"host.name": "gpu0001"}, {}, "gpu0001"),
        ({"host.name": "gpu0001.pod1.example"}, {}, "gpu0001"),
        ({"host.name": "gpu0001", "k8s.node.name": "gpu0002"}, {}, "gpu0002"),
        ({"host.name": "gpu0001", "service.instance.id": "gpu0003:9100"}, {}, "gpu0003"),
        (
            {"host.name": "gpu0001", "service.instance.id": "627cc493-f310-47de-96bd-71410b7dec09"},
            {},
            "gpu0001",
        ),
        ({"service.instance.id": "gpu0003:9100"}, {"Hostname": "gpu0004"}, "gpu0004"),
        ({"host.name": "gpu0001"}, {"node": "gpu0005"}, "gpu0005"),
    ],
)
def test_the_node_is_named_by_the_point_or_its_resource(
    bench: Bench, resource: dict[str, str], labels: dict[str, str], node: str
) -> None:
    (report,) = take(bench, "protobuf", metrics(resource, gauge("node_load1", point(1.0, labels)))).reports
    assert report.node == node


def test_of_no_node_or_another_cluster_nothing_is_kept(bench: Bench, encoding: str) -> None:
    for resource in ({"host.name": "login1"}, {"host.name": "gpu0001", "cluster": "pod2"}, {}):
        taken = take(bench, encoding, metrics(resource, gauge("node_load1", point(1.0))))
        assert (taken.reports, taken.unrecognised) == ([], 1)


@pytest.mark.parametrize(
    ("name", "unit", "grows", "among"),
    [
        ("node_load1", "", False, "node_load1"),
        ("node.load1", "", False, "node_load1"),
        ("node_network_receive_errs", "", True, "node_network_receive_errs_total"),
        ("node_network_receive_errs_total", "", True, "node_network_receive_errs_total"),
        ("node.network.receive", "By", True, "node_network_receive_bytes_total"),
        ("node_memory_MemAvailable", "By", False, "node_memory_MemAvailable_bytes"),
        ("a.use", "1", False, "a_use_ratio"),
        ("a.flow", "By/s", False, "a_flow_bytes_per_second"),
        ("a.count", "{thing}", True, "a_count_total"),
    ],
)
def test_names_become_those_of_prometheus(name: str, unit: str, grows: bool, among: str) -> None:
    found = list(candidates(name, unit, grows))
    assert found[0] == name
    assert among in found
    assert len(found) <= 5


def test_ids_of_hardware_name_the_gpu() -> None:
    assert labels_of({}, {"hw.id": "3"})["gpu"] == "3"
    assert labels_of({}, {"hw.id": "GPU-aa"})["UUID"] == "GPU-aa"
    assert labels_of({}, {"hw.id": "0000:9b:00.0"})["pci_bus_id"] == "0000:9b:00.0"
    assert labels_of({"gpu": "1"}, {"hw.id": "3"})["gpu"] == "3"


def test_series_of_equal_bytes_are_equal_series(bench: Bench) -> None:
    """No two resources, names and attributes meet in one key."""
    first = metrics({"host.name": "gpu0001"}, gauge("node_load1", point(1.0, {"a": "b"})))
    second = metrics({"host.name": "gpu0002"}, gauge("node_load1", point(2.0, {"a": "b"})))
    for request, node in ((first, "gpu0001"), (second, "gpu0002"), (first, "gpu0001")):
        for encoding in ("protobuf", "json"):
            assert [one.node for one in take(bench, encoding, request).reports] == [node]


def test_too_much_is_refused(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> None:
    many = metrics(SCRAPED, gauge("DCGM_FI_DEV_GPU_TEMP", *(point(1.0, {"gpu": str(n)}) for n in range(9))))
    monkeypatch.setattr(otlp_metrics, "NEW_SERIES_MAX", 8)
    with pytest.raises(BadBody, match="more than 8 new series"):
        take(bench, "protobuf", many)
    monkeypatch.setattr(otlp_metrics, "POINTS_MAX", 8)
    monkeypatch.setattr(otlp_metrics, "POINTS_MAX", 8)
    with pytest.raises(BadBody, match="more than 8 data points"):
        list(read_protobuf(many.SerializeToString()))
    with pytest.raises(BadBody, match="more than 8 data points"):
        list(otlp_metrics.read_json(as_json(many)))
    monkeypatch.setattr(otlp_metrics, "FIELDS_MAX", 20)
    with pytest.raises(BadBody, match="more than 20 fields"):
        list(read_protobuf(field(1, b"\x08\x00" * 21)))
    with pytest.raises(BadBody, match="objects"):
        list(otlp_metrics.read_json(b"{" * (otlp_metrics.OBJECTS_MAX + 1)))


@pytest.mark.parametrize(
    "raw", [b"\x0a", b"\x0a\x05\x12", b"\x0f", b"hello", field(1, field(2, field(2, b"\x2a\x09")))]
)
def test_a_torn_message_is_refused(raw: bytes) -> None:
    with pytest.raises(BadBody):
        list(read_protobuf(raw))
    with pytest.raises(BadBody):
        list(otlp_metrics.read_json(raw))


def test_a_torn_point_is_refused(bench: Bench) -> None:
    for torn in (b"\x19\x00", b"\x3a\x05a", b"\x21" + b"\x00" * 7, b"\x3a\xff\xff\x7f"):
        raw = field(1, field(2, field(2, field(1, b"node_load1") + field(5, field(1, torn)))))
        with pytest.raises(BadBody, match="longer than its message"):
            bench.translator.otlp(raw, known, NOW, json=False)


def test_odd_but_right_bytes_are_read(bench: Bench) -> None:
    """Attributes of more than 127 bytes, in several places, whole numbers, and unknown fields."""
    number_point = point(7, {"x" * 200: "y"}, NS)
    odd = varint(99 << 3 | 2) + varint(3) + b"abc" + number_point.SerializeToString() + field(98, b"d")
    odd += field(7, field(1, b"host") + field(2, field(1, b"gpu0007")))
    metric = field(1, b"node_load1") + field(5, field(1, odd))
    taken = bench.translator.otlp(field(1, field(2, field(2, metric))), known, NOW, json=False)
    assert [(one.node, bench.values(one)) for one in taken.reports] == [("gpu0007", {("load1", Part()): 7})]


@pytest.mark.parametrize(
    "raw",
    [b"\x0a\x00" * 2**15, field(1, field(2, b"\x12\x00" * 2**15)), field(1, field(1, b"\x0a\x00" * 2**15))],
    ids=["resources", "metrics", "attributes"],
)
def test_messages_of_nothing_take_no_memory(raw: bytes) -> None:
    """Of 2 bytes each: a place kept for every one would be sixty times the body."""
    tracemalloc.start()
    try:
        for read in (read_protobuf, otlp_logs.records):
            with suppress(BadBody):
                for _ in read(raw):
                    pass
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 3 * len(raw)


def test_too_many_scopes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, read in ((otlp_metrics, read_protobuf), (otlp_logs, otlp_logs.records)):
        monkeypatch.setattr(module, "SCOPES_MAX", 2)
        assert list(read(field(1, field(2, b"") * 2))) == []
        with pytest.raises(BadBody, match="more than 2 scopes"):
            list(read(field(1, field(2, b"") * 3)))


# --- logs --------------------------------------------------------------------------------------------------


def logged(encoding: str, *records: Any, resource: dict[str, Any] | None = None) -> KernelRecords:
    request = logs(resource or {}, records)
    parsed = otlp_logs.json_records(as_json(request)) if encoding == "json" else otlp_logs.records(
        request.SerializeToString()
    )  # fmt: skip
    return kernel_records(parsed, known, NOW + timedelta(minutes=1), cluster="pod1")


def test_journald_receiver_record_equals_the_journalctl_event(encoding: str) -> None:
    taken = logged(encoding, record(journalctl()), record(LOST, journalctl()))
    first, second = taken.accepted.observations
    assert first.digest == second.digest
    assert (first.code, first.component.node, first.line) == (79, "gpu0001", f"[6781753.400584] {LOST}")
    assert taken.not_kernel == 0


def test_the_resource_names_the_node_and_the_record_the_time(encoding: str) -> None:
    fields = {"_TRANSPORT": "kernel", "MESSAGE": LOST}
    taken = logged(
        encoding,
        record(fields, time_unix_nano=NS),
        record(
            {**fields, "MESSAGE": b"NVRM: Xid (PCI:0000:9b:00): 48, x"}, observed_time_unix_nano=NS - 10**9
        ),
        resource={"host.name": "gpu0003.pod1.example"},
    )
    assert [(one.component.node, one.event_at) for one in taken.accepted.observations] == [
        ("gpu0003", NOW),
        ("gpu0003", NOW - timedelta(seconds=1)),
    ]


@pytest.mark.parametrize(
    ("body", "attributes"),
    [
        (by_logger(), {}),
        (LOST, {"host.name": "gpu0001"}),
        (f"<0>{LOST}", {"facility": 0, "hostname": "gpu0001", "message": LOST, "appname": "kernel"}),
        (LOST, {"facility_text": "kern", "hostname": "gpu0001"}),
        (LOST, {"_TRANSPORT": "kernel", "facility": 1, "_HOSTNAME": "gpu0001"}),
        (by_logger(), {"_TRANSPORT": "kernel"}),
        (LOST, {"log.iostream": "stderr", "host.name": "gpu0001"}),
        ({"_TRANSPORT": {"a": "kernel"}, "MESSAGE": LOST}, {}),
    ],
)
def test_records_that_prove_nothing_are_only_counted(
    encoding: str, body: Any, attributes: dict[str, Any]
) -> None:
    taken = logged(encoding, record(body, attributes))
    assert (taken.accepted.observations, taken.accepted.rejected, taken.not_kernel) == ((), (), 1)


@pytest.mark.parametrize("place", ["resource", "attributes", "body"])
def test_a_mark_is_not_overruled_by_another_of_its_name(encoding: str, place: str) -> None:
    twice = [*pairs({"_TRANSPORT": "syslog"}), *pairs({"_TRANSPORT": "kernel"})]
    sound = {"MESSAGE": LOST, "_HOSTNAME": "gpu0001"}
    forged, honest = record(sound), record(journalctl())
    request = logs({}, [forged] if place == "resource" else [forged, honest])
    log_record = request.resource_logs[0].scope_logs[0].log_records[0]
    home = {
        "resource": request.resource_logs[0].resource.attributes,
        "attributes": log_record.attributes,
        "body": log_record.body.kvlist_value.values,
    }[place]
    home.extend(twice)
    read = otlp_logs.json_records if encoding == "json" else otlp_logs.records
    raw = as_json(request) if encoding == "json" else request.SerializeToString()
    seen = kernel_records(read(raw), known, NOW, cluster="pod1")
    assert (seen.not_kernel, len(seen.accepted.observations)) == (1, place != "resource")


def test_null_is_as_left_out_in_logs() -> None:
    fields = [{"key": name, "value": {"stringValue": one}} for name, one in journalctl().items()]
    line = {"timeUnixNano": None, "observedTimeUnixNano": None, "attributes": None, "traceId": None}
    values = [{"key": None, "value": None}, {"key": "a", "value": {"arrayValue": {"values": None}}}, *fields]
    line["body"] = {"stringValue": None, "kvlistValue": {"values": values}}
    document = {
        "resourceLogs": [
            {"resource": None, "scopeLogs": None, "schemaUrl": None},
            {"resource": {"attributes": None}, "scopeLogs": [{"scope": None, "logRecords": None}]},
            {"resource": None, "scopeLogs": [{"logRecords": [line]}]},
        ]
    }
    seen = kernel_records(otlp_logs.json_records(json.dumps(document).encode()), known, NOW, cluster="pod1")
    assert len(seen.accepted.observations) == 1
    assert list(otlp_logs.json_records(b'{"resourceLogs": null}')) == []


def test_null_is_as_left_out_in_metrics(bench: Bench) -> None:
    labels = [{"key": "node", "value": {"stringValue": "gpu0001"}}]
    points = [
        {"asDouble": 3.5, "asInt": None, "timeUnixNano": None, "flags": None, "attributes": labels},
        {"asDouble": 1, "attributes": None},
    ]
    kinds = [
        {"name": "node_load1", "unit": None, "sum": None, "gauge": {"dataPoints": points}},
        {"name": None, "gauge": {"dataPoints": None}},
        {"name": "a", "sum": {"dataPoints": None, "aggregationTemporality": None, "isMonotonic": None}},
        {"name": "b", "histogram": {"dataPoints": None}},
    ]
    document = {
        "resourceMetrics": [
            {"resource": None, "scopeMetrics": None},
            {"resource": {"attributes": None}, "scopeMetrics": [{"scope": None, "metrics": None}]},
            {"resource": None, "scopeMetrics": [{"metrics": kinds}]},
        ]
    }
    (report,) = bench.translator.otlp(json.dumps(document).encode(), known, NOW, json=True).reports
    assert bench.values(report) == {("load1", Part()): 3.5}
    assert list(otlp_metrics.read_json(b'{"resourceMetrics": null}')) == []


@pytest.mark.parametrize("field", ["asDouble", "asInt"])
@pytest.mark.parametrize("word", ["1_000", "\uff13"])
def test_otlp_numbers_in_python_only_syntax_are_refused(bench: Bench, field: str, word: str) -> None:
    metric = {"name": "node_load1", "gauge": {"dataPoints": [{field: word}]}}
    raw = json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}).encode()
    with pytest.raises(BadBody, match=r"number|integer"):
        bench.translator.otlp(raw, known, NOW, json=True)


def test_one_record_that_is_too_deep_loses_no_other(encoding: str) -> None:
    deep: Any = "x"
    for _ in range(DEPTH_MAX + 1):
        deep = {"a": deep}
    taken = logged(encoding, record(deep), record(journalctl()), record(list(range(5000))))
    assert len(taken.accepted.observations) == 1
    assert [(one.index, "levels" in one.reason) for one in taken.accepted.rejected] == [(0, True), (2, True)]


def test_too_many_records_are_refused(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    monkeypatch.setattr(otlp_logs, "RECORDS_MAX", 2)
    with pytest.raises(BadBody, match="more than 2 log records"):
        logged(encoding, *(record("x") for _ in range(3)))


def test_the_answers_are_those_of_the_package() -> None:
    for kind, name in (
        (ExportLogsServiceResponse, "rejected_log_records"),
        (ExportMetricsServiceResponse, "rejected_data_points"),
    ):
        response = kind.FromString(message(300, "300 not stored: ü"))
        assert getattr(response.partial_success, name) == 300
        assert response.partial_success.error_message == "300 not stored: ü"
        assert not kind.FromString(message(0, "")).HasField("partial_success")


# --- any bytes ---------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=12) | st.binary(max_size=12)
    | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@given(VALUES)
def test_values_are_those_of_the_package(content: Any) -> None:
    raw = value(content).SerializeToString()
    assert any_value(raw, 0, len(raw)) == content
    whole = list(otlp_logs.json_records(as_json(logs({}, [record({"v": content})]))))
    assert whole[0].places[-1] == {"v": content}


POINTS = st.builds(
    point,
    st.floats() | st.integers(-(2**63), 2**63 - 1),
    st.dictionaries(st.just("gpu") | st.text(max_size=150), st.text(max_size=5), max_size=4),
    st.integers(0, 2**64 - 1),
    flags=st.sampled_from([0, 1, 2]),
    start_time_unix_nano=st.sampled_from([0, 5]),
)  # fmt: skip


@given(st.lists(POINTS, max_size=5))
def test_points_are_those_of_the_package(points: list[Any]) -> None:
    request = metrics({"a": "b"}, gauge("one", *points), total("two", *points, unit="By"))
    for raw, read in (
        (request.SerializeToString(), read_protobuf),
        (as_json(request), otlp_metrics.read_json),
    ):
        for metric in read(raw):
            assert metric.read(metric.resource) == {"a": "b"}
            assert (metric.name, metric.grows) in {("one", False), ("two", True)}
            assert metric.held == len(points)
            for found, wanted in zip(metric.points, points, strict=True):
                number = (
                    math.nan
                    if wanted.flags & 1
                    else wanted.as_double
                    if wanted.HasField("as_double")
                    else wanted.as_int
                )
                assert found.value == pytest.approx(number, rel=1e-15, nan_ok=True)
                labels = {one.key: one.value.string_value for one in wanted.attributes}
                assert metric.read(found.block) == labels


@given(st.binary(max_size=200), st.booleans())
def test_no_bytes_break_the_readers(raw: bytes, in_json: bool) -> None:
    bench = Bench()
    for body in (raw, field(1, raw), field(1, field(2, field(2, b"\x0a\x01x" + field(5, field(1, raw)))))):
        with suppress(BadBody):
            bench.translator.otlp(body, known, NOW, json=in_json)
        read = otlp_logs.json_records if in_json else otlp_logs.records
        with suppress(BadBody):
            kernel_records(read(body), known, NOW, cluster="pod1")
    with suppress(Torn):
        any_value(raw, 0, len(raw))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e300, 1e300) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["resourceMetrics", "scopeMetrics", "metrics", "gauge", "sum", "dataPoints", "asInt",
             "asDouble", "key", "attributes", "value", "stringValue", "name", "timeUnixNano", "resourceLogs",
             "scopeLogs", "logRecords", "body", "kvlistValue", "values", "aggregationTemporality", "resource"]
        ), inner, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.heavy
@given(JSON)
def test_no_json_breaks_the_readers(document: Any) -> None:
    raw = json.dumps(document).encode()
    bench = Bench()
    with suppress(BadBody):
        bench.translator.otlp(raw, known, NOW, json=True)
    with suppress(BadBody):
        kernel_records(otlp_logs.json_records(raw), known, NOW, cluster="pod1")


def test_a_value_of_no_kind_is_none() -> None:
    assert any_value(AnyValue().SerializeToString(), 0, 0) is None


def test_names_of_the_semantic_conventions_are_known(bench: Bench) -> None:
    """As the hostmetrics receiver and the conventions of hardware write them; from their documents."""
    card = {"hw.id": "3", "hw.type": "gpu"}
    request = metrics(
        {"host.name": "gpu0001"},
        gauge("system.cpu.load_average.1m", point(3.5), unit="{thread}"),
        gauge("system.linux.memory.available", point(5.0), unit="By"),
        total("system.network.errors", point(7, {"device": "eth0", "direction": "receive"}), unit="{errors}"),
        gauge("hw.gpu.utilization", point(0.5, card | {"hw.gpu.task": "general"}), unit="1"),
        gauge(
            "hw.power",
            point(500.0, card),
            point(900.0, {"hw.id": "psu0", "hw.type": "power_supply"}),
            unit="W",
        ),
        total("hw.energy", point(12.0, card), unit="J"),
    )
    (report,) = bench.translator.otlp(request.SerializeToString(), known, NOW, json=False).reports
    values = {(signal, part.gpu, part.port): one for (signal, part), one in bench.values(report).items()}
    assert {signal: one for (signal, *_), one in values.items()} == {
        "load1": 3.5,
        "host_memory_available_bytes": 5,
        "net_rx_error_total": 7,
        "gpu_util_percent": 50,
        "power_w": 500,
        "energy_j_total": 12,
    }
    assert {("gpu_util_percent", 3, None), ("net_rx_error_total", None, "eth0")} <= set(values)


@pytest.mark.parametrize(
    ("name", "unit", "sent", "signal", "kept"),
    [
        ("hw.power", "mW", 650_000, "power_w", 650),
        ("hw.power", "W", 650, "power_w", 650),
        ("hw.power", "", 650, "power_w", 650),
        ("DCGM_FI_DEV_GPU_TEMP", "Cel", 61, "gpu_temp_c", 61),
        ("DCGM_FI_DEV_GPU_TEMP", "K", 334.15, "gpu_temp_c", 61),
        ("DCGM_FI_DEV_GPU_TEMP", "celsius", 61, "gpu_temp_c", 61),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "", 5_000, "energy_j_total", 5),  # mJ by its name
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "mJ", 5_000, "energy_j_total", 5),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "J", 5, "energy_j_total", 5),
        ("hw.gpu.utilization", "1", 0.5, "gpu_util_percent", 50),
        ("hw.gpu.utilization", "%", 50, "gpu_util_percent", 50),
        ("DCGM_FI_DEV_GPU_UTIL", "1", 50, "gpu_util_percent", 50),  # a number, says only who knows no better
        ("DCGM_FI_DEV_SM_CLOCK", "Hz", 1.98e9, "sm_clock_mhz", 1980),
        ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "{replays}", 7, "pcie_replay_total", 7),
    ],
)
def test_values_get_the_unit_of_their_signal(
    bench: Bench, encoding: str, name: str, unit: str, sent: float, signal: str, kept: float
) -> None:
    labels = {"gpu": "2", "hw.type": "gpu", "hw.gpu.task": "general"}
    request = metrics(SCRAPED, gauge(name, point(sent, labels, NS), unit=unit))
    for _ in range(2):
        (report,) = take(bench, encoding, request).reports
        assert bench.values(report) == {(signal, gpu(2)): pytest.approx(kept)}


@pytest.mark.parametrize("blank", [0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0, 140737488355328.0, math.nan, math.inf])
@pytest.mark.parametrize(("name", "unit"), [("DCGM_FI_DEV_GPU_TEMP", "K"), ("hw.power", "mW")])
def test_a_value_that_is_not_known_is_none_in_any_unit(
    bench: Bench, encoding: str, blank: float, name: str, unit: str
) -> None:
    """DCGM's blanks: in K, one of them would be a GPU of two billion degrees."""
    labels = {"gpu": "2", "hw.type": "gpu"}
    request = metrics(SCRAPED, gauge(name, point(blank, labels, NS), unit=unit))
    assert take(bench, encoding, request).reports == []


@pytest.mark.parametrize("unit", ["Cel", "furlongs", "dB[mW]"])
def test_a_value_in_a_unit_of_something_else_is_rejected_by_its_name(
    bench: Bench, encoding: str, unit: str
) -> None:
    request = metrics(SCRAPED, gauge("hw.power", point(1, {"gpu": "2", "hw.type": "gpu"}, NS), unit=unit))
    taken = take(bench, encoding, request)
    assert (taken.reports, [one.index for one in taken.rejected]) == ([], [0])
    assert "hw.power" in taken.rejected[0].reason
    assert unit in taken.rejected[0].reason


def test_a_name_that_ends_with_the_word_for_its_unit_needs_no_conversion() -> None:
    """A collector that shortens names sends `node_network_speed` in By; what it means is bytes per second."""
    names = Names(shipped())
    words = {"bytes": "By", "seconds": "s", "celsius": "Cel", "watts": "W", "joules": "J", "hertz": "Hz"}
    known = [alias.name for signal in shipped().signals.values() for alias in signal.aliases]
    for name in known:
        stem, _, word = name.removesuffix("_total").rpartition("_")
        if word in words and name in names:
            given = SeriesNames(names).of(stem, words[word], name.endswith("_total"))
            assert given == (name, Conversion()), name


def test_where_labels_name_the_unit_of_a_value_no_other_counts() -> None:
    catalogue = shipped()
    names = Names(catalogue)
    of_several = {
        alias.name
        for signal in catalogue.signals.values()
        for alias in signal.aliases
        if len({(one.signal.unit, one.scale) for one in names.meanings(alias.name)}) > 1
    }
    assert of_several == {"entPhySensorValue"}
    assert SeriesNames(names).of("entPhySensorValue", "Cel", False).conversion == Conversion()
