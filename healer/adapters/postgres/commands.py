"""What people tell: notes, pauses and modes are rows of their own; the rest goes to the detector's inbox.

Each is one transaction with its audit record. The record carries the request's id, by which a repeat of the
same request is found: it changes nothing.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres.audit import append
from healer.adapters.postgres.engine import translated
from healer.adapters.postgres.inbox import put_command
from healer.adapters.postgres.messages import queue
from healer.adapters.postgres.proofs import proofs
from healer.adapters.postgres.references import forget_reference, save_reference
from healer.adapters.postgres.tables import audit_records, inbox, incidents, notes, pauses, rule_modes
from healer.decisions.earned import Proof, falls_back, lacks
from healer.model import AuditRecord, Command, CommandKind, Earn, Mode, Pause, Reference, Review
from healer.ports.request_errors import Conflict, NotFound
from healer.telling.messages import fell_back

#: Who sets a mode that falls back by itself.
HEALER = "healer"
#: The audit's verb of each command that people give.
_VERBS = {
    CommandKind.acknowledge: "incident.acknowledged",
    CommandKind.resolve: "incident.resolve_asked",
    CommandKind.reopen: "incident.reopen_asked",
    CommandKind.merge: "incident.merge_asked",
    CommandKind.split: "incident.split_asked",
    CommandKind.review: "incident.reviewed",
}


class PostgresCommands:
    """`healer.ports.people_commands.Commands`. `cluster` takes the audit records of what belongs to no
    cluster. `has_sink`: the site has an address that takes healer's messages."""

    def __init__(self, engine: sa.Engine, cluster: str, *, has_sink: bool = False) -> None:
        self._engine, self._has_sink = engine, has_sink
        self._cluster = cluster

    def tell(self, command: Command, *, request: str) -> int:
        with translated(), self._engine.begin() as conn:
            subject = f"incident/{command.incident}"
            if not _done(conn, subject, request):
                data = {"reason": command.reason, **command.data, "request": request}
                verb = _VERBS.get(command.kind, f"incident.{command.kind.value}")
                _record(conn, command.cluster, command.at, command.by, verb, subject, data)
            return put_command(conn, command, request=request)

    def consumed(self, row: int) -> bool:
        with translated(), self._engine.connect() as conn:
            at = conn.execute(sa.select(inbox.c.consumed_at).where(inbox.c.id == row)).scalar()
            return at is not None

    def note(self, incident: str, text: str, *, by: str, at: datetime, request: str) -> None:
        with translated(), self._engine.begin() as conn:
            subject = f"incident/{incident}"
            if _done(conn, subject, request):
                return
            cluster = conn.execute(sa.select(incidents.c.cluster).where(incidents.c.id == incident)).scalar()
            if cluster is None:
                raise NotFound(f"there is no incident {incident}")
            conn.execute(sa.insert(notes).values(incident=incident, at=at, by=by, text=text))
            _record(conn, cluster, at, by, "incident.noted", subject, {"note": text, "request": request})

    def pause(self, pause: Pause, *, request: str) -> Pause:
        """The same request again answers with the pause that it made."""
        with translated(), self._engine.begin() as conn:
            made = conn.execute(
                insert(pauses)
                .values(**msgspec.structs.asdict(pause))
                .on_conflict_do_nothing(index_elements=["id"])
                .returning(pauses.c.id)
            ).first()
            if made is None:
                return pause_of(conn.execute(sa.select(pauses).where(pauses.c.id == pause.id)).one())
            data = {name: value for name, value in msgspec.to_builtins(pause).items() if value}
            cluster = pause.cluster or self._cluster
            subject = f"pause/{pause.id}"
            _record(conn, cluster, pause.since, pause.by, "pause.set", subject, data | {"request": request})
            return pause

    def learn(self, reference: Reference, *, reason: str, request: str) -> None:
        subject = f"reference/{reference.kind}"
        data = {"reason": reason, "node": reference.node, "facts": reference.facts, "request": request}
        with translated(), self._engine.begin() as conn:
            if _done(conn, subject, request):
                return
            save_reference(conn, reference)
            about = reference.at, reference.by, "reference.learnt", subject, data
            _record(conn, reference.cluster, *about)

    def forget_reference(
        self, reference: Reference, *, by: str, reason: str, at: datetime, request: str
    ) -> None:
        subject = f"reference/{reference.kind}"
        data = {"reason": reason, "node": reference.node, "request": request}
        with translated(), self._engine.begin() as conn:
            if forget_reference(conn, reference.cluster, reference.kind):
                _record(conn, reference.cluster, at, by, "reference.forgotten", subject, data)

    def end_pause(self, pause: str, *, by: str, reason: str, at: datetime, request: str) -> Pause:
        with translated(), self._engine.begin() as conn:
            ended = conn.execute(
                sa.update(pauses)
                .where(pauses.c.id == pause, pauses.c.ended_at.is_(None))
                .values(ended_at=at, ended_by=by)
                .returning(pauses)
            ).first()
            if ended is not None:
                cluster = ended.cluster or self._cluster
                data = {"reason": reason, "request": request}
                _record(conn, cluster, at, by, "pause.ended", f"pause/{pause}", data)
                return pause_of(ended)
            row = conn.execute(sa.select(pauses).where(pauses.c.id == pause)).first()
            if row is None or not _done(conn, f"pause/{pause}", request):
                raise NotFound(f"no pause {pause} is in force")
            return pause_of(row)

    def set_mode(
        self,
        rule: str,
        mode: Mode,
        *,
        by: str,
        reason: str,
        at: datetime,
        request: str,
        earn: Earn,
        given: Mode,
        texts: Mapping[str, str],
    ) -> None:
        with translated(), self._engine.begin() as conn:
            if _done(conn, f"rule/{rule}", request):
                return
            before = conn.execute(sa.select(rule_modes).where(rule_modes.c.rule == rule)).first()
            back = given is Mode.auto and (before is None or before.by != HEALER)
            if mode is Mode.auto and not back:
                found = proofs(conn, earn.incidents, rules=[rule], texts=texts).get(rule, Proof())
                if (why := lacks(found, earn)) is not None:
                    raise Conflict(f"{rule} cannot be set to auto: {why}")
            _set_mode(conn, self._cluster, rule, mode, by=by, reason=reason, at=at, request=request)

    def judge_mode(
        self,
        rule: str,
        *,
        incident: str,
        review: Review,
        given: Mode,
        earn: Earn,
        texts: Mapping[str, str],
        at: datetime,
        request: str,
    ) -> None:
        with translated(), self._engine.begin() as conn:
            set_to = conn.execute(sa.select(rule_modes.c.mode).where(rule_modes.c.rule == rule)).scalar()
            mode = Mode(set_to) if set_to else given
            if mode is not Mode.auto or _done(conn, f"rule/{rule}", request):
                return
            told = incident, review
            judged = proofs(conn, earn.incidents, rules=[rule], now=told, texts=texts)
            found = judged.get(rule, Proof())
            why = falls_back(mode, found, earn)
            if why is not None:
                reason = f"{why} ({incident[:8]})"
                _set_mode(
                    conn, self._cluster, rule, Mode.approve, by=HEALER, reason=reason, at=at, request=request
                )
                page = fell_back(self._cluster, rule, why, incident, request)
                queue(conn, page, at=at, has_sink=self._has_sink)

    def audit(self, record: AuditRecord) -> None:
        with translated(), self._engine.begin() as conn:
            append(conn, record)


def _set_mode(
    conn: sa.Connection,
    cluster: str,
    rule: str,
    mode: Mode,
    *,
    by: str,
    reason: str,
    at: datetime,
    request: str,
) -> None:
    before = conn.execute(sa.select(rule_modes.c.mode).where(rule_modes.c.rule == rule)).scalar()
    values = {"mode": mode.value, "by": by, "reason": reason, "at": at}
    conn.execute(
        insert(rule_modes)
        .values(rule=rule, **values)
        .on_conflict_do_update(index_elements=["rule"], set_=values)
    )
    data = {"mode": mode.value, "before": before, "reason": reason, "request": request}
    _record(conn, cluster, at, by, "rule.mode_set", f"rule/{rule}", data)


def pause_of(row: sa.Row) -> Pause:
    return Pause(
        id=row.id,
        scope=row.scope,
        name=row.name,
        by=row.by,
        reason=row.reason,
        since=row.since,
        until=row.until,
        cluster=row.cluster,
    )


def _done(conn: sa.Connection, subject: str, request: str) -> bool:
    statement = sa.select(audit_records.c.id).where(
        audit_records.c.subject == subject, audit_records.c.data["request"].astext == request
    )
    return conn.execute(statement.limit(1)).first() is not None


def _record(conn: sa.Connection, cluster: str, *about: Any) -> None:
    """`about`: at, actor, verb, subject, data."""
    at, actor, verb, subject, data = about
    append(conn, AuditRecord(cluster=cluster, at=at, actor=actor, verb=verb, subject=subject, data=data))
