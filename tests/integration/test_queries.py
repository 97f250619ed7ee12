"""What the API and the pages read, on a real PostgreSQL."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy import event

from healer.adapters.postgres.engine import matches
from healer.adapters.postgres.figures import stats
from healer.adapters.postgres.goodput_rows import PostgresGoodput
from healer.adapters.postgres.inbox import PostgresInbox
from healer.adapters.postgres.incident_rows import about_node, incident_page, may_be_alike, parts_of, watched
from healer.adapters.postgres.loops import Heartbeat, try_lead
from healer.adapters.postgres.node_rows import PostgresSnapshots
from healer.adapters.postgres.outbox import PostgresMessageBook, all_deliveries
from healer.adapters.postgres.own_health import pulses, stored
from healer.adapters.postgres.read_queries import postgres_queries
from healer.adapters.postgres.run_rows import write_entries, write_runs
from healer.adapters.postgres.samples import PostgresColumns, PostgresSamples
from healer.adapters.postgres.tables import (
    audit_records,
    beats,
    findings,
    goodput,
    inbox,
    incidents,
    jobs_named,
    messages,
    node_states,
    part_of,
    requeues,
    rule_modes,
    slots,
)
from healer.console.pages import Pages, Sources
from healer.engine.records import JobHistory, job_history
from healer.incidents.node_history import similar_to
from healer.model import (
    Component,
    FaultClass,
    Finding,
    HitBasis,
    Incident,
    IncidentState,
    JobHit,
    LogEntry,
    Mode,
    Observation,
    ObservationKind,
    Review,
    Role,
    Run,
    RunState,
    SlurmJob,
    StepEvent,
    Verdict,
)
from healer.model.goodput import LifeSeen
from healer.ports.answers import Arriving, Buckets, ChartFigures, OpenIncident, SendersHeard, Sink
from healer.ports.callers import Caller
from healer.ports.queries import AuditQuery, IncidentQuery, Queries
from healer.text import to_stored
from tests.support.api import CLUSTER, RULES, incident, save_incident, save_run, snapshot
from tests.support.console_telemetry import steps_of

NOW = datetime.now(UTC)


def queries_of(engine: sa.Engine) -> Queries:
    return postgres_queries(
        engine, snapshots=PostgresSnapshots(engine), columns=PostgresColumns(engine), rules=lambda: RULES
    )


def known_of(engine: sa.Engine, cluster: str, job: str) -> JobHistory:
    return job_history(queries_of(engine).jobs.rows(cluster, job), job, RULES)


def found_at(conn: sa.Connection, owner: str, at: datetime, rule: str = "gpu-lost") -> None:
    place = Component(cluster=CLUSTER, node="gpu0001")
    finding = Finding(
        rule=rule, fault="xid-79", fault_class=incident(1).fault_class, component=place, at=at,
        arrived_at=at, text="", confidence=1, evidence=(),
    )  # fmt: skip
    conn.execute(sa.insert(findings).values(incident=owner, at=at, doc=to_stored(finding)))


def checkpoint(number: int, at: datetime, *, durable: bool = True, restart: int = 0) -> Observation:
    return Observation(
        digest=f"{number:064x}",
        kind=ObservationKind.checkpoint,
        component=Component(cluster=CLUSTER, job="4711"),
        event_at=at,
        arrived_at=at,
        data={"restart": restart, "step": number, "path": f"/c/{number}", "durable": durable},
    )


def test_rule_shows_when_it_fired_and_in_which_mode(fresh_database: sa.Engine) -> None:
    old = incident(60 * 24 * 30, state=IncidentState.resolved, review=Review.false_alarm)
    now_open = incident(5)
    with fresh_database.begin() as conn:
        save_incident(conn, old)
        save_incident(conn, now_open)
        save_incident(conn, msgspec.structs.replace(incident(7), cluster="pod2"))
        found_at(conn, old.id, old.opened)
        found_at(conn, now_open.id, now_open.opened)
        found_at(conn, now_open.id, now_open.opened + timedelta(minutes=2))
        found_at(conn, now_open.id, now_open.opened + timedelta(minutes=3), rule="gpu-hot")
        conn.execute(
            sa.insert(rule_modes).values(rule="gpu-lost", mode="approve", by="mara", reason="new", at=NOW)
        )
    records = queries_of(fresh_database).rules.records(CLUSTER, fired_since=NOW - timedelta(days=7))
    record = records["gpu-lost"]
    assert (record.mode, record.mode_by) == (Mode.approve, "mara")
    assert (record.open, record.fired, record.false_alarms, record.true_faults) == (1, 2, 1, 0)
    assert record.last_at == now_open.opened + timedelta(minutes=2)
    assert record.last_incident == now_open.id
    # It joined an incident of another rule, and fired all the same.
    joined = records["gpu-hot"]
    assert (joined.open, joined.fired, joined.last_incident) == (0, 1, now_open.id)
    # Of all clusters, by what was opened alone.
    rule_record = queries_of(fresh_database).rules.records()["gpu-lost"]
    assert (rule_record.incidents, rule_record.open, rule_record.reviews) == (3, 2, {Review.false_alarm: 1})
    assert (rule_record.last_at, rule_record.fired, rule_record.mode_reason) == (now_open.opened, 0, "new")


def test_a_quiet_cluster_has_no_record(fresh_database: sa.Engine) -> None:
    assert queries_of(fresh_database).rules.records(CLUSTER) == {}


def test_job_shows_what_hit_it_and_its_checkpoints(fresh_database: sa.Engine) -> None:
    PostgresSnapshots(fresh_database).put(snapshot())
    PostgresInbox(fresh_database, CLUSTER).add(
        [
            checkpoint(100, NOW - timedelta(minutes=90)),
            checkpoint(200, NOW - timedelta(minutes=60)),
            checkpoint(250, NOW - timedelta(minutes=40), durable=False),
        ]
    )
    with fresh_database.begin() as conn:
        save_incident(conn, incident(1))
        conn.execute(
            sa.insert(requeues).values(
                cluster=CLUSTER, job="4711", restarts=0, incident=incident(1).id, run="run-1",
                at=NOW - timedelta(minutes=30),
            )
        )  # fmt: skip
    known = known_of(fresh_database, CLUSTER, "4711")
    assert [one.id for one in known.incidents] == [incident(1).id]
    assert [(one.step, one.durable) for one in known.checkpoints] == [(100, True), (200, True), (250, False)]
    assert [one.run for one in known.requeues] == ["run-1"]
    # 16 GPUs, half an hour of work since the last durable checkpoint.
    assert known.gpu_hours_lost == 8.0
    assert known_of(fresh_database, CLUSTER, "1").empty
    assert known_of(fresh_database, "pod2", "4711").empty


def test_job_shows_in_sentences_what_was_done_to_it(fresh_database: sa.Engine) -> None:
    one = incident(1)
    with fresh_database.begin() as conn:
        save_incident(conn, one)
        incidents_by_name: dict[str, dict[str, Any]] = {
            "r1": {"node": "gpu0001", "incident": one.id},
            "r2": {"playbook": "requeue", "job": "4711", "by": "ann"},
            "r3": {"playbook": "requeue", "job": "4712", "by": "ann"},
        }
        for name, fields in incidents_by_name.items():
            given: dict[str, Any] = {"playbook": "gpu-fatal", "by": "healer"}
            given |= {"id": name, "cluster": CLUSTER, "state": RunState.running, "created_at": NOW}
            write_runs(conn, [Run(reason="x", **(given | fields))])
        for run, step, event, text in (
            ("r1", "requeue:4711", StepEvent.started, ""),
            ("r1", "requeue:4711", StepEvent.skipped, "Job 4711 forbids requeueing."),
            ("r1", "requeue:14711", StepEvent.done, "Another job."),
            ("r1", "ticket", StepEvent.done, "Ticket opened."),
            ("r2", "requeue", StepEvent.done, "Job 4711 was requeued."),
            ("r3", "requeue", StepEvent.done, "Job 4712 was requeued."),
        ):
            write_entries(conn, [LogEntry(run=run, at=NOW, epoch=1, step=step, event=event, text=text)])
    done = known_of(fresh_database, CLUSTER, "4711").done
    assert [(one.step, one.event, one.text, one.run) for one in done] == [
        ("requeue", "skipped", "Job 4711 forbids requeueing.", "r1"),
        ("requeue", "done", "Job 4711 was requeued.", "r2"),
    ]
    assert (done[0].incident, done[1].incident) == (one.id, None)


def test_steps_of_a_job_come_back(fresh_database: sa.Engine) -> None:
    samples = PostgresSamples(fresh_database, CLUSTER)
    batches = [
        dataclasses.replace(one, arrived_at=NOW)
        for one in steps_of("4711", ("gpu0001", "gpu0002"), ranks_per_node=2, steps=4)
    ]
    samples.put_steps(batches)
    samples.close()
    found = queries_of(fresh_database).signals.job_steps(CLUSTER, "4711", NOW - timedelta(minutes=30))
    assert [one.step[0] for one in found] == [one.step[0] for one in batches]
    assert found[0].compute_s.tolist() == pytest.approx(batches[0].compute_s.tolist())


def lost_by(basis: HitBasis, hours: float | None, restart: int = 0) -> JobHit:
    return JobHit(job="4711", basis=basis, restart=restart, gpus=8, lost_gpu_hours=hours)


def test_figures_and_the_job_agree_on_what_was_lost(fresh_database: sa.Engine) -> None:
    one, other, third = (
        msgspec.structs.replace(incident(number), jobs_hit=("4711",), hit=hit)
        for number, hit in (
            (1, (lost_by(HitBasis.checkpoint, 4.0),)),
            (2, (lost_by(HitBasis.checkpoint, 3.0), lost_by(HitBasis.start, 2.5, 1))),
            (3, (JobHit(job="9", basis=HitBasis.unknown),)),
        )
    )
    with fresh_database.begin() as conn:
        assert stats(conn, [CLUSTER], None).gpu_hours_lost is None
        for each in (one, other, third):
            save_incident(conn, each)
        totals = stats(conn, [CLUSTER], None)
    known = known_of(fresh_database, CLUSTER, "4711")
    assert (known.gpu_hours_lost, known.gpu_hours_at_most) == (6.5, True)
    assert (totals.gpu_hours_lost, totals.gpu_hours_at_most, totals.jobs_unknown) == (6.5, 2.5, 1)


def test_a_number_that_slurm_uses_again_is_another_job(fresh_database: sa.Engine) -> None:
    """slurmctld lost its state: who has 4711 now sees their own job."""

    def hit(number: int, opened: datetime, began: datetime, closed: datetime | None) -> Incident:
        ended = JobHit(
            job="4711", basis=HitBasis.start, started_at=began, ended_at=opened, since=began,
            lost_gpu_hours=64.0,
        )  # fmt: skip
        return msgspec.structs.replace(incident(number), opened=opened, closed=closed, hit=(ended,))

    month, hour = NOW - timedelta(days=30), NOW - timedelta(hours=1)
    over = hit(1, month, month - timedelta(hours=8), month + timedelta(hours=1))
    repaired_still = hit(2, month, month - timedelta(hours=8), None)
    its_own = hit(3, NOW, hour, None)
    life = LifeSeen(
        job="4711", restart=0, queued_at=hour, seen_at=NOW, started_at=hour, state="RUNNING", user="bob"
    )
    used = {"cluster": CLUSTER, "job": "4711", "restarts": 1, "incident": over.id, "run": "r1"}
    spent = {
        "cluster": CLUSTER, "job": "4711", "restart": 0, "held": 0, "spent": "lost", "cause": "xid-79",
        "incident": "", "user_name": "ann", "account": "", "partition": "train", "gpu_s": 3600.0,
    }  # fmt: skip
    queries = queries_of(fresh_database)
    with fresh_database.begin() as conn:
        for each in (over, repaired_still):
            save_incident(conn, each)
        conn.execute(sa.insert(requeues).values(**used, at=month))
        conn.execute(sa.insert(goodput).values(**spent, hour=month))
    assert len(queries.jobs.rows(CLUSTER, "4711").incidents) == 2
    with fresh_database.begin() as conn:
        save_incident(conn, its_own)
    PostgresGoodput(fresh_database, CLUSTER).put_lives([life])
    rows = queries.jobs.rows(CLUSTER, "4711")
    assert [each.id for each in rows.incidents] == [its_own.id]
    assert (rows.requeues, rows.goodput) == ((), ())
    waits = SlurmJob(id="4711", state="PENDING", submit_at=NOW + timedelta(minutes=1))
    PostgresSnapshots(fresh_database).put(msgspec.structs.replace(snapshot(), jobs={"4711": waits}))
    assert queries_of(fresh_database).jobs.rows(CLUSTER, "4711").incidents == ()


def test_saved_gpu_hours_compare_automatic_restarts_with_manual_ones(fresh_database: sa.Engine) -> None:
    def one(number: int, job: str, gpus: int) -> Incident:
        hit = JobHit(job=job, basis=HitBasis.start, gpus=gpus, restart=1)
        return msgspec.structs.replace(incident(number), jobs_hit=(job,), hit=(hit,))

    def said(subject: Incident, by: str, verb: str, about: str, after: timedelta, **data: str) -> None:
        when = {"cluster": CLUSTER, "at": subject.opened + after}
        conn.execute(sa.insert(audit_records).values(**when, actor=by, verb=verb, subject=about, data=data))

    def restarted(subject: Incident, after: timedelta, approved_by: str | None = None) -> None:
        job = subject.jobs_hit[0]
        run = Run(
            id=f"run-{job}", cluster=CLUSTER, playbook="gpu-fatal", state=RunState.done, by="healer",
            reason="x", created_at=subject.opened, incident=subject.id, job=job, approved_by=approved_by,
        )  # fmt: skip
        save_run(conn, run)
        use = {"cluster": CLUSTER, "job": job, "restarts": 1, "incident": subject.id, "run": run.id}
        conn.execute(sa.insert(requeues).values(**use, at=subject.opened))
        said(subject, "healer", "job.requeued", f"job/{job}", after, run=run.id)

    quick, late, approved = one(1, "11", 64), one(2, "12", 8), one(3, "13", 512)
    left = [one(10 + number, str(20 + number), 8) for number in range(4)]
    ignored = one(20, "30", 8)  # no person has taken it up yet: the runs of other incidents say nothing of it
    with fresh_database.begin() as conn:
        for each in (quick, late, approved, *left, ignored):
            save_incident(conn, each)
        restarted(quick, timedelta(minutes=1))
        restarted(late, timedelta(hours=2))
        restarted(approved, timedelta(minutes=21), approved_by="ann")
        # A person looks on Monday at what was settled at night: no measure of how soon people come.
        said(quick, "ann", "incident.acknowledged", f"incident/{quick.id}", timedelta(days=2))
        for each, minutes in zip(left, (10, 31, 40, 5), strict=True):
            said(each, "bob", "incident.noted", f"incident/{each.id}", timedelta(minutes=1))
            said(each, "bob", "incident.acknowledged", f"incident/{each.id}", timedelta(minutes=minutes))
            said(each, "bob", "incident.resolve_asked", f"incident/{each.id}", timedelta(hours=9))
        few = stats(conn, [CLUSTER], None).saved
        said(approved, "ann", "run.approved", "run/run-13", timedelta(minutes=20))
        saved = stats(conn, [CLUSTER], None).saved
        none = stats(conn, ["pod2"], None).saved
    assert (few.jobs, few.people, few.people_s, few.gpu_hours) == (2, 4, None, None)
    # The median of 5, 10, 20, 31 and 40 min: 64 GPUs were idle 19 min less, and the late one saved nothing.
    assert (saved.jobs, saved.people, saved.people_s) == (2, 5, 1200.0)
    assert saved.gpu_hours == round(64 * 19 / 60, 2)
    assert (none.jobs, none.people, none.gpu_hours) == (0, 0, None)


@contextmanager
def plans_of(conn: sa.Connection | sa.Engine, table: str = "incidents") -> Iterator[list[str]]:
    """The plan of each query of the table within."""
    plans: list[str] = []

    def explained(_conn: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if f"FROM {table}" in statement and not statement.startswith("EXPLAIN"):
            cursor.execute(f"EXPLAIN {statement}", parameters)
            plans.append("\n".join(row[0] for row in cursor.fetchall()))

    event.listen(conn, "before_cursor_execute", explained)
    yield plans
    event.remove(conn, "before_cursor_execute", explained)


def test_similar_ones_are_found_by_index_among_thousands(fresh_database: sa.Engine) -> None:
    here = incident(1)
    with fresh_database.begin() as conn:
        save_incident(conn, here)
        conn.exec_driver_sql(
            """
            INSERT INTO incidents (id, cluster, rule, state, severity, node, opened, updated, doc)
            SELECT md5(n::text), cluster, rule, state, severity, 'x' || mod(n, 1250),
              opened - n * interval '1 min', updated,
              doc || jsonb_build_object('id', md5(n::text), 'fault', 'xid-' || mod(n, 100),
                'root', jsonb_build_object('cluster', cluster, 'node', 'x' || mod(n, 1250)))
            FROM incidents, generate_series(1, 6000) AS n
            """
        )
        conn.exec_driver_sql("ANALYZE incidents")
        with plans_of(conn) as plans:
            found = similar_to(here, may_be_alike(conn, here), lambda _: "")
    assert len(found) == 5
    assert {one.fault for one in found} == {here.fault}
    assert len(plans) == 2
    assert all("Index Scan" in plan and "Seq Scan" not in plan for plan in plans), plans


def test_the_parts_of_an_incident_are_found_by_index_among_thousands(fresh_database: sa.Engine) -> None:
    here, part = incident(1), msgspec.structs.replace(incident(2), state=IncidentState.resolved)
    with fresh_database.begin() as conn:
        save_incident(conn, here)
        save_incident(conn, msgspec.structs.replace(part, merged_into=here.id))
        conn.exec_driver_sql(
            """
            INSERT INTO incidents (id, cluster, rule, state, severity, node, opened, updated, doc)
            SELECT md5(n::text), cluster, rule, 'resolved', severity, node, opened, updated,
              doc || jsonb_build_object('id', md5(n::text))
            FROM incidents, generate_series(1, 6000) AS n WHERE state <> 'resolved'
            """
        )
        conn.exec_driver_sql("ANALYZE incidents")
        query = sa.select(incidents.c.id).where(
            incidents.c.state == "resolved", part_of == sa.bindparam("into")
        )
        plan = conn.execute(sa.text(f"EXPLAIN {query}"), {"state_1": "resolved", "into": here.id}).scalars()
        assert "incidents_merged" in "\n".join(plan)
        found = [one.id for one in parts_of(conn, here.id)]
    assert found == [part.id]


def test_those_whose_node_is_on_probation_are_found_by_index_among_thousands(
    fresh_database: sa.Engine,
) -> None:
    now = incident(1).opened + timedelta(hours=2)
    ended = {"state": IncidentState.resolved, "closed": now - timedelta(minutes=5)}
    with fresh_database.begin() as conn:
        save_incident(conn, incident(1))
        save_incident(
            conn, msgspec.structs.replace(incident(2), probation_until=now + timedelta(hours=1), **ended)
        )
        conn.exec_driver_sql(
            """
            INSERT INTO incidents (id, cluster, rule, state, severity, node, opened, updated, closed, doc)
            SELECT md5(n::text), cluster, rule, state, severity, node, opened, updated,
              closed - n * interval '1 hour' - interval '30 days',
              doc || jsonb_build_object('id', md5(n::text))
            FROM incidents, generate_series(1, 6000) AS n WHERE state = 'resolved'
            """
        )
        conn.exec_driver_sql("ANALYZE incidents")
        with plans_of(conn) as plans:
            found = watched(conn, [CLUSTER], now)
    assert {one.id for one in found} == {incident(1).id, incident(2).id}
    assert all("incidents_closed" in plan and "Seq Scan" not in plan for plan in plans), plans


def test_those_that_name_a_node_or_a_job_are_found_by_index_among_thousands(
    fresh_database: sa.Engine,
) -> None:
    here = msgspec.structs.replace(incident(1), nodes={"leaf7": Verdict.suspect}, jobs_hit=("4711", "4712"))
    with fresh_database.begin() as conn:
        save_incident(conn, here)
        conn.exec_driver_sql(
            """
            INSERT INTO incidents (id, cluster, rule, state, severity, node, opened, updated, doc)
            SELECT md5(n::text), cluster, rule, state, severity, 'x' || mod(n, 1250), opened, updated,
              doc || jsonb_build_object('id', md5(n::text), 'jobs_hit', jsonb_build_array('j' || mod(n, 500)),
                'nodes', jsonb_build_object('x' || mod(n, 1250), 'suspect'))
            FROM incidents, generate_series(1, 6000) AS n
            """
        )
        conn.exec_driver_sql("ANALYZE incidents")
        with plans_of(conn) as plans:
            of_node = incident_page(conn, [incidents.c.cluster == CLUSTER, about_node("leaf7")], 50)
            of_job = incident_page(conn, [incidents.c.cluster == CLUSTER, jobs_named.contains(["4712"])], 50)
    assert [[one.id for one in page.items] for page in (of_node, of_job)] == [[here.id], [here.id]]
    assert all("incidents_named" in plan and "Seq Scan" not in plan for plan in plans), plans


def fill_messages(engine: sa.Engine, count: int) -> None:
    """Three at each minute, each third a ticket that was sent; of the others most are at one channel or two,
    and a few are only listed."""
    with engine.begin() as conn:
        conn.execute(
            sa.text(
                """
                INSERT INTO messages (id, cluster, kind, page, at, state, doc, routed)
                SELECT 'm' || n, 'pod1', CASE n % 3 WHEN 0 THEN 'ticket' ELSE 'message' END, false,
                  CAST(:now AS timestamptz) - n / 3 * interval '1 minute',
                  CASE n % 3 WHEN 0 THEN 'sent' ELSE 'listed' END, '{"title": "GPU lost"}', true
                FROM generate_series(1, :count) AS n
                """
            ),
            {"now": NOW, "count": count},
        )
        conn.exec_driver_sql(
            """
            INSERT INTO deliveries (cluster, channel, message, thread, alarm, how, stage, at, state)
            SELECT cluster, channel, id, id, '', 'channel', 'opened', at,
              CASE mod(hashtext(id), 100) WHEN 0 THEN 'failed' ELSE 'sent' END
            FROM messages, unnest(ARRAY['oncall', 'mail']) AS channel
            WHERE kind = 'message' AND mod(hashtext(channel || id), 9) <> 0
            """
        )
        conn.exec_driver_sql("ANALYZE messages, deliveries")


def test_pages_of_messages_are_read_by_index_among_thousands(fresh_database: sa.Engine) -> None:
    fill_messages(fresh_database, 30_000)
    book = PostgresMessageBook(fresh_database)
    usual = {"clusters": [CLUSTER], "incident": None, "limit": 20}
    for filters in ({"state": (), "channel": None}, {"state": ("failed",), "channel": "mail"}):
        cursor = None
        with plans_of(fresh_database, "messages") as plans, plans_of(fresh_database, "deliveries") as more:
            for _ in range(2):
                cursor = book.page(**usual, **filters, cursor=cursor).next_cursor
        assert plans and more
        assert not any("Seq Scan" in plan for plan in (*plans, *more)), (*plans, *more)


def test_the_pages_of_messages_are_all_of_them_once_and_in_order(fresh_database: sa.Engine) -> None:
    fill_messages(fresh_database, 300)
    book, listed = PostgresMessageBook(fresh_database), all_deliveries()
    states: tuple[tuple[str, ...], ...] = ((), ("failed",), ("listed",), ("sent", "failed"))
    for state, channel in product(states, (None, "mail", "tickets", "webhook", "unknown")):
        asked = {"clusters": None, "incident": None, "state": state, "channel": channel}
        whole = book.page(**asked, limit=1000, cursor=None)
        found, cursor = [], None
        while not found or cursor is not None:
            page = book.page(**asked, limit=7, cursor=cursor)
            found, cursor = [*found, *page.items], page.next_cursor
            assert len(page.items) == 7 or cursor is None
            if not page.items:
                break
        assert found == list(whole.items), asked
        count = (
            sa.select(sa.func.count())
            .select_from(listed)
            .where(matches(listed.c.state, state or None), matches(listed.c.channel, channel))
        )
        with fresh_database.connect() as conn:
            assert len(found) == conn.scalar(count), asked


def write_again(engine: sa.Engine, one: Incident) -> None:
    with engine.begin() as conn:
        values = {"state": one.state, "doc": to_stored(one)}
        conn.execute(sa.update(incidents).where(incidents.c.id == one.id).values(values))


def test_open_incidents_are_reread_only_where_they_changed(fresh_database: sa.Engine) -> None:
    PostgresSnapshots(fresh_database).put(snapshot())
    old, new = incident(9), incident(5)
    with fresh_database.begin() as conn:
        save_incident(conn, old)
        save_incident(conn, new)
    queries = queries_of(fresh_database)

    def shown() -> tuple[OpenIncident, ...]:
        return queries.clusters.state(CLUSTER, NOW).open_incidents

    first = shown()
    assert [one.id for one in first] == [new.id, old.id] and shown() is first
    write_again(fresh_database, msgspec.structs.replace(new, acknowledged_by="ann"))
    second = shown()
    assert [one.acknowledged_by for one in second] == ["ann", None] and second[1] is first[1]
    over = msgspec.structs.replace(old, state=IncidentState.resolved, merged_into=new.id, closed=NOW)
    write_again(fresh_database, over)
    assert [one.id for one in shown()] == [new.id]
    rows = queries.incidents.rows(new.id)
    assert rows is not None and [one.id for one in rows.merged] == [old.id]
    assert [one.id for one in queries.incidents.named([old.id, "gone", new.id])] == [old.id, new.id]


def test_the_run_at_work_is_the_newest_that_has_not_ended(fresh_database: sa.Engine) -> None:
    one, other = incident(9), incident(5)
    made = {"shadow": True, "state": RunState.running}, {"state": RunState.held}, {"state": RunState.done}
    with fresh_database.begin() as conn:
        for number, fields in enumerate(made):
            run = Run(
                id=f"r{number}", cluster=CLUSTER, playbook="drain", by="healer", reason="", incident=one.id,
                created_at=NOW + timedelta(seconds=number), **fields,  # type: ignore[arg-type]
            )  # fmt: skip
            save_run(conn, run)
    found = queries_of(fresh_database).runs.at_work([one.id, other.id])
    assert {name: run.id for name, run in found.items()} == {one.id: "r1"}


def test_a_run_is_found_by_the_short_id_that_slurms_reason_shows(fresh_database: sa.Engine) -> None:
    kept = ["ce9329f12ea2398e1430c2bd9083c240", "ce9329f12ea2398e00000000ffffffff"]
    with fresh_database.begin() as conn:
        for name in kept:
            save_run(
                conn,
                Run(
                    id=name, cluster=CLUSTER, playbook="drain", state=RunState.waiting, by="ada", reason="x",
                    created_at=NOW,
                ),
            )  # fmt: skip
            entry = LogEntry(run=name, at=NOW, epoch=1, step="drain", event=StepEvent.started, text="")
            write_entries(conn, [entry])
    found = queries_of(fresh_database).runs
    for short, run in ((kept[0][:17], kept[0]), (kept[0], kept[0]), (kept[0][:8], None), ("ce9329f", None)):
        one, record = found.find(short), found.record(short)
        assert (one and one.id) == (record and record.run.id) == run
        assert record is None or len(record.log) == 1


def test_a_storm_of_held_runs_hides_none_that_asks(fresh_database: sa.Engine) -> None:
    PostgresSnapshots(fresh_database).put(snapshot())
    with fresh_database.begin() as conn:
        for number in range(70):
            state = RunState.held if number else RunState.stuck
            at = NOW - timedelta(hours=1) + timedelta(seconds=number)
            save_run(
                conn,
                Run(
                    id=f"r{number}", cluster=CLUSTER, playbook="drain", state=state, by="healer", reason="x",
                    created_at=at, node=f"gpu{number:04d}",
                ),
            )  # fmt: skip
    state = queries_of(fresh_database).clusters.state(CLUSTER, NOW)
    assert [one.id for one in state.asking[:2]] == ["r0", "r20"]


def test_a_cluster_says_when_its_parts_were_last_heard(fresh_database: sa.Engine) -> None:
    Heartbeat(fresh_database, CLUSTER, "detector")()
    Heartbeat(fresh_database, "pod2", "worker")()
    beats = queries_of(fresh_database).clusters.state(CLUSTER, NOW).beats
    assert set(beats) == {"detector"} and abs(datetime.now(UTC) - beats["detector"]) < timedelta(minutes=1)


class NoSessions:
    def session(self, cookie: str, address: str) -> None: ...

    def job_owner(self, cookie: str, address: str) -> None: ...
    def sign_in(self, token: str, address: str) -> None: ...
    def sign_out(self, cookie: str) -> None: ...


def test_a_cluster_that_slurm_never_showed_has_its_page_too(fresh_database: sa.Engine) -> None:
    PostgresSnapshots(fresh_database).put(snapshot())
    modes = {"pod1": Mode.auto, "pod2": Mode.suggest}
    sources = Sources(
        queries=queries_of(fresh_database),
        rules=lambda: RULES,
        clock=lambda: NOW,
        unknown=lambda *_: [],
        arriving=lambda *_: Arriving([], SendersHeard(), []),
        modes=modes,
        cases=lambda: {"gpu-lost": 3},
    )
    pages = Pages(sources, NoSessions())
    assert pages.clusters(Caller(id="mara", name="mara", role=Role.viewer)) == ["pod1", "pod2"]
    away, here = pages.standing("pod2"), pages.standing("pod1")
    assert (away.snapshot, away.default_mode, here.default_mode) == (None, Mode.suggest, Mode.auto)
    book = pages.rule_book("pod2")
    assert (book.rules.default_mode, book.cases) == (Mode.suggest, {"gpu-lost": 3})


def test_a_leader_that_has_stopped_working_is_no_active_detector(fresh_database: sa.Engine) -> None:
    """A detector that hung kept its lock: `/readyz` said "running" for as long as it did."""
    with fresh_database.connect() as leader:
        assert try_lead(leader, CLUSTER)
        assert pulses(fresh_database, [CLUSTER])[0].detector, "it has just begun"
        Heartbeat(fresh_database, CLUSTER, "detector")()
        assert pulses(fresh_database, [CLUSTER])[0].detector
        with fresh_database.begin() as conn:
            conn.execute(sa.update(beats).values(at=datetime.now(UTC) - timedelta(minutes=2)))
        assert not pulses(fresh_database, [CLUSTER])[0].detector


def test_database_reports_on_healer_itself(fresh_database: sa.Engine) -> None:
    Heartbeat(fresh_database, CLUSTER, "scheduler")()
    with fresh_database.begin() as conn:
        for number, (state, error) in enumerate((("sent", None), ("failed", "403"), ("due", None))):
            fields = {"cluster": CLUSTER, "kind": "page", "page": True, "at": NOW, "routed": True}
            conn.execute(
                sa.insert(messages).values(id=f"m{number}", state=state, error=error, doc={}, **fields)
            )
        signal = {"cluster": CLUSTER, "kind": "log", "digest": b"x", "doc": {}}
        conn.execute(sa.insert(inbox).values(arrived_at=NOW - timedelta(minutes=1), **signal))
    with fresh_database.connect() as leader:
        assert try_lead(leader, CLUSTER)
        fields = stored(fresh_database, CLUSTER, NOW)
    assert fields.leads == {"detector"} and list(fields.beats) == ["scheduler"]
    assert fields.sinks == (Sink(name="webhook", sent=1, due=1, failed=1, last_sent=NOW, error="403"),)
    waits = {one.name: (one.count, one.oldest) for one in fields.backlogs}
    assert waits["Signals for the detector"] == (1, NOW - timedelta(minutes=1))
    assert waits["Runs for the workers"] == (0, None)
    assert fields.size_bytes > 0 and fields.scrape is None and fields.models == ()


def came_back(number: int, node: str, **more: Any) -> Incident:
    """Opened `number` minutes ago, drained after half a minute, back after ten."""
    closed = incident(number, node=node, state=IncidentState.resolved, **more)
    back = closed.opened + timedelta(minutes=10)
    return msgspec.structs.replace(
        closed,
        drained_at=closed.opened + timedelta(seconds=30),
        closed=back,
        probation_until=back + timedelta(days=7),
    )


def test_a_period_counts_by_class_and_rule_and_who_failed_again(fresh_database: sa.Engine) -> None:
    first = came_back(60, "gpu0001", review=Review.false_alarm)
    again = came_back(30, "gpu0001", review=Review.true_fault)
    fine = came_back(50, "gpu0002")
    mild = msgspec.structs.replace(
        incident(20, node="gpu0002"), rule="gpu-hot", fault_class=FaultClass.informational
    )
    older, elsewhere = came_back(3000, "gpu0003"), msgspec.structs.replace(incident(5), cluster="pod2")
    with fresh_database.begin() as conn:
        for one in (first, again, fine, mild, older, elsewhere):
            save_incident(conn, one)
        held = {"cluster": CLUSTER, "node": "gpu0001", "run": "r", "unusable": False}
        conn.execute(
            sa.insert(slots).values(
                incident=first.id,
                granted_at=first.opened,
                drained_at=first.drained_at,
                released_at=first.closed,
                **held,
            )
        )
        # Slurm did not take this drain: no node was out.
        soon = fine.opened + timedelta(seconds=3)
        never = {**held, "node": "gpu0002", "incident": fine.id}
        conn.execute(sa.insert(slots).values(granted_at=fine.opened, released_at=soon, **never))
    period = queries_of(fresh_database).figures.period(CLUSTER, NOW - timedelta(hours=2), datetime.now(UTC))
    assert (period.stats.incidents, period.stats.false_drains) == (4, 1)
    fatal, informational = period.by_class
    assert (fatal.name, fatal.incidents, fatal.drain.count, fatal.drain.p50_s) == ("fatal", 3, 3, 30.0)
    assert (fatal.to_return.count, fatal.to_return.p90_s) == (1, 600.0)
    assert (period.stats.to_return.count, period.stats.to_return.p50_s) == (1, 600.0)
    assert queries_of(fresh_database).figures.stats([CLUSTER], None).to_return.count == 1
    assert (informational.name, informational.drain.count) == ("informational", 0)
    assert sum(one.incidents for one in period.by_cause) == 4
    lost = period.by_rule[0]
    judged = (lost.true_faults, lost.false_alarms, lost.false_drains)
    assert (lost.rule, lost.incidents, lost.drained, judged) == ("gpu-lost", 3, 3, (1, 1, 1))
    # gpu0001 failed again after its first return; gpu0002 only reported something mild.
    assert (period.returned, period.relapsed) == (3, 1)
    empty = queries_of(fresh_database).figures.period(
        CLUSTER, NOW + timedelta(hours=1), NOW + timedelta(hours=2)
    )
    assert (empty.by_class, empty.by_rule, empty.returned) == ((), (), 0)


def test_charts_count_what_the_period_counts(fresh_database: sa.Engine) -> None:
    hit = JobHit(job="4711", basis=HitBasis.checkpoint, restart=0, lost_gpu_hours=4.0)
    early = msgspec.structs.replace(came_back(60 * 30, "gpu0001"), review=Review.false_alarm)
    late = msgspec.structs.replace(came_back(90, "gpu0001"), review=Review.true_fault, hit=(hit,))
    again = msgspec.structs.replace(came_back(80, "gpu0002"), hit=(hit,))
    with fresh_database.begin() as conn:
        for each in (early, late, again):
            save_incident(conn, each)
        conn.execute(
            sa.insert(slots).values(
                cluster=CLUSTER, node="gpu0001", incident=late.id, run="r", unusable=False,
                granted_at=late.opened, drained_at=late.drained_at,
                released_at=late.opened + timedelta(minutes=5),
            )
        )  # fmt: skip
        soon = again.opened + timedelta(seconds=3)
        never = {"cluster": CLUSTER, "node": "gpu0002", "incident": again.id, "run": "r", "unusable": False}
        conn.execute(sa.insert(slots).values(granted_at=again.opened, released_at=soon, **never))
    days = Buckets(start=NOW - timedelta(days=2), step_s=86400, count=2)
    found = queries_of(fresh_database).figures.charts(CLUSTER, days, days)
    assert [(each.bucket, each.name, each.value) for each in found.incidents] == [
        (0, "fatal", 1.0), (1, "fatal", 2.0),
    ]  # fmt: skip
    # One life of a job, hit twice: it is lost once.
    assert [(each.bucket, each.name, each.value) for each in found.lost] == [(1, "unclear", 4.0)]
    assert [(each.bucket, each.p50_s, each.p90_s) for each in found.to_return] == [(1, 300.0, 300.0)]
    assert [(each.bucket, each.name) for each in found.drains] == [(0, "false"), (1, "other")]
    judged = [(each.bucket, each.true_faults, each.false_alarms) for each in found.reviews]
    assert judged == [(0, 0, 1), (1, 1, 0)]
    assert [(each.bucket, each.name, each.value) for each in found.returns] == [
        (0, "relapsed", 1.0), (1, "stayed", 2.0),
    ]  # fmt: skip
    elsewhere = queries_of(fresh_database).figures.charts("pod2", days, days)
    assert elsewhere == ChartFigures()


def test_charts_end_with_the_period_within_a_part(fresh_database: sa.Engine) -> None:
    """The parts of a quarter are weeks, and the first day of a period has begun before it."""
    hit = JobHit(job="4711", basis=HitBasis.checkpoint, restart=0, lost_gpu_hours=4.0)
    given = [
        msgspec.structs.replace(came_back(minutes, node, review=Review.true_fault), hit=(hit,))
        for minutes, node in ((300, "gpu0001"), (200, "gpu0002"), (100, "gpu0003"))
    ]
    since, until = NOW - timedelta(minutes=250), NOW - timedelta(minutes=150)
    PostgresSnapshots(fresh_database).put(snapshot())
    with fresh_database.begin() as conn:
        conn.execute(sa.delete(node_states))
        for each in given:
            save_incident(conn, each)
            root, held = each.root, {"cluster": CLUSTER, "node": each.root.node}
            assert root.node is not None and each.drained_at is not None
            times = {"granted_at": each.opened, "drained_at": each.drained_at, "released_at": each.closed}
            conn.execute(sa.insert(slots).values(incident=each.id, run="r", unusable=False, **held, **times))
            state = {"state": "out", "held_by": "healer", "busy": False}
            conn.execute(sa.insert(node_states).values(since=each.opened, until=each.closed, **held, **state))
        lasts = {"cluster": CLUSTER, "node": "gpu0004", "state": "out", "held_by": "slurm", "busy": False}
        conn.execute(sa.insert(node_states).values(since=since - timedelta(hours=1), until=None, **lasts))
    figures = queries_of(fresh_database).figures
    day = Buckets(start=NOW - timedelta(hours=12), step_s=86400, count=1, since=since, until=until)
    found = figures.charts(CLUSTER, day, day)
    period = figures.period(CLUSTER, since, until)
    assert (period.stats.incidents, period.stats.to_return.count, period.returned) == (1, 1, 1)
    for each in (found.incidents, found.drains, found.returns):
        assert [(one.bucket, one.value) for one in each] == [(0, 1.0)]
    assert [(one.bucket, one.true_faults) for one in found.reviews] == [(0, 1)]
    assert [one.value for one in found.lost] == [period.stats.gpu_hours_lost] == [4.0]
    assert [(one.name, round(one.value * 60, 3)) for one in found.out] == [("healer", 10.0), ("slurm", 100.0)]


@pytest.mark.parametrize(("step_s", "count"), [(3600, 25), (86400, 31), (604800, 53)])
def test_hours_out_of_service_by_bucket_and_holder(
    fresh_database: sa.Engine, step_s: int, count: int
) -> None:
    """The buckets of a day, a month and a year. A state that lasts counts as far as the snapshot."""
    at = NOW.replace(minute=0, second=0, microsecond=0)
    buckets = Buckets(start=at - timedelta(seconds=step_s * (count - 1)), step_s=step_s, count=count)
    PostgresSnapshots(fresh_database).put(msgspec.structs.replace(snapshot(), taken_at=at))
    half = timedelta(seconds=step_s / 2)
    rows = [
        ("gpu0001", "out", "people", buckets.begin(1) - half, buckets.begin(2) + half),
        ("gpu0002", "planned", "slurm", buckets.start - half, buckets.begin(0) + half),
        ("gpu0003", "out", "healer", at - half, None),
        ("gpu0004", "in_service", "", buckets.start, None),
    ]
    names = ("node", "state", "held_by", "since", "until")
    with fresh_database.begin() as conn:
        conn.execute(sa.delete(node_states))
        for row in rows:
            values = dict(zip(names, row, strict=True))
            conn.execute(sa.insert(node_states).values(cluster=CLUSTER, busy=False, **values))
    found = queries_of(fresh_database).figures.charts(CLUSTER, buckets, buckets).out
    hours = step_s / 3600
    assert [(each.bucket, each.name, each.value) for each in found] == [
        (0, "people", hours / 2), (0, "planned", hours / 2), (1, "people", hours), (2, "people", hours / 2),
        (count - 2, "healer", hours / 2),
    ]  # fmt: skip


def test_shift_summary_lists_what_ended_and_what_people_did(fresh_database: sa.Engine) -> None:
    since = NOW - timedelta(hours=12)
    early, late = came_back(3000, "gpu0001"), came_back(60, "gpu0002")
    with fresh_database.begin() as conn:
        for one in (early, late):
            save_incident(conn, one)
        for hours, actor in ((20, "mara"), (3, "healer"), (2, "mara"), (1, "jonas")):
            record = {"actor": actor, "verb": "x.y", "subject": "node/gpu0001", "data": {}}
            at = NOW - timedelta(hours=hours)
            conn.execute(sa.insert(audit_records).values(cluster=CLUSTER, at=at, **record))
    queries, mine = queries_of(fresh_database), [CLUSTER]
    closed = IncidentQuery(clusters=mine, open=False, closed_since=since)
    ended = queries.incidents.page(closed, limit=9).items
    assert [one.id for one in ended] == [late.id]
    people = queries.audit.page(AuditQuery(clusters=mine, people_since=since), limit=9).items
    assert [one.actor for one in people] == ["jonas", "mara"]
    none = AuditQuery(clusters=mine, people_since=since, but=("access.", "x."))
    assert queries.audit.page(none, limit=9).items == []
    everything = AuditQuery(clusters=mine, people_since=NOW - timedelta(days=9))
    assert len(queries.audit.page(everything, limit=9).items) == 3
