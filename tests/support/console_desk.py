"""What the sample site knows of healer itself, and its figures of a period."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

from healer.model import Controller, Incident, Review, Trouble
from healer.model.goodput import Spent
from healer.model.telemetry import ScrapeState, TargetState
from healer.ports.answers import (
    Backlog,
    BucketFigure,
    BucketReviews,
    Buckets,
    BucketSpread,
    ChartFigures,
    Group,
    ModelSeen,
    Period,
    Queue,
    RuleFigures,
    Saved,
    SelfHealth,
    Sink,
    Spread,
    Stats,
    Stored,
)
from tests.support.console_sample import CLUSTER, NOW


def _ago(**span: float) -> datetime:
    return NOW - timedelta(**span)


def own() -> SelfHealth:
    """Mostly well; the workers are silent, a sink fails and a target is down."""
    return SelfHealth(
        stored=Stored(
            version="16.4",
            size_bytes=3_400_000_000,
            free_share=0.62,
            controller=Controller(
                cluster=CLUSTER,
                at=NOW,
                adapter="slurmrestd",
                version="24.11.1",
                answer_s=0.21,
                since={Trouble.backlog: _ago(minutes=3)},
                agent_queue=812,
            ),
            beats={"detector": _ago(seconds=3), "scheduler": _ago(seconds=1), "worker": _ago(minutes=4)},
            leads=frozenset({"detector", "scraper"}),
            backlogs=(
                Backlog(name="Signals for the detector"),
                Backlog(name="Runs for the workers", count=3, oldest=_ago(minutes=4)),
            ),
            sinks=(
                Sink(name="pager", sent=31, last_sent=_ago(minutes=2)),
                Sink(name="<b>chat</b>", sent=2, due=1, failed=4, error="403 <script>alert(1)</script>"),
            ),
            scrape=ScrapeState(
                cluster=CLUSTER,
                at=_ago(seconds=4),
                targets=(
                    TargetState(cluster=CLUSTER, job="dcgm", target="gpu0001:9400", up=True),
                    TargetState(cluster=CLUSTER, job="dcgm", target="gpu0002:9400", up=False),
                ),
            ),
            models=(
                ModelSeen(hardware="h100", load="busy", model="5ac1" * 16, nodes=96, at=_ago(minutes=3)),
            ),
        ),
        checks={"spool": {"ok": True, "text": "empty"}, "database": {"ok": True, "text": "answers"}},
        queues=(Queue("events", 12, 20_000, "entries"),),
        broker=0,
        broker_text="answers",
        rules_version="9d1f00c2aa51",
        rules_since=_ago(hours=30),
    )  # fmt: skip


def period(since: datetime, until: datetime, incidents: Sequence[Incident]) -> Period:
    """Times are made up, the rest is counted."""
    listed = [one for one in incidents if since <= one.opened < until]
    spread = Spread(count=len(listed), p50_s=0.4, p90_s=3.2, max_s=71.0) if listed else Spread(count=0)
    away = Spread(count=2, p50_s=5400, p90_s=86400, max_s=90000) if listed else Spread(count=0)

    def group(name: str, count: int) -> Group:
        return Group(name=name, incidents=count, detect=spread, decide=spread, drain=spread, to_return=away)

    by_class = Counter(str(one.fault_class) for one in listed)
    by_cause = Counter(str(one.cause) for one in listed)
    false = sum(one.review is Review.false_alarm and one.drained_at is not None for one in listed)
    return Period(
        since=since,
        until=until,
        stats=Stats(
            since=since,
            incidents=len(listed),
            open=sum(one.is_open for one in listed),
            by_rule={},
            by_cause=dict(by_cause),
            by_severity={},
            false_drains=false,
            gpu_hours_lost=412.5 if listed else None,
            gpu_hours_at_most=12.25 if listed else None,
            jobs_unknown=2 if listed else 0,
            saved=Saved(jobs=7, people=9, people_s=840.0, gpu_hours=118.5) if listed else Saved(),
            detect=spread,
            decide=spread,
            drain=spread,
            to_return=away,
        ),
        by_class=tuple(group(*one) for one in by_class.most_common()),
        by_cause=tuple(group(*one) for one in by_cause.most_common()),
        by_rule=tuple(_rule(rule, listed) for rule in dict.fromkeys(one.rule for one in listed)),
        returned=8 if listed else 0,
        relapsed=1 if listed else 0,
    )


def _rule(rule: str, incidents: Sequence[Incident]) -> RuleFigures:
    mine = [one for one in incidents if one.rule == rule]
    return RuleFigures(
        rule=rule,
        incidents=len(mine),
        drained=sum(one.drained_at is not None for one in mine),
        true_faults=sum(one.review is Review.true_fault for one in mine),
        false_alarms=sum(one.review is Review.false_alarm for one in mine),
    )


def chart_figures(buckets: Buckets, reviewed: Buckets, incidents: Sequence[Incident]) -> ChartFigures:
    """The incidents are counted; where the sample knows too little, a plausible value is made up by the
    number of the bucket, the same each time."""
    drains = [one for one in incidents if one.drained_at is not None]
    away = [one for one in drains if one.closed is not None]
    return ChartFigures(
        incidents=_counted(buckets, [(one.opened, str(one.fault_class)) for one in incidents]),
        detect=tuple(_spread(at, 0.4, 2.5) for at in range(buckets.count) if at % 7 != 3),
        to_return=tuple(_spread(at, 1500, 5200) for at in range(buckets.count) if at % 5 != 4),
        lost=_counted(buckets, [(one.opened, str(one.cause)) for one in incidents if one.jobs_hit], 37.5),
        drains=_counted(
            buckets,
            [(one.opened, "false" if one.review is Review.false_alarm else "other") for one in drains],
        ),
        returns=_counted(
            buckets,
            [(one.closed, "relapsed" if one.id < "3" else "stayed") for one in away if one.closed],
        ),
        out=tuple(_held(at, name) for at in range(buckets.count) for name in _HELD_H if incidents),
        goodput=tuple(_spent(at, spent) for at in range(buckets.count) for spent in Spent if incidents),
        reviews=_reviews(reviewed, incidents),
    )


def _spent(at: int, spent: Spent) -> BucketFigure:
    hours = 700.0 if spent is Spent.productive else 4.0 * ((at + len(spent)) % 5)
    return BucketFigure(bucket=at, name=spent.value, value=hours)


_HELD_H = {"healer": 6.0, "slurm": 2.0, "person": 4.0, "planned": 8.0}


def _held(at: int, name: str) -> BucketFigure:
    return BucketFigure(bucket=at, name=name, value=_HELD_H[name] * ((at + len(name)) % 4))


def _bucket(buckets: Buckets, at: datetime) -> int:
    return int((at - buckets.start).total_seconds() // buckets.step_s)


def _counted(
    buckets: Buckets, moments: Sequence[tuple[datetime, str]], each: float = 1
) -> tuple[BucketFigure, ...]:
    found = Counter((_bucket(buckets, at), name) for at, name in moments)
    inside = {key: count for key, count in sorted(found.items()) if 0 <= key[0] < buckets.count}
    return tuple(BucketFigure(bucket=at, name=name, value=n * each) for (at, name), n in inside.items())


def _spread(at: int, middle: float, most: float) -> BucketSpread:
    wave = 1 + 0.5 * ((at * 7) % 5 - 2) / 2
    return BucketSpread(bucket=at, p50_s=middle * wave, p90_s=most * wave)


def _reviews(buckets: Buckets, incidents: Sequence[Incident]) -> tuple[BucketReviews, ...]:
    found: dict[tuple[int, str], Counter[Review]] = {}
    for one in incidents:
        at = _bucket(buckets, one.opened)
        if one.review is not None and one.review is not Review.unclear and 0 <= at < buckets.count:
            found.setdefault((at, one.rule), Counter())[one.review] += 1
    return tuple(
        BucketReviews(
            bucket=at,
            rule=rule,
            true_faults=counts[Review.true_fault],
            false_alarms=counts[Review.false_alarm],
        )
        for (at, rule), counts in sorted(found.items())
    )
