"""nhc.log: nodes that Node Health Check took out, and why.

Its lines have no time, but those of its helper have: `20261125 20:56:33 …/node-mark-offline gpu0001 REASON`.
"""

import re
from datetime import datetime

from healer.importing.happenings import Found, NodeCheck
from healer.importing.local_stamps import LocalStamps
from healer.importing.node_log import TEXT_LETTERS
from healer.importing.node_names import short_name
from healer.importing.source_text import Bytes, texts_of
from healer.text import said_by, say

_CALL = re.compile(
    r"(?P<at>\d{8} \d\d:\d\d:\d\d) (?:\[\w*\] )?\S*/?node-mark-(?P<what>offline|online)(?: (?P<host>\S+)"
    r"(?: (?P<why>.*))?)?$"
)
_FAILED = re.compile(r"(?:\[\d+\] - )?(?:ERROR: +\S+: +)?Health check failed: +(?P<why>.*)")


class NhcLog:
    """One file. `host`: where a line names none."""

    def __init__(self, found: Found, stamps: LocalStamps, host: str = "") -> None:
        self._found, self._stamps, self._host = found, stamps, host
        #: The last failure that had a time, and those whose time is not known yet, each with the number of
        #: its line: the helper's line comes between two of the same words.
        self._dated = ""
        self._undated: list[tuple[str, int]] = []

    def read(self, file: Bytes) -> None:
        for line in texts_of(file, self._found.tally):
            self._take(line)
        self._forget()

    def _take(self, line: str) -> None:
        if failed := _FAILED.match(line):
            if failed["why"] == self._dated:
                self._found.tally.plain += 1
            else:
                self._undated.append((failed["why"], self._found.tally.lines))
            return
        call = _CALL.match(line)
        if call is None:
            self._found.tally.plain += 1
            return
        try:
            at_us = self._stamps.at(datetime.strptime(call["at"], "%Y%m%d %H:%M:%S"))  # noqa: DTZ007
        except ValueError as error:
            self._found.tally.skip(say("importing.no_time_why", why=said_by(error)), line)
            return
        self._found.tally.saw(at_us)
        host = call["host"] or self._host
        failed = _FAILED.match(call["why"] or "")
        why = failed["why"] if failed else call["why"] or ""
        if call["what"] == "online" or not why:
            self._found.tally.plain += 1
            return
        if (same := next((each for each in self._undated if each[0] == why), None)) is not None:
            self._undated.remove(same)
            self._found.tally.plain += 1
        self._forget()
        self._dated = why
        self._found.nodes.add(short_name(host))
        self._found.add(at_us, NodeCheck(host, "health-check", "probe", f"NHC: {why}"[:TEXT_LETTERS]))

    def _forget(self) -> None:
        for why, line in self._undated:
            self._found.tally.skip(say("importing.no_time_by_nhc"), why, line=line)
        self._undated = []
