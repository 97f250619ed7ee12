"""The callbacks in real trainings by real Lightning and Transformers, on the CPU, in .venv-torch."""

from pathlib import Path
from typing import Any

import pytest
from healer_steps._checkpoints import checksum_of

from tests.support import frameworks
from tests.unit.client.conftest import Told

SUPPORT = Path(frameworks.__file__).parent


def train(told: Told, tmp_path: Path, program: str) -> tuple[list[dict[str, Any]], dict[int, dict[str, Any]]]:
    """The steps, and the checkpoints by step, that a training told."""
    folder = tmp_path / "saved"
    environ = told.environ(SLURM_PROCID="0", FOLDER=str(folder))
    done = frameworks.run(SUPPORT / program, tmp_path, environ)
    assert "sent 6 dropped 0" in done.stdout, done.stdout + done.stderr
    marks = [one for body in told.bodies("signals/checkpoints") for one in body]
    return told.samples(), {one["step"]: one for one in marks}


def checked(steps: list[dict[str, Any]]) -> None:
    """Six steps, each with its compute, which ends before the step does."""
    assert sorted(one["step"] for one in steps) == list(range(6))
    for one in steps:
        assert 0 < one["compute_s"] <= one["step_s"] and one["comm_s"] >= 0
        assert one["compute_s"] + one["comm_s"] <= one["step_s"] + 1e-6


@pytest.mark.timeout(200)
def test_lightning(told: Told, tmp_path: Path) -> None:
    steps, marks = train(told, tmp_path, "lightning_program.py")
    checked(steps)
    assert all(one["work"] == 8 and one["loss"] > 0 for one in steps)
    # After the first batch, and after validation and a checkpoint, nobody knows what was waited for.
    waited = {one["step"] for one in steps if "data_s" in one}
    assert waited and 0 not in waited and 3 not in waited
    assert set(marks) == {3, 6}
    assert all(one["sha256"] == checksum_of(one["path"]) and one["durable"] for one in marks.values())


@pytest.mark.timeout(200)
def test_transformers(told: Told, tmp_path: Path) -> None:
    steps, marks = train(told, tmp_path, "transformers_program.py")
    checked(steps)
    logged = {one["step"]: (one["loss"], one["grad_norm"]) for one in steps if "loss" in one}
    assert set(logged) == {2, 4} and all(each > 0 for pair in logged.values() for each in pair)
    assert set(marks) == {3, 6}
    assert all(one["sha256"] == checksum_of(one["path"]) for one in marks.values())
