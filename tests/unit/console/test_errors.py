"""An address that does not exist, or takes nothing of the kind: a page for people, a problem for programs."""

import re

import msgspec
import pytest
from fastapi.testclient import TestClient

from healer.console.errors import prefers_page
from healer.model import Role
from healer.ports.callers import SESSION_COOKIE
from healer.text.language import COOKIE as LANGUAGE
from tests.support.console_pages import BROWSER, NO_PAGES
from tests.support.console_site import Site, make_sample

PROBLEM = "application/problem+json"
FIREFOX = BROWSER["Accept"]


@pytest.fixture(scope="module")
def site() -> Site:
    return Site(make_sample(8))


def visitor(site: Site, *, signed_in: bool = True, accept: str = FIREFOX, language: str = "en") -> TestClient:
    cookies = {LANGUAGE: language} | ({SESSION_COOKIE: "cookie-good"} if signed_in else {})
    return TestClient(
        site.app,
        base_url="http://healer.test",
        follow_redirects=False,
        cookies=cookies,
        headers={"Accept": accept},
        raise_server_exceptions=False,
    )


def ways(page: str) -> list[tuple[str, str]]:
    main = page[page.index("<main") : page.index("</main>")]
    return re.findall(r'<a href="([^"]+)">([^<]+)</a>', main)


FLEET = ("/", "Go to fleet")


@pytest.mark.parametrize(
    ("path", "heading", "above"),
    [
        ("/nope", "Page not found", []),
        ("/%00", "Page not found", []),
        ("/incidents/", "Page not found", [("/incidents", "Go to incidents")]),
        ("/nodes/pod1/gpu9999", "Node not found", []),
        ("/jobs/pod1/none", "Job not found", []),
        ("/incidents/0123456789", "Incident not found", [("/incidents", "Go to incidents")]),
        ("/runs/none", "Run not found", [("/runs", "Go to runs")]),
        ("/playbooks/none", "Playbook not found", [("/playbooks", "Go to playbooks")]),
        ("/runbooks/none", "Runbook not found", [("/playbooks", "Go to playbooks")]),
        ("/?cluster=none", "Cluster not found", []),
        ("/static/none.js", "File not found", []),
    ],
)
def test_a_page_that_is_not_there_says_so_within_the_console(
    site: Site, path: str, heading: str, above: list[tuple[str, str]]
) -> None:
    answer = visitor(site).get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert answer.headers["cache-control"] == "no-store"
    assert f"<h1>{heading}</h1>" in answer.text
    assert ways(answer.text) == [*above, FLEET]
    assert 'id="nav"' in answer.text and 'id="strip"' in answer.text and "mara" in answer.text


@pytest.mark.parametrize("path", ["/nodes/pod1/gpu9999", "/jobs/pod1/9999"])
def test_a_node_or_a_job_is_missing_from_a_snapshot_or_there_is_none_yet(path: str) -> None:
    site = Site(make_sample(8))
    taken = re.search(
        r"Slurm snapshot of \d\d:\d\d:\d\d UTC has (no node|a job) ", visitor(site).get(path).text
    )
    assert taken is not None
    site.sample.standing = msgspec.structs.replace(site.sample.standing, snapshot=None)
    answer = visitor(site).get(path)
    assert answer.status_code == 404 and "No Slurm snapshot of cluster pod1 yet" in answer.text


def test_it_is_in_the_language_of_who_asks(site: Site) -> None:
    for path, heading, way in (
        ("/nope", "没有此页面", "前往机群"),
        ("/runs/none", "没有此执行", "前往执行"),
    ):
        answer = visitor(site, language="zh").get(path)
        assert answer.status_code == 404 and answer.headers["content-language"] == "zh-Hans"
        assert f"<h1>{heading}</h1>" in answer.text
        assert ways(answer.text)[0][1] == way


@pytest.mark.parametrize("path", NO_PAGES)
def test_visitor_without_a_session_is_sent_to_the_sign_in_page(site: Site, path: str) -> None:
    answer = visitor(site, signed_in=False).get(path)
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/sign-in?next={path.replace('/', '%2F')}"
    assert "mara" not in answer.text and "pod1" not in answer.text


@pytest.mark.parametrize(
    "accept", ["*/*", "application/json", "application/json, text/html;q=0.5", "image/png"]
)
def test_a_program_gets_a_problem(site: Site, accept: str) -> None:
    for signed_in in (True, False):
        answer = visitor(site, signed_in=signed_in, accept=accept).get("/nope")
        assert (answer.status_code, answer.headers["content-type"]) == (404, PROBLEM)
        assert answer.json()["code"] == "not_found"


@pytest.mark.parametrize(
    "path", ["/nodes/pod1/gpu9999", "/incidents/0123456789", "/runs/none", "/jobs/pod1/none"]
)
def test_a_program_that_asks_for_a_page_gets_what_it_takes(site: Site, path: str) -> None:
    answer = visitor(site, accept="application/json").get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (404, PROBLEM)
    assert answer.json()["detail"].endswith(".")
    assert visitor(site, accept="*/*").get(path).headers["content-type"] == "text/html; charset=utf-8"


def test_missing_script_resource_is_answered_with_a_problem(site: Site) -> None:
    scripts = visitor(site, accept="*/*")
    for path in ("/jobs/pod1/none/steps.json", "/incidents/0123456789/report.md", "/fleet.json?cluster=none"):
        answer = scripts.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (404, PROBLEM), path
    assert scripts.get("/static/none.js").headers["content-type"] == PROBLEM


@pytest.mark.parametrize("path", ["/api/v1/nope", "/api/v1"])
def test_api_errors_are_json_for_every_client(site: Site, path: str) -> None:
    answer = visitor(site).get(path)
    assert answer.status_code in {404, 405} and answer.headers["content-type"] == PROBLEM


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/language"), ("GET", "/sign-out"), ("POST", "/incidents")]
)
def test_a_wrong_method_is_a_page_with_the_way_back(site: Site, method: str, path: str) -> None:
    answer = visitor(site).request(method, path)
    assert (answer.status_code, answer.headers["content-type"]) == (405, "text/html; charset=utf-8")
    assert answer.headers["allow"] and FLEET in ways(answer.text)
    assert visitor(site, signed_in=False).request(method, path).status_code == 303
    answer = visitor(site, accept="*/*").request(method, path)
    assert (answer.status_code, answer.headers["content-type"]) == (405, PROBLEM)


def test_forbidden_request_is_answered_with_a_page(site: Site) -> None:
    other = {"Sec-Fetch-Site": "cross-site"}
    forms = [(path, who) for path in ("/language", "/sign-in") for who in (True, False)]
    for path, signed_in in [*forms, ("/sign-out", True)]:
        answer = visitor(site, signed_in=signed_in).post(path, headers=other)
        assert answer.status_code == 403 and "<h1>Cross-site request refused</h1>" in answer.text
        assert ("mara" in answer.text) is signed_in
    signals = visitor(Site(make_sample(4), role=Role.signals)).get("/nope")
    assert signals.status_code == 404 and "gpu" not in signals.text and 'id="nav"' not in signals.text
    page = visitor(Site(make_sample(4), role=Role.signals)).get("/")
    assert page.status_code == 403 and "<h1>Not allowed for this token</h1>" in page.text


def test_a_wrong_query_and_a_wrong_page_number_are_pages(site: Site) -> None:
    for path, status in (("/?page=x", 422), ("/incidents?cursor=x", 400)):
        answer = visitor(site).get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")


def test_a_failure_of_our_own_asks_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed may be the very reading that the page's head would need."""
    site = Site(make_sample(4))

    def away(*_: object) -> None:
        raise RuntimeError("the database is away")

    monkeypatch.setattr(site.queries.clusters, "state", away)
    answer = visitor(site).get("/")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "text/html; charset=utf-8")
    assert "<h1>Something went wrong</h1>" in answer.text and 'id="nav"' not in answer.text
    missing = visitor(site).get("/nope")
    assert missing.status_code == 404 and "<h1>Page not found</h1>" in missing.text
    assert 'id="nav"' not in missing.text


@pytest.mark.parametrize(
    ("accept", "usual", "page"),
    [
        (FIREFOX, False, True),
        ("text/html", False, True),
        ("text/*, */*;q=0.1", False, True),
        ("text/html, */*", False, True),
        ("", False, False),
        ("", True, True),
        ("*/*", False, False),
        ("*/*", True, True),
        ("application/json, text/html", False, False),
        ("application/json, text/plain, */*", True, False),
        ("application/problem+json, text/html;q=0.9", True, False),
        ("text/html;q=0, */*", True, False),
        ("text/html;q=nan", False, False),
        ("text/html;q=0.5;level=1, application/json;q=0.4", False, True),
        (",;;=,q=1", False, False),
    ],
)
def test_accept_header_decides_between_page_and_problem(accept: str, usual: bool, page: bool) -> None:
    assert prefers_page(accept, usual=usual) is page
