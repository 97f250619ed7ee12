"""Recordings by people who had not read the rules' code, and what must come of them."""

from typing import Any

import pytest

from tests.support import judged_recordings as judged

pytestmark = pytest.mark.usefixtures("written_is_readable")


@pytest.mark.parametrize("case", [pytest.param(case, id=case["case"]) for case in judged.cases()])
def test_the_recording_ends_as_its_author_says(case: dict[str, Any]) -> None:
    assert judged.complaints(case, judged.play(case)) == []
