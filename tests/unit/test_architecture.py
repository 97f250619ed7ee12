"""The drawing of the rooms is that of the code, and each room says what it is."""

import re
from pathlib import Path

import pytest

from tests.support.architecture import DRAWING, draw, floors, imports, ways, words

ROOT = Path(__file__).parents[2]


def test_the_drawing_is_made_from_the_code_as_it_is() -> None:
    assert DRAWING.read_text() == draw(), "python -m tests.support.architecture draws it again"


def test_every_room_says_what_it_is_in_one_sentence() -> None:
    docstrings = {room: words(room) for room in imports()}
    assert not [room for room, text in docstrings.items() if not 10 <= len(text) <= 100]


def test_import_cycle_between_packages_is_refused() -> None:
    with pytest.raises(ValueError, match="cycle"):
        floors({"a": {"b"}, "b": {"a"}})


def test_an_arrow_that_follows_from_two_others_is_left_out() -> None:
    rooms = {"top": {"middle", "low"}, "middle": {"low"}, "low": set[str]()}
    assert floors(rooms) == [["low"], ["middle"], ["top"]]
    assert ways(rooms) == [("middle", "low"), ("top", "middle")]


def test_each_step_of_one_xid_links_to_the_file_that_holds_it() -> None:
    page = ROOT / "docs" / "one-xid.md"
    text = page.read_text()
    files = dict(re.findall(r"(?m)^\[([\w-]+)\]: (\S+)$", text))
    steps = re.findall(r"\[`([\w.]+)`\]\[([\w-]+)\]", text)
    assert len(steps) > 30
    assert set(files) == set(re.findall(r"\]\[([\w-]+)\]", text))
    missing = [
        f"{name} in {files[link]}" for name, link in steps if not _holds(page.parent / files[link], name)
    ]
    assert not missing


def _holds(path: Path, name: str) -> bool:
    source = path.read_text()
    return all(
        re.search(rf"(?m)^\s*(async )?(def|class) {part}\b|^{part}\b", source) for part in name.split(".")
    )
