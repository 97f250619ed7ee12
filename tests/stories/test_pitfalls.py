"""Every one of Slurm's pitfalls is a test that names it, and docs/slurm.md names tests that exist."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
DOCUMENT = TESTS.parent / "docs/slurm.md"
NAMES = {
    name
    for file in TESTS.rglob("test_*.py")
    for name in re.findall(r"^\s*def (test_\w+)", file.read_text(), re.MULTILINE)
}


def test_each_of_the_25_pitfalls_is_named_by_a_test() -> None:
    cited = [
        int(number)
        for name in NAMES
        for numbers in re.findall(r"pitfalls?((?:_and)?(?:_\d+)+(?:_and_\d+)*)", name)
        for number in re.findall(r"\d+", numbers)
    ]
    assert set(range(1, 26)) <= set(cited)


def test_the_document_has_a_row_for_each_pitfall_and_its_tests_exist() -> None:
    text = DOCUMENT.read_text()
    rows = re.findall(r"^\| (\d+) \|.*`(test_\w+)` \|$", text, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 26))
    for number, name in rows:
        assert f"pitfall_{int(number):02}_" in name, "a pitfall's test carries its number"
    assert set(re.findall(r"`(test_\w+)`", text)) <= NAMES
