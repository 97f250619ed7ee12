"""Lines of Slurm's daemons: the time in brackets, the level, the message."""

import re
from collections.abc import Iterator
from datetime import datetime

from healer.importing.happenings import Found
from healer.importing.local_stamps import LocalStamps, micros
from healer.importing.source_text import Bytes, blocks, lines_in
from healer.text import Said, said_by, say

_STAMP = re.compile(
    r"\[(?:(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?)(?P<zone>Z|[+-]\d\d:?\d\d)?"
    r"|(?P<month>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) (?P<clock>\d\d:\d\d:\d\d(?:\.\d+)?))\] ?"
)
#: In front of the message: the daemon (what it wrote to stderr, in the journal behind the journal's own tag),
#: the level, and the thread (LogTimeFormat=thread_id) or the step.
_LEVEL = re.compile(
    r"(?:slurm(?:ctld|(?:step)?d(?:-[^ :]{1,80})?): +)?"
    r"(?:\[[^\]]{1,40}\] *)?(?:(?:error|info|debug\d?|verbose|fatal|sched(?=: error)): +)*"
)
_DAY = re.compile(rb"^\[(\d{4}-\d\d-\d\d)T", re.MULTILINE)


def messages(
    file: Bytes, stamps: LocalStamps, found: Found, interesting: re.Pattern[bytes], host: str = ""
) -> Iterator[tuple[int, str]]:
    """(time in µs, message) of each line with one of the interesting words; the others are counted. `host`
    wrote on the days of all lines."""
    for block in blocks(file, found.tally):
        found.tally.plain += block.count(b"\n")
        if host:
            for day in set(_DAY.findall(block)):
                found.hear(host, day.decode())
        for line in lines_in(block, found.tally):
            if interesting.search(line) is None:
                continue
            text = line.decode("utf-8", "replace")
            match = _STAMP.match(text)
            try:
                at_us = None if match is None else _moment(match, stamps)
            except ValueError as error:
                _skip(found, say("importing.no_time_why", why=said_by(error)), text)
                continue
            if match is None or at_us is None:
                _skip(found, say("importing.no_time_in_brackets"), text)
            else:
                yield at_us, text[match.end() :]


def _skip(found: Found, why: Said, text: str) -> None:
    found.tally.plain -= 1
    found.tally.skip(why, text)


def without_level(message: str) -> str:
    return message[_LEVEL.match(message).end() :]  # type: ignore[union-attr] - it fits the empty text


def message_of(line: bytes) -> str:
    """Without its time and level."""
    text = line.decode("utf-8", "replace")
    return without_level(text[match.end() :] if (match := _STAMP.match(text)) else text)


def _moment(match: re.Match[str], stamps: LocalStamps) -> int:
    """Raises ValueError."""
    if match["iso"] is None:
        return stamps.without_year(match["month"], int(match["day"]), match["clock"])
    if match["zone"]:
        return micros(datetime.fromisoformat(match["iso"] + match["zone"]))
    return stamps.at(datetime.fromisoformat(match["iso"]))
