"""Who broke the glass may be any of the others."""

import pytest

from healer.model.person_names import broke_glass, count_people, glass_name


@pytest.mark.parametrize(
    ("names", "people"),
    [
        ([], 0),
        (["ann"], 1),
        (["ann", "ann"], 1),
        (["ann", "bob"], 2),
        ([glass_name("ann")], 1),
        (["ann", glass_name("bob")], 1),
        ([glass_name("ann"), glass_name("bob")], 1),
        (["ann", "bob", glass_name("cid")], 2),
    ],
)
def test_how_many_people_they_are_at_least(names: list[str], people: int) -> None:
    assert count_people(names) == people


def test_whose_name_it_is() -> None:
    assert broke_glass(glass_name("ann")) and not broke_glass("ann") and not broke_glass(None)
