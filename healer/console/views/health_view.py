"""The pages of signals and of healer's own health: senders, losses and what to do about them, queues."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

import msgspec

from healer.console import words
from healer.console.views import Shown
from healer.model import Controller, Loss, LossReason, UnknownSeries
from healer.model.slurm import is_fresh
from healer.model.telemetry import ScrapeState
from healer.observations.slurm_poll import troubles
from healer.ports.answers import Backlog, Queue, SelfHealth, SendersHeard, Sink, Standing
from healer.ports.callers import enrolled_name
from healer.text import joined, name_some, quoted, say, unstopped

#: Losses of the last day are shown first and in colour; older ones are history.
FRESH = timedelta(days=1)
#: Repeated samples: a site's exporters and healer's hooks measure the same.
HARMLESS = frozenset({LossReason.out_of_order})


def loss_rows(losses: Sequence[Loss], now: datetime) -> list[Shown]:
    """By reason, latest first: its meaning, what to do, and by which routes and senders."""
    by_reason: dict[LossReason, list[Loss]] = {}
    for loss in losses:
        by_reason.setdefault(loss.reason, []).append(loss)
    rows = []
    for reason, parts in by_reason.items():
        last = max(loss.last_seen for loss in parts)
        title, todo = say(f"console.loss_{reason}"), say(f"console.loss_{reason}_todo")
        rows.append(
            Shown(
                reason=reason.value,
                title=title,
                todo=todo,
                entries=sum(loss.count for loss in parts),
                fresh=now - last < FRESH and reason not in HARMLESS,
                last_seen=last,
                parts=sorted(parts, key=lambda loss: (-loss.count, loss.source, loss.who)),
            )
        )
    return sorted(rows, key=lambda row: row.last_seen, reverse=True)


def sender_rows(senders: SendersHeard) -> list[Shown]:
    """`job`: the one that enrolled itself for its token."""
    rows = []
    for sender, silent in senders.heard:
        of_jobs = enrolled_name("job", sender.cluster, "")
        job = sender.who.removeprefix(of_jobs) if sender.who.startswith(of_jobs) else ""
        rows.append(Shown(sender=sender, job=job, quiet=silent))
    return rows


def queue_rows(queues: Sequence[Queue]) -> list[Shown]:
    """What waits, as a share of its bound. Over half, what matters less is refused."""
    rows = []
    for queue in queues:
        share = queue.waiting / queue.limit if queue.limit else 0.0
        tone = "bad" if share > 0.9 else "warn" if share > 0.5 else "good"
        rows.append(Shown(queue=queue, share=share, tone=tone))
    return rows


#: A part says every few seconds that it works.
SILENT = timedelta(seconds=60)
#: What waits longer than this waits for something that does not come.
BEHIND = timedelta(seconds=30)
SENDERS_NAMED = 8


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One part. `tone` is good, warn, bad or plain, `word` says the same; no `todo` where all is well."""

    name: str
    tone: str
    word: str
    text: str
    todo: str = ""
    href: str = ""


class Arrives(msgspec.Struct, frozen=True, kw_only=True):
    """The data of the page of signals that this page sums up."""

    losses: tuple[Shown, ...] = ()
    senders: SendersHeard = SendersHeard()
    queues: tuple[Shown, ...] = ()
    unknown: tuple[UnknownSeries, ...] = ()


def health(
    state: SelfHealth, standing: Standing, arrives: Arrives, rules: int, playbooks: int, now: datetime
) -> Shown:
    """`wrong` are the rows of all sections that are not well, the worst first."""
    found = {
        say("console.health_slurm"): _slurm(state, standing, now),
        say("console.health_processes"): _processes(state, now),
        say("console.health_stores"): _stores(state),
        say("console.health_what_waits"): _waits(state, arrives.queues, now),
        say("console.health_signals"): _signals(arrives, state, now),
        say("console.health_messages_tickets"): _sinks(state.stored.sinks, now),
        say("console.health_rules_models"): _rules(state, standing, rules, playbooks, now),
    }
    sections = [Shown(title=title, rows=tuple(rows)) for title, rows in found.items()]
    wrong = [row for section in sections for row in section.rows if row.tone in ("bad", "warn")]
    return Shown(
        sections=tuple(section for section in sections if section.rows),
        wrong=tuple(sorted(wrong, key=lambda row: row.tone)),
    )


def _row(part: str, ok: bool, text: str, *, down: bool = False, name: str = "", href: str = "") -> Row:
    """The row of a part, with its name and advice from the catalogue. `down`: it does no work at all if it is
    not healthy. `name`: that of one among several."""
    tone, word = ("good", "healthy") if ok else ("bad", "down") if down else ("warn", "degraded")
    todo = "" if ok else say(f"console.todo_{part}")
    return Row(
        name=name or say(f"console.part_{part}"), tone=tone, word=word, text=text, todo=todo, href=href
    )


def _plain(part: str, word: str, text: str, href: str = "") -> Row:
    """The row of a part that is neither healthy nor unhealthy."""
    return Row(name=say(f"console.part_{part}"), tone="plain", word=word, text=text, href=href)


def _slurm(state: SelfHealth, standing: Standing, now: datetime) -> Iterator[Row]:
    picture, seen = standing.snapshot, state.stored.controller
    if picture is None:
        text = standing.snapshot_error or say("console.health_none_yet")
        yield _row("no_picture", False, text, down=True)
    else:
        ago, counted = words.ago(picture.taken_at, now), words.counted(len(picture.nodes), "node")
        text = say("console.health_taken", ago=ago, counted=counted)
        if standing.snapshot_error:
            error = words.sentence(standing.snapshot_error)
            text = say("console.health_taken_but", text=text, error=error)
        fresh = is_fresh(picture.taken_at, now, standing.guards.stale_s)
        yield _row("picture", fresh, text, down=True)
    if seen is not None:
        yield _adapter(seen)
    for trouble in troubles(seen):
        word = say(f"console.trouble_{trouble.trouble}")
        text = say("console.health_since", at=words.utc(trouble.since), text=trouble.text)
        yield _row("controller", False, text, name=say("console.health_controller", trouble_words=word))


def _adapter(seen: Controller) -> Row:
    answered = seen.answer_s is not None and say("console.health_answered", span=words.span(seen.answer_s))
    parts = [
        seen.adapter and say("console.health_by", adapter=seen.adapter),
        seen.version and say("console.health_slurm_version", version=seen.version),
        answered or "",
    ]
    text = joined(filter(None, parts), "comma") or say("console.health_asked")
    return _row("adapter", not seen.fallbacks, joined((text, *seen.fallbacks), "semicolon"))


def _processes(state: SelfHealth, now: datetime) -> Iterator[Row]:
    stored = state.stored
    for part in ("detector", "scheduler", "worker"):
        at = stored.beats.get(part)
        works = at is not None and now - at < SILENT
        text = (
            say("console.health_heard", ago=words.ago(at, now)) if at else say("console.health_not_heard_yet")
        )
        if part == "detector" and part not in stored.leads:
            works, text = False, say("console.health_no_detector_leads")
        yield _row(part, works, text, down=True)
    works = "scraper" in stored.leads
    if (scrape := stored.scrape) is None and works:
        yield _row("scraper", works, say("console.health_active_no_report_yet"), down=True)
    elif scrape is not None and (works or scrape.targets):  # without targets it need not run
        text = say("console.health_reported", ago=words.ago(scrape.at, now))
        yield _row("scraper", works and now - scrape.at < SILENT, text, down=True)


def _stores(state: SelfHealth) -> Iterator[Row]:
    stored, share = state.stored, state.stored.free_share
    free = say("console.health_disk_free", free_share=share) if share is not None else ""
    size = words.size(stored.size_bytes)
    text = say("console.health_postgresql", version=stored.version, size=size, free=free)
    yield _row("database", share is None or share > 0.1, text)
    if not state.broker_text:
        yield _plain("broker", say("console.health_asked"), say("console.health_asked_just_now_look_again"))
    elif state.broker is None:
        yield _row("broker", False, state.broker_text)
    else:
        waiting = words.counted(state.broker, "message")
        yield _row("broker", True, say("console.health_answers_waiting", counted=waiting))
    for name, check in state.checks.items():
        if name.split()[0] in ("prometheus", "spool", "disk"):
            yield _row("check", bool(check["ok"]), str(check["text"]), name=words.sentence(name))


def _waits(state: SelfHealth, queues: Sequence[Shown], now: datetime) -> Iterator[Row]:
    for backlog in state.stored.backlogs:
        yield _backlog(backlog, now)
    for row in queues:
        unit = row.queue.unit
        waiting = words.size(row.queue.waiting)
        if unit != "bytes":
            waiting = say("console.health_units", n=row.queue.waiting, unit=quoted(unit))
        text = say("console.health_room", waiting=waiting, share=row.share)
        name = say("console.health_write_queue", name=quoted(row.queue.name))
        yield _row("queue", row.tone == "good", text, down=row.tone == "bad", name=name, href="/signals")


def _backlog(backlog: Backlog, now: datetime) -> Row:
    if backlog.oldest is None:
        return _row("backlog", True, say("console.none"), name=backlog.name)
    waits = now - backlog.oldest
    span = words.span(waits.total_seconds())
    text = say("console.health_oldest_for", waiting=backlog.count, span=span)
    return _row("backlog", waits <= BEHIND, text, name=backlog.name)


def _signals(arrives: Arrives, state: SelfHealth, now: datetime) -> Iterator[Row]:
    senders = arrives.senders
    if not senders.tokens:
        text = say("console.health_no_data_yet")
        yield _plain("senders", say("console.none"), text, "/signals")
    else:
        text = say("console.health_none_quiet", sends=words.counted(senders.tokens, "sender"))
        if senders.silent:
            named = dict.fromkeys(sender.node or sender.who for sender, silent in senders.heard if silent)
            names = name_some([*named], SENDERS_NAMED, senders.silent)
            text = say("console.health_not_heard_from", names=names)
        yield _row("senders", not senders.silent, text, href="/signals")
    fresh = sorted((row for row in arrives.losses if row.fresh), key=lambda row: -row.entries)
    lost = [say("console.health_units", n=row.entries, unit=quoted(row.reason)) for row in fresh]
    text = joined(lost, "comma") or say("console.health_nothing_last_day")
    yield _row("not_stored", not fresh, text, href="/signals")
    if arrives.unknown:
        lately = sum(now - series.last_seen < FRESH for series in arrives.unknown)
        text = say("console.health_last_day_no_rule_can", counted=words.counted(lately, "name"))
        yield _plain("unknown_series", say("console.health_reported_word"), text, "/signals")
    if (scrape := state.stored.scrape) is not None:
        yield from _scraped(scrape)


def _scraped(scrape: ScrapeState) -> Iterator[Row]:
    down = [target.target for target in scrape.targets if target.up is False]
    if down:
        text = say("console.health_down", down=len(down), text=name_some(down, SENDERS_NAMED))
    else:
        up = sum(target.up is True for target in scrape.targets)
        text = say("console.health_up", up=up, counted=words.counted(len(scrape.targets), "target"))
    yield _row("scraped", not down, text)
    for trouble in scrape.troubles:
        yield _row("scrape_trouble", False, trouble)


def _sinks(sinks: Iterable[Sink], now: datetime) -> Iterator[Row]:
    for sink in sinks:
        parts = [say("console.health_sent_7_days", sent=sink.sent)]
        parts += [say("console.health_last", ago=words.ago(sink.last_sent, now))] if sink.last_sent else []
        parts += [say("console.health_pending", due=sink.due)] if sink.due else []
        parts += [say("console.health_failed", failed=sink.failed)] if sink.failed else []
        text = joined(parts, "comma")
        if sink.error and (sink.failed or sink.due):
            text = joined((text, unstopped(sink.error)), "stop")
        tries = sink.due and sink.error
        yield _row("sink", not (sink.failed or tries), text, name=sink.name)


def _rules(state: SelfHealth, standing: Standing, rules: int, playbooks: int, now: datetime) -> Iterator[Row]:
    since = say("console.health_force_since", at=words.utc(state.rules_since)) if state.rules_since else ""
    text = say(
        "console.health_rules_playbooks_version",
        rules=rules,
        playbooks=playbooks,
        rules_version=state.rules_version[:12],
        since=since,
    )
    if standing.rules_error:
        first = standing.rules_error.splitlines()[0]
        text = say("console.health_files_rejected", error=first, text=text)
    yield _row("rules", not standing.rules_error, text, href="/rules")
    for model in state.stored.models:
        name = say("console.health_model", hardware=model.hardware, load=quoted(model.load))
        scores = say(
            "console.health_scores", id=model.model[:12], n=model.nodes, ago=words.ago(model.at, now)
        )
        yield Row(name=name, tone="good", word=say("console.health_force"), text=scores)
