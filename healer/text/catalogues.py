"""The catalogues: `<language>/<file>.po` in this folder, each read once when first needed.

`<room>.po` has sentences by key. `terms.po` (texts of rules, words for states), `help.po` (of `--help`),
`templates.po` and `scripts.po` (of the console) and `system.po` (of the operating system and the YAML reader)
have English for keys, so English needs none of them.
"""

import re
from functools import lru_cache
from gettext import GNUTranslations
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from babel.messages.catalog import Catalog

FOLDER = Path(__file__).parent
ENGLISH = "en"


def _entries(language: str, name: str) -> "Catalog | None":
    """One file; None: this language has no such file. Babel is imported only by those that produce text."""
    from babel.messages.pofile import read_po

    path = FOLDER / language / f"{name}.po"
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return read_po(file, locale=language, abort_invalid=True)


@lru_cache
def catalogue(language: str, name: str) -> GNUTranslations | None:
    """One file, compiled; None: this language has no such file."""
    entries = _entries(language, name)
    if entries is None:
        return None
    from babel.messages.mofile import write_mo

    compiled = BytesIO()
    write_mo(compiled, entries)
    compiled.seek(0)
    return GNUTranslations(compiled)


@lru_cache
def scripts_of(language: str) -> dict[str, str] | None:
    """The sentences of the console's scripts, English to this language; None for English."""
    entries = _entries(language, "scripts")
    return None if entries is None else {str(entry.id): str(entry.string) for entry in entries if entry.id}


def by_english(language: str, name: str, text: str) -> str:
    """The text in this language, from a file whose keys are English; the text itself if it has none."""
    found = None if language == ENGLISH else catalogue(language, name)
    return text if found is None or not text else found.gettext(text)


def term(language: str, text: str) -> str:
    """The text in this language where `terms.po` knows it as a whole, whatever the case of its first letter
    and the space around it."""
    found, body = catalogue(language, "terms"), text.strip()
    if found is None or not body:
        return text
    for spelling in (body, body[0].swapcase() + body[1:]):
        translated = found.gettext(spelling)
        if translated != spelling:
            return text.replace(body, translated, 1)
    return text


#: As Python prints an error of the operating system: `[Errno 2] No such file or directory: '/etc/x'`.
_SYSTEM = re.compile(r"(?:\[Errno -?\d+\] )?(?P<words>[^:'\[\]]+)(?:: '(?P<path>[^']*)')?")


def of_system(language: str, text: str) -> str:
    """A message of the operating system or the YAML reader, in this language; any other text unchanged."""
    found = _SYSTEM.fullmatch(text)
    for words, path in ((text, None), (found["words"], found["path"]) if found else ("", None)):
        translated = by_english(language, "system", words)
        if translated != words:
            return translated if path is None else f"{path}：{translated}"
    return text


@lru_cache(maxsize=4096)
def wording(language: str, key: str, count: object = None) -> str | None:
    """The sentence with its arguments still in braces; its plural form by `count`. None: no such entry."""
    found = catalogue(language, key.partition(".")[0])
    if found is None:
        return None
    # An entry without plural forms is not found by `ngettext`, and one with them not by `gettext`.
    text = found.ngettext(key, key, count) if isinstance(count, int) else key
    if text == key:
        text = found.gettext(key)
    return None if text == key else text
