"""`POST /chat/slack`: only what Slack signed, only people the site named, and only what their role may."""

import dataclasses
import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import httpx
import msgspec
import pytest

from healer.adapters.postgres.tables import run_log
from healer.model import (
    Channel,
    ChannelKind,
    LogEntry,
    Notifications,
    Person,
    Role,
    Run,
    RunState,
    StepEvent,
)
from healer.ports.request_errors import Conflict
from healer.text import to_stored
from tests.support.api import CLUSTER, Api, save_run
from tests.support.wait import wait_until

Served = tuple[Api, httpx.Client]
URL = "/api/v1/chat/slack"
SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
FORM = {"content-type": "application/x-www-form-urlencoded"}
REPLY = "https://hooks.slack.com/actions/T1/2/3"
PEOPLE = (
    Person(slack="U0ANN", name="ann", role=Role.operator),
    Person(slack="U0VIC", name="vic", role=Role.viewer),
    Person(slack="U0FAR", name="far", role=Role.admin, clusters=("pod9",)),
)
CHANNELS = (
    Channel(name="ops", kind=ChannelKind.slack, channel="C0OPS"),
    Channel(name="zhiban", kind=ChannelKind.slack, channel="C0ZHIBAN", language="zh"),
)


class Slack:
    def __init__(self, api: Api, client: httpx.Client) -> None:
        self.api, self.client = api, client
        self.replies: list[tuple[str, str]] = []
        services = api.app.state.services
        rules = msgspec.structs.replace(
            services.rules(), notifications=Notifications(people=PEOPLE, channels=CHANNELS)
        )
        api.app.state.services = dataclasses.replace(
            services,
            rules=lambda: rules,
            slack_secret=SECRET,
            tell_slack=lambda url, text: self.replies.append((url, text)),
        )
        self.clock = services.clock

    def send(self, body: bytes, *, late_s: float = 0, secret: str = SECRET) -> httpx.Response:
        stamp = str(int(self.clock.now().timestamp() - late_s))
        made = hmac.new(secret.encode(), f"v0:{stamp}:".encode() + body, hashlib.sha256).hexdigest()
        headers = {
            "x-slack-request-timestamp": stamp,
            "x-slack-signature": f"v0={made}",
        } | FORM
        return self.client.post(URL, content=body, headers=headers)

    def press(self, user: str, verb: str, value: str, **more: Any) -> str:
        """What Slack shows to who pressed."""
        action: dict[str, Any] = {"action_id": verb, "action_ts": "1548426417.840180"}
        action |= {"value": value} if verb == "approve" else {"selected_option": {"value": value}}
        payload = {"type": "block_actions", "user": {"id": user}, "actions": [action], "response_url": REPLY}
        before = len(self.replies)
        answer = self.send(urlencode({"payload": json.dumps(payload | more)}).encode())
        assert answer.status_code == 200, answer.text
        wait_until(lambda: len(self.replies) > before, 10, what="the user who pressed gets the result")
        url, text = self.replies[-1]
        assert url == REPLY
        return text


@pytest.fixture
def slack(served: Served) -> Slack:
    return Slack(*served)


@pytest.fixture
def run(slack: Slack) -> str:
    """A run that a person may decide on."""
    return waiting_run(slack, "gpu0001")


def waiting_run(slack: Slack, node: str, **fields: Any) -> str:
    run = Run(
        id=f"run-on-{node}",
        cluster=CLUSTER,
        playbook="drain",
        state=RunState.waiting_approval,
        by="healer",
        reason="GPU fell off the bus",
        created_at=datetime.now(UTC),
        node=node,
        rule="gpu-lost",
    )
    with slack.api.engine.begin() as conn:
        save_run(conn, msgspec.structs.replace(run, **fields))
    return run.id


def test_an_operator_approves_and_rejects(slack: Slack, run: str) -> None:
    other = waiting_run(slack, "gpu0002")
    assert "ann is not a person of this site" in slack.press("U0ANN", "approve", run)
    slack.api.token(Role.operator, name="ann")
    assert slack.press("U0ANN", "approve", run) == "ann approved drain on gpu0001."
    said = slack.press("U0ANN", "reject", f"by_hand:{other}")
    assert said == "ann rejected drain on gpu0002. Nothing will be done; the incident stays open."
    headers = slack.api.headers("auditor")
    records = slack.client.get("/api/v1/audit?verb=run.", headers=headers).json()["items"]
    assert [(one["subject"], one["verb"], one["actor"], one["data"]["reason"]) for one in records] == [
        (f"run/{other}", "run.rejected", "ann", "rejected in Slack: I will handle it manually"),
        (f"run/{run}", "run.approved", "ann", "approved in Slack"),
    ]


def test_a_press_is_of_what_its_message_asked(slack: Slack) -> None:
    """The message asked for the begin of a run that waits at one of its steps by now."""
    until = datetime.now(UTC) + timedelta(minutes=5)
    run = waiting_run(slack, "gpu0003", state=RunState.waiting, approve_until=until)
    slack.api.token(Role.operator, name="ann")
    for value in (run, f"{run}@{until.timestamp() - 60:.0f}"):
        assert "no longer waits for this approval" in slack.press("U0ANN", "approve", value)
    # It is asked now, but has no step in its log.
    assert "there is nothing to approve" in slack.press("U0ANN", "approve", f"{run}@{until.timestamp():.0f}")


def test_a_rejection_is_of_what_its_message_asked(slack: Slack) -> None:
    until = datetime.now(UTC) + timedelta(minutes=5)
    run = waiting_run(slack, "gpu0003", state=RunState.waiting, approve_until=until)
    asks = LogEntry(
        run=run, at=until, epoch=1, step="agree", event=StepEvent.waiting, data={"approval": True}
    )
    with slack.api.engine.begin() as conn:
        row = {"run": run, "at": until, "step": asks.step, "event": asks.event, "doc": to_stored(asks)}
        conn.execute(run_log.insert().values(**row))
    slack.api.token(Role.operator, name="ann")
    for value in (f"busy:{run}", f"busy:{run}@{until.timestamp() - 60:.0f}"):
        assert "no longer waits for this approval" in slack.press("U0ANN", "reject", value)
    said = slack.press("U0ANN", "reject", f"busy:{run}@{until.timestamp():.0f}")
    assert said == "ann rejected drain on gpu0003. Its remaining steps will not be done; what it did remains."


@pytest.mark.parametrize("verb", ["approve", "reject"])
def test_who_left_decides_nothing_until_they_are_back(slack: Slack, run: str, verb: str) -> None:
    value = run if verb == "approve" else f"by_hand:{run}"
    slack.api.token(Role.operator, name="ann")
    slack.api.services.leavers.end("ann", to=None, by="root", reason="left", request="r")
    assert "ann is not a person of this site" in slack.press("U0ANN", verb, value)
    slack.api.token(Role.operator, name="ann")
    assert f"ann {verb}" in slack.press("U0ANN", verb, value)


@pytest.mark.parametrize(
    ("user", "says"),
    [
        ("U0NOBODY", "healer does not know you"),
        ("U0VIC", "this requires the role operator; yours is viewer"),
        ("U0FAR", "there is no run"),
        ("", "healer does not know you"),
    ],
)
def test_unauthorized_users_get_the_reason(slack: Slack, run: str, user: str, says: str) -> None:
    slack.api.app.state.services.runs.approve = None  # nothing may get so far
    assert says in slack.press(user, "approve", run)


def test_the_answer_is_in_the_language_of_the_channel(slack: Slack, run: str) -> None:
    text = slack.press("U0VIC", "approve", run, channel={"id": "C0ZHIBAN"})
    assert text == "未做任何改动：需要 operator 角色；您的角色是 viewer。"
    assert "role" in slack.press("U0VIC", "approve", run, channel={"id": "C0OPS"})


def test_refused_approval_is_answered_with_its_reason(slack: Slack, run: str) -> None:
    def refuse(name: str, **_: Any) -> None:
        raise Conflict(f"run {name[:4]} is done: there is nothing to approve")

    slack.api.app.state.services.runs.approve = refuse
    assert slack.press("U0ANN", "approve", run).endswith("is done: there is nothing to approve")
    assert "there is no run" in slack.press("U0ANN", "approve", "0" * 32)


def test_request_without_a_valid_slack_signature_is_refused(slack: Slack, run: str) -> None:
    body = urlencode({"payload": json.dumps({"user": {"id": "U0ANN"}})}).encode()
    assert slack.send(body).status_code == 200
    assert slack.send(body, secret="another").status_code == 401
    assert slack.send(body, late_s=301).status_code == 401
    assert slack.send(body, late_s=-301).status_code == 401
    bare = slack.client.post(URL, content=body, headers=FORM)
    assert bare.status_code == 401
    headers = slack.api.headers("admin") | FORM
    assert slack.client.post(URL, content=body, headers=headers).status_code == 401
    for stamp in ("", "1e9", "-5", "9" * 40, "1 2"):
        signed = {"x-slack-request-timestamp": stamp, "x-slack-signature": "v0=00"} | FORM
        assert slack.client.post(URL, content=body, headers=signed).status_code == 401
    assert slack.replies == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"payload=",
        b"payload=[1]",
        b"payload=%7B",
        b"\xff\xfe",
        b"a=1&" * 40,
        b"payload=" + b"[" * 30_000,
    ],
)
def test_garbage_that_is_signed_is_an_error_of_the_field(slack: Slack, body: bytes) -> None:
    answer = slack.send(body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "payload"


def test_odd_presses_do_nothing(slack: Slack, run: str) -> None:
    for actions in (
        [],
        ["x"],
        [{"action_id": ["approve"], "value": run}],
        [{"action_id": "open", "value": run}],
        {},
    ):
        payload = {"user": {"id": "U0ANN"}, "actions": actions, "response_url": REPLY}
        assert slack.send(urlencode({"payload": json.dumps(payload)}).encode()).status_code == 200
    assert slack.replies == []
    assert slack.send(b"x" * 70_000).status_code == 413


def test_without_a_secret_there_are_no_buttons(served: Served) -> None:
    _, client = served
    answer = client.post(URL, content=b"payload={}", headers=FORM)
    assert answer.status_code == 404 and "HEALER_SLACK_SIGNING_SECRET" in answer.text


def test_slack_itself_says_how_it_signs(slack: Slack) -> None:
    """The example of Slack's documentation, byte for byte."""
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
        b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
        b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
        b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    made = hmac.new(SECRET.encode(), b"v0:1531420618:" + body, hashlib.sha256).hexdigest()
    assert made == "a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
    assert CLUSTER == "pod1"
