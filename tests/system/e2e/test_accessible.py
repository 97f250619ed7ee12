"""Every page by the rules of WCAG that a machine can check (axe-core): wide and narrow, light and dark.

A picture of each is kept in `build/pages/`, for whoever wants to see what a change did to them.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import open_page, rules_broken, served
from tests.support.console_pages import NO_PAGES, pages, read_by_people
from tests.support.console_site import Site, make_sample, shipped

pytestmark = pytest.mark.browser

PICTURES = Path(__file__).parents[3] / "build" / "pages"


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


def test_what_is_wrong_is_seen(browser: Browser, site: Site, url: str) -> None:
    page = open_page(browser, url)
    page.goto(url + "/runs")
    page.evaluate(
        "document.querySelector('main').insertAdjacentHTML('beforeend', '<img src=/static/icon.svg>')"
    )
    page.evaluate("document.querySelector('h1').style.color = 'color-mix(in srgb, canvas, canvastext 10%)'")
    found = {one.partition(":")[0] for one in rules_broken(page)}
    assert found == {"image-alt", "color-contrast"}


@pytest.mark.parametrize(
    ("width", "scheme", "rules"),
    [(1280, "light", ()), (1280, "dark", ("color-contrast",)), (400, "light", ())],  # dark has other colours
)
def test_no_page_breaks_a_rule(
    browser: Browser, site: Site, url: str, width: int, scheme: str, rules: tuple[str, ...]
) -> None:
    page, found = open_page(browser, url, width=width, scheme=scheme), dict[str, list[str]]()
    for path in [*(one for some in pages(site).values() for one in some), *NO_PAGES]:
        page.goto(url + path)
        expect(page.locator("h1")).to_be_visible()
        if broken := rules_broken(page, *rules):
            found[path] = broken
        _keep(page, f"{width} {scheme} {path}")
    assert found == {}


def _keep(page: Page, name: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(
        path=PICTURES / f"{re.sub(r'[^a-z0-9]+', '-', name)[:40].strip('-')}.png",
        full_page=True,
        timeout=60_000,
    )
