"""What people read: no word in it that no engineer would use."""

import re
from pathlib import Path

import pytest
import yaml
from babel.messages.pofile import read_po

ROOT = Path(__file__).parents[3]
ODD = re.compile(
    r"\b(anew|nobody|somebody|everybody|told(?! apart)|surely|again and again|known bad|taken back)\b",
    re.IGNORECASE,
)


def odd(texts: list[str]) -> list[str]:
    return [text for text in texts if ODD.search(text)]


@pytest.mark.parametrize("path", sorted((ROOT / "healer/text/en").glob("*.po")), ids=lambda path: path.stem)
def test_sentences_are_plain_english(path: Path) -> None:
    with path.open("rb") as file:
        entries = [entry for entry in read_po(file) if entry.id]
    texts = [[entry.string] if isinstance(entry.string, str) else list(entry.string) for entry in entries]
    assert odd([text for forms in texts for text in forms]) == []


@pytest.mark.parametrize("name", ["templates", "scripts"])
def test_pages_are_plain_english(name: str) -> None:
    """The Chinese catalogues of pages have the English for keys."""
    with (ROOT / f"healer/text/zh/{name}.po").open("rb") as file:
        ids = [entry.id for entry in read_po(file) if entry.id]
    assert odd([text for each in ids for text in ([each] if isinstance(each, str) else each)]) == []


def titles(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [str(text) for key, text in value.items() if key == "title"]
        return own + [title for part in value.values() for title in titles(part)]
    if isinstance(value, list):
        return [title for part in value for title in titles(part)]
    return []


def test_titles_of_rules_are_plain_english() -> None:
    files = [path for path in (ROOT / "rules").rglob("*.yaml") if "cases" not in path.parts]
    found = [title for path in files for title in titles(yaml.safe_load(path.read_text(encoding="utf-8")))]
    assert len(found) > 300
    assert odd(found) == []


#: Names of rules and faults, which are in drain reasons of years.
NAMES = re.compile(r"[a-z0-9*-]+-told\b|\bid: told\b|\btold\.[a-z]+\b|, told\]|told_out")


def test_comments_and_cases_of_rules_are_plain_english() -> None:
    lines = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "rules").rglob("*.yaml"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if ODD.search(NAMES.sub("", line))
    ]
    assert lines == []


#: Code, and a baseline of the simulator.
QUOTED = re.compile(
    r"`[^`]*`|^```.*?^```|\*nobody\*|^\| nobody \||\bnobody 0\.|\(nobody:",
    re.DOTALL | re.MULTILINE,
)


@pytest.mark.parametrize(
    "path",
    sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/runbooks").glob("*.md")]),
    ids=lambda path: path.stem,
)
def test_docs_are_plain_english(path: Path) -> None:
    text = QUOTED.sub("", path.read_text(encoding="utf-8"))
    assert odd(text.splitlines()) == []
