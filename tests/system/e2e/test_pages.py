"""Charts, heat map, node and rules pages in a real Chromium against the sample site."""

import csv
import re
from collections.abc import Iterator

import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import open_page, served
from tests.support.console_pages import incident_of
from tests.support.console_site import Site, make_sample, shipped
from tests.support.console_telemetry import SLOW_NODE
from tests.support.wait import wait_until

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def site() -> Site:
    shipped()  # read before a page waits for it
    return Site(make_sample(80))


@pytest.fixture(scope="module")
def url(site: Site) -> Iterator[str]:
    with served(site.app) as address:
        yield address


def drawn(page: Page, selector: str) -> int:
    """How many colours the canvas shows: a blank one has one."""
    return page.evaluate(
        """(selector) => {
            const canvas = document.querySelector(selector), pen = canvas.getContext("2d");
            const { data } = pen.getImageData(0, 0, canvas.width, canvas.height), found = new Set();
            for (let i = 0; i < data.length; i += 4) found.add([data[i], data[i + 1], data[i + 2]].join());
            return found.size;
        }""",
        selector,
    )


def open_heat_map(page: Page, url: str) -> None:
    page.goto(url + "/jobs/pod1/4711")
    height = "document.getElementById('heat-map').style.height"
    wait_until(lambda: page.evaluate(height), what="the heat map is drawn")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (400, "light")])
def test_pages_with_pictures_keep_their_policy_and_their_width(
    browser: Browser, site: Site, url: str, width: int, scheme: str
) -> None:
    page = open_page(browser, url, width=width, scheme=scheme)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    paths = [
        f"/incidents/{incident_of(site, 'straggler')}", f"/nodes/pod1/{SLOW_NODE}", "/nodes/pod1/gpu0003",
        f"/nodes/pod1/{SLOW_NODE}?signal=ib_symbol_error_total", "/jobs/pod1/4711", "/jobs/pod1/4712",
        "/jobs/pod1/4713", "/jobs/pod1/4714", "/rules", "/rules?q=nothing-fits", "/rules?show=unknown",
        "/signals", "/approvals", "/pauses", "/health", "/reports", "/reports/handover", "/playbooks",
        "/playbooks/gpu-fatal", "/runbooks/gpu-reset",
    ]  # fmt: skip
    for path in paths:
        page.goto(url + path)
        expect(page.locator("h1")).to_be_visible()
        for box in page.locator("[data-chart]").all():
            expect(box.locator("canvas")).to_be_visible()
        over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert over <= 0, f"{path} is {over} px wider than its window of {width} px"
    assert said == []


def test_an_incident_shows_its_charts_and_says_the_same_in_a_table(
    browser: Browser, site: Site, url: str
) -> None:
    page = open_page(browser, url)
    page.goto(f"{url}/incidents/{incident_of(site, 'straggler')}")
    expect(page.locator(".plot canvas")).to_have_count(3)
    assert drawn(page, "#chart-1-0 canvas") > 5
    chart = page.locator("figure", has=page.locator("#chart-1-0"))
    expect(page.locator("#chart-1-0")).to_have_attribute("role", "img")
    for word in ("began", "opened", "decided", "drained"):
        expect(chart.locator(".moments")).to_contain_text(word)
    chart.locator("summary").click()
    expect(chart.locator("table.figs tbody tr").first).to_contain_text("1,755 MHz")
    expect(page.locator(".why")).to_contain_text("sm_clock_worst")
    # Samples that came after the finding continue its own line: the clock recovered.
    expect(chart.locator("table.figs tbody tr").last).to_contain_text("unknown")


def test_a_page_that_looks_again_keeps_its_charts(browser: Browser) -> None:
    site = Site(make_sample(32))
    with served(site.app) as address:
        page = open_page(browser, address)
        key = incident_of(site, "straggler")
        page.goto(f"{address}/incidents/{key}")
        expect(page.locator("#live")).to_have_text("live")
        expect(page.locator(".plot canvas")).to_have_count(3)
        page.evaluate("document.querySelector('.plot canvas').dataset.same = 'yes'")
        detail = site.sample.details[key]
        site.sample.details[key] = msgspec.structs.replace(
            detail, incident=msgspec.structs.replace(detail.incident, acknowledged_by="mara")
        )
        site.say("incident", {"cluster": "pod1", "id": key})
        expect(page.locator(".facts")).to_contain_text("Acknowledged")
        expect(page.locator(".plot canvas")).to_have_count(3)
        expect(page.locator(".plot canvas[data-same=yes]")).to_have_count(1)


def test_the_heat_map_speaks_and_opens_a_node(browser: Browser, url: str) -> None:
    page = open_page(browser, url)
    page.goto(url + "/jobs/pod1/4711")
    wait_until(
        lambda: page.evaluate("document.getElementById('heat-map').style.height"), what="heat is drawn"
    )
    assert drawn(page, "#heat-map") > 5
    page.locator("#heat-map").focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("#say")).to_contain_text("rank 0, gpu0001 GPU 0 stage 0; step 12,519:")
    for _ in range(8):
        page.keyboard.press("ArrowDown")
    expect(page.locator("#say")).to_contain_text("rank 8, gpu0002 GPU 0")
    expect(page.locator("#say")).to_contain_text("s compute")
    page.keyboard.press("Home")
    expect(page.locator("#say")).to_contain_text("step 12,340")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("gpu0002")


def test_a_pointer_reads_the_heat_map(browser: Browser, url: str) -> None:
    page = open_page(browser, url)
    page.goto(url + "/jobs/pod1/4711")
    wait_until(
        lambda: page.evaluate("document.getElementById('heat-map').style.height"), what="heat is drawn"
    )
    page.locator("#heat-map").hover(position={"x": 600, "y": 60})
    expect(page.locator(".plot-box .tip")).to_contain_text("rank")


def test_job_with_few_signals_says_what_that_means(browser: Browser, url: str) -> None:
    page = open_page(browser, url)
    page.goto(url + "/jobs/pod1/4712")
    expect(page.locator("main")).to_contain_text("but not which rank")
    page.goto(url + "/jobs/pod1/4713")
    expect(page.locator("main")).to_contain_text("1,536 ranks: each row is a node")
    page.goto(url + "/jobs/pod1/4714")
    expect(page.locator("main")).to_contain_text("No step times from this job in the last 30 min.")


def test_another_signal_of_a_node_is_chosen_and_stays_in_the_address(browser: Browser, url: str) -> None:
    page = open_page(browser, url)
    page.goto(f"{url}/nodes/pod1/{SLOW_NODE}")
    expect(page.locator(".gpus tbody")).to_contain_text("pending")
    expect(page.locator("main")).to_contain_text("NVLink 11")
    page.select_option("#signal", "power_w")
    page.wait_for_url("**signal=power_w")
    expect(page.locator("#chart-signal")).to_have_attribute("aria-label", re.compile("W"))
    page.goto(f"{url}/nodes/pod1/gpu0003")
    expect(page.locator("main")).to_contain_text("No GPU metrics from this node in the last 15 min.")


def test_a_chart_of_the_reports_is_saved_as_picture_and_as_table(browser: Browser, url: str) -> None:
    page = open_page(browser, url, scheme="dark")
    page.goto(url + "/reports?from=2026-11-01&to=2026-11-20")
    expect(page.locator("svg[role=img]").first).to_be_visible()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save Incidents as PNG").click()
    size = saved.value.path().read_bytes()
    assert size.startswith(b"\x89PNG") and len(size) > 5000
    with page.expect_download() as saved:
        page.get_by_role("link", name="Download Incidents as CSV").click()
    lines = saved.value.path().read_text(encoding="utf-8-sig").splitlines()
    assert lines[0].startswith("Time (UTC),") and lines[1].startswith("2026-11-01,")
    assert saved.value.suggested_filename == "incidents-2026-11-01-2026-11-20.csv"
    figure = page.locator("figure", has_text="Opened, by class of fault")
    figure.locator("summary").press("Enter")
    expect(figure.locator("table.figs tbody tr").first).to_be_visible()


@pytest.mark.parametrize(
    ("path", "title", "lane"),
    [
        ("/incidents/{gpu-lost}", "The incident on one time axis", "Decisions"),
        ("/nodes/pod1/gpu0017", "The last year of gpu0017", "Incidents"),
    ],
)
def test_lanes_are_saved_as_picture_and_as_table(
    browser: Browser, site: Site, url: str, path: str, title: str, lane: str
) -> None:
    page = open_page(browser, url)
    page.goto(url + path.replace("{gpu-lost}", incident_of(site, "gpu-lost")))
    with page.expect_download() as saved:
        page.get_by_role("button", name=f"Save {title} as PNG").click()
    size = saved.value.path().read_bytes()
    assert size.startswith(b"\x89PNG") and len(size) > 5000
    with page.expect_download() as saved:
        page.get_by_role("link", name=f"Download {title} as CSV").click()
    rows = list(csv.reader(saved.value.path().read_text(encoding="utf-8-sig").splitlines()))
    assert rows[0] == ["Time (UTC)", "Until (UTC)", "Lane", "What"]
    assert lane in {row[2] for row in rows} and all(row[0].endswith("Z") for row in rows[1:])


def test_rules_are_searched_by_keys_and_lead_to_their_incidents(browser: Browser, url: str) -> None:
    page = open_page(browser, url)
    page.goto(url + "/")
    page.keyboard.press("g")
    page.keyboard.press("u")
    page.wait_for_url("**/rules*")  # until its scripts hear keys
    expect(page.locator("h1")).to_have_text("Rules")
    page.keyboard.press("/")
    page.keyboard.type("gpu-lost")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=gpu-lost")
    row = page.locator("tbody tr", has_text="xid-79")
    expect(row).to_contain_text("set by mara")
    row.locator(".c-time a").click()
    expect(page.locator("h1")).to_have_text("Xid 79: GPU fell off the bus")


def test_a_pause_of_a_rule_is_set_by_its_dialog(browser: Browser, site: Site, url: str) -> None:
    page = open_page(browser, url)
    page.goto(url + "/pauses")
    page.get_by_role("button", name="Pause a rule").click()
    page.select_option("#act-inputs [name=name]", "gpu-lost")
    page.select_option("#act-inputs [name=until]", label="ended manually")
    page.fill("#act-text", "false alarms")
    page.click("#act-go")
    expect(page.locator("#act")).to_be_hidden()
    route, body, _ = site.pressed[-1]
    wanted = {"scope": "rule", "cluster": "pod1", "name": "gpu-lost", "reason": "false alarms"}
    assert (route, body) == ("POST /api/v1/pauses", wanted)
