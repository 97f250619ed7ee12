"""Signing in by a certified identity provider in a real Chromium, and breaking the glass when it is away."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.certified_provider import CLIENT, SECRET, CertifiedProvider
from tests.support.processes import free_port
from tests.support.up import ROOT, Stack
from tests.support.wait import wait_until

pytestmark = [pytest.mark.browser]

PEOPLE = (
    {"sub": "s-ann", "preferred_username": "ann", "groups": ["ops"]},
    {"sub": "s-root", "preferred_username": "ruth", "groups": ["admins"]},
    {"sub": "s-eve", "preferred_username": "eve", "groups": ["guests"]},
)
ACCESS = """\
grants:
  - {name: ops, groups: [ops], role: operator}
  - {name: admins, groups: [admins], role: admin}
"""


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def idp(port: int) -> Iterator[CertifiedProvider]:
    healer = f"http://127.0.0.1:{port}"
    redirect, logout = f"{healer}/auth/callback", f"{healer}/auth/backchannel"
    made = CertifiedProvider(PEOPLE, redirect=redirect, logout=logout)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def stack(scratch: Path, port: int, idp: CertifiedProvider) -> Iterator[Stack]:
    rules = scratch / "rules"
    shutil.copytree(ROOT / "rules", rules)
    (rules / "access.yaml").write_text(ACCESS)
    with Stack(
        scratch,
        port=port,
        HEALER_SLURM_ADAPTERS="sim",
        HEALER_RULES_DIR=str(rules),
        HEALER_PUBLIC_URL=f"http://127.0.0.1:{port}",
        HEALER_OIDC_ISSUER=idp.url,
        HEALER_OIDC_CLIENT_ID=CLIENT,
        HEALER_OIDC_CLIENT_SECRET=SECRET,
    ) as stack:
        yield stack


def visitor(stack: Stack, browser: Browser, path: str = "/") -> Page:
    page = browser.new_context().new_page()
    page.set_default_timeout(30_000)
    page.goto(stack.url + path)
    expect(page.locator("h1")).to_have_text("Sign in")
    return page


def sign_in(page: Page, subject: str, *, known: bool = False) -> None:
    """`known`: the provider still knows this browser, and asks for nothing."""
    page.get_by_role("link", name="Sign in with the identity provider").click()
    if known:
        return
    page.get_by_placeholder("Enter any login").fill(subject)
    page.get_by_placeholder("and password").fill("any")
    page.get_by_role("button", name="Sign-in").click()
    page.get_by_role("button", name="Continue").click()


def test_people_come_in_by_the_provider_alone_and_stay_when_it_is_away(
    stack: Stack, idp: CertifiedProvider, browser: Browser
) -> None:
    ann = visitor(stack, browser, "/runs")
    seen = list[str]()
    ann.on("request", lambda request: seen.append(request.url))
    sign_in(ann, "s-ann")
    expect(ann.locator("h1")).to_have_text("Runs")
    expect(ann.locator(".who .menu summary")).to_have_text("ann")
    answer = next(url for url in seen if "/auth/callback" in url)
    (cookie,) = [one for one in ann.context.cookies(stack.url) if one.get("name") == "healer_session"]
    assert cookie.get("httpOnly")
    assert not [one for one in ann.context.cookies(stack.url) if one.get("name") == "healer_sign_in"]

    # The answer's address opened again, or by another person who was sent it, signs no one in.
    thief = visitor(stack, browser)
    thief.goto(answer)
    expect(thief.locator("[role=alert]")).to_contain_text("did not start in this browser")

    eve = visitor(stack, browser)
    sign_in(eve, "s-eve")
    expect(eve.locator("[role=alert]")).to_contain_text("gives your groups a role")

    ruth = visitor(stack, browser, "/sessions")
    sign_in(ruth, "s-root")
    expect(ruth.locator("h1")).to_have_text("Sessions")
    ruth.wait_for_load_state()  # the heading shows before the scripts that open the dialog have run
    row = ruth.locator("tbody tr", has_text="ann")
    row.get_by_role("button", name="End").click()
    ruth.locator("#act-go").click()
    expect(ruth.locator("tbody tr", has_text="ann")).to_have_count(0)
    wait_until(lambda: _is_out(ann, stack), 20, what="her session has ended", every_s=0.5)

    # Who signs out at the provider is signed out here: it reports that by its back channel.
    sign_in(ann, "s-ann", known=True)
    expect(ann.locator("h1")).to_have_text("Runs")
    ann.goto(f"{idp.url}/session/end")
    ann.get_by_role("button", name="Yes, sign me out").click()
    wait_until(lambda: _is_out(ann, stack), 20, what="her session has ended", every_s=0.5)

    idp.stop()
    ruth.goto(f"{stack.url}/access")
    expect(ruth.locator("h1")).to_have_text("Who may do what")
    late = visitor(stack, browser)
    late.goto(f"{stack.url}/auth/callback?state=x&code=y")
    expect(late.locator("[role=alert]")).to_be_visible()
    late.goto(f"{stack.url}/runs")
    expect(late.locator("h1")).to_have_text("Sign in")
    assert re.search(r"FAIL sign-in: .*is unavailable", stack.run("doctor", check=False).stdout)
    break_the_glass(stack, late, ruth)


def break_the_glass(stack: Stack, late: Page, ruth: Page) -> None:
    """Who cannot sign in becomes an administrator; who is signed in sees it."""
    secret = stack.run("break-glass", "seal").stdout.strip()
    late.get_by_role("link", name="Use break-glass access").click()
    late.get_by_label("Sealed secret").fill(secret)
    late.get_by_label("Your name").fill("ada")
    late.get_by_label("Reason").fill("the provider is away")
    late.get_by_role("button", name="Become administrator").click()
    expect(late.get_by_role("status")).to_contain_text("break-glass (ada) is an administrator until")
    late.get_by_role("link", name="Open the console").click()
    expect(late.locator("h1")).to_have_text("Runs")
    ruth.goto(f"{stack.url}/audit?subject=break-glass")
    expect(ruth.locator("tbody")).to_contain_text("break-glass (ada)")
    for page in (ruth, late):
        expect(page.locator(".banner.bad")).to_contain_text("break-glass (ada) is an administrator.")
    sent = late.context.request.get(f"{stack.url}/api/v1/messages").text()
    assert "ada used break-glass access" in sent

    late.locator(".banner.bad").get_by_role("button", name="End").click()
    late.get_by_label("Reason").fill("the provider is back")
    late.locator("#act-go").click()
    wait_until(lambda: _is_out(late, stack), 20, what="the hour has ended", every_s=0.5)
    ruth.goto(f"{stack.url}/runs")
    expect(ruth.locator("h1")).to_have_text("Runs")
    expect(ruth.locator(".banner.bad")).to_have_count(0)


def _is_out(page: Page, stack: Stack) -> bool:
    page.goto(f"{stack.url}/runs")
    return page.locator("h1").inner_text() == "Sign in"
