"""What the API reads. Each method is a few indexed queries on one connection."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres import figures, forecasts, lemons, paging, rows, rule_texts, unusual, verdicts
from healer.adapters.postgres.controls import pause_of
from healer.adapters.postgres.details import incident_detail, run_detail
from healer.adapters.postgres.engine import translated
from healer.adapters.postgres.job_history import job_history
from healer.adapters.postgres.message_book import channels_told
from healer.adapters.postgres.node_views import by_node, gpu_views, node_view
from healer.adapters.postgres.references import (
    changed_since,
    measured_figures,
    read_inventories,
    read_references,
)
from healer.adapters.postgres.snapshots import PostgresSnapshots
from healer.adapters.postgres.tables import (
    audit_records,
    decisions,
    gate,
    inbox,
    incidents,
    messages,
    notes,
    part_of,
    pauses,
    rule_modes,
    runs,
)
from healer.decisions.node_context import context_of
from healer.incidents.verdict import newest_verdict
from healer.model import (
    CONTEXT_LONGEST,
    AuditRecord,
    Breaker,
    Incident,
    Inventory,
    LemonScore,
    Message,
    Mode,
    Pause,
    Reference,
    Review,
    Ruleset,
    Run,
    SlurmSnapshot,
    Trial,
)
from healer.ports.api_answers import (
    BreakerView,
    CheckpointView,
    IncidentDetail,
    JobView,
    NodeView,
    Note,
    Page,
    RuleRecord,
    RunDetail,
    Stats,
    TimelineEntry,
)
from healer.ports.clock import Clock

#: Incidents of a node's history that its page shows.
_HISTORY = 50
#: Heartbeats tell which GPUs a node has; the last ones within this time are looked at.
_TOLD = timedelta(minutes=5)


class PostgresReads:
    """`healer.ports.queries.Reads`."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        snapshots: PostgresSnapshots,
        clock: Clock,
        rules: Callable[[], Ruleset],
    ) -> None:
        self._engine = engine
        self._snapshots = snapshots
        self._clock = clock
        self._rules = rules

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with translated(), self._engine.connect() as conn:
            yield conn

    def clusters(self) -> list[str]:
        with self._reading() as conn:
            return rows.cluster_names(conn)

    def snapshots(self) -> dict[str, SlurmSnapshot]:
        with self._reading() as conn:
            return self._pictures(conn, None)

    def _pictures(self, conn: sa.Connection, clusters: Sequence[str] | None) -> dict[str, SlurmSnapshot]:
        names = rows.cluster_names(conn)
        wanted = names if clusters is None else [name for name in names if name in clusters]
        found = {name: self._snapshots.read(conn, name) for name in wanted}
        return {name: one for name, one in found.items() if one is not None}

    # --- incidents ---

    def incidents(
        self,
        *,
        clusters: Sequence[str] | None = None,
        state: Sequence[str] = (),
        severity: Sequence[str] = (),
        node: str | None = None,
        q: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[Incident]:
        where: list[sa.ColumnElement[bool]] = []
        if clusters is not None:
            where.append(incidents.c.cluster.in_(clusters))
        if state:
            where.append(incidents.c.state.in_(state))
        if severity:
            where.append(incidents.c.severity.in_(severity))
        if node:
            where.append(rows.about_node(node))
        if q:
            where.append(rows.holds_text(q))
        with self._reading() as conn:
            items, more = rows.incident_page(conn, where, limit, cursor)
        return Page(items=items, next_cursor=more)

    def incident(self, incident: str) -> Incident | None:
        with self._reading() as conn:
            return rows.incident_named(conn, incident)

    def merged_into(self, incident: str) -> list[str]:
        query = (
            sa.select(incidents.c.id)
            .where(incidents.c.state == "resolved", part_of == incident)
            .order_by(incidents.c.opened, incidents.c.id)
        )
        with translated(), self._engine.begin() as conn:
            return list(conn.execute(query).scalars())

    def incident_detail(self, incident: str) -> IncidentDetail | None:
        with self._reading() as conn:
            found = rows.incident_named(conn, incident)
            if found is None:
                return None
            its_runs = rows.runs_of(conn, found.id)
            logs = rows.logs_of(conn, [run.id for run in its_runs])
            judged = rows.decisions_where(conn, decisions.c.incident == found.id)
            records, _ = rows.audit_page(conn, [audit_records.c.subject == f"incident/{found.id}"], 200, None)
            snapshot = self._snapshots.read(conn, found.cluster)
            kept = verdicts.of(conn, found.id)
            return incident_detail(
                found,
                verdict=newest_verdict(kept, found, self._rules()),
                verdicts=kept,
                findings=rows.findings_of(conn, found.id),
                decisions=judged,
                runs=[
                    run_detail(run, logs[run.id], [one for one in judged if one.run == run.id], self._rules())
                    for run in its_runs
                ],
                notes=_notes(conn, found.id),
                messages=_messages(conn, found.id),
                records=records[::-1],
                similar=rows.similar_of(conn, found, snapshot),
                snapshot=snapshot,
            )

    # --- nodes and jobs ---

    def nodes(
        self,
        rules: Ruleset,
        *,
        clusters: Sequence[str] | None = None,
        verdict: Sequence[str] = (),
        q: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[NodeView]:
        start = ("", "") if cursor is None else paging.decode(cursor, tuple[str, str])
        with self._reading() as conn:
            pictures = self._pictures(conn, clusters)
            now = self._clock.now()
            told = by_node(rows.watched(conn, clusters, now))
            changed = {name: changed_since(conn, name, now - CONTEXT_LONGEST) for name in pictures}
            scored = {name: lemons.read(conn, name) for name in pictures}
        found: list[NodeView] = []
        for cluster in sorted(pictures):
            for name in sorted(pictures[cluster].nodes):
                if (cluster, name) <= start or (q and q.lower() not in name.lower()):
                    continue
                picture = pictures[cluster]
                view = node_view(picture, picture.nodes[name], told.get((cluster, name), []))
                if verdict and view.verdict not in verdict:
                    continue
                if len(found) == limit:
                    return Page(items=found, next_cursor=paging.encode(found[-1].cluster, found[-1].name))
                context = context_of(rules, picture, picture.nodes[name], changed[cluster].get(name), now)
                lemon = _lemon(scored[cluster].get(name))
                found.append(msgspec.structs.replace(view, context=context, **lemon))
        return Page(items=found)

    def node(self, cluster: str, node: str, rules: Ruleset) -> NodeView | None:
        now = self._clock.now()
        with self._reading() as conn:
            picture = self._snapshots.read(conn, cluster)
            if picture is None or node not in picture.nodes:
                return None
            shown = picture.nodes[node]
            watched = by_node(rows.watched(conn, [cluster], now)).get((cluster, node), [])
            where = [incidents.c.cluster == cluster, rows.about_node(node)]
            history, _ = rows.incident_page(conn, where, _HISTORY, None)
            told = _told_gpus(conn, cluster, node, now)
            known = changed_since(conn, cluster, now - CONTEXT_LONGEST, node).get(node)
            lemon = lemons.read(conn, cluster, node).get(node)
            strange = unusual.read(conn, cluster, node, now)
        return msgspec.structs.replace(
            node_view(picture, shown, watched),
            gpus=gpu_views(picture, shown, watched, rules, told),
            jobs=picture.jobs_on(node),
            history=history,
            **_lemon(lemon),
            unusual=strange,
            context=context_of(rules, picture, shown, known, now),
        )

    def references(self, cluster: str) -> list[Reference]:
        with self._reading() as conn:
            return read_references(conn, cluster)

    def inventories(self, cluster: str, node: str | None = None) -> list[Inventory]:
        with self._reading() as conn:
            return read_inventories(conn, cluster, node)

    def measured(self, cluster: str, node: str) -> dict[str, float]:
        with self._reading() as conn:
            return measured_figures(conn, cluster, node)

    def job(self, cluster: str, job: str) -> JobView | None:
        with self._reading() as conn:
            picture = self._snapshots.read(conn, cluster)
            known = job_history(conn, picture, cluster, job, self._rules())
        shown = picture.jobs.get(job) if picture else None
        if shown is None and known.empty:
            return None
        return JobView(
            cluster=cluster,
            id=job,
            job=shown,
            nodes=list(shown.nodes) if shown else [],
            incidents=list(known.incidents),
            requeues=[msgspec.to_builtins(one, builtin_types=(datetime,)) for one in known.requeues],
            done=[msgspec.to_builtins(one, builtin_types=(datetime,)) for one in known.done],
            errors=[msgspec.to_builtins(one, builtin_types=(datetime,)) for one in known.errors],
            checkpoints=[CheckpointView(**msgspec.structs.asdict(one)) for one in known.checkpoints],
            gpu_hours_lost=known.gpu_hours_lost,
            gpu_hours_at_most=known.gpu_hours_at_most,
        )

    # --- runs ---

    def runs(
        self,
        *,
        clusters: Sequence[str] | None = None,
        state: Sequence[str] = (),
        node: str | None = None,
        incident: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[Run]:
        where: list[sa.ColumnElement[bool]] = []
        if clusters is not None:
            where.append(runs.c.cluster.in_(clusters))
        if state:
            where.append(runs.c.state.in_(state))
        if node:
            where.append(runs.c.node == node)
        if incident:
            where.append(runs.c.incident == incident)
        with self._reading() as conn:
            items, more = rows.run_page(conn, where, limit, cursor)
        return Page(items=items, next_cursor=more)

    def run(self, run: str) -> Run | None:
        with self._reading() as conn:
            return rows.run_named(conn, run)

    def run_detail(self, run: str, rules: Ruleset) -> RunDetail | None:
        with self._reading() as conn:
            found = rows.run_named(conn, run)
            if found is None:
                return None
            judged = rows.decisions_where(conn, decisions.c.run == run)
            return run_detail(found, rows.logs_of(conn, [run])[run], judged, rules)

    # --- rules, pauses, breaker, audit, figures ---

    def rule_records(self) -> dict[str, RuleRecord]:
        review = incidents.c.doc["review"].astext
        with self._reading() as conn:
            modes = {row.rule: row for row in conn.execute(sa.select(rule_modes))}
            counted = conn.execute(
                sa.select(
                    incidents.c.rule,
                    review.label("review"),
                    sa.func.count().label("count"),
                    sa.func.max(incidents.c.opened).label("opened"),
                ).group_by(incidents.c.rule, review)
            ).all()
            foretold = forecasts.scores(conn)
        names = {*modes, *foretold, *(row.rule for row in counted)}
        found = {}
        for name in names:
            mine = [row for row in counted if row.rule == name]
            mode = modes.get(name)
            found[name] = RuleRecord(
                mode=Mode(mode.mode) if mode else None,
                mode_by=mode.by if mode else None,
                mode_reason=mode.reason if mode else None,
                mode_at=mode.at if mode else None,
                incidents=sum(row[2] for row in mine),
                reviews={Review(row.review): row[2] for row in mine if row.review},
                last_incident_at=max((row.opened for row in mine), default=None),
                forecasts=foretold.get(name),
            )
        return found

    def trials(self) -> list[Trial]:
        with self._reading() as conn:
            return rule_texts.on_trial(conn)

    def pauses(self, now: datetime) -> list[Pause]:
        with self._reading() as conn:
            found = conn.execute(sa.select(pauses).where(*in_force(now)).order_by(pauses.c.since))
            return [pause_of(row) for row in found]

    def breakers(self) -> list[BreakerView]:
        with self._reading() as conn:
            kept = {row.cluster: row.breaker for row in conn.execute(sa.select(gate))}
            names = sorted(set(rows.cluster_names(conn)) | set(kept))
        return [
            msgspec.convert(kept[name], BreakerView)
            if name in kept
            else BreakerView(cluster=name, state=Breaker(cluster=name).state)
            for name in names
        ]

    def audit(
        self,
        *,
        clusters: Sequence[str] | None = None,
        subject: str | None = None,
        actor: str | None = None,
        verb: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[AuditRecord]:
        where: list[sa.ColumnElement[bool]] = []
        if clusters is not None:
            where.append(audit_records.c.cluster.in_(clusters))
        if subject:
            where.append(rows.begins(audit_records.c.subject, subject))
        if actor:
            where.append(audit_records.c.actor == actor)
        if verb:
            where.append(rows.begins(audit_records.c.verb, verb))
        with self._reading() as conn:
            items, more = rows.audit_page(conn, where, limit, cursor)
        return Page(items=items, next_cursor=more)

    def stats(self, *, clusters: Sequence[str] | None = None, since: datetime | None = None) -> Stats:
        with self._reading() as conn:
            return figures.stats(conn, clusters, since)

    def figures(self) -> dict[str, Any]:
        with self._reading() as conn:
            return figures.gauges(conn, self._clock.now())


def in_force(now: datetime) -> tuple[sa.ColumnElement[bool], ...]:
    return (pauses.c.ended_at.is_(None), sa.or_(pauses.c.until.is_(None), pauses.c.until > now))


def _notes(conn: sa.Connection, incident: str) -> list[Note]:
    found = conn.execute(
        sa.select(notes.c.at, notes.c.by, notes.c.text)
        .where(notes.c.incident == incident)
        .order_by(notes.c.id)
    )
    return [Note(at=row.at, by=row.by, text=row.text) for row in found]


def _messages(conn: sa.Connection, incident: str) -> list[tuple[Message, TimelineEntry]]:
    """Pages and notes of the incident; tickets stand in the timeline alone."""
    found = conn.execute(sa.select(messages).where(messages.c.incident == incident).order_by(messages.c.at))
    made, told = [], channels_told(conn, incident)
    for row in found:
        data = {"state": row.state, "page": row.page, "error": row.error, "reference": row.reference}
        data["channels"] = [
            {"channel": one.channel, "state": one.state, "error": one.error, "reference": one.reference}
            for one in told.get(row.id, ())
        ]
        entry = TimelineEntry(at=row.at, kind="message", text=str(row.doc.get("title", "")), data=data)
        doc = {"severity": "P3", **row.doc}
        names = Message.__struct_fields__
        made.append((msgspec.convert({k: v for k, v in doc.items() if k in names}, Message), entry))
    return made


def _told_gpus(conn: sa.Connection, cluster: str, node: str, now: datetime) -> dict[int, dict[str, Any]]:
    """GPU index -> what the node's last heartbeat said of it."""
    data = conn.execute(
        sa.select(inbox.c.doc["data"]["gpus"])
        .where(
            inbox.c.cluster == cluster,
            inbox.c.node == node,
            inbox.c.kind == "heartbeat",
            inbox.c.arrived_at > now - _TOLD,
            inbox.c.doc["data"].has_key("gpus"),
        )
        .order_by(inbox.c.arrived_at.desc())
        .limit(1)
    ).scalar()
    return {int(gpu["index"]): gpu for gpu in data or ()}


def _lemon(score: LemonScore | None) -> dict[str, Any]:
    return {"lemon_score": score.score, "lemon": score.parts} if score is not None else {}
