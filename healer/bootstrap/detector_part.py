"""The detector of one cluster on PostgreSQL: its walk, and its senses over samples in another thread."""

import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

import sqlalchemy as sa
import structlog

from healer import bootstrap
from healer.adapters.postgres.arrivals import PostgresLosses
from healer.adapters.postgres.inbox import PostgresInbox, inbox_channel
from healer.adapters.postgres.loops import Heartbeat, Waker, returned_nodes, wait_to_lead
from healer.adapters.postgres.migrate import require_tables
from healer.adapters.postgres.node_rows import (
    PostgresFleetFigures,
    PostgresLemons,
    PostgresSnapshots,
    PostgresTrends,
    snapshot_channel,
)
from healer.adapters.postgres.samples import PostgresColumns, PostgresSamples
from healer.adapters.system_clock import SystemClock
from healer.bootstrap.models import ModelKeeper
from healer.bootstrap.prometheus import history_of
from healer.bootstrap.traced_parts import TracedInbox, traces_of
from healer.decisions.comments import remark_in
from healer.detection.fleet_figures import FleetFigures
from healer.detection.forest import Forest
from healer.detection.lemons import Lemons
from healer.detection.tick import Senses
from healer.incidents.node_history import lemon_record
from healer.model import NodeRecord, Ruleset, SlurmSnapshot
from healer.observations import Picture
from healer.observations.job_marks import JobMarks
from healer.ports.measurements import Samples
from healer.processes.detector_loop import Detector, DetectorParts
from healer.processes.metric_history import WarmUp
from healer.processes.recording_queue import Recording
from healer.processes.rulebook import Rulebook
from healer.processes.senses_loop import Chunk, Drops, SensesLoop, SensesParts, Warmed
from healer.recordings.recorder import Recorder
from healer.settings import Settings

log = structlog.get_logger()


def run_detector(settings: Settings) -> None:
    """Waits to lead, then walks until stopped. A leader whose database connection breaks ends, to be
    restarted."""
    stopped = bootstrap.until_stopped()
    db = bootstrap.engine(settings, name="healer detector", pool_size=3)
    cluster = bootstrap.cluster_name(settings)
    rules = bootstrap.rulebook(settings)
    connection = wait_to_lead(db, cluster, stopped.wait)
    if connection is None:
        return
    require_tables(db)  # also where it waited since before an upgrade
    log.info("detector became leader", cluster=cluster)
    waker = Waker(db, [inbox_channel(cluster), snapshot_channel(cluster)])
    cleared = returned_nodes(connection, cluster)
    connection.commit()
    snapshots = PostgresSnapshots(db)  # shared, so that each change is decoded once
    recorder = _recording(settings, db, cluster)
    inbox, beat = _walked(settings, db, cluster)
    parts = DetectorParts(
        cluster=cluster,
        ledger=bootstrap.ledger(settings, db, cluster, connection, snapshots),
        inbox=inbox,
        snapshots=snapshots,
        rules=rules,
        clock=SystemClock(),
        wait=waker.wait,
        poke=bootstrap.poke(settings, cluster),
        cleared=cleared,
        recorder=recorder,
        beat=beat,
    )
    detector = Detector(parts)
    if recorder is not None:
        threading.Thread(target=recorder.run, args=(stopped,), name="recorder", daemon=True).start()
    bootstrap.tune_garbage_collection()
    models = ModelKeeper(db, cluster)
    threading.Thread(target=models.run, args=(stopped,), name="models", daemon=True).start()
    senses = SensesLoop(_senses_parts(settings, db, parts, rules, detector.picture, models.forest()))
    detector.heard, detector.blind = senses.heard, lambda: senses.problem
    threading.Thread(target=senses.run, args=(stopped,), name="senses", daemon=True).start()
    detector.run(stopped.is_set)


def _walked(settings: Settings, db: sa.Engine, cluster: str) -> tuple[PostgresInbox, Callable[[], None]]:
    """The inbox, and what follows each walk."""
    beat, traces = Heartbeat(db, cluster, "detector"), traces_of(settings, "detector", cluster)
    if traces is None:
        return PostgresInbox(db, cluster), beat
    inbox = TracedInbox(db, cluster, traces)

    def after() -> None:
        inbox.walked()
        beat()

    return inbox, after


def _senses_parts(
    settings: Settings, db: sa.Engine, parts: DetectorParts, rules: Rulebook, picture: Picture, trees: Forest
) -> SensesParts:
    """Senses that are made again after a failure read the store again."""
    cluster, columns, past = parts.cluster, PostgresColumns(db), PostgresLemons(db, parts.cluster)
    measured = PostgresFleetFigures(db, cluster)
    reader: list[PostgresSamples] = []

    def pasts(since: datetime, now: datetime) -> list[NodeRecord]:
        return [lemon_record(history, node, now) for node, history in past.histories(since)]

    def make(now_in_force: Ruleset) -> tuple[Senses, Samples]:
        while reader:
            reader.pop().close()
        reader.append(PostgresSamples(db, cluster))
        marks = JobMarks(own_exclusions=lambda job: remark_in(job.admin_comment).off)
        lemons = Lemons(cluster, marks, pasts, past.keep)
        figures = FleetFigures(cluster, measured.read, measured.keep)
        return Senses(cluster, now_in_force, columns, trees, lemons, figures), reader[0]

    return SensesParts(
        rules=rules,
        prove=lambda: "" if rules.prove() else rules.problem,
        make=make,
        picture=picture,
        clock=parts.clock,
        note=parts.recorder.note_samples if parts.recorder else None,
        warmed=_warmed(settings, columns, cluster),
        drops=Drops(PostgresLosses(db), cluster),
        trends=PostgresTrends(db, cluster),
    )


def _warmed(settings: Settings, columns: PostgresColumns, cluster: str) -> Warmed:
    history = history_of(settings, columns, cluster)

    def warmed(
        rules: Ruleset, slurm: SlurmSnapshot | None, stored: Iterator[Chunk], now: datetime
    ) -> Iterator[Chunk]:
        return WarmUp(history(rules.catalogue), cluster, slurm).chunks(stored, now)

    return warmed


def _recording(settings: Settings, db: sa.Engine, cluster: str) -> Recording | None:
    """Writes into the folder HEALER_RECORDING, for `healer replay`. One that cannot be written stops nothing:
    `healer doctor` names it."""
    if settings.recording is None:
        return None
    from healer.recordings.recording_folder import RecordingFolder

    try:
        folder = RecordingFolder(
            settings.recording,
            max_bytes=int(settings.recording_max_gb * 1e9),
            max_age=timedelta(days=settings.recording_days),
            now=SystemClock().now,
        )
    except OSError as error:
        log.error("recording is off, folder not usable", folder=str(settings.recording), error=str(error))
        return None
    return Recording(
        Recorder(folder, PostgresColumns(db)),
        folder,
        book=PostgresLosses(db),
        cluster=cluster,
        clock=SystemClock(),
    )
