"""`python -m healer_steps.segment`: the artifact of NVRx's segment health check, beside a real command."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.frameworks import CLIENT
from tests.support.processes import living
from tests.support.wait import wait_until

pytestmark = pytest.mark.heavy

PROGRAM = [sys.executable, "-m", "healer_steps.segment"]
DRAINED = "State=IDLE+DRAIN\nReason=healer: Xid 79 inc:0a1b2c3d [healer@now]"


class Task:
    """One node of array task 7 of job 100, and its command, which sleeps."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.unit = folder, folder / "shared"
        self.artifact = self.unit / "segment_health_check.100.7"
        self.environ = {
            "PATH": f"{folder}/bin:{os.environ['PATH']}", "PYTHONPATH": str(CLIENT),
            "HEALER_VERDICT_FILE": str(folder / "verdict.json"),
            "SLURMD_NODENAME": "gpu0003", "SLURM_JOB_ID": "107", "SLURM_ARRAY_JOB_ID": "100",
            "SLURM_ARRAY_TASK_ID": "7",
        }  # fmt: skip
        (folder / "bin").mkdir()
        self.slurm_shows(DRAINED)
        self.process: subprocess.Popen[bytes] | None = None

    def slurm_shows(self, text: str) -> None:
        """What `scontrol show node` prints."""
        program = self.folder / "bin/scontrol"
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
        program.chmod(0o755)

    def decide(self, state: str, node: str = "gpu0003") -> None:
        heard_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        verdict = {
            "node": node,
            "state": state,
            "heard_at": heard_at,
            "incident": "0a1b2c3d",
            "reason": "Xid 79",
        }
        fresh = self.folder / "fresh"
        fresh.write_text(json.dumps(verdict))
        fresh.rename(self.folder / "verdict.json")

    def start(self, *command: str, **environ: str) -> None:
        with (self.folder / "said").open("ab") as said:
            self.process = subprocess.Popen(
                [*PROGRAM, str(self.unit), *(command or ("sleep", "600"))],
                env=self.environ | environ, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                start_new_session=True,
            )  # fmt: skip

    def said(self) -> str:
        return (self.folder / "said").read_text()

    def publishes(self) -> dict[str, Any]:
        wait_until(self.artifact.exists, 20, what="the artifact is published")
        return json.loads(self.artifact.read_text())

    def watchers(self) -> set[int]:
        """Processes of this task's session."""
        assert self.process is not None
        return {
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and session_of(entry) == self.process.pid
        }


def session_of(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[3])
    except (OSError, IndexError, ValueError):
        return 0


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Task]:
    one = Task(tmp_path)
    yield one
    if one.process is not None:
        started = one.watchers()
        one.process.kill()
        one.process.wait()
        wait_until(lambda: not living(started), 20, what="nothing of the task is left")


def test_a_unit_is_published_while_its_node_is_out_and_no_longer(task: Task) -> None:
    task.decide("healthy")
    task.start()
    time.sleep(2)
    assert not list(task.unit.iterdir())
    task.decide("leave")
    assert task.publishes() == {
        "node": "gpu0003", "incident": "0a1b2c3d", "reason": "Xid 79", "life": "0", "by": "healer",
    }  # fmt: skip
    assert list(task.unit.iterdir()) == [task.artifact]
    (task.folder / "verdict.json").unlink()  # nothing is known any more: the decision stays
    time.sleep(2)
    assert task.artifact.exists()
    task.decide("healthy")
    wait_until(lambda: not task.artifact.exists(), 20, what="the unit may be used again")


def test_the_command_is_the_same_process_and_its_watcher_ends_with_it(task: Task) -> None:
    task.start("sh", "-c", "echo pid $$; read line; exit 7")
    assert task.process is not None
    assert task.process.wait(20) == 7  # stdin is empty
    assert f"pid {task.process.pid}" in task.said()
    wait_until(lambda: not task.watchers(), 20, what="the watcher has ended")


def test_what_slurm_does_not_confirm_is_not_published(task: Task) -> None:
    task.slurm_shows("State=IDLE")
    task.decide("leave")
    task.start()
    wait_until(lambda: "does not show gpu0003 as drained by healer" in task.said(), 20, what="it says why")
    assert not list(task.unit.iterdir())
    task.slurm_shows(DRAINED)
    task.decide("leave")
    assert task.publishes()["node"] == "gpu0003"


def test_an_earlier_life_of_the_task_excludes_nothing(task: Task) -> None:
    task.unit.mkdir()
    task.artifact.write_text(json.dumps({"node": "gpu0009", "life": "0"}))
    task.start("cat", str(task.artifact), SLURM_RESTART_COUNT="1")
    assert task.process is not None
    assert task.process.wait(20) == 1
    assert "cat: " in task.said()  # it was gone before the command began


def test_another_node_of_the_unit_keeps_its_word(task: Task) -> None:
    task.unit.mkdir()
    task.artifact.write_text(json.dumps({"node": "gpu0004", "life": "0"}))
    task.decide("healthy")
    task.start()
    time.sleep(3)
    assert json.loads(task.artifact.read_text())["node"] == "gpu0004"


def test_without_an_array_the_command_runs_and_nothing_is_published(task: Task) -> None:
    del task.environ["SLURM_ARRAY_TASK_ID"]
    task.decide("leave")
    task.start("sh", "-c", "sleep 3; exit 5")
    assert task.process is not None
    assert task.process.wait(30) == 5
    assert "no task of a job array" in task.said()
    assert not task.unit.exists()


def test_a_folder_that_cannot_be_written_stops_no_command(task: Task) -> None:
    task.unit.write_text("a file, no folder")
    task.start("sh", "-c", "exit 5")
    assert task.process is not None
    assert task.process.wait(30) == 5
    assert "no segment health artifact" in task.said()


@pytest.mark.parametrize(
    ("words", "status"), [(["relative", "true"], 2), (["/tmp"], 2), (["/tmp/x", "no-such-program"], 127)]
)
def test_wrong_use_is_said(task: Task, words: list[str], status: int) -> None:
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CLIENT)}
    done = subprocess.run(
        [*PROGRAM, *words],
        env=environ, capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    assert done.returncode == status
    assert "healer-steps: " in done.stderr
