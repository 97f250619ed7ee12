"""`--help` and wrong use, in the language of the terminal; lines that fit its width.

Help texts are English in the code, and their keys in `help.po`: they are looked up when a page is printed,
so that no command pays for them.
"""

import re
import shutil
import unicodedata
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup

from healer.text.catalogues import by_english
from healer.text.language import current

if TYPE_CHECKING:
    from healer.text import Said

#: Longer lines are hard to read; so is a narrow column of texts.
_WIDEST, _NAMES_WIDEST = 100, 34
#: What no line of Chinese begins with.
_CLOSING = "，。；：、？！）》”’"


def width() -> int:
    """The width of the terminal, or the default for output without one."""
    return max(min(shutil.get_terminal_size().columns, _WIDEST) - 2, 40)


def columns(text: str) -> int:
    """A Chinese sign takes two."""
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)


def wrapped(text: str, most: int) -> Iterator[str]:
    """The lines of one paragraph: broken at its spaces, and between signs that take two columns. What begins
    with spaces keeps them on each line."""
    indent = " " * (len(text) - len(text.lstrip()))
    line = ""
    for piece in _pieces(text):
        if line.strip() and columns(line) + columns(piece.rstrip()) > most:
            yield line.rstrip()
            line = indent + piece.lstrip()
        else:
            line += piece
    yield line.rstrip()


def _pieces(text: str) -> Iterator[str]:
    """What stays on one line: words with the space behind them, wide signs with what closes them, commands
    in backticks."""
    piece, is_command = "", False
    for sign in text:
        is_wide = columns(sign) == 2
        ends = piece[-1:].isspace() and not sign.isspace()
        if (
            piece
            and not is_command
            and sign not in _CLOSING
            and (ends or is_wide or columns(piece[-1:]) == 2)
        ):
            yield piece
            piece = ""
        piece += sign
        is_command ^= sign == "`"
    if piece:
        yield piece


def translated(text: str) -> str:
    return by_english(current.get(), "help", text)


class _HelpPage:
    """For a class of Typer: its page, as lines of ours."""

    def format_usage(self: Any, ctx: Any, formatter: Any) -> None:
        formatter.write("\n".join(_usage(self, ctx)) + "\n")

    def format_help(self: Any, ctx: Any, formatter: Any) -> None:
        formatter.write("\n".join(_page(self, ctx)) + "\n")


class HelpfulCommand(_HelpPage, TyperCommand):
    pass


class HelpfulGroup(_HelpPage, TyperGroup):
    pass


def _usage(command: Any, ctx: Any) -> Iterator[str]:
    begin = f"{translated('Usage:')} {ctx.command_path} "
    pieces = (re.sub("[{}]", "", piece).upper() for piece in command.collect_usage_pieces(ctx))
    lines = wrapped(" ".join(pieces), max(width() - columns(begin), 20))
    yield begin + next(lines)
    yield from (" " * columns(begin) + line for line in lines)


def _page(command: Any, ctx: Any) -> Iterator[str]:
    yield from _usage(command, ctx)
    for paragraph in paragraphs(command.help):
        yield ""
        yield from (f"  {line}" for line in wrapped(translated(paragraph), width() - 2))
    parameters = [
        (parameter.param_type_name, record)
        for parameter in command.get_params(ctx)
        if (record := parameter.get_help_record(ctx)) is not None
    ]
    for kind, title in (("argument", "Arguments:"), ("option", "Options:")):
        rows = [(_named(kind, name), _described(text)) for each, (name, text) in parameters if each == kind]
        yield from _section(title, rows)
    commands = [
        (name, translated(next(iter(paragraphs(each.help)), "")))
        for name, each in getattr(command, "commands", {}).items()
        if not each.hidden
    ]
    yield from _section("Commands:", [(name, _first_sentence(text)) for name, text in commands])
    if command.epilog:
        yield ""
        yield f"  {translated('Examples:')}"
        yield from (f"    {line}" for line in command.epilog.splitlines())


def paragraphs(text: str | None) -> list[str]:
    return [" ".join(part.split()) for part in (text or "").split("\n\n") if part.strip()]


#: What a value is, by Typer's names: Python's types.
_VALUES = {"str": "TEXT", "path": "PATH", "Path": "PATH", "int": "N", "float": "NUMBER"}
_VALUE = re.compile(r"<(?:list\[)?(?P<type>[^\]>]+?)(?: range)?\]?>")


def _named(kind: str, name: str) -> str:
    """`--node TEXT` of an option `--node <str>`, `FOLDER` of an argument `folder <path>`."""
    if kind == "argument":
        return name.partition(" ")[0].upper()
    return _VALUE.sub(lambda found: _VALUES.get(found["type"], found["type"]), name)


def _first_sentence(text: str) -> str:
    for stop in (". ", "。"):
        if stop in text:
            return text[: text.index(stop) + 1]
    return text


def _described(text: str) -> str:
    """The help of an option, and what Typer adds: `[default: 50; required]`."""
    body, bracket, more = text.rpartition("[") if text.endswith("]") else (text, "", "")
    words = translated(" ".join(body.split()))
    if not bracket:
        return words
    notes = []
    for note in more[:-1].split("; "):
        name, colon, value = note.partition(": ")
        notes.append(translated(name + colon) + value if colon else translated(note))
    return f"{words}  [{'; '.join(notes)}]".strip()


def _section(title: str, rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    if not rows:
        return
    yield ""
    yield translated(title)
    names = min(max(columns(name) for name, _ in rows), _NAMES_WIDEST)
    for name, text in rows:
        lines = list(wrapped(text, max(width() - names - 4, 20)))
        if columns(name) > names:
            yield f"  {name}"
        else:
            yield f"  {name}{' ' * (names - columns(name))}  {lines.pop(0)}".rstrip()
        yield from (" " * (names + 4) + line for line in lines)


def usage_problem(error: Any) -> Iterator[str]:
    """What was wrong with a command line, in lines: of Typer's errors."""
    from healer.text import in_language, say

    language, ctx = current.get(), getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        yield error.message
        return
    if ctx is not None:
        yield ctx.get_usage().rstrip("\n")
        yield in_language(say("commands.try_help", command=ctx.command_path), language)
        yield ""
    yield in_language(say("commands.usage_error", text=_problem(error)), language)


#: Sentences of Typer's that have no class of their own. An unknown one is printed as it is.
_OF_TYPER = {
    "needs_value": re.compile(r"Option '(?P<name>.+)' requires an argument\."),
    "takes_no_value": re.compile(r"Option '(?P<name>.+)' does not take a value\."),
    "no_command": re.compile(r"No such command '(?P<name>.+?)'\."),
    "no_command_but": re.compile(r"No such command '(?P<name>.+?)'\. Did you mean (?P<near>.+)\?"),
    "extra": re.compile(r"Got unexpected extra argument\(s\) \((?P<given>.*)\)"),
}
_CHOICES = re.compile(r"(?:Value error, )?'(?P<given>.*)' is not one of (?P<known>.+)\.", re.DOTALL)


def _problem(error: Any) -> "Said":
    """Typer's errors in our words."""
    from healer.text import quoted, say

    parameter = getattr(error, "param", None)
    name = getattr(error, "param_hint", None) or (parameter.get_error_hint() if parameter else "")
    if getattr(parameter, "param_type_name", "") == "argument":
        name = name.upper()
    match type(error).__name__:
        case "MissingParameter" if name:
            return _missing(error, name, parameter)
        case "NoSuchOption" if error.possibilities:
            near = _listed(error.possibilities)
            return say("commands.no_such_option_but", name=error.option_name, near=near)
        case "NoSuchOption":
            return say("commands.no_such_option", name=error.option_name)
        case "BadParameter":
            why = _why_invalid(error)
            return say("commands.invalid_value", name=name, why=why) if name else why
    text = error.format_message()
    for word, form in _OF_TYPER.items():
        if found := form.fullmatch(text):
            parts = {
                key: _listed(_words(value)) if key == "near" else value
                for key, value in found.groupdict().items()
            }
            return say(f"commands.usage_{word}", **parts)
    return quoted(text)


def _missing(error: Any, name: str, parameter: Any) -> "Said":
    from healer.text import say

    choices = error.format_message().partition("Choose from:")[2]
    if getattr(parameter, "param_type_name", "") == "argument":
        return say("commands.missing_argument", name=name)
    if choices:
        return say("commands.missing_choice", name=name, known=_listed(_words(choices)))
    return say("commands.missing_option", name=name)


def _why_invalid(error: Any) -> "Said":
    """Values are read by pydantic, which names what it wanted."""
    from healer.text import quoted, say

    of_pydantic = getattr(error.__cause__, "errors", None)
    first = of_pydantic()[0] if of_pydantic else {}
    kind = str(first.get("type", ""))
    if kind.startswith("int_"):
        return say("commands.not_whole_number", given=str(first["input"]))
    if kind.startswith("float_"):
        return say("commands.not_a_number", given=str(first["input"]))
    if found := _CHOICES.fullmatch(error.message):
        return say("commands.not_one_of", given=found["given"], known=_listed(_words(found["known"])))
    return quoted(error.message)


def _words(text: str) -> list[str]:
    return [word.strip(" \t\n'") for word in text.split(",")]


def _listed(words: Sequence[str]) -> "Said":
    from healer.text import joined

    return joined(words, "comma")
