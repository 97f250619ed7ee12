"""That a part of healer works, said by itself in the database: a process may live and do nothing any more."""

import time
from collections.abc import Callable

import sqlalchemy as sa
import structlog
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import SQLAlchemyError

from healer.adapters.postgres.tables import beats

log = structlog.get_logger()

#: A part that works says so this often, and is dead after so many seconds of silence.
BEAT_S = 5.0
DEAD_AFTER_S = 60.0


class Beat:
    """Callable, as often as one likes. It never fails: what cannot be said is silence."""

    def __init__(
        self, engine: sa.Engine, cluster: str, part: str, stopwatch: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine, self._key, self._stopwatch = engine, {"cluster": cluster, "part": part}, stopwatch
        self._said = float("-inf")

    def __call__(self) -> None:
        now = self._stopwatch()
        if now - self._said < BEAT_S:
            return
        self._said = now
        at = {"at": sa.func.clock_timestamp()}
        said = insert(beats).values(**self._key, **at)
        try:
            with self._engine.begin() as conn:
                conn.execute(said.on_conflict_do_update(index_elements=["cluster", "part"], set_=at))
        except SQLAlchemyError as error:
            log.warning("no beat could be stored", part=self._key["part"], error=str(error))


def beats_on(engine: sa.Engine, cluster: str, part: str) -> bool:
    """Whether the part said within the last minute that it works."""
    since = sa.func.clock_timestamp() - sa.func.make_interval(0, 0, 0, 0, 0, 0, DEAD_AFTER_S)
    lately = sa.exists().where(beats.c.cluster == cluster, beats.c.part == part, beats.c.at > since)
    with engine.connect() as conn:
        return conn.execute(sa.select(lately)).scalar_one()
