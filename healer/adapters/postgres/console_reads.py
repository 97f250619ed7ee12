"""What the pages read: `healer.ports.console_queries.ConsoleReads` on PostgreSQL."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres import fleet_gauges, lemons, rows, rule_texts, unusual, verdicts
from healer.adapters.postgres.columns import PostgresColumns
from healer.adapters.postgres.engine import translated
from healer.adapters.postgres.evidence import collected_for
from healer.adapters.postgres.figures import lock_held, part_lock
from healer.adapters.postgres.fleet_figures import read_standing
from healer.adapters.postgres.fleet_gauges import Kept
from healer.adapters.postgres.gate import read_facts
from healer.adapters.postgres.job_history import job_history
from healer.adapters.postgres.message_book import channels_told
from healer.adapters.postgres.open_incidents import OpenIncidents, merged_into
from healer.adapters.postgres.period import period
from healer.adapters.postgres.references import changed_since, read_inventories, read_references
from healer.adapters.postgres.rule_records import rule_records
from healer.adapters.postgres.snapshots import PostgresSnapshots, read_controller
from healer.adapters.postgres.tables import (
    audit_chain,
    audit_checkpoints,
    audit_records,
    audit_unsealed,
    decisions,
    incidents,
    messages,
    notes,
    runs,
    snapshots,
)
from healer.decisions.node_context import context_of
from healer.incidents.verdict import newest_verdict
from healer.model import (
    CONTEXT_LONGEST,
    AuditRecord,
    Catalogue,
    Checkpoint,
    Column,
    Incident,
    LastHeard,
    LemonScore,
    Message,
    Mode,
    NodeContext,
    NodeStanding,
    Observation,
    Reference,
    Ruleset,
    Run,
    SlurmSnapshot,
    UnknownSeries,
)
from healer.model.samples import Report, StepBatch
from healer.model.unusual import Unusual
from healer.ports.api_answers import Note
from healer.ports.clock import Clock
from healer.ports.console_answers import (
    Arriving,
    ChainState,
    IncidentDetail,
    JobHistory,
    NodeGauges,
    Page,
    RuleBook,
    RunDetail,
    SentMessage,
    Standing,
    ToldAt,
)
from healer.ports.console_queries import AuditQuery, BadCursor, IncidentQuery, RunQuery
from healer.ports.measurements import SignalReads
from healer.ports.period_figures import Period
from healer.ports.pull import Charts, Points
from healer.ports.request_errors import Invalid
from healer.ports.signal_stores import UnknownBook

T = TypeVar("T")

#: Runs that want a person, and how many of them a page shows.
_ASKING = ("waiting_approval", "proposed", "stuck")
#: A storm holds many runs at a time: they hide none of those that ask.
_ASKING_SHOWN, _HELD_SHOWN = 200, 50
_RECORDS = 200
_HOUR = timedelta(hours=1)


class PostgresConsoleReads:
    """One value for all pages; safe in a thread pool."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        snapshots: PostgresSnapshots,
        clock: Clock,
        rules: Callable[[], Ruleset],
        signals: SignalReads,
        unknown: UnknownBook,
        rules_error: Callable[[], str] = lambda: "",
        cases: Callable[[], dict[str, int]] = dict,
        modes: Mapping[str, Mode] | None = None,
        charts: Charts | None = None,
        arriving: Callable[[str, int], Arriving] = lambda *_: Arriving([], [], []),
    ) -> None:
        """`modes`: of several clusters each, with the mode of rules without their own."""
        self._engine = engine
        self._snapshots = snapshots
        self._clock = clock
        self._rules = rules
        self._signals = signals
        self._unknown = unknown
        self._rules_error = rules_error
        self._cases = cases
        self._modes = modes or {}
        self._charts = charts
        self._arriving = arriving
        self._open = OpenIncidents()
        self._columns = PostgresColumns(engine)
        self._gauges = Kept[NodeGauges](fleet_gauges.GAUGES_EVERY_S)
        self._paces = Kept[float](fleet_gauges.PACES_EVERY_S)
        self._lemons = Kept[float](fleet_gauges.PACES_EVERY_S)

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        try:
            with translated(), self._engine.connect() as conn:
                yield conn
        except Invalid as error:
            raise BadCursor(str(error)) from error

    def clusters(self) -> list[str]:
        with self._reading() as conn:
            return sorted({*rows.cluster_names(conn), *self._modes})

    def standing(self, cluster: str) -> Standing | None:
        now = self._clock.now()
        rules = self._rules()
        with self._reading() as conn:
            picture = conn.execute(
                sa.select(snapshots.c.version, snapshots.c.error).where(snapshots.c.cluster == cluster)
            ).first()
            if picture is None and cluster not in self._modes:
                return None
            facts = read_facts(conn, cluster, self._snapshots, now)
            held = lock_held(conn, part_lock("detector", cluster))
            asking = sa.or_(
                runs.c.state.in_(_ASKING),
                sa.and_(runs.c.state.in_(("waiting", "running")), runs.c.doc["question"].astext.is_not(None)),
            )
            wanted = [runs.c.cluster == cluster, asking]
            asked, _ = rows.run_page(conn, wanted, _ASKING_SHOWN, None)
            held_back = [runs.c.cluster == cluster, runs.c.state == "held"]
            asked += rows.run_page(conn, held_back, _HELD_SHOWN, None)[0]
            return Standing(
                cluster=cluster,
                breaker=facts.breaker,
                guards=rules.cluster_guards.get(cluster, rules.guards),
                default_mode=self._modes.get(cluster, rules.default_mode),
                snapshot=facts.snapshot,
                snapshot_version=picture.version if picture else 0,
                snapshot_error=picture.error or "" if picture else "",
                controller=read_controller(conn, cluster),
                slots=facts.slots,
                granted_last_hour=sum(at > now - _HOUR for at in facts.granted),
                pauses=facts.pauses,
                vetoes=facts.vetoes,
                open_incidents=self._open.read(conn, cluster),
                asking=tuple(sorted(asked, key=lambda one: (one.created_at, one.id))),
                rules_error=self._rules_error(),
                rules=rules,
                detector_at=now if held else None,
            )

    def incidents(self, query: IncidentQuery, *, limit: int, cursor: str | None = None) -> Page[Incident]:
        where: list[sa.ColumnElement[bool]] = [incidents.c.cluster == query.cluster]
        if query.open is not None:
            resolved = incidents.c.state == "resolved"
            where.append(~resolved if query.open else resolved)
        if query.state is not None:
            where.append(incidents.c.state == query.state)
        if query.severity is not None:
            where.append(incidents.c.severity == query.severity)
        if query.node:
            where.append(rows.about_node(query.node))
        if query.text:
            where.append(rows.holds_text(query.text))
        if query.closed_since is not None:
            where.append(incidents.c.closed >= query.closed_since)
        with self._reading() as conn:
            items, more = rows.incident_page(conn, where, limit, cursor)
        return Page(items=tuple(items), next_cursor=more)

    def incidents_named(self, ids: Sequence[str]) -> list[Incident]:
        with self._reading() as conn:
            return rows.incidents_named(conn, ids)

    def at_work(self, ids: Sequence[str]) -> dict[str, Run]:
        with self._reading() as conn:
            return rows.at_work(conn, ids)

    def incident(self, incident: str) -> IncidentDetail | None:
        with self._reading() as conn:
            found = rows.incident_named(conn, incident)
            if found is None:
                return None
            its_runs = rows.runs_of(conn, found.id)
            names = [run.id for run in its_runs]
            logs = rows.logs_of(conn, names)
            judged = rows.decisions_where(conn, decisions.c.incident == found.id)
            subjects = [f"incident/{found.id}", *(f"run/{name}" for name in names)]
            records, _ = rows.audit_page(conn, [audit_records.c.subject.in_(subjects)], _RECORDS, None)
            kept = verdicts.of(conn, found.id)
            return IncidentDetail(
                incident=found,
                verdict=newest_verdict(kept, found, self._rules()),
                verdicts=tuple(kept),
                findings=tuple(rows.findings_of(conn, found.id)),
                decisions=tuple(judged),
                runs=tuple(
                    RunDetail(
                        run=run,
                        log=tuple(logs[run.id]),
                        decisions=tuple(one for one in judged if one.run == run.id),
                    )
                    for run in its_runs
                ),
                notes=_notes(conn, found.id),
                records=tuple(reversed(records)),
                messages=_messages(conn, found.id),
                similar=tuple(rows.similar_of(conn, found, self._snapshots.read(conn, found.cluster))),
                collected=tuple(collected_for(conn, incident=found.id)),
                merged=merged_into(conn, found.id),
            )

    def runs(self, query: RunQuery, *, limit: int, cursor: str | None = None) -> Page[Run]:
        where: list[sa.ColumnElement[bool]] = [runs.c.cluster == query.cluster]
        if query.state is not None:
            where.append(runs.c.state == query.state)
        if query.node:
            where.append(runs.c.node == query.node)
        if query.playbook:
            where.append(runs.c.playbook == query.playbook)
        with self._reading() as conn:
            items, more = rows.run_page(conn, where, limit, cursor)
        return Page(items=tuple(items), next_cursor=more)

    def run(self, run: str) -> RunDetail | None:
        with self._reading() as conn:
            found = rows.run_named(conn, run)
            if found is None:
                return None
            judged = rows.decisions_where(conn, decisions.c.run == run)
            log = rows.logs_of(conn, [run])[run]
        playbook = self._rules().playbooks.get(found.playbook)
        return RunDetail(
            run=found,
            log=tuple(log),
            decisions=tuple(judged),
            plan=tuple(step.title or step.id for step in playbook.steps) if playbook else (),
        )

    def audit(self, query: AuditQuery, *, limit: int, cursor: str | None = None) -> Page[AuditRecord]:
        where: list[sa.ColumnElement[bool]] = [audit_records.c.cluster == query.cluster]
        if query.actor:
            where.append(audit_records.c.actor == query.actor)
        if query.verb:
            where.append(rows.begins(audit_records.c.verb, query.verb))
        if query.subject:
            where.append(rows.begins(audit_records.c.subject, query.subject))
        if query.people_since is not None:
            where += [
                audit_records.c.actor != "healer",
                audit_records.c.id > _last_before(query.people_since),
                *(~rows.begins(audit_records.c.verb, one) for one in query.but),
            ]
        with self._reading() as conn:
            items, more = rows.audit_page(conn, where, limit, cursor)
        return Page(items=tuple(items), next_cursor=more)

    def chain(self, cluster: str) -> ChainState:
        with self._reading() as conn:
            head = conn.execute(
                sa.select(audit_chain.c.seq, audit_chain.c.hash)
                .where(audit_chain.c.cluster == cluster)
                .order_by(audit_chain.c.seq.desc())
                .limit(1)
            ).first()
            waiting = conn.execute(
                sa.select(sa.func.count())
                .select_from(audit_unsealed)
                .join(audit_records, audit_records.c.id == audit_unsealed.c.record)
                .where(audit_records.c.cluster == cluster)
            ).scalar_one()
            signed = conn.execute(
                sa.select(audit_checkpoints)
                .where(audit_checkpoints.c.cluster == cluster)
                .order_by(audit_checkpoints.c.seq.desc())
                .limit(1)
            ).first()
        return ChainState(
            cluster=cluster,
            seq=head.seq if head else 0,
            hash=bytes(head.hash).hex() if head else "",
            unsealed=waiting,
            checkpoint=None if signed is None else _checkpoint(signed),
        )

    def catalogue(self) -> Catalogue:
        return self._rules().catalogue

    def rules(self) -> Ruleset:
        return self._rules()

    def rule_book(self, cluster: str) -> RuleBook:
        with self._reading() as conn:
            records = rule_records(conn, cluster, self._clock.now())
            trials = rule_texts.on_trial(conn, cluster)
        rules = self._rules()
        if cluster in self._modes:
            rules = msgspec.structs.replace(rules, default_mode=self._modes[cluster])
        return RuleBook(rules=rules, records=records, cases=self._cases(), trials=tuple(trials))

    def period(self, cluster: str, since: datetime) -> Period:
        with self._reading() as conn:
            return period(conn, cluster, since)

    def unknown_series(self, cluster: str, *, limit: int) -> list[UnknownSeries]:
        return self._unknown.series([cluster], limit)

    def arriving(self, cluster: str, *, limit: int) -> Arriving:
        return self._arriving(cluster, limit)

    def job(self, cluster: str, job: str) -> JobHistory:
        with self._reading() as conn:
            return job_history(conn, self._snapshots.read(conn, cluster), cluster, job, self._rules())

    def node_signals(
        self, cluster: str, node: str, since: datetime
    ) -> tuple[list[Report], dict[int, Column]]:
        return self._signals.node_signals(cluster, node, since)

    def inventory(self, cluster: str, node: str) -> dict[str, str]:
        with self._reading() as conn:
            told = read_inventories(conn, cluster, node)
        return told[0].facts if told else {}

    def node_context(self, cluster: str, node: str) -> tuple[NodeContext, ...]:
        now = self._clock.now()
        with self._reading() as conn:
            picture = self._snapshots.read(conn, cluster)
            if picture is None or node not in picture.nodes:
                return ()
            known = changed_since(conn, cluster, now - CONTEXT_LONGEST, node).get(node)
        return context_of(self._rules(), picture, picture.nodes[node], known, now)

    def lemon(self, cluster: str, node: str) -> LemonScore | None:
        with self._reading() as conn:
            return lemons.read(conn, cluster, node).get(node)

    def gauges(self, cluster: str) -> Mapping[str, NodeGauges]:
        return self._gauges.get(cluster, lambda: self._of_fleet(cluster, self._read_gauges))

    def paces(self, cluster: str) -> Mapping[str, float]:
        return self._paces.get(cluster, lambda: self._of_fleet(cluster, fleet_gauges.paces))

    def lemons(self, cluster: str) -> Mapping[str, float]:
        def look(conn: sa.Connection, picture: SlurmSnapshot, _: datetime) -> dict[str, float]:
            kept = {name: one.score for name, one in lemons.read(conn, picture.cluster).items()}
            # Nothing is kept of a node without faults; a node that is missing is one nobody could look up.
            return {node.name: kept.get(node.name, 0.0) for node in picture.gpu_nodes}

        return self._lemons.get(cluster, lambda: self._of_fleet(cluster, look))

    def _of_fleet(
        self, cluster: str, look: Callable[[sa.Connection, SlurmSnapshot, datetime], dict[str, T]]
    ) -> dict[str, T]:
        """Nothing before Slurm's first picture."""
        with self._reading() as conn:
            picture = self._snapshots.read(conn, cluster)
            return look(conn, picture, self._clock.now()) if picture is not None else {}

    def _read_gauges(
        self, conn: sa.Connection, picture: SlurmSnapshot, now: datetime
    ) -> dict[str, NodeGauges]:
        return fleet_gauges.gauges(conn, picture, self._columns, now)

    def unusual(self, cluster: str, node: str) -> Unusual | None:
        with self._reading() as conn:
            return unusual.read(conn, cluster, node, self._clock.now())

    def fleet_figures(self, cluster: str, node: str) -> NodeStanding | None:
        with self._reading() as conn:
            return read_standing(conn, cluster, node)

    def references(self, cluster: str) -> list[Reference]:
        with self._reading() as conn:
            return read_references(conn, cluster)

    def remembers(self, cluster: str) -> bool:
        return self._charts is not None and self._charts.remembers(cluster)

    def remembered(self, cluster: str, node: str, signal: str, since: datetime, until: datetime) -> Points:
        return self._charts.points(cluster, node, signal, since, until) if self._charts is not None else {}

    def heard(self, cluster: str, node: str, since: datetime) -> LastHeard:
        return self._signals.heard(cluster, node, since)

    def alerts(self, cluster: str, node: str, since: datetime) -> list[Observation]:
        return self._signals.alerts(cluster, node, since)

    def job_steps(self, cluster: str, job: str, since: datetime) -> list[StepBatch]:
        return self._signals.job_steps(cluster, job, since)


def _last_before(moment: datetime) -> sa.ColumnElement[int]:
    """The last record before then, found from the end: a filter by `at` would walk the whole trail."""
    older = sa.select(audit_records.c.id).where(audit_records.c.at < moment)
    return sa.func.coalesce(older.order_by(audit_records.c.id.desc()).limit(1).scalar_subquery(), 0)


def _checkpoint(row: sa.Row) -> Checkpoint:
    return Checkpoint(
        cluster=row.cluster,
        seq=row.seq,
        hash=bytes(row.hash).hex(),
        at=row.at,
        key=row.key,
        signature=bytes(row.signature).hex(),
    )


def _notes(conn: sa.Connection, incident: str) -> tuple[Note, ...]:
    found = conn.execute(
        sa.select(notes.c.at, notes.c.by, notes.c.text)
        .where(notes.c.incident == incident)
        .order_by(notes.c.id)
    )
    return tuple(Note(at=row.at, by=row.by, text=row.text) for row in found)


def _messages(conn: sa.Connection, incident: str) -> tuple[SentMessage, ...]:
    """Pages, notes and tickets alike: a ticket has no severity of its own."""
    told = channels_told(conn, incident)
    found = conn.execute(sa.select(messages).where(messages.c.incident == incident).order_by(messages.c.at))
    return tuple(
        SentMessage(
            at=row.at,
            kind=row.kind,
            state=row.state,
            message=msgspec.convert({"severity": "P3", **row.doc}, Message),
            error=row.error or "",
            reference=row.reference or "",
            channels=tuple(
                ToldAt(channel=one.channel, state=one.state, error=one.error or "")
                for one in told.get(row.id, ())
            ),
        )
        for row in found
    )
