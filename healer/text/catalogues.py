"""The catalogues of the sentences: `<language>/<room>.po` beside this file, read once when first needed."""

from collections.abc import Mapping
from functools import lru_cache
from gettext import GNUTranslations
from io import BytesIO
from pathlib import Path

FOLDER = Path(__file__).parent
ENGLISH = "en"


@lru_cache
def sentences_of(language: str, room: str) -> GNUTranslations | None:
    """The sentences of one room, by key. None: this language has no such file."""
    from babel.messages.mofile import write_mo
    from babel.messages.pofile import read_po

    path = FOLDER / language / f"{room}.po"
    if not path.is_file():
        return None
    compiled = BytesIO()
    with path.open("rb") as file:
        write_mo(compiled, read_po(file, locale=language, abort_invalid=True))
    compiled.seek(0)
    return GNUTranslations(compiled)


def wording(language: str, key: str, arguments: Mapping[str, object]) -> str | None:
    """The sentence with its arguments still in braces; its plural form by `count`. None: no such entry."""
    found = sentences_of(language, key.partition(".")[0])
    if found is None:
        return None
    count = arguments.get("count")
    # An entry without plural forms is not found by `ngettext`, and one with them not by `gettext`.
    text = found.ngettext(key, key, count) if isinstance(count, int) else key
    if text == key:
        text = found.gettext(key)
    return None if text == key else text
