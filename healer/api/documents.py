"""The OpenAPI document. FastAPI knows paths, parameters and bodies; answers and signals are msgspec's."""

import functools
from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from healer.api.group_commit import Accepted, HookAnswer
from healer.api.request_fields import KEY_FORM
from healer.signals import wire
from healer.signals.alert_bodies import AlertGroup
from healer.signals.hook_reports import HOOKS, HookReport
from healer.signals.step_times import StepSample
from healer.signals.wire import JobCheckpointBody
from healer.text import Said


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
_JSON, _PROTOBUF = "application/json", "application/x-protobuf"
_OTLP = {_PROTOBUF: {"schema": {"type": "string", "format": "binary"}}, _JSON: {"schema": {"type": "object"}}}
_TEXT = {"schema": {"type": "string"}}
_ANY_BUT_JSON = {
    "prometheus/write": {_PROTOBUF: _OTLP[_PROTOBUF]},
    "openmetrics": {kind: _TEXT for kind in ("text/plain", "application/openmetrics-text")},
    "nvidia-smi": {kind: _TEXT for kind in ("text/xml", "application/xml", "text/plain")},
    "otlp/v1/logs": _OTLP,
    "otlp/v1/metrics": _OTLP,
}
#: Route, its body, and its URL parameters.
_SIGNALS = (
    ("kernel-log", "Kernel lines", ("cluster", "node", "boot_id")),
    ("logs", "What log shippers send: the kernel lines among it", ("cluster", "node")),
    ("heartbeat", "A sender lives", ()),
    ("metrics", "Metrics, columnar by node", ()),
    ("prometheus/write", "Prometheus remote_write 1.0, snappy", ()),
    ("openmetrics", "Metrics as exporters print them", ("cluster", "node", "device")),
    ("otlp/v1/logs", "OTLP logs: the kernel lines among them", ("cluster", "node")),
    ("otlp/v1/metrics", "OTLP metrics: gauges and cumulative sums", ("cluster",)),
    ("nvidia-smi", "The XML of nvidia-smi -q -x", ("cluster", "node")),
    ("step-times", "Step times of a job's ranks", ()),
    ("checkpoints", "What a job can go back to", ()),
    ("alertmanager", "Alerts of Alertmanager and Grafana", ()),
    ("cloudevents", "CloudEvents 1.0: our own bodies, and alerts", ()),
    *((f"hooks/{hook}", f"What Slurm's {hook} saw of its node", ()) for hook in HOOKS),
)


def signal_paths(prefix: str, schemas: Sequence[Any], stored: Any) -> dict[str, Any]:
    """`schemas` are those of TYPES; `stored` is the usual answer's."""
    *schemas_of_bodies, answer_of_hooks = schemas
    bodies = _bodies(*schemas_of_bodies)
    made = {}
    for name, summary, query in _SIGNALS:
        if name.startswith("otlp/"):
            text = "stored, but for what `partialSuccess` tells"
            answer = {"200": {"description": text, "content": _OTLP}}
        elif name == "prometheus/write":
            answer = {"204": {"description": "stored"}}
        else:
            schema = answer_of_hooks if name.startswith("hooks/") else stored
            answer = {"202": {"description": "stored", "content": {_JSON: {"schema": schema}}}}
        made[f"{prefix}/signals/{name}"] = {
            "post": {
                "operationId": name.replace("-", "_").replace("/", "_"),
                "summary": summary,
                "parameters": [_query(field) for field in query],
                "requestBody": {"required": True, "content": bodies[name]},
                "responses": answer,
            }
        }
    return made


def _bodies(*schemas: Any) -> dict[str, dict[str, Any]]:
    """Route -> the content of its request, of the schemas of TYPES without the last."""
    kernel, beat, metrics, steps, checkpoint, report, group, event = schemas
    shipped = _one_or_many({"type": "object"})
    return _ANY_BUT_JSON | {
        "kernel-log": {_JSON: _one_or_many(kernel), "text/plain": _TEXT},
        "logs": {_JSON: shipped, "application/x-ndjson": _TEXT, "application/vnd.fdo.journal": _TEXT},
        "heartbeat": {_JSON: _one_or_many(beat)},
        "metrics": {_JSON: _one_or_many(metrics)},
        "step-times": {_JSON: _one_or_many(steps)},
        "checkpoints": {_JSON: _one_or_many(checkpoint)},
        "alertmanager": {_JSON: {"schema": group}},
        "cloudevents": {
            "application/cloudevents+json": {"schema": event},
            "application/cloudevents-batch+json": {"schema": {"type": "array", "items": event}},
        },
        **{f"hooks/{hook}": {_JSON: _one_or_many(report)} for hook in HOOKS},
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


_REF = "#/components/schemas/{name}"
#: Types that answers name, by their place in `answers`.
_types: list[Any] = [Accepted]
_PROBLEM = {
    "type": "object",
    "description": "RFC 9457; `code` is for programs, `detail` for people.",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"field": {"type": "string"}, "detail": {"type": "string"}},
            },
        },
        "guard": {"type": "string", "description": "which guard refused (code guard_refused)"},
        "limit": {"type": ["number", "null"]},
        "used": {"type": ["number", "null"]},
        "frees_at": {"type": ["string", "null"], "format": "date-time"},
    },
}


def answers(
    kind: Any, text: str, status: int = 200, *, also: Sequence[str] = ()
) -> dict[int | str, dict[str, Any]]:
    """`responses=` of a route that answers with the JSON of `kind`, or a text of a media type of `also`."""
    if kind not in _types:
        _types.append(kind)
    schema = {"x-healer-type": _types.index(kind)}
    content = {"application/json": {"schema": schema}}
    content |= {media: {"schema": {"type": "string"}} for media in also}
    return {status: {"description": text, "content": content}}


def streams(media: str, text: str) -> dict[int | str, dict[str, Any]]:
    """`responses=` of a route that answers with a text or file of one media type."""
    return {200: {"description": text, "content": {media: {"schema": {"type": "string"}}}}}


def _sentence_schema(kind: type) -> dict[str, Any]:
    """The schema of a sentence: a text. Raises NotImplementedError for a type that has none."""
    if kind is Said:
        return {"type": "string"}
    raise NotImplementedError(kind.__name__)


def install(app: FastAPI, prefix: str) -> None:
    """Gives `app.openapi()`."""

    @functools.cache
    def document() -> dict[str, Any]:
        made = get_openapi(
            title="healer",
            version=app.version,
            summary="The self-healing control plane for GPU clusters under Slurm",
            routes=app.routes,
        )
        schemas, components = msgspec.json.schema_components(
            [*_types, *TYPES], ref_template=_REF, schema_hook=_sentence_schema
        )
        made["paths"] |= signal_paths(prefix, schemas[-len(TYPES) :], schemas[0])
        holder = made.setdefault("components", {})
        holder["schemas"] = {
            name: schema
            for name, schema in holder.get("schemas", {}).items()
            if name not in {"HTTPValidationError", "ValidationError"}
        } | {_plain(name): schema for name, schema in components.items()}
        holder["schemas"]["Problem"] = _PROBLEM
        holder["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"token": []}]
        _finish(made, schemas)
        return made

    app.openapi = document  # type: ignore[method-assign]


#: Routes that need no token, and those under them.
_OPEN = (
    "/healthz", "/readyz", "/enroll", "/account/password", "/chat/slack", "/break-glass/open", "/login",
)  # fmt: skip
_KEY_HEADER = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "pattern": f"^{KEY_FORM}$"},
    "description": "the same request with the same key gets the same answer for 24 h",
}


def _finish(made: dict[str, Any], schemas: tuple[Any, ...]) -> None:
    """Inserts msgspec's schemas, what needs no token, the key of acting routes, and the problem as the answer
    to everything else."""
    problem = {
        "description": "a problem (RFC 9457)",
        "content": {"application/problem+json": {"schema": {"$ref": _REF.format(name="Problem")}}},
    }
    for path, operations in made["paths"].items():
        is_open = any(f"{path}/".removeprefix("/api/v1").startswith(f"{route}/") for route in _OPEN)
        for method, operation in operations.items():
            if is_open:
                operation["security"] = []
            elif method != "get" and "/signals/" not in path:
                operation.setdefault("parameters", []).append(_KEY_HEADER)
            responses = operation.setdefault("responses", {})
            responses.pop("422", None)
            responses.setdefault("default", problem)
    _replace(made, schemas)


def _replace(part: Any, schemas: tuple[Any, ...]) -> None:
    if isinstance(part, dict):
        number = part.pop("x-healer-type", None)
        if number is not None:
            part.update(schemas[number])
        if isinstance(part.get("$ref"), str):
            head, _, name = part["$ref"].rpartition("/")
            part["$ref"] = f"{head}/{_plain(name)}"
        for value in part.values():
            _replace(value, schemas)
    elif isinstance(part, list):
        for value in part:
            _replace(value, schemas)


def _plain(name: str) -> str:
    """`Page[Incident]` is no name of a component."""
    return "".join(char if char.isalnum() or char in "._-" else "_" for char in name).strip("_")
