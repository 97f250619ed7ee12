"""Sentences by key: English at once, other languages when a person reads them.

`say("decisions.no_pause")` is a text (`Said` is a `str`) that knows its key and arguments. Both are stored
with it, so an incident of last month reads in either language. The catalogues are gettext files, one per
room and language: `en/decisions.po`, `zh/decisions.po`.
"""

from healer.text.moments import at
from healer.text.reading import in_language, to_plain, to_text
from healer.text.said import (
    NO_WORDS,
    Said,
    SaidError,
    capital,
    from_stored,
    is_worded,
    joined,
    name_some,
    no_words,
    quoted,
    read_said,
    reworded,
    said_by,
    say,
    stored,
    stored_json,
    to_stored,
    unstopped,
)
