"""What each rule and playbook says, and how many more of its runs wait for a person."""

from collections.abc import Mapping
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres import audit_rows as audit
from healer.adapters.postgres.tables import rule_texts, runs
from healer.model import AuditRecord, Trial
from healer.model.gate import COUNTED

_ROWS = {"name": rule_texts.c.name, "digest": rule_texts.c.digest}


def note(
    conn: sa.Connection, cluster: str, texts: Mapping[str, str], first_runs: int, now: datetime
) -> list[Trial]:
    """`healer.ports.transactions.Ledger.note_texts`."""
    mine = rule_texts.c.cluster == cluster
    known = {(row.name, row.digest) for row in conn.execute(sa.select(*_ROWS.values()).where(mine))}
    new = [(name, digest) for name, digest in texts.items() if (name, digest) not in known]
    if new:
        left = first_runs if known else 0  # a new installation starts with what its files say
        row = {"cluster": cluster, "since": now, "left": left}
        rows = [{**row, "name": name, "digest": digest} for name, digest in new]
        conn.execute(insert(rule_texts).on_conflict_do_nothing(), rows)
        if known:
            _record(conn, cluster, [name for name, _ in new], first_runs, now)
    return _counted(conn, cluster, texts, first_runs)


def on_trial(conn: sa.Connection, cluster: str | None = None) -> list[Trial]:
    """All that has runs left, what no file says any more too; None: of all clusters."""
    query = sa.select(rule_texts).where(rule_texts.c.left > 0).order_by(rule_texts.c.name)
    if cluster is not None:
        query = query.where(rule_texts.c.cluster == cluster)
    return [
        Trial(name=row.name, digest=row.digest, since=row.since, left=row.left) for row in conn.execute(query)
    ]


def _counted(conn: sa.Connection, cluster: str, texts: Mapping[str, str], first_runs: int) -> list[Trial]:
    """Those of now that have runs left, after what has run since."""
    rows = conn.execute(
        sa.select(rule_texts).where(rule_texts.c.cluster == cluster, rule_texts.c.left > 0)
    ).all()
    standing = [row for row in rows if texts.get(row.name) == row.digest]
    if not standing:
        return []
    let_go = _let_go(conn, cluster, min(row.since for row in standing))
    trials = []
    for row in standing:
        ran = sum(since >= row.since for since in let_go.get(row.name, ()))
        left = max(0, first_runs - ran)
        if left != row.left:
            conn.execute(
                sa.update(rule_texts)
                .where(
                    rule_texts.c.cluster == cluster,
                    rule_texts.c.name == row.name,
                    rule_texts.c.digest == row.digest,
                )
                .values(left=left)
            )
        if left:
            trials.append(Trial(name=row.name, digest=row.digest, since=row.since, left=left))
    return trials


def _let_go(conn: sa.Connection, cluster: str, since: datetime) -> dict[str, list[datetime]]:
    """`rule/NAME` and `playbook/NAME` -> when the runs began that a person approved or asked for."""
    approved = runs.c.doc["approved_by"].astext
    rule = runs.c.doc["rule"].astext
    found: dict[str, list[datetime]] = {}
    for row in conn.execute(
        sa.select(runs.c.playbook, rule.label("rule"), runs.c.created_at).where(
            runs.c.cluster == cluster,
            runs.c.created_at >= since,
            sa.not_(runs.c.shadow),
            runs.c.state.in_([state.value for state in COUNTED]),
            sa.or_(approved.is_not(None), runs.c.doc["by"].astext != "healer"),
        )
    ):
        found.setdefault(f"playbook/{row.playbook}", []).append(row.created_at)
        if row.rule:
            found.setdefault(f"rule/{row.rule}", []).append(row.created_at)
    return found


def _record(conn: sa.Connection, cluster: str, names: list[str], first_runs: int, now: datetime) -> None:
    record = AuditRecord(
        cluster=cluster,
        at=now,
        actor="healer",
        verb="rules.changed",
        subject=f"cluster/{cluster}",
        data={"names": sorted(names), "first_runs_by_approval": first_runs},
    )
    audit.append(conn, record)
