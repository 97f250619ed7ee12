"""The configurations that the documents show, as the tests use them: what is shown is what was tried."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_HEADING = re.compile(r"^#{2,4} (?P<title>.+?)\s*$")


def snippet(document: str, section: str, n: int = 0) -> str:
    """The nth fenced block below the heading `section` of a document, up to the next heading.

    Raises LookupError when there is none: the test then says which configuration is missing.
    """
    found: list[str] = []
    here = fenced = False
    block: list[str] = []
    for line in (DOCS / document).read_text().splitlines():
        if line.startswith("```"):
            if fenced and here:
                found.append("".join(f"{one}\n" for one in block))
            fenced, block = not fenced, []
        elif fenced:
            block.append(line)
        elif match := _HEADING.match(line):
            here = match["title"] == section
    if n >= len(found):
        raise LookupError(
            f"docs/{document} has {len(found)} blocks below {section!r}, and block {n} was asked for"
        )
    return found[n]


def placed(text: str, places: dict[str, str]) -> str:
    """The text with what a site replaces: shown -> real. Raises LookupError when one does not occur."""
    for shown, real in places.items():
        if shown not in text:
            raise LookupError(f"{shown!r} does not occur in the configuration")
        text = text.replace(shown, real)
    return text
