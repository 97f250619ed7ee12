"""Lines of training logs: what counts, what is passed over, and that no line is too much."""

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healer.signals.step_logs import FORMATS, LINE_MAX, PACES, LogReader, LogStep

MEGATRON = (
    " [2025-08-01 07:19:50] iteration        2/    5000 | consumed samples:          256 | elapsed time per "
    "iteration (ms): 12936.1 | throughput per GPU (TFLOP/s/GPU): 118.7 | learning rate: 1.39E-07 | global "
    "batch size:   128 | lm loss: 1.044022E+01 | loss scale: 1.0 | grad norm: 26.305 | number of skipped "
    "iterations:   0 | number of nan iterations:   0 |"
)
OLD_MEGATRON = (
    " iteration       10/  500000 | consumed samples: 160 | elapsed time per iteration (ms): 605.5 | "
    "learning rate: 1.500E-06 | global batch size:    16 | loss scale: 4096.0 | grad norm: nan |"
)
PIPELINE = "steps: 200 loss: 5.5508 lm loss: 5.5103 iter time (s): 0.936 samples/sec: 136.706"
TIMER = (
    "[2024-03-07 15:27:02,646] [INFO] [timer.py:260:stop] epoch=0/micro_step=199/global_step={step}, "
    "RunningAvgSamplesPerSec=58.73, CurrSamplesPerSec=61.35, MemAllocated=6.01GB, MaxMemAllocated=19.52GB"
)
RANK = "[2024-03-07 15:27:{second:02},646] [INFO] [logging.py:96:log_dist] [Rank 0] step={step}, skipped=0"
TQDM = (
    "Epoch 3:  50%|█████     | 50/100 [00:25<00:25,  2.00it/s, v_num=0, train_loss_step=2.310, val_loss=9.0]"
)
RICH = "Epoch 1/9  ━━━━━━━━━╸━━━━━ 10/40 0:00:05 • 0:00:15 18.18it/s v_num: 0.000 train_loss: 0.385"
AT = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)


def read(*lines: str, form: str = "auto", every_s: float | None = None) -> list[LogStep]:
    """With `every_s` the lines were seen to be written, one each so many seconds."""
    reader = LogReader(form)
    steps = []
    for number, line in enumerate(lines):
        at = None if every_s is None else AT + timedelta(seconds=number * every_s)
        one = reader.line(line, at)
        if one is not None:
            steps.append(one)
    return steps


def test_megatron() -> None:
    stamp = datetime.fromisoformat("2025-08-01 07:19:50")
    assert read(MEGATRON) == [LogStep(2, pytest.approx(12.9361), stamp, 10.44022, 26.305)]
    assert read("[default0]: " + OLD_MEGATRON) == [LogStep(10, pytest.approx(0.6055), grad_norm=math.inf)]


def test_deepspeeds_pipeline_engine() -> None:
    assert read(PIPELINE) == [LogStep(200, 0.936, None, 5.5508)]
    assert read("steps: 251 loss: nan iter time (s): 2.8")[0].loss == math.inf
    assert read("steps: 252 loss: 1_0 iter time (s): 2.8")[0].loss is None


def test_deepspeeds_other_lines_count_from_one_to_the_next() -> None:
    lines = [RANK.format(second=2, step=10), "garbage", RANK.format(second=22, step=20)]
    assert [(one.step, one.step_s) for one in read(*lines)] == [(20, 2.0)]
    later = TIMER.replace("15:27:02", "15:27:12")
    assert [(one.step, one.step_s) for one in read(TIMER.format(step=199), later.format(step=209))] == [
        (209, 1.0)
    ]
    # A restart goes back; what lies between is no step.
    assert read(RANK.format(second=2, step=100), RANK.format(second=30, step=10)) == []


def stamped(minute: float, step: int) -> str:
    when = AT + timedelta(minutes=minute)
    return f"[{when:%Y-%m-%d %H:%M:%S},1] [INFO] [Rank 0] step={step}, skipped=0"


def test_an_evaluation_between_two_lines_is_no_step() -> None:
    minutes = [0, 1, 2, 22, 23]  # twenty minutes lay between 20 and 30
    steps = read(*[stamped(minute, 10 * number) for number, minute in enumerate(minutes)])
    assert [(one.step, one.step_s) for one in steps] == [(10, 6.0), (20, 6.0), (40, 6.0)]


def test_a_pace_that_stays_slow_is_believed() -> None:
    minutes = [*range(21), *range(30, 30 + 10 * PACES, 10)]
    steps = read(*[stamped(minute, 10 * number) for number, minute in enumerate(minutes)])
    assert [one.step_s for one in steps[:20]] == [6.0] * 20
    slow = [(one.step, one.step_s) for one in steps[20:]]
    assert {pace for _, pace in slow} == {60.0}
    # The first of them came after 10 minutes instead of 1; half of the last paces have to be slow.
    assert [step for step, _ in slow] == list(range(10 * (21 + PACES // 2 + 1), 10 * (21 + PACES), 10))


def test_lines_flushed_in_batches_give_no_step_times() -> None:
    """As Lightning's CSVLogger flushes them, a hundred at a time: their times are those of the writing."""
    reader = LogReader("lightning")
    reader.line("epoch,step,train_loss")
    steps = [
        reader.line(f"0,{step},0.5", AT + timedelta(seconds=step // 100 * 60)) for step in range(0, 400, 10)
    ]
    assert [one for one in steps if one is not None] == []


def test_megatron_over_deepspeed_reports_each_step_once() -> None:
    lines = [
        line
        for step, second in ((10, 10), (20, 40))
        for line in (RANK.format(second=second, step=step), OLD_MEGATRON.replace(" 10/", f" {step}/"))
    ]
    assert [one.step for one in read(*lines)] == [10, 20]
    assert [one.step for one in read(*lines, form="megatron")] == [10, 20]
    assert [one.step for one in read(*lines, form="deepspeed")] == [20]


def clock(elapsed_s: float, *, hours: bool = False) -> str:
    minutes, second = divmod(int(elapsed_s), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02}:{second:02}" if hour or hours else f"{minute:02}:{second:02}"


def tqdm(done: int, elapsed_s: float, total: int | None = 1000, epoch: int = 0) -> str:
    """As tqdm draws it by Lightning's format, whose rate is the mean since the epoch began."""
    share = f"{100 * done // total:3}%" if total else " "
    rate = f"{done / elapsed_s:5.2f}" if elapsed_s else "?"
    of = f"{done}/{total or '?'}"
    return (
        f"Epoch {epoch}: {share}|███  | {of} [{clock(elapsed_s)}<{clock(99)}, {rate}it/s, v_num=0, loss=2.3]"
    )


def rich(done: int, elapsed_s: float, total: int | None = 1000, epoch: int = 0, of: str = "/-2") -> str:
    took = clock(elapsed_s, hours=True)
    left = f"{took} • {clock(99, hours=True) if total else '-:--:--'}"
    return f"Epoch {epoch}{of} ━━━━╸━━━ {done}/{total or '--'} {left} {done / elapsed_s:.2f}it/s v_num: 0.000"


@pytest.mark.parametrize("bar", [tqdm, rich])
@pytest.mark.parametrize("took_s", [0.05, 0.9, 7.0, 19.0, 39.8, 40.2, 40.5, 60.0, 201.0, 400.0])
def test_progress_bar_gives_step_time_within_two_percent(bar: Callable[..., str], took_s: float) -> None:
    total = int(max(40, 400 / took_s))
    steps = read(*[bar(done, 3.0 + done * took_s, total) for done in range(1, total + 1)])
    assert len(steps) >= 4 and all(abs(one.step_s / took_s - 1) <= 0.02 for one in steps)
    # One word for each 50 s, or for each step that is longer.
    assert len(steps) <= total * took_s / 50 + 1 and all(one.loss is None for one in steps)


@pytest.mark.parametrize("bar", [tqdm, rich])
def test_progress_bar_shows_a_slowdown_at_once(bar: Callable[..., str]) -> None:
    """Where the rate, a mean since the epoch began, is still that of before."""
    ends = [20.0 * done for done in range(1, 101)]
    ends += [ends[-1] + 30.0 * done for done in range(1, 7)]
    steps = read(*[bar(done, end) for done, end in enumerate(ends, 1)])
    assert [round(one.step_s) for one in steps if one.step > 103] == [30, 30]
    assert {round(one.step_s) for one in steps if one.step <= 100} == {20}


@pytest.mark.parametrize("bar", [tqdm, rich])
def test_short_epoch_is_reported_once_by_its_rate_if_precise(bar: Callable[..., str]) -> None:
    lines = [bar(done, 2.0 * done, 10, epoch) for epoch in (0, 1) for done in (1, 2, 9, 10, 10)]
    assert [(one.step, one.step_s) for one in read(*lines)] == [(10, 2.0), (20, 2.0)]
    assert read(*[bar(done, 8.0 * done, 5) for done in range(1, 6)]) == []


def test_bars_without_a_total_count_on_over_epochs() -> None:
    for bar in (tqdm, rich):
        lines = [bar(done, 30.0 * done, None, epoch) for epoch in (3, 4, 5) for done in (1, 2, 3, 4)]
        assert [(one.step, one.step_s) for one in read(*lines)] == [(3, 30.0), (7, 30.0), (11, 30.0)]


def test_the_first_batch_of_an_epoch_and_what_lies_between_two_are_not_counted() -> None:
    lines = [tqdm(0, 0, 5)]
    lines += [tqdm(done, 600.0 + 60.0 * done, 5, epoch) for epoch in (0, 1) for done in (1, 2, 3)]
    assert [(one.step, one.step_s) for one in read(*lines)] == [(2, 60.0), (3, 60.0), (7, 60.0), (8, 60.0)]


def test_restarted_training_is_reported_again() -> None:
    lines = [tqdm(done, 60.0 * done) for done in (1, 2, 3)]
    lines += [tqdm(2, 30.0), tqdm(3, 90.0)]  # from its checkpoint
    lines += [tqdm(4, 10.0), tqdm(5, 80.0)]  # the next goes on where this one ended
    assert [(one.step, one.step_s) for one in read(*lines)] == [(2, 60.0), (3, 60.0), (5, 70.0)]


@pytest.mark.parametrize(
    "val",
    [
        "Validation DataLoader 0:  50%|█████     | 5/10 [00:20<00:20,  0.25it/s]",
        "Validation: |          | 0/? [00:00<?, ?it/s]",
        "Validation ━━━━━━━━━━━╸━━━━ 5/10 0:00:20 • 0:00:20 0.25it/s",
        "Validation ━━━━━━━━━━━━━━━━ 5/-- 0:00:20 • -:--:-- 0.25it/s",
    ],
)
def test_a_validation_between_two_bars_is_no_step(val: str) -> None:
    lines = [tqdm(1, 60), tqdm(2, 120), val, tqdm(2, 200), tqdm(3, 260), tqdm(4, 3000), tqdm(5, 3060)]
    assert [(one.step, one.step_s) for one in read(*lines)] == [(2, 60.0), (3, 60.0), (5, 60.0)]


@pytest.mark.parametrize(
    "line", ["INFO Validation loss: 0.31", "Validation 3/10 is next", "Validation: 5/10 batches were good"]
)
def test_mention_of_a_validation_does_not_start_one(line: str) -> None:
    lines = [tqdm(1, 60), line, tqdm(2, 90), line, tqdm(3, 120), line, tqdm(4, 180)]
    assert [(one.step, one.step_s) for one in read(*lines)] == [(3, 30.0), (4, 60.0)]


def test_bars_of_days() -> None:
    first = "Epoch 0/-2 ━━━ 10/99 1 day, 2:00:00 • 9 days, 1:00:00 0.00it/s"
    last = "Epoch 0 ━━━ 12/99 2 days, 2:00:00 • 9 days, 1:00:00 0.00it/s"
    assert [(one.step, one.step_s) for one in read(first, last)] == [(12, 43_200.0)]
    lines = [tqdm(1, 360_000), tqdm(2, 360_060)]
    assert "100:00:00" in lines[0] and [one.step_s for one in read(*lines)] == [60.0]


def test_a_rate_in_seconds() -> None:
    whole = TQDM.replace("50/100", "100/100")
    assert [one.step_s for one in read(whole)] == [0.5]
    assert [one.step_s for one in read(whole.replace("2.00it/s", "4.00s/it"))] == [4.0]
    assert read(TQDM) == read(whole.replace("2.00it/s", "0.00it/s")) == []
    assert read(RICH) == []


def test_a_log_that_speaks_of_steps_without_their_times() -> None:
    for line, spoken in ((TQDM, True), (RANK.format(second=2, step=1), True), ("epoch,step,loss", True),
                         ("loss: 3", False), (MEGATRON, True)):  # fmt: skip
        reader = LogReader()
        reader.line(line)
        assert reader.spoken is spoken


def test_lightnings_csv_counts_by_when_it_is_written() -> None:
    rows = ["epoch,step,train_loss", "0,1,0.42", "0,3,0.23", "0,5,", "1,7,nan"]
    steps = read(*rows, every_s=3.0)
    assert [(one.step, one.step_s, one.loss) for one in steps] == [
        (3, 1.5, 0.23),
        (5, 1.5, None),
        (7, 1.5, math.inf),
    ]
    assert read(*rows) == []


def test_step_logged_by_each_rank_counts_once() -> None:
    assert len(read(*[f"{rank}: {MEGATRON}" for rank in range(8)])) == 1


@pytest.mark.parametrize(
    "line",
    ["", "iteration 3/10 |", "iteration 3/10 | elapsed time per iteration (ms): x |",
     "iteration 3/10 | elapsed time per iteration (ms): -4.0 |", MEGATRON.replace("12936.1", "9e99"),
     "loss: 3", "steps: 3 loss: 2.0",
     "Epoch 3: 100%", "step,step", "1,2", "x" * (LINE_MAX + 1), MEGATRON + " " * LINE_MAX],
    ids=range(12),
)  # fmt: skip
def test_lines_without_a_valid_step_are_skipped(line: str) -> None:
    assert read(line, every_s=1.0) == []


_PIECES = st.sampled_from(
    [MEGATRON, PIPELINE, TIMER, RANK, TQDM, RICH, "epoch,step,loss", "0,1,2", "|", ":", " ", "Epoch 1: 1%|",
     "9" * 30, "iteration 1/ 2 |", " elapsed time per iteration (ms): ", "steps: 1 loss: ",
     "[2024-13-01 99:00:00,1]", "²", "٣", "Epoch 1: 10%|# | 1/9 [10:00<1, ",
     "Epoch 0/-2 ━ 9/9 9 days, 1:00:00 "]
)  # fmt: skip


@given(
    st.lists(st.text(max_size=60) | st.lists(_PIECES, max_size=8).map("".join), max_size=12), st.booleans()
)
def test_no_line_is_too_much_for_any_form(lines: list[str], seen: bool) -> None:
    for form in FORMATS:
        steps = read(*lines, form=form, every_s=1.0 if seen else None)
        assert all(0 < one.step_s <= 86_400 and one.step >= 0 for one in steps)
        assert all(a.step != b.step for a, b in pairwise(steps))


@pytest.mark.parametrize(
    "piece",
    ["iteration  1/ 2 |", "Epoch 1:  1%|", "Epoch 1/9 ━", "Epoch 1 ━ 1/9 ", "steps: 1 loss: 2 ", "[2024-"],
)
def test_a_long_line_takes_no_long_time(piece: str) -> None:
    """Quadratic would be some 10^8 operations for each of these; the suite's own time limit would end it."""
    line = (piece * LINE_MAX)[:LINE_MAX]
    for _ in range(200):
        LogReader().line(line)
