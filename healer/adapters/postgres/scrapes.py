"""What scrapers told last, in PostgreSQL: one packed row per cluster, written as a whole."""

import zlib
from collections.abc import Sequence

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres.engine import translated
from healer.adapters.postgres.tables import scrapes
from healer.model import ScrapeState

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ScrapeState).decode


class PostgresScrapes:
    """`healer.ports.pull.ScrapeBook`."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def put(self, state: ScrapeState) -> None:
        statement = insert(scrapes).values(
            cluster=state.cluster, at=state.at, body=zlib.compress(_encode(state), 1)
        )
        fresh = statement.excluded
        with translated(), self._engine.begin() as conn:
            # The next one comes in some seconds: nobody waits for the disk.
            conn.execute(sa.text("SET LOCAL synchronous_commit = off"))
            conn.execute(
                statement.on_conflict_do_update(
                    index_elements=["cluster"], set_={"at": fresh.at, "body": fresh.body}
                )
            )

    def states(self, clusters: Sequence[str] | None) -> list[ScrapeState]:
        wanted = sa.select(scrapes.c.body).order_by(scrapes.c.cluster)
        if clusters is not None:
            wanted = wanted.where(scrapes.c.cluster.in_(clusters))
        with translated(), self._engine.connect() as conn:
            return read_states(conn, wanted)


def read_states(conn: sa.Connection, wanted: sa.Select) -> list[ScrapeState]:
    """Those that can be read: a row of another version is left out until its scraper writes again."""
    found: list[ScrapeState] = []
    for body in conn.scalars(wanted):
        try:
            found.append(_decode(zlib.decompress(body)))
        except (zlib.error, msgspec.DecodeError):
            continue
    return found
