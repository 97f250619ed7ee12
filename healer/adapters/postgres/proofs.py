"""How the incidents of each rule turned out, newest first: what mode auto is earned by."""

from collections.abc import Collection, Mapping

import sqlalchemy as sa

from healer.adapters.postgres.tables import incidents, replay_proofs, rule_texts, run_log, runs
from healer.model import Proof, Remedy, Review, StepEvent, Verb


def proofs(
    conn: sa.Connection,
    most: int,
    *,
    rules: Collection[str] | None = None,
    now: tuple[str, Review] | None = None,
    texts: Mapping[str, str] | None = None,
) -> dict[str, Proof]:
    """rule -> its newest `most` judged incidents; rules without one are left out. `now`: an incident and the
    review of it that the detector has not stored yet.

    `texts`: what rules say now (`Ruleset.texts`). One whose text was proven by a replay is judged by what
    that text opened: in the replay, and since it is in force.
    """
    judged = sa.select(incidents.c.rule, incidents.c.opened, outcome(now).label("right")).where(
        incidents.c.doc["merged_into"].astext.is_(None)
    )
    if rules is not None:
        judged = judged.where(incidents.c.rule.in_(rules))
    for rule, digest in _by_replay(conn, rules, texts or {}):
        judged = judged.where(sa.or_(incidents.c.rule != rule, _as_edited(rule, digest)))
    known = judged.subquery()
    ranked = (
        sa.select(
            known.c.rule,
            known.c.right,
            sa.func.row_number()
            .over(partition_by=known.c.rule, order_by=known.c.opened.desc())
            .label("place"),
        )
        .where(known.c.right.is_not(None))
        .subquery()
    )
    query = (
        sa.select(
            ranked.c.rule,
            sa.func.count().filter(ranked.c.right).label("right"),
            sa.func.count().filter(sa.not_(ranked.c.right)).label("wrong"),
        )
        .where(ranked.c.place <= most)
        .group_by(ranked.c.rule)
    )
    return {row.rule: Proof(right=row.right, wrong=row.wrong) for row in conn.execute(query)}


def _by_replay(
    conn: sa.Connection, rules: Collection[str] | None, texts: Mapping[str, str]
) -> list[tuple[str, str]]:
    """(rule, digest) of those whose text of now has proof by replay."""
    query = sa.select(replay_proofs.c.rule, replay_proofs.c.digest).distinct()
    if rules is not None:
        query = query.where(replay_proofs.c.rule.in_(rules))
    found = [(row.rule, row.digest) for row in conn.execute(query)]
    return [(rule, digest) for rule, digest in found if texts.get(f"rule/{rule}") == digest]


def _as_edited(rule: str, digest: str) -> sa.ColumnElement[bool]:
    """What this text of the rule opened: in a replay that is proof, or since it was first in force here."""
    replayed = sa.select(replay_proofs.c.incident).where(
        replay_proofs.c.rule == rule, replay_proofs.c.digest == digest
    )
    since = (
        sa.select(sa.func.min(rule_texts.c.since))
        .where(
            rule_texts.c.cluster == incidents.c.cluster,
            rule_texts.c.name == f"rule/{rule}",
            rule_texts.c.digest == digest,
        )
        .scalar_subquery()
    )
    return sa.or_(incidents.c.id.in_(replayed), sa.func.coalesce(incidents.c.opened >= since, sa.false()))


def outcome(now: tuple[str, Review] | None = None) -> sa.ColumnElement[bool]:
    """Of a row of `incidents`: true fault, false alarm, or null where nobody and nothing has judged it."""
    review = incidents.c.doc["review"].astext
    if now is not None:
        review = sa.case((incidents.c.id == now[0], now[1].value), else_=review)
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
    # A person's word stands above what was measured.
    return sa.case(
        (review == Review.true_fault.value, True),
        (review == Review.false_alarm.value, False),
        (sa.or_(failed, replaced), True),
        else_=None,
    )
