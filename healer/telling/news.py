"""Messages that healer sends outside of playbooks: pages, news of an incident, digests, tickets.

Pure; the time is given. Each message has a stable id, so that a repeat is no second page. All messages of an
incident are one thread.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, TypeVar

import msgspec

from healer.incidents.incident_verdict import place, reworded, verdict_sentence
from healer.incidents.lifecycle import is_left_to_ticket
from healer.model import (
    APPROVAL_LASTS,
    REMEDY_LADDER,
    About,
    Breaker,
    Evidence,
    Guard,
    Incident,
    LogEntry,
    Message,
    Remedy,
    Run,
    RunState,
    Severity,
    Stage,
    StepEvent,
    Ticket,
    TicketStage,
    asked_of,
)
from healer.model.shown import one_line, shown
from healer.ports.answers import SEAL
from healer.ports.break_glass import GlassState, Opening
from healer.ports.outbound import APPROVAL_MARK, BACK_OFF, FORGOTTEN, Notice, Raised
from healer.ports.service_accounts import TokenRow
from healer.text import NO_WORDS, Said, at, in_language, joined, name_some, quoted, say
from healer.text.language import Language

#: Lines of a closing notice about what was done, and incidents in one digest.
PROOF_MAX = 8
DIGEST_MAX = 40
_LINE_MAX = 200
#: Incidents of one rule that page on their own in one round of planning.
PAGES_MAX = 3
#: Nodes, jobs and addresses that a line names: the incident's page has all of them.
_NAMED_MAX = 40


def schedule_alarm(raised: Raised | None, now: datetime) -> Raised:
    """When to send an alarm that is raised now: `last_at`, now or later, with the new count of repeats.

    The first one, and one after a long silence, at once; else 5, 10, 20, 40, 80, 80 … min after the last one.
    It never waits longer than that, even if the clock was set back.
    """
    if raised is None or now - raised.last_at >= FORGOTTEN:
        return Raised(0, now)
    wait = BACK_OFF[min(raised.again, len(BACK_OFF) - 1)]
    due = min(raised.last_at + wait, now + wait)
    return Raised(raised.again + 1, max(due, now))


def withdraw_alarm(raised: Raised) -> Raised | None:
    """The state before the last `schedule_alarm`, for an alarm that ended before it was sent; None: no
    alarm."""
    if raised.again == 0:
        return None
    wait = BACK_OFF[min(raised.again, len(BACK_OFF)) - 1]
    return Raised(raised.again - 1, raised.last_at - wait)


def about_incident(incident: Incident, stage: Stage = Stage.opened) -> About:
    """What routes and channels need of an incident. `run`: set where a person may approve or reject it."""
    asks = stage is not Stage.resolved and incident.held_by is Guard.approval
    return About(
        rule=incident.rule,
        fault=incident.fault,
        node=incident.root.node or "",
        alarm=f"{incident.rule}@{incident.root}",
        stage=stage,
        run=incident.run if asks and incident.run else "",
    )


def opened_news(incident: Incident, again: datetime | None = None) -> Message:
    """`again`: when the incident was reopened, or its severity rose."""
    lines = [
        verdict_sentence(incident),
        say("telling.where", where=place(incident.root)),
        _jobs(incident),
        say("telling.healer", does=_what_healer_does(incident)),
    ]
    stamp = f":{again:%Y%m%dT%H%M%S}" if again else ""
    return _message(incident, f"{incident.id}:told:{incident.severity}{stamp}", Stage.opened, lines)


def acknowledged_news(incident: Incident) -> Message:
    lines = [say("telling.looks_after", who=incident.acknowledged_by), verdict_sentence(incident)]
    return _message(incident, f"{incident.id}:ack{_again(incident)}", Stage.acknowledged, lines)


def _again(incident: Incident) -> str:
    """Ends an id of news once the incident is open again, as its channels have heard its end."""
    return f":{incident.reopened_at:%Y%m%dT%H%M%S}" if incident.reopened_at is not None else ""


def resolved_news(incident: Incident, work: Sequence[tuple[Run, Sequence[LogEntry]]]) -> Message:
    """News of a resolved incident, with a proof line for each step that was done."""
    stamp = f"{incident.closed or incident.updated:%Y%m%dT%H%M%S}"
    lines = [
        verdict_sentence(incident),
        *proof_lines(work),
        say("telling.closed", why=incident.closed_why or say("telling.by_a_person")),
    ]
    return _message(incident, f"{incident.id}:over:{stamp}", Stage.resolved, lines)


def proof_lines(work: Sequence[tuple[Run, Sequence[LogEntry]]]) -> list[Said]:
    """A line for each step that was done, with what was read back after it; for a repeated step its last
    entry. Of many steps the last ones: the tests and the return. Shadow runs did nothing."""
    lines: list[Said] = []
    for run, log in work:
        done = {entry.step: entry.text for entry in log if entry.event is StepEvent.done}
        if not run.shadow:
            lines += [_done_line(step, text) for step, text in done.items()]
    if len(lines) > PROOF_MAX:
        more = len(lines) - PROOF_MAX + 1
        lines = [*lines[more:], say("telling.done_more", n=more)]
    return lines or [say("telling.done_nothing")]


def _done_line(step: str, text: Said) -> Said:
    if not text:
        return say("telling.done_step", step=step)
    line = say("telling.done", step=step, text=text)
    return reworded(line, line[:_LINE_MAX])


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a digest: the present state of an incident, or a message without an incident."""

    message: Message
    incident: Incident | None = None


def digest(name: str, cluster: str, items: Sequence[Item], console_url: str) -> Message:
    """One message for many, by severity, each incident once and in its present state."""
    once = {item.message.thread: item for item in items}
    ordered = sorted(once.values(), key=lambda item: _severity(item).value)
    lines = [_in_digest(item, console_url) for item in ordered[:DIGEST_MAX]]
    if len(ordered) > DIGEST_MAX:
        lines.append(say("telling.more", n=len(ordered) - DIGEST_MAX))
    still = sum(item.incident is None or item.incident.is_open for item in ordered)
    return Message(
        id=name,
        cluster=cluster,
        title=say("telling.digest", cluster=cluster, n=len(ordered), open=still),
        text=_of_lines(lines),
        severity=min((_severity(item) for item in ordered), default=Severity.P3),
        about=About(stage=Stage.opened),
    )


def _severity(item: Item) -> Severity:
    return item.incident.severity if item.incident else item.message.severity


def _in_digest(item: Item, console_url: str) -> Said:
    incident = item.incident
    if incident is None:
        line = say("telling.of_severity", severity=item.message.severity, title=item.message.title)
        return reworded(line, line[:_LINE_MAX])
    how = say("telling.open")
    if not incident.is_open:
        how = say("telling.over", why=incident.closed_why or say("telling.by_a_person"))
    line = say("telling.with_state", title=_title(incident, Stage.opened), how=how)
    line = reworded(line, line[:_LINE_MAX])
    link = f"{console_url.rstrip('/')}/incidents/{incident.id}" if console_url else ""
    return joined((line, link), "space") if link else line


def _title(incident: Incident, stage: Stage) -> Said:
    where = place(incident.root)
    return say(f"telling.title_{stage}", severity=incident.severity, where=where, title=incident.title)


def _title_at_root(incident: Incident) -> Said:
    """The same with the component as it is written elsewhere."""
    where = str(incident.root)
    return say("telling.title_opened", severity=incident.severity, where=where, title=incident.title)


def _of_lines(lines: Iterable[str]) -> Said:
    """A text of these lines. What others wrote in one of them, such as a person's reason, begins no line."""
    return joined(map(_folded, lines), "line")


def _folded(part: Any) -> Any:
    """A sentence, or an argument of one, without line breaks."""
    if isinstance(part, Said):
        folded = {name: _folded(value) for name, value in part.args.items()}
        return Said(one_line(part), part.key, folded) if len(part.splitlines()) > 1 else part
    if isinstance(part, Mapping):
        return {name: _folded(value) for name, value in part.items()}
    if isinstance(part, list | tuple):
        return [_folded(value) for value in part]
    return one_line(part) if isinstance(part, str) else part


def _message(incident: Incident, name: str, stage: Stage, lines: Sequence[Said]) -> Message:
    return Message(
        id=name,
        cluster=incident.cluster,
        title=_title(incident, stage),
        text=_of_lines(lines),
        severity=incident.severity,
        incident=incident.id,
        about=about_incident(incident, stage),
    )


def _what_healer_does(incident: Incident) -> Said:
    if incident.held_by is not None:
        return say("telling.held_back", guard=incident.held_by)
    if incident.known_bad_in_service:
        return say("telling.known_bad")
    return say("telling.works_on_it" if incident.run else "telling.does_nothing")


_Sent = TypeVar("_Sent", Message, Ticket)


def worded_in(sent: _Sent, language: Language) -> _Sent:
    """Title and text of a message or ticket in this language."""
    title, text = (quoted(in_language(part, language)) for part in (sent.title, sent.text))
    return msgspec.structs.replace(sent, title=title, text=text)


def message_in(message: Message, language: Language) -> Message:
    """The message in the language of a channel, with the preview of its buttons."""
    preview = tuple(in_language(line, language) for line in message.about.preview)
    about = msgspec.structs.replace(message.about, preview=preview)
    return worded_in(msgspec.structs.replace(message, about=about), language)


def notice_of(
    message: Message,
    at: datetime,
    *,
    page: bool,
    console_url: str = "",
    link_secret: str | None = None,
    buttons: bool = False,
) -> Notice:
    """The message for channels. An approval is a link to the run, where a person signs in
    and approves; with a secret the link shows the run for a day without signing in. `buttons`: the channel
    has buttons."""
    about, console_url = message.about, console_url.rstrip("/")
    run = f"/runs/{about.run}" if about.run else ""
    path = f"/incidents/{message.incident}" if message.incident else run
    approve = sign_link(run, link_secret, at) if run and link_secret else run
    return Notice(
        id=message.id,
        thread=message.thread,
        cluster=message.cluster,
        title=quoted(one_line(_with_cluster(message))),
        lines=tuple(quoted(shown(line)) for line in message.text.split("\n") if line.strip()),
        severity=message.severity,
        page=page,
        stage=about.stage,
        node=about.node,
        at=at,
        console=f"{console_url}{path}" if console_url and path else "",
        run=(f"{about.run}@{about.asked}" if about.asked else about.run) if buttons else "",
        preview=tuple(map(shown, about.preview)),
        approve=f"{console_url}{approve}" if console_url and approve else "",
    )


def _with_cluster(message: Message) -> str:
    """Clusters may have equal node names, and their people one chat. What healer says of itself names its
    cluster already."""
    is_of_node = message.incident is not None or bool(message.about.run)
    return f"{message.cluster}: {message.title}" if is_of_node else message.title


# --- messages about healer itself, and about rules


def _of_healer(
    cluster: str, name: str, alarm: str, title: Said, lines: Iterable[str], severity: Severity, **about: Any
) -> Message:
    """`name`: its id, by which a repeat is no second message. `about`: what routes need besides the alarm."""
    return Message(
        id=name,
        cluster=cluster,
        title=title,
        text=_of_lines(lines),
        severity=severity,
        about=About(alarm=alarm, **about),
    )


def _paging(message: Message) -> Message:
    return msgspec.structs.replace(message, page=True)


def breaker_page(breaker: Breaker) -> Message:
    cluster, nodes = breaker.cluster, sorted({root.node for root in breaker.roots})
    title = say("telling.breaker_open", cluster=cluster, why=breaker.why)
    lines = (breaker.why, _nodes(nodes), say("telling.breaker_means"))
    name, alarm = _breaker_thread(breaker), f"breaker@{cluster}"
    return _paging(_of_healer(cluster, name, alarm, title, lines, Severity.P0))


def breaker_reset_message(breaker: Breaker, by: str, reason: str) -> Message:
    """Resolves the page. `breaker`: as it was open."""
    cluster, thread = breaker.cluster, _breaker_thread(breaker)
    title, alarm = say("telling.breaker_reset", who=by, cluster=cluster), f"breaker@{cluster}"
    about = {"stage": Stage.resolved, "thread": thread}
    return _of_healer(cluster, f"{thread}:reset", alarm, title, (quoted(reason),), Severity.P0, **about)


def _breaker_thread(breaker: Breaker) -> str:
    since = breaker.since.isoformat() if breaker.since is not None else ""
    return f"breaker:{breaker.cluster}:{since}"


def _nodes(names: Sequence[str]) -> Said:
    return say("telling.nodes", nodes=name_some(names, _NAMED_MAX) or say("telling.none"))


def notify_message(incident: Incident, kind: str = "opened", *, acts: bool = False) -> Message:
    """For rules whose remedy is `notify`. P0 and P1 page. `acts`: the rule also starts or proposes a
    playbook."""
    note_only = () if acts else (say("telling.only_told"),)
    lines = verdict_sentence(incident), _nodes(sorted(incident.nodes)), *note_only
    pages = incident.severity in {Severity.P0, Severity.P1}
    return _of_incident(incident, kind, _title_at_root(incident), lines, incident.severity, page=pages)


def _of_incident(
    incident: Incident, kind: str, title: Said, lines: Iterable[Said], severity: Severity, *, page: bool
) -> Message:
    return Message(
        id=f"{incident.id}:{kind}",
        cluster=incident.cluster,
        title=title,
        text=_of_lines(lines),
        severity=severity,
        page=page,
        incident=incident.id,
        about=about_incident(incident),
    )


def sender_page(cluster: str, sender: str, why: str, now: datetime) -> Message:
    """Once a day for each sender: its claims are held as long as a person leaves them so."""
    name, alarm = f"sender:{cluster}:{sender}:{now:%Y%m%d}", f"sender@{cluster}/{sender}"
    title = say("telling.suspect_relay", cluster=cluster, sender=sender)
    lines = (say("telling.stopped", what=quoted(why)), say("telling.relay_means"))
    return _paging(_of_healer(cluster, name, alarm, title, lines, Severity.P1))


def p0_page(incident: Incident, why: str) -> Message:
    """An incident that is P0 again gets another page, one an hour at most, or at once if it was over."""
    where = str(incident.root)
    title = say("telling.title_opened", severity="P0", where=where, title=incident.title)
    lines = [
        verdict_sentence(incident),
        say("telling.where", where=where),
        _jobs(incident),
        say("telling.healer", does=quoted(why)),
    ]
    kind = f"p0:{incident.p0_since:%Y%m%dT%H}{_again(incident)}"
    return _of_incident(incident, kind, title, lines, Severity.P0, page=True)


def many_pages(messages: Sequence[Message]) -> list[list[Message]]:
    """P0 pages of more than `PAGES_MAX` incidents of one rule and fault, which are to be one."""
    alike: dict[tuple[str, str], list[Message]] = {}
    for message in messages:
        if message.page and message.incident and message.severity is Severity.P0:
            alike.setdefault((message.about.rule, message.about.fault), []).append(message)
    return [members for members in alike.values() if len(members) > PAGES_MAX]


def page_of_many(members: Sequence[Message]) -> Message:
    """One page for the P0 incidents of `many_pages`: their nodes, and one of them as an example."""
    first, nodes = members[0], sorted({member.about.node for member in members} - {""})
    title = say("telling.many_title", cluster=first.cluster, n=len(members), rule=first.about.rule)
    lines = (_nodes(nodes), say("telling.many_example", title=first.title), first.text)
    digest = sha256("\0".join(sorted(member.id for member in members)).encode()).hexdigest()[:12]
    name, about = f"p0:{first.cluster}:{digest}", {"rule": first.about.rule, "fault": first.about.fault}
    return _paging(_of_healer(first.cluster, name, name, title, lines, Severity.P0, **about))


def demotion_message(cluster: str, rule: str, why: str, incident: str, request: str) -> Message:
    """A rule was wrong too often to stay in mode auto. No page: the rule asks first now."""
    lines = [
        say("telling.stopped", what=quoted(why)),
        say("telling.last_false_alarm", incident=incident[:8]),
        say("telling.rule_asks"),
    ]
    name, alarm, title = (
        f"rule:{rule}:{request}",
        f"rule:{rule}@{cluster}",
        say("telling.rule_demoted", rule=rule),
    )
    return _of_healer(cluster, name, alarm, title, lines, Severity.P2, rule=rule)


def glass_page(cluster: str, person: str, reason: str, opening: Opening) -> Message:
    """Someone used break-glass access: everyone is paged."""
    name, title = f"break-glass:{opening.id}", say("telling.glass_used", person=person, cluster=cluster)
    lines = (
        say("telling.glass_reason", person=person, reason=quoted(reason)),
        say("telling.glass_until", until=at(opening.until)),
        say("telling.glass_means"),
    )
    return _paging(_of_healer(cluster, name, name, title, lines, Severity.P0, everybody=True))


def glass_ended_message(cluster: str, state: GlassState, reason: str) -> Message:
    name = f"break-glass-ended:{cluster}:{state.ended_at:%Y%m%dT%H%M%S}"
    title = say("telling.glass_ended", who=state.ended_by, cluster=cluster)
    lines = (quoted(reason), say("telling.glass_renew"))
    return _of_healer(cluster, name, f"break-glass-ended@{cluster}", title, lines, Severity.P1)


def glass_sealed_message(cluster: str, who: str, at: datetime) -> Message:
    name = f"break-glass-sealed:{cluster}:{at:%Y%m%dT%H%M%S%f}"
    title, lines = say("telling.glass_sealed", who=who, cluster=cluster), (say("telling.glass_sealed_means"),)
    return _of_healer(cluster, name, f"break-glass-sealed@{cluster}", title, lines, Severity.P2)


def flood_message(cluster: str, addresses: Sequence[str], refused: int, at: datetime) -> Message:
    """Addresses whose credentials have been refused for long, worst first. No page, because they get
    nowhere."""
    name, title = (
        f"credential-flood:{cluster}:{at:%Y%m%dT%H}",
        say("telling.credential_flood", n=len(addresses)),
    )
    named = name_some(addresses, _NAMED_MAX)
    lines = (
        say("telling.credential_flood_from", addresses=named, refused=refused),
        say("telling.credential_flood_means"),
    )
    return _of_healer(cluster, name, f"credential-flood@{cluster}", title, lines, Severity.P2)


def account_ending_message(cluster: str, row: TokenRow, ahead: timedelta) -> Message:
    """A service account ends within that time, or has ended. No page: its owner has had two notices."""
    has_ended = ahead <= timedelta(0)
    until = at(row.expires_at) if row.expires_at is not None else ""
    title = say("telling.account_ended" if has_ended else "telling.account_ends", name=row.name, until=until)
    name, alarm = f"account-ending:{row.id}:{ahead.days}", f"account-ending:{row.id}"
    lines = (say("telling.account_rotate", owner=row.owner, token=row.id),)
    severity = Severity.P1 if has_ended else Severity.P2
    return _of_healer(cluster, name, alarm, title, lines, severity)


def enrolled_again_page(cluster: str, nodes: Sequence[str], who: Sequence[str], at: datetime) -> Message:
    """`at`: the beginning of the minutes in which they enrolled."""
    named, askers = name_some(nodes, _NAMED_MAX), name_some(sorted(set(who)), _NAMED_MAX)
    name, alarm = f"enrolled-again:{cluster}:{at:%Y%m%dT%H%M}", f"enrolled-again@{cluster}"
    title = say("telling.enrolled_again", cluster=cluster, n=len(nodes))
    lines = (say("telling.enrolled_by", nodes=named, who=askers), say("telling.enrolled_means"))
    node = nodes[0] if len(nodes) == 1 else ""
    return _paging(_of_healer(cluster, name, alarm, title, lines, Severity.P1, node=node))


def seal_page(cluster: str, problem: str, text: str, now: datetime) -> Message:
    title = say("telling.not_sealed" if problem == SEAL else "telling.not_witnessed", cluster=cluster)
    return _daily_page(cluster, "seal", problem, title, (quoted(text), say("telling.seal_means")), now)


def restored_page(cluster: str, backup_at: datetime, now: datetime, runs: int) -> Message:
    """healer was restored from a backup and is paused until a person ends that."""
    name, alarm = f"restored:{cluster}:{now:%Y%m%dT%H%M%S}", f"restored@{cluster}"
    title = say("telling.restored", cluster=cluster, time=at(backup_at))
    lines = (say("telling.restored_runs", n=runs), say("telling.restored_means"))
    return _paging(_of_healer(cluster, name, alarm, title, lines, Severity.P1))


def blind_page(cluster: str, problem: str, now: datetime) -> Message:
    """healer evaluates no metrics and step times; kernel lines and silence still work."""
    lines = (quoted(problem), say("telling.blind_means"))
    return _daily_page(cluster, "senses", problem, say("telling.blind", cluster=cluster), lines, now)


def _daily_page(
    cluster: str, kind: str, problem: str, title: Said, lines: Iterable[Said], now: datetime
) -> Message:
    """The same problem pages once a day."""
    digest = sha256(problem.encode()).hexdigest()[:12]
    name, alarm = f"{kind}:{cluster}:{digest}:{now:%Y%m%d}", f"{kind}:{digest}@{cluster}"
    return _paging(_of_healer(cluster, name, alarm, title, lines, Severity.P1))


def approval_page(run: Run, incident: Incident | None = None) -> Message:
    """An approval timed out, for the run or one of its steps; a time-out never approves (law 8). It pages
    unless its incident may wait until the morning."""
    milder = incident.severity if incident is not None and incident.severity >= Severity.P2 else None
    begun = run.state is RunState.waiting and run.approve_until is not None
    asked_at = run.approve_until - APPROVAL_LASTS if begun and run.approve_until else run.created_at
    what = run.question if begun and run.question else run.reason
    where = run.node or run.job
    return Message(
        id=f"{run.id}{APPROVAL_MARK}" + (f":{asked_at:%Y%m%dT%H%M%S}" if begun else ""),
        cluster=run.cluster,
        title=say("telling.not_approved", playbook=run.playbook, where=where),
        text=_of_lines((what, say("telling.waits_since", time=f"{asked_at:%H:%M}"))),
        # A run that has begun has done what is urgent: the rest does not page.
        severity=milder or (Severity.P1 if begun else Severity.P0),
        page=not begun and milder is None,
        incident=run.incident,
        about=About(rule=run.rule, node=run.node or "", run=run.id, asked=asked_of(run)),
    )


# --- links that show one page without signing in, for a day; they only show
# `?look=UNTIL.SIGNATURE`: the second until which it opens, and the first 32 hex digits of HMAC-SHA256 over
# `PATH|UNTIL` with the site's secret (HEALER_LINK_SECRET).


LINK_LASTS = timedelta(hours=24)
LINK_NAME = "look"


def sign_link(path: str, secret: str, since: datetime) -> str:
    """The path with its signature; the same for the same `since`."""
    until = int((since + LINK_LASTS).timestamp())
    return f"{path}?{LINK_NAME}={until}.{_signature(path, until, secret)}"


def is_valid_link(path: str, look: str, secret: str, now: datetime) -> bool:
    """Whether the link was signed for this page and has not expired."""
    stamp, _, given = look.partition(".")
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) < 12):
        return False
    until = int(stamp)
    return hmac.compare_digest(_signature(path, until, secret).encode(), given.encode()) and (
        now.timestamp() < until
    )


def _signature(path: str, until: int, secret: str) -> str:
    return hmac.new(secret.encode(), f"{path}|{until}".encode(), hashlib.sha256).hexdigest()[:32]


#: Steps in a ticket's closing text; of more, the first and last are kept.
_STEPS_MAX = 40
_STEP_LENGTH = 300
_EVENTS = frozenset({StepEvent.done, StepEvent.failed, StepEvent.undone})


def ticket_stage(before: Incident | None, after: Incident) -> TicketStage | None:
    """The stage of an update of the incident's ticket; None: no update.

    An open incident is updated when its verdict's sentence changes. Where nothing but the ticket was wanted,
    it outlives its incident.
    """
    if before is None or not (after.run_count or Remedy.ticket in after.remedy):
        return None
    if before.is_open and not after.is_open:
        return TicketStage.updated if is_left_to_ticket(after) else TicketStage.closed
    if after.is_open and not before.is_open:
        return TicketStage.reopened
    if after.is_open and verdict_sentence(before) != verdict_sentence(after):
        return TicketStage.updated
    return None


def ticket_id(incident: Incident) -> str:
    """The id of the delivery that opens the incident's ticket."""
    return f"{incident.id}:ticket"


def opened_ticket(incident: Incident, now: datetime) -> Ticket:
    """The ticket of an incident on which no run works."""
    title, text = ticket_words(incident, now)
    return _ticket(incident, ticket_id(incident), title, text, TicketStage.opened)


def ticket_words(
    incident: Incident, now: datetime, found: Iterable[Said] = (), restarts: Iterable[Said] = ()
) -> tuple[Said, Said]:
    """Title and text of a ticket. `found`: what steps found; `restarts`: what was done for the jobs hit."""
    none = say("actions.ticket_none")
    lines = [
        verdict_sentence(incident),
        say("actions.ticket_where", where=str(incident.root)),
        *_held(incident, now),
        *found,
        say("actions.jobs_hit", jobs=name_some(incident.jobs_hit, _NAMED_MAX) or none),
        *restarts,
        say("actions.ticket_remedy", remedy=joined(map(quoted, incident.remedy), "comma") or none),
        *(_evidence(evidence) for evidence in incident.evidence[:5]),
    ]
    where, severity = str(incident.root), str(incident.severity)
    title = say("actions.ticket_title", severity=severity, where=where, title=incident.title)
    return title, joined(lines, "line")


def _held(incident: Incident, now: datetime) -> list[Said]:
    """The owner of the drain that the incident is about, and its age."""
    if incident.owner is None:
        return []
    since = incident.owner_since or incident.opened
    hours = (now - since) / timedelta(hours=1)
    days = say("actions.ticket_days", n=hours / 24)
    age = days if hours >= 48 else say("actions.ticket_hours", n=hours)
    return [say("actions.ticket_held", owner=incident.owner, since=f"{since:%Y-%m-%d %H:%M}", age=age)]


def _evidence(evidence: Evidence) -> Said:
    return say("actions.ticket_evidence", text=quoted(evidence.line) or evidence.text)


def ticket_update(incident: Incident, stage: TicketStage, steps: Sequence[LogEntry], now: datetime) -> Ticket:
    """An update of the incident's ticket. `steps`: the logs of its runs, oldest first."""
    verdict = verdict_sentence(incident)
    if stage is TicketStage.updated:
        occasion = sha256(verdict.encode()).hexdigest()[:12]  # the same text is sent once
        over = is_left_to_ticket(incident)
        stays = say("telling.ticket_stays", why=incident.closed_why) if over else NO_WORDS
        text = joined(filter(None, (verdict, _jobs(incident), stays)), "line")
    else:
        at = (incident.closed or now) if stage is TicketStage.closed else now
        occasion = f"{stage}:{at:%Y%m%dT%H%M%S}"
        again = joined((say("telling.open_again"), verdict), "space")
        text = proof_text(incident, steps) if stage is TicketStage.closed else again
    return _ticket(incident, f"{ticket_id(incident)}:{occasion}", _title_at_root(incident), text, stage)


def _ticket(incident: Incident, name: str, title: Said, text: Said, stage: TicketStage) -> Ticket:
    return Ticket(
        id=name,
        cluster=incident.cluster,
        node=incident.root.node,
        incident=incident.id,
        title=title,
        text=text,
        stage=stage,
        severity=incident.severity,
        since=incident.opened,
    )


def with_incident_link(ticket: Ticket, console_url: str) -> Ticket:
    """A ticket that is opened, with a link to the incident's page if the site has a console URL."""
    if not console_url or ticket.incident is None or ticket.stage is not TicketStage.opened:
        return ticket
    link = f"{console_url.rstrip('/')}/incidents/{ticket.incident}"
    return msgspec.structs.replace(ticket, text=joined((ticket.text, "", link), "line"))


def proof_text(incident: Incident, steps: Sequence[LogEntry]) -> Said:
    """Why the incident is over and what was done; each step was read back before it was logged."""
    lines = [verdict_sentence(incident)]
    if incident.closed is not None:
        why = incident.closed_why or say("telling.just_closed")
        lines.append(say("telling.over_since", time=f"{incident.closed:%Y-%m-%d %H:%M:%S}", why=why))
    if incident.merged_into:
        lines.append(say("telling.goes_on_as", incident=incident.merged_into))
    if incident.tried is not Remedy.none and incident.tried in REMEDY_LADDER:
        lines.append(say("telling.tried", remedy=say(f"incidents.remedy_{incident.tried}")))
    lines.append(_jobs(incident))
    return _of_lines([*lines, *_work_done(steps)])


def _jobs(incident: Incident) -> Said:
    return say("telling.jobs", jobs=name_some(incident.jobs_hit, _NAMED_MAX) or say("telling.none"))


def _work_done(steps: Sequence[LogEntry]) -> list[Said]:
    rows = [_step_row(entry) for entry in steps if entry.event in _EVENTS]
    if not rows:
        return [say("telling.did_nothing")]
    left_out = len(rows) - _STEPS_MAX
    if left_out > 0:
        half = _STEPS_MAX // 2
        rows = [*rows[:half], say("telling.left_out", n=left_out), *rows[-half:]]
    return [say("telling.work_done"), *rows]


def _step_row(entry: LogEntry) -> Said:
    text = reworded(entry.text, " ".join(entry.text.split())[:_STEP_LENGTH])
    time = f"{entry.at:%m-%d %H:%M:%S}"
    return say(f"telling.step_{entry.event}", time=time, step=entry.step, text=text)
