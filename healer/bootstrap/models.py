"""Models of classes of nodes: loaded for the detector, trained and shown by `healer model`, refitted.

`python -m healer.bootstrap.models CLUSTER` refits them at the lowest priority; the scheduler starts it each
hour, and `healer model refit` does the same at once. For each class it checks whether the model is due or its
features have drifted, trains a new one, and puts it in force if it is as good as the old one. The results are
in `healer model show` and in the audit.
"""

import os
import resource
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

import msgspec
import numpy as np
import sqlalchemy as sa
import structlog
from sqlalchemy.exc import SQLAlchemyError

from healer import bootstrap
from healer.adapters.postgres.engine import request_errors
from healer.adapters.postgres.forest_rows import PostgresFeatures, PostgresModels, keep_unusual
from healer.adapters.postgres.loops import try_lead
from healer.adapters.postgres.read_queries import cluster_names
from healer.adapters.system_clock import SystemClock
from healer.detection import training
from healer.detection.features import whole
from healer.detection.forest import Forest
from healer.detection.scorers import Fitted, scored_of, unusual_of
from healer.detection.training import Sick, TooLittle, healthy, is_judged, train, usable
from healer.model.trained import (
    HEALER,
    ClassCheck,
    FeatureRow,
    Floats,
    Matrix,
    ShiftedFeature,
    Trained,
    Version,
)
from healer.processes.scheduler import Program, Refitting
from healer.settings import Settings
from healer.settings import load as load_settings
from healer.text import NO_WORDS

log = structlog.get_logger()

LOOK_S = 30.0
#: Most feature rows that wait for the database; the oldest are dropped beyond.
WAITING_MAX = 64
#: `show`: how far back "now" and "lately" reach, and how many rows are scored.
NOW, LATELY, MOMENTS = timedelta(minutes=15), timedelta(hours=24), 24
#: Factor over the expected share of scores above the 90 % quantile at which a class has drifted.
DRIFT = 2.5


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


# --- healer model ---


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A model and the current state of its class: of `scored` nodes `above` are above the threshold; `drift`
    is the share of the last day's scores above the 90 % quantile over the 10 % expected (None: nothing to
    score)."""

    version: Version
    usable: bool
    age_s: float
    scored: int
    above: int
    drift: float | None
    hint: str


def train_classes(features: PostgresFeatures, since: datetime, now: datetime) -> list[Trained | TooLittle]:
    """For each class seen since then a model, or why there is none."""
    sick = features.sick(since, now)
    made: list[Trained | TooLittle] = []
    for hardware, load, moments in features.classes(since):
        try:
            made.append(train(features.read(hardware, load, since), moments, sick, now))
        except TooLittle as error:
            made.append(error)
    return made


def shown(models: PostgresModels, features: PostgresFeatures, version: Version, now: datetime) -> Shown:
    model, fits = version.model, usable(version.model)
    rows = features.newest(model.hardware, model.load, now - LATELY, MOMENTS) if fits else []
    scorer = Fitted(models.trained(model)) if rows else None
    scores = [_scores(scorer, row) for row in rows] if scorer else []
    newest = scores[0] if scores and now - rows[0].at <= NOW else np.zeros(0)
    lately = np.concatenate(scores) if scores else np.zeros(0)
    drift = float((lately > model.quantiles["0.9"]).mean() / 0.1) if len(lately) else None
    return Shown(
        version=version,
        usable=fits,
        age_s=(now - model.trained_at).total_seconds(),
        scored=len(newest),
        above=int((newest > model.threshold).sum()),
        drift=drift,
        hint=_hint(fits, drift),
    )


def _scores(scorer: Fitted, row: FeatureRow) -> Floats:
    _, values = scored_of(scorer.model, whole(row))
    return scorer.score(values) if len(values) else np.zeros(0)


def _hint(fits: bool, drift: float | None) -> str:
    if not fits:
        return "made by a version with other features: train again"
    if drift is not None and drift > DRIFT:
        return (
            f"{drift:.1f} times as many nodes as expected are far from usual: the class changed, train again"
        )
    return ""


class NoCluster(Exception):
    """The cluster is ambiguous or unknown. The text is one sentence for people."""


@contextmanager
def opened(
    settings: Settings, cluster: str | None, name: str = "healer model"
) -> Iterator[tuple[sa.Engine, str]]:
    """The database and the name of the cluster. Raises NoCluster, and healer.ports.request_errors.Unavailable
    when the database does not answer."""
    db = bootstrap.engine(settings, name=name, pool_size=2, role="healer_scheduler")
    try:
        with request_errors():
            yield db, cluster or settings.cluster or _only_cluster(db)
    finally:
        db.dispose()


@contextmanager
def stores(settings: Settings, cluster: str | None) -> Iterator[tuple[PostgresModels, PostgresFeatures]]:
    with opened(settings, cluster) as (db, name):
        yield PostgresModels(db, name), PostgresFeatures(db, name)


def _only_cluster(db: sa.Engine) -> str:
    with db.connect() as conn:
        names = list(cluster_names(conn))
    if len(names) != 1:
        found = f"there are {', '.join(names)}" if names else "Slurm has shown none yet"
        raise NoCluster(f"--cluster says which cluster is meant: {found}")
    return names[0]


# --- refits ---

#: History that a model is trained on, and the least history for the first automatic one.
SINCE, FIRST_AFTER = timedelta(days=7), timedelta(days=1)
#: Drift is tested on every twelfth feature row of the last day: one an hour.
EACH = 12
DRIFTED_SHOWN = 10
#: Limits of the process.
CPU_S, MEMORY_BYTES = 600, 8 * 1024**3


class Refits:
    """Checks and refits the classes of one cluster."""

    def __init__(self, db: sa.Engine, cluster: str) -> None:
        self._models, self._features = PostgresModels(db, cluster), PostgresFeatures(db, cluster)

    def look(self, now: datetime) -> list[ClassCheck]:
        in_force = {
            (version.model.hardware, version.model.load): version for version in self._models.in_force()
        }
        before = {(look.hardware, look.load): look for look in self._models.looks()}
        sick, cluster = self._features.sick(now - SINCE, now), self._models.cluster
        found = []
        for hardware, load_, moments in self._features.classes(now - SINCE):
            history = _History(self._features, hardware, load_, moments, sick, now)
            first = ClassCheck(cluster=cluster, hardware=hardware, load=load_, at=now, result=NO_WORDS)
            last = before.get((hardware, load_), first)
            look = self._class(history, in_force.get((hardware, load_)), last)
            self._models.note(look)
            found.append(look)
        return found

    def _class(self, history: "_History", version: Version | None, last: ClassCheck) -> ClassCheck:
        # A model with other features counts as none.
        fits = version if version is not None and training.usable(version.model) else None
        old = self._models.trained(fits.model) if fits is not None else None
        drifted = history.drifted(old) if old is not None else []
        now, outcome, tried = history.now, NO_WORDS, False
        why = training.due(fits, tried_at=last.tried_at, drifted=drifted, now=now)
        if why:
            outcome, tried = self._refit(history, old, version, why)
        return msgspec.structs.replace(
            last,
            at=now,
            result=outcome or last.result,
            tried_at=now if tried else last.tried_at,
            drifted=tuple(drifted[:DRIFTED_SHOWN]),
        )

    def _refit(
        self, history: "_History", old: Trained | None, in_force: Version | None, why: str
    ) -> tuple[str, bool]:
        """Returns the result in one sentence, and whether it counts as a try, after which the class rests a
        day."""
        if old is None and history.is_young():
            return "no model: its history is younger than a day", False
        try:
            trained = history.train()
        except TooLittle as error:
            # A try, so that a small class is not read whole each hour; a class with a model soon has enough.
            return f"no new model: {error}" if old is not None else f"no model: {error}", old is None
        before = Fitted(old) if old is not None else None
        judgement = training.judged(Fitted(trained), before, history.held_out())
        against = in_force.model.id if in_force is not None else None
        new = self._models.save(
            trained, by=HEALER, at=history.now, why=why, judged=judgement, against=against
        )
        name = f"model {trained.model.id[:12]} ({why})"
        if judgement.refused:
            return f"{name} was made and not put in force: {judgement.refused}", True
        return f"{name} was put in force" if new else f"{name} was kept already", True


@dataclass(frozen=True, slots=True)
class _History:
    """The stored history of one class."""

    features: PostgresFeatures
    hardware: str
    load: str
    moments: int
    sick: Sick
    now: datetime

    def is_young(self) -> bool:
        first = next(self._rows(), None)
        return first is None or self.now - first.at < FIRST_AFTER

    def train(self) -> Trained:
        rows = (row for row in self._rows() if not is_judged(row.at))
        return training.train(rows, self.moments, self.sick, self.now)

    def held_out(self) -> Matrix:
        """Healthy samples of the hours that are held out of training."""
        return healthy((row for row in self._rows() if is_judged(row.at)), self.moments, self.sick).matrix

    def drifted(self, old: Trained) -> list[ShiftedFeature]:
        day = self.features.read(self.hardware, self.load, self.now - LATELY)
        sampled = healthy(islice(day, 0, None, EACH), self.moments, self.sick)
        return training.population_shifts(old, sampled.matrix, len(set(sampled.nodes)))

    def _rows(self) -> Iterator[FeatureRow]:
        return self.features.read(self.hardware, self.load, self.now - SINCE)


# --- the process ---


def look_once(settings: Settings, cluster: str | None) -> list[ClassCheck] | None:
    """Checks all classes; None if another process is doing so. Raises NoCluster."""
    with opened(settings, cluster, "healer refit") as (db, name), db.connect() as lock:
        if not try_lead(lock, name, "refit"):
            return None
        return Refits(db, name).look(SystemClock().now())


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
    look_once(load_settings().of(cluster), cluster)


if __name__ == "__main__":
    main(sys.argv[1])
