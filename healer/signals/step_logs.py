"""What training programs print -> how long a step took, for `healer send step-times --from-log`.

Such a line is about all ranks together: it gives `step_s` and never who is slow. Forms:

- Megatron-LM and its kin: `iteration 10/ 100 | … | elapsed time per iteration (ms): 12936.1 | … | lm loss: …`
  (a mean over the log interval);
- DeepSpeed: `steps: 10 loss: 2.31 iter time (s): 1.234 …` of its pipeline engine; else lines that name a step
  and begin with a time, `global_step=10, RunningAvgSamplesPerSec=…` and `[Rank 0] step=10, skipped=0`: the
  time between two of them, by the number of steps, unless an evaluation or a save lay between;
- Lightning: its progress bars (`Bars`), and `metrics.csv` while it is being written.

Lines that say nothing of a step are passed over; nothing is ever raised.
"""

import math
import re
from collections import defaultdict, deque
from collections.abc import Callable
from datetime import datetime
from statistics import median
from typing import NamedTuple

from healer.signals.values import float_or_none

# --- step bars ----------------------------------------------------------------------------------------------
# Lightning's progress bars, of tqdm and rich -> how long a step took.
#
# A bar shows how many batches were done after how many whole seconds of its epoch, and a rate of two
# decimals. The rate is coarse where steps are slow (`0.02it/s` is 40 s as well as 66 s), and tqdm's is the
# mean since the epoch began, in which a slowdown hides. So a step's time is taken from two bars of one
# epoch, as soon as they lie so far apart that whole seconds do not matter. The rate is used only for an epoch
# that ends before that, and only if it is fine enough.

#: Largest error of a step's time, as a share of it.
FINE = 0.02
#: What lies between two times in whole seconds is known to a second.
APART_S = 1 / FINE

_BAR_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,15})?"
_CLOCK = r"(?:(?P<days>\d{1,4}) days?, )?(?:(?P<hours>\d{1,5}):)?(?P<minutes>\d\d):(?P<seconds>\d\d)"
_COUNT = r"(?P<done>\d{1,12})/(?P<total>\d{1,12}|\?|--)"
_TQDM = re.compile(
    rf"Epoch (?P<epoch>\d{{1,9}}): {{1,4}}(?:\d{{1,3}}%)?\|[^|]{{0,400}}\| {_COUNT} "
    rf"\[{_CLOCK}<[^\],]{{0,40}}, {{1,8}}(?:(?P<rate>{_BAR_NUMBER}) ?(?P<unit>it/s|s/it)|\?)"
)
_RICH = re.compile(
    rf"Epoch (?P<epoch>\d{{1,9}})(?:/-?\d{{1,9}})? [^0-9]{{1,400}}{_COUNT} {{1,4}}{_CLOCK} "
    rf"[^i]{{0,40}}?(?P<rate>{_BAR_NUMBER})(?P<unit>it/s)"
)


#: The bar of a validation, of tqdm or rich; a program's own line about a validation does not count.
_VALIDATION = re.compile(
    r"Validation(?: DataLoader \d{1,9})?(?:: {1,4}(?:\d{1,3}%)?\||[^\w:]{3,400}\d{1,12}/(?:\d|\?|--))"
)


class Bar(NamedTuple):
    """One drawing of a bar. `total` is None if the loader does not know it; `rate_s` is None if the rate is
    coarser than FINE."""

    epoch: int
    done: int
    total: int | None
    elapsed_s: int
    rate_s: float | None


def parse_bar(text: str) -> Bar | None:
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
    """The bars of one log, in order. `usual` returns the time of a step, or None if there was more than steps
    in between."""

    def __init__(self, usual: Callable[[float], float | None]) -> None:
        self._usual = usual
        #: The bar from which the next time is measured; None: the next bar drawn.
        self._since: Bar | None = None
        self._last: Bar | None = None
        #: A time of this epoch was returned.
        self._timed = False
        #: Batches of earlier epochs, if bars do not show how many an epoch has.
        self._before = 0

    def pause(self) -> None:
        """The training pauses for a validation: the next time starts after it."""
        self._since = None

    def advance(self, now: Bar) -> tuple[int, float] | None:
        """Number of the step, and its time in s, if this bar completes one."""
        last, self._last = self._last, now
        if last is None or now.epoch != last.epoch or now.done < last.done or now.elapsed_s < last.elapsed_s:
            self._since, self._timed = None, False
            if last is not None and now.epoch != last.epoch:
                self._before = self._before + last.done if now.epoch > last.epoch else 0
        if self._since is None:
            # The first batch of an epoch is also waited for: the loader starts.
            self._since = now if now.done else None
        took = self._took(now)
        if took is None:
            return None
        self._timed = True
        before = self._before if now.total is None else now.epoch * now.total
        return before + now.done, took

    def _took(self, now: Bar) -> float | None:
        since = self._since
        if since is not None and now.done > since.done and now.elapsed_s - since.elapsed_s >= APART_S:
            self._since = now
            return self._usual((now.elapsed_s - since.elapsed_s) / (now.done - since.done))
        return now.rate_s if 0 < now.done == now.total and not self._timed else None


def _fine(rate: str | None, unit: str | None) -> float | None:
    """Seconds per step, if the last digit of the rate is precise enough."""
    if rate is None or float(rate) == 0:
        return None
    last_digit = 10.0 ** -len(rate.partition(".")[2])
    if last_digit / 2 > FINE * float(rate):
        return None
    return 1 / float(rate) if unit == "it/s" else float(rate)


# --- step logs ----------------------------------------------------------------------------------------------

#: Plausibility limits: characters per line, seconds per step, steps between two lines, columns.
LINE_MAX, SECONDS_MAX, STEPS_MAX, COLUMNS_MAX = 8_192, 86_400.0, 100_000, 500
#: If a time is more than this many times the median of the last ones (this many), something else happened
#: between two lines. A lasting pace is accepted once it is the median.
GAP, PACES = 4.0, 15
FORMATS = ("auto", "megatron", "deepspeed", "lightning")

_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,15})?"
_STAMP = re.compile(r"\[?(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)")
_MEGATRON = re.compile(r"\biteration\s{1,20}(\d{1,15})\s{0,20}/\s{0,20}\d{1,15}\s{0,20}\|")
_PIPELINE = re.compile(rf"\bsteps: (\d{{1,15}}) loss: (\S{{1,40}}) .{{0,200}}?iter time \(s\): ({_NUMBER})")
_GLOBAL_STEP = re.compile(r"\bglobal_step=(\d{1,15}), RunningAvgSamplesPerSec=")
_RANK_STEP = re.compile(r"\[Rank 0\] step=(\d{1,15}), skipped=")
_COLUMN = re.compile(r"[A-Za-z0-9_./ -]{1,100}")
_LOSSES = ("train_loss_step", "train_loss", "loss_step", "loss", "train/loss")


class LogStep(NamedTuple):
    """The content of one line. `stamp`: the line's own time, without a zone, as written by the training's
    machine.

    A `loss` or `grad_norm` that is not a number is infinite.
    """

    step: int
    step_s: float
    stamp: datetime | None = None
    loss: float | None = None
    grad_norm: float | None = None


class LogReader:
    """Reads one log, line by line. `form` is one of FORMATS; `auto` tries all."""

    def __init__(self, form: str = "auto") -> None:
        readers: dict[str, tuple[Callable[[str, datetime | None], LogStep | None], ...]] = {
            "megatron": (_megatron,),
            "deepspeed": (_pipeline, self._deepspeed),
            "lightning": (self._lightning, self._csv),
        }
        self._readers = (
            readers[form] if form != "auto" else tuple(r for some in readers.values() for r in some)
        )
        #: A line was about steps, whether or not it gave their time.
        self.spoken = False
        self._last_step: int | None = None
        #: By kind of line: the last step and its time.
        self._before: dict[str, tuple[int, datetime]] = {}
        #: By kind of line: seconds per step between the last lines.
        self._paces: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=PACES))
        self._columns: list[str] = []
        self._bars = Bars(lambda took: self._usual("bar", took))

    def line(self, text: str, at: datetime | None = None) -> LogStep | None:
        """The step reported by the line, once per step. `at`: when it was seen to be written, if known."""
        if len(text) > LINE_MAX:
            return None
        for read in self._readers:
            found = read(text, at)
            if found is None:
                continue
            self.spoken = True
            if not 0 < found.step_s <= SECONDS_MAX or found.step == self._last_step:
                return None  # each rank, or each redraw of a bar, reports the same step
            self._last_step = found.step
            return found
        return None

    def _deepspeed(self, text: str, at: datetime | None) -> LogStep | None:
        for kind, pattern in (("global", _GLOBAL_STEP), ("rank", _RANK_STEP)):
            match = pattern.search(text)
            if match:
                self.spoken = True
                stamp = _stamp(text)
                took = self._since(kind, int(match[1]), stamp or at)
                return None if took is None else LogStep(int(match[1]), took, stamp)
        return None

    def _lightning(self, text: str, _: datetime | None) -> LogStep | None:
        drawn = parse_bar(text)
        if drawn is None:
            if validates(text):
                self._bars.pause()
            return None
        self.spoken = True
        timed = self._bars.advance(drawn)
        # The loss next to it may still be that of the step before.
        return None if timed is None else LogStep(*timed)

    def _csv(self, text: str, at: datetime | None) -> LogStep | None:
        """Rows of Lightning's CSVLogger have no time: they are dated by when they were written."""
        cells = text.strip().split(",")
        if "step" in cells and len(cells) <= COLUMNS_MAX and all(_COLUMN.fullmatch(cell) for cell in cells):
            self._columns, self.spoken = cells, True
            self._before.pop("csv", None)
            return None
        if not self._columns or len(cells) != len(self._columns) or at is None:
            return None
        row = dict(zip(self._columns, cells, strict=True))
        if not (row["step"].isascii() and row["step"].isdigit() and len(row["step"]) <= 15):
            return None
        took = self._since("csv", int(row["step"]), at)
        loss = next((_result(row[name]) for name in _LOSSES if row.get(name)), None)
        return None if took is None else LogStep(int(row["step"]), took, loss=loss)

    def _since(self, kind: str, step: int, when: datetime | None) -> float | None:
        """Seconds per step since the last line of this kind; None if there was more than steps in between."""
        before = self._before.get(kind)
        if when is None:
            return None
        self._before[kind] = (step, when)
        if before is None or not 0 < step - before[0] <= STEPS_MAX:
            return None
        if (when.tzinfo is None) is not (before[1].tzinfo is None):
            return None
        return self._usual(kind, (when - before[1]).total_seconds() / (step - before[0]))

    def _usual(self, kind: str, took: float) -> float | None:
        """The same; None if it is far longer than usual for lines of this kind."""
        paces = self._paces[kind]
        usual = median(paces) if paces else took
        paces.append(max(took, 0.0))
        return took if took <= GAP * usual else None


def _megatron(text: str, _: datetime | None) -> LogStep | None:
    match = _MEGATRON.search(text)
    if match is None:
        return None
    fields: dict[str, float] = {}
    for part in text[match.end() :].split("|"):
        name, colon, value = part.partition(": ")
        number = _result(value.strip()) if colon else None
        if number is not None:
            fields.setdefault(name.strip(), number)
    took = fields.get("elapsed time per iteration (ms)")
    if took is None or math.isinf(took):
        return None
    loss = next((fields[name] for name in fields if name == "loss" or name.endswith(" loss")), None)
    return LogStep(int(match[1]), took / 1000, _stamp(text), loss, fields.get("grad norm"))


def _pipeline(text: str, _: datetime | None) -> LogStep | None:
    match = _PIPELINE.search(text)
    if match is None:
        return None
    return LogStep(int(match[1]), float(match[3]), _stamp(text), _result(match[2]))


def _stamp(text: str) -> datetime | None:
    """The first time at the beginning of the line: `[2024-03-07 15:27:02,646]`."""
    match = _STAMP.search(text[:200])
    if match is None:
        return None
    try:
        return datetime.fromisoformat(match[1].replace(",", "."))
    except ValueError:
        return None


def _result(text: str) -> float | None:
    """A loss or norm; infinite for NaN and infinity, None for other text."""
    number = float_or_none(text)
    return number if number is None or math.isfinite(number) else math.inf
