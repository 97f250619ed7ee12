"""Rules and playbooks by what they say, so that a changed one is known as changed."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from hashlib import sha256

import msgspec

from healer.model.words import Mode


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A rule or playbook that is new or changed: `left` more runs of it wait for a person.

    `name` is `rule/NAME` or `playbook/NAME`, `digest` what it says (`Ruleset.texts`), `since` when it was
    first seen to say that.
    """

    name: str
    digest: str
    since: datetime
    left: int


def digest(parts: Iterable[msgspec.Struct | str]) -> str:
    """The same for the same meaning: comments, order of fields and what has its default count for nothing,
    nor does the mode, which is earned by itself. A field that a later healer adds changes nothing either."""
    told = [part if isinstance(part, str) else _told(part) for part in parts]
    return sha256(msgspec.json.encode(told, order="sorted")).hexdigest()[:16]


def _told(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(name): _told(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_told(one) for one in value]
    if not isinstance(value, msgspec.Struct) or isinstance(value, Mode):
        return value
    return {
        field.name: _told(mine)
        for field in msgspec.structs.fields(value)
        if field.name != "mode" and (mine := getattr(value, field.name)) != field.default and mine != {}
    }
