"""Rehearsals: changes of rules that people ask for and one runner replays over recordings."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, insert
from sqlalchemy.exc import IntegrityError

from healer.adapters.postgres.audit_rows import append
from healer.adapters.postgres.engine import PostgresStore, matches, pick, read_doc, reading, writing
from healer.adapters.postgres.rule_rows import outcome
from healer.adapters.postgres.tables import incidents, rehearsals, replay_proofs, rule_modes
from healer.model import Mode, audit_record
from healer.model.run import ACTIVE_REHEARSALS, Opened, Outcomes, Rehearsal, RehearsalState
from healer.ports.request_errors import Conflict, NotFound
from healer.text import NO_WORDS, Said, from_stored, say, to_stored

#: How long rehearsals with their results are kept.
KEPT = timedelta(days=90)
#: A runner reports every two seconds; after this silence it is dead.
DEAD = timedelta(minutes=2)
#: Fields that lists leave out.
_LARGE = ("text", "before", "result")


class PostgresRehearsals(PostgresStore):
    """`healer.ports.queries.Rehearsals` and `healer.processes.scheduler.RehearsalBook`."""

    # --- people

    def ask(self, asked: Rehearsal) -> Rehearsal:
        with writing(self._engine) as conn:
            before = _read(conn, asked.id)
            if before is not None:
                return before
            old = rehearsals.c.created_at < asked.created_at - KEPT
            conn.execute(sa.delete(rehearsals).where(rehearsals.c.cluster == asked.cluster, old))
            try:
                with conn.begin_nested():
                    conn.execute(sa.insert(rehearsals).values(**_row(asked), seen_at=asked.created_at))
            except IntegrityError:
                raise Conflict(say("adapters.rehearsal_other")) from None
            data = {"file": asked.file, "days": asked.days, "reason": asked.reason}
            _audit(conn, asked, asked.created_at, asked.by, "rehearsal.asked", data)
            return asked

    def newest(self, clusters: Sequence[str] | None, limit: int) -> list[Rehearsal]:
        doc = rehearsals.c.doc.op("-")(sa.cast(list(_LARGE), ARRAY(sa.Text)))
        query = sa.select(sa.cast(doc, JSONB).label("doc")).where(matches(rehearsals.c.cluster, clusters))
        with reading(self._engine) as conn:
            rows = conn.execute(query.order_by(rehearsals.c.created_at.desc()).limit(limit)).mappings()
            return [from_stored(row["doc"] | {"text": "", "before": None}, Rehearsal) for row in rows]

    def find(self, name: str) -> Rehearsal | None:
        with reading(self._engine) as conn:
            return _read(conn, name)

    def cancel(self, name: str, *, by: str, reason: str, at: datetime) -> Rehearsal:
        """Cancels it; repeating that changes nothing. Raises NotFound, or Conflict if it ended otherwise."""
        with writing(self._engine) as conn:
            rehearsal = _locked(conn, name)
            if rehearsal.state is RehearsalState.cancelled:
                return rehearsal
            if rehearsal.state not in ACTIVE_REHEARSALS:
                raise Conflict(f"it is {rehearsal.state.value} already")
            _audit(conn, rehearsal, at, by, "rehearsal.cancelled", {"reason": reason})
            return _write(conn, rehearsal, at, state=RehearsalState.cancelled, ended_at=at, left_s=None)

    # --- the outcomes of its incidents

    def real(self, names: Sequence[str]) -> dict[str, bool | None]:
        with reading(self._engine) as conn:
            return _read_outcomes(conn, names)

    def outcomes(self, rehearsal: Rehearsal) -> list[Outcomes]:
        """By changed rule."""
        with reading(self._engine) as conn:
            return list(_outcomes(conn, rehearsal))

    def prove(
        self, name: str, rules: Sequence[str], *, by: str, reason: str, at: datetime, request: str
    ) -> list[Outcomes]:
        with writing(self._engine) as conn:
            rehearsal = _locked(conn, name)
            outcomes_of = {opening.rule: opening for opening in _outcomes(conn, rehearsal)}
            opened = {opening.rule: opening for opening in opened_in(rehearsal)}
            for rule in rules:
                if rule not in outcomes_of:
                    raise Conflict(say("adapters.rehearsal_not_of_rule", rule=rule))
                if not outcomes_of[rule].right + outcomes_of[rule].wrong:
                    raise Conflict(say("adapters.rehearsal_not_reviewed", rule=rule))
            for rule in rules:
                opening = opened[rule]
                row = {"rule": rule, "digest": opening.digest, "rehearsal": name, "by": by, "at": at}
                made = conn.execute(
                    insert(replay_proofs)
                    .values([{**row, "incident": incident} for incident in opening.incidents])
                    .on_conflict_do_nothing()
                    .returning(replay_proofs.c.incident)
                )
                if made.first() is not None:
                    result = outcomes_of[rule]
                    data = {"rule": rule, "text": opening.digest, **pick(result, "right", "wrong")}
                    data |= {"true_faults_missed": result.missed_true, "reason": reason, "request": request}
                    _audit(conn, rehearsal, at, by, "rule.proven_by_replay", data)
            return list(_outcomes(conn, rehearsal))

    # --- the runner

    def modes(self) -> dict[str, Mode]:
        """By rule: the mode that was set while running."""
        with reading(self._engine) as conn:
            rows = conn.execute(sa.select(rule_modes.c.rule, rule_modes.c.mode))
            return {row.rule: Mode(row.mode) for row in rows}

    def claim(self, cluster: str, now: datetime) -> Rehearsal | None:
        """Starts the queued rehearsal. One whose runner died is marked as failed."""
        with writing(self._engine) as conn:
            query = sa.select(rehearsals.c.id, rehearsals.c.state, rehearsals.c.seen_at).where(
                rehearsals.c.cluster == cluster,
                rehearsals.c.state.in_([state.value for state in ACTIVE_REHEARSALS]),
            )
            row = conn.execute(query.with_for_update(skip_locked=True)).first()
            rehearsal = _read(conn, row.id) if row is not None else None
            if row is None or rehearsal is None:
                return None
            if rehearsal.state is RehearsalState.queued:
                return _write(conn, rehearsal, now, state=RehearsalState.running)
            if now - row.seen_at > DEAD:
                why = say("adapters.rehearsal_ended")
                _write(conn, rehearsal, now, state=RehearsalState.failed, ended_at=now, problem=why)
            return None

    def advance(self, name: str, progress: float, now: datetime, left_s: float | None = None) -> bool:
        """Stores the progress; False if the runner must stop."""
        with writing(self._engine) as conn:
            rehearsal = _read(conn, name, lock=True)
            if rehearsal is None or rehearsal.state is not RehearsalState.running:
                return False
            _write(conn, rehearsal, now, progress=progress, left_s=left_s)
            return True

    def end(
        self, name: str, now: datetime, *, result: Mapping[str, Any] | None = None, problem: Said = NO_WORDS
    ) -> None:
        """Ends it as done with a result, or as failed with a problem; a cancelled one stays cancelled."""
        with writing(self._engine) as conn:
            rehearsal = _read(conn, name, lock=True)
            if rehearsal is None or rehearsal.state is not RehearsalState.running:
                return
            state = RehearsalState.failed if result is None else RehearsalState.done
            ended = {"state": state, "ended_at": now, "problem": problem, "result": result, "left_s": None}
            _write(conn, rehearsal, now, **ended, progress=rehearsal.progress if result is None else 1.0)
            data = {"state": state.value, "file": rehearsal.file} | ({"why": problem} if problem else {})
            _audit(conn, rehearsal, now, "healer", "rehearsal.ended", data)


def opened_in(rehearsal: Rehearsal) -> list[Opened]:
    """The incidents that each changed rule opened; empty until the rehearsal is done."""
    return from_stored((rehearsal.result or {}).get("opened", []), list[Opened])


def _outcomes(conn: sa.Connection, rehearsal: Rehearsal) -> Iterator[Outcomes]:
    for opening in opened_in(rehearsal):
        real = _read_outcomes(conn, [*opening.incidents, *opening.missed], rule=opening.rule)
        outcomes = [real.get(name) for name in opening.incidents]
        missed = [real.get(name) for name in opening.missed]
        proof = replay_proofs.c
        of_text = proof.rule == opening.rule, proof.digest == opening.digest
        first = sa.select(proof.by, proof.at).where(*of_text).order_by(proof.at)
        counted = conn.execute(first.limit(1)).first()
        yield Outcomes(
            rule=opening.rule,
            digest=opening.digest,
            right=outcomes.count(True),
            wrong=outcomes.count(False),
            unknown=outcomes.count(None),
            missed_true=missed.count(True),
            missed_wrong=missed.count(False),
            counted_by=counted.by if counted else "",
            counted_at=counted.at if counted else None,
        )


def _read_outcomes(
    conn: sa.Connection, names: Sequence[str], rule: str | None = None
) -> dict[str, bool | None]:
    """By incident: true fault, false alarm, or None if it is not judged."""
    query = sa.select(incidents.c.id, outcome().label("right")).where(
        incidents.c.id.in_(names),
        incidents.c.doc["merged_into"].astext.is_(None),
        matches(incidents.c.rule, rule),
    )
    return {row.id: row.right for row in conn.execute(query)}


def _read(conn: sa.Connection, name: str, *, lock: bool = False) -> Rehearsal | None:
    query = sa.select(rehearsals.c.doc).where(rehearsals.c.id == name)
    return read_doc(conn, query.with_for_update() if lock else query, Rehearsal)


def _locked(conn: sa.Connection, name: str) -> Rehearsal:
    rehearsal = _read(conn, name, lock=True)
    if rehearsal is None:
        raise NotFound(say("adapters.rehearsal_none", name=name))
    return rehearsal


def _write(conn: sa.Connection, rehearsal: Rehearsal, now: datetime, **fields: Any) -> Rehearsal:
    changed = msgspec.structs.replace(rehearsal, **fields)
    row = {name: value for name, value in _row(changed).items() if name != "id"}
    conn.execute(sa.update(rehearsals).where(rehearsals.c.id == rehearsal.id).values(**row, seen_at=now))
    return changed


def _row(rehearsal: Rehearsal) -> dict[str, Any]:
    return pick(rehearsal, "id", "cluster", "created_at") | {
        "state": rehearsal.state.value,
        "doc": to_stored(rehearsal),
    }


def _audit(
    conn: sa.Connection, rehearsal: Rehearsal, at: datetime, actor: str, verb: str, data: dict[str, Any]
) -> None:
    subject = f"rehearsal/{rehearsal.id}"
    append(conn, audit_record(rehearsal.cluster, at, actor, verb, subject, **data))
