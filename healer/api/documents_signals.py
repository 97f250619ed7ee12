"""The signal routes in the OpenAPI document: FastAPI does not see them, so they are described here."""

from collections.abc import Sequence
from typing import Any

import msgspec

from healer.api.views import HookAnswer
from healer.signals import wire
from healer.signals.alerts import AlertGroup
from healer.signals.checkpoints import JobCheckpointBody
from healer.signals.hooks import HOOKS, HookReport
from healer.signals.step_times import StepSample


class KernelLog(msgspec.Struct, kw_only=True):
    """Kernel lines of one node. An entry may name a node, cluster or boot of its own."""

    entries: list[wire.KernelEntry]
    cluster: str | None = None
    node: str | None = None
    boot_id: str | None = None


class Metrics(msgspec.Struct, kw_only=True):
    """What one node measured: by name, one value for each GPU; null where there is none.

    `host` holds the node's own values, `ports` those of each network port (`mlx5_0/1`), `links` a list for
    each GPU with a value for each of its NVLinks.
    """

    node: str
    cluster: str | None = None
    time: str | None = None
    gpu: dict[str, list[float | None]] = {}
    host: dict[str, float | None] = {}
    ports: dict[str, dict[str, float | None]] = {}
    links: dict[str, list[list[float | None]]] = {}


class CloudEvent(msgspec.Struct, kw_only=True):
    """A CloudEvents 1.0 event. `data` is the body of one of healer's routes, or an alert: by `type`."""

    specversion: str
    id: str
    source: str
    type: str
    subject: str | None = None
    time: str | None = None
    datacontenttype: str | None = None
    data: Any = None


class StepTimes(msgspec.Struct, kw_only=True):
    """Step times of one life of a job."""

    job: str | int
    samples: list[StepSample]
    restart: int = 0
    cluster: str | None = None


#: In the order that `signal_paths` expects.
TYPES = (
    KernelLog, wire.Heartbeat, Metrics, StepTimes, JobCheckpointBody, HookReport, AlertGroup, CloudEvent,
    HookAnswer,
)  # fmt: skip

_TEXT = {"schema": {"type": "string"}}


def signal_paths(prefix: str, schemas: Sequence[Any], accepted: Any) -> dict[str, Any]:
    """`schemas` are those of TYPES; `accepted` is the answer's."""
    stored = {"202": {"description": "stored", "content": {"application/json": {"schema": accepted}}}}
    nothing = {"204": {"description": "stored"}}
    *bodies, group, event, answer_of_hooks = schemas
    kernel, beat, metrics, steps, checkpoint, report = (
        {"application/json": _one_or_many(one)} for one in bodies
    )
    told = {"202": {"description": "stored", "content": {"application/json": {"schema": answer_of_hooks}}}}
    text = {kind: _TEXT for kind in ("text/plain", "application/openmetrics-text")}
    xml = {kind: _TEXT for kind in ("text/xml", "application/xml", "text/plain")}
    protobuf = {"application/x-protobuf": {"schema": {"type": "string", "format": "binary"}}}
    otlp = protobuf | {"application/json": {"schema": {"type": "object"}}}
    partly = {"200": {"description": "stored, but for what `partialSuccess` tells", "content": otlp}}
    shipped = {
        "application/json": _one_or_many({"type": "object"}),
        "application/x-ndjson": _TEXT,
        "application/vnd.fdo.journal": _TEXT,
    }
    alerts = {"application/json": {"schema": group}}
    events = {
        "application/cloudevents+json": {"schema": event},
        "application/cloudevents-batch+json": {"schema": {"type": "array", "items": event}},
    }
    rows = (
        (
            "kernel-log",
            "Kernel lines",
            kernel | {"text/plain": _TEXT},
            ("cluster", "node", "boot_id"),
            stored,
        ),
        ("logs", "What log shippers send: the kernel lines among it", shipped, ("cluster", "node"), stored),
        ("heartbeat", "A sender lives", beat, (), stored),
        ("metrics", "Metrics, columnar by node", metrics, (), stored),
        ("prometheus/write", "Prometheus remote_write 1.0, snappy", protobuf, (), nothing),
        ("openmetrics", "Metrics as exporters print them", text, ("cluster", "node", "device"), stored),
        ("otlp/v1/logs", "OTLP logs: the kernel lines among them", otlp, ("cluster", "node"), partly),
        ("otlp/v1/metrics", "OTLP metrics: gauges and cumulative sums", otlp, ("cluster",), partly),
        ("nvidia-smi", "The XML of nvidia-smi -q -x", xml, ("cluster", "node"), stored),
        ("step-times", "Step times of a job's ranks", steps, (), stored),
        ("checkpoints", "What a job can go back to", checkpoint, (), stored),
        ("alertmanager", "Alerts of Alertmanager and Grafana", alerts, (), stored),
        ("cloudevents", "CloudEvents 1.0: our own bodies, and alerts", events, (), stored),
        *((f"hooks/{hook}", f"What Slurm's {hook} saw of its node", report, (), told) for hook in HOOKS),
    )
    return {
        f"{prefix}/signals/{name}": {
            "post": {
                "operationId": name.replace("-", "_").replace("/", "_"),
                "summary": summary,
                "parameters": [_query(field) for field in query],
                "requestBody": {"required": True, "content": body},
                "responses": dict(answer),
            }
        }
        for name, summary, body, query, answer in rows
    }


def _one_or_many(schema: Any) -> dict[str, Any]:
    return {"schema": {"anyOf": [schema, {"type": "array", "items": schema}]}}


def _query(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "query",
        "schema": {"type": "string"},
        "description": "for bodies that are not JSON",
    }
