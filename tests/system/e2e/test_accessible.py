"""Every page by the rules of WCAG that a machine can check (axe-core): wide and narrow, light and dark."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import open_page, rules_broken, served
from tests.support.console_pages import NO_PAGES, pages, read_by_people
from tests.support.console_site import Site, make_sample, shipped

pytestmark = pytest.mark.browser

WIDE = 1280
#: Set to a folder, pictures of all pages are kept there, to see what a change did to them.
PICTURES = "PICTURES"
#: Leaves of rows that differ only in their words and addresses the first one.
ONE_OF_EACH = """() => {
    const seen = new Set(), classes = (one) => one.tagName + "." + one.getAttribute("class")
    for (const row of document.querySelectorAll("tbody > tr, li")) {
        const around = row.closest("section, table, ul, ol")
        const form = [around, row, ...row.querySelectorAll("*")].map(classes).join()
        seen.has(form) ? row.remove() : seen.add(form)
    }
}"""


@pytest.fixture(scope="module")
def site() -> Site:
    shipped()  # read before a page waits for it
    return Site(make_sample(80, past=70))


@pytest.fixture(scope="module")
def url(site: Site) -> Iterator[str]:
    with served(site.app) as address:
        yield address


def test_every_page_is_looked_at(site: Site) -> None:
    assert set(pages(site)) == set(read_by_people(site.app))


def test_accessibility_check_finds_planted_violations(browser: Browser, site: Site, url: str) -> None:
    page = open_page(browser, url)
    page.goto(url + "/runs")
    page.evaluate(
        "document.querySelector('main').insertAdjacentHTML('beforeend', '<img src=/static/icon.svg>')"
    )
    page.evaluate("document.querySelector('h1').style.color = 'color-mix(in srgb, canvas, canvastext 10%)'")
    found = {one.partition(":")[0] for one in rules_broken(page)}
    assert found == {"image-alt", "color-contrast"}


@pytest.mark.parametrize("width", [1280, 400])
def test_no_page_breaks_a_rule(browser: Browser, site: Site, url: str, width: int) -> None:
    page, found = open_page(browser, url, width=width), dict[str, list[str]]()
    for path in [*(one for some in pages(site).values() for one in some), *NO_PAGES]:
        page.emulate_media(color_scheme="light")
        page.goto(url + path)
        expect(page.locator("h1")).to_be_visible()
        _keep(page, f"{width} light {path}")
        page.evaluate(ONE_OF_EACH)
        # The most costly rule: no colour depends on the width.
        broken = rules_broken(page, without=() if width == WIDE else ("color-contrast",))
        if width == WIDE:
            page.emulate_media(color_scheme="dark")  # it has other colours
            _keep(page, f"{width} dark {path}")
            broken += [f"dark: {one}" for one in rules_broken(page, "color-contrast")]
        if broken:
            found[path] = broken
    assert found == {}


def _keep(page: Page, name: str) -> None:
    if folder := os.environ.get(PICTURES):
        file = re.sub(r"[^a-z0-9]+", "-", name)[:40].strip("-")
        page.screenshot(path=Path(folder) / f"{file}.png", full_page=True, timeout=60_000)
