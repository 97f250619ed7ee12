"""The isolation forest's models: kept ready for the detector, trained and shown for `healer model`."""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

import msgspec
import numpy as np
import sqlalchemy as sa
import structlog
from sqlalchemy.exc import SQLAlchemyError

from healer import bootstrap
from healer.adapters.postgres import unusual
from healer.adapters.postgres.engine import translated
from healer.adapters.postgres.features import PostgresFeatures
from healer.adapters.postgres.models import ClassLook, PostgresModels, Version
from healer.adapters.postgres.rows import cluster_names
from healer.detection.features import ALL_NAMES, definition
from healer.detection.forest import Forest
from healer.detection.side_by_side import side_by_side
from healer.detection.training import FeatureRow, Fitted, Model, TooLittle, Trained, own_of, train, whole
from healer.settings import Settings

log = structlog.get_logger()

LOOK_S = 30.0
#: Feature rows that wait for the database; beyond, the oldest fall: there is more history than these.
WAITING_MAX = 64
#: `show`: how far back "now" and "lately" reach, and how many moments of that are scored.
NOW = timedelta(minutes=15)
LATELY = timedelta(hours=24)
MOMENTS = 24
#: So many times the share expected above the 90 % quantile: the class is not what it was.
DRIFT = 2.5


class ModelKeeper:
    """Reads, fits and writes on a thread of its own, so that neither the walk nor the tick waits for it."""

    def __init__(self, db: sa.Engine, cluster: str) -> None:
        self._db, self._models = db, PostgresModels(db, cluster)
        self._features = PostgresFeatures(db, cluster)
        self._fitted: tuple[Fitted, ...] = ()
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
                unusual.keep(self._db, side_by_side(fitted, row))

    def _look(self) -> None:
        known = {one.model.id: one for one in self._fitted}
        fitted: list[Fitted] = []
        for model in (one.model for one in self._models.in_force()):
            if not usable(model):
                log.warning("a model of another version is not used: train again", model=model.id[:12])
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


def usable(model: Model) -> bool:
    """Whether this version makes the model's features as they were made for it."""
    return (
        all(name in ALL_NAMES for name in model.features) and definition(model.features) == model.definition
    )


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

    @property
    def model(self) -> Model:
        return self.version.model


class ModelDesk:
    """What people do with models of one cluster."""

    def __init__(self, db: sa.Engine, cluster: str) -> None:
        self.cluster = cluster
        self._models, self._features = PostgresModels(db, cluster), PostgresFeatures(db, cluster)

    def train(self, since: datetime, now: datetime) -> list[Trained | TooLittle]:
        """A model of each class that was seen since then, or why there is none."""
        sick = self._features.sick(since, now)
        made: list[Trained | TooLittle] = []
        for hardware, load, moments in self._features.classes(since):
            try:
                made.append(train(self._features.read(hardware, load, since), moments, sick, now))
            except TooLittle as error:
                made.append(error)
        return made

    def save(self, trained: Trained, *, by: str, at: datetime) -> bool:
        """False when this very model is kept already."""
        return self._models.save(trained, by=by, at=at, why="trained by a person")

    def use(self, model: Model, *, by: str, at: datetime, why: str) -> None:
        self._models.use(model, by=by, at=at, why=why)

    def find(self, start: str) -> list[Version]:
        return self._models.find(start)

    def in_force(self) -> list[Version]:
        return self._models.in_force()

    def versions(self) -> list[Version]:
        return self._models.versions()

    def looks(self) -> list[ClassLook]:
        return self._models.looks()

    def shown(self, versions: Sequence[Version], now: datetime) -> list[Shown]:
        return [self._shown(one, now) for one in versions]

    def _shown(self, version: Version, now: datetime) -> Shown:
        model = version.model
        scored = above = 0
        drift = None
        fits = usable(model)
        if fits:
            rows = self._features.newest(model.hardware, model.load, now - LATELY, MOMENTS)
            scorer = Fitted(self._models.trained(model)) if rows else None
            scores = [_scores(scorer, row) for row in rows] if scorer else []
            if scores and now - rows[0].at <= NOW:
                scored, above = len(scores[0]), int((scores[0] > model.threshold).sum())
            lately = np.concatenate(scores) if scores else np.zeros(0)
            if len(lately):
                drift = float((lately > model.quantiles["0.9"]).mean() / 0.1)
        return Shown(
            version=version,
            usable=fits,
            age_s=(now - model.trained_at).total_seconds(),
            scored=scored,
            above=above,
            drift=drift,
            hint=_hint(fits, drift),
        )


def _scores(scorer: Fitted, row: FeatureRow) -> np.ndarray:
    _, own = own_of(scorer.model, whole(row))
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
def desk(settings: Settings, cluster: str | None) -> Iterator[ModelDesk]:
    """Raises NoCluster, and healer.ports.request_errors.Unavailable when the database does not answer."""
    db = bootstrap.engine(settings, name="healer model", pool_size=2)
    try:
        with translated():
            yield ModelDesk(db, cluster or settings.cluster or only_cluster(db))
    finally:
        db.dispose()


def only_cluster(db: sa.Engine) -> str:
    with db.connect() as conn:
        names = list(cluster_names(conn))
    if len(names) != 1:
        told = f"there are {', '.join(names)}" if names else "Slurm has shown none yet"
        raise NoCluster(f"--cluster says which cluster is meant: {told}")
    return names[0]
