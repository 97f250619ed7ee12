"""Which of the shipped playbooks take jobs off a node at once, and which let them run on."""

import pytest

from healer.playbooks.advance import moves_jobs_at_once
from tests.support.loop import shipped


@pytest.mark.parametrize(
    ("playbook", "inputs", "moves"),
    [
        ("gpu-fatal", {}, True),
        ("gpu-fatal", {"requeue": False}, False),
        ("swap", {}, True),
        ("silent-node", {}, True),
        ("repair-at-job-end", {}, False),
        ("repair-when-idle", {}, False),
        ("drain-at-job-end", {}, False),
        ("slow-node", {}, False),  # it leaves at a checkpoint
        ("validate", {}, False),
        ("drain", {}, False),
    ],
)
def test_jobs_leave_at_once_or_run_on(playbook: str, inputs: dict[str, bool], moves: bool) -> None:
    assert moves_jobs_at_once(shipped().playbooks[playbook], inputs) is moves
