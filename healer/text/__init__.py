"""Sentences by key: English at once, other languages when somebody reads them.

`say("decisions.no_pause")` is a text (`Said` is a `str`) that knows its key and arguments. Both are stored
with it, so an incident of last month reads in either language. The catalogues are gettext files, one per
room and language: `en/decisions.po`, `zh/decisions.po`.
"""

from healer.text.moments import at
from healer.text.reading import in_language
from healer.text.said import (
    NO_WORDS,
    Said,
    capital,
    joined,
    no_words,
    quoted,
    reworded,
    said_by,
    say,
    unstopped,
)
from healer.text.stored import from_stored, read_said, stored, stored_json, to_plain, to_stored, to_text
