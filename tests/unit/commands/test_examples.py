"""The examples that `--help` shows are commands that healer has, with options and values that it takes."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from healer.commands.cli import build
from healer.commands.examples import EXAMPLES

ROOT: Any = typer.main.get_command(build())


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    commands = getattr(command, "commands", {})
    for name, each in commands.items():
        yield from leaves(each, (*path, name))
    if path and (not commands or command.invoke_without_command):
        yield " ".join(path)


def test_each_command_has_examples() -> None:
    assert sorted(EXAMPLES) == sorted(leaves(ROOT))


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_help_names_values_as_people_do(name: str) -> None:
    command = ROOT
    for part in name.split():
        command = command.commands[part]
    with command.make_context(f"healer {name}", [], resilient_parsing=True) as context:
        page = command.get_help(context)
    usage = page.partition("\n\n")[0]
    assert not re.search(r"<(str|list|path|int|float)|[{}]|Path\b", page.partition("Examples:")[0])
    assert usage.partition(name)[2] == usage.partition(name)[2].upper()


LINES = [(name, line) for name, text in EXAMPLES.items() for line in text.splitlines()]


@pytest.mark.parametrize(("name", "line"), LINES)
def test_an_example_is_accepted(name: str, line: str) -> None:
    words = shlex.split(line)
    words = words[words.index("healer") + 1 :]
    if end := [words.index(word) for word in ("|", ">") if word in words]:
        words = words[: min(end)]
    assert words[: len(name.split())] == name.split()
    command = ROOT
    for part in name.split():
        command = command.commands[part]
    with command.make_context(name, words[len(name.split()) :]) as context:
        assert f"\n    {line}\n" in command.get_help(context) + "\n"
