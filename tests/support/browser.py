"""A real Chromium for tests, what axe-core says of a page, and a web server in a thread."""

import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn
from axe_playwright_python.sync_playwright import Axe
from fastapi import FastAPI
from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.processes import clean_environ
from tests.support.wait import wait_until

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


def chromium_path() -> str:
    """Raises AssertionError where there is none: a browser test never skips in silence."""
    found = next((path for path in map(shutil.which, _NAMES) if path), None)
    assert found, f"these tests need a Chromium on the path (one of {', '.join(_NAMES)})"
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    # What it keeps beside its profile lies at home: here in a folder of its own.
    with tempfile.TemporaryDirectory(prefix="healer-test-home-") as home, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium_path(),
            args=list(_QUIET),
            env=clean_environ(HOME=home, LC_ALL="en_US.UTF-8"),
        )
        try:
            yield browser
        finally:
            browser.close()


def open_page(browser: Browser, url: str, *, width: int = 1280, scheme: str = "light") -> Page:
    """A new page of a user signed in at the console of a test (`console_site`)."""
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
    context.set_default_timeout(8000)
    context.add_cookies([{"name": "healer_session", "value": "cookie-good", "url": url}])
    return context.new_page()


def rules_broken(page: Page, *only: str, without: Sequence[str] = ()) -> list[str]:
    """`rule: element (what to do)`, three elements of each rule at most. `only` these rules, else all
    `without` those."""
    options: dict[str, Any] = {
        "resultTypes": ["violations"],
        "rules": {key: {"enabled": False} for key in without},
    }
    options |= {"runOnly": list(only)} if only else {}
    results: Any = Axe().run(page, options=options).response
    return [
        f"{rule['id']}: {node['html'][:160]} ({node['failureSummary'].splitlines()[-1].strip()})"
        for rule in results["violations"]
        for node in rule["nodes"][:3]
    ]


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """The application on a free port of 127.0.0.1; yields its address."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    # Open event streams would hold a graceful stop for ever.
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started, what="the web server started")
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        sock.close()
