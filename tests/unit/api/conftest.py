from collections.abc import Iterator

import httpx
import pytest
import sqlalchemy as sa

from tests.support.api import Api, serving


@pytest.fixture
def served(fresh_database: sa.Engine) -> Iterator[tuple[Api, httpx.Client]]:
    with serving(fresh_database) as both:
        yield both
