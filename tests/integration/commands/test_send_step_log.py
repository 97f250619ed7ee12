"""`healer send step-times --from-log`: whole logs, a log that grows, and what real Lightning prints."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from healer.commands import send_step_log
from tests.support import frameworks
from tests.support.forked import run
from tests.support.processes import clean_environ
from tests.support.sink import Sink, serve_sink
from tests.support.up import ROOT
from tests.support.wait import wait_until

pytestmark = pytest.mark.heavy

TAKEN = {"accepted": 0, "duplicates": 0, "unrecognised": 0, "rejected": []}


class Command:
    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        sink.answers.extend([(202, {}, json.dumps(TAKEN).encode())] * 100)
        self.environ = clean_environ(
            HEALER_URL=sink.url.partition("/hooks")[0],
            HEALER_TOKEN="heal_0_x",
            SLURM_JOB_ID="4711",
        )
        self.command = ["send", "step-times"]

    def run(self, *options: str, given: str = "", status: int = 0) -> str:
        done = run([*self.command, *options], self.environ, given=given)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    @contextmanager
    def following(self, path: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
        # A shell's background jobs ignore Ctrl-C, and what they start inherits that.
        command_line = [
            "env",
            "--default-signal=INT",
            *(sys.executable, "-m", "healer"),
            *self.command,
            "--from-log",
            str(path),
            "--follow",
            *options,
        ]
        process = subprocess.Popen(
            command_line,
            env=self.environ,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.sink.asked]

    def steps(self) -> list[dict[str, Any]]:
        return [sample for body in self.bodies() for sample in body["samples"]]


@pytest.fixture
def command() -> Iterator[Command]:
    with serve_sink() as sink:
        yield Command(sink)


def megatron(step: int, at: datetime) -> str:
    stamp = at.astimezone().strftime("%Y-%m-%d %H:%M:%S")  # logs have the time of their machine
    return (
        f" [{stamp}] iteration {step:8d}/ 500 | elapsed time per iteration (ms): 605.5 | lm loss: 9.0E+00 |\n"
    )


def test_a_whole_log(command: Command, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    log = tmp_path / "train.log"
    log.write_text("".join(["start\n", *(megatron(step, now) for step in (10, 20, 30)), "end"]))
    assert command.run("--from-log", str(log)).startswith("0 accepted")
    (body,) = command.bodies()
    assert (body["job"], body["restart"]) == ("4711", 0)
    assert [(one["step"], one["step_s"], one["loss"]) for one in body["samples"]] == [
        (step, 0.6055, 9.0) for step in (10, 20, 30)
    ]
    sent_at = datetime.fromisoformat(body["samples"][0]["time"])
    assert abs(sent_at - now) < timedelta(seconds=1)
    assert not {"rank", "node", "compute_s"} & set(body["samples"][0])


def test_the_hour_that_comes_twice_in_autumn(command: Command) -> None:
    """The job's clock jumped back at 02:00 and its steps of a whole hour were sent as an hour old."""
    command.environ["TZ"] = "Europe/Berlin"
    clocks = ["01:59:00", "02:00:00", "02:30:00", "02:59:00", "02:00:00", "02:30:00", "02:59:00", "03:00:00"]
    lines = [
        f" [2026-10-25 {clock}] iteration {step:8d}/ 500 | elapsed time per iteration (ms): 605.5 |"
        for step, clock in enumerate(clocks)
    ]
    command.run("--from-log", "-", given="\n".join(lines) + "\n")
    assert [sample["time"][11:16] for sample in command.steps()] == [
        "23:59", "00:00", "00:30", "00:59", "01:00", "01:30", "01:59", "02:00",
    ]  # fmt: skip


def test_standard_input_with_a_bar_that_is_redrawn(command: Command) -> None:
    bar = "".join(f"\rEpoch 0:  10%|#   | {n}/100 [0{n}:05<00:45,  0.02it/s, v_num=1]" for n in (1, 2, 2, 3))
    command.run("--from-log", "-", "--format", "lightning", "--job", "99", given=bar + "\n")
    (body,) = command.bodies()
    assert body["job"] == "99" and [one["step"] for one in body["samples"]] == [2, 3]
    assert [one["step_s"] for one in body["samples"]] == [60.0, 60.0]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("", "no line of standard input names a step. healer reads Megatron-LM's `iteration"),
        ("step 3 loss 2.0\n", "no line of standard input names a step"),
        ("Epoch 0:  10%|# | 1/9 [00:05<00:45,  2.00it/s]\n", "healer needs two progress bars 50 s apart"),
    ],
    ids=["empty", "other", "bar"],
)
def test_log_without_steps_is_reported(command: Command, given: str, why: str) -> None:
    assert why in " ".join(command.run("--from-log", "-", given=given).split())
    assert command.bodies() == []


def test_what_is_written_right_before_a_log_is_replaced_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As logrotate does it: another look would find the new file only."""
    log = tmp_path / "train.log"
    log.write_text("one\n")
    monkeypatch.setattr(send_step_log, "_LOOK_S", 0)
    found = send_step_log._followed(log)
    assert [next(found), next(found)] == [("one", None), None]
    with log.open("a") as file:
        file.write("two\n")
    log.rename(tmp_path / "train.log.1")
    assert (line := next(found)) is not None and line[0] == "two"
    assert [next(found), next(found)] == [None, None], "the new one is not there yet"
    log.write_text("three\n")
    lines = [line[0] for line in (next(found) for _ in range(3)) if line is not None]
    assert lines == ["three"]


def test_what_is_written_between_a_look_and_the_next_question_for_the_name_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, written, stat = tmp_path / "train.log", False, Path.stat
    log.write_text("one\n")
    monkeypatch.setattr(send_step_log, "_LOOK_S", 0)

    def rotated(path: Path, **how: Any) -> os.stat_result:
        nonlocal written
        if path == log and not written:
            written = True
            with log.open("a") as file:
                file.write("two\n")
            log.rename(tmp_path / "train.log.1")
            log.write_text("three\n")
        return stat(path, **how)

    found = send_step_log._followed(log)
    assert [next(found), next(found)] == [("one", None), None]
    monkeypatch.setattr(Path, "stat", rotated)
    lines = [line[0] for line in (next(found) for _ in range(4)) if line is not None]
    assert lines == ["two", "three"]


def test_a_log_that_its_file_server_removed_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS answers for an open file that another machine has deleted with ESTALE, for ever."""

    class Remote(FileIO):
        is_gone = False

        def read(self, size: int | None = -1, /) -> bytes:
            if self.is_gone:
                raise OSError(errno.ESTALE, "Stale file handle")
            return super().read(size) or b""

    log, opened = tmp_path / "train.log", list[Remote]()
    log.write_text("one\n")
    monkeypatch.setattr(send_step_log, "_LOOK_S", 0)
    monkeypatch.setattr(Path, "open", lambda path, *_, **__: opened.append(Remote(path)) or opened[-1])
    found = send_step_log._followed(log)
    assert [next(found), next(found)] == [("one", None), None]
    opened[0].is_gone = True
    os.unlink(log)
    with FileIO(tmp_path / "new", "w") as new:
        new.write(b"two\n")
    os.rename(tmp_path / "new", log)
    lines = [line[0] for line in (next(found) for _ in range(4)) if line is not None]
    assert lines == ["two"]


def test_a_log_that_grows_is_cut_and_put_away(command: Command, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    now = datetime.now(UTC)
    log.write_text(megatron(10, now))
    with command.following(log) as process:
        wait_until(lambda: len(command.steps()) == 1, 60, what="the existing lines")
        with log.open("a") as file:
            file.write(megatron(20, now)[:40])
            file.flush()
            file.write(megatron(20, now)[40:])
        wait_until(lambda: len(command.steps()) == 2, 60, what="a line in two pieces")
        new = tmp_path / "new.log"
        new.write_text(megatron(30, now))
        os.replace(new, log)
        wait_until(lambda: len(command.steps()) == 3, 60, what="another log in its place")
        log.write_text(" iteration 4/ 500 | elapsed time per iteration (ms): 605.5 |\n")
        wait_until(lambda: len(command.steps()) == 4, 60, what="a log that was cut")
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "0 accepted" in said
    assert [one["step"] for one in command.steps()] == [10, 20, 30, 4]


@pytest.mark.parametrize(
    ("options", "why", "status"),
    [
        (["--from-log", "gone.log"], "gone.log cannot be read", 1),
        (["--from-log", "-", "--format", "jax"], "--format: jax is not one of auto, megatron", 2),
        (["--from-log", "-", "--follow"], "--follow needs a file", 2),
        (["--from-log", "a", "b"], "not both", 2),
        (["--follow"], "require --from-log", 2),
    ],
    ids=["gone", "format", "stdin", "files", "alone"],
)
def test_invalid_step_log_options_are_refused_with_the_reason(
    command: Command, options: list[str], why: str, status: int
) -> None:
    assert why in " ".join(command.run(*options, given="", status=status).split())
    assert command.bodies() == []


def test_without_a_job_nothing_is_sent(command: Command) -> None:
    command.environ.pop("SLURM_JOB_ID")
    assert "--job" in command.run("--from-log", "-", given="", status=2)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("bar", ["tqdm", "rich"])
@pytest.mark.parametrize("by", ["epochs", "steps"])
def test_steps_are_read_from_output_of_real_lightning(
    command: Command, tmp_path: Path, bar: str, by: str
) -> None:
    program = Path(frameworks.__file__).parent / "lightning_printing.py"
    done = frameworks.run(program, tmp_path, {"BAR": bar, "BY": by, "FOLDER": str(tmp_path)})
    command.run("--from-log", "-", given=done.stdout)
    steps = command.steps()
    # Epochs so short are reported once, at their end; rich writes the last one alone into what is no
    # terminal.
    assert [one["step"] for one in steps] == ([10, 20] if (bar, by) == ("tqdm", "epochs") else [20])
    # Its steps sleep for 0.05 s; how much longer they took is this machine's business.
    assert all(0.05 <= one["step_s"] < 60 for one in steps)


@pytest.mark.timeout(200)
def test_steps_are_read_from_the_csv_log_of_real_lightning(command: Command, tmp_path: Path) -> None:
    program = Path(frameworks.__file__).parent / "lightning_printing.py"
    frameworks.run(program, tmp_path, {"BAR": "none", "FOLDER": str(tmp_path)})
    (written,) = tmp_path.rglob("metrics.csv")
    header, *rows = written.read_text().splitlines(keepends=True)
    growing = tmp_path / "growing.csv"
    now = datetime.now(UTC)
    growing.write_text(megatron(1, now) + header)
    with command.following(growing):
        wait_until(lambda: len(command.steps()) == 1, 60, what="the log is followed")
        with growing.open("a") as file:  # the first row gives no step: another line shows that it was read
            file.write(rows[0] + megatron(2, now))
        for count, row in enumerate(rows[1:4]):
            wait_until(lambda count=count: len(command.steps()) == 2 + count, 60, what=f"{count} rows")
            with growing.open("a") as file:
                file.write(row)
        wait_until(lambda: len(command.steps()) == 5, 60, what="all rows")
    sent = command.steps()[2:]
    assert [one["step"] for one in sent] == [int(row.split(",")[1]) for row in rows[1:4]]
    assert all(one["step_s"] > 0 and one["loss"] > 0 for one in sent)
