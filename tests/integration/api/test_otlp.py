"""OTLP over HTTP: the OpenTelemetry SDK sends to the running API, and answers are OTLP's own."""

import gzip
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import requests
import sqlalchemy as sa
from google.protobuf.message import Message
from opentelemetry._logs import LogRecord
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from tests.support.api import CLUSTER, Api
from tests.support.collected import as_json, gauge, histogram, logs, metrics, point, record
from tests.support.pushing import varint
from tests.support.shipped import LOST, by_logger, journalctl

Served = tuple[Api, httpx.Client]
LOGS, METRICS = "/api/v1/signals/otlp/v1/logs", "/api/v1/signals/otlp/v1/metrics"
RESOURCE = {"host.name": "gpu0001", "service.name": "test"}
PROTOBUF, JSON = "application/x-protobuf", "application/json"


def rows(api: Api, what: str = "inbox") -> int:
    with api.engine.connect() as conn:
        return conn.execute(sa.text(f"SELECT count(*) FROM {what}")).scalar_one()


class Watched(requests.Session):
    """The SDK's own session, which keeps what was answered."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[requests.Response] = []

    def send(self, request: requests.PreparedRequest, **more: Any) -> requests.Response:
        answer = super().send(request, **more)
        self.answers.append(answer)
        return answer


@pytest.fixture
def session() -> Iterator[Watched]:
    with Watched() as one:
        yield one


@pytest.mark.parametrize("packing", [Compression.NoCompression, Compression.Gzip], ids=["plain", "gzip"])
def test_the_sdk_sends_kernel_lines(served: Served, session: Watched, packing: Compression) -> None:
    api, client = served
    exporter = OTLPLogExporter(
        str(client.base_url.join(LOGS)), headers=api.headers("signals"), compression=packing, session=session
    )
    provider = LoggerProvider(resource=Resource(RESOURCE), shutdown_on_exit=False)
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    logger = provider.get_logger("test")
    logger.emit(LogRecord(body=journalctl()))
    logger.emit(LogRecord(body=LOST, attributes={"_TRANSPORT": "kernel", "_BOOT_ID": "b1"}))
    logger.emit(LogRecord(body=by_logger()))
    provider.shutdown()
    assert [one.status_code for one in session.answers] == [200] * 3
    kept = [ExportLogsServiceResponse.FromString(one.content).partial_success for one in session.answers]
    assert [one.rejected_log_records for one in kept] == [0, 0, 1]
    assert "not marked as a kernel line" in kept[2].error_message
    assert rows(api) == 2


@pytest.mark.parametrize("packing", [Compression.NoCompression, Compression.Gzip], ids=["plain", "gzip"])
def test_the_sdk_sends_metrics(served: Served, session: Watched, packing: Compression) -> None:
    api, client = served
    exporter = OTLPMetricExporter(
        str(client.base_url.join(METRICS)),
        headers=api.headers("signals"),
        compression=packing,
        session=session,
    )
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=600_000)
    provider = MeterProvider([reader], Resource(RESOURCE), shutdown_on_exit=False)

    def temperatures(_: CallbackOptions) -> list[Observation]:
        return [Observation(60 + n, {"gpu": str(n)}) for n in range(8)]

    provider.get_meter("test").create_observable_gauge("gpu_temp_c", [temperatures])
    provider.get_meter("test").create_histogram("of.no.use").record(1.0)
    assert provider.force_flush()
    provider.shutdown()
    first = session.answers[0]
    assert first.status_code == 200
    kept = ExportMetricsServiceResponse.FromString(first.content).partial_success
    assert (kept.rejected_data_points, "histogram" in kept.error_message) == (1, True)
    assert rows(api, "samples") >= 1
    view = client.get(f"/api/v1/nodes/{CLUSTER}/gpu0001", headers=api.headers("viewer")).json()
    temps = [gpu["signals"]["gpu_temp_c"] for gpu in view["gpus"]]
    assert temps == [60.0 + n for n in range(8)]


def post(
    client: httpx.Client, path: str, message: Message | bytes, kind: str, headers: dict[str, str]
) -> httpx.Response:
    if isinstance(message, bytes):
        raw = message
    else:
        raw = as_json(message) if kind == JSON else message.SerializeToString()
    return client.post(path, content=raw, headers=headers | {"Content-Type": kind})


@pytest.mark.parametrize("kind", [PROTOBUF, JSON])
def test_rejected_records_are_reported_in_the_encoding_of_the_request(served: Served, kind: str) -> None:
    api, client = served
    headers = api.headers("signals")
    answer = post(client, LOGS, logs(RESOURCE, [record(journalctl()), record(by_logger())]), kind, headers)
    nothing = post(client, LOGS, logs(RESOURCE, [record(journalctl())]), kind, headers)
    some = metrics(
        RESOURCE, gauge("node_load1", point(1.0)), gauge("my.metric", point(1.0)), histogram("h", 2)
    )
    measured = post(client, METRICS, some, kind, headers)
    assert [one.status_code for one in (answer, nothing, measured)] == [200] * 3
    assert {one.headers["content-type"] for one in (answer, nothing, measured)} == {kind}
    if kind == JSON:
        assert answer.json()["partialSuccess"]["rejectedLogRecords"] == "1"
        assert nothing.json() == {}
        assert measured.json()["partialSuccess"]["rejectedDataPoints"] == "3"
        assert "1 not in the catalogue" in measured.json()["partialSuccess"]["errorMessage"]
    else:
        assert ExportLogsServiceResponse.FromString(answer.content).partial_success.rejected_log_records == 1
        assert nothing.content == b""
        assert (
            ExportMetricsServiceResponse.FromString(measured.content).partial_success.rejected_data_points
            == 3
        )
    assert rows(api) == 1


@pytest.mark.parametrize("path", [LOGS, METRICS])
@pytest.mark.parametrize("kind", [PROTOBUF, JSON])
def test_errors_are_statuses_in_the_requests_encoding(served: Served, path: str, kind: str) -> None:
    api, client = served
    headers = api.headers("signals")
    wrong = post(client, path, b"\x0a\x7f", kind, headers)
    anonymous = post(client, path, b"", kind, {})
    viewer = post(client, path, b"", kind, api.headers("viewer"))
    packed = post(client, path, b"", kind, headers | {"Content-Encoding": "br"})
    foreign = post(client, path, b"", kind, api.headers("signals", job="4711", cluster=CLUSTER))
    asked = post(client, path + "?nodes=x", b"{}" if kind == JSON else b"", kind, headers)
    answers = (wrong, anonymous, viewer, packed, foreign, asked)
    assert [one.status_code for one in answers] == [400, 401, 403, 415, 403, 400]
    for answer, code in zip(answers, (3, 16, 7, 3, 7, 3), strict=True):
        assert answer.headers["content-type"] == kind
        if kind == JSON:
            assert answer.json()["code"] == code
            assert answer.json()["message"]
        else:
            assert answer.content.startswith(b"\x08" + varint(code) + b"\x12")
    assert anonymous.headers["www-authenticate"].startswith("Bearer")


def test_node_token_may_send_for_that_node_only(served: Served) -> None:
    api, client = served
    headers = api.headers("signals", node="gpu0001")
    own, other = {"host.name": "gpu0001"}, {"host.name": "gpu0002"}
    assert (
        post(client, METRICS, metrics(own, gauge("node_load1", point(1.0))), JSON, headers).status_code == 200
    )
    assert (
        post(client, METRICS, metrics(other, gauge("node_load1", point(1.0))), JSON, headers).status_code
        == 403
    )
    line = {"_TRANSPORT": "kernel", "MESSAGE": LOST}
    assert post(client, LOGS, logs(own, [record(line)]), JSON, headers).status_code == 200
    assert post(client, LOGS, logs(other, [record(line)]), JSON, headers).status_code == 403
    assert (rows(api), rows(api, "samples")) == (1, 1)


def test_too_much_unpacked_is_refused(served: Served) -> None:
    api, client = served
    headers = api.headers("signals") | {"Content-Encoding": "gzip"}
    for path, size in ((LOGS, 8 * 2**20), (METRICS, 16 * 2**20)):
        answer = post(client, path, gzip.compress(b" " * (size + 1)), JSON, headers)
        assert (answer.status_code, answer.json()["code"]) == (413, 8)


def test_losses_are_counted_by_their_route(served: Served) -> None:
    api, client = served
    headers = api.headers("signals", name="collector")
    post(client, LOGS, logs(RESOURCE, [record(by_logger())] * 3), JSON, headers)
    post(client, METRICS, metrics(RESOURCE, histogram("h", 2)), JSON, headers)
    api.app.state.losses.flush()
    lost = client.get("/api/v1/signals/losses", headers=api.headers("viewer")).json()["items"]
    losses = {(one["source"], one["reason"]): (one["count"], one["who"]) for one in lost}
    assert losses[("otlp/v1/logs", "not_kernel")] == (3, "collector")
    assert losses[("otlp/v1/metrics", "rejected")] == (2, "collector")
    assert json.dumps(lost)
