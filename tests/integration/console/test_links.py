"""Links of messages: for a day they show one run to anyone who has them, and allow no action."""

from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from fastapi.testclient import TestClient

from healer.model import About, Message, Role, RunState, Severity
from healer.ports.answers import RunRecord
from healer.telling.news import LINK_LASTS, is_valid_link, notice_of, sign_link
from tests.support.console_sample import NOW
from tests.support.console_site import LINK_SECRET, Site, make_sample

pytestmark = pytest.mark.heavy


@pytest.fixture
def site() -> Site:
    return Site(make_sample(32, past=20))


@pytest.fixture
def detail(site: Site) -> RunRecord:
    """One that waits for approval; its playbook has two steps."""
    waits = next(one for one in site.sample.runs.values() if one.run.state is RunState.waiting_approval)
    known = site.sample.details.values()
    judged = next(one.decisions for one in known if one.decisions and one.decisions[-1].answers)
    found = msgspec.structs.replace(
        waits, plan=("Drain the node", "Open a repair <ticket>"), decisions=judged
    )
    site.sample.runs[found.run.id] = found
    return found


def client(site: Site) -> TestClient:
    return TestClient(site.app, base_url="http://healer.test", follow_redirects=False)


def test_it_shows_the_run_without_signing_in(site: Site, detail: RunRecord) -> None:
    answer = client(site).get(sign_link(f"/runs/{detail.run.id}", LINK_SECRET, NOW))
    assert answer.status_code == 200 and answer.headers["cache-control"] == "no-store"
    page = answer.text
    assert detail.run.playbook in page and detail.run.reason in page
    assert "<li>Drain the node</li>" in page and "Open a repair &lt;ticket&gt;" in page
    assert all(one.guard in page for one in detail.decisions[-1].answers)
    assert f"/sign-in?next=%2Fruns%2F{detail.run.id}" in page
    assert "data-act" not in page and "<script" not in page


def test_one_who_is_signed_in_gets_the_whole_page(site: Site, detail: RunRecord) -> None:
    path = sign_link(f"/runs/{detail.run.id}", LINK_SECRET, NOW)
    page = client(site).get(path, headers={"Cookie": "healer_session=cookie-good"}).text
    assert "data-act" in page and "This link is read-only" not in page


def test_it_is_for_this_page_and_this_day_and_this_secret_alone(site: Site, detail: RunRecord) -> None:
    path = f"/runs/{detail.run.id}"
    other = next(one for one in site.sample.runs if one != detail.run.id)
    good = parse_qs(urlsplit(sign_link(path, LINK_SECRET, NOW)).query)["look"][0]
    stamp, signature = good.split(".")
    over = sign_link(path, LINK_SECRET, NOW - LINK_LASTS).partition("look=")[2]
    strange = sign_link(path, "another secret", NOW).partition("look=")[2]
    longer = f"{int(stamp) + 86400}.{signature}"
    web = client(site)
    assert web.get(path, params={"look": good}).status_code == 200
    bad_ones = ["", ".", stamp, f"{stamp}.", f".{signature}", f"-1.{signature}", f"{stamp}.é", over, strange]
    for bad in (*bad_ones, longer, f"{'9' * 40}.{signature}", good[:-1], "٣." + signature):
        answer = web.get(path, params={"look": bad})
        assert (answer.status_code, answer.headers["location"][:8]) == (303, "/sign-in"), bad
    for elsewhere in (f"/runs/{other}", "/", "/audit", "/runs"):
        assert web.get(elsewhere, params={"look": good}).status_code == 303


def test_a_token_that_sees_no_pages_sees_no_more_by_a_link(detail: RunRecord) -> None:
    site = Site(make_sample(32, past=20), role=Role.signals)
    site.sample.runs[detail.run.id] = detail
    path = sign_link(f"/runs/{detail.run.id}", LINK_SECRET, NOW)
    assert client(site).get(path, headers={"Cookie": "healer_session=cookie-good"}).status_code == 403


def test_messages_carry_it_where_there_is_a_secret() -> None:
    message = Message(
        id="m1", cluster="pod1", title="x", text="y", severity=Severity.P1, page=False, about=About(run="r1")
    )

    def link(secret: str | None) -> str:
        found = notice_of(message, NOW, page=False, console_url="https://healer.example/", link_secret=secret)
        return found.approve

    assert link(None) == "https://healer.example/runs/r1"
    url = urlsplit(link(LINK_SECRET))
    look = parse_qs(url.query)["look"][0]
    almost, over = (NOW + LINK_LASTS + timedelta(seconds=by) for by in (-1, 0))
    assert is_valid_link(url.path, look, LINK_SECRET, almost)
    assert not is_valid_link(url.path, look, LINK_SECRET, over)
    assert link(LINK_SECRET) == link(LINK_SECRET)  # a second try of the same message says the same
