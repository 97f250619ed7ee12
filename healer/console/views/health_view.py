"""The pages of signals and of healer's own health: senders, losses and what to do about them, queues."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from healer.console import words
from healer.console.views.standing_view import TROUBLE_WORDS
from healer.model import Loss, LossReason, Sender, UnknownSeries
from healer.observations.slurm_poll import troubles
from healer.ports.answers import Backlog, ModelSeen, Queue, SelfHealth, Sink, Standing

#: Losses of the last day are shown first and in colour; older ones are history.
FRESH = timedelta(days=1)
#: A token that sent more than once and then nothing for so long is quiet.
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
    for loss in losses:
        by_reason.setdefault(loss.reason, []).append(loss)
    rows = []
    for reason, parts in by_reason.items():
        last = max(loss.last_seen for loss in parts)
        title, todo = LOSS_WORDS[reason]
        ordered = sorted(parts, key=lambda loss: (-loss.count, loss.source, loss.who))
        entries = sum(loss.count for loss in parts)
        rows.append(LossRow(reason.value, title, todo, entries, now - last < FRESH, last, ordered))
    return sorted(rows, key=lambda row: row.last_seen, reverse=True)


class SenderRow(NamedTuple):
    """`job`: the one that enrolled itself for its token; it is never quiet, as jobs end."""

    sender: Sender
    job: str
    quiet: bool


def sender_rows(senders: Sequence[Sender], now: datetime) -> list[SenderRow]:
    """The latest first."""
    rows = []
    for sender in senders:
        named = f"job {sender.cluster}/"
        job = sender.who.removeprefix(named) if sender.who.startswith(named) else ""
        rows.append(
            SenderRow(sender, job, not job and sender.requests > 1 and now - sender.last_seen > QUIET)
        )
    return rows


class QueueRow(NamedTuple):
    queue: Queue
    share: float
    tone: str


def queue_rows(queues: Sequence[Queue]) -> list[QueueRow]:
    """What waits, as a share of its bound. Over half, what matters less is refused."""
    rows = []
    for queue in queues:
        share = queue.waiting / queue.limit if queue.limit else 0.0
        rows.append(QueueRow(queue, share, "bad" if share > 0.9 else "warn" if share > 0.5 else "good"))
    return rows


#: A part says every few seconds that it works.
SILENT = timedelta(seconds=60)
#: What waits longer than this waits for something that does not come.
BEHIND = timedelta(seconds=30)
SENDERS_NAMED = 8

_PARTS = {
    "detector": ("Detector", "Start healer detector: nothing is found without it."),
    "scheduler": ("Scheduler", "Start healer scheduler: Slurm is not asked, messages do not leave."),
    "worker": ("Workers", "Start healer worker: nothing is done without one."),
}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One part. `tone` is good, warn, bad or plain, `word` says the same; no `todo` where all is well."""

    name: str
    tone: str
    word: str
    text: str
    todo: str = ""
    href: str = ""


class Section(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    rows: tuple[Row, ...]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """`wrong` are the rows of all sections that are not well, the worst first."""

    sections: tuple[Section, ...]
    wrong: tuple[Row, ...]


class Arrives(msgspec.Struct, frozen=True, kw_only=True):
    """The data of the page of signals that this page sums up."""

    losses: tuple[LossRow, ...] = ()
    senders: tuple[SenderRow, ...] = ()
    queues: tuple[QueueRow, ...] = ()
    unknown: tuple[UnknownSeries, ...] = ()


def health(
    state: SelfHealth, standing: Standing, arrives: Arrives, rules: int, playbooks: int, now: datetime
) -> Health:
    sections = (
        Section(title="Slurm", rows=tuple(_slurm(state, standing, now))),
        Section(title="Processes", rows=tuple(_processes(state, now))),
        Section(title="Stores", rows=tuple(_stores(state))),
        Section(title="What waits", rows=tuple(_waits(state, arrives.queues, now))),
        Section(title="Signals", rows=tuple(_signals(arrives, state, now))),
        Section(title="Messages and tickets", rows=tuple(_sinks(state.stored.sinks, now))),
        Section(title="Rules and models", rows=tuple(_rules(state, standing, rules, playbooks, now))),
    )
    wrong = [row for section in sections for row in section.rows if row.tone in ("bad", "warn")]
    return Health(
        sections=tuple(section for section in sections if section.rows),
        wrong=tuple(sorted(wrong, key=lambda row: row.tone)),
    )


def _row(name: str, ok: bool, text: str, todo: str = "", *, bad: bool = True, href: str = "") -> Row:
    tone = "good" if ok else "bad" if bad else "warn"
    word = "well" if ok else "down" if bad else "look"
    return Row(name=name, tone=tone, word=word, text=text, todo="" if ok else todo, href=href)


def _slurm(state: SelfHealth, standing: Standing, now: datetime) -> Iterator[Row]:
    picture, seen = standing.snapshot, state.stored.controller
    if picture is None:
        yield _row(
            "Picture", False, standing.snapshot_error or "none yet", "healer doctor says what is missing."
        )
    else:
        age_s = (now - picture.taken_at).total_seconds()
        fresh = age_s <= standing.guards.stale_s
        text = f"taken {words.ago(picture.taken_at, now)}, {words.counted(len(picture.nodes), 'node')}"
        error = f". {words.sentence(standing.snapshot_error)}" if standing.snapshot_error else ""
        yield _row("Picture", fresh, text + error, "healer holds every action until Slurm answers.")
    if seen is not None:
        parts = [
            f"by {seen.adapter}" if seen.adapter else "",
            f"Slurm {seen.version}" if seen.version else "",
        ]
        parts += [f"answered in {words.span(seen.answer_s)}" if seen.answer_s is not None else ""]
        text = ", ".join(filter(None, parts)) or "asked"
        yield _row("Adapter", not seen.fallbacks, "; ".join((text, *seen.fallbacks)),
                   "The ways before it in HEALER_SLURM did not answer.", bad=False)  # fmt: skip
    for trouble in troubles(seen):
        yield _row(
            f"Controller: {TROUBLE_WORDS[trouble.trouble]}",
            False,
            f"since {words.utc(trouble.since)}: {trouble.text}",
            "healer does nothing to a node because of it.",
            bad=False,
        )


def _processes(state: SelfHealth, now: datetime) -> Iterator[Row]:
    stored = state.stored
    for part, (name, todo) in _PARTS.items():
        at = stored.beats.get(part)
        works = at is not None and now - at < SILENT
        if part == "detector" and part not in stored.leads:
            yield _row(name, False, "no detector leads", todo)
            continue
        heard = f"heard {words.ago(at, now)}" if at is not None else "not heard yet"
        yield _row(name, works, heard, todo)
    if stored.scrape is not None or "scraper" in stored.leads:
        leads = "scraper" in stored.leads
        text = f"told {words.ago(stored.scrape.at, now)}" if stored.scrape else "leads, has told nothing yet"
        yield _row("Scraper", leads, text, "Start healer scraper: targets are not fetched.")


def _stores(state: SelfHealth) -> Iterator[Row]:
    stored = state.stored
    free = f", {stored.free_share:.0%} of its disk free" if stored.free_share is not None else ""
    room = stored.free_share is None or stored.free_share > 0.1
    text = f"PostgreSQL {stored.version}, {words.size(stored.size_bytes)}{free}"
    yield _row("Database", room, text, "Make room on its disk.", bad=False)
    if not state.broker_text:
        yield Row(name="Broker", tone="plain", word="asked", text="asked just now; look again in a moment")
    elif state.broker is None:
        todo = "Start Redis; until then runs are found by the sweep, a little later."
        yield _row("Broker", False, state.broker_text, todo, bad=False)
    else:
        yield _row("Broker", True, f"answers, {words.counted(state.broker, 'message')} waiting")
    for name, check in state.checks.items():
        if name.split()[0] in ("prometheus", "spool", "disk"):
            yield _row(words.sentence(name), bool(check["ok"]), str(check["text"]),
                       "healer doctor says how to repair it.", bad=False)  # fmt: skip


def _waits(state: SelfHealth, queues: Sequence[QueueRow], now: datetime) -> Iterator[Row]:
    for backlog in state.stored.backlogs:
        yield _backlog(backlog, now)
    for row in queues:
        unit = row.queue.unit
        waiting = words.size(row.queue.waiting) if unit == "bytes" else f"{row.queue.waiting:,} {unit}"
        text = f"{waiting}, {row.share:.0%} of its room"
        yield _row(f"To be written: {row.queue.name}", row.tone == "good", text,
                   "The database or its disk is slow; senders are refused when it is full.",
                   bad=row.tone == "bad", href="/signals")  # fmt: skip


def _backlog(backlog: Backlog, now: datetime) -> Row:
    if backlog.oldest is None:
        return _row(backlog.name, True, "none")
    behind = now - backlog.oldest > BEHIND
    text = f"{backlog.count:,}, the oldest for {words.span((now - backlog.oldest).total_seconds())}"
    return _row(backlog.name, not behind, text, "Who takes them is down or slow: see Processes.", bad=False)


def _signals(arrives: Arrives, state: SelfHealth, now: datetime) -> Iterator[Row]:
    quiet = [row.sender for row in arrives.senders if row.quiet]
    names = words.names([f"{sender.who} ({sender.source})" for sender in quiet], SENDERS_NAMED)
    sends = words.counted(len(arrives.senders), "sender")
    if not arrives.senders:
        yield Row(
            name="Senders", tone="plain", word="none", text="nobody has sent anything yet", href="/signals"
        )
    else:
        yield _row("Senders", not quiet, f"not heard from: {names}" if quiet else f"{sends}, none is quiet",
                   "Is the sender down, or was it taken away?", bad=False, href="/signals")  # fmt: skip
    fresh = sorted((row for row in arrives.losses if row.fresh), key=lambda row: -row.entries)
    lost = ", ".join(f"{row.entries:,} {row.reason}" for row in fresh)
    yield _row("Not stored", not fresh, lost or "nothing in the last day",
               "Signals says what to do about each reason.", bad=False, href="/signals")  # fmt: skip
    if arrives.unknown:
        lately = [series for series in arrives.unknown if now - series.last_seen < FRESH]
        text = f"{words.counted(len(lately), 'name')} of the last day that no rule can use"
        yield Row(name="Unknown series", tone="plain", word="told", text=text, href="/signals")
    if (scrape := state.stored.scrape) is not None:
        down = [target.target for target in scrape.targets if target.up is False]
        up = sum(target.up is True for target in scrape.targets)
        text = (
            words.names(down, SENDERS_NAMED) or f"{up:,} of {words.counted(len(scrape.targets), 'target')} up"
        )
        yield _row("Scraped", not down, f"{len(down)} down: {text}" if down else text,
                   "A target that does not answer says nothing of its node.", bad=False)  # fmt: skip
        for trouble in scrape.troubles:
            yield _row("Scraped", False, trouble, "Mend rules/scrape.yaml or what it names.", bad=False)


def _sinks(sinks: Iterable[Sink], now: datetime) -> Iterator[Row]:
    for sink in sinks:
        parts = [f"{sink.sent:,} sent in 7 days"]
        parts += [f"the last {words.ago(sink.last_sent, now)}"] if sink.last_sent else []
        parts += [f"{sink.due:,} to be sent"] if sink.due else []
        parts += [f"{sink.failed:,} failed"] if sink.failed else []
        text = ", ".join(parts) + (f". {sink.error}" if sink.error and (sink.failed or sink.due) else "")
        tries = sink.due and sink.error
        yield _row(sink.name, not (sink.failed or tries), text,
                   "healer doctor asks the sink; healer messages retry sends again.", bad=False)  # fmt: skip


def _rules(state: SelfHealth, standing: Standing, rules: int, playbooks: int, now: datetime) -> Iterator[Row]:
    since = f", in force since {words.utc(state.rules_since)}" if state.rules_since else ""
    text = f"{rules:,} rules, {playbooks:,} playbooks, version {state.rules_version[:12]}{since}"
    if standing.rules_error:
        text = f"changed files were not taken: {standing.rules_error.splitlines()[0]}; {text}"
    yield _row("Rules", not standing.rules_error, text, "healer rules check names every fault.",
               bad=False, href="/rules")  # fmt: skip
    for model in state.stored.models:
        yield Row(
            name=f"Model of {model.hardware} {model.load}",
            tone="good",
            word="in force",
            text=_model(model, now),
        )


def _model(model: ModelSeen, now: datetime) -> str:
    force = (
        f", in force for {words.span((now - model.in_force_at).total_seconds())}" if model.in_force_at else ""
    )
    by = f" by {model.by}" if model.by else ""
    outcome = f". {words.sentence(model.last_outcome)}" if model.last_outcome else ""
    return f"{model.id[:12]}, trained {words.ago(model.trained_at, now)}{force}{by}{outcome}"
