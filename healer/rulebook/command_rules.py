"""Loads and checks `rules/commands.yaml`, and what playbooks make of it. Format: docs/rules.md."""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from healer.actions.site_command import PLACES, places_in
from healer.model import Playbook, SiteCommand, Step, Verb
from healer.playbooks.inputs import only_place
from healer.rulebook.source import Source, did_you_mean

_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
#: What would read its words as a program of its own.
_SHELLS = frozenset({"sh", "bash", "dash", "ksh", "zsh", "csh", "fish", "env", "xargs", "eval", "sudo"})
_TIMEOUT_MOST_S = 24 * 3600


def read_commands(source: Source | None) -> dict[str, SiteCommand]:
    """By name. What is wrong goes to the source's problems."""
    found: dict[str, SiteCommand] = {}
    for index, item in enumerate(source.items("commands") if source else []):
        command = source.convert((index,), item, SiteCommand) if source else None
        if command is None or source is None:
            continue
        if not _NAME.fullmatch(command.name):
            source.problem(
                (index, "name"), f"name: {command.name!r} has to be small letters, digits and dashes"
            )
        if command.name in found:
            source.problem((index, "name"), f"the command {command.name} stands here twice")
        if not 0 < command.timeout_s <= _TIMEOUT_MOST_S:
            source.problem(
                (index, "timeout_s"), f"timeout_s: has to be above 0, and at most {_TIMEOUT_MOST_S}"
            )
        _check_argv(source, index, command)
        found[command.name] = command
    return found


def _check_argv(source: Source, index: int, command: SiteCommand) -> None:
    if not command.argv:
        source.problem((index, "argv"), "argv: the list is empty")
        return
    program = command.argv[0]
    if not program.startswith("/") or places_in(program):
        source.problem((index, "argv", 0), f"argv: {program!r} has to be a program's whole path")
    if PurePosixPath(program).name in _SHELLS:
        text = f"argv: {PurePosixPath(program).name} starts whatever it is given"
        source.problem((index, "argv", 0), text, "put it into a script of the site's, and name that")
    for number, word in enumerate(command.argv):
        if "\0" in word or "\n" in word:
            source.problem((index, "argv", number), "argv: a word is one line")
        for place in places_in(word):
            if place not in PLACES:
                hint = did_you_mean(place, PLACES) or f"one of {', '.join(PLACES)}"
                source.problem((index, "argv", number), f"argv: nothing is known by {{{place}}}", hint)


def check_uses(
    sources: Sequence[Source], playbooks: Mapping[str, Playbook], commands: Mapping[str, SiteCommand]
) -> None:
    """A command that takes capacity stands behind a drain, and a step waits as long as its command may take.

    One that is not on the site's list is no fault: its step asks a person.
    """
    for source in sources:
        playbook = playbooks.get(source.name.rpartition("/")[2].removesuffix(".yaml"))
        if playbook is None or any(step.use for step in playbook.steps):
            continue  # what is wrong with it is said already
        written = source.data.get("steps") if isinstance(source.data, dict) else None
        as_written = isinstance(written, list) and len(written) == len(playbook.steps)
        drained = False
        for index, step in enumerate(playbook.steps):
            drained = drained or step.do is Verb.drain
            if step.do is not Verb.site_command:
                continue
            for command in (commands[name] for name in _named(step, playbook) if name in commands):
                path = ("steps", index) if as_written else ("steps",)  # else it comes from another file
                _check_use(source, path, step, command, drained=drained)


def _check_use(
    source: Source, path: Sequence[str | int], step: Step, command: SiteCommand, *, drained: bool
) -> None:
    if command.takes_capacity and not drained:
        text = f"the step {step.id}: {command.name} takes capacity, and no drain stands before it"
        source.problem(path, text, "let the gate judge it: do: drain, wait: empty")
    if step.timeout_s < command.timeout_s:
        text = f"timeout_s: {command.name} may take {command.timeout_s:g} s"
        source.problem((*path, "timeout_s"), text, f"timeout_s: {command.timeout_s + 60:g}")


def _named(step: Step, playbook: Playbook) -> Sequence[str]:
    told = step.input.get("command")
    place = only_place(told)
    if place is not None:
        return playbook.inputs[place].choices if place in playbook.inputs else ()
    return (str(told),)
