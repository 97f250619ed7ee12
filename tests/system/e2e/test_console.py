"""The console in a real Chromium against a site whose API remembers what was pressed."""

import threading
from itertools import pairwise

import msgspec
import pytest
from playwright.sync_api import Browser, Route, expect

from healer.model import IncidentState, Role, Verdict
from tests.support import console_sample
from tests.support.browser import open_page, served
from tests.support.console_pages import incident_of, question_of
from tests.support.console_sample import NOW
from tests.support.console_site import CSRF, Site, make_sample
from tests.support.wait import wait_until

pytestmark = pytest.mark.browser


@pytest.fixture
def site() -> Site:
    return Site(make_sample(32, past=70))


def paths(site: Site) -> list[str]:
    run = next(iter(site.sample.runs))
    return [
        "/",
        "/?q=nothing-fits",
        "/?colour=temperature",
        "/incidents",
        "/incidents?show=resolved",
        "/incidents?severity=P0&show=all&q=gpu0009",
        *(
            f"/incidents/{incident_of(site, rule)}"
            for rule in ("gpu-lost", "gpu-remap-failed", "gpu-application")
        ),
        "/runs",
        f"/runs/{run}",
        "/audit",
        "/nodes/pod1/gpu0017",
        "/sign-in",
    ]


def test_names_of_the_strip_do_not_touch_on_a_phone(browser: Browser, url: str) -> None:
    page = open_page(browser, url, width=390)
    page.goto(url)
    edges = page.evaluate("""() => [...document.querySelectorAll(".figures dt")].map((name) => {
        const range = document.createRange();
        range.selectNodeContents(name);
        const box = range.getBoundingClientRect();
        return [Math.round(name.getBoundingClientRect().top), box.left, box.right];
    })""")
    beside = [(one, other) for one, other in pairwise(edges) if one[0] == other[0]]
    assert beside and all(other[1] - one[2] >= 8 for one, other in beside), edges


@pytest.mark.parametrize("width", [1280, 1101, 853, 320])
def test_no_page_breaks_its_policy_or_its_width(browser: Browser, site: Site, url: str, width: int) -> None:
    page = open_page(browser, url, width=width)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
    for path in paths(site):
        page.goto(url + path)
        expect(page.locator("h1")).to_be_visible()
        over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert over <= 0, f"{path} is {over} px wider than its window of {width} px"
    assert said == []


@pytest.mark.parametrize("width", [1280, 320])
def test_long_names_and_reasons_are_seen_to_their_ends(
    browser: Browser, site: Site, url: str, width: int
) -> None:
    """Host names of 63 letters differ in their last ones; a reason may be an address without a space."""
    shown, long = site.sample.standing.snapshot, f"gpu-{'x' * 55}0009"
    assert shown is not None
    reason = f"see https://tickets.example/{'y' * 900}"
    bad = msgspec.structs.replace(
        shown.nodes["gpu0026"], name=long, reason=reason, partitions=("z" * 60,), rack="r" * 40
    )
    job = msgspec.structs.replace(shown.jobs["4711"], name="j" * 200, user="u" * 60, nodes=(long,))
    site.sample.standing = msgspec.structs.replace(
        site.sample.standing,
        snapshot=msgspec.structs.replace(
            shown, nodes={**shown.nodes, long: bad}, jobs={**shown.jobs, "4711": job}
        ),
    )
    for key, record in site.sample.runs.items():
        run = msgspec.structs.replace(record.run, node=long, by="mara", reason=reason)
        site.sample.runs[key] = msgspec.structs.replace(record, run=run)
    for key, detail in site.sample.details.items():
        one = detail.incident
        place = msgspec.structs.replace(one.root, node=long)
        site.sample.details[key] = msgspec.structs.replace(
            detail,
            incident=msgspec.structs.replace(one, root=place, nodes=dict.fromkeys([long], Verdict.isolate)),
            runs=tuple(site.sample.runs[record.run.id] for record in detail.runs),
        )
    page, run = open_page(browser, url, width=width), next(iter(site.sample.runs))
    incident = incident_of(site, "gpu-lost")
    for path in (
        f"/?q={long}", "/incidents", f"/incidents/{incident}", "/runs", f"/runs/{run}", "/approvals",
        f"/nodes/pod1/{long}", "/jobs/pod1/4711", "/reports/handover",
    ):  # fmt: skip
        page.goto(url + path)
        expect(page.locator("h1")).to_be_visible()
        ends = page.locator("main").evaluate(
            """(main) => {
                const walk = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
                const part = document.createRange(), apart = ".vh, .tabs, .scroll, svg, thead";
                let most = 0;
                while (walk.nextNode()) {
                    const inside = walk.currentNode.parentElement;
                    if (inside.closest(apart) || !inside.checkVisibility()) continue;
                    part.selectNodeContents(walk.currentNode);
                    most = Math.max(most, part.getBoundingClientRect().right);
                }
                return most;
            }"""
        )
        over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert over <= 0 and ends <= width, f"{path}: text ends at {ends:.0f} px of {width} px"


def test_a_printed_incident_has_the_guards_of_each_decision(browser: Browser, site: Site, url: str) -> None:
    page = open_page(browser, url, width=718)  # A4 within its margins
    page.emulate_media(media="print")
    page.goto(f"{url}/incidents/{incident_of(site, 'gpu-lost')}")
    expect(page.locator(".timeline")).to_contain_text("15 guards checked")
    expect(page.locator(".timeline table.guards")).to_be_visible()
    for screen in (page.locator("#nav"), page.get_by_role("button"), page.get_by_text("Data table")):
        expect(screen.locator("visible=true")).to_have_count(0)


def test_a_tag_of_two_lines_begins_on_the_first_line_of_its_row(browser: Browser, url: str) -> None:
    """By its last line it pushes the other cells down: in Firefox over the edge of the row."""
    page = open_page(browser, url, width=1268)
    page.goto(url + "/nodes/pod1/gpu0001")
    row = page.locator(".list tbody tr").first
    tag, severity = row.locator(".tag").bounding_box(), row.locator(".sev").bounding_box()
    assert tag and severity and tag["height"] > 30
    assert abs(tag["y"] - severity["y"]) < 6


def test_forced_colors_leave_what_only_a_color_shows(browser: Browser, url: str) -> None:
    page = open_page(browser, url)
    page.emulate_media(forced_colors="active")
    page.goto(url + "/")
    seen = page.evaluate(
        """() => {
            const styleOf = (selector) => getComputedStyle(document.querySelector(selector));
            const of = (first, key) => (one) => styleOf(`${first} ${one}`)[key];
            const chosen = ["[aria-current]", "a:not([aria-current])"];
            return {
                keys: [".busy", ".out_healer"].map(of("#legend", "backgroundColor")),
                pages: chosen.map(of("#nav", "borderBottomColor")),
                colors: chosen.map(of("#colours", "backgroundColor")),
            };
        }"""
    )
    for what, (one, other) in seen.items():
        assert one != other, what


def test_a_page_without_scripts_says_that_its_buttons_do_nothing(
    browser: Browser, site: Site, url: str
) -> None:
    context = browser.new_context(java_script_enabled=False)
    context.add_cookies([{"name": "healer_session", "value": "cookie-good", "url": url}])
    page = context.new_page()
    for path in ("/approvals", f"/incidents/{incident_of(site, 'gpu-lost')}"):
        page.goto(url + path)
        expect(page.locator("noscript p")).to_be_visible()
    context.close()


def test_a_hostile_kernel_line_stays_text(browser: Browser, site: Site, url: str) -> None:
    page = open_page(browser, url)
    page.goto(f"{url}/incidents/{incident_of(site, 'gpu-application')}")
    expect(page.locator("pre")).to_contain_text("name=<script>alert(1)</script>")
    assert page.locator("script:not([src])").count() == 0


def test_sign_in_link_works_once(browser: Browser, url: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(url + "/incidents")
    expect(page.locator("h1")).to_have_text("Sign in")
    page.goto(url + "/sign-in?token=good&next=/incidents")
    page.goto(url + "/sign-in?token=good&next=/incidents")  # a preview before it uses nothing up
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("h1")).to_have_text("Incidents")
    cookie = next(one for one in context.cookies() if one.get("name") == "healer_session")
    assert cookie.get("httpOnly") and cookie.get("sameSite") == "Lax"
    context.clear_cookies()
    page.goto(url + "/sign-in?token=good")
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("h1")).to_have_text("This link no longer works")
    context.close()


def test_a_second_press_while_a_form_is_on_its_way_sends_it_once(
    browser: Browser, site: Site, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it carries is used up by the first one: a link, a code, the sealed secret."""
    context = browser.new_context()
    page, sign_in = context.new_page(), site.sign_in
    began, may_answer = threading.Event(), threading.Event()

    def sign_in_slowly(token: str, address: str) -> str | None:
        cookie = sign_in(token, address)
        began.set()
        may_answer.wait(8)
        return cookie

    monkeypatch.setattr(site, "sign_in", sign_in_slowly)
    page.goto(url + "/sign-in?token=good&next=/incidents")
    button = page.get_by_role("button", name="Sign in").bounding_box()
    assert button is not None
    place = button["x"] + 5, button["y"] + 5
    page.mouse.click(*place)
    wait_until(began.is_set, what="the server has the form")
    page.mouse.click(*place)
    may_answer.set()
    expect(page.locator("h1")).to_have_text("Incidents")
    context.close()


def test_sign_in_by_form_and_sign_out(browser: Browser, site: Site, url: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(url + "/sign-in")
    page.fill("#token", "good")
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("h1")).to_have_text("Fleet")
    page.locator(".who .menu summary").click()
    page.get_by_role("button", name="Sign out").click()
    expect(page.locator("h1")).to_have_text("Sign in")
    assert site.ended == ["cookie-good"]
    context.close()


def test_keys_move_open_search_and_help(browser: Browser, url: str) -> None:
    page = open_page(browser, url)
    page.goto(url + "/incidents")
    expect(page.locator("tbody tr").first).to_contain_text("P0")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(page.locator("tr.at")).to_have_count(1)
    first = page.locator("tr.at a").first.inner_text()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(first)
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#help")).to_be_hidden()
    page.keyboard.press("g")
    page.keyboard.press("a")
    expect(page.locator("h1")).to_have_text("Audit")
    page.keyboard.press("/")
    expect(page.locator("#q")).to_be_focused()


def test_the_queue_is_worked_by_keys_and_shows_what_healer_confirmed(
    browser: Browser, site: Site, url: str
) -> None:
    page = open_page(browser, url)
    page.goto(url + "/incidents")
    for key in "jxjx":
        page.keyboard.press(key)
    expect(page.locator("#bulk-count")).to_have_text("2 selected")
    ids = [row.get_attribute("data-row") for row in page.locator("#list tbody tr").all()[:2]]
    page.keyboard.press("a")
    page.keyboard.press("Enter")
    expect(page.locator("#bulk-said")).to_have_text("2 of 2 acknowledged.")
    assert [one[0] for one in site.pressed] == [f"POST /api/v1/incidents/{one}/acknowledge" for one in ids]
    expect(page.locator(f"tr[data-row='{ids[0]}'] .c-who")).to_have_text("mara")
    expect(page.locator("#bulk")).to_be_hidden()

    for one in ids:
        page.locator(f"input[value='{one}']").check()
    site.refuse = {"title": "Conflict", "detail": "the incident is already resolved", "status": 409}
    page.keyboard.press("m")
    page.fill("#triage-reason", "one cause")
    page.click("#triage-go")
    expect(page.locator("#triage-list")).to_contain_text("the incident is already resolved")
    site.refuse = None
    page.click("#triage-go")
    expect(page.locator("#bulk-said")).to_have_text("1 of 1 merged.")
    assert site.pressed[-1][1] == {"into": ids[0], "reason": "one cause"}
    expect(page.locator(f"tr[data-row='{ids[1]}']")).to_have_count(0)
    page.goto(f"{url}/incidents/{ids[0]}")
    expect(page.locator("#h-merged")).to_contain_text("1 incident")


def test_closing_the_dialog_stops_the_work_on_a_selection_and_shows_how_far_it_came(
    browser: Browser, site: Site, url: str
) -> None:
    page = open_page(browser, url)
    page.goto(url + "/incidents")
    under_way: list[Route] = []

    def hold(route: Route) -> None:
        under_way.append(route)

    page.route("**/acknowledge", hold)
    count = page.locator("#list td.pick input").count()
    page.keyboard.press("X")
    page.keyboard.press("a")
    with page.expect_request("**/acknowledge"):
        page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    expect(page.locator("#triage")).to_be_hidden()
    under_way[0].continue_()
    expect(page.locator("#bulk-said")).to_have_text(f"Stopped: 1 of {count} acknowledged.")
    expect(page.locator("#bulk-count")).to_have_text(f"{count - 1} selected")
    assert len(site.pressed) == 1


def test_an_incident_is_merged_into_another_from_its_own_page(browser: Browser, site: Site, url: str) -> None:
    page = open_page(browser, url)
    here, other = incident_of(site, "gpu-lost"), incident_of(site, "nvswitch-fatal")
    page.goto(f"{url}/incidents/{here}")
    page.click("button:has-text('Merge into')")
    page.fill("#act-text", "one cause")
    page.locator("#act-go").click()
    expect(page.locator("#act-problem")).to_contain_text("Incident to keep")
    assert site.pressed == []
    page.select_option("select[name=into]", other)
    page.locator("#act-go").click()
    expect(page.locator("dt:has-text('Merged into') + dd")).to_have_text(other[:8])
    path, body, _ = site.pressed[-1]
    assert (path, body) == (f"POST /api/v1/incidents/{here}/merge", {"into": other, "reason": "one cause"})


def test_approval_shows_its_effect_first_and_a_refusal_in_words(
    browser: Browser, site: Site, url: str
) -> None:
    page = open_page(browser, url)
    page.goto(f"{url}/incidents/{incident_of(site, 'nvswitch-fatal')}")
    page.keyboard.press("p")
    expect(page.locator("#act-preview")).to_contain_text("Reboot through Slurm")
    expect(page.locator("#act-preview")).to_contain_text("4711")
    assert [call for call, _, _ in site.pressed] == [
        "POST /api/v1/playbooks/drain-reboot-verify/runs?dry_run"
    ]

    page.locator("#act-go").click()
    expect(page.locator("#act-problem")).to_contain_text("Reason is required")
    assert len(site.pressed) == 1

    site.refuse = {
        "title": "A guard refuses", "status": 409, "code": "guard_refused", "guard": "floor", "limit": 28,
        "used": 27, "frees_at": "2026-11-20T03:30:00Z", "detail": "27 nodes would stay in service; 28 must.",
    }  # fmt: skip
    page.fill("#act-text", "link is dead")
    page.locator("#act-go").click()
    expect(page.locator("#act-problem")).to_contain_text(
        "Guard floor refuses. 27 nodes would stay in service"
    )
    expect(page.locator("#act-problem")).to_contain_text("used 27 of 28; frees in")

    site.refuse = None
    page.locator("#act-go").click()
    expect(page.locator("#act")).to_be_hidden()
    refused, done = site.pressed[-2:]
    assert done[0].startswith("POST /api/v1/runs/run-") and done[0].endswith("/approve")
    assert done[1] == {"reason": "link is dead", "approve_until": question_of(site, "nvswitch-fatal")}
    assert done[2]["x-healer-csrf"] == CSRF
    assert done[2]["idempotency-key"] != refused[2]["idempotency-key"]


@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_a_press_that_got_no_final_answer_is_the_same_request_when_pressed_again(
    browser: Browser, site: Site, url: str, status: int
) -> None:
    """What answered may be a proxy that did not wait: the note may have been added all the same."""
    page, keys = open_page(browser, url), list[str]()
    page.goto(f"{url}/incidents/{incident_of(site, 'gpu-lost')}")

    def answer_first(route: Route) -> None:
        keys.append(route.request.headers["idempotency-key"])
        if len(keys) == 1:
            route.fulfill(status=status, body="no JSON")
        else:
            route.continue_()

    page.route("**/note", answer_first)
    page.keyboard.press("n")
    page.fill("#act-text", "the riser is loose")
    page.locator("#act-go").click()
    expect(page.locator("#act-problem")).to_be_visible()
    page.locator("#act-go").click()
    expect(page.locator("#act")).to_be_hidden()
    assert keys[0] == keys[1]


def test_a_page_of_an_earlier_session_says_so(browser: Browser, site: Site, url: str) -> None:
    """Its person has signed in again since, in another tab."""
    page = open_page(browser, url)
    page.goto(f"{url}/incidents/{incident_of(site, 'gpu-lost')}")
    refused = {"title": "Forbidden", "status": 403, "code": "csrf", "detail": "the X-Healer-CSRF header …"}
    page.route("**/note", lambda route: route.fulfill(status=403, json=refused))
    page.keyboard.press("n")
    page.fill("#act-text", "the riser is loose")
    page.locator("#act-go").click()
    expect(page.locator("#act-problem")).to_have_text(
        "This page is from an earlier session. Reload it, then try again."
    )


def test_other_words_after_a_lost_answer_are_no_second_press_unseen(
    browser: Browser, site: Site, url: str
) -> None:
    """The note may have been added as it was: with another text it is another note."""
    page, keys = open_page(browser, url), list[str]()
    page.goto(f"{url}/incidents/{incident_of(site, 'gpu-lost')}")
    reused = {"title": "Unprocessable", "status": 422, "code": "idempotency_key_reused", "detail": "this key"}

    def answer(route: Route) -> None:
        keys.append(route.request.headers["idempotency-key"])
        if len(keys) == 1:
            route.abort()
        elif keys[-1] == keys[0]:
            route.fulfill(status=422, json=reused)
        else:
            route.continue_()

    page.route("**/note", answer)
    page.keyboard.press("n")
    page.fill("#act-text", "the riser is loose")
    page.locator("#act-go").click()
    expect(page.locator("#act-problem")).to_contain_text("No answer from healer")
    page.fill("#act-text", "the riser is loose, slot 3")
    page.locator("#act-go").click()
    expect(page.locator("#act-problem")).to_have_text(
        "healer received an earlier press with other words and may have acted on it. "
        "Look at the page before you press again."
    )
    page.locator("#act-go").click()
    expect(page.locator("#act")).to_be_hidden()
    assert len(set(keys)) == 2


def test_what_was_typed_outlives_the_session(browser: Browser, site: Site, url: str) -> None:
    """A session ends while its person types: the words stay, and the sign-in leads back to them."""
    page, address = open_page(browser, url), f"{url}/incidents/{incident_of(site, 'gpu-lost')}"
    page.goto(address)
    expect(page.locator("#live")).to_have_text("live")
    page.keyboard.press("n")
    page.locator("#act-text").press_sequentially("the riser is loose")
    page.context.clear_cookies()
    site.say("reset", {})
    expect(page.locator("#live")).to_have_text("reconnecting")
    expect(page.locator("#act-text")).to_have_value("the riser is loose")

    unauthenticated = {"title": "Unauthorized", "status": 401, "code": "unauthenticated"}
    page.route("**/note", lambda route: route.fulfill(status=401, json=unauthenticated))
    page.locator("#act-go").click()
    expect(page.locator("h1")).to_have_text("Sign in")
    page.unroute("**/note")
    page.fill("#token", "good")
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(address)
    page.keyboard.press("n")
    expect(page.locator("#act-text")).to_have_value("the riser is loose")
    page.locator("#act-go").click()
    expect(page.locator("#act")).to_be_hidden()
    assert site.pressed[-1][1] == {"note": "the riser is loose"}
    page.keyboard.press("n")
    expect(page.locator("#act-text")).to_have_value("")


def test_a_page_that_cannot_be_read_is_not_live(browser: Browser, site: Site, url: str) -> None:
    """While the database is away events are silent, and the stream stays open."""
    page = open_page(browser, url)
    page.goto(f"{url}/incidents")
    live = page.locator("#live")
    expect(live).to_have_text("live")
    page.route("**/incidents", lambda route: route.fulfill(status=503, body="<h1>away</h1>"))
    site.say("incident", {"cluster": "pod1", "id": "x"})
    expect(live).to_have_text("reconnecting")
    page.unroute("**/incidents")
    site.say("incident", {"cluster": "pod1", "id": "x"})
    expect(live).to_have_text("live")


def test_a_job_on_the_node_is_restarted_only_where_its_box_is_ticked(
    browser: Browser, site: Site, url: str
) -> None:
    page = open_page(browser, url)
    for ticks in (False, True):
        page.goto(f"{url}/incidents/{incident_of(site, 'nvswitch-fatal')}")
        page.keyboard.press("p")
        expect(page.locator("#act-preview")).to_contain_text(
            "job 4712 of bob cannot be restarted: Job 4712 is no batch job."
        )
        box = page.get_by_label("Restart job 4711 of alice (16 nodes)")
        expect(box).not_to_be_checked()
        if ticks:
            box.check()
        page.fill("#act-text", "it lies")
        page.locator("#act-go").click()
        expect(page.locator("#act")).to_be_hidden()
    bodies = [body for call, body, _ in site.pressed if call.endswith("/approve")]
    said = {"reason": "it lies", "approve_until": question_of(site, "nvswitch-fatal")}
    assert bodies == [said, said | {"restart": ["4711:2"]}]


def test_an_event_changes_the_page_in_place_and_keeps_the_focus(
    browser: Browser, site: Site, url: str
) -> None:
    page = open_page(browser, url)
    key = incident_of(site, "gpu-lost")
    page.goto(f"{url}/incidents/{key}")
    expect(page.locator("#live")).to_have_text("live")
    page.evaluate("window.sameDocument = true")
    page.locator("summary", has_text="guards checked").click()
    page.locator("main a", has_text="Report").focus()

    detail = site.sample.details[key]
    solved = msgspec.structs.replace(detail.incident, state=IncidentState.resolved, closed=NOW)
    site.sample.details[key] = msgspec.structs.replace(detail, incident=solved)
    site.say("incident", {"cluster": "pod1", "id": key, "state": "resolved"})

    expect(page.locator(".title .state")).to_have_text("resolved")
    expect(page.locator("main a", has_text="Report")).to_be_focused()
    expect(page.locator(".timeline details")).to_have_attribute("open", "")
    assert page.evaluate("window.sameDocument") is True


def test_ages_stay_right_when_the_clock_of_the_browser_steps(browser: Browser, site: Site, url: str) -> None:
    """A page on the wall stays open for weeks."""
    page, key = open_page(browser, url), incident_of(site, "gpu-lost")
    page.goto(f"{url}/incidents/{key}")
    expect(page.locator("#live")).to_have_text("live")
    age = page.locator("#incident time[data-ago]").first
    before = age.inner_text()
    page.evaluate("() => { const now = Date.now; Date.now = () => now() + 3 * 3600 * 1000; }")
    detail = site.sample.details[key]
    owned = msgspec.structs.replace(detail.incident, acknowledged_by="jonas")
    site.sample.details[key] = msgspec.structs.replace(detail, incident=owned)
    site.say("incident", {"cluster": "pod1", "id": key, "state": "open"})
    expect(page.locator("main")).to_contain_text("jonas")
    expect(age).to_have_text(before)


def test_the_focus_outlives_an_event_behind_an_open_dialog(browser: Browser, site: Site, url: str) -> None:
    page = open_page(browser, url)
    key = incident_of(site, "gpu-lost")
    page.goto(f"{url}/incidents/{key}")
    expect(page.locator("#live")).to_have_text("live")

    def changes(owner: str) -> None:
        detail = site.sample.details[key]
        owned = msgspec.structs.replace(detail.incident, acknowledged_by=owner)
        site.sample.details[key] = msgspec.structs.replace(detail, incident=owned)
        site.say("incident", {"cluster": "pod1", "id": key, "state": "open"})
        expect(page.locator("main")).to_contain_text(owner)

    note = page.locator("main button", has_text="Note")
    note.press("Enter")
    expect(page.locator("#act-text")).to_be_focused()
    changes("jonas")
    page.keyboard.press("Escape")
    expect(page.locator("#act")).to_be_hidden()
    expect(note).to_be_focused()

    picture = page.locator("main [data-png]").first
    picture.focus()
    changes("mara")
    expect(picture).to_be_focused()


def test_a_page_of_an_address_that_does_not_exist_stays_live_and_leads_back(
    browser: Browser, site: Site, url: str
) -> None:
    page = open_page(browser, url, width=400)
    answer = page.goto(f"{url}/nodes/pod1/{'x' * 300}")
    assert answer is not None and answer.status == 404
    expect(page.locator("h1")).to_have_text("Node not found")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.goto(f"{url}/no-such-page")
    expect(page.locator("#live")).to_have_text("live")
    open_before = page.locator("#nav .count").first.inner_text()
    key = incident_of(site, "gpu-lost")
    detail = site.sample.details[key]
    solved = msgspec.structs.replace(detail.incident, state=IncidentState.resolved, closed=NOW)
    site.sample.details[key] = msgspec.structs.replace(detail, incident=solved)
    site.say("incident", {"cluster": "pod1", "id": key, "state": "resolved"})
    expect(page.locator("#nav .count").first).not_to_have_text(open_before)
    page.locator("main a", has_text="Go to fleet").click()
    expect(page.locator("h1")).to_have_text("Fleet")


def test_the_page_says_when_it_is_not_live(browser: Browser, site: Site) -> None:
    with served(site.app) as address:
        page = open_page(browser, address)
        page.goto(address + "/")
        expect(page.locator("#live")).to_have_text("live")
    expect(page.locator("#live")).to_have_text("reconnecting")


def test_the_map_speaks_and_opens_a_node(browser: Browser, url: str) -> None:
    page = open_page(browser, url)
    page.goto(url + "/")
    expect(page.locator("#map")).to_be_visible()
    wait_until(lambda: page.evaluate("document.getElementById('map').style.height"), what="the map was drawn")
    page.locator("#map").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#say")).to_contain_text("gpu0002: in service, busy")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("gpu0002")


def test_enter_shows_the_moment_under_the_slider_where_the_browser_sends_no_form_by_it(
    browser: Browser, url: str
) -> None:
    """Firefox sends no form by Enter on a slider. An event of a script has no default: so it is here, too."""
    page = open_page(browser, url)
    page.goto(url + "/")
    slider = page.locator("#at")
    for _ in range(6):
        slider.press("ArrowLeft")
    slider.dispatch_event("keydown", {"key": "Enter", "bubbles": True})
    expect(page).to_have_url(f"{url}/?at=2026-11-20T02%3A45Z")


def test_only_changed_cells_are_redrawn_and_a_rack_has_its_own_page(
    browser: Browser, site: Site, url: str
) -> None:
    page = open_page(browser, url)
    page.goto(url + "/")
    expect(page.locator("#live")).to_have_text("live")
    wait_until(lambda: page.evaluate("performance.getEntriesByName('map').length"), what="the map is drawn")
    page.evaluate(
        """() => { window.drawn = 0; const pen = CanvasRenderingContext2D.prototype, draw = pen.roundRect;
            pen.roundRect = function (...given) { drawn++; draw.apply(this, given); }; }"""
    )
    snapshot = site.sample.standing.snapshot
    assert snapshot is not None
    down = msgspec.structs.replace(snapshot.nodes["gpu0004"], state=("DOWN",))
    shown = msgspec.structs.replace(snapshot, nodes={**snapshot.nodes, "gpu0004": down})
    site.sample.standing = msgspec.structs.replace(site.sample.standing, snapshot=shown)
    site.say("fleet", {"cluster": "pod1"})
    wait_until(lambda: page.evaluate("drawn"), what="the map is drawn again")
    assert page.evaluate("drawn") == 1

    page.keyboard.press("c")
    page.wait_for_url("**colour=verdict")
    expect(page.locator("#legend")).to_contain_text("isolate")
    page.locator("#map").focus()
    page.keyboard.press("End")
    expect(page.locator("#say")).to_contain_text("gpu0032: no known fault")
    page.keyboard.press("s")
    page.wait_for_url("**place=r008*")
    expect(page.locator("#nodes tbody tr")).to_have_count(4)


def test_a_viewer_sees_all_and_presses_nothing(browser: Browser) -> None:
    site = Site(make_sample(32), role=Role.viewer)
    with served(site.app) as address:
        page = open_page(browser, address)
        for path in ("/", f"/incidents/{incident_of(site, 'nvswitch-fatal')}", "/nodes/pod1/gpu0017"):
            page.goto(address + path)
            expect(page.locator("h1")).to_be_visible()
            assert page.locator("[data-act]").count() == 0


def test_pause_and_open_breaker_are_shown_on_every_page(browser: Browser) -> None:
    sample = make_sample(1250)
    console_sample.storm(sample)
    site = Site(sample)
    with served(site.app) as address:
        page = open_page(browser, address)
        for path in ("/", "/incidents", "/runs", "/audit"):
            page.goto(address + path)
            expect(page.locator(".banner.bad")).to_contain_text("Circuit breaker open")
            expect(page.locator(".banner.warn")).to_contain_text("Paused: rule nvswitch-degraded by mara")
        page.locator(".banner.warn button").click()
        page.fill("#act-text", "roll-out is over")
        page.locator("#act-go").click()
        expect(page.locator("#act")).to_be_hidden()
        assert site.pressed[-1][0] == "DELETE /api/v1/pauses/pause-1"


def test_a_playbook_asks_for_what_it_needs_before_its_plan(browser: Browser, site: Site, url: str) -> None:
    page = open_page(browser, url)
    page.goto(f"{url}/nodes/pod1/gpu0002")
    expect(page.get_by_role("button", name="Drain", exact=True)).to_be_visible()
    page.get_by_text("More playbooks").click()
    page.get_by_role("button", name="Restart service").click()
    chosen = page.get_by_label("service to restart")
    expect(chosen).to_be_focused()
    expect(page.locator("#act-preview")).to_have_text("Fill in first: service to restart.")
    page.fill("#act-text", "it hangs")
    page.locator("#act-go").click()
    expect(page.locator("#act-problem")).to_have_text("service to restart is required.")
    assert site.pressed == []
    chosen.select_option("slurmd")
    expect(page.locator("#act-preview")).to_contain_text("Reboot through Slurm")
    page.locator("#act-go").click()
    expect(page.locator("#act")).to_be_hidden()
    given = {"inputs": {"service": "slurmd"}}
    node = {"cluster": "pod1", "node": "gpu0002"}
    assert [(call, body) for call, body, _ in site.pressed] == [
        ("POST /api/v1/playbooks/restart-service/runs?dry_run", node | given | {"reason": "preview"}),
        ("POST /api/v1/playbooks/restart-service/runs", node | given | {"reason": "it hangs"}),
    ]
    page.get_by_role("button", name="Drain", exact=True).click()
    expect(page.get_by_label("service to restart")).to_have_count(0)


def test_the_plan_in_the_dialog_is_that_of_the_last_choice(browser: Browser, site: Site, url: str) -> None:
    """The answer about an earlier choice may come late."""
    page = open_page(browser, url)
    page.goto(f"{url}/nodes/pod1/gpu0002")
    page.evaluate(
        """() => {
            const ask = window.fetch;
            window.answers = [];
            window.fetch = (address, asked) => !address.endsWith("?dry_run=true") ? ask(address, asked)
                : new Promise((take) => answers.push((title) => take(Response.json({ plan: [{ title }] }))));
        }"""
    )
    page.get_by_text("More playbooks").click()
    page.get_by_role("button", name="Restart service").click()
    chosen, shown = page.get_by_label("service to restart"), page.locator("#act-preview")
    for service in ("slurmd", "openibd"):
        chosen.select_option(service)
    page.evaluate("answers[1]('the second')")
    expect(shown).to_contain_text("the second")
    page.evaluate("async () => { answers[0]('the first'); await new Response('it is read').text(); }")
    expect(shown).to_contain_text("the second")


def test_an_answer_that_never_came_is_said_in_its_own_dialog(browser: Browser, site: Site, url: str) -> None:
    """Its person gave up waiting, closed it and opened another."""
    page = open_page(browser, url)
    page.goto(f"{url}/incidents/{incident_of(site, 'gpu-lost')}")
    page.evaluate(
        """() => {
            const ask = window.fetch;
            window.fetch = (address, asked) => !address.endsWith("/note") ? ask(address, asked)
                : new Promise((_, fail) => { window.lose = fail; });
        }"""
    )
    page.keyboard.press("n")
    page.fill("#act-text", "the riser is loose")
    page.locator("#act-go").click()
    page.keyboard.press("Escape")
    expect(page.locator("#act")).to_be_hidden()
    page.locator("main").get_by_role("button", name="Resolve").click()
    page.evaluate("async () => { lose(new TypeError('network')); await null; }")
    expect(page.locator("#act")).to_be_visible()
    expect(page.locator("#act-problem")).to_be_hidden()


def test_back_shows_the_cluster_of_the_page(browser: Browser) -> None:
    """Browsers bring back what was selected as the page was left."""
    with served(Site(make_sample(4), others=("lab",)).app) as address:
        page = open_page(browser, address)
        page.goto(address + "/incidents?cluster=pod1")
        page.select_option("#cluster", "lab")
        page.wait_for_url("**cluster=lab")
        page.go_back()
        expect(page).to_have_url(address + "/incidents?cluster=pod1")
        expect(page.locator("#cluster")).to_have_value("pod1")
