"""The page of signals: who sends, what was not stored and what to do about it, and what waits."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from healer.model import Loss, LossReason, Sender
from healer.ports.self_health import Queue

#: Losses of the last day are shown first and in colour; older ones are history.
FRESH = timedelta(days=1)
#: A token that sent more than once and then nothing for so long: somebody may miss it.
QUIET = timedelta(minutes=15)

#: What a reason means, and what to do about it.
LOSS_WORDS: Mapping[LossReason, tuple[str, str]] = {
    LossReason.shed: (
        "Too much waited to be written",
        "Senders try again by themselves. If it goes on: the database or its disk is slow.",
    ),
    LossReason.quota: (
        "A token sent more than its quota",
        "Find out what it sends; if it is right, make it a token with more: healer token create --quota 4.",
    ),
    LossReason.not_ready: (
        "Slurm had not been asked yet which nodes there are",
        "Passes by itself after a start. If it goes on: healer doctor says why Slurm does not answer.",
    ),
    LossReason.database_away: (
        "The database did not answer",
        "Look after PostgreSQL. Metrics of that time are gone, events were sent again or lie in the spool.",
    ),
    LossReason.disk_full: (
        "A disk was full",
        "Make room on the disk of PostgreSQL or of healer's data directory.",
    ),
    LossReason.spool_full: (
        "The database was away for longer than the spool holds",
        "Bring PostgreSQL back; senders with a queue of their own send again.",
    ),
    LossReason.too_large: (
        "A body was too large",
        "Let the sender send less at once; the limits: docs/signals.md.",
    ),
    LossReason.stalled: (
        "A body did not come in time",
        "Look at the network between this sender and healer, or at a proxy that holds bodies back.",
    ),
    LossReason.bad_body: (
        "A body could not be read",
        "The example says what is wrong. Senders do not send these again: mend their settings.",
    ),
    LossReason.rejected: (
        "Single entries were wrong",
        "The example names the field; the other entries were stored.",
    ),
    LossReason.not_recorded: (
        "The recording has a hole",
        "All was judged as ever; a replay lacks it. Look at the disk of HEALER_RECORDING.",
    ),
    LossReason.not_kernel: (
        "Log lines that are not surely the kernel's",
        "Right for what programs wrote. If kernel lines are missing: let the sender tell their origin.",
    ),
    LossReason.late: (
        "Samples were older than 15 min",
        "A sender catches up after a break, or its clock is behind: see the clocks below.",
    ),
    LossReason.out_of_order: (
        "Samples were not newer than what was known",
        "Two senders tell the same series, or one sends twice: harmless, and wasteful.",
    ),
    LossReason.series_limit: (
        "More series than a machine can have",
        "A label changes all the time, or somebody makes series up. The example names one.",
    ),
    LossReason.sender: (
        "The sender itself lost them",
        "Its queue is too short, or healer was away for too long.",
    ),
}


class LossRow(NamedTuple):
    """One reason: what it means, what to do, and by which routes and senders."""

    reason: str
    title: str
    todo: str
    entries: int
    fresh: bool
    last_seen: datetime
    parts: list[Loss]


def loss_rows(losses: Sequence[Loss], now: datetime) -> list[LossRow]:
    """By reason, the latest first."""
    by_reason: dict[LossReason, list[Loss]] = {}
    for one in losses:
        by_reason.setdefault(one.reason, []).append(one)
    rows = []
    for reason, parts in by_reason.items():
        last = max(one.last_seen for one in parts)
        title, todo = LOSS_WORDS[reason]
        ordered = sorted(parts, key=lambda one: (-one.count, one.source, one.who))
        entries = sum(one.count for one in parts)
        rows.append(LossRow(reason.value, title, todo, entries, now - last < FRESH, last, ordered))
    return sorted(rows, key=lambda one: one.last_seen, reverse=True)


class SenderRow(NamedTuple):
    """`job`: the one that enrolled itself for its token; nobody misses it when it ends."""

    sender: Sender
    job: str
    quiet: bool


def sender_rows(senders: Sequence[Sender], now: datetime) -> list[SenderRow]:
    """The latest first."""
    rows = []
    for one in senders:
        named = f"job {one.cluster}/"
        job = one.who.removeprefix(named) if one.who.startswith(named) else ""
        rows.append(SenderRow(one, job, not job and one.requests > 1 and now - one.last_seen > QUIET))
    return rows


class QueueRow(NamedTuple):
    queue: Queue
    share: float
    tone: str


def queue_rows(queues: Sequence[Queue]) -> list[QueueRow]:
    """What waits, as a share of its bound. Over half, what matters less is refused."""
    rows = []
    for one in queues:
        share = one.waiting / one.limit if one.limit else 0.0
        rows.append(QueueRow(one, share, "bad" if share > 0.9 else "warn" if share > 0.5 else "good"))
    return rows
