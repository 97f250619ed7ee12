"""Messages to people: their deliveries and retries; and the buttons Approve and Reject under one in Slack,
for people whom the site names.

Slack signs each press with the app's signing secret
(https://api.slack.com/authentication/verifying-requests): `v0=` and hex of HMAC-SHA256 over
`v0:TIMESTAMP:BODY`, five minutes old at most. Slack says who pressed; only `people` in
rules/notifications.yaml says who that is to healer and what they may do.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any
from urllib.parse import parse_qs

import msgspec
import structlog
from fastapi import APIRouter, Depends, Query, Request
from starlette.background import BackgroundTask
from starlette.responses import Response

from healer.api.access import ALLOWED, Responder, Viewer, check_served, clusters_shown, confine
from healer.api.acting_routes import switches_power
from healer.api.documents import answers
from healer.api.problems import Problem, field_error
from healer.api.request_fields import Cursor, Id, Limit, Name, Reason, Word, once
from healer.api.responses import answer
from healer.api.services import Services, services_of
from healer.model import REJECTIONS, ChannelKind, Delivery, DeliveryState, Role, Run, RunState, asked_of
from healer.ports.answers import Page
from healer.ports.callers import Caller
from healer.ports.directory import UNPROVEN
from healer.ports.request_errors import Conflict, Forbidden, GuardRefused, NotFound, Unavailable
from healer.text import in_language, said_by, say

router = APIRouter()


class RetryBody(Reason):
    """`channel`: only that one; else all that failed."""

    # Part of its name in the OpenAPI document, from which clients are generated: there are two of this name.
    __module__ = "healer.api.messages"

    channel: Word | None = None


class Retried(msgspec.Struct, frozen=True, kw_only=True):
    """The deliveries that are due again."""

    items: list[Delivery]


@dataclass
class MessageFilter:
    state: Annotated[list[DeliveryState] | None, Query()] = None
    channel: Name = None
    incident: Name = None
    cluster: Name = None
    limit: Limit = 50
    cursor: Cursor = None


@router.get("/messages", tags=["reading"], responses=answers(Page[Delivery], "deliveries, newest first"))
def messages(request: Request, caller: Viewer, wanted: Annotated[MessageFilter, Depends()]) -> Response:
    """Each message at each sink, with every attempt. `state=failed` are the dead letters."""
    page = services_of(request).messages.page(
        clusters=clusters_shown(request, caller, wanted.cluster),
        state=wanted.state or (),
        channel=wanted.channel,
        incident=wanted.incident,
        limit=wanted.limit,
        cursor=wanted.cursor,
    )
    return answer(request, page)


@router.post(
    "/messages/{id}/retry", tags=["acting"], responses=answers(Retried, "what is delivered once more")
)
def retry(request: Request, caller: Responder, id: Id, body: RetryBody) -> Response:
    """Delivers a dead letter once more; 409 where nothing of it failed."""
    services = services_of(request)
    confine(request, caller, cluster=services.messages.cluster_of(id))

    def act(_: str) -> Response:
        found = services.messages.retry(
            id, channel=body.channel, by=caller.name, reason=body.reason, now=services.clock.now()
        )
        return answer(request, Retried(items=list(found)))

    return once(request, caller, body, act)


log = structlog.get_logger()
FRESH = timedelta(minutes=5)
BODY_MAX = 65_536
_RUN_MAX = 64
FILE = "rules/notifications.yaml"


class Press:
    """One press: whose, which button, on which run. `key` is the same if Slack sends it again."""

    def __init__(self, payload: Mapping[str, Any]) -> None:
        actions = payload.get("actions")
        action = actions[0] if isinstance(actions, list) and actions and isinstance(actions[0], dict) else {}
        self.user = _text(_inner(payload, "user").get("id"))
        self.channel = _text(_inner(payload, "channel").get("id"))
        self.reply_url = _text(payload.get("response_url"))
        self.verb = _text(action.get("action_id"))
        value = _text(action.get("value")) or _text(_inner(action, "selected_option").get("value"))
        self.why, _, run = value.rpartition(":")
        run, _, self.asked = run.partition("@")
        self.run = run[:_RUN_MAX]
        parts = ("slack", self.user, _text(action.get("action_ts")), self.verb, self.run)
        self.key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _inner(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = data.get(name)
    return found if isinstance(found, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) and value.isprintable() else ""


@router.post("/chat/slack", tags=["acting"])
async def slack(request: Request) -> Response:
    """A press of a button in Slack, signed by Slack. The outcome is sent to the person in Slack."""
    services = services_of(request)
    body = await _body(request)
    _check_signature(services, request.headers, body)
    press = Press(_payload(body))
    if press.verb not in ("approve", "reject") or not press.run:
        return Response()  # a link button, or another app's block: nothing to do
    return Response(background=BackgroundTask(_answer, services, press))


async def _body(request: Request) -> bytes:
    found = bytearray()
    async for part in request.stream():
        found += part
        if len(found) > BODY_MAX:
            raise Problem(413, say("api.press_too_large", most=BODY_MAX))
    return bytes(found)


def _check_signature(services: Services, headers: Mapping[str, str], body: bytes) -> None:
    """404 without a secret. Everything else that is wrong gets the same answer."""
    secret = services.slack_secret
    if secret is None:
        raise Problem(404, say("api.slack_no_secret"))
    stamp, given = headers.get("x-slack-request-timestamp", ""), headers.get("x-slack-signature", "")
    fresh = stamp.isascii() and stamp.isdigit() and len(stamp) < 12
    fresh = fresh and abs(services.clock.now().timestamp() - int(stamp)) <= FRESH.total_seconds()
    made = hmac.new(secret.encode(), b"v0:" + stamp.encode() + b":" + body, hashlib.sha256).hexdigest()
    if not fresh or not hmac.compare_digest(f"v0={made}".encode(), given.encode()):
        raise Problem(401, say("api.slack_not_signed"))


def _payload(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(parse_qs(body.decode(), max_num_fields=10)["payload"][0])
    except (ValueError, KeyError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise field_error("payload", say("api.json_object"))
    return found


def _answer(services: Services, press: Press) -> None:
    """Runs after the response, which Slack wants within 3 s."""
    try:
        text = press_done(services, press)
    except (Conflict, Forbidden, NotFound, Unavailable) as error:
        text = say("api.nothing_changed", error=said_by(error))
    except GuardRefused as error:
        text = say("api.press_guard", guard=error.answer.guard, why=error.answer.why)
    except Exception:
        log.exception("Slack button failed", run=press.run)
        text = say("api.press_failed")
    services.tell_slack(press.reply_url, in_language(text, _language_of(services, press)))


def _language_of(services: Services, press: Press) -> str:
    """The language of the channel where the button was pressed."""
    for channel in services.rules().notifications.channels:
        if channel.kind is ChannelKind.slack and channel.channel == press.channel:
            return channel.language
    return "en"


def press_done(services: Services, press: Press) -> str:
    """The outcome in one sentence. Raises what the runs raise."""
    people = services.rules().notifications.people
    person = next((person for person in people if person.slack == press.user), None)
    if person is None:
        return say("api.press_unknown", file=FILE)
    run = services.queries.runs.find(press.run)
    if run is None or (person.clusters and run.cluster not in person.clusters):
        return say("api.press_no_run", run=press.run[:12])
    if person.role not in ALLOWED[Role.operator]:
        return say("api.press_role", role=person.role)
    _check_has_not_left(services, person.name)
    check_served(services, run.cluster)
    caller = Caller(id=f"slack:{press.user}", name=person.name, role=person.role)
    if press.asked != asked_of(run) and run.state is RunState.waiting:
        raise Conflict(say("engine.asks_another", run=_named(run)))
    if press.verb == "approve":
        playbook = services.rules().playbooks.get(run.playbook)
        if switches_power(playbook) and (where := _proves_at(services, person.name)):
            return say("api.sign_in_again_for_power", where=where)
        reason = say("api.approved_in_slack")
        done = services.runs.approve(
            run.id, by=caller.name, reason=reason, request=press.key, until=run.approve_until
        )
        named = {"name": caller.name, "run": _named(done)}
        if done.state is RunState.held and done.question:
            return say("api.press_approved_held", **named, why=done.question)
        return say("api.press_approved", **named)
    reason = say("api.rejected_in_slack", why=REJECTIONS.get(press.why, say("api.no_reason")))
    done = services.runs.reject(run.id, by=caller.name, reason=reason, request=press.key)
    named = {"name": caller.name, "run": _named(done)}
    at_step = run.state is RunState.waiting
    return say("api.press_rejected_step", **named) if at_step else say("api.press_rejected", **named)


def _check_has_not_left(services: Services, name: str) -> None:
    """Raises Forbidden. A person who left may still have Slack, and may still be in the file."""
    person = services.people.find(name)
    if person is not None and person.seen_at == UNPROVEN:
        raise Forbidden(say("engine.unknown_approves", name=name))


def _proves_at(services: Services, name: str) -> str:
    """Where this person signs in again; empty: nowhere at this site."""
    if services.sign_in is not None:
        return "/auth/begin?again=true"
    return "/sign-in" if services.accounts is not None and services.accounts.book.find(name) else ""


def _named(run: Run) -> str:
    return say(
        "api.playbook_on_node",
        playbook=run.playbook,
        node=run.node or say("console.runs_job", job=run.job),
    )
