"""The language of the reader."""

import errno
import os

import pytest
import yaml

from healer.text import in_language, quoted, said_by, say
from healer.text.language import chosen
from tests.support import sayings


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


#: Texts that are not in errno's table: of name resolution, time-outs, and the YAML reader.
NOT_OF_ERRNO = {
    "Name or service not known", "Temporary failure in name resolution", "timed out",
}  # fmt: skip
BAD_YAML = (
    "a: b: c", "[a", "{a", "a: [}", "- a\nb: c", "*x", r'"\q"', "@a", '"a', "a: - b", "a\x01", "a\nb: c",
    "a: b\nc\nd: e", "a: 'x' y", '"a" b',
)  # fmt: skip


def test_the_systems_words_are_those_that_it_says() -> None:
    known = sayings.by_english("zh", "system")
    of_yaml = set()
    for text in BAD_YAML:
        with pytest.raises(yaml.YAMLError) as raised:
            yaml.compose(text, yaml.CSafeLoader)
        of_yaml.add(getattr(raised.value, "problem", None) or getattr(raised.value, "reason", ""))
    assert of_yaml <= known.keys(), of_yaml - known.keys()
    said = {os.strerror(number) for number in errno.errorcode} | NOT_OF_ERRNO | of_yaml
    assert known.keys() <= said, known.keys() - said


def test_the_systems_words_are_in_the_readers_language() -> None:
    missing = FileNotFoundError(2, "No such file or directory", "/etc/x")
    assert in_language(said_by(missing), "zh") == "/etc/x：没有那个文件或目录"
    assert in_language(said_by(missing), "en") == "[Errno 2] No such file or directory: '/etc/x'"
    of_file = say("commands.unreadable", name="x", why="Permission denied")
    assert in_language(of_file, "zh") == "无法读取 x：权限不足"
    assert in_language(quoted("a person's own words"), "zh") == "a person's own words"
