"""The life of a node over a year, on a real PostgreSQL."""

from datetime import UTC, datetime, timedelta

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres.engine import write_docs
from healer.adapters.postgres.node_life import read_life
from healer.adapters.postgres.node_rows import SAVE_BURSTS, read_inventories, save_inventories
from healer.adapters.postgres.retention import tidy
from healer.adapters.postgres.run_rows import write_entries
from healer.adapters.postgres.tables import fault_bursts, slots
from healer.model import FaultBurst, FaultClass, IncidentState, Inventory, LogEntry, Run, RunState, StepEvent
from healer.text import NO_WORDS
from tests.support.api import CLUSTER, incident, save_incident, save_run

NOW = datetime.now(UTC)
SINCE = NOW - timedelta(days=365)


def before(days: float) -> datetime:
    return NOW - timedelta(days=days)


def run_of(name: str, *, shadow: bool = False, node: str = "gpu0001") -> Run:
    return Run(
        id=name, cluster=CLUSTER, playbook="drain", state=RunState.done, by="healer", reason=NO_WORDS,
        created_at=before(20), node=node, shadow=shadow,
    )  # fmt: skip


def entry(run: str, days: float, verb: str, event: StepEvent = StepEvent.done) -> LogEntry:
    return LogEntry(run=run, at=before(days), epoch=1, step="it", event=event, data={"verb": verb})


def burst(fault: str, days: float, node: str = "gpu0001") -> FaultBurst:
    return FaultBurst(
        cluster=CLUSTER, node=node, part="GPU-1", fault=fault, fault_class=FaultClass.informational,
        began_at=before(days), last_at=before(days),
    )  # fmt: skip


def test_a_life_has_what_began_or_lasted_within_it(fresh_database: sa.Engine) -> None:
    closed = {"state": IncidentState.resolved}
    old = msgspec.structs.replace(incident(1), opened=before(500), closed=before(400), **closed)
    lasted = msgspec.structs.replace(incident(2), opened=before(500), closed=before(300), **closed)
    new, elsewhere = incident(3), incident(4, node="gpu0002")
    with fresh_database.begin() as conn:
        for one in (old, lasted, new, elsewhere):
            save_incident(conn, one)
        held = {"cluster": CLUSTER, "run": "r", "unusable": False}
        for node, drained, released in (
            ("gpu0001", 450, 420), ("gpu0001", 380, 350), ("gpu0001", 1, None),
            ("gpu0001", None, 10), ("gpu0002", 30, 20),
        ):  # fmt: skip
            conn.execute(
                sa.insert(slots).values(
                    node=node, granted_at=before(500), drained_at=drained and before(drained),
                    released_at=released and before(released), **held,
                )
            )  # fmt: skip
        life = read_life(conn, CLUSTER, "gpu0001", SINCE)
        assert [one.id for one in life.incidents] == [lasted.id, new.id]
        assert [(out.drained_at, out.released_at) for out in life.outs] == [
            (before(380), before(350)),
            (before(1), None),
        ]
        assert read_life(conn, "pod2", "gpu0001", SINCE) == read_life(conn, CLUSTER, "gpu0009", SINCE)


def test_a_life_has_repairs_that_were_done_and_replaced_parts(fresh_database: sa.Engine) -> None:
    with fresh_database.begin() as conn:
        for run in (run_of("run-1"), run_of("run-2", shadow=True), run_of("run-3", node="gpu0002")):
            save_run(conn, run)
        write_entries(
            conn,
            [
                entry("run-1", 400, "reboot"),
                entry("run-1", 21, "reboot", StepEvent.started),
                entry("run-1", 20, "reboot"),
                entry("run-1", 19, "notify"),
                entry("run-1", 18, "resume"),
                entry("run-2", 17, "reboot"),
                entry("run-3", 16, "reboot"),
            ],
        )
        write_docs(
            conn,
            SAVE_BURSTS,
            [burst("part-replaced", 19), burst("xid-79", 20), burst("part-replaced", 18, "gpu0002")],
        )
        life = read_life(conn, CLUSTER, "gpu0001", SINCE)
    assert [(step.verb, step.at, step.run) for step in life.steps] == [
        ("reboot", before(20), "run-1"),
        ("resume", before(18), "run-1"),
    ]
    assert [(part.fault, part.began_at) for part in life.parts] == [("part-replaced", before(19))]


def test_each_change_of_a_version_is_kept_for_a_year(fresh_database: sa.Engine) -> None:
    with fresh_database.begin() as conn:
        for days, driver in ((400, "550.1"), (200, "570.86"), (3, "580.95.05")):
            at = before(days)
            inventory = Inventory(
                node="gpu0001", at=at, facts={"driver": driver}, changed={"driver": (driver, at)}
            )
            save_inventories(conn, CLUSTER, [inventory])
            save_inventories(conn, CLUSTER, [inventory])
        (kept,) = read_inventories(conn, CLUSTER, "gpu0001")
    assert kept.earlier == [("driver", "570.86", before(200))]
    assert kept.changed == {"driver": ("580.95.05", before(3))}


def test_replaced_parts_are_kept_for_a_year(fresh_database: sa.Engine) -> None:
    with fresh_database.begin() as conn:
        write_docs(
            conn,
            SAVE_BURSTS,
            [burst("part-replaced", 380), burst("part-replaced", 300), burst("xid-79", 100)],
        )
    tidy(fresh_database, NOW)
    with fresh_database.connect() as conn:
        life = read_life(conn, CLUSTER, "gpu0001", SINCE)
        left = conn.scalars(sa.select(fault_bursts.c.fault)).all()
    assert ([part.began_at for part in life.parts], left) == ([before(300)], ["part-replaced"])
