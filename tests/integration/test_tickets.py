"""All ticket systems against stand-ins that check what the real ones check and fail as they fail."""

import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from healer.adapters.tickets import calls
from healer.adapters.tickets.calls import Access
from healer.adapters.tickets.desk import DeskTickets, key_of, mark_of
from healer.adapters.tickets.github import GitHubDesk
from healer.adapters.tickets.jira import JiraDesk
from healer.adapters.tickets.servicenow import ServiceNowDesk
from healer.adapters.webhook import SignedWebhook, WebhookTickets
from healer.model import Severity, Ticket, TicketStage
from healer.ports.outbound import DeliveryFailed, Tickets
from tests.support import desks
from tests.support.desks import TOKEN, USER, Desk, serve_desk

MADE: dict[str, Callable[[], Desk]] = {
    "webhook": desks.SiteHook,
    "jira-cloud": lambda: desks.Jira(cloud=True),
    "jira-dc": lambda: desks.Jira(cloud=False),
    "github": desks.GitHub,
    "servicenow": desks.ServiceNow,
}
NAMES = {
    "webhook": "REPAIR-1", "jira-cloud": "OPS-1", "jira-dc": "OPS-1", "github": "site/repairs#1",
    "servicenow": "INC0000001",
}  # fmt: skip
#: Those that look before they write.
SYSTEMS = tuple(name for name in MADE if name != "webhook")
#: Where each creates: method and the end of the path.
CREATES = {
    "webhook": ("POST", "/tickets"), "jira-cloud": ("POST", "/issue"), "jira-dc": ("POST", "/issue"),
    "github": ("POST", "/issues"), "servicenow": ("POST", "/incident"),
}  # fmt: skip
NOTES = {
    "jira-cloud": ("POST", "/comment"), "jira-dc": ("POST", "/comment"), "github": ("POST", "/comments"),
    "servicenow": ("PATCH", ""),
}  # fmt: skip
SINCE = datetime.now(UTC) - timedelta(minutes=1)


@pytest.fixture(params=MADE)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def desk(name: str) -> Iterator[Any]:
    with serve_desk(MADE[name]()) as served:
        yield served
        assert served.complaints == []
        assert not served.fails
        assert not served.answers


systems = pytest.mark.parametrize("name", SYSTEMS)


def tickets(name: str, desk: Desk, *, timeout_s: float = 10, token: str = TOKEN, **more: Any) -> Tickets:
    if name == "webhook":
        return WebhookTickets(SignedWebhook(f"{desk.url}/tickets", token, timeout_s=timeout_s))
    known: dict[str, Any] = {"url": desk.url, "token": token, "timeout_s": timeout_s, **more}
    made: dict[str, Callable[[], Any]] = {
        "jira-cloud": lambda: JiraDesk(Access(project="OPS", user=USER, **known)),
        "jira-dc": lambda: JiraDesk(Access(project="OPS", **known)),
        "github": lambda: GitHubDesk(Access(project="site/repairs", **known)),
        "servicenow": lambda: ServiceNowDesk(Access(project="", user=USER, **known)),
    }
    return DeskTickets(made[name]())


def ticket(stage: str = "opened", **fields: Any) -> Ticket:
    known: dict[str, Any] = {
        "id": "1f2e3d4c:ticket" if stage == "opened" else f"1f2e3d4c:ticket:{stage}",
        "cluster": "pod1",
        "node": "gpu0017",
        "incident": "1f2e3d4c",
        "title": "P0 gpu0017, GPU 3: GPU fell off the bus",
        "text": "GPU 3 of gpu0017 fell off the bus (Xid 79, certain).\nEvidence: NVRM: Xid 79",
        "severity": Severity.P0,
        "since": SINCE,
    }
    return Ticket(stage=TicketStage(stage), **{**known, **fields})


def later(stage: str, text: str, **fields: Any) -> Ticket:
    return ticket(stage, text=text, **fields)


# --- one ticket, from its opening to its end ---------------------------------------------------------------


def test_an_incident_has_one_ticket_which_is_updated_and_closed_with_the_proof(name: str, desk: Desk) -> None:
    one = tickets(name, desk)
    ref = one.send(ticket())
    assert ref == NAMES[name]
    assert one.send(later("updated", "Now GPU 4 too", reference=ref)) == ref
    assert desk.open_tickets() == 1
    assert one.send(later("closed", "GPU 3 replaced, its tests passed", reference=ref)) == ref
    assert desk.open_tickets() == 0
    (text,) = desk.texts()
    for words in ("gpu0017, GPU 3", "fell off the bus", "Xid 79", "Now GPU 4 too", "tests passed"):
        assert words in text


def test_it_opens_again_when_the_fault_comes_back(name: str, desk: Desk) -> None:
    one = tickets(name, desk)
    ref = one.send(ticket())
    one.send(later("closed", "replaced", reference=ref))
    one.send(later("reopened", "it is back", reference=ref))
    assert desk.open_tickets() == 1
    one.send(later("closed", "replaced again", id="1f2e3d4c:ticket:closed:2", reference=ref))
    assert desk.open_tickets() == 0
    (text,) = desk.texts()
    assert "it is back" in text and "replaced again" in text


@pytest.mark.parametrize("stage", ["opened", "updated", "closed", "reopened"])
def test_every_delivery_may_come_twice(name: str, stage: str, desk: Desk) -> None:
    one = tickets(name, desk)
    ref = one.send(ticket())
    note = ticket() if stage == "opened" else later(stage, "what happened once", reference=ref)
    assert one.send(note) == one.send(msgspec.structs.replace(note, reference="")) == ref
    (text,) = desk.texts()
    # ServiceNow keeps the proof as its close notes as well.
    times = 0 if stage == "opened" else 2 if (name, stage) == ("servicenow", "closed") else 1
    assert text.count("what happened once") == times


def test_first_message_opens_the_ticket_even_if_it_is_a_later_stage(name: str, desk: Desk) -> None:
    one = tickets(name, desk)
    ref = one.send(later("closed", "replaced, its tests passed"))
    assert desk.open_tickets() == 0
    assert one.send(ticket()) == ref
    assert (len(desk.texts()), desk.open_tickets()) == (1, 0)


def test_two_incidents_have_two_tickets(name: str, desk: Desk) -> None:
    one = tickets(name, desk)
    first = one.send(ticket())
    assert one.send(ticket(id="1f2e3d4:ticket", incident="1f2e3d4")) != first
    assert len(desk.texts()) == 2


@systems
def test_a_ticket_names_its_cluster(name: str, desk: Desk) -> None:
    """Two clusters may each have a gpu0017, and a technician goes to one of them."""
    tickets(name, desk).send(ticket())
    assert "pod1: P0 gpu0017" in desk.texts()[0]


def test_a_person_may_close_it_before(name: str, desk: Desk) -> None:
    one = tickets(name, desk)
    ref = one.send(ticket())
    desk.edit(closed=True)
    one.send(later("updated", "still hot", reference=ref))
    assert desk.open_tickets() == 0  # what healer notes opens nothing again
    one.send(later("closed", "replaced", reference=ref))
    assert desk.open_tickets() == 0
    assert "replaced" in desk.texts()[0]


# --- after a crash, or an answer that was lost -------------------------------------------------------------


def test_created_but_the_line_was_cut_it_is_found_again(name: str, desk: Desk) -> None:
    desk.fails[CREATES[name]] = "taken"
    with pytest.raises(DeliveryFailed) as failed:
        tickets(name, desk).send(ticket())
    assert not failed.value.refused
    # Jira's search lags, so nothing is tried before it does not.
    assert failed.value.retry_after_s == (60.0 if name.startswith("jira") else None)
    assert tickets(name, desk).send(ticket()) == NAMES[name]
    assert len(desk.texts()) == 1


@systems
def test_created_but_answered_with_a_short_pause_it_is_looked_for_no_sooner(name: str, desk: Desk) -> None:
    """A proxy gave up on the answer, and says when it has room for another request: not when the search of
    the system shows what was created."""
    desk.fails[CREATES[name]] = (502, {"retry-after": "1"}, b"bad gateway")
    with pytest.raises(DeliveryFailed) as failed:
        tickets(name, desk).send(ticket())
    assert failed.value.retry_after_s == (60.0 if name.startswith("jira") else 1.0)
    desk.fails[CREATES[name]] = (429, {"retry-after": "1"}, {})
    with pytest.raises(DeliveryFailed) as failed:
        tickets(name, desk).send(ticket())
    assert failed.value.retry_after_s == 1.0


@systems
def test_noted_but_the_line_was_cut_it_is_not_noted_again(name: str, desk: Desk) -> None:
    one = tickets(name, desk)
    ref = one.send(ticket())
    path = "1".zfill(32) if name == "servicenow" else NOTES[name][1]
    desk.fails[NOTES[name][0], path] = "taken"
    note = later("updated", "what happened once", reference=ref)
    with pytest.raises(DeliveryFailed):
        one.send(note)
    one.send(note)
    assert desk.texts()[0].count("what happened once") == 1


@systems
def test_closed_but_the_line_was_cut_the_next_try_sees_that_it_is(name: str, desk: Desk) -> None:
    one = tickets(name, desk)
    ref = one.send(ticket())
    note = later("closed", "replaced", reference=ref)
    one.send(note)
    before = len(desk.asked)
    one.send(note)
    assert {method for method, _ in desk.asked[before:]} == {"GET"}


# --- failures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "words", "refused", "wait_s"),
    [
        ((500, {}, {}), "answered 500", False, None),
        ((502, {"content-type": "text/html"}, b"<html>"), "answered 502 Bad Gateway", False, None),
        ((503, {"retry-after": "17"}, {}), "answered 503", False, 17.0),
        ((429, {"retry-after": "90"}, {}), "answered 429", False, 90.0),
        ((400, {}, {}), "answered 400", True, None),
        ((401, {}, {}), "answered 401", True, None),
        ((403, {}, {}), "answered 403", True, None),
        ((404, {}, {}), "answered 404", True, None),
        ((302, {"location": "http://127.0.0.1:1/"}, {}), "answered 302", False, None),
        ("reset", "cannot be reached", False, None),
        ("silent", r"did not answer within 0\.3 s", False, None),
    ],
    ids=["500", "502", "503", "429", "400", "401", "403", "404", "302", "reset", "silent"],
)
def test_failure_is_reported_in_words_without_secrets(
    name: str, desk: Desk, caplog: pytest.LogCaptureFixture, answer: Any, words: str, refused: bool,
    wait_s: float | None,
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG)
    desk.answers.append(answer)
    with pytest.raises(DeliveryFailed, match=words) as failed:
        tickets(name, desk, timeout_s=0.3 if answer == "silent" else 10).send(ticket())
    assert (failed.value.refused, failed.value.retry_after_s) == (refused, wait_s)
    shown = str(failed.value) + repr(failed.value.__cause__) + caplog.text
    assert TOKEN not in shown
    assert desks.BASIC.split()[1] not in shown
    assert desk.texts() == []


@systems
def test_a_conflict_is_tried_again(name: str, desk: Desk) -> None:
    desk.fails[CREATES[name]] = (409, {}, {})
    with pytest.raises(DeliveryFailed, match="answered 409") as failed:
        tickets(name, desk).send(ticket())
    assert not failed.value.refused
    tickets(name, desk).send(ticket())
    assert len(desk.texts()) == 1


def test_wrong_token_is_reported_in_the_systems_own_words(name: str, desk: Desk) -> None:
    with pytest.raises(DeliveryFailed, match="answered 401") as failed:
        tickets(name, desk, token="wrong-but-not-to-be-told-either").send(ticket())
    assert failed.value.refused
    assert "wrong-but" not in str(failed.value)


@systems
@pytest.mark.parametrize("body", [b"<html>Sign in</html>", b"", b"[[1]]", b'"x"'])
def test_a_look_that_answers_no_json_opens_nothing(name: str, desk: Desk, body: bytes) -> None:
    desk.answers.append((200, {"content-type": "text/html"}, body))
    with pytest.raises(DeliveryFailed, match="answered 200, but not with a JSON") as failed:
        tickets(name, desk).send(ticket())
    assert not failed.value.refused
    assert desk.texts() == []


@systems
def test_a_creation_that_answers_no_json_is_looked_for_again(name: str, desk: Desk) -> None:
    desk.fails[CREATES[name]] = (201, {}, b"<html>")
    with pytest.raises(DeliveryFailed, match="answered 201, but not with a JSON object"):
        tickets(name, desk).send(ticket())
    desk.fails[CREATES[name]] = (201, {}, {"unexpected": True, "result": None})
    with pytest.raises(DeliveryFailed, match="did not return the ticket"):
        tickets(name, desk).send(ticket())


@systems
def test_a_delivery_ends_before_its_claim_does(
    name: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "BUDGET_S", 0.0)
    with pytest.raises(DeliveryFailed, match="did not finish its answer within 0 s"):
        tickets(name, desk).send(ticket())
    assert desk.asked == []


@systems
def test_an_answer_without_an_end_is_not_read(name: str, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_ANSWER_MAX", 10_000)
    desk.answers.append((200, {}, b"[" * 20_000))
    with pytest.raises(DeliveryFailed, match="does not end"):
        tickets(name, desk).send(ticket())
    assert desk.texts() == []


@systems
def test_deleted_ticket_is_not_reopened(name: str, desk: Desk) -> None:
    gone = {"github": "site/repairs#9", "servicenow": "INC0000009"}.get(name, "OPS-9")
    with pytest.raises(DeliveryFailed) as failed:
        tickets(name, desk).send(later("updated", "x", reference=gone))
    assert failed.value.refused
    assert desk.texts() == []


# --- texts from outside ------------------------------------------------------------------------------------


def test_hostile_and_long_text_is_accepted_and_mentions_no_one(name: str, desk: Desk) -> None:
    hostile = (
        "@everyone ```` ``` {noformat} [code]<b>[/code] [~admin] <script> \x00\x07\ud800\r\n显卡 "
        + "显" * 70_000
    )
    one = tickets(name, desk)
    if name == "webhook":
        hostile = hostile.replace("\ud800", "")  # what is queued has none (`healer.audit.storable`)
    ref = one.send(ticket(title=hostile, text=hostile))
    one.send(later("closed", hostile, title=hostile, reference=ref))
    assert (len(desk.texts()), desk.open_tickets()) == (1, 0)
    if isinstance(desk, desks.GitHub):
        body = desk.issues[0]["body"]
        assert body.startswith("`````text\n") and "\n`````\n" in body
    if isinstance(desk, desks.Jira) and not desk.cloud:
        assert desk.issues["OPS-1"]["fields"]["description"].count("{noformat}") == 2
    if isinstance(desk, desks.ServiceNow):
        assert "[code]" not in desk.records[0]["work_notes"]


def test_key_is_sent_unchanged_in_every_query() -> None:
    assert key_of(ticket()) == "healer-1f2e3d4c"
    odd = key_of(ticket(id='x" OR project = "SECRET^ORactive=true 1:ticket'))
    assert odd.removeprefix("healer-").isalnum() and len(odd) == 39
    assert mark_of("a") != mark_of("b")


# --- one by one --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["jira-cloud", "jira-dc"])
def test_jira_names_the_fields_that_it_refuses(name: str, desk: desks.Jira) -> None:
    with pytest.raises(
        DeliveryFailed, match="answered 400 Bad Request: issuetype: Specify a valid"
    ) as failed:
        tickets(name, desk, kind="Repair").send(ticket())
    assert failed.value.refused


@pytest.mark.parametrize("name", ["jira-cloud", "jira-dc"])
@pytest.mark.parametrize(
    ("required", "closes_by", "status", "resolution"),
    [(False, "", "Done", None), (True, "", "Done", "Fixed"), (False, "won't do", "Won't Do", None)],
)
def test_jira_closes_by_what_the_workflow_offers(
    name: str, desk: desks.Jira, required: bool, closes_by: str, status: str, resolution: str | None
) -> None:
    desk.resolution_required = required
    one = tickets(name, desk, closes_by=closes_by)
    one.send(later("closed", "replaced", reference=one.send(ticket())))
    issue = desk.issues["OPS-1"]
    assert (issue["status"]["name"], issue["resolution"]) == (status, resolution)


@pytest.mark.parametrize("name", ["jira-cloud"])
def test_jira_without_a_closing_transition_is_reported_and_the_proof_is_noted(
    name: str, desk: desks.Jira
) -> None:
    desk.only_ways = [{"id": "11", "name": "Start", "to": {"name": "x", "statusCategory": {"key": "new"}}}]
    one = tickets(name, desk)
    ref = one.send(ticket())
    why = "Jira has no transition to a closed status for OPS-1; available: Start"
    with pytest.raises(DeliveryFailed, match=why):
        one.send(later("closed", "tests passed", reference=ref))
    assert "tests passed" in desk.texts()[0]


@pytest.mark.parametrize("name", ["jira-cloud", "jira-dc"])
def test_jira_a_name_that_is_kept_needs_no_search(name: str, desk: desks.Jira) -> None:
    one = tickets(name, desk)
    ref = one.send(ticket())
    desk.indexed = False  # as it is for some seconds
    assert one.send(later("closed", "replaced", reference=ref)) == ref
    assert len(desk.issues) == 1


@pytest.mark.parametrize("name", ["github"])
@pytest.mark.parametrize(
    ("answer", "least_s", "most_s"),
    [
        ((403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "in 90 s"}, {"message": "rate"}), 80, 90),
        ((429, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1"}, {}), 1, 1),
        ((403, {}, {"message": "You have exceeded a secondary rate limit"}), 60, 60),
        ((403, {"retry-after": "30"}, {"message": "secondary"}), 30, 30),
        ((429, {}, {}), 60, 60),
        (
            (429, {"retry-after": "\xb2", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "\xb2"}, {}),
            60,
            60,
        ),
        ((403, {"retry-after": "Fri, 20 Nov 2020 03:00:30 GMT"}, {}), 0, 0),
    ],
)
def test_github_limits_are_waited_for(
    name: str, desk: Desk, answer: Any, least_s: float, most_s: float
) -> None:
    status, headers, body = answer
    if headers.get("x-ratelimit-reset") == "in 90 s":
        headers = {**headers, "x-ratelimit-reset": str(int(datetime.now(UTC).timestamp()) + 90)}
    desk.answers.append((status, headers, body))
    with pytest.raises(DeliveryFailed) as failed:
        tickets(name, desk).send(ticket())
    assert not failed.value.refused
    assert failed.value.retry_after_s is not None
    assert least_s <= failed.value.retry_after_s <= most_s


@pytest.mark.parametrize("name", ["github"])
def test_github_looks_through_all_that_is_newer_and_takes_no_pull_request(
    name: str, desk: desks.GitHub
) -> None:
    line = f"Ticket key: {key_of(ticket())}"
    desk.add("older than the incident", line + "0", datetime.now(UTC) - timedelta(days=90))
    desk.add("a pull request", line, pull_request={})
    desk.add("without a text", None)
    mine = desk.add("mine", f"```text\nx\n```\n\n{line}")
    for number in range(250):
        desk.add(f"other {number}", f"{line}{number}")
    assert tickets(name, desk).send(ticket()) == f"site/repairs#{mine['number']}"
    assert desk.searched == []


@pytest.mark.parametrize("name", ["github"])
def test_github_searches_where_the_list_is_too_long(name: str, desk: desks.GitHub) -> None:
    mine = desk.add("mine", f"x\n\nTicket key: {key_of(ticket())}", datetime.now(UTC) - timedelta(days=90))
    for number in range(100):
        desk.add(f"other {number}", "x")
    assert tickets(name, desk).send(ticket(since=None)) == f"site/repairs#{mine['number']}"
    desk.incomplete = True
    with pytest.raises(DeliveryFailed, match="returned incomplete results"):
        tickets(name, desk).send(ticket(since=None))
    assert len(desk.issues) == 101


@pytest.mark.parametrize("name", ["github"])
def test_github_number_belongs_to_the_repository_that_was_set_when_it_was_opened(
    name: str, desk: desks.GitHub
) -> None:
    desk.add("a person's issue, with the same number", "x")
    with pytest.raises(DeliveryFailed, match="404"):
        tickets(name, desk).send(later("closed", "tests passed", reference="site/before#1"))
    assert desk.open_tickets() == 1
    assert "tests passed" not in desk.texts()[0]


@pytest.mark.parametrize("name", ["github"])
def test_github_transferred_issue_gets_the_proof(name: str, desk: desks.GitHub) -> None:
    desk.add("transferred from site/before", "x")
    desk.moved["/repos/site/before/issues/7"] = f"{desk.url}/repositories/4711/issues/1"
    ref = "site/before#7"
    assert tickets(name, desk).send(later("closed", "tests passed", reference=ref)) == ref
    assert desk.open_tickets() == 0
    assert "tests passed" in desk.texts()[0]


@pytest.mark.parametrize("name", ["github"])
def test_github_redirect_to_another_host_does_not_get_the_token(name: str, desk: desks.GitHub) -> None:
    with serve_desk(desks.GitHub()) as other:
        desk.moved["/repos/site/before/issues/7"] = f"{other.url}/repositories/4711/issues/1"
        with pytest.raises(DeliveryFailed, match="301"):
            tickets(name, desk).send(later("closed", "tests passed", reference="site/before#7"))
        assert other.asked == []


@pytest.mark.parametrize("name", ["servicenow"])
def test_servicenow_table_without_the_key_gets_no_ticket_and_no_note(
    name: str, desk: desks.ServiceNow
) -> None:
    """ServiceNow leaves out a condition on a field that it lacks or healer may not read: each record fits."""
    assert tickets(name, desk).send(ticket(id="9", incident="99999999")) == "INC0000001"
    before, desk.lacks = desk.texts(), {"correlation_id"}
    one = tickets(name, desk)
    for stage in ("opened", "closed"):
        with pytest.raises(DeliveryFailed, match="does not filter incident by correlation_id") as failed:
            one.send(ticket(stage))
        assert failed.value.refused
    with pytest.raises(DeliveryFailed, match="does not filter incident by correlation_id"):
        one.check()
    assert desk.texts() == before


@pytest.mark.parametrize("name", ["servicenow"])
def test_servicenow_says_of_nothing_that_there_is_no_record(name: str, desk: desks.ServiceNow) -> None:
    desk.says_no_record = True
    assert tickets(name, desk).send(ticket()) == "INC0000001"


@pytest.mark.parametrize("name", ["servicenow"])
def test_servicenow_is_closed_when_its_record_says_so(name: str, desk: desks.ServiceNow) -> None:
    desk.keeps = {"state"}
    one = tickets(name, desk)
    ref = one.send(ticket())
    with pytest.raises(DeliveryFailed, match="left INC0000001 open: a rule of the site kept its state"):
        one.send(later("closed", "replaced", reference=ref))
    desk.keeps = set()
    one.send(later("closed", "replaced", reference=ref))
    record = desk.records[0]
    assert (record["state"], record["close_code"], record["close_notes"]) == (
        "6", "Solution provided", "replaced",
    )  # fmt: skip
    assert (record["urgency"], record["impact"], record["correlation_display"]) == ("1", "1", "healer")


@pytest.mark.parametrize("name", ["servicenow"])
def test_servicenow_takes_an_oauth_token_too(name: str, desk: desks.ServiceNow) -> None:
    one = DeskTickets(ServiceNowDesk(Access(url=desk.url, project="", token=TOKEN)))
    assert one.send(ticket()) == "INC0000001"
    assert one.check() == (
        "ServiceNow: reads incident; the first ticket will show whether healer can create tickets"
    )


# --- what doctor asks --------------------------------------------------------------------------------------


def test_a_check_opens_nothing_and_says_what_healer_may(name: str, desk: Desk) -> None:
    problem = tickets(name, desk).check()
    assert desk.texts() == []
    words = {
        "webhook": "site webhook",
        "jira-cloud": "Jira Cloud: can create a Task in OPS",
        "jira-dc": "Jira Data Center: can create a Task in OPS",
        "github": "GitHub: can create issues in site/repairs",
        "servicenow": "ServiceNow: reads incident; can create tickets through the role itil",
    }
    assert problem.startswith(words[name])


@pytest.mark.parametrize("name", ["jira-cloud", "jira-dc"])
def test_jira_says_what_healer_lacks(name: str, desk: desks.Jira) -> None:
    with pytest.raises(DeliveryFailed, match="OPS has no issue type Repair; available: Task, Bug"):
        tickets(name, desk, kind="Repair").check()
    desk.lacks = {"CREATE_ISSUES"}
    with pytest.raises(DeliveryFailed, match="healer lacks CREATE_ISSUES in OPS"):
        tickets(name, desk).check()


@pytest.mark.parametrize("name", ["github"])
def test_github_says_what_healer_lacks(name: str, desk: desks.GitHub) -> None:
    words = "Resource not accessible by personal access token"
    desk.fails["POST", "/issues"] = (403, {}, {"message": words})
    with pytest.raises(DeliveryFailed, match=words):
        tickets(name, desk).check()
    desk.about = {"has_issues": False}
    with pytest.raises(DeliveryFailed, match="has issues disabled"):
        tickets(name, desk).check()
    desk.about = {"archived": True}
    with pytest.raises(DeliveryFailed, match="archived"):
        tickets(name, desk).check()


@pytest.mark.parametrize("name", ["servicenow"])
@pytest.mark.parametrize("roles", [None, []])
def test_unreported_servicenow_rights_stay_unknown(name: str, desk: desks.ServiceNow, roles: Any) -> None:
    desk.roles = roles
    assert tickets(name, desk).check().endswith("will show whether healer can create tickets")
