"""Signing in by an identity provider in a real Chromium: the provider is a process of its own."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

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


class Idp:
    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://localhost:{self.port}"
        people = [option for person in PEOPLE for option in ("--user-claims", json.dumps(person))]
        command = [sys.executable, "-m", "oidc_provider_mock", "--port", str(self.port), *people]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT
        )

    def answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/.well-known/openid-configuration").status_code == 200
        except httpx.HTTPError:
            return False

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def idp() -> Iterator[Idp]:
    made = Idp()
    try:
        wait_until(made.answers, 60, what="the provider answers")
        yield made
    finally:
        made.stop()


@pytest.fixture
def stack(scratch: Path, idp: Idp) -> Iterator[Stack]:
    rules, port = scratch / "rules", free_port()
    shutil.copytree(ROOT / "rules", rules)
    (rules / "access.yaml").write_text(ACCESS)
    with Stack(
        scratch,
        port=port,
        HEALER_SLURM_ADAPTERS="sim",
        HEALER_RULES_DIR=str(rules),
        HEALER_PUBLIC_URL=f"http://127.0.0.1:{port}",
        HEALER_OIDC_ISSUER=idp.url,
        HEALER_OIDC_CLIENT_ID="healer",
        HEALER_OIDC_CLIENT_SECRET="a secret of tests",
    ) as stack:
        yield stack


def visitor(stack: Stack, browser: Browser, path: str = "/") -> Page:
    page = browser.new_context().new_page()
    page.set_default_timeout(30_000)
    page.goto(stack.url + path)
    expect(page.locator("h1")).to_have_text("Sign in")
    return page


def sign_in(page: Page, subject: str) -> None:
    page.get_by_role("link", name="Sign in with the identity provider").click()
    page.get_by_role("button", name=subject, exact=True).first.click()


def test_people_come_in_by_the_provider_alone_and_stay_when_it_is_away(
    stack: Stack, idp: Idp, browser: Browser
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

    # The answer's address opened again, or by somebody else who was sent it, signs nobody in.
    thief = visitor(stack, browser)
    thief.goto(answer)
    expect(thief.locator("[role=alert]")).to_contain_text("did not start in this browser")

    eve = visitor(stack, browser)
    sign_in(eve, "s-eve")
    expect(eve.locator("[role=alert]")).to_contain_text("gives your groups a role")

    ruth = visitor(stack, browser, "/sessions")
    sign_in(ruth, "s-root")
    expect(ruth.locator("h1")).to_have_text("Sessions")
    row = ruth.locator("tbody tr", has_text="ann")
    row.get_by_role("button", name="End").click()
    ruth.locator("#act-go").click()
    expect(ruth.locator("tbody tr", has_text="ann")).to_have_count(0)
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
