"""The second language in a real Chromium: the switch by keyboard, a page and its dialog, and back."""

import pytest
from playwright.sync_api import Browser, expect

from healer.text import quoted, say
from tests.support.browser import open_page, rules_broken
from tests.support.console_pages import incident_of, question_of
from tests.support.console_site import Site, make_sample
from tests.support.wait import wait_until

pytestmark = pytest.mark.browser


@pytest.fixture
def site() -> Site:
    return Site(make_sample(32))


def test_by_keyboard_to_chinese_through_a_dialog_and_back(browser: Browser, site: Site, url: str) -> None:
    page, wrong = open_page(browser, url), list[str]()
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if "Security Policy" in said.text else None)
    address = f"{url}/incidents/{incident_of(site, 'nvswitch-fatal')}"
    page.goto(address)
    page.locator(".who summary").focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="简体中文").focus()
    page.keyboard.press("Enter")

    expect(page.locator("html")).to_have_attribute("lang", "zh-Hans")
    assert page.url == address
    expect(page.locator("#h-why")).to_contain_text("依据")
    expect(page.locator("#live")).to_have_text("已连接")
    expect(page.locator(".lede time")).to_contain_text("前", timeout=10_000)  # the script refreshes it
    assert rules_broken(page) == []

    page.keyboard.press("p")
    preview = page.locator("#act-preview")
    expect(page.locator("#act-label")).to_have_text("原因")
    expect(preview).to_contain_text("护栏当前答复")
    expect(preview).to_contain_text("作业 4712（用户 bob）无法重启")
    page.locator("#act-go").click()
    expect(page.locator("#act-problem")).to_have_text("缺少原因：它会写入审计。")
    site.refuse = {
        "title": "A guard refuses", "status": 409, "code": "guard_refused", "guard": "floor", "limit": 28,
        "used": 27, "detail": "Closed.",
    }  # fmt: skip
    page.fill("#act-text", "链路已断")
    page.locator("#act-go").click()
    expect(page.locator("#act-problem")).to_contain_text("护栏 floor 拒绝。")
    expect(page.locator("#act-problem")).to_contain_text("已用 27 / 28")
    site.refuse = None
    page.locator("#act-go").click()
    expect(page.locator("#act")).to_be_hidden()
    assert site.pressed[-1][1] == {
        "reason": "链路已断",
        "approve_until": question_of(site, "nvswitch-fatal"),
    }

    page.goto(url + "/incidents")
    for key in "jxjxm":
        page.keyboard.press(key)
    expect(page.locator("#triage-title")).to_have_text("合并 2 个事件")
    page.keyboard.press("Escape")

    page.locator(".who summary").focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="English").focus()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Incidents")
    assert wrong == []


def test_problem_from_the_api_is_shown_in_chinese(browser: Browser, site: Site, url: str) -> None:
    page = open_page(browser, url)
    page.context.add_cookies([{"name": "healer_language", "value": "zh", "url": url}])
    page.goto(f"{url}/incidents/{incident_of(site, 'nvswitch-fatal')}")
    page.keyboard.press("p")
    page.fill("#act-text", "x")
    detail = say("api.body_not_json")
    site.refuse = {"title": quoted("Forbidden"), "status": 403, "detail": detail}
    page.locator("#act-go").click()
    expect(page.locator("#act-problem")).to_contain_text("无权操作。请求体不是 JSON")


def test_the_fleet_map_speaks_chinese(browser: Browser, url: str) -> None:
    page = open_page(browser, url, width=400)
    page.context.add_cookies([{"name": "healer_language", "value": "zh", "url": url}])
    page.goto(url + "/")
    # Not in the page: its policy lets no text be run there, and playwright's own waiting is one.
    wait_until(lambda: page.evaluate("performance.getEntriesByName('map').length"), what="the map is drawn")
    page.locator("#map").focus()
    page.keyboard.press("End")
    expect(page.locator("#tip")).to_contain_text("8 个 GPU")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
