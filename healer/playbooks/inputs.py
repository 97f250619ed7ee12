"""What a person gives a playbook at its start: checked against its `inputs`, and put where steps read it."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from healer.model import Input, InputType, Playbook, Step

LONGEST_TEXT = 256
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d{1,9})([smhd]?)")
_PLACE = re.compile(r"\{input\.(\w+)\}")


class InputInvalid(ValueError):
    """`name` is the input that is wrong."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


def taken(playbook: Playbook, given: Mapping[str, Any]) -> dict[str, str | int | bool]:
    """All inputs of a run: what is given, else the default. A duration is whole seconds.

    Texts are read as their type says, so a command line may give all of them. Raises InputInvalid.
    """
    for name in given:
        if name not in playbook.inputs:
            known = ", ".join(playbook.inputs) or "it takes none"
            raise InputInvalid(name, f"{playbook.name} has no input {name} ({known})")
    found: dict[str, str | int | bool] = {}
    for name, spec in playbook.inputs.items():
        value = given.get(name)
        value = spec.default if value is None else value
        if value is not None:
            found[name] = value_of(name, spec, value)
        elif spec.required:
            raise InputInvalid(name, f"{playbook.name} needs {name}: {spec.help or spec.type}")
    return found


def value_of(name: str, spec: Input, value: Any) -> str | int | bool:
    """One value as its type says. Raises InputInvalid."""
    if spec.type is InputType.bool:
        if isinstance(value, bool):
            return value
        if value in ("true", "false"):
            return value == "true"
        raise InputInvalid(name, f"{name} has to be true or false")
    if spec.type is InputType.int:
        if isinstance(value, bool) or not re.fullmatch(r"-?\d{1,15}", str(value)):
            raise InputInvalid(name, f"{name} has to be a whole number")
        return int(value)
    if spec.type is InputType.duration:
        found = _DURATION.fullmatch(str(value)) if not isinstance(value, bool) else None
        if found is None:
            raise InputInvalid(name, f"{name} has to be a duration such as 90s, 10m, 2h or 1d")
        return int(found[1]) * _SECONDS[found[2] or "s"]
    if spec.type is InputType.choice:
        if value not in spec.choices:
            raise InputInvalid(name, f"{name} has to be one of {', '.join(spec.choices)}")
        return str(value)
    if not isinstance(value, str) or len(value) > LONGEST_TEXT or not value.isprintable():
        raise InputInvalid(name, f"{name} has to be one line of at most {LONGEST_TEXT} characters")
    return value


def places_of(value: Any) -> list[str]:
    """The inputs that a value of a step's `input` names."""
    return _PLACE.findall(value) if isinstance(value, str) else []


def only_place(value: Any) -> str | None:
    """`{input.x}` alone, which gives the input with its own type: x."""
    found = _PLACE.fullmatch(value) if isinstance(value, str) else None
    return found[1] if found is not None else None


def filled(step: Step, knows: Mapping[str, Any]) -> Step:
    """The step with `{input.x}` replaced. One that was not given, and has no default, is left out."""
    if not any(places_of(value) for value in step.input.values()):
        return step
    given = {name.removeprefix("input."): value for name, value in knows.items() if name.startswith("input.")}
    return msgspec.structs.replace(step, input=placed(step.input, given))


def placed(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A step's `input` with its places filled; without values that are a place alone and not given."""
    found = {name: _placed(value, given) for name, value in values.items()}
    return {name: value for name, value in found.items() if value is not None}


def _placed(value: Any, given: Mapping[str, Any]) -> Any:
    if (place := only_place(value)) is not None:
        return given.get(place)
    return _PLACE.sub(lambda found: _text(given.get(found[1])), value) if isinstance(value, str) else value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
