"""Samples that a Prometheus or VictoriaMetrics holds, at the resolution that is there.

A range selector (`{…}[600s]`) answers with samples as they were stored. It is asked window by window; what
is too large for the server or for us is asked again in halves, first of time, then of names. So is what takes
too long, down to the first window: a server that is away answers for none.
"""

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from healer.adapters.pull.promql_client import PromqlClient
from healer.importing.happenings import Found
from healer.importing.measured_text import MeasuredText
from healer.importing.source_text import Bytes
from healer.ports.measurements import AnswerTooLong, HistoryAway
from healer.signals.promql import decode_names, result, result_and_lack, selector
from healer.signals.rejects import BadBody
from healer.signals.series import Names
from healer.text import said_by, say

TIMEOUT_S = 120.0
#: A window begins with this, grows while answers are small, and is not halved below the least.
FIRST_S, LEAST_S, MOST_S = 600, 15, 6 * 3600
_SMALL_BYTES = 4 << 20
#: Waits between attempts at a server that does not answer.
_AGAIN_S = (2.0, 10.0, 30.0)


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The samples to import: of (since, until], in whole seconds, with labels that match `match`."""

    url: str
    since: datetime
    until: datetime
    match: str = ""
    token_file: str = ""


class LiveMetrics:
    """One server. Its address is kept with the import's state, so that an interrupted one continues."""

    def __init__(self, found: Found, names: Names, window: Window) -> None:
        self._found, self._names, self._window = found, names, window
        self._samples = MeasuredText(found, names, 0)
        self._next, self._width_s, self._most_s = window.since, FIRST_S, MOST_S

    def read(self, file: Bytes) -> None:
        window, tally = self._window, self._found.tally
        token = Path(window.token_file) if window.token_file else None
        client = PromqlClient(window.url, token, timeout_s=TIMEOUT_S)
        try:
            all_names = decode_names(client.names(window.since, window.until))
            series_names = sorted(name for name in all_names if name in self._names)
            if not series_names:
                tally.skip(say("importing.server_unknown_names"))
            else:  # an error in `match` occurs in every window
                result(self._answer(client, selector(series_names[:1], window.match), self._next, _AGAIN_S))
            while series_names and self._next < window.until:
                end = min(self._next + timedelta(seconds=self._width_s), window.until)
                size = self._ask(client, series_names, self._next, end)
                self._width_s = min(self._most_s, self._width_s * 2) if size < _SMALL_BYTES else self._width_s
                self._next = end
                file.processed(tally.read_bytes)
        except (HistoryAway, BadBody) as error:
            tally.skip(say("importing.server_away", until=self._next.isoformat(), why=said_by(error)))
        finally:
            client.close()

    def _ask(self, client: PromqlClient, names: Sequence[str], begin: datetime, end: datetime) -> int:
        """The size of the answer in bytes. Raises HistoryAway."""
        span_s = round((end - begin).total_seconds())
        try:
            waits_s = _AGAIN_S if span_s <= FIRST_S else ()
            raw = self._answer(client, f"{selector(names, self._window.match)}[{span_s}s]", end, waits_s)
            self._take(raw, begin)
            return len(raw)
        except (HistoryAway, BadBody) as error:
            if isinstance(error, HistoryAway) and not isinstance(error, AnswerTooLong):
                if span_s <= FIRST_S:
                    raise
                self._most_s = max(FIRST_S, span_s // 2)
            if span_s > LEAST_S:
                middle = begin + timedelta(seconds=span_s // 2)
                self._width_s = min(self._width_s, max(LEAST_S, span_s // 2))
                halves = ((names, begin, middle), (names, middle, end))
            elif len(names) > 1:
                half = len(names) // 2
                halves = ((names[:half], begin, end), (names[half:], begin, end))
            else:
                why = said_by(error)
                self._found.tally.skip(say("importing.server_refused", name=names[0], why=why))
                return _SMALL_BYTES
        return sum(self._ask(client, *half) for half in halves)

    def _answer(self, client: PromqlClient, query: str, end: datetime, waits_s: Sequence[float]) -> bytes:
        for wait_s in waits_s:
            try:
                return client.query(query, end)
            except AnswerTooLong:
                raise
            except HistoryAway:
                time.sleep(wait_s)
        return client.query(query, end)

    def _take(self, raw: bytes, begin: datetime) -> None:
        """Raises BadBody."""
        series, why = result_and_lack(raw)
        if why:
            self._found.tally.skip(say("importing.server_partial", why=why), begin.isoformat(), line=0)
        self._found.tally.read_bytes += len(raw)
        self._found.tally.lines += len(series)
        after_ms = round(begin.timestamp() * 1000)
        self._samples.take_series(
            ((msgspec.json.decode(each.metric, type=dict[str, str]), each.values) for each in series),
            after_ms,
        )
