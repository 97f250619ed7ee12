"""CloudEvents 1.0 -> what they carry: bodies of healer's own routes, and alerts.

Three modes of the HTTP binding: one event as JSON (`application/cloudevents+json`), several
(`application/cloudevents-batch+json`), and an event whose attributes are headers (`ce-…`) around its data.
"""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import msgspec

from healer.signals.alerts import SWITCH_LABELS, Enveloped
from healer.signals.identity import digest_of
from healer.signals.rejects import BadBody, BadEntry, Rejects, utc_time
from healer.signals.series import CLUSTER_LABELS, NODE_LABELS

STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
#: Events of one request. Each may hold a whole body of another route.
EVENTS_MAX = 1000
#: Attributes are short: the specification asks senders to keep an event's context far below this.
ATTRIBUTE_MAX = 1024

#: Our own types -> the route whose body `data` is.
ROUTES = {
    f"io.healer.signal.{route}.v1": route
    for route in ("kernel-log", "heartbeat", "checkpoints", "step-times", "metrics")
}
ALERT = "io.healer.alert.v1"
#: What NVSentinel's event exporter sends (its data: `healthEvent`); read from its public sources of 2026, not
#: tried with a running one.
NVSENTINEL = "com.nvidia.nvsentinel.health.v1"
#: Its kinds of what is hit -> the labels of series.
_ENTITIES = {"PCI": "pci_bus_id", "GPU_UUID": "UUID", "GPU": "gpu", "NIC": "device"}
#: Labels that say which GPU or port is hit, and those that name a place at all: an alert of one place is not
#: ended by the end of another's.
_PARTS = ("pci_bus_id", "UUID", "uuid", "gpu_uuid", "gpu", "nvlink", "device", "port")
_PLACES = (*CLUSTER_LABELS, *NODE_LABELS, *SWITCH_LABELS, *_PARTS)
#: Words in `data.status` of any other event that say that it is over.
_OVER = frozenset({"resolved", "ok", "recovered", "cleared"})
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
#: Fields of `data` that become labels of an event that `rules/alerts.yaml` names.
_LABELS_MAX = 48

_REQUIRED = ("specversion", "id", "source", "type")
_STRINGS = (*_REQUIRED, "subject", "time", "datacontenttype", "dataschema")


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event. `index` is its number in the request, `data` decoded JSON (None where there is none)."""

    index: int
    id: str
    source: str
    type: str
    subject: str = ""
    time: str | None = None
    data: Any = None


def events_of(body: Any, *, batch: bool, rejects: Rejects) -> list[Event]:
    """The events of decoded JSON, one or a list of them. Wrong ones are rejected. Raises BadBody."""
    if batch and not isinstance(body, list):
        raise BadBody("the body: a batch is a list of events")
    if not batch and not isinstance(body, dict):
        raise BadBody("the body: expected one event; a list of them is application/cloudevents-batch+json")
    items = body if batch else [body]
    if len(items) > EVENTS_MAX:
        raise BadBody(f"the body: {len(items)} events, at most {EVENTS_MAX} are taken in one request")
    found: list[Event] = []
    for index, item in enumerate(items):
        try:
            found.append(_event(index, item))
        except BadEntry as error:
            rejects.add(index, error)
    return found


def attributes_of(headers: Mapping[str, str]) -> dict[str, str]:
    """The attributes of an event in binary mode, from `ce-…` headers (names in small letters).

    A value in quotes is unquoted first, then percent-decoded once (HTTP binding 1.0.2, 3.1.3.2).
    """
    return {
        name.removeprefix("ce-"): unquote(_unquoted(value), errors="replace")
        for name, value in headers.items()
        if name.startswith("ce-")
    }


def _unquoted(value: str) -> str:
    """A header's quoted-string (RFC 9110, 5.6.4) without its quotes and escapes; any other value as it is."""
    quoted = _QUOTED.fullmatch(value.strip())
    return value if quoted is None else _ESCAPED.sub(r"\1", quoted[1])


def _event(index: int, item: Any) -> Event:
    if not isinstance(item, dict):
        raise BadEntry("expected an object with `specversion`, `id`, `source` and `type`")
    for name in _STRINGS:
        value = item.get(name)
        if value is None and name not in _REQUIRED:
            continue
        if not isinstance(value, str) or not value:
            raise BadEntry(f"{name}: {'missing' if value is None else 'has to be a text that is not empty'}")
        if len(value) > ATTRIBUTE_MAX:
            raise BadEntry(f"{name}: more than {ATTRIBUTE_MAX} characters")
    if item["specversion"] != "1.0":
        raise BadEntry(f"specversion: {item['specversion'][:20]}; 1.0 is understood")
    if item.get("time") is not None:
        utc_time(item["time"])
    kind = str(item.get("datacontenttype") or "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise BadEntry(f"datacontenttype: {kind[:60]}; JSON is understood")
    return Event(
        index=index,
        id=item["id"],
        source=item["source"],
        type=item["type"],
        subject=item.get("subject") or "",
        time=item.get("time"),
        data=_unpacked(item["data_base64"]) if "data_base64" in item else item.get("data"),
    )


def _unpacked(text: Any) -> Any:
    try:
        return msgspec.json.decode(base64.b64decode(text, validate=True))
    except (TypeError, ValueError, binascii.Error, RecursionError):
        raise BadEntry("data_base64: is not JSON in base64") from None


# --- events that are alerts ------------------------------------------------------------------------------


def alert_in(event: Event, named: Sequence[str], now: datetime) -> Enveloped | None:
    """The alert that an event tells of; None where its type says nothing to healer.

    `named`: the types that `rules/alerts.yaml` takes of those in the request. Raises BadEntry.
    """
    if event.type == ALERT:
        alert = _own(event, now)
    elif event.type == NVSENTINEL:
        alert = _nvsentinel(event, now)
    elif event.type in named:
        alert = _other(event, now)
    else:
        return None
    return Enveloped(index=event.index, alert=alert, source=event.source, id=event.id)


def _object(event: Event) -> dict[str, Any]:
    if not isinstance(event.data, dict):
        raise BadEntry("data: expected an object")
    return event.data


def _own(event: Event, now: datetime) -> dict[str, Any]:
    """As Alertmanager tells one: `status`, `labels`, `annotations`, `startsAt`."""
    told = {"status": "firing", "startsAt": event.time or now.isoformat()} | _object(event)
    labels = told.get("labels")
    if isinstance(labels, dict) and not told.get("fingerprint"):
        same = sorted((str(name), str(value)) for name, value in labels.items())
        told["fingerprint"] = digest_of("event", event.source, *same)
    return told


def _nvsentinel(event: Event, now: datetime) -> dict[str, Any]:
    health = _object(event).get("healthEvent")
    if not isinstance(health, dict):
        raise BadEntry("data: `healthEvent` is missing")
    labels = {
        "alertname": _word(health.get("checkName")),
        "node": _word(health.get("nodeName")) or event.subject,
        "agent": _word(health.get("agent")),
        "component": _word(health.get("componentClass")),
        "fatal": "true" if health.get("isFatal") is True else "false",
        "action": _word(health.get("recommendedAction")),
        "event_type": event.type,
    }
    codes, entities = health.get("errorCode"), health.get("entitiesImpacted")
    if isinstance(codes, list) and codes:
        labels["error_code"] = ",".join(_word(one) for one in codes[:8])
    for entity in entities[:16] if isinstance(entities, list) else ():
        if isinstance(entity, dict) and (label := _ENTITIES.get(_word(entity.get("entityType")))):
            labels.setdefault(label, _word(entity.get("entityValue")))
    hit = [labels.get(name, "") for name in _PARTS]
    return {
        "status": "resolved" if health.get("isHealthy") is True else "firing",
        "labels": {name: value for name, value in labels.items() if value},
        "annotations": {"summary": _word(health.get("message"), 500)},
        "startsAt": event.time or now.isoformat(),
        "fingerprint": digest_of("event", event.source, labels["alertname"], labels["node"], *hit),
    }


def _other(event: Event, now: datetime) -> dict[str, Any]:
    """Of a type that the site's rules name: the plain fields of its data are the labels."""
    data = event.data if isinstance(event.data, dict) else {}
    plain = [
        (name, _word(value)) for name, value in data.items() if isinstance(value, str | int | float | bool)
    ]
    labels = dict(plain[:_LABELS_MAX])
    if event.subject:
        labels.setdefault("node", event.subject)
    summary = labels.get("message") or labels.get("summary") or ""
    over = str(data.get("status", "")).lower() in _OVER
    return {
        "status": "resolved" if over else "firing",
        "labels": labels | {"alertname": event.type},
        "annotations": {"summary": summary},
        "startsAt": event.time or now.isoformat(),
        "fingerprint": digest_of(
            "event", event.source, event.type, event.subject, *(labels.get(name, "") for name in _PLACES)
        ),
    }


def _word(value: Any, most: int = 200) -> str:
    if value is None or isinstance(value, dict | list):
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)[:most]
