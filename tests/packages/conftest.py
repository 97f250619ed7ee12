"""`make packages-test`: minutes, as root, with roots of other distributions. No part of `make test`."""

from collections.abc import Iterator

import pytest

from tests.packages.builds import Builds
from tests.support.stack import scratch_folder


@pytest.fixture(scope="session")
def builds() -> Iterator[Builds]:
    with scratch_folder("/var/tmp") as folder:
        yield Builds(folder)
