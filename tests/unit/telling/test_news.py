"""What is sent to channels about an incident, and how often. The time is given."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from healer.model import (
    Breaker,
    BreakerState,
    Component,
    FaultClass,
    Guard,
    Incident,
    IncidentState,
    LogEntry,
    Root,
    Run,
    RunState,
    Severity,
    Stage,
    StepEvent,
    Verdict,
)
from healer.ports.outbound import BACK_OFF, FORGOTTEN, Raised
from healer.telling import news
from healer.telling.news import Item, schedule_alarm
from healer.text import quoted

AT = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)


def incident(name: str = "1f2e3d4c", **fields: object) -> Incident:
    known = Incident(
        id=name,
        cluster="pod1",
        rule="gpu-fatal",
        fault="xid-79",
        fault_class=FaultClass.fatal,
        title="Xid 79: GPU has fallen off the bus",
        root=Component(cluster="pod1", node="gpu0017", gpu=3),
        opened=AT,
        updated=AT,
        settle_until=AT,
        severity=Severity.P1,
        jobs_hit=("4711",),
    )
    return msgspec.structs.replace(known, **fields)


def run(**fields: object) -> Run:
    known = Run(
        id="r1",
        cluster="pod1",
        playbook="gpu-fatal",
        state=RunState.done,
        by="healer",
        reason="x",
        created_at=AT,
    )
    return msgspec.structs.replace(known, **fields)


def entry(step: str, event: StepEvent, text: str = "") -> LogEntry:
    return LogEntry(run="r1", at=AT, epoch=1, step=step, event=event, text=text)


# --- back-off -------------------------------------------------------------------------------------


def test_continuing_alarm_repeats_after_5_10_20_40_80_and_every_80_minutes() -> None:
    raised, minutes = None, []
    for minute in range(6 * 60):
        now = AT + timedelta(minutes=minute)
        following = schedule_alarm(raised, now)
        if following.last_at <= now:
            minutes.append(minute)
            raised = following
    assert minutes == [0, 5, 15, 35, 75, 155, 235, 315]


def test_repeated_alarm_is_delayed_by_the_back_off() -> None:
    first = schedule_alarm(None, AT)
    again = schedule_alarm(first, AT + timedelta(minutes=1))
    assert (again.again, again.last_at) == (1, AT + BACK_OFF[0])
    assert schedule_alarm(again, again.last_at).last_at == again.last_at + BACK_OFF[1]


def test_after_a_long_quiet_it_is_news_again() -> None:
    often = Raised(5, AT)
    almost = schedule_alarm(often, AT + FORGOTTEN - timedelta(seconds=1))
    assert (almost.again, almost.last_at) == (6, AT + FORGOTTEN - timedelta(seconds=1))
    assert schedule_alarm(often, AT + FORGOTTEN) == Raised(0, AT + FORGOTTEN)


@pytest.mark.parametrize("times", range(1, 9))
def test_alarm_withdrawn_before_its_time_does_not_count(times: int) -> None:
    before, raised = None, schedule_alarm(None, AT)
    for _ in range(times):
        before, raised = raised, schedule_alarm(raised, raised.last_at)
    assert news.withdraw_alarm(raised) == before
    assert news.withdraw_alarm(schedule_alarm(None, AT)) is None


@pytest.mark.parametrize("again", range(7))
def test_clock_set_back_delays_no_message(again: int) -> None:
    ahead = Raised(again, AT + timedelta(days=1))
    assert schedule_alarm(ahead, AT).last_at - AT <= BACK_OFF[-1]


# --- words ----------------------------------------------------------------------------------------


def test_opened_message_says_where_who_is_hit_and_what_healer_does() -> None:
    message = news.opened_news(incident())
    assert (message.incident, message.severity, message.page, message.about.stage) == (
        "1f2e3d4c",
        "P1",
        False,
        Stage.opened,
    )
    assert "GPU 3 of gpu0017" in message.title
    assert "Affected jobs: 4711" in message.text.split("\n")
    assert "healer: no action yet" in message.text
    assert "healer: is working on it" in news.opened_news(incident(run="r1")).text


def test_the_same_trouble_is_one_alarm_and_each_occasion_a_message_of_its_own() -> None:
    first, second = news.opened_news(incident()), news.opened_news(incident("aaaa"))
    assert first.about.alarm == second.about.alarm
    assert (
        first.about.alarm != news.opened_news(incident(root=Component(cluster="pod1", node="n2"))).about.alarm
    )
    names = {
        first.id, second.id, news.opened_news(incident(), again=AT).id,
        news.opened_news(incident(severity=Severity.P0)).id,
        news.acknowledged_news(incident(acknowledged_by="anna")).id,
        news.resolved_news(incident(closed=AT), ()).id,
    }  # fmt: skip
    assert len(names) == 6


def test_end_message_says_what_was_done_and_how_it_was_verified() -> None:
    over = incident(state=IncidentState.resolved, closed=AT, closed_why="the tests passed")
    log = [
        entry("drain", StepEvent.started),
        entry("drain", StepEvent.done, "our reason was read back"),
        entry("reset", StepEvent.failed, "busy"),
        entry("reset", StepEvent.done, "no pending remap, 8 GPUs"),
    ]
    message = news.resolved_news(over, [(run(), log), (run(id="r2", shadow=True), log)])
    lines = message.text.split("\n")
    assert lines[1:] == [
        "Done: drain: our reason was read back",
        "Done: reset: no pending remap, 8 GPUs",
        "Closed: the tests passed",
    ]
    assert message.about.stage is Stage.resolved
    assert "healer did nothing" in news.resolved_news(over, ()).text


def test_a_long_proof_is_cut_and_says_so() -> None:
    log = [entry(f"step{number}", StepEvent.done, "x" * 500) for number in range(20)]
    lines = news.proof_lines([(run(), log)])
    assert len(lines) == news.PROOF_MAX
    assert lines[-1] == "Done: 13 more steps, see the incident"
    assert max(map(len, lines)) <= 200


def test_a_long_proof_ends_with_the_tests_and_the_return() -> None:
    """They are the last steps: people read which ticket was opened, and not that the node passed."""
    log = [entry(f"step{number}", StepEvent.done, "x") for number in range(12)]
    log += [entry("proof", StepEvent.done, "soft: COMPLETED"), entry("resume", StepEvent.done, "in service")]
    lines = news.proof_lines([(run(), log)])
    assert lines[-3:-1] == ["Done: proof: soft: COMPLETED", "Done: resume: in service"]


# --- digest ---------------------------------------------------------------------------------------


def test_digest_lists_each_incident_once_in_current_state_worst_first() -> None:
    low, high = incident("low", severity=Severity.P3), incident("high", severity=Severity.P2)
    over = incident("low", severity=Severity.P3, state=IncidentState.resolved, closed_why="it is gone")
    items = [
        Item(message=news.opened_news(low), incident=over),
        Item(message=news.resolved_news(over, ()), incident=over),
        Item(message=news.opened_news(high), incident=high),
    ]
    message = news.digest("digest:1", "pod1", items, "https://healer.example/")
    assert message.title == "pod1: 2 low-urgency incidents, 1 still open"
    first, second = message.text.split("\n")
    assert first.startswith("P2 GPU 3 of gpu0017")
    assert first.endswith("open https://healer.example/incidents/high")
    assert "resolved: it is gone https://healer.example/incidents/low" in second
    assert message.severity is Severity.P2


def test_a_long_digest_says_how_much_more_there_is() -> None:
    items = [Item(message=news.opened_news(incident(str(n))), incident=incident(str(n))) for n in range(50)]
    lines = news.digest("digest:1", "pod1", items, "").text.split("\n")
    assert len(lines) == news.DIGEST_MAX + 1
    assert lines[-1] == "and 10 more"


def test_a_long_list_of_nodes_or_jobs_says_how_many_more_there_are() -> None:
    """It pushed what follows, such as a ticket's evidence, over the limit of the channel; a list of nodes
    that was cut at fifty did not say so."""
    names = [f"gpu{number:04}" for number in range(60)]
    roots = tuple(Root(node=name, rule="gpu-fatal", at=AT, incident=name) for name in names)
    breaker = Breaker(cluster="pod1", state=BreakerState.open, why=quoted("storm"), roots=roots)
    wide = incident(jobs_hit=tuple(map(str, range(60))), nodes=dict.fromkeys(names, Verdict.isolate))
    texts = [
        news.breaker_page(breaker).text,
        news.notify_message(wide).text,
        news.opened_news(wide).text,
        news.ticket_words(wide, AT)[1],
        news.proof_text(wide, ()),
    ]
    assert [text.count("and 20 more") for text in texts] == [1] * len(texts)


def test_a_run_that_waits_for_approval_goes_along_for_the_buttons() -> None:
    asks = incident(run="r1", held_by=Guard.approval)
    assert news.about_incident(asks).run == "r1"
    assert news.about_incident(asks, Stage.resolved).run == ""
    assert (
        news.about_incident(incident(run="r1")).run
        == news.about_incident(incident(held_by=Guard.approval)).run
        == ""
    )


def test_the_buttons_of_a_step_that_waits_name_that_approval() -> None:
    asked_until = datetime(2026, 11, 27, 3, 30, tzinfo=UTC)
    run = Run(
        id="r1", cluster="pod1", playbook="power-cycle", state=RunState.waiting, by="healer",
        reason=quoted("x"), created_at=asked_until, node="gpu0001", approve_until=asked_until,
    )  # fmt: skip
    message = news.approval_page(run)
    assert news.notice_of(message, asked_until, page=False, console_url="", buttons=True).run == (
        f"r1@{asked_until.timestamp():.0f}"
    )


def test_clusters_with_equal_node_names_are_distinct() -> None:
    """Their people read one chat, and a page is a title."""
    asked = Run(
        id="r1", cluster="pod2", playbook="drain", state=RunState.waiting_approval, by="ann",
        reason=quoted("x"), created_at=AT, node="gpu0017",
    )  # fmt: skip
    ours = [news.opened_news(incident()), news.approval_page(msgspec.structs.replace(asked, cluster="pod1"))]
    theirs = [news.opened_news(incident(cluster="pod2")), news.approval_page(asked)]
    for here, there in zip(ours, theirs, strict=True):
        titles = [news.notice_of(message, AT, page=True).title for message in (here, there)]
        assert ["pod1" in titles[0], "pod2" in titles[1]] == [True, True]
    storm = news.restored_page("pod1", AT, AT, 0)
    assert news.notice_of(storm, AT, page=True).title.count("pod1") == 1
