"""Models of classes of nodes: loaded for the detector, and made again each day.

`python -m healer.bootstrap.models CLUSTER` makes those that are due at the lowest priority; the scheduler
starts it each hour, and `healer model train` makes all at once. `healer model show` says what came of it.
"""

import os
import resource
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import msgspec
import sqlalchemy as sa
import structlog
from sqlalchemy.exc import SQLAlchemyError

from healer import bootstrap
from healer.adapters.postgres.engine import request_errors
from healer.adapters.postgres.forest_rows import PostgresFeatures, PostgresModels, keep_unusual
from healer.adapters.postgres.read_queries import cluster_names
from healer.adapters.system_clock import SystemClock
from healer.detection.forest import Forest
from healer.detection.scorers import Fitted, unusual_of
from healer.detection.training import NoModel, Sick, train, usable
from healer.model.trained import HEALER, ClassCheck, FeatureRow
from healer.processes.scheduler import Program, Refitting
from healer.settings import Settings, SettingsError
from healer.settings import load as load_settings

log = structlog.get_logger()

LOOK_S = 30.0
#: Most feature rows that wait for the database; the oldest are dropped beyond.
WAITING_MAX = 64


class ModelKeeper:
    """Reads, fits and writes in a thread of its own, so that neither walk nor tick waits for it."""

    def __init__(self, db: sa.Engine, cluster: str) -> None:
        self._db, self._models = db, PostgresModels(db, cluster)
        self._features = PostgresFeatures(db, cluster)
        self._fitted: tuple[Fitted, ...] = ()
        self._unusable: set[str] = set()
        self._rows: deque[FeatureRow] = deque(maxlen=WAITING_MAX)

    def forest(self) -> Forest:
        """A new forest over these models."""
        return Forest(lambda: self._fitted, self._rows.append)

    def run(self, stopped: threading.Event) -> None:
        """Runs until stopped. Errors are logged and retried: detection goes on without models."""
        while True:
            try:
                self._store()
                self._look()
            except SQLAlchemyError as error:
                log.warning("models of the isolation forest cannot be read", error=str(error))
            except Exception:
                log.exception("models of the isolation forest cannot be made ready")
            if stopped.wait(LOOK_S):
                return

    def _store(self) -> None:
        """Stores feature rows, and how unusual their nodes are by the models in force."""
        of_class = {(fit.model.hardware, fit.model.load): fit for fit in self._fitted}
        while self._rows:
            row = self._rows.popleft()
            self._features.put(row)
            if (fitted := of_class.get((row.hardware, row.load))) is not None:
                keep_unusual(self._db, unusual_of(fitted, row))

    def _look(self) -> None:
        by_id = {fit.model.id: fit for fit in self._fitted}
        fitted: list[Fitted] = []
        for model in (version.model for version in self._models.in_force()):
            if not usable(model):
                if model.id not in self._unusable:
                    self._unusable.add(model.id)
                    message = "a model of another version is not used: the scheduler makes a new one"
                    log.warning(message, model=model.id[:12], hardware=model.hardware, load=model.load)
                continue
            if model.id not in by_id:
                log.info("model", id=model.id[:12], hardware=model.hardware, load=model.load)
            fitted.append(by_id.get(model.id) or Fitted(self._models.trained(model)))
        self._fitted = tuple(fitted)


@contextmanager
def forest(db: sa.Engine, cluster: str) -> Iterator[Forest]:
    """The detector's forest; its thread runs until the end of the block."""
    keeper, stopped = ModelKeeper(db, cluster), threading.Event()
    thread = threading.Thread(target=keeper.run, args=(stopped,), name="models", daemon=True)
    thread.start()
    try:
        yield keeper.forest()
    finally:
        stopped.set()


@contextmanager
def stores(
    settings: Settings, cluster: str | None, name: str = "healer model"
) -> Iterator[tuple[PostgresModels, PostgresFeatures]]:
    """Raises SettingsError where several clusters may be meant, and healer.ports.request_errors.Unavailable
    when the database does not answer."""
    db = bootstrap.engine(settings, name=name, pool_size=2, role="healer_scheduler")
    try:
        with request_errors():
            where = cluster or settings.cluster or _only_cluster(db)
            yield PostgresModels(db, where), PostgresFeatures(db, where)
    finally:
        db.dispose()


def _only_cluster(db: sa.Engine) -> str:
    with db.connect() as conn:
        names = list(cluster_names(conn))
    if len(names) != 1:
        found = f"there are {', '.join(names)}" if names else "Slurm has shown none yet"
        raise SettingsError(f"--cluster says which cluster is meant: {found}")
    return names[0]


# --- making them ---

#: History that a model is made from, the least of it for the first one, and how often one is made.
SINCE, FIRST_AFTER, EVERY = timedelta(days=7), timedelta(days=1), timedelta(days=1)
#: Limits of the process.
CPU_S, MEMORY_BYTES = 600, 8 * 1024**3


def train_due(
    models: PostgresModels, features: PostgresFeatures, now: datetime, by: str = HEALER
) -> list[ClassCheck]:
    """Makes the models that are due, or all when a person (`by`) wants it; what came of each class."""
    in_force = {
        (version.model.hardware, version.model.load): version.in_force_at for version in models.in_force()
    }
    before = {(look.hardware, look.load): look for look in models.looks()}
    sick, found = features.sick(now - SINCE, now), []
    for hardware, load_, moments, first_at in features.classes(now - SINCE):
        name = hardware, load_
        look = ClassCheck(cluster=models.cluster, hardware=hardware, load=load_, at=now)
        if last := before.get(name):
            look = msgspec.structs.replace(look, result=last.result, tried_at=last.tried_at)
        tried = [at for at in (look.tried_at, in_force.get(name)) if at is not None]
        if by == HEALER and now - first_at < FIRST_AFTER:
            if name not in in_force:
                look = msgspec.structs.replace(look, result="no model: its history is younger than a day")
        elif by != HEALER or not tried or now - max(tried) >= EVERY:
            rows = features.read(hardware, load_, now - SINCE)
            result = _trained(models, rows, moments, sick, now, by)
            look = msgspec.structs.replace(look, result=result, tried_at=now)
        models.note(look)
        found.append(look)
    return found


def _trained(
    models: PostgresModels, rows: Iterable[FeatureRow], moments: int, sick: Sick, now: datetime, by: str
) -> str:
    """What came of it, in one sentence."""
    try:
        made = train(rows, moments, sick, now)
    except NoModel as error:
        return f"no model: {error}"
    is_new = models.save(made, by=by, at=now)
    return f"model {made.model.id[:12]} {'was put in force' if is_new else 'is in force already'}"


# --- the process ---


class Process(Program):
    """`healer.processes.scheduler.RefitChild`."""

    def __init__(self, cluster: str) -> None:
        one_thread = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        # By its name, as `__name__` is `__main__` when this file runs as a program.
        super().__init__("healer.bootstrap.models", cluster, errors, os.environ | one_thread)

    def problem(self) -> str | None:
        status = self.status()
        if not status:
            return None if status is None else ""
        return self.last_words() or f"the process ended with {status}"


def duty(cluster: str) -> Refitting:
    return Refitting(lambda: Process(cluster), SystemClock())


def main(cluster: str) -> None:
    os.nice(19)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with stores(load_settings().of(cluster), cluster, "healer refit") as (models, features):
        train_due(models, features, SystemClock().now())


if __name__ == "__main__":
    main(sys.argv[1])
