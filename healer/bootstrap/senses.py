"""The detector's senses over samples: rings, rules, stragglers, forest, on what PostgreSQL keeps."""

from collections.abc import Callable, Iterator
from datetime import datetime

import sqlalchemy as sa

from healer.adapters.clock import SystemClock
from healer.adapters.postgres.columns import PostgresColumns
from healer.adapters.postgres.fleet_figures import PostgresFleetFigures
from healer.adapters.postgres.forecasts import PostgresTrends
from healer.adapters.postgres.lemons import PostgresLemons
from healer.adapters.postgres.losses import PostgresLosses
from healer.adapters.postgres.samples import PostgresSamples
from healer.decisions.remarks import remark_in
from healer.detection.fleet_figures import FleetFigures
from healer.detection.forest import Forest
from healer.detection.lemons import Lemons
from healer.detection.tick import Senses
from healer.model import Catalogue, Ruleset, SlurmSnapshot
from healer.observations import Picture
from healer.observations.job_marks import JobMarks
from healer.ports.measurements import Samples
from healer.ports.pull import MetricHistory, NoHistory
from healer.processes.drops import Drops
from healer.processes.rulebook import Rulebook
from healer.processes.senses import Chunk, Note, SensesLoop
from healer.processes.warmup import WarmUp


def senses_loop(
    db: sa.Engine,
    cluster: str,
    rules: Rulebook,
    picture: Picture,
    forest: Forest,
    note: Note | None,
    *,
    history: Callable[[Catalogue], MetricHistory] = lambda _: NoHistory(),
) -> SensesLoop:
    """Fresh senses read the store anew: what a failure left half taken in is not kept."""
    book, past = PostgresColumns(db), PostgresLemons(db, cluster)
    measured = PostgresFleetFigures(db, cluster)
    reader: list[PostgresSamples] = []

    def make(now_in_force: Ruleset) -> tuple[Senses, Samples]:
        while reader:
            reader.pop().close()
        reader.append(PostgresSamples(db, cluster))
        marks = JobMarks(own=lambda job: remark_in(job.admin_comment).off)
        lemons = Lemons(cluster, marks, past.pasts, past.keep)
        figures = FleetFigures(cluster, measured.read, measured.keep)
        return Senses(cluster, now_in_force, book, forest, lemons, figures), reader[0]

    def prove() -> str:
        return "" if rules.prove() else rules.problem

    def warmed(
        now_in_force: Ruleset, slurm: SlurmSnapshot | None, stored: Iterator[Chunk], now: datetime
    ) -> Iterator[Chunk]:
        return WarmUp(history(now_in_force.catalogue), cluster, slurm).chunks(stored, now)

    return SensesLoop(
        rules=rules,
        prove=prove,
        make=make,
        picture=picture,
        clock=SystemClock(),
        note=note,
        warmed=warmed,
        drops=Drops(PostgresLosses(db), cluster),
        trends=PostgresTrends(db, cluster),
    )
