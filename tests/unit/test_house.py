"""Limits on what a newcomer has to read at once. `python -m tests.support.house` lists what breaks them."""

import pytest

from tests.support.house import ROOT, Offence, offences, recurring_names, words

#: Functions with more than six parameters; a Typer command's options are parameters. It may only fall.
MANY_PARAMETERS_MAX = 10
#: Commands of `healer` are named after their command; `python -m healer.sim.nodes` is started by its name.
RECURRING = {"audit.py", "nodes.py", "rules.py"}


@pytest.fixture(scope="module")
def broken() -> list[Offence]:
    return offences([ROOT / "healer"])


@pytest.mark.parametrize("what", ["lines", "public fields", "public methods"])
def test_nothing_is_too_long_or_too_wide(broken: list[Offence], what: str) -> None:
    assert [str(one) for one in broken if one.what == what] == []


def test_few_functions_have_many_parameters(broken: list[Offence]) -> None:
    found = [str(one) for one in broken if one.what == "parameters"]
    assert len(found) <= MANY_PARAMETERS_MAX, found


def test_names_say_what_they_hold_and_prose_is_plain() -> None:
    """`python -m tests.support.house --words` lists them."""
    assert [str(offence) for offence in words([ROOT / "healer"])] == []


def test_file_names_are_unique() -> None:
    found = recurring_names(ROOT / "healer")
    assert {name: found[name] for name in found if name not in RECURRING} == {}
