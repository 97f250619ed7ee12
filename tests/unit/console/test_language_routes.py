"""Choosing the language."""

import msgspec
import pytest
from fastapi.testclient import TestClient

from healer.console.render import _Texts
from healer.text.language import COOKIE
from tests.support.console_site import Site, make_sample

SIGNED_IN = {"healer_session": "cookie-good"}


@pytest.fixture(scope="module")
def site() -> Site:
    return Site(make_sample(8))


def visitor(site: Site, **cookies: str) -> TestClient:
    return TestClient(site.app, base_url="http://healer.test", follow_redirects=False, cookies=cookies)


@pytest.mark.parametrize(
    ("cookie", "accepts", "language"),
    [
        ("", "", "en"),
        ("", "zh-CN,zh;q=0.9,en;q=0.8", "zh-Hans"),
        ("en", "zh-CN,zh;q=0.9", "en"),
        ("zh", "en", "zh-Hans"),
        ("xx", "en", "en"),
    ],
)
def test_a_page_is_in_the_language_that_was_chosen_else_in_the_browsers(
    site: Site, cookie: str, accepts: str, language: str
) -> None:
    for path in ("/", "/incidents/0123456789", "/sign-in"):
        cookies = {**SIGNED_IN, COOKIE: cookie} if cookie else SIGNED_IN
        answer = visitor(site, **cookies).get(path, headers={"Accept-Language": accepts})
        assert answer.headers["content-language"] == language
        assert f'<html lang="{language}">' in answer.text


def test_the_switch_keeps_the_place_and_the_choice(site: Site) -> None:
    guest = visitor(site)
    answer = guest.post("/language", data={"to": "zh", "next": "/incidents?show=resolved&q=a b"})
    assert answer.status_code == 303 and answer.headers["location"] == "/incidents?show=resolved&q=a%20b"
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=zh;") and "SameSite=lax" in cookie and "Path=/" in cookie
    assert "登录" in guest.get("/sign-in").text
    guest.post("/language", data={"to": "en"})
    assert "登录" not in guest.get("/sign-in").text


def test_the_page_of_signing_in_comes_back_to_itself(site: Site) -> None:
    page = visitor(site).get("/sign-in?next=/runs%3Fstate%3Dheld")
    assert 'name="next" value="/sign-in?next=/runs%3Fstate%3Dheld"' in page.text
    page = visitor(site).get("/incidents", headers={"Cookie": "healer_session=cookie-good"})
    assert 'action="/language"><input type="hidden" name="next" value="/incidents">' in page.text


@pytest.mark.parametrize("target", ["//evil.test/", "https://evil.test/", "/\\evil.test", "evil", ""])
def test_the_switch_leads_nowhere_else(site: Site, target: str) -> None:
    answer = visitor(site).post("/language", data={"to": "zh", "next": target})
    assert answer.status_code == 303 and answer.headers["location"] == "/"


def test_no_other_site_chooses_and_no_other_language_is_taken(site: Site) -> None:
    foreign = visitor(site).post("/language", data={"to": "zh"}, headers={"Sec-Fetch-Site": "cross-site"})
    assert foreign.status_code == 403 and "set-cookie" not in foreign.headers
    assert "set-cookie" not in visitor(site).post("/language", data={"to": "tlh"}).headers


def test_map_uses_the_language_of_the_viewer(site: Site) -> None:
    here, there = visitor(site, **SIGNED_IN), visitor(site, **{**SIGNED_IN, COOKIE: "zh"})
    english, chinese = (one.get("/fleet.json?colour=verdict").json() for one in (here, there))
    assert english["nodes"] == chinese["nodes"] and english["tag"] == chinese["tag"]
    assert english["kinds"]["idle"][1] == chinese["kinds"]["idle"][3]


def test_reports_are_in_the_language_of_who_asks(site: Site) -> None:
    one = next(iter(site.sample.details))
    for path in (f"/incidents/{one}/report.md", "/reports/handover.md"):
        english = visitor(site, **SIGNED_IN).get(path).text
        chinese = visitor(site, **{**SIGNED_IN, COOKIE: "zh"}).get(path).text
        assert len(english.splitlines()) == len(chinese.splitlines()) and english != chinese


def test_chart_data_is_translated_but_keeps_its_names() -> None:
    texts = _Texts("zh")
    data = ({"name": "open", "help": "rejected", "labels": ("open", "gpu1"), "values": [1, None]},)
    wanted = ({"name": "open", "help": "已拒绝", "labels": ["未处理", "gpu1"], "values": [1, None]},)
    assert msgspec.json.encode(texts.within(data, "help", "labels")) == msgspec.json.encode(wanted)
    assert _Texts("en").within(data, "help") is data
