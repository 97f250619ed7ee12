"""Alerts of other systems -> observations of kind `alert`.

`POST /signals/alertmanager` takes Alertmanager's webhook (version 4) and Grafana's variant of it (version 1,
with `orgId` and more around the alerts). Alertmanager sends the whole group again after each change and every
`repeat_interval`, so an alert's identity is its cluster, fingerprint, status and time, never the sender's
address: two Alertmanagers in a high-availability pair both send the same alert.

The meaning of an alert is decided elsewhere: `rules/alerts.yaml` and `healer.detection.reported`.

CloudEvents 1.0 carry alerts, and bodies of healer's own routes. Three modes of the HTTP binding: one event as
JSON (`application/cloudevents+json`), several (`application/cloudevents-batch+json`), and an event whose
attributes are headers (`ce-…`) around its data.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal
from urllib.parse import unquote

import msgspec

from healer.model import Component, Observation, ObservationKind
from healer.signals.hardware_names import wrong_port
from healer.signals.identity import digest_of
from healer.signals.kernel_log import normal_pci
from healer.signals.rejects import BadBody, BadEntry, Rejects, utc_time
from healer.signals.series import CLUSTER_LABELS, NODE_LABELS, check_labels, gpu_index, node_of_labels
from healer.signals.wire import Accepted, HasNode, effective_time
from healer.text import joined, say

#: The most alerts per request: a group of a whole cluster's nodes is far below this.
ALERTS_MAX = 10_000
#: Labels that name a switch, if none names a node: those of SNMP exporters and Slurm's own word.
SWITCH_LABELS = ("switch", "sysname", "sysName")
#: The annotation that is kept (the first one present), and how many characters of it.
_ANNOTATIONS = ("summary", "message", "description")
TEXT_MAX = 500
URL_MAX = 1000
#: A repeated alert is recorded once in this many seconds: `stays_h` is in hours.
AGAIN_S = 3600
#: Versions of the webhook: Alertmanager's, and the one that Grafana writes together with its `orgId`.
_VERSION, _GRAFANA = "4", "1"
_FIRST_YEAR = 1970
#: A fingerprint is a hash in hex; anything longer is hashed, so that no sender chooses what is stored.
_FINGERPRINT = re.compile(r"[0-9a-f]{8,64}")


class Alert(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One alert as Alertmanager sends it. `ends_at` is the year 1 while it fires."""

    status: Literal["firing", "resolved"]
    labels: dict[str, str]
    starts_at: str
    ends_at: str | None = None
    annotations: dict[str, str] | None = None
    fingerprint: Annotated[str, msgspec.Meta(max_length=256)] = ""
    generator_url: str | None = msgspec.field(default=None, name="generatorURL")


class AlertGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of the webhook. Its other fields are not read: the alerts repeat what matters."""

    version: str
    alerts: list[Alert]
    receiver: str = ""
    external_url: str = msgspec.field(default="", name="externalURL")
    truncated_alerts: int = 0


class Alerts(Accepted, frozen=True, kw_only=True):
    """`lost`: the number of alerts that the sender itself reports as left out."""

    lost: int = 0

    def nodes(self) -> set[tuple[str, str]]:
        """Every (cluster, node or "") that is named: for tokens bound to one of them."""
        return {
            (observation.component.cluster, observation.component.node or "")
            for observation in self.observations
        }


class Site(msgspec.Struct, frozen=True):
    """The known objects. `cluster`: the cluster of alerts that name none (empty: they must); `served`: all
    our clusters; `has_switch`: whether a cluster has such a switch."""

    cluster: str
    served: tuple[str, ...]
    has_node: HasNode
    has_switch: HasNode


def alertmanager_observations(body: Any, site: Site, now: datetime) -> Alerts:
    """`body` is the decoded JSON of one group. Raises BadBody."""
    alerts, lost, source = _group(body)
    heap = _Heap(site, now)
    for index, item in enumerate(alerts):
        heap.take(index, item, source)
    return heap.done(lost)


class Enveloped(msgspec.Struct, frozen=True, kw_only=True):
    """An alert in an envelope of its own: `id` and `source` are its identity, `index` the number under which
    it is rejected."""

    index: int
    alert: Any
    source: str
    id: str


def enveloped_observations(items: Iterable[Enveloped], site: Site, now: datetime) -> Alerts:
    """Alerts of several senders. Raises nothing: invalid ones are rejected."""
    heap = _Heap(site, now)
    for item in items:
        heap.take(item.index, item.alert, item.source, item.id)
    return heap.done(0)


def repeated_alert(seen: Observation) -> Observation:
    """The same alert, repeated: stored at most once an hour, so that healer notices when it is no longer
    repeated."""
    hour = int(seen.arrived_at.timestamp()) // AGAIN_S
    data = seen.data | {"again": seen.digest}
    return msgspec.structs.replace(seen, digest=digest_of("alert-again", seen.digest, hour), data=data)


def _group(body: Any) -> tuple[list[Any], int, str]:
    """(the alerts, the number left out, the sender)."""
    if not isinstance(body, dict):
        raise BadBody(say("signals.alerts_shape"))
    version, alerts = body.get("version"), body.get("alerts")
    if version != _VERSION and not (version == _GRAFANA and "orgId" in body):
        sent = repr(version)[:50]
        raise BadBody(say("signals.alerts_version", version=sent, alertmanager=_VERSION, grafana=_GRAFANA))
    if not isinstance(alerts, list):
        raise BadBody(say("signals.alerts_list"))
    if len(alerts) > ALERTS_MAX:
        raise BadBody(say("signals.too_many_alerts", n=len(alerts), most=ALERTS_MAX))
    lost = 0 if body.get("truncatedAlerts") is None else body["truncatedAlerts"]
    if type(lost) is not int or not 0 <= lost < 2**53:
        raise BadBody(say("signals.alerts_truncated"))
    return alerts, lost, str(body.get("externalURL") or "")[:URL_MAX]


class _Heap:
    """Sorts the alerts of one request."""

    def __init__(self, site: Site, now: datetime) -> None:
        self.site, self.now = site, now
        self.rejects = Rejects()
        self.seen: list[Observation] = []
        self.unrecognised = 0

    def take(self, index: int, item: Any, source: str, name: str = "") -> None:
        try:
            alert = msgspec.convert(item, Alert)
            where = _where(alert.labels, self.site)
            if where is None:
                self.unrecognised += 1
            else:
                self.seen.append(_observation(alert, where, self.now, source, name))
        except (BadEntry, msgspec.ValidationError) as error:
            self.rejects.add(index, error)

    def done(self, lost: int) -> Alerts:
        return Alerts(
            observations=tuple(self.seen),
            unrecognised=self.unrecognised,
            rejected=self.rejects.sorted(),
            rejected_more=self.rejects.more,
            lost=lost,
        )


def _where(labels: Mapping[str, str], site: Site) -> Component | None:
    """The node, else the switch, named by the labels, with its part; None if they name nothing of ours.

    The words are those of series (`healer.signals.series`).
    """
    if why := check_labels(dict(labels)):
        raise BadEntry(say("signals.field", field="labels", text=why))
    if not labels.get("alertname"):
        raise BadEntry(say("signals.no_alertname"))
    named = next((labels[name] for name in CLUSTER_LABELS if labels.get(name) in site.served), None)
    cluster = named or site.cluster
    if not cluster:
        raise BadEntry(say("signals.alert_cluster", clusters=joined(site.served, "comma")))
    home = node_of_labels(labels, site.has_node, cluster)
    if not isinstance(home, str):
        return _part(labels, *home)
    for name in SWITCH_LABELS:
        switch = labels.get(name)
        if switch and site.has_switch(cluster, switch):
            return Component(cluster=cluster, switch=switch)
    return None


def _part(labels: Mapping[str, str], cluster: str, node: str) -> Component:
    device, port = labels.get("device", ""), labels.get("port", "")
    nic = f"{device}/{port}" if device and port else device
    return Component(
        cluster=cluster,
        node=node,
        gpu=gpu_index(labels.get("gpu")),
        pci=normal_pci(labels.get("pci_bus_id") or ""),
        nic=nic if nic and wrong_port(nic) is None else None,
    )


def _observation(alert: Alert, where: Component, now: datetime, source: str, envelope: str) -> Observation:
    reported = utc_time(alert.starts_at, "startsAt")
    begun = effective_time(reported, now)
    if begun.year < _FIRST_YEAR:
        raise BadEntry(say("signals.alert_too_early", time=alert.starts_at[:40]))
    firing = alert.status == "firing"
    ended = None if firing or not alert.ends_at else effective_time(utc_time(alert.ends_at, "endsAt"), now)
    if ended is not None and ended < begun:
        ended = None  # the year 1, or a clock that jumped: only the end counts, not its time
    fingerprint = alert.fingerprint
    if not _FINGERPRINT.fullmatch(fingerprint):
        fingerprint = digest_of("fingerprint", fingerprint, *sorted(alert.labels.items()))[:32]
    # Two of our clusters may have nodes of the same names, and so the same labels. The time is the one in the
    # alert: a repeat by a clock that is ahead is a repeat too.
    same = ("alert", where.cluster, fingerprint, f"{reported.timestamp():.3f}", alert.status)
    if envelope:
        same = ("alert-event", where.cluster, source, envelope)
    # The sender chooses the fingerprint and the envelope, so the place is part of the identity too.
    here = (where.node or "", where.switch or "", str(where.gpu), where.pci or "", where.nic or "")
    url = alert.generator_url or ""
    # One line for people.
    notes = alert.annotations or {}
    text = next((notes[name] for name in _ANNOTATIONS if notes.get(name)), "")
    return Observation(
        digest=digest_of(*same, *here),
        kind=ObservationKind.alert,
        component=where,
        event_at=begun if firing else (ended or now),
        arrived_at=now,
        text=alert.labels["alertname"],
        data={
            "status": alert.status,
            "fingerprint": fingerprint,
            "starts_at": begun.isoformat(),
            **({"ends_at": ended.isoformat()} if ended else {}),
            "labels": alert.labels,
            "summary": " ".join(text[: 4 * TEXT_MAX].split())[:TEXT_MAX],
            "source": source,
            "url": url if url.startswith(("http://", "https://")) and len(url) <= URL_MAX else "",
        },
    )


STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
#: The most events per request. Each may contain a whole body of another route.
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
#: Labels that name the GPU or port, and those that name a place at all: the end of an alert at one place does
#: not end an alert at another.
_PARTS = ("pci_bus_id", "UUID", "uuid", "gpu_uuid", "gpu", "nvlink", "device", "port")
_PLACES = (*CLUSTER_LABELS, *NODE_LABELS, *SWITCH_LABELS, *_PARTS)
#: Values of `data.status` of any other event that mean that it is over.
_OVER = frozenset({"resolved", "ok", "recovered", "cleared"})
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
#: Fields of `data` that become labels of an event named by `rules/alerts.yaml`.
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
        raise BadBody(say("signals.batch_list"))
    if not batch and not isinstance(body, dict):
        raise BadBody(say("signals.one_event"))
    items = body if batch else [body]
    if len(items) > EVENTS_MAX:
        raise BadBody(say("signals.too_many_events", n=len(items), most=EVENTS_MAX))
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
        raise BadEntry(say("signals.event_shape"))
    for name in _STRINGS:
        value = item.get(name)
        if value is None and name not in _REQUIRED:
            continue
        if not isinstance(value, str) or not value:
            raise BadEntry(say("signals.missing" if value is None else "signals.must_be_text", name=name))
        if len(value) > ATTRIBUTE_MAX:
            raise BadEntry(say("signals.too_long", name=name, most=ATTRIBUTE_MAX))
    if item["specversion"] != "1.0":
        raise BadEntry(say("signals.event_version", version=item["specversion"][:20]))
    if item.get("time") is not None:
        utc_time(item["time"])
    kind = str(item.get("datacontenttype") or "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise BadEntry(say("signals.event_content", kind=kind[:60]))
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
        raise BadEntry(say("signals.event_base64")) from None


# --- events that are alerts ------------------------------------------------------------------------------


def alert_in(event: Event, named: Sequence[str], now: datetime) -> Enveloped | None:
    """The alert in an event; None if its type means nothing to healer.

    `named`: the types in the request that `rules/alerts.yaml` takes. Raises BadEntry.
    """
    if event.type == ALERT:
        alert = _alertmanager_form(event, now)
    elif event.type == NVSENTINEL:
        alert = _nvsentinel(event, now)
    elif event.type in named:
        alert = _other(event, now)
    else:
        return None
    return Enveloped(index=event.index, alert=alert, source=event.source, id=event.id)


def _object(event: Event) -> dict[str, Any]:
    if not isinstance(event.data, dict):
        raise BadEntry(say("signals.data_object"))
    return event.data


def _alertmanager_form(event: Event, now: datetime) -> dict[str, Any]:
    """In Alertmanager's form: `status`, `labels`, `annotations`, `startsAt`."""
    alert = {"status": "firing", "startsAt": event.time or now.isoformat()} | _object(event)
    labels = alert.get("labels")
    if isinstance(labels, dict) and not alert.get("fingerprint"):
        same = sorted((str(name), str(value)) for name, value in labels.items())
        alert["fingerprint"] = digest_of("event", event.source, *same)
    return alert


def _nvsentinel(event: Event, now: datetime) -> dict[str, Any]:
    health = _object(event).get("healthEvent")
    if not isinstance(health, dict):
        raise BadEntry(say("signals.no_health_event"))
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
        labels["error_code"] = ",".join(_word(code) for code in codes[:8])
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
    """An event of a type named by the site's rules: the plain fields of its data are the labels."""
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
