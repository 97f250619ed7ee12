"""One database, a simulated Slurm, and as many detectors after each other as a test starts."""

from collections.abc import Callable
from datetime import datetime

import sqlalchemy as sa

from healer.adapters.postgres.claims import LedgerParts
from healer.adapters.postgres.inbox import PostgresInbox
from healer.adapters.postgres.ledger import PostgresLedger
from healer.adapters.postgres.node_rows import PostgresSnapshots
from healer.adapters.postgres.tables import incidents
from healer.model import Incident, Mode, Ruleset
from healer.processes.detector_loop import Detector, DetectorParts
from healer.sim.sim_clock import SimClock
from healer.sim.sim_slurm import SimScheduler
from healer.text import from_stored
from tests.support.loop import CLUSTER, START, rules_in


class Place:
    """Time moves only when a test says so."""

    def __init__(self, engine: sa.Engine, *, nodes: int = 10) -> None:
        self.engine = engine
        self.clock = SimClock(START)
        self.slurm = SimScheduler(CLUSTER, self.clock, nodes)
        self.inbox = PostgresInbox(engine, CLUSTER)
        self.snapshots = PostgresSnapshots(engine)
        self.ledger = PostgresLedger(
            LedgerParts(
                engine=engine, cluster=CLUSTER, snapshots=self.snapshots, clock=self.clock, has_sink=False
            )
        )
        self.poked: list[str] = []
        self.waited: list[float] = []
        self.poll()

    def poll(self) -> None:
        self.snapshots.put(self.slurm.snapshot())

    def detector(
        self,
        cleared: list[tuple[str, datetime]] | None = None,
        *,
        mode: Mode = Mode.auto,
        rules: Callable[[], Ruleset] | None = None,
    ) -> Detector:
        shipped = rules_in(mode, settle_s=0.0)
        return Detector(
            DetectorParts(
                cluster=CLUSTER,
                ledger=self.ledger,
                inbox=self.inbox,
                snapshots=self.snapshots,
                rules=rules or (lambda: shipped),
                clock=self.clock,
                wait=self.waited.append,
                poke=self.poked.extend,
                cleared=cleared or [],
            )
        )

    def incidents(self) -> list[Incident]:
        with self.ledger.transaction() as tx:
            return [one for one in tx.open_incidents() if one.is_open]

    def all_incidents(self) -> list[Incident]:
        with self.engine.connect() as conn:
            docs = conn.execute(sa.select(incidents.c.doc)).scalars()
            return [from_stored(doc, Incident) for doc in docs]
