"""Lightning's progress bars, of tqdm and rich -> how long a step took.

A bar tells how many batches were done after how many whole seconds of its epoch, and a rate of two
decimals. The rate is coarse where steps are slow (`0.02it/s` is 40 s as well as 66 s), and tqdm's is the mean
since the epoch began, in which a slowdown hides. So a step's time is taken from two bars of one epoch, as
soon as they lie so far apart that whole seconds do not matter. The rate tells only of an epoch that ends
before, if it is fine.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

#: How far off a told time may be at most, as a share of it.
FINE = 0.02
#: What lies between two times in whole seconds is known to a second.
APART_S = 1 / FINE

_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,15})?"
_CLOCK = r"(?:(?P<days>\d{1,4}) days?, )?(?:(?P<hours>\d{1,5}):)?(?P<minutes>\d\d):(?P<seconds>\d\d)"
_COUNT = r"(?P<done>\d{1,12})/(?P<total>\d{1,12}|\?|--)"
_TQDM = re.compile(
    rf"Epoch (?P<epoch>\d{{1,9}}): {{1,4}}(?:\d{{1,3}}%)?\|[^|]{{0,400}}\| {_COUNT} "
    rf"\[{_CLOCK}<[^\],]{{0,40}}, {{1,8}}(?:(?P<rate>{_NUMBER}) ?(?P<unit>it/s|s/it)|\?)"
)
_RICH = re.compile(
    rf"Epoch (?P<epoch>\d{{1,9}})(?:/-?\d{{1,9}})? [^0-9]{{1,400}}{_COUNT} {{1,4}}{_CLOCK} "
    rf"[^i]{{0,40}}?(?P<rate>{_NUMBER})(?P<unit>it/s)"
)


#: The bar of a validation, of tqdm or rich; a line of the program's own about one is none.
_VALIDATION = re.compile(
    r"Validation(?: DataLoader \d{1,9})?(?:: {1,4}(?:\d{1,3}%)?\||[^\w:]{3,400}\d{1,12}/(?:\d|\?|--))"
)


class Bar(NamedTuple):
    """One drawing of a bar. `total` is None where the loader does not know it; `rate_s` where the rate tells
    the time of a step less well than FINE."""

    epoch: int
    done: int
    total: int | None
    elapsed_s: int
    rate_s: float | None


def bar(text: str) -> Bar | None:
    """The bar of a training that is drawn in this line; None where there is none."""
    match = _TQDM.search(text) or _RICH.search(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (
        int(match[part] or 0) for part in ("days", "hours", "minutes", "seconds")
    )
    return Bar(
        epoch=int(match["epoch"]),
        done=int(match["done"]),
        total=int(match["total"]) if match["total"].isdigit() else None,
        elapsed_s=((24 * days + hours) * 60 + minutes) * 60 + seconds,
        rate_s=_fine(match["rate"], match["unit"]),
    )


def validates(text: str) -> bool:
    """Whether the bar of a validation is drawn in this line."""
    return _VALIDATION.search(text) is not None


class Bars:
    """The bars of one log, in its order. `usual` gives back a time of a step, or None where more than steps
    lay between."""

    def __init__(self, usual: Callable[[float], float | None]) -> None:
        self._usual = usual
        #: Where what is told next begins; None: at the next bar.
        self._since: Bar | None = None
        self._last: Bar | None = None
        #: Something of this epoch was told.
        self._told = False
        #: Batches of the epochs before, where bars do not tell how many there are.
        self._before = 0

    def aside(self) -> None:
        """The training rests, for a validation: what comes begins anew."""
        self._since = None

    def drawn(self, now: Bar) -> tuple[int, float] | None:
        """Number of the step, and its time in s, if this bar tells it."""
        last, self._last = self._last, now
        if last is None or now.epoch != last.epoch or now.done < last.done or now.elapsed_s < last.elapsed_s:
            self._since, self._told = None, False
            if last is not None and now.epoch != last.epoch:
                self._before = self._before + last.done if now.epoch > last.epoch else 0
        if self._since is None:
            # The first batch of an epoch is also waited for: the loader starts.
            self._since = now if now.done else None
        took = self._took(now)
        if took is None:
            return None
        self._told = True
        before = self._before if now.total is None else now.epoch * now.total
        return before + now.done, took

    def _took(self, now: Bar) -> float | None:
        since = self._since
        if since is not None and now.done > since.done and now.elapsed_s - since.elapsed_s >= APART_S:
            self._since = now
            return self._usual((now.elapsed_s - since.elapsed_s) / (now.done - since.done))
        return now.rate_s if 0 < now.done == now.total and not self._told else None


def _fine(rate: str | None, unit: str | None) -> float | None:
    """Seconds a step, where the last digit of the rate says that well enough."""
    if rate is None or float(rate) == 0:
        return None
    last_digit = 10.0 ** -len(rate.partition(".")[2])
    if last_digit / 2 > FINE * float(rate):
        return None
    return 1 / float(rate) if unit == "it/s" else float(rate)
