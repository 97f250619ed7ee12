"""msgspec's messages about invalid data, as sentences by key. The English is the library's own."""

import re

from healer.text.said import Said, quoted, say

_FORMS = tuple(
    (re.compile(form, re.DOTALL), name)
    for form, name in (
        (r"Expected `(?P<wanted>[^`]+)`, got `(?P<got>[^`]+)`", "expected_got"),
        (r"Expected (?P<wanted>.+)", "expected"),
        (r"Object missing required field `(?P<name>.+)`", "field_missing"),
        (r"Object contains unknown field `(?P<name>.+)`", "field_unknown"),
        (r"Invalid enum value (?P<value>.+)", "not_allowed"),
        (r"Invalid RFC3339 encoded datetime", "no_time"),
        (r"Number out of range", "out_of_range"),
        (r"Input data was truncated", "cut_short"),
        (r"JSON is malformed: (?P<why>.+)", "malformed"),
    )
)


def decoder_error(text: str) -> Said:
    """A form that this list lacks is quoted unchanged."""
    what, _, path = text.rpartition(" - at `")
    if what:
        return say("decoding.at", text=decoder_error(what), path=path.removesuffix("`"))
    for form, name in _FORMS:
        if found := form.fullmatch(text):
            return say(f"decoding.{name}", **found.groupdict())
    return quoted(text)
