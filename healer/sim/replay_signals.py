"""Recorded signals -> observations, by the API's own decoders: events of all routes, and heartbeats.

Nearly all lines of a recording are plain heartbeats: `Beats` reads these by a fast path with the same result
as the API's decoder."""

import base64
import binascii
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Protocol

import msgspec
from msgspec.structs import replace

from healer.model import Component, Observation, ObservationKind, Ruleset
from healer.recordings.recording import Entry
from healer.signals import otlp_logs, wire
from healer.signals.alert_bodies import (
    ROUTES,
    Alerts,
    Enveloped,
    Event,
    Site,
    alert_in,
    alertmanager_observations,
    enveloped_observations,
    events_of,
    repeated_alert,
)
from healer.signals.hook_reports import arrivals, hook_reports
from healer.signals.logs import Record, export_records, json_records, kernel_records, record_of
from healer.signals.rejects import BadEntry, Rejected, Rejects
from healer.text import say

COLUMNAR = "signals/metrics"
TEXT = "signals/openmetrics"
REMOTE_WRITE = "signals/prometheus/write"
NVIDIA_SMI = "signals/nvidia-smi"
OTLP_METRICS = "signals/otlp/v1/metrics"
STEP_TIMES = "signals/step-times"
CHECKPOINTS = "signals/checkpoints"

#: Routes of samples, which wait for the next tick and need no walk.
SAMPLES = frozenset({COLUMNAR, TEXT, REMOTE_WRITE, NVIDIA_SMI, OTLP_METRICS, STEP_TIMES})
MEASURED = SAMPLES | {CHECKPOINTS}


HOOKS_ROUTE = "signals/hooks/"


class Answered(Protocol):
    """What every route answers of a body's wrong entries."""

    @property
    def rejected(self) -> Sequence[Rejected]: ...
    @property
    def rejected_more(self) -> int: ...


class Refused:
    """Recorded entries that a route refused: their number, and the line and reason of the first."""

    def __init__(self) -> None:
        self.entries, self.first = 0, ""

    def count(self, entry: Entry, answer: Answered) -> None:
        self.entries += len(answer.rejected) + answer.rejected_more
        if answer.rejected and not self.first:
            wrong = answer.rejected[0]
            self.first = f"{entry.place}, entry {wrong.index}: {wrong.reason}"


class EventRoutes:
    """`sampled` takes entries of samples that events carry; `seen` holds the digests of earlier
    observations."""

    def __init__(
        self,
        cluster: str,
        rules: Ruleset,
        site: Callable[[str], Site],
        sampled: Callable[[Entry], list[Observation]],
        seen: Container[str],
    ) -> None:
        self._cluster, self._rules, self._site = cluster, rules, site
        self._sampled, self._seen = sampled, seen
        self._routes: Mapping[str, Callable[[Entry, Site], wire.Accepted]] = {
            "signals/kernel-log": self._kernel_log,
            "signals/heartbeat": self._heartbeat,
            "signals/logs": self._logs,
            "signals/otlp/v1/logs": self._otlp_logs,
            "signals/alertmanager": self._alertmanager,
            "signals/cloudevents": self._cloudevents,
        }

    def parsed(self, entry: Entry) -> wire.Accepted | None:
        """None for another route. Raises ValueError for a body that does not fit its route."""
        site = self._site(entry.query.get("cluster") or self._cluster)
        if entry.route in MEASURED:
            return wire.Accepted(observations=tuple(self._sampled(entry)))
        if entry.route.startswith(HOOKS_ROUTE):
            return self._hooks(entry, site)
        take = self._routes.get(entry.route)
        return None if take is None else take(entry, site)

    # --- kernel lines ---

    def _kernel_log(self, entry: Entry, site: Site) -> wire.Accepted:
        query, book = entry.query, self._rules.kernel_lines
        body = wire.kernel_log_body(entry.raw) or entry.body
        if not isinstance(body, str):
            return wire.kernel_log_observations(
                body, site.has_node, entry.at, cluster=site.cluster, book=book
            )
        source = wire.NodeBoot(site.cluster, query.get("node", ""), query.get("boot_id"))
        return wire.kernel_text_observations(body, site.has_node, entry.at, source, book=book)

    def _heartbeat(self, entry: Entry, site: Site) -> wire.Accepted:
        return wire.heartbeat_observations(entry.body, site.has_node, entry.at, cluster=site.cluster)

    def _logs(self, entry: Entry, site: Site) -> wire.Accepted:
        """JSON as it is; in a string JSON lines, or the journal's export format."""
        body = entry.body
        if not isinstance(body, str):
            return self._records(json_records(entry.raw), entry, site)
        raw = body.encode()
        if raw.lstrip().startswith((b"{", b"[")):
            return self._records(json_records(raw), entry, site)
        exported = (record_of(index, fields) for index, fields in enumerate(export_records(raw)))
        return self._records(exported, entry, site)

    def _otlp_logs(self, entry: Entry, site: Site) -> wire.Accepted:
        """OTLP's JSON as it is; protobuf as base64 in a string."""
        body = entry.body
        records = (
            otlp_logs.records(unpacked(body)) if isinstance(body, str) else otlp_logs.json_records(entry.raw)
        )
        return self._records(records, entry, site)

    def _records(self, records: Iterable[Record], entry: Entry, site: Site) -> wire.Accepted:
        return kernel_records(
            records,
            site.has_node,
            entry.at,
            cluster=site.cluster,
            node=entry.query.get("node"),
            book=self._rules.kernel_lines,
        ).accepted

    # --- alerts and envelopes ---

    def _alertmanager(self, entry: Entry, site: Site) -> wire.Accepted:
        return self._with_repeats(alertmanager_observations(entry.body, site, entry.at))

    def _with_repeats(self, alerts: Alerts) -> wire.Accepted:
        """Adds the repeats of firing alerts, which keep them open, as the API does."""
        again = [
            repeated_alert(observation)
            for observation in alerts.observations
            if observation.data["status"] == "firing" and observation.digest in self._seen
        ]
        return wire.Accepted(
            observations=(*alerts.observations, *again),
            unrecognised=alerts.unrecognised,
            rejected=alerts.rejected,
            rejected_more=alerts.rejected_more,
        )

    def _cloudevents(self, entry: Entry, site: Site) -> wire.Accepted:
        """Inner bodies go to their own routes; other events are alerts."""
        rejects = Rejects()
        body = entry.body
        events = events_of(body, batch=isinstance(body, list), rejects=rejects)
        inner = [event for event in events if event.type in ROUTES]
        others = [event for event in events if event.type not in ROUTES]
        items, unrecognised = self._alerts_in(others, entry, rejects)
        alerts = self._with_repeats(enveloped_observations(items, site, entry.at))
        taken = [alerts]
        for event in inner:
            held = replace(entry, route=f"signals/{ROUTES[event.type]}", raw=msgspec.json.encode(event.data))
            try:
                taken += [accepted for accepted in (self.parsed(held),) if accepted is not None]
            except ValueError as error:  # a bad body rejects that event only
                rejects.add(event.index, error)
        return wire.Accepted(
            observations=tuple(seen for accepted in taken for seen in accepted.observations),
            unrecognised=unrecognised + sum(accepted.unrecognised for accepted in taken),
            rejected=(*rejects.sorted(), *(why for accepted in taken for why in accepted.rejected)),
            rejected_more=rejects.more + sum(accepted.rejected_more for accepted in taken),
            alternatives={key: also for accepted in taken for key, also in accepted.alternatives.items()},
        )

    def _alerts_in(self, events: list[Event], entry: Entry, rejects: Rejects) -> tuple[list[Enveloped], int]:
        globs = {glob for rule in self._rules.alerts for glob in rule.alert}
        named = [
            kind
            for kind in {event.type for event in events}
            if any(fnmatchcase(kind, glob) for glob in globs)
        ]
        items: list[Enveloped] = []
        unrecognised = 0
        for event in events:
            try:
                item = alert_in(event, named, entry.at)
            except BadEntry as error:
                rejects.add(event.index, error)
                continue
            unrecognised += item is None
            items += [item] if item is not None else []
        return items, unrecognised

    # --- hooks ---

    def _hooks(self, entry: Entry, site: Site) -> wire.Accepted:
        """Samples in reports of hooks are handled like all samples."""
        hook = entry.route.removeprefix(HOOKS_ROUTE)
        seen = hook_reports(entry.body, hook, site.has_node, entry.at, cluster=site.cluster)
        inventory: list[Observation] = []
        for report in seen.reports:
            if report.samples:
                inventory += self._sampled(replace(entry, route=COLUMNAR, raw=report.samples))
            if report.xml:
                query = {"cluster": report.cluster, "node": report.node}
                raw = msgspec.json.encode(report.xml.decode())
                inventory += self._sampled(replace(entry, route=NVIDIA_SMI, raw=raw, query=query))
        arrived = list(arrivals(seen))
        return wire.Accepted(
            observations=(*inventory, *(observation for observation, _ in arrived)),
            unrecognised=seen.unrecognised,
            rejected=seen.rejected,
            rejected_more=seen.rejected_more,
            alternatives={observation.digest: also for observation, also in arrived if also},
        )


def unpacked(text: str) -> bytes:
    """The bytes of a body that the recording holds as base64. Raises ValueError."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(say("simulation.not_base64", why=str(error))) from error


HEARTBEAT = "signals/heartbeat"
#: Digests of heartbeats with a time are remembered this long to twice as long, as in production.
KNOWN = timedelta(hours=1)


class Beats:
    """Heartbeats of one cluster, and which of them are new."""

    def __init__(self, cluster: str, start: datetime) -> None:
        self._cluster = cluster
        self._decode = msgspec.json.Decoder(list[wire.Heartbeat] | wire.Heartbeat).decode
        #: Boot id as sent -> normalized; node -> its component, once its name is validated.
        self._boots: dict[str | None, str | None] = {None: None}
        self._parts: dict[str, Component] = {}
        #: Node -> time and boot id of its last heartbeat, to drop duplicates.
        self._last: dict[str | None, tuple[datetime, str | None]] = {}
        self._newer: set[str] = set()
        self._older: set[str] = set()
        self._since = start

    def plain(self, entry: Entry, is_known: wire.HasNode) -> list[Observation] | None:
        """The new heartbeats of a body of plain ones of known nodes; None for any other body, which the API's
        decoder has to read."""
        try:
            beats = self._decode(entry.raw)
        except msgspec.DecodeError:
            return None
        found = []
        for beat in beats if isinstance(beats, list) else (beats,):
            if beat.time is not None or beat.gpus or beat.lost:
                return None
            if beat.cluster != self._cluster and beat.cluster is not None:
                return None
            if not is_known(self._cluster, beat.node):
                return None
            part = self._parts.get(beat.node) or self._part(beat.node, is_known)
            if part is None or (beat.boot_id not in self._boots and not self._learn(beat.boot_id)):
                return None
            found.append((part, self._boots[beat.boot_id]))
        last, at = self._last, entry.at
        new = []
        for part, boot_id in found:
            if last.get(part.node) != (now := (at, boot_id)):
                last[part.node] = now
                new.append(_observed(part, boot_id, at))
        return new

    def is_new(self, beat: Observation) -> bool:
        """Whether a heartbeat that the API's decoder read is new."""
        if beat.arrived_at - self._since > KNOWN:
            self._newer, self._older, self._since = set(), self._newer, beat.arrived_at
        is_new = beat.digest not in self._newer and beat.digest not in self._older
        self._newer.add(beat.digest)
        return is_new

    def _part(self, node: str, is_known: wire.HasNode) -> Component | None:
        if wire.wrong_node(self._cluster, node, is_known):
            return None
        part = self._parts[node] = Component(cluster=self._cluster, node=node)
        return part

    def _learn(self, boot_id: str | None) -> bool:
        normal = wire.normal_boot_id(boot_id)
        if not wire.is_id(normal):
            return False
        self._boots[boot_id] = normal
        return True


def _observed(part: Component, boot_id: str | None, at: datetime) -> Observation:
    return Observation(
        digest=f"beat|{part.node}",
        kind=ObservationKind.heartbeat,
        component=part,
        event_at=at,
        arrived_at=at,
        boot_id=boot_id,
    )
