"""The callbacks in real trainings by real Lightning and Transformers, on the CPU, in .venv-torch."""

from pathlib import Path
from typing import Any

import pytest
from healer_steps._checkpoints import checksum_of

from tests.integration.client.conftest import Receiver
from tests.support import frameworks

pytestmark = pytest.mark.heavy

SUPPORT = Path(frameworks.__file__).parent


#: A batch script without srun, on a node of eight GPUs: all that it starts sees this.
BATCH = {
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "1",
    "SLURM_STEP_NUM_TASKS": "",
    "SLURM_STEP_GPUS": "",
    "SLURM_JOB_GPUS": "0,1,2,3,4,5,6,7",
}


def train(
    receiver: Receiver, tmp_path: Path, program: str, said: str = "sent 6 dropped 0", **more: str
) -> tuple[list[dict[str, Any]], dict[int, dict[str, Any]]]:
    """The steps, and the checkpoints by step, that a training reported."""
    environ = receiver.environ(**BATCH, FOLDER=str(tmp_path / "saved"), **more)
    done = frameworks.run(SUPPORT / program, tmp_path, environ)
    assert said in done.stdout, done.stdout + done.stderr
    marks = [one for body in receiver.bodies("signals/checkpoints") for one in body]
    # On a slow machine a rank also reports where it is stuck (`open_s`): not a step.
    steps = [one for one in receiver.samples() if "open_s" not in one]
    return steps, {one["step"]: one for one in marks}


def checked(steps: list[dict[str, Any]]) -> None:
    """Six steps, each with its compute, which ends before the step does."""
    assert sorted(one["step"] for one in steps) == list(range(6))
    for one in steps:
        assert 0 < one["compute_s"] <= one["step_s"] and one["comm_s"] >= 0
        assert one["compute_s"] + one["comm_s"] <= one["step_s"] + 1e-6


@pytest.mark.timeout(200)
def test_lightning(receiver: Receiver, tmp_path: Path) -> None:
    steps, marks = train(receiver, tmp_path, "lightning_program.py")
    checked(steps)
    assert all(one["work"] == 8 and one["loss"] > 0 for one in steps)
    # After the first batch, and after validation and a checkpoint, the cause of the wait is unknown.
    waited = {one["step"] for one in steps if "data_s" in one}
    assert waited and 0 not in waited and 3 not in waited
    assert set(marks) == {3, 6}
    assert all(one["sha256"] == checksum_of(one["path"]) and one["durable"] for one in marks.values())


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("work", "asked", "work_sent"), [("fails", 6, None), ("tensor", 12, 128)])
def test_lightning_with_workers_and_copies_and_a_function_for_the_work(
    receiver: Receiver, tmp_path: Path, work: str, asked: int, work_sent: int | None
) -> None:
    # Workers and copies say nothing of their own; what failed is not asked for the other batch.
    said = f"steps 6 asked {asked} sent 6"
    steps, _ = train(receiver, tmp_path, "lightning_harmless.py", said, WORK=work)
    assert sorted(one["step"] for one in steps) == list(range(6))
    assert [one.get("work") for one in steps] == [work_sent] * 6


@pytest.mark.timeout(200)
def test_lightning_without_healer_asks_for_nothing(receiver: Receiver, tmp_path: Path) -> None:
    train(receiver, tmp_path, "lightning_harmless.py", "steps 6 asked 0 sent 0", WORK="fails", HEALER_URL="")
    assert receiver.sink.asked == []


@pytest.mark.timeout(200)
def test_transformers(receiver: Receiver, tmp_path: Path) -> None:
    steps, marks = train(receiver, tmp_path, "transformers_program.py", TIMES="1")
    checked(steps)
    assert {(one["rank"], one["gpu"]) for one in steps} == {(0, 0)}
    logged = {one["step"]: (one["loss"], one["grad_norm"]) for one in steps if "loss" in one}
    assert set(logged) == {2, 4} and all(each > 0 for pair in logged.values() for each in pair)
    assert set(marks) == {3, 6}
    assert all(one["sha256"] == checksum_of(one["path"]) for one in marks.values())
    # That they lie where a restarted job finds them is for the user to say.
    assert not any(one["durable"] for one in marks.values())


@pytest.mark.timeout(200)
def test_transformers_trained_twice(receiver: Receiver, tmp_path: Path) -> None:
    steps, _ = train(receiver, tmp_path, "transformers_program.py", "sent 12 dropped 0", TIMES="2")
    assert sorted(one["step"] for one in steps) == sorted([*range(6), *range(6)])
    assert all(one["compute_s"] > 0 for one in steps)


@pytest.mark.timeout(200)
def test_lightning_counts_optimizer_steps_and_goes_on_where_it_ended(
    receiver: Receiver, tmp_path: Path
) -> None:
    steps, marks = train(receiver, tmp_path, "lightning_resumed.py", "at 5 sent 5 dropped 0")
    assert sorted(one["step"] for one in steps) == list(range(5))
    assert all(one["work"] == 16 and one["loss"] > 0 and one["compute_s"] > 0 for one in steps)
    # Each is the same file again, reported once: not again by the training that resumes.
    assert {one["path"] for one in marks.values()} == {str(tmp_path / "saved" / "last.ckpt")}
    assert [one["step"] for body in receiver.bodies("signals/checkpoints") for one in body] == [1, 2, 3, 4, 5]


@pytest.mark.timeout(200)
def test_ranks_are_read_from_lightning_when_slurm_does_not_set_them(
    receiver: Receiver, tmp_path: Path
) -> None:
    steps, marks = train(receiver, tmp_path, "lightning_ranks.py", "")
    assert {(one["rank"], one["gpu"], one["node"]) for one in steps} == {(0, 0, "gpu0003"), (1, 1, "gpu0003")}
    assert sorted(one["step"] for one in steps) == sorted([*range(4), *range(4)])
    assert len([1 for body in receiver.bodies("signals/checkpoints") for _ in body]) == len(marks) == 2
