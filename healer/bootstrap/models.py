"""Models of classes of nodes in the detector: made from its own feature history after a start and then each
day, in a thread of their own, so that neither walk nor tick waits for them. They are never stored."""

import threading
from collections import deque
from datetime import datetime, timedelta

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import SQLAlchemyError

from healer.adapters.postgres.forest_rows import PostgresFeatures, keep_unusual
from healer.adapters.system_clock import SystemClock
from healer.detection.forest import Class, Forest
from healer.detection.scorers import Model, unusual_of
from healer.detection.training import NoModel, train
from healer.model.feature_rows import FeatureRow

log = structlog.get_logger()

LOOK_S = 30.0
#: Most feature rows that wait for the database; the oldest are dropped beyond.
WAITING_MAX = 64
#: History that a model is made from, the least of it, how often one is made, and how often it is looked
#: whether one is due.
SINCE, FIRST_AFTER = timedelta(days=7), timedelta(days=1)
EVERY, CHECK = timedelta(days=1), timedelta(hours=1)
#: Moments of that history that are read at most: a week of 1,500 nodes has 2,016.
MOMENTS_MOST = 500


class ModelKeeper:
    """Stores feature rows and scores, and makes the models."""

    def __init__(self, db: sa.Engine, cluster: str) -> None:
        self._db, self._features = db, PostgresFeatures(db, cluster)
        self._models: dict[Class, Model] = {}
        #: When the model of a class was made, and when it was looked last.
        self._made: dict[Class, datetime] = {}
        self._looked_at: datetime | None = None
        self._rows: deque[FeatureRow] = deque(maxlen=WAITING_MAX)

    def forest(self) -> Forest:
        """A new forest over these models."""
        return Forest(lambda: tuple(self._models.values()), self._rows.append)

    def run(self, stopped: threading.Event) -> None:
        """Runs until stopped. Errors are logged and retried: detection continues without models."""
        while True:
            try:
                self.store()
                self.train_due(SystemClock().now())
            except SQLAlchemyError as error:
                log.warning("isolation forest history unreadable", error=str(error))
            except Exception:
                log.exception("isolation forest training failed")
            if stopped.wait(LOOK_S):
                return

    def store(self) -> None:
        """Stores feature rows, and how unusual their nodes are by the models now."""
        while self._rows:
            row = self._rows.popleft()
            self._features.put(row)
            if (model := self._models.get((row.hardware, row.load))) is not None:
                keep_unusual(self._db, unusual_of(model, row))

    def train_due(self, now: datetime) -> None:
        """Makes the models that are due. The old one of a class stays where no new one can be made."""
        if self._looked_at is not None and timedelta(0) <= now - self._looked_at < CHECK:
            return
        sick = self._features.sick(now - SINCE, now)
        for hardware, load, moments, first_at in self._features.classes(now - SINCE):
            name = hardware, load
            made_at = self._made.get(name)
            if now - first_at < FIRST_AFTER or (made_at is not None and now - made_at < EVERY):
                continue
            each = -(-moments // MOMENTS_MOST)
            try:
                model = train(self._features.read(*name, now - SINCE, each), moments // each, sick)
            except NoModel as error:
                log.info("node model not trained", hardware=hardware, load=load, why=str(error))
                continue
            log.info("node model trained", id=model.id[:12], hardware=hardware, load=load)
            self._models, self._made[name] = {**self._models, name: model}, now
        self._looked_at = now
