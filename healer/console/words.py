"""Numbers and times in words. Pure: `now` is a parameter."""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

_SPANS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def span(seconds: float) -> str:
    """A length of time in at most two units: `850 ms`, `4 s`, `12 min`, `3 h 20 min`, `5 d 2 h`."""
    if seconds < 0:
        return "0 s"
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.2f} s"
    whole = int(seconds)
    for index, (size, unit) in enumerate(_SPANS):
        if whole >= size:
            count, rest = divmod(whole, size)
            text = f"{count} {unit}"
            # A second unit only where it helps: hours with minutes, days with hours.
            if index + 1 < len(_SPANS) and unit in ("d", "h"):
                small, small_unit = _SPANS[index + 1]
                if rest // small:
                    text += f" {rest // small} {small_unit}"
            return text
    return "0 s"


def ago(moment: datetime, now: datetime) -> str:
    """`4 min ago`, `in 12 min`, `just now`. The console's script refreshes it by the same steps."""
    seconds = (now - moment).total_seconds()
    if abs(seconds) < 1:
        return "just now"
    text = span(float(int(abs(seconds))))
    return f"{text} ago" if seconds > 0 else f"in {text}"


def utc(moment: datetime) -> str:
    """`2026-11-20 03:12:04 UTC`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def clock_ms(moment: datetime) -> str:
    """`03:12:04.123`, UTC."""
    moment = moment.astimezone(UTC)
    return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}"


def day(moment: datetime) -> str:
    """`Fri 20 Nov 2026`, UTC."""
    return moment.astimezone(UTC).strftime("%a %-d %b %Y")


def iso(moment: datetime) -> str:
    """For the `datetime` attribute of `<time>`: milliseconds, Z."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def offset(moment: datetime, start: datetime) -> str:
    """Distance from the start of an incident: `+0.032 s`, `−1.200 s`, `+4 min 2 s`, `+3 h 20 min`."""
    delta = moment - start
    sign, delta = ("−", -delta) if delta < timedelta(0) else ("+", delta)
    seconds = delta.total_seconds()
    if seconds < 60:
        return f"{sign}{seconds:.3f} s"
    if seconds < 3600:
        return f"{sign}{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{sign}{span(seconds)}"


def alert_taken(rule: str | None) -> str:
    """What an alert of another system is to healer."""
    return f"opens {rule}" if rule else "evidence only"


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


def plural(count: int, singular: str, plural_form: str | None = None) -> str:
    """`1 node`, `4 nodes`."""
    return f"{count:,} {singular if count == 1 else plural_form or singular + 's'}"


def numbers(found: Sequence[int]) -> str:
    """`0 to 7`, `0, 3`; of sorted numbers."""
    if len(found) > 2 and found[-1] - found[0] == len(found) - 1:
        return f"{found[0]} to {found[-1]}"
    return ", ".join(map(str, found))


def names(items: tuple[str, ...] | list[str], show: int = 3) -> str:
    """`gpu1, gpu2, gpu3 and 61 more`."""
    if len(items) <= show:
        return ", ".join(items)
    return f"{', '.join(items[:show])} and {len(items) - show:,} more"


#: Units that are not printed: `98 %` and `3 GPUs`, but `1.18` for a ratio.
_BARE_UNITS = frozenset({"", "ratio", "count", "state", "bits", "bool"})


def figure(value: float | None, unit: str = "") -> str:
    """A measured value as people read it: `1,290 MHz`, `98 %`, `1.18`, `0.0042 /s`; empty for None."""
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
    return text if unit in _BARE_UNITS else f"{text} {unit}"


def sentence(text: str) -> str:
    """With a capital at its start, unless it begins with a name such as gpu0007."""
    first = text.split(" ", 1)[0]
    return text if any(map(str.isdigit, first)) else text[:1].upper() + text[1:]


def plain(text: str) -> str:
    """On one line, with the characters that Markdown and HTML would act on made inert."""
    text = " ".join(text.split())
    for sign in ("\\", "`", "*", "_", "[", "]", "<", ">", "#", "|"):
        text = text.replace(sign, f"\\{sign}")
    return text


def listed(title: str, rows: Sequence[str], translate: Callable[[str], str]) -> list[str]:
    """Lines of a section with its heading; none for no rows. `translate`: to the reader's language."""
    return ["", f"## {translate(title)}", "", *(f"- {plain(translate(row))}" for row in rows)] if rows else []
