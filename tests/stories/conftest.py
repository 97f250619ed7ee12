"""Every story reads back what its loop wrote."""

import pytest


@pytest.fixture(autouse=True)
def rows_are_readable(written_is_readable: None) -> None:
    pass
