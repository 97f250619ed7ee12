"""Models of classes of nodes: kept ready for the detector, trained and shown for `healer model`."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import msgspec
import numpy as np
import sqlalchemy as sa
import structlog
from sqlalchemy.exc import SQLAlchemyError

from healer import bootstrap
from healer.adapters.postgres.engine import translated
from healer.adapters.postgres.forest_rows import PostgresFeatures, PostgresModels, keep_unusual
from healer.adapters.postgres.read_queries import cluster_names
from healer.detection.features import whole
from healer.detection.forest import Forest
from healer.detection.scorers import Fitted, scored_of, side_by_side
from healer.detection.training import TooLittle, train, usable
from healer.model.trained import FeatureRow, Floats, Trained, Version
from healer.settings import Settings

log = structlog.get_logger()

LOOK_S = 30.0
#: Feature rows that wait for the database; beyond, the oldest fall: there is more history than these.
WAITING_MAX = 64
#: `show`: how far back "now" and "lately" reach, and how many moments of that are scored.
NOW, LATELY, MOMENTS = timedelta(minutes=15), timedelta(hours=24), 24
#: So many times the share expected above the 90 % quantile: the class is not what it was.
DRIFT = 2.5


class ModelKeeper:
    """Reads, fits and writes on a thread of its own, so that neither the walk nor the tick waits for it."""

    def __init__(self, db: sa.Engine, cluster: str) -> None:
        self._db, self._models = db, PostgresModels(db, cluster)
        self._features = PostgresFeatures(db, cluster)
        self._fitted: tuple[Fitted, ...] = ()
        self._unusable: set[str] = set()
        self._rows: deque[FeatureRow] = deque(maxlen=WAITING_MAX)

    def forest(self) -> Forest:
        """A forest without any memory of its own yet."""
        return Forest(lambda: self._fitted, self._rows.append)

    def run(self, stopped: threading.Event) -> None:
        """Until stopped. Whatever goes wrong here ends no detection: it is tried again."""
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
        """Rows as they were told, and how unusual their nodes are by the models in force."""
        of_class = {(one.model.hardware, one.model.load): one for one in self._fitted}
        while self._rows:
            row = self._rows.popleft()
            self._features.put(row)
            if (fitted := of_class.get((row.hardware, row.load))) is not None:
                keep_unusual(self._db, side_by_side(fitted, row))

    def _look(self) -> None:
        known = {one.model.id: one for one in self._fitted}
        fitted: list[Fitted] = []
        for model in (one.model for one in self._models.in_force()):
            if not usable(model):
                if model.id not in self._unusable:
                    self._unusable.add(model.id)
                    told = "a model of another version is not used: the scheduler makes a new one"
                    log.warning(told, model=model.id[:12], hardware=model.hardware, load=model.load)
                continue
            if model.id not in known:
                log.info("model", id=model.id[:12], hardware=model.hardware, load=model.load)
            fitted.append(known.get(model.id) or Fitted(self._models.trained(model)))
        self._fitted = tuple(fitted)


@contextmanager
def forest(db: sa.Engine, cluster: str) -> Iterator[Forest]:
    """The detector's forest, with its thread until the end of the block."""
    keeper, stopped = ModelKeeper(db, cluster), threading.Event()
    thread = threading.Thread(target=keeper.run, args=(stopped,), name="models", daemon=True)
    thread.start()
    try:
        yield keeper.forest()
    finally:
        stopped.set()


# --- healer model ---


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A model, and its class now: of `scored` nodes `above` are above the threshold; `drift` is the
    share of the last day's scores above the 90 % quantile over the 10 % expected (None: nothing to score)."""

    version: Version
    usable: bool
    age_s: float
    scored: int
    above: int
    drift: float | None
    hint: str


def train_classes(features: PostgresFeatures, since: datetime, now: datetime) -> list[Trained | TooLittle]:
    """A model of each class that was seen since then, or why there is none."""
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
    _, own = scored_of(scorer.model, whole(row))
    return scorer.score(own) if len(own) else np.zeros(0)


def _hint(fits: bool, drift: float | None) -> str:
    if not fits:
        return "made by a version with other features: train again"
    if drift is not None and drift > DRIFT:
        return (
            f"{drift:.1f} times as many nodes as expected are far from usual: the class changed, train again"
        )
    return ""


class NoCluster(Exception):
    """Which cluster is meant is not known. The text is one sentence for people."""


@contextmanager
def opened(
    settings: Settings, cluster: str | None, name: str = "healer model"
) -> Iterator[tuple[sa.Engine, str]]:
    """The database, and which cluster is meant. Raises NoCluster, and healer.ports.request_errors.Unavailable
    when the database does not answer."""
    db = bootstrap.engine(settings, name=name, pool_size=2)
    try:
        with translated():
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
        told = f"there are {', '.join(names)}" if names else "Slurm has shown none yet"
        raise NoCluster(f"--cluster says which cluster is meant: {told}")
    return names[0]
