"""`make packages-test`: minutes, as root, with roots of other distributions. No part of `make test`."""

import pytest

from tests.packages.builds import Builds

#: Ends what hangs. Each wait within a test has its own limit, by what it waits for.
_LIMIT_S = 3600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "packages":
            item.add_marker(pytest.mark.timeout(_LIMIT_S))


@pytest.fixture(scope="session")
def builds() -> Builds:
    return Builds()
