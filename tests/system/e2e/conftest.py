"""Fixtures of the proofs on a whole site, and of those in a real Chromium."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.support import console_site
from tests.support.browser import chromium, served
from tests.support.site import real_slurm, site  # noqa: F401 - fixtures


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as one:
        yield one


@pytest.fixture
def url(site: console_site.Site) -> Iterator[str]:  # noqa: F811 - the fixture
    """Where the console of a module's own `site` is; a module that keeps its site keeps its address too."""
    with served(site.app) as address:
        yield address
