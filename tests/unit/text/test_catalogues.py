"""Each sentence that the code says is in both catalogues, with the arguments that it gets."""

import pytest

from tests.support import sayings


def test_code_and_catalogues_fit():
    assert sayings.faults() == []


@pytest.mark.parametrize("language", ["en", "zh"])
def test_plural_forms_agree_with_the_language(language: str):
    plural = {entry.forms for entry in sayings.entries(language).values() if len(entry.forms) > 1}
    assert language == "en" or not plural, "Chinese has one form"
