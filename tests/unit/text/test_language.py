"""The language of the reader."""

import pytest

from healer.text.language import chosen


@pytest.mark.parametrize(
    ("cookie", "accepts", "language"),
    [
        ("zh", "en", "zh"),
        ("en", "zh-CN,zh;q=0.9", "en"),
        (None, "zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        (None, "de, en;q=0.5, zh;q=0.3", "en"),
        ("xx", "", "en"),
    ],
)
def test_whose_language(cookie: str | None, accepts: str, language: str) -> None:
    assert chosen(cookie, accepts) == language
