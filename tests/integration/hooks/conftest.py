"""A follower that speaks to a hub of the test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.follower import Following, Hub, following


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as one:
        yield one


@pytest.fixture
def node(tmp_path: Path, hub: Hub) -> Iterator[Following]:
    with following(tmp_path, hub.url) as one:
        yield one
