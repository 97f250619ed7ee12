"""Recorded samples through the senses of production: the same translator, windows and tick."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from healer.detection.forest import Forest
from healer.detection.tick import TICK_S, Senses
from healer.model import Detections, Observation, Ruleset
from healer.model.telemetry import Report, StepBatch
from healer.observations import Picture
from healer.recordings.recording import Entry
from healer.signals.series import Measured
from healer.signals.step_times import step_batches
from healer.signals.translate import Translator
from healer.signals.wire import checkpoint_observations
from healer.sim.replay_signals import (
    CHECKPOINTS,
    COLUMNAR,
    NVIDIA_SMI,
    OTLP_METRICS,
    REMOTE_WRITE,
    STEP_TIMES,
    TEXT,
    Refused,
    unpacked,
)
from healer.sim.stores import MemoryColumns
from healer.text import say

#: The longest window of a rule: without samples for this long, a tick finds nothing new.
LONGEST = timedelta(minutes=15)
_TICK = timedelta(seconds=TICK_S)
#: Interval of ticks without new samples: they find what follows from the age of samples.
_IDLE_TICK = timedelta(minutes=1)

Known = Callable[[str, str], bool]


class RecordedSamples:
    """The senses of one replay. Ticks are due every 5 s of simulated time while samples come or a fault is
    watched, else each minute."""

    def __init__(
        self, cluster: str, rules: Ruleset, is_known: Known, start: datetime, refused: Refused
    ) -> None:
        book = MemoryColumns()
        self._cluster, self._known = cluster, is_known
        # No recording holds a model of the forest. Its features are sampled all the same, for nodes that
        # changed are found by them; their levels are learnt from the recording itself.
        self._senses = Senses(cluster, rules, book, Forest(lambda: (), lambda _row: None))
        self._translator = Translator(rules.catalogue, book, cluster)
        self._reports: list[Report] = []
        self._batches: list[StepBatch] = []
        self._heard_at = start
        self._due = start + _TICK
        self._refused = refused
        self.unrecognised = 0

    def next_tick(self, now: datetime) -> datetime | None:
        """When the next tick is due; None while there are no samples."""
        return self._due if now - self._heard_at <= LONGEST else None

    def learn_gpus(self, node: str, gpus: Iterable[Mapping[str, Any]]) -> None:
        """A heartbeat of the node lists them."""
        self._translator.learn_gpus(node, gpus)

    def take(self, entry: Entry) -> list[Observation]:
        """Keeps the samples until the next tick. Returns the observations for the walk.

        Raises wire.BadBody (a ValueError) for a body that does not fit its route.
        """
        self._heard_at = entry.at
        # On the grid of 5 s, as in production.
        self._due -= max(0, (self._due - entry.at) // _TICK) * _TICK
        if entry.route == STEP_TIMES:
            parsed = step_batches(entry.raw, self._known, entry.at, cluster=self._cluster)
            self._batches += parsed.batches
            self._refused.count(entry, parsed)
            return []
        if entry.route == CHECKPOINTS:
            accepted = checkpoint_observations(entry.body, entry.at, cluster=self._cluster)
            self._refused.count(entry, accepted)
            return list(accepted.observations)
        measured = self._measured(entry)
        self._reports += measured.reports
        self._refused.count(entry, measured)
        self.unrecognised += measured.unrecognised
        return list(measured.inventory)

    def _measured(self, entry: Entry) -> Measured:
        translator, now = self._translator, entry.at
        if entry.route == COLUMNAR:
            return translator.columnar(entry.raw, self._known, now)
        body = entry.body
        if entry.route == OTLP_METRICS:
            raw = unpacked(body) if isinstance(body, str) else entry.raw
            return translator.otlp(raw, self._known, now, json=not isinstance(body, str))
        if not isinstance(body, str):
            raise ValueError(say("simulation.body_string"))
        node = entry.query.get("node")
        if entry.route == TEXT:
            return translator.exposition(body.encode(), self._known, now, node=node)
        if entry.route == REMOTE_WRITE:
            return translator.remote_write(unpacked(body), self._known, now)
        if entry.route == NVIDIA_SMI and node:
            return translator.nvidia_smi(body.encode(), self._known, now, node=node)
        raise ValueError(say("simulation.route_node"))

    def tick(self, picture: Picture, now: datetime) -> Detections | None:
        """Passes new samples to the senses and runs them if a tick is due."""
        slurm = picture.slurm
        self._senses.renew(picture.nodes.values(), now)
        self._senses.know_parts(picture)
        if self._reports or self._batches:
            reports, self._reports = self._reports, []
            batches, self._batches = self._batches, []
            self._senses.take(reports, batches, slurm, now)
        if now < self._due and picture.node_reports:
            return self._senses.tick_early(slurm, now, picture.node_reports)
        if now < self._due or self.next_tick(now) is None:
            return None
        self._senses.take((), (), slurm, now)
        sensed = self._senses.tick(slurm, now, picture.watched, picture.node_reports, picture.faults)
        idle = self._senses.is_idle and not picture.watched and now - self._heard_at > _TICK
        self._due = now + (_IDLE_TICK if idle else _TICK)
        return sensed
