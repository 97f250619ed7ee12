"""Numbers and times in words. Pure: `now` is a parameter."""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from healer.text import Said, capital, joined, quoted, say

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def span(seconds: float) -> Said:
    """A length of time in at most two units: `850 ms`, `4 s`, `12 min`, `3 h 20 min`, `5 d 2 h`."""
    if 0 <= seconds < 1:
        return say("words.milliseconds", n=round(seconds * 1000))
    if 0 < seconds < 10 and seconds != int(seconds):
        return say("words.seconds", n=f"{seconds:.2f}")
    whole = max(int(seconds), 0)
    if whole < _MINUTE:
        return say("words.seconds", n=whole)
    if whole < _HOUR:
        return say("words.minutes", n=whole // _MINUTE)
    # A second unit only where it helps: hours with minutes, days with hours.
    if whole < _DAY:
        hours, minutes = whole // _HOUR, whole % _HOUR // _MINUTE
        return say("words.hours_minutes", n=hours, more=minutes) if minutes else say("words.hours", n=hours)
    days, hours = whole // _DAY, whole % _DAY // _HOUR
    return say("words.days_hours", n=days, more=hours) if hours else say("words.days", n=days)


def ago(moment: datetime, now: datetime) -> Said:
    """`4 min ago`, `in 12 min`, `just now`. The console's script refreshes it by the same steps."""
    seconds = (now - moment).total_seconds()
    if abs(seconds) < 1:
        return say("words.just_now")
    length = span(float(int(abs(seconds))))
    return say("words.ago", span=length) if seconds > 0 else say("words.in", span=length)


def utc(moment: datetime) -> str:
    """`2026-11-20 03:12:04 UTC`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def minute(moment: datetime) -> str:
    """`2026-11-20 03:12 UTC`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def clock_ms(moment: datetime) -> str:
    """`03:12:04.123`, UTC."""
    moment = moment.astimezone(UTC)
    return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}"


def day(moment: datetime) -> Said:
    """`Fri 20 Nov 2026`, UTC."""
    moment = moment.astimezone(UTC)
    month = say(f"words.month_{moment.month}")
    return say("words.day", weekday=weekday(moment), day=moment.day, month=month, year=moment.year)


def weekday(moment: datetime) -> Said:
    return say(f"words.weekday_{moment.isoweekday()}")


def iso(moment: datetime) -> str:
    """For the `datetime` attribute of `<time>`: milliseconds, Z."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def offset(moment: datetime, start: datetime) -> Said:
    """Distance from the start of an incident: `+0.032 s`, `−1.200 s`, `+4 min 2 s`, `+3 h 20 min`."""
    delta = moment - start
    sign, delta = ("−", -delta) if delta < timedelta(0) else ("+", delta)
    seconds = delta.total_seconds()
    if seconds < 60:
        length = say("words.seconds", n=f"{seconds:.3f}")
    elif seconds < 3600:
        length = say("words.minutes_seconds", n=int(seconds // 60), more=int(seconds % 60))
    else:
        length = span(seconds)
    return joined((sign, length), "nothing")


def labelled(label: str, text: str) -> Said:
    """`drain gpu0017: held`."""
    return say("words.labelled", label=label, text=quoted(text))


def bracketed(text: str, inside: str) -> Said:
    """`2 nodes (gpu0003, gpu0004)`."""
    return say("words.bracketed", text=text, inside=quoted(inside))


def alert_taken(rule: str | None) -> Said:
    """What an alert of another system is to healer."""
    return say("console.alert_opens", rule=rule) if rule else say("console.alert_is_evidence")


def number(value: float | None) -> str:
    """`1,250`, `0.05`, and an empty string for None."""
    if value is None:
        return ""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:.3g}"


def size(count: int) -> str:
    """Bytes for people: `486 B`, `18.5 kB`, `3.4 MB`, `1.2 GB`."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 99.5 else f"{value:.1f} {unit}"


def counted(count: int, noun: str) -> Said:
    """`1 node`, `4 nodes`. The nouns are in the catalogue: `words.count_node`."""
    return say(f"words.count_{noun}", count=count)


def numbers(found: Sequence[int]) -> Said:
    """`0 to 7`, `0, 3`; of sorted numbers."""
    if len(found) > 2 and found[-1] - found[0] == len(found) - 1:
        return say("words.range", first=found[0], last=found[-1])
    return joined(map(str, found), "comma")


#: Units that are not printed: `98%` and `3 GPUs`, but `1.18` for a ratio.
_BARE_UNITS = frozenset({"", "ratio", "count", "state", "bits", "bool"})


def figure(value: float | None, unit: str = "") -> str:
    """A measured value as people read it: `1,290 MHz`, `98%`, `1.18`, `0.0042 /s`; empty for None."""
    if value is None or not math.isfinite(value):
        return ""
    size = abs(value)
    if size >= 1e15 or 0 < size < 1e-4:
        text = f"{value:.3g}"
    elif size >= 1000 or value == int(value):
        text = f"{round(value):,}"
    elif size >= 100:
        text = f"{value:.1f}"
    else:
        text = f"{value:.4g}" if size >= 1 else f"{value:.3g}"
    text = text.replace("-", "−")
    if unit == "%":
        return f"{text}%"
    return text if unit in _BARE_UNITS else f"{text} {unit}"


def sentence(text: str) -> Said:
    """With a capital at its start, unless it begins with a name such as gpu0007."""
    first = text.split(" ", 1)[0]
    return quoted(text) if any(map(str.isdigit, first)) else capital(quoted(text))


def plain(text: str) -> str:
    """On one line, with the characters that Markdown and HTML would act on made inert."""
    text = " ".join(text.split())
    for sign in ("\\", "`", "*", "_", "[", "]", "<", ">", "#", "|"):
        text = text.replace(sign, f"\\{sign}")
    return text


def listed(title: str, rows: Sequence[str], translate: Callable[[str], str]) -> list[str]:
    """Lines of a section with its heading; none for no rows. `translate`: to the reader's language."""
    return ["", f"## {translate(title)}", "", *(f"- {plain(translate(row))}" for row in rows)] if rows else []
