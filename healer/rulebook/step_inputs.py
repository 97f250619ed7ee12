"""What `inputs` of a playbook and `input` of its steps must hold."""

import re
from collections.abc import Sequence
from typing import Any

from healer.actions import CHECKS, VERBS, WAITS
from healer.incidents.senses import CONCLUDED
from healer.model import Input, InputType, Playbook, Sense, Step, Verb
from healer.playbooks.inputs import InputInvalid, only_place, places_of, value_of
from healer.rulebook.source import Source, did_you_mean

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
#: What a step reads of `input`: name, type, whether it has to be there.
INPUTS: dict[str, dict[str, tuple[type, bool]]] = {
    "still_slow": {"senses": (int, False)},
    "jobs_left": {"run_on_s": (int, False)},
    "time": {"lasts_s": (int, True)},
    "link_counters": {"still_s": (int, False)},
    "lifted": {"lasts_s": (int, False)},
    "history": {"days": (int, False)},
    Verb.drain: {"adopt": (bool, False)},
    Verb.release: {"hold": (bool, False)},
    Verb.diagnose: {"script": (str, False), "depth": (str, False), "limit_s": (int, False)},
    Verb.sweep: {"depth": (str, True), "limit_s": (int, False)},
    Verb.bisect: {"depth": (str, True), "nodes": (str, False)},
    Verb.reset_gpu: {"which": (str, False)},
    Verb.restart_service: {"service": (str, True)},
    Verb.site_command: {"command": (str, True), "argument": (str, False), "by_hand": (str, False)},
}
_WANTED: dict[type, str] = {str: "a text", int: "a whole number", bool: "true or false"}
_TYPES: dict[InputType, type] = {InputType.bool: bool, InputType.int: int, InputType.duration: int}
_SERVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9@._-]{0,99}")
#: What goes to a node or a command, or names a file: out of a closed list alone.
_CLOSED = ("service", "script", "depth", "which", "command", "argument")


def check_spec(source: Source, path: tuple[str, str], name: str, spec: Input) -> None:
    if not _NAME.fullmatch(name):
        source.problem(path, f"inputs: {name!r} has to be small letters, digits and _")
    if (spec.type is InputType.choice) != bool(spec.choices):
        text = "needs choices" if spec.type is InputType.choice else "has choices, and is no choice"
        source.problem(path, f"inputs: {name} {text}")
    if spec.required and spec.default is not None:
        source.problem((*path, "required"), f"inputs: {name} has a default, so it is never missing")
    if spec.default is not None and not (spec.type is InputType.choice and not spec.choices):
        try:
            value_of(name, spec, spec.default)
        except InputInvalid as error:
            source.problem((*path, "default"), f"inputs: {error}")


def check_input(source: Source, path: tuple[str, int], step: Step, playbook: Playbook) -> None:
    word = step.do or step.check or step.wait or ""
    if word not in {*VERBS, *CHECKS, *WAITS}:
        return  # said already
    known = INPUTS.get(word, {})
    for name, value in step.input.items():
        where = (*path, "input", name)
        if name not in known:
            hint = did_you_mean(name, list(known)) or (f"it reads {', '.join(known)}" if known else "")
            source.problem(where, f"input: {word} does not read {name}", hint)
        elif places_of(value):
            _check_places(source, where, name, value, known[name], playbook)
        elif type(value) is not known[name][0]:
            source.problem(where, f"input: {name} has to be {_WANTED[known[name][0]]}")
        else:
            _check_value(source, where, name, value)
    for name, (_, needed) in known.items():
        if needed and name not in step.input:
            source.problem(path, f"the step {step.id}: {word} needs input.{name}")


def _check_value(source: Source, where: Sequence[str | int], name: str, value: Any) -> None:
    most = len(Sense) - len(CONCLUDED)  # these count beside none of the others
    if name == "service" and not _SERVICE.fullmatch(value):
        source.problem(where, f"input: {value!r} is no name of a service")
    elif name == "which":
        one_of(source, where, "which", value, ("gpu", "all"))
    elif name == "senses" and not 1 <= value <= most:
        source.problem(where, f"input: senses lies between 1 and {most}")
    elif name in ("lasts_s", "still_s", "days") and value <= 0:
        source.problem(where, f"input: {name} has to be more than 0")


def _check_places(
    source: Source,
    where: Sequence[str | int],
    name: str,
    value: Any,
    reads: tuple[type, bool],
    playbook: Playbook,
) -> None:
    """`{input.x}` in a step's input: the playbook has it, of a type that the step reads."""
    wanted, needed = reads
    for place in places_of(value):
        spec = playbook.inputs.get(place)
        if spec is None:
            hint = did_you_mean(place, playbook.inputs)
            source.problem(where, f"input: the playbook has no input {place}", hint)
            return
        given = _TYPES.get(spec.type, str)
        if wanted is not str and (only_place(value) is None or given is not wanted):
            source.problem(where, f"input: {name} has to be {_WANTED[wanted]}, {place} is {spec.type}")
        elif needed and not spec.required and spec.default is None:
            source.problem(where, f"input: {name} is needed, and {place} may be missing", "give it a default")
        elif name in _CLOSED:
            if spec.type is not InputType.choice or only_place(value) is None:
                text = f"input: {name} takes an input that is a choice, and nothing beside it"
                source.problem(where, text, "list what it may be")
            for choice in spec.choices:
                _check_value(source, where, name, choice)


def one_of(source: Source, path: Sequence[str | int], name: str, word: str, known: Sequence[str]) -> None:
    if word not in known:
        hint = did_you_mean(word, known) or f"one of {', '.join(known)}"
        source.problem(path, f"{name}: there is no {word}", hint)
