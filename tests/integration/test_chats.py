"""All channels against stand-ins that check what the real ones check and fail as they fail."""

import json
import logging
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.header import decode_header, make_header
from typing import Any

import msgspec
import pytest

from healer.adapters.notify import talk
from healer.adapters.notify.alertmanager import LASTS, Alertmanager
from healer.adapters.notify.group_bots import DingTalkBot, FeishuBot, WeComBot
from healer.adapters.notify.mail import Mail
from healer.adapters.notify.pagerduty import PagerDuty
from healer.adapters.notify.slack import SlackChannel
from healer.adapters.notify.talk import Talk
from healer.adapters.webhook import TIMEOUT_S
from healer.model import About, Channel, ChannelKind, Message, Severity, Stage
from healer.ports.outbound import DeliveryFailed, Notice, PartlyRefused
from healer.telling.news import message_in, notice_of
from healer.text import joined, quoted, say
from healer.text.language import Language
from tests.support import chats as stand_in
from tests.support.chats import Chats, MailServer, serve_chats, serve_mail
from tests.support.tls import Certificates, certificates

NAMES = ("slack", "wecom", "dingtalk", "feishu", "pagerduty", "alertmanager")
BOTS = {"wecom": "errcode", "dingtalk": "errcode", "feishu": "code"}
AT = datetime.now(UTC)
CONSOLE = "https://healer.example"


@pytest.fixture(scope="module")
def chats() -> Iterator[Chats]:
    with serve_chats() as served:
        yield served


@pytest.fixture(autouse=True)
def _afresh(chats: Chats) -> Iterator[None]:
    yield
    assert chats.complaints == []
    assert not chats.answers
    chats.taken.clear()
    chats.slack.clear()
    chats.alerts.clear()
    chats.asked.clear()


def channel(name: str, chats: Chats, timeout_s: float = 10) -> Any:
    service = Talk(name, timeout_s=timeout_s)
    made: dict[str, Callable[[], Any]] = {
        "slack": lambda: SlackChannel(stand_in.SLACK_TOKEN, "C0HEALER", url=f"{chats.url}/api", talk=service),
        "wecom": lambda: WeComBot(chats.wecom, talk=service),
        "dingtalk": lambda: DingTalkBot(chats.ding, stand_in.DING_SECRET, talk=service),
        "feishu": lambda: FeishuBot(chats.feishu, stand_in.FEISHU_SECRET, talk=service),
        "pagerduty": lambda: PagerDuty(stand_in.PAGER_KEY, url=f"{chats.url}/v2/enqueue", talk=service),
        "alertmanager": lambda: Alertmanager(chats.url, stand_in.AM_TOKEN, talk=service),
    }
    return made[name]()


def notice(
    number: str = "1f2e3d4c:p0",
    *,
    console: str = CONSOLE,
    approve: str = "",
    language: Language = "en",
    **fields: Any,
) -> Notice:
    about = {
        "node": "gpu0017",
        **{name: fields.pop(name) for name in ("stage", "run", "preview") if name in fields},
    }
    known: dict[str, Any] = {
        "cluster": "pod1",
        "incident": "1f2e3d4c",
        "severity": Severity.P0,
        "page": True,
        "title": "P0 gpu0017: GPU 3 fell off the bus",
        "text": "GPU 3 on gpu0017 fell off the bus.\nWhere: gpu0017, GPU 3\nHit: 4711 of anna, 64 GPUs\n"
        "Done: nothing, the guard `slots` holds it: 5 of 5 taken\nLeft for you: free a slot, or drain it",
    }
    message = Message(id=number, about=About(**about), **{**known, **fields})
    message = message_in(message, language)
    made = notice_of(message, AT, page=message.page, console_url=console, buttons=True)
    return msgspec.structs.replace(made, approve=approve, language=language)


def everything(chats: Chats) -> str:
    return json.dumps([chats.taken, chats.slack], ensure_ascii=False)


# --- what is the same for all ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_taken_and_says_what_one_needs_at_night(name: str, chats: Chats) -> None:
    assert channel(name, chats).send(notice(), "")
    sent = everything(chats).replace("\\\\", "")
    for words in ("GPU 3 fell off the bus", "Where", "4711 of anna", "5 of 5 taken", "free a slot"):
        assert words in sent
    assert f"{CONSOLE}/incidents/1f2e3d4c" in sent


IN_CHINESE = {
    "title": say("telling.title_opened", severity="P0", where="gpu0017", title=quoted("GPU lost")),
    "text": joined((say("telling.where", where="gpu0017"), say("telling.closed", why="4711")), "line"),
    "language": "zh",
}


@pytest.mark.parametrize("name", NAMES)
def test_messages_and_buttons_are_in_the_channels_language(name: str, chats: Chats) -> None:
    channel(name, chats).send(notice(run="r1", approve=f"{CONSOLE}/runs/r1", **IN_CHINESE), "")
    sent = everything(chats)
    assert "位置：" in sent and "Where" not in sent
    own = [] if name == "alertmanager" else ["在 healer 中打开"]
    own += ["批准", "拒绝"] if name == "slack" else ["查看并审批"] if name in BOTS else []
    assert [words for words in own if words not in sent] == []
    assert "Open in healer" not in sent and "pprove" not in sent.replace(f"{CONSOLE}/runs", "").replace(
        '"action_id": "approve"', ""
    )


@pytest.mark.parametrize("name", NAMES)
def test_it_goes_on_from_the_first_to_the_end(name: str, chats: Chats) -> None:
    one = channel(name, chats)
    ref = one.send(notice(), "")
    acknowledged = notice("1f2e3d4c:ack", stage=Stage.acknowledged, title="anna looks after gpu0017")
    ref = one.send(acknowledged, ref)
    one.send(notice("1f2e3d4c:over", stage=Stage.resolved, page=False, title="gpu0017 is back"), ref)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("answer", "words", "refused", "wait_s"),
    [
        ((500, {}, {}), "answered 500", False, None),
        ((503, {"retry-after": "17"}, {}), "answered 503", False, 17.0),
        ((429, {"retry-after": "90"}, {}), "answered 429", False, 90.0),
        ((401, {}, {}), "answered 401", True, None),
        ((404, {}, {}), "answered 404", True, None),
        ((302, {"location": "http://127.0.0.1:1/"}, {}), "answered 302", False, None),
        ("reset", "cannot be reached", False, None),
        ("silent", "did not answer within 0.3 s", False, None),
    ],
    ids=["500", "503", "429", "401", "404", "302", "reset", "silent"],
)
def test_failure_is_reported_in_words_without_secrets(
    name: str, chats: Chats, caplog: pytest.LogCaptureFixture, answer: Any, words: str, refused: bool,
    wait_s: float | None,
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG)
    chats.answers.append(answer)
    with pytest.raises(DeliveryFailed, match=words) as failed:
        channel(name, chats, timeout_s=0.3 if answer == "silent" else 10).send(notice(), "")
    assert (failed.value.refused, failed.value.retry_after_s) == (refused, wait_s)
    shown = str(failed.value) + caplog.text
    assert not any(secret in shown for secret in stand_in.SECRETS)


@pytest.mark.parametrize("name", NAMES)
def test_page_of_a_proxy_is_no_receipt(name: str, chats: Chats) -> None:
    """A page that a captive portal took with 200 counted as sent, and woke no one."""
    chats.answers.append((200, {"content-type": "text/html"}, b"<html>Sign in</html>"))
    with pytest.raises(DeliveryFailed) as failed:
        channel(name, chats).send(notice(), "")
    assert not failed.value.refused


@pytest.mark.parametrize("name", NAMES)
def test_answer_that_drips_does_not_hold_the_channel(name: str, chats: Chats) -> None:
    """Each byte arrives in time, the answer never does: the channel's thread would wait for good."""
    chats.answers.append("drip")
    with pytest.raises(DeliveryFailed) as failed:
        channel(name, chats, timeout_s=0.3).send(notice(), "")
    assert not failed.value.refused


def test_answer_of_any_length_is_read_to_a_limit(chats: Chats, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talk, "ANSWER_MAX", 10_000)
    chats.answers.append((200, {}, {"ok": True, "ts": "1.1", "more": "x" * 20_000}))
    with pytest.raises(DeliveryFailed, match="does not end"):
        channel("slack", chats).send(notice(), "")


@pytest.mark.parametrize("name", NAMES)
def test_hostile_or_long_text_is_cut_and_mentions_no_one(name: str, chats: Chats) -> None:
    hostile = "<!channel> <@U1> @all <a href='x'>*_`[x](http://evil) 显卡掉了 " + "\u2028\x07" + "显" * 30_000
    channel(name, chats).send(notice(title=hostile[:5000], text=hostile), "")
    assert "<!channel>" not in json.dumps([one["blocks"][1:] for one in chats.slack.values()])
    if name in ("wecom", "dingtalk"):
        sent_to = chats.taken[name][0]
        text = (sent_to.get("markdown") or sent_to.get("actionCard"))[
            "content" if name == "wecom" else "text"
        ]
        assert "](" not in text.partition("](https://healer")[0]
        assert "<a href" not in text
    if name != "alertmanager":
        assert "…" in everything(chats)


def test_slack_makes_no_links_and_mentions_of_a_log(chats: Chats) -> None:
    channel("slack", chats).send(notice(text="@here look at evil.example\n#general", preview=("@here",)), "")
    (root,) = chats.slack.values()
    texts = [block["text"] for block in root["blocks"] if block["type"] == "section"]
    assert len(texts) == 2
    assert all(text["verbatim"] is True for text in texts)
    assert root["parse"] == "none"


def test_slack_shows_every_line_of_a_full_digest(chats: Chats) -> None:
    """The last line says how many more there are."""
    lines = [f"P2 GPU 3 of gpu{number:04}: {'x' * 170}; open {CONSOLE}/{number}" for number in range(40)]
    channel("slack", chats).send(notice(text="\n".join([*lines, "and 960 more"])), "")
    (root,) = chats.slack.values()
    shown = "\n".join(block["text"]["text"] for block in root["blocks"] if block["type"] == "section")
    assert shown.replace("*", "").split("\n") == [*lines, "and 960 more"]


def test_title_mentions_no_one_in_wecom(chats: Chats) -> None:
    WeComBot(chats.wecom, ("13800000000",)).send(notice(title="job <@all> failed"), "")
    call = chats.taken["wecom"][1]["text"]
    assert (call["content"], call["mentioned_mobile_list"]) == ("pod1: job ‹@all> failed", ["13800000000"])


# --- one by one --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "field"), BOTS.items())
def test_a_bot_that_refuses_with_200_has_not_taken_it(name: str, field: str, chats: Chats) -> None:
    chats.answers.append((200, {}, {field: 40058, "errmsg": "not so", "msg": "not so"}))
    with pytest.raises(DeliveryFailed, match="refused: 40058 not so") as failed:
        channel(name, chats).send(notice(), "")
    assert failed.value.refused
    chats.answers.append((200, {}, {}))
    with pytest.raises(DeliveryFailed, match=f"without {field}"):
        channel(name, chats).send(notice(), "")


@pytest.mark.parametrize(
    ("name", "body", "wait_s"),
    [
        ("wecom", {"errcode": 45009, "errmsg": "api freq out of limit"}, 60.0),
        ("dingtalk", {"errcode": 130101, "errmsg": "send too fast"}, 600.0),
        ("feishu", {"code": 11232, "msg": "frequency limited"}, 60.0),
    ],
)
def test_a_bot_that_was_asked_too_often_is_left_alone(
    name: str, body: Any, wait_s: float, chats: Chats
) -> None:
    chats.answers.append((200, {}, body))
    with pytest.raises(DeliveryFailed) as failed:
        channel(name, chats).send(notice(), "")
    assert (failed.value.refused, failed.value.retry_after_s) == (False, wait_s)


def test_a_wrong_signature_is_refused(chats: Chats) -> None:
    with pytest.raises(DeliveryFailed, match="310000"):
        DingTalkBot(chats.ding, "wrong").send(notice(), "")
    with pytest.raises(DeliveryFailed, match="19021"):
        FeishuBot(chats.feishu, "wrong").send(notice(), "")
    with pytest.raises(DeliveryFailed, match="310000"):
        DingTalkBot(chats.ding, stand_in.DING_SECRET, now=lambda: AT - timedelta(hours=2)).send(notice(), "")


@pytest.mark.parametrize("name", BOTS)
def test_an_approval_of_a_group_bot_is_a_link_to_the_page(name: str, chats: Chats) -> None:
    link = f"{CONSOLE}/approve/run-1.signed"
    asked = notice(run="run-1", approve=link, preview=("Plan: drain, reset", "Affected jobs: none"))
    channel(name, chats).send(asked, "")
    sent = everything(chats)
    assert link in sent
    assert "drain, reset" in sent
    assert "run-1" not in sent.replace(link, "")  # nothing but the link leads to it


def test_wecom_calls_those_on_duty_for_a_page_alone(chats: Chats) -> None:
    bot = WeComBot(chats.wecom, ("13800000000",))
    bot.send(notice(), "")
    bot.send(notice("2", page=False), "")
    kinds = [one["msgtype"] for one in chats.taken["wecom"]]
    assert kinds == ["markdown", "text", "markdown"]
    assert chats.taken["wecom"][1]["text"]["mentioned_mobile_list"] == ["13800000000"]


def test_slack_keeps_one_message_per_incident_and_threads_updates(chats: Chats) -> None:
    slack = channel("slack", chats)
    ref = slack.send(notice(run="run-1", preview=("Plan: drain",)), "")
    assert slack.send(notice("1f2e3d4c:over", stage=Stage.resolved, title="gpu0017 is back"), ref) == ref
    root, news = chats.slack.values()
    assert "gpu0017 is back" in root["text"]
    assert "actions" not in {one["type"] for one in root["blocks"]}  # nothing is left to press
    assert news["thread_ts"] == ref.partition(":")[2]


def test_slack_finds_a_message_whose_delivery_is_unknown(chats: Chats) -> None:
    chats.answers.append("taken")
    with pytest.raises(DeliveryFailed, match="did not answer"):
        channel("slack", chats, timeout_s=0.3).send(notice(), "")
    slack = channel("slack", chats)
    assert slack.find(notice()) == f"C0HEALER:{next(iter(chats.slack))}"
    assert slack.find(notice("other:p0")) == ""


def test_slack_finds_news_in_the_thread_and_not_at_the_root_that_was_only_brought_up_to_date(
    chats: Chats,
) -> None:
    slack = channel("slack", chats)
    ref = slack.send(notice(), "")
    news = notice("1f2e3d4c:over", stage=Stage.resolved)
    chats.answers.extend(["taken", (500, {}, {})])
    with pytest.raises(DeliveryFailed, match="did not answer"):
        channel("slack", chats, timeout_s=0.3).send(news, ref)  # the root is new, the reply was not sent
    chats.answers.clear()
    assert slack.find(news, ref) == ""
    assert slack.send(news, ref) == ref
    assert slack.find(news, ref) == ref


def test_slack_posts_a_new_root_where_people_deleted_it(chats: Chats) -> None:
    slack = channel("slack", chats)
    ref = slack.send(notice(), "")
    chats.slack.clear()
    assert slack.send(notice("1f2e3d4c:more"), ref).startswith("C0HEALER:")
    assert len(chats.slack) == 1


@pytest.mark.parametrize(
    ("error", "refused"),
    [("ratelimited", False), ("internal_error", False), ("invalid_auth", True), ("is_archived", True)],
)
def test_slack_that_says_ok_false_has_not_taken_it(error: str, refused: bool, chats: Chats) -> None:
    chats.answers.append((200, {"retry-after": "30"}, {"ok": False, "error": error}))
    with pytest.raises(DeliveryFailed, match=error) as failed:
        channel("slack", chats).send(notice(), "")
    assert (failed.value.refused, failed.value.retry_after_s) == (refused, 30.0)


def test_pagerduty_has_one_alert_for_an_incident(chats: Chats) -> None:
    pager = channel("pagerduty", chats)
    pager.send(notice(), "")
    pager.send(notice("1f2e3d4c:p0:later"), "x")
    pager.send(notice("a", stage=Stage.acknowledged), "x")
    pager.send(notice("b", stage=Stage.resolved), "x")
    sent = chats.taken["pagerduty"]
    first = "healer:pod1:1f2e3d4c"
    urgent = f"{first}:P0"
    assert [(one["event_action"], one["dedup_key"]) for one in sent] == [
        *(("trigger", urgent), ("trigger", urgent)),
        *((action, key) for action in ("acknowledge", "resolve") for key in (first, urgent)),
    ]


def test_an_incident_that_opens_again_begins_with_its_first_alert(chats: Chats) -> None:
    pager = channel("pagerduty", chats)
    mild, urgent = notice(severity=Severity.P1), notice()
    first, ref = "healer:pod1:1f2e3d4c", ""
    for _ in range(2):
        assert pager.send(mild, ref) == first
        assert pager.send(urgent, first) == f"{first}:P0" == pager.send(mild, f"{first}:P0")
        ref = pager.send(notice("b", stage=Stage.resolved), f"{first}:P0")
    ended = [one["dedup_key"] for one in chats.taken["pagerduty"] if one["event_action"] == "resolve"]
    assert ended == [first, f"{first}:P0"] * 2


def test_an_alert_lasts_from_one_repeat_to_the_next_though_our_clock_is_behind(chats: Chats) -> None:
    """By less than an alert lasts, so that it fires at first, and ended before its repeat."""
    behind = LASTS - timedelta(seconds=10)
    manager = Alertmanager(chats.url, stand_in.AM_TOKEN, now=lambda: datetime.now(UTC) - behind)
    for _ in range(2):
        manager.send(notice(), "")
    (alert,) = chats.alerts.values()
    assert datetime.fromisoformat(alert["endsAt"]) > datetime.now(UTC) + LASTS / 2


def test_an_alert_ends_by_itself_unless_it_is_sent_again(chats: Chats) -> None:
    moment = [datetime.now(UTC)]
    begun = moment[0]
    manager = Alertmanager(chats.url, stand_in.AM_TOKEN, now=lambda: moment[0])
    manager.send(notice(), "")
    moment[0] += timedelta(minutes=1)
    manager.send(notice(), "x")
    assert len(chats.alerts) == 1
    first, again = chats.taken["alertmanager"]
    assert datetime.fromisoformat(first["endsAt"]) == begun + LASTS
    assert datetime.fromisoformat(again["endsAt"]) == begun + timedelta(minutes=1) + LASTS
    manager.send(notice("over", stage=Stage.resolved), "x")
    (alert,) = chats.alerts.values()
    assert datetime.fromisoformat(alert["endsAt"]) == moment[0]


def test_the_dead_mans_switch_is_an_alert_of_each_cluster(chats: Chats) -> None:
    channel("alertmanager", chats).alive(("pod1", "pod2"))
    assert [one["labels"]["cluster"] for one in chats.taken["alertmanager"]] == ["pod1", "pod2"]
    assert {one["labels"]["alertname"] for one in chats.taken["alertmanager"]} == {"HealerAlive"}


# --- e-mail ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["starttls", "tls"])
def mail(request: pytest.FixtureRequest, papers: Certificates) -> Iterator[tuple[MailServer, Mail]]:
    with serve_mail(papers.server, tls_at_once=request.param == "tls") as server:
        yield server, mailer(server, papers, tls=request.param)


def mailer(server: MailServer, papers: Certificates, **fields: Any) -> Mail:
    context = fields.pop("context", None) or ssl.create_default_context(cafile=str(papers.authority))
    password = fields.pop("password", "mail-not-to-be-told")
    limits = {name: fields.pop(name) for name in ("whole_s", "now") if name in fields}
    known: dict[str, Any] = {"user": "healer", "to": ("ops@example.org", "night@example.org"), **fields}
    address = f"127.0.0.1:{server.port}"
    channel = Channel(
        name="mail", kind=ChannelKind.email, server=address, sender="healer@example.org", **known
    )
    return Mail(channel, password, context=context, **limits)


def test_mails_of_one_incident_are_one_thread(mail: tuple[MailServer, Mail]) -> None:
    server, sender = mail
    ref = sender.send(notice(title="P0 gpu0017:\nGPU gone\r\nBcc: x@example.org"), "")
    assert sender.send(notice("1f2e3d4c:over", stage=Stage.resolved), ref) == ref
    (to, first), (_, second) = server.mails
    assert to == ["ops@example.org", "night@example.org"]
    assert first["Message-ID"] == second["In-Reply-To"] == second["References"] == ref
    assert second["Message-ID"] != ref
    assert first["Bcc"] is None
    assert (first["Auto-Submitted"], first["X-Incident-Id"]) == ("auto-generated", "1f2e3d4c")
    kinds = {part.get_content_type() for part in first.walk()}
    assert {"text/plain", "text/html"} <= kinds
    assert server.plain == []  # no word of the mail before TLS


def test_a_page_after_a_mail_whose_answer_was_lost_is_no_repeat_of_it(mail: tuple[MailServer, Mail]) -> None:
    """Both had the Message-ID of their incident: a mail system drops the second, and that was the page."""
    server, sender = mail
    for page in (notice("1f2e3d4c:told:P1", page=False), notice("1f2e3d4c:p0"), notice("1f2e3d4c:p0")):
        sender.send(page, "")  # without a reference, as the answer to the first one was lost
    first, second, repeat = (message["Message-ID"] for _, message in server.mails)
    assert first != second == repeat


@pytest.mark.parametrize(
    ("says", "words", "refused"),
    [
        ({"RCPT": b"550 no such user"}, "rejected every recipient", True),
        ({"RCPT": b"450 later"}, "rejected every recipient", False),
        ({"MAIL": b"421 too busy"}, "answered 421", False),
        ({"DATA": b"554 spam"}, "answered 554", True),
        ({"AUTH": b"535 no"}, "answered 535", True),
        ({"DATA": b""}, "was lost", False),
    ],
)
def test_refusal_of_the_mail_server_fails_the_delivery_with_its_text(
    says: dict[str, bytes], words: str, refused: bool, papers: Certificates
) -> None:
    with serve_mail(papers.server) as server:
        server.says.update(says)
        with pytest.raises(DeliveryFailed, match=words) as failed:
            mailer(server, papers).send(notice(), "")
        assert failed.value.refused is refused
        assert "not-to-be-told" not in str(failed.value)


def test_a_recipients_name_needs_no_server_that_takes_more_than_ascii(papers: Certificates) -> None:
    """It takes no SMTPUTF8, and no mail to anybody of the channel went out."""
    with serve_mail(papers.server) as server:
        names = ("Bereitschaft Süd <sued@example.org>", "值班 <zhiban@example.org>", "ops@example.org")
        assert mailer(server, papers, to=names).send(notice(), "")
        ((to, mail),) = server.mails
    assert to == ["sued@example.org", "zhiban@example.org", "ops@example.org"]
    assert str(make_header(decode_header(mail["To"]))) == ", ".join(names)


def test_a_mail_that_was_taken_is_sent_though_the_server_ends_badly(papers: Certificates) -> None:
    with serve_mail(papers.server) as server:
        for ending in (b"421 I have to go", b""):
            server.says["QUIT"] = ending
            assert mailer(server, papers).send(notice(), "")
        assert len(server.mails) == 2


@pytest.mark.parametrize("tls", ["starttls", "tls"])
@pytest.mark.parametrize("drips", [b"220-wait\r\n", b"2"])
def test_a_mail_server_that_drips_does_not_hold_the_channel(
    tls: str, drips: bytes, papers: Certificates
) -> None:
    """Each word arrived in time, the greeting never did: the channel's thread waited for good."""
    with serve_mail(papers.server, tls_at_once=tls == "tls") as server:
        server.drips = drips
        with pytest.raises(DeliveryFailed, match=r"did not take the mail within 0\.5 s") as failed:
            mailer(server, papers, tls=tls, whole_s=0.5).send(notice(), "")
        assert not failed.value.refused
        server.drips = b""
        assert mailer(server, papers, tls=tls).send(notice(), "")


def test_a_mail_server_that_scans_a_mail_before_it_answers_gets_it_once(papers: Certificates) -> None:
    """Who gave up sent it again: a page came 85 times, and counted as not delivered."""
    with serve_mail(papers.server) as server:
        server.scan_s = TIMEOUT_S + 1
        assert mailer(server, papers).send(notice(), "")
        assert len(server.mails) == 1


def test_a_recipient_who_is_refused_beside_others_is_named(papers: Certificates) -> None:
    with serve_mail(papers.server) as server:
        server.says["rcpt TO:<night@example.org>"] = b"550 no such user"
        with pytest.raises(PartlyRefused, match=r"refused night@example.org \(550\)") as partly:
            mailer(server, papers).send(notice(), "")
        assert [to for to, _ in server.mails] == [["ops@example.org"]]
        assert partly.value.reference == server.mails[0][1]["Message-ID"]


def test_a_recipient_who_is_put_off_gets_the_mail_later_and_the_others_no_second_one(
    papers: Certificates,
) -> None:
    """A greylisting server counted as having taken a page, and the person on call never got it."""
    with serve_mail(papers.server) as server:
        one = mailer(server, papers)
        server.says["rcpt TO:<night@example.org>"] = b"451 greylisted, try again"
        for _ in range(2):
            with pytest.raises(DeliveryFailed, match=r"put off 1 of the recipients \(451\)") as failed:
                one.send(notice(), "")
            assert not failed.value.refused
        del server.says["rcpt TO:<night@example.org>"]
        assert one.send(notice(), "")
        assert [to for to, _ in server.mails] == [["ops@example.org"], ["night@example.org"]]
        assert one.send(notice("2"), "")
        assert server.mails[-1][0] == ["ops@example.org", "night@example.org"]


def test_a_recipient_who_is_put_off_for_an_hour_keeps_no_mail_unsent(papers: Certificates) -> None:
    clock = [AT]
    with serve_mail(papers.server) as server:
        one = mailer(server, papers, now=lambda: clock[0])
        server.says["rcpt TO:<night@example.org>"] = b"452 mailbox full"
        with pytest.raises(DeliveryFailed):
            one.send(notice(), "")
        clock[0] += timedelta(minutes=61)
        with pytest.raises(PartlyRefused, match=r"refused night@example.org \(452\)"):
            one.send(notice(), "")
        assert [to for to, _ in server.mails] == [["ops@example.org"]]


def test_a_recipient_who_is_put_off_and_then_refused_ends_the_mail(papers: Certificates) -> None:
    with serve_mail(papers.server) as server:
        one = mailer(server, papers)
        server.says["rcpt TO:<night@example.org>"] = b"451 greylisted, try again"
        with pytest.raises(DeliveryFailed):
            one.send(notice(), "")
        server.says["rcpt TO:<night@example.org>"] = b"550 no such user"
        with pytest.raises(PartlyRefused, match=r"refused night@example.org \(550\)"):
            one.send(notice(), "")
        assert [to for to, _ in server.mails] == [["ops@example.org"]]


def test_a_mail_server_without_tls_or_with_a_strangers_certificate_gets_nothing(papers: Certificates) -> None:
    with serve_mail(papers.server) as server:
        with pytest.raises(DeliveryFailed, match="TLS"):
            mailer(server, papers, context=ssl.create_default_context()).send(notice(), "")
        server.says["EHLO"] = b"250 stand-in"
        with pytest.raises(DeliveryFailed, match="does not support a configured option"):
            mailer(server, papers).send(notice(), "")
        assert (server.mails, server.plain) == ([], [])
    with pytest.raises(DeliveryFailed, match="cannot be reached: Connection refused"):
        mailer(server, papers).send(notice(), "")
