"""The pages of signals and of healer's own health: senders, losses and what to do about them, queues."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from healer.console import words
from healer.console.views.standing_view import TROUBLE_WORDS
from healer.model import Controller, Loss, LossReason, Sender, UnknownSeries
from healer.model.telemetry import ScrapeState
from healer.observations.slurm_poll import troubles
from healer.ports.answers import Backlog, ModelSeen, Queue, SelfHealth, Sink, Standing
from healer.text import joined, quoted, say

#: Losses of the last day are shown first and in colour; older ones are history.
FRESH = timedelta(days=1)
#: A token that sent more than once and then nothing for so long is quiet.
QUIET = timedelta(minutes=15)

#: What a reason means, and what to do about it.
LOSS_WORDS: Mapping[LossReason, tuple[str, str]] = {
    LossReason.shed: (
        say("console.health_too_much_waited_be_written"),
        say("console.health_senders_try_again_by_themselves"),
    ),
    LossReason.quota: (
        say("console.health_token_sent_more_than_quota"),
        say("console.health_find_out_what_sends_if"),
    ),
    LossReason.not_ready: (
        say("console.health_slurm_had_not_been_asked"),
        say("console.health_passes_by_itself_after_start"),
    ),
    LossReason.database_away: (
        say("console.health_database_did_not_answer"),
        say("console.health_look_after_postgresql_metrics_time"),
    ),
    LossReason.disk_full: (
        say("console.health_disk_was_full"),
        say("console.health_make_room_disk_postgresql_or"),
    ),
    LossReason.spool_full: (
        say("console.health_database_was_away_for_longer"),
        say("console.health_bring_postgresql_back_senders_with"),
    ),
    LossReason.too_large: (
        say("console.health_body_was_too_large"),
        say("console.health_let_sender_send_less_once"),
    ),
    LossReason.stalled: (
        say("console.health_body_did_not_come_time"),
        say("console.health_look_network_between_this_sender"),
    ),
    LossReason.bad_body: (
        say("console.health_body_could_not_be_read"),
        say("console.health_example_says_what_wrong_senders"),
    ),
    LossReason.rejected: (
        say("console.health_single_entries_were_wrong"),
        say("console.health_example_names_field_other_entries"),
    ),
    LossReason.not_recorded: (
        say("console.health_recording_has_hole"),
        say("console.health_all_was_judged_as_ever"),
    ),
    LossReason.not_kernel: (
        say("console.health_log_lines_are_not_surely"),
        say("console.health_right_for_what_programs_wrote"),
    ),
    LossReason.late: (
        say("console.health_samples_were_older_than_15"),
        say("console.health_sender_catches_up_after_break"),
    ),
    LossReason.out_of_order: (
        say("console.health_samples_were_not_newer_than"),
        say("console.health_two_senders_tell_same_series"),
    ),
    LossReason.series_limit: (
        say("console.health_more_series_than_machine_can"),
        say("console.health_label_changes_all_time_or"),
    ),
    LossReason.sender: (
        say("console.health_sender_itself_lost_them"),
        say("console.health_queue_too_short_or_healer"),
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
        named = say("console.health_job", cluster=sender.cluster)
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
    "detector": (say("console.health_detector"), say("console.health_start_healer_detector_nothing_found")),
    "scheduler": (say("console.health_scheduler"), say("console.health_start_healer_scheduler_slurm_not")),
    "worker": (say("console.health_workers"), say("console.health_start_healer_worker_nothing_done")),
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
        Section(title=say("console.health_slurm"), rows=tuple(_slurm(state, standing, now))),
        Section(title=say("console.health_processes"), rows=tuple(_processes(state, now))),
        Section(title=say("console.health_stores"), rows=tuple(_stores(state))),
        Section(title=say("console.health_what_waits"), rows=tuple(_waits(state, arrives.queues, now))),
        Section(title=say("console.health_signals"), rows=tuple(_signals(arrives, state, now))),
        Section(title=say("console.health_messages_tickets"), rows=tuple(_sinks(state.stored.sinks, now))),
        Section(
            title=say("console.health_rules_models"),
            rows=tuple(_rules(state, standing, rules, playbooks, now)),
        ),
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
            say("console.health_picture"),
            False,
            standing.snapshot_error or say("console.health_none_yet"),
            say("console.health_healer_doctor_says_what_missing"),
        )
    else:
        age_s = (now - picture.taken_at).total_seconds()
        fresh = age_s <= standing.guards.stale_s
        text = say(
            "console.health_taken",
            ago=words.ago(picture.taken_at, now),
            counted=words.counted(len(picture.nodes), "node"),
        )
        if standing.snapshot_error:
            error = words.sentence(standing.snapshot_error)
            text = say("console.health_taken_but", text=text, error=error)
        yield _row(
            say("console.health_picture"),
            fresh,
            text,
            say("console.health_healer_holds_every_action_until"),
        )
    if seen is not None:
        yield _adapter(seen)
    for trouble in troubles(seen):
        yield _row(
            say("console.health_controller", trouble_words=TROUBLE_WORDS[trouble.trouble]),
            False,
            say("console.health_since", at=words.utc(trouble.since), text=trouble.text),
            say("console.health_healer_does_nothing_node_because"),
            bad=False,
        )


def _adapter(seen: Controller) -> Row:
    parts = [
        say("console.health_by", adapter=seen.adapter) if seen.adapter else "",
        say("console.health_slurm_2", version=seen.version) if seen.version else "",
    ]
    parts += [
        say("console.health_answered", span=words.span(seen.answer_s)) if seen.answer_s is not None else ""
    ]
    text = joined(filter(None, parts), "comma") or say("console.health_asked")
    return _row(
        say("console.health_adapter"),
        not seen.fallbacks,
        joined((text, *seen.fallbacks), "semicolon"),
        say("console.health_ways_before_healer_slurm_did"),
        bad=False,
    )


def _processes(state: SelfHealth, now: datetime) -> Iterator[Row]:
    stored = state.stored
    for part, (name, todo) in _PARTS.items():
        at = stored.beats.get(part)
        works = at is not None and now - at < SILENT
        if part == "detector" and part not in stored.leads:
            yield _row(name, False, say("console.health_no_detector_leads"), todo)
            continue
        heard = (
            say("console.health_heard", ago=words.ago(at, now))
            if at is not None
            else say("console.health_not_heard_yet")
        )
        yield _row(name, works, heard, todo)
    if stored.scrape is not None or "scraper" in stored.leads:
        leads = "scraper" in stored.leads
        text = (
            say("console.health_told", ago=words.ago(stored.scrape.at, now))
            if stored.scrape
            else say("console.health_leads_has_told_nothing_yet")
        )
        yield _row(
            say("console.health_scraper"), leads, text, say("console.health_start_healer_scraper_targets_are")
        )


def _stores(state: SelfHealth) -> Iterator[Row]:
    stored = state.stored
    free = (
        say("console.health_disk_free", free_share=stored.free_share) if stored.free_share is not None else ""
    )
    room = stored.free_share is None or stored.free_share > 0.1
    text = say(
        "console.health_postgresql", version=stored.version, size=words.size(stored.size_bytes), free=free
    )
    yield _row(say("console.health_database"), room, text, say("console.health_make_room_disk"), bad=False)
    if not state.broker_text:
        yield Row(
            name=say("console.health_broker"),
            tone="plain",
            word=say("console.health_asked"),
            text=say("console.health_asked_just_now_look_again"),
        )
    elif state.broker is None:
        todo = say("console.health_start_redis_until_then_runs")
        yield _row(say("console.health_broker"), False, state.broker_text, todo, bad=False)
    else:
        yield _row(
            say("console.health_broker"),
            True,
            say("console.health_answers_waiting", counted=words.counted(state.broker, "message")),
        )
    for name, check in state.checks.items():
        if name.split()[0] in ("prometheus", "spool", "disk"):
            yield _row(
                words.sentence(name),
                bool(check["ok"]),
                str(check["text"]),
                say("console.health_healer_doctor_says_how_repair"),
                bad=False,
            )


def _waits(state: SelfHealth, queues: Sequence[QueueRow], now: datetime) -> Iterator[Row]:
    for backlog in state.stored.backlogs:
        yield _backlog(backlog, now)
    for row in queues:
        unit = row.queue.unit
        waiting = words.size(row.queue.waiting)
        if unit != "bytes":
            waiting = say("console.health_units", n=row.queue.waiting, unit=quoted(unit))
        text = say("console.health_room", waiting=waiting, share=row.share)
        yield _row(
            say("console.health_be_written", name=quoted(row.queue.name)),
            row.tone == "good",
            text,
            say("console.health_database_or_disk_slow_senders"),
            bad=row.tone == "bad",
            href="/signals",
        )


def _backlog(backlog: Backlog, now: datetime) -> Row:
    if backlog.oldest is None:
        return _row(backlog.name, True, say("console.none"))
    behind = now - backlog.oldest > BEHIND
    text = say(
        "console.health_oldest_for",
        count_=backlog.count,
        span=words.span((now - backlog.oldest).total_seconds()),
    )
    return _row(backlog.name, not behind, text, say("console.health_who_takes_them_down_or"), bad=False)


def _signals(arrives: Arrives, state: SelfHealth, now: datetime) -> Iterator[Row]:
    quiet = [row.sender for row in arrives.senders if row.quiet]
    names = words.names([f"{sender.who} ({sender.source})" for sender in quiet], SENDERS_NAMED)
    sends = words.counted(len(arrives.senders), "sender")
    if not arrives.senders:
        yield Row(
            name=say("console.health_senders"),
            tone="plain",
            word=say("console.health_none"),
            text=say("console.health_nobody_has_sent_anything_yet"),
            href="/signals",
        )
    else:
        yield _row(
            say("console.health_senders"),
            not quiet,
            say("console.health_not_heard_from", names=names)
            if quiet
            else say("console.health_none_quiet", sends=sends),
            say("console.health_sender_down_or_was_taken"),
            bad=False,
            href="/signals",
        )
    fresh = sorted((row for row in arrives.losses if row.fresh), key=lambda row: -row.entries)
    lost = joined(
        (say("console.health_units", n=row.entries, unit=quoted(row.reason)) for row in fresh), "comma"
    )
    yield _row(
        say("console.health_not_stored"),
        not fresh,
        lost or say("console.health_nothing_last_day"),
        say("console.health_signals_says_what_do_about"),
        bad=False,
        href="/signals",
    )
    if arrives.unknown:
        lately = [series for series in arrives.unknown if now - series.last_seen < FRESH]
        text = say("console.health_last_day_no_rule_can", counted=words.counted(len(lately), "name"))
        yield Row(
            name=say("console.health_unknown_series"),
            tone="plain",
            word=say("console.health_told_2"),
            text=text,
            href="/signals",
        )
    if (scrape := state.stored.scrape) is not None:
        yield from _scraped(scrape)


def _scraped(scrape: ScrapeState) -> Iterator[Row]:
    down = [target.target for target in scrape.targets if target.up is False]
    up = sum(target.up is True for target in scrape.targets)
    text = words.names(down, SENDERS_NAMED) or say(
        "console.health_up", up=up, counted=words.counted(len(scrape.targets), "target")
    )
    yield _row(
        say("console.health_scraped"),
        not down,
        say("console.health_down", down=len(down), text=text) if down else text,
        say("console.health_target_does_not_answer_says"),
        bad=False,
    )
    for trouble in scrape.troubles:
        yield _row(
            say("console.health_scraped"),
            False,
            trouble,
            say("console.health_mend_rules_scrape_yaml_or"),
            bad=False,
        )


def _sinks(sinks: Iterable[Sink], now: datetime) -> Iterator[Row]:
    for sink in sinks:
        parts = [say("console.health_sent_7_days", sent=sink.sent)]
        parts += [say("console.health_last", ago=words.ago(sink.last_sent, now))] if sink.last_sent else []
        parts += [say("console.health_be_sent", due=sink.due)] if sink.due else []
        parts += [say("console.health_failed", failed=sink.failed)] if sink.failed else []
        text = joined(parts, "comma")
        if sink.error and (sink.failed or sink.due):
            text = joined((text, quoted(sink.error)), "stop")
        tries = sink.due and sink.error
        yield _row(
            sink.name,
            not (sink.failed or tries),
            text,
            say("console.health_healer_doctor_asks_sink_healer"),
            bad=False,
        )


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
        text = say(
            "console.health_changed_files_were_not_taken",
            splitlines=standing.rules_error.splitlines()[0],
            text=text,
        )
    yield _row(
        say("console.health_rules"),
        not standing.rules_error,
        text,
        say("console.health_healer_rules_check_names_every"),
        bad=False,
        href="/rules",
    )
    for model in state.stored.models:
        yield Row(
            name=say("console.health_model", hardware=model.hardware, load=quoted(model.load)),
            tone="good",
            word=say("console.health_force"),
            text=_model(model, now),
        )


def _model(model: ModelSeen, now: datetime) -> str:
    force = (
        say("console.health_force_for", span=words.span((now - model.in_force_at).total_seconds()))
        if model.in_force_at
        else ""
    )
    by = say("console.health_by_2", by=model.by) if model.by else ""
    outcome = joined(("", words.sentence(model.last_outcome)), "stop") if model.last_outcome else ""
    return say(
        "console.health_trained",
        id=model.id[:12],
        ago=words.ago(model.trained_at, now),
        force=force,
        by=by,
        outcome=outcome,
    )
