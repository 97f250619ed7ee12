"""Local times without year or zone -> moments, by the order of the lines."""

import copy
from datetime import UTC, datetime, timedelta, tzinfo

from healer.text import say

#: A line may be this much older than the one before it; more is the clock set back in autumn.
DISORDER = timedelta(minutes=10)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), start=1
    )
}


#: 2010 to 2100. A clock that was never set says 1970; a replay would walk through all years in between.
_FIRST_US, _LAST_US = 1_262_304_000_000_000, 4_102_444_800_000_000


def is_time(at_us: int) -> bool:
    """Whether it can be the time of a log at all."""
    return _FIRST_US <= at_us <= _LAST_US


def is_day(text: str) -> bool:
    """Whether it is a date, as `2026-11-20`, that a log can have."""
    try:
        return is_time(micros(datetime.fromisoformat(f"{text}T12:00:00Z")))
    except ValueError:
        return False


def micros(moment: datetime) -> int:
    """µs since 1970 of a time with a zone."""
    return (moment - _EPOCH) // _US


def moment_of(at_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=at_us)


def rfc3339(at_us: int) -> str:
    return moment_of(at_us).isoformat().replace("+00:00", "Z")


def shown_time(at_us: int) -> str:
    """For people: also of a time that no calendar has."""
    try:
        return rfc3339(at_us)
    except OverflowError:
        return f"{at_us} µs"


class LocalStamps:
    """The clock of one source. Ask it in the order of the lines.

    A stamp without a year is of the year that puts it nearest to the line before; the first is of the last
    year that does not put it after `written`, the time the file was last written. An hour that comes twice
    in autumn is the second one once a line goes back by more than DISORDER.
    """

    def __init__(self, zone: tzinfo, written: datetime) -> None:
        self._zone, self._written = zone, written
        self._last: datetime | None = None
        #: The first year that was assumed; None: every stamp had one.
        self.assumed_year: int | None = None
        #: A name of a zone that stamps have and this one has not; empty: there is none.
        self.other_zone = ""
        #: Lines in an hour that the clock skipped in spring: such a clock is in another zone.
        self.skipped_hour = 0

    def at(self, local: datetime, named: str = "") -> int:
        """µs since 1970; a stamp with a zone of its own is of that. `named`: the zone by name (`CET`).
        Raises ValueError for a year that no log has."""
        if not 2010 <= local.year < 2100:
            raise ValueError(say("words.implausible_year", year=local.year))
        if local.tzinfo is not None:
            return micros(local)
        found = local.replace(tzinfo=self._zone)
        first, second = found.utcoffset(), found.replace(fold=1).utcoffset()
        if named and named not in (found.tzname(), found.replace(fold=1).tzname()):
            self.other_zone = named
        if first is not None and second is not None and first != second:
            if first < second:
                self.skipped_hour += 1
            elif named == found.replace(fold=1).tzname() or (
                self._last is not None and found.astimezone(UTC) < self._last - DISORDER
            ):
                found = found.replace(fold=1)
        moment = found.astimezone(UTC)
        if self._last is None or moment > self._last:
            self._last = moment
        return micros(moment)

    def span(self, begin: datetime, end: datetime | None) -> tuple[int, int | None]:
        """As `at`, for a row whose place among the rows says nothing. In an hour that comes twice `begin` is
        the first one, and `end` the first one that is not before it."""
        begin_us = self._alone(begin)
        if end is None:
            return begin_us, None
        end_us = self._alone(end)
        return begin_us, end_us if end_us >= begin_us else self._alone(end.replace(fold=1))

    def _alone(self, local: datetime) -> int:
        alone = LocalStamps(self._zone, self._written)
        found = alone.at(local)
        self.skipped_hour += alone.skipped_hour
        return found

    def without_year(self, month: str, day: int, clock: str) -> int:
        """`clock` is HH:MM:SS with or without a fraction. Raises ValueError for a date that no year has."""
        number = _MONTHS.get(month)
        if number is None:
            raise ValueError(say("importing.no_month", month=month))
        return self.at(self._dated(number, day, clock))

    def changes_between(self, first_us: int, last_us: int) -> bool:
        """Whether the clock is set forward or back between two moments."""
        ends = (moment_of(at_us).astimezone(self._zone).utcoffset() for at_us in (first_us, last_us))
        return next(ends) != next(ends)

    def peek(self) -> "LocalStamps":
        """A copy, to read a stamp out of order."""
        return copy.copy(self)

    def _dated(self, month: int, day: int, clock: str) -> datetime:
        if self._last is None:
            return self._first(month, day, clock)
        last = self._last.astimezone(self._zone).replace(tzinfo=None)
        years = (last.year - 1, last.year, last.year + 1)
        found = [at for year in years if (at := _local(year, month, day, clock)) is not None]
        if not found:
            raise ValueError(say("importing.no_date_near", year=last.year))
        return min(found, key=lambda at: abs(at - last))

    def _first(self, month: int, day: int, clock: str) -> datetime:
        latest = self._written.astimezone(self._zone).replace(tzinfo=None) + timedelta(days=1)
        for year in range(latest.year, latest.year - 9, -1):
            at = _local(year, month, day, clock)
            if at is not None and at <= latest:
                self.assumed_year = year
                return at
        raise ValueError(say("importing.no_date"))


def _local(year: int, month: int, day: int, clock: str) -> datetime | None:
    try:
        return datetime.fromisoformat(f"{year:04d}-{month:02d}-{day:02d}T{clock}")
    except ValueError:
        return None
