"""The detector's senses over samples: rings, rules, stragglers, forest, on what PostgreSQL keeps."""

import sqlalchemy as sa

from healer.adapters.clock import SystemClock
from healer.adapters.postgres.columns import PostgresColumns
from healer.adapters.postgres.samples import PostgresSamples
from healer.detection.forest import Forest
from healer.detection.tick import Senses
from healer.model import Ruleset
from healer.observations import Picture
from healer.ports import Samples
from healer.processes.rulebook import Rulebook
from healer.processes.senses import Note, SensesLoop


def senses_loop(
    db: sa.Engine,
    cluster: str,
    rules: Rulebook,
    picture: Picture,
    forest: Forest,
    note: Note | None,
) -> SensesLoop:
    """Fresh senses read the store anew: what a failure left half taken in is not kept."""
    book = PostgresColumns(db)
    reader: list[PostgresSamples] = []

    def make(now_in_force: Ruleset) -> tuple[Senses, Samples]:
        while reader:
            reader.pop().close()
        reader.append(PostgresSamples(db, cluster))
        return Senses(cluster, now_in_force, book, forest), reader[0]

    def prove() -> str:
        return "" if rules.prove() else rules.problem

    return SensesLoop(rules=rules, prove=prove, make=make, picture=picture, clock=SystemClock(), note=note)
