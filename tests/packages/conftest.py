"""`make packages-test`: minutes, as root, with roots of other distributions. No part of `make test`."""

import pytest

from tests.packages.builds import Builds

#: Ends what hangs. Each wait within a test has its own limit, by what it waits for.
_LIMIT_S = 3600
_OF_ONE_MACHINE = ("site", "node")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one machine, image or folder run in one process and in their order."""
    for item in items:
        if isinstance(item, pytest.Function) and item.path.parent.name == "packages":
            params = item.callspec.params if hasattr(item, "callspec") else {}
            machine = "-".join(str(params[name]) for name in _OF_ONE_MACHINE if name in params)
            item.add_marker(pytest.mark.timeout(_LIMIT_S))
            item.add_marker(pytest.mark.xdist_group(f"{item.path.stem}-{machine}"))


@pytest.fixture(scope="session")
def builds() -> Builds:
    return Builds()
