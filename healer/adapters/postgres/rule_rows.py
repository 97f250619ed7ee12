"""Rules: their counts and modes, the first runs of a new text that need approval, and their precision."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, aggregate_order_by, insert

from healer.adapters.postgres import audit_rows
from healer.adapters.postgres.engine import PostgresStore, matches, read_structs, reading
from healer.adapters.postgres.node_rows import forecast_scores
from healer.adapters.postgres.tables import (
    findings,
    incidents,
    replay_proofs,
    rule_modes,
    rule_texts,
    run_log,
    runs,
)
from healer.model import ForecastScore, Mode, Proof, Remedy, Review, StepEvent, Trial, Verb, audit_record
from healer.model.gate import COUNTED
from healer.ports.answers import RuleRecord

#: The number of newest findings that are counted.
FINDINGS_READ = 5000


class PostgresRules(PostgresStore):
    """`healer.ports.queries.RuleQueries`."""

    def records(
        self, cluster: str | None = None, *, fired_since: datetime | None = None
    ) -> dict[str, RuleRecord]:
        """By rule. A finding counts for its rule, whatever the rule of the incident that it joined. For rules
        without one of the newest findings, the last firing is the opening of the last incident."""
        opened: dict[str, list[sa.Row]] = {}
        with reading(self._engine) as conn:
            for row in conn.execute(_incidents(cluster)):
                opened.setdefault(row.rule, []).append(row)
            found = [] if fired_since is None else conn.execute(_findings(cluster, fired_since)).all()
            fired = {row.rule: row for row in found}
            modes = {row.rule: row for row in conn.execute(sa.select(rule_modes))}
            scores = forecast_scores(conn)
        return {
            name: _record(opened.get(name, ()), fired.get(name), modes.get(name), scores.get(name))
            for name in {*opened, *fired, *modes, *scores}
        }

    def trials(self, cluster: str | None = None) -> list[Trial]:
        with reading(self._engine) as conn:
            order = rule_texts.c.name
            return read_structs(conn, _trials(matches(rule_texts.c.cluster, cluster)).order_by(order), Trial)


def _incidents(cluster: str | None) -> sa.Select:
    """Counts by rule and review."""
    review = incidents.c.doc["review"].astext
    wanted = sa.select(
        incidents.c.rule,
        review.label("review"),
        sa.func.count().label("opened"),
        sa.func.count().filter(incidents.c.state != "resolved").label("open"),
        sa.func.max(incidents.c.opened).label("last"),
        _first_text(incidents.c.id, incidents.c.opened.desc()).label("newest"),
    ).group_by(incidents.c.rule, review)
    return wanted.where(matches(incidents.c.cluster, cluster))


def _findings(cluster: str | None, since: datetime) -> sa.Select:
    """Counts of the newest findings by rule. Each finding holds its charts, so reading all would be slow."""
    newest = sa.select(findings).order_by(findings.c.id.desc()).limit(FINDINGS_READ).subquery()
    rule = newest.c.doc["rule"].astext
    wanted = (
        sa.select(
            rule.label("rule"),
            sa.func.max(newest.c.at).label("last"),
            sa.func.count().filter(newest.c.at > since).label("fired"),
            _first_text(newest.c.incident, newest.c.at.desc()).label("newest"),
        )
        .join(incidents, incidents.c.id == newest.c.incident)
        .group_by(rule)
    )
    return wanted.where(matches(incidents.c.cluster, cluster))


def _first_text(value: sa.ColumnElement, order: sa.ColumnElement) -> sa.ColumnElement:
    return sa.func.array_agg(aggregate_order_by(value, order), type_=ARRAY(sa.Text))[1]


def _record(
    opened: Iterable[sa.Row], fired: sa.Row | None, mode: sa.Row | None, forecasts: ForecastScore | None
) -> RuleRecord:
    rows = list(opened)
    last = [(row.last, row.newest) for row in (*rows, fired) if row is not None]
    last_at, last_incident = max(last, default=(None, None))
    return RuleRecord(
        mode=Mode(mode.mode) if mode else None,
        mode_by=mode.by if mode else None,
        mode_reason=mode.reason if mode else None,
        mode_at=mode.at if mode else None,
        incidents=sum(row.opened for row in rows),
        open=sum(row.open for row in rows),
        reviews={Review(row.review): row.opened for row in rows if row.review},
        last_at=last_at,
        last_incident=last_incident,
        fired=fired.fired if fired else 0,
        forecasts=forecasts,
    )


# --- the texts of rules and playbooks, and how many more of their runs need approval


def note_texts(
    conn: sa.Connection, cluster: str, texts: Mapping[str, str], first_runs: int, now: datetime
) -> list[Trial]:
    """`healer.ports.transactions.Ledger.note_texts`."""
    before = _stored_texts(conn, cluster)
    new = [(name, digest) for name, digest in texts.items() if (name, digest) not in before]
    if new:
        left = first_runs if before else 0  # a new installation trusts its files
        row = {"cluster": cluster, "since": now, "left": left}
        rows = [{**row, "name": name, "digest": digest} for name, digest in new]
        conn.execute(insert(rule_texts).on_conflict_do_nothing(), rows)
        if before:
            data = {"names": sorted(name for name, _ in new), "first_runs_by_approval": first_runs}
            subject = f"cluster/{cluster}"
            audit_rows.append(conn, audit_record(cluster, now, "healer", "rules.changed", subject, **data))
    return _update_trials(conn, cluster, texts, first_runs)


def rename_texts(conn: sa.Connection, cluster: str, digests: Mapping[str, tuple[str, str]]) -> None:
    """`healer.ports.transactions.Ledger.rename_texts`."""
    before = _stored_texts(conn, cluster)
    renamed = [
        {"of": name, "was": former, "now": digest}
        for name, (digest, former) in digests.items()
        if (name, digest) not in before and (name, former) in before
    ]
    if renamed:
        of_text = rule_texts.c.name == sa.bindparam("of"), rule_texts.c.digest == sa.bindparam("was")
        of_cluster = sa.update(rule_texts).where(rule_texts.c.cluster == cluster, *of_text)
        conn.execute(of_cluster.values(digest=sa.bindparam("now")), renamed)


def _stored_texts(conn: sa.Connection, cluster: str) -> set[tuple[str, str]]:
    """(name, digest)"""
    stored = sa.select(rule_texts.c.name, rule_texts.c.digest).where(rule_texts.c.cluster == cluster)
    return {(name, digest) for name, digest in conn.execute(stored)}


def _trials(where: sa.ColumnElement[bool]) -> sa.Select:
    columns = [rule_texts.c[name] for name in Trial.__struct_fields__]
    return sa.select(*columns).where(where, rule_texts.c.left > 0)


def _update_trials(
    conn: sa.Connection, cluster: str, texts: Mapping[str, str], first_runs: int
) -> list[Trial]:
    """Counts approved runs and returns the trials of current texts that need more of them."""
    stored = read_structs(conn, _trials(rule_texts.c.cluster == cluster), Trial)
    current = [trial for trial in stored if texts.get(trial.name) == trial.digest]
    if not current:
        return []
    approved = _approved_runs(conn, cluster, min(trial.since for trial in current))
    trials = []
    for trial in current:
        ran = sum(since >= trial.since for since in approved.get(trial.name, ()))
        left = max(0, first_runs - ran)
        if left != trial.left:
            text = (rule_texts.c.name == trial.name, rule_texts.c.digest == trial.digest)
            this = sa.update(rule_texts).where(rule_texts.c.cluster == cluster, *text)
            conn.execute(this.values(left=left))
        if left:
            trials.append(msgspec.structs.replace(trial, left=left))
    return trials


def _approved_runs(conn: sa.Connection, cluster: str, since: datetime) -> dict[str, list[datetime]]:
    """By `rule/NAME` and `playbook/NAME`: start times of the runs that a person approved or started."""
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


# --- the precision of each rule in its latest incidents, by which mode `auto` is granted


def proofs(
    conn: sa.Connection,
    most: int,
    *,
    digests: Mapping[str, tuple[str, str]],
    rules: Sequence[str] | None = None,
    now: Mapping[str, Review] | None = None,
) -> dict[str, Proof]:
    """By rule: right and wrong among its newest `most` judged incidents; rules without one are left out.
    `now`: by incident, reviews that the detector has not stored yet.

    `digests`: of the current rules (`Ruleset.digests`). A text that was proven by a replay counts only the
    incidents that it opened, in the replay and since it is in force.
    """
    judged = sa.select(incidents.c.rule, incidents.c.opened, outcome(now).label("right")).where(
        incidents.c.doc["merged_into"].astext.is_(None), matches(incidents.c.rule, rules)
    )
    for rule in _by_replay(conn, rules, digests):
        judged = judged.where(sa.or_(incidents.c.rule != rule, _as_edited(rule, digests[f"rule/{rule}"])))
    judged_rows = judged.subquery()
    ranked = (
        sa.select(
            judged_rows.c.rule,
            judged_rows.c.right,
            sa.func.row_number()
            .over(partition_by=judged_rows.c.rule, order_by=judged_rows.c.opened.desc())
            .label("rank"),
        )
        .where(judged_rows.c.right.is_not(None))
        .subquery()
    )
    query = (
        sa.select(
            ranked.c.rule,
            sa.func.count().filter(ranked.c.right).label("right"),
            sa.func.count().filter(sa.not_(ranked.c.right)).label("wrong"),
        )
        .where(ranked.c.rank <= most)
        .group_by(ranked.c.rule)
    )
    return {row.rule: Proof(right=row.right, wrong=row.wrong) for row in conn.execute(query)}


def _by_replay(
    conn: sa.Connection, rules: Sequence[str] | None, digests: Mapping[str, tuple[str, str]]
) -> list[str]:
    """Rules whose current text was proven by a replay. A proof keeps the digest of its time."""
    table = replay_proofs.c
    query = sa.select(table.rule, table.digest).where(matches(table.rule, rules)).distinct()
    proven = conn.execute(query).all()
    return sorted({row.rule for row in proven if row.digest in digests.get(f"rule/{row.rule}", ())})


def _as_edited(rule: str, digests: Sequence[str]) -> sa.ColumnElement[bool]:
    """Whether this text of the rule opened the incident: in the replay, or since it is in force here."""
    replayed = sa.select(replay_proofs.c.incident).where(
        replay_proofs.c.rule == rule, replay_proofs.c.digest.in_(digests)
    )
    since = (
        sa.select(sa.func.min(rule_texts.c.since))
        .where(
            rule_texts.c.cluster == incidents.c.cluster,
            rule_texts.c.name == f"rule/{rule}",
            rule_texts.c.digest.in_(digests),
        )
        .scalar_subquery()
    )
    return sa.or_(incidents.c.id.in_(replayed), sa.func.coalesce(incidents.c.opened >= since, sa.false()))


def outcome(now: Mapping[str, Review] | None = None) -> sa.ColumnElement[bool]:
    """For a row of `incidents`: true for a true fault, false for a false alarm, null if not judged."""
    review = incidents.c.doc["review"].astext
    if now:
        pending = {incident: pressed.value for incident, pressed in now.items()}
        review = sa.case(pending, value=incidents.c.id, else_=review)
    failed = (
        sa.select(sa.literal(1))
        .select_from(runs.join(run_log, run_log.c.run == runs.c.id))
        .where(
            runs.c.incident == incidents.c.id,
            run_log.c.event == StepEvent.done.value,
            run_log.c.doc["data"]["verb"].astext == Verb.diagnose.value,
            run_log.c.doc["data"]["passed"].astext == "false",
        )
        .exists()
    )
    replaced = sa.and_(
        incidents.c.state == "resolved", incidents.c.doc["tried"].astext == Remedy.replace.value
    )
    # A review overrides test results.
    return sa.case(
        (review == Review.true_fault.value, True),
        (review == Review.false_alarm.value, False),
        (sa.or_(failed, replaced), True),
        else_=None,
    )
