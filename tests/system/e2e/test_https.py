"""A real browser at healer's own https: its cookies are for this host alone, and scripts see none."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from playwright.sync_api import Browser, expect

from tests.support.api_process import ApiProcess, api_process
from tests.support.openssl import Authority

pytestmark = pytest.mark.browser


@pytest.fixture
def secure(fresh_database: sa.Engine, tmp_path: Path) -> Iterator[ApiProcess]:
    files = Authority(tmp_path).sign("healer", "localhost", "DNS:localhost,IP:127.0.0.1")
    settings = {"HEALER_TLS_CERT": str(files.cert), "HEALER_TLS_KEY": str(files.key)}
    with api_process(fresh_database, tmp_path, **settings) as api:
        yield api


def test_by_https_a_session_is_a_host_cookie(browser: Browser, secure: ApiProcess) -> None:
    # The browser does not know the authority: certificates have tests of their own.
    context = browser.new_context(ignore_https_errors=True)
    page = context.new_page()
    page.goto(f"{secure.url}/sign-in")
    page.fill("#token", secure.token("viewer", once=True))
    page.press("#token", "Enter")
    expect(page.locator("h1")).not_to_have_text("Sign in")
    found = {cookie.get("name", ""): cookie for cookie in context.cookies()}
    session = found["__Host-healer_session"]
    assert session.get("secure") and session.get("httpOnly")
    assert (session.get("domain"), session.get("path")) == ("127.0.0.1", "/")
    assert "healer_session" not in page.evaluate("document.cookie")

    # A cookie that another host of the domain could have planted signs no one in.
    value = session.get("value", "")
    context.clear_cookies()
    context.add_cookies([{"name": "healer_session", "value": value, "url": secure.url}])
    page.goto(f"{secure.url}/incidents")
    expect(page.locator("h1")).to_have_text("Sign in")
    context.close()
