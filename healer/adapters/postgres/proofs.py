"""How the incidents of each rule turned out, newest first: what mode auto is earned by."""

from collections.abc import Collection

import sqlalchemy as sa

from healer.adapters.postgres.tables import incidents, run_log, runs
from healer.decisions.earned import Proof
from healer.model import Remedy, Review, StepEvent, Verb


def proofs(
    conn: sa.Connection,
    most: int,
    *,
    rules: Collection[str] | None = None,
    now: tuple[str, Review] | None = None,
) -> dict[str, Proof]:
    """rule -> its newest `most` judged incidents; rules without one are left out. `now`: an incident and the
    review of it that the detector has not stored yet."""
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
    right = sa.case(
        (review == Review.true_fault.value, True),
        (review == Review.false_alarm.value, False),
        (sa.or_(failed, replaced), True),
        else_=None,
    )
    judged = sa.select(incidents.c.rule, incidents.c.opened, right.label("right")).where(
        incidents.c.doc["merged_into"].astext.is_(None)
    )
    if rules is not None:
        judged = judged.where(incidents.c.rule.in_(rules))
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
