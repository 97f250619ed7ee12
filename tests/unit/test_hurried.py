"""What tests on a real Slurm hurry is there to be hurried."""

import pytest

from tests.support.hurried import HURRIED, waits


@pytest.mark.parametrize("what", HURRIED)
def test_each_wait_is_a_constant_of_its_module_and_becomes_shorter(what: str) -> None:
    for module, name, value in waits([what]):
        assert value < getattr(module, name)
