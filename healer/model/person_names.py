"""Names of people; and of break-glass users by their own statement: nothing proves which person that is."""

from collections.abc import Iterable

from healer.model.grants import OWNED
from healer.model.shown import shown

#: Actors that are not a person.
_RESERVED = frozenset({"healer"})
NAME_MAX = 100
_BROKE_GLASS = "break-glass ({person})"
_BEGINS = _BROKE_GLASS.partition("{")[0]


def is_person_name(text: str) -> bool:
    plain = shown(text) == text == text.strip() and 0 < len(text) <= NAME_MAX
    return plain and OWNED not in text and not broke_glass(text) and text.lower() not in _RESERVED


def glass_name(person: str) -> str:
    """The name in the audit of the person who broke the glass."""
    return _BROKE_GLASS.format(person=person)


def broke_glass(name: str | None) -> bool:
    return name is not None and name.startswith(_BEGINS)


def count_people(names: Iterable[str]) -> int:
    """The least number of people behind these names: a break-glass user may be any of the others."""
    people = set(names)
    proven = [name for name in people if not broke_glass(name)]
    return max(len(proven), min(len(people), 1))
