"""All that the command line prints comes from the catalogues: sentences by key, help texts and table
headings by their English."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from healer.commands.cli import build
from healer.commands.help_pages import columns, paragraphs, wrapped
from healer.commands.remote import print_table
from healer.text.catalogues import by_english
from tests.support import sayings

FOLDER = sayings.PACKAGE / "commands"
#: What these are given is read by people.
SPEAKERS = frozenset({
    "print_line", "say_own", "prompt", "confirm", "BadParameter", "Failed", "ClientError", "ConfProblem",
    "SettingsError", "FolderUnusable", "Check", "echo",
})  # fmt: skip
#: What the same people read, made elsewhere: by folder of the package.
MADE_BY = {
    "importing": frozenset({"skip", "note", "ValueError"}),
    "sim": frozenset({"_say", "_call_technician"}),
}
#: Files and folders whose every sentence people read.
ALL_SPOKEN = (
    "detection/language", "importing/importer.py", "importing/workplace.py", "recordings/recording.py",
    "rulebook", "sim/fleet/score.py", "sim/replay_samples.py", "topology/found.py",
    "topology/infiniband.py", "topology/lldp.py",
)  # fmt: skip
#: What a library says, and a patch.
OF_OTHERS = frozenset({
    "Invalid enum value", "Object missing required field `(\\w+)`", "\n\\ No newline at end of file\n",
    "Object missing", "Object contains",
})  # fmt: skip
#: Added by Typer, or by the page of a command.
OF_EACH_PAGE = frozenset({
    "Usage:", "Arguments:", "Options:", "Commands:", "Examples:", "Show this message and exit.", "required",
    "default: ", "env var: ",
})  # fmt: skip


def _helps(command: Any) -> Iterator[str]:
    yield from paragraphs(command.help)
    for parameter in command.params:
        yield from paragraphs(getattr(parameter, "help", None))
    for each in getattr(command, "commands", {}).values():
        yield from _helps(each)


def test_each_help_text_is_in_chinese() -> None:
    said = {*_helps(typer.main.get_command(build())), *OF_EACH_PAGE}
    assert {text for text in said if by_english("zh", "help", text) == text} == set()
    assert set(sayings.by_english("zh", "help")) - said == set(), "entries that no page shows"


def _name(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _words(node: ast.expr) -> str:
    """Words in a literal: what is not put in."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr():
            return "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
        case ast.IfExp():
            return _words(node.body) + _words(node.orelse)
        case ast.BinOp(op=ast.Add()):
            return _words(node.left) + _words(node.right)
        case ast.BoolOp():
            return "".join(map(_words, node.values))
    return ""


#: Words, and no name of a field.
_SENTENCE = r"[a-z]{2} [a-z]{2}"
#: Of healer itself; another language has none of its own.
_ADDRESS = re.compile(r"healer|/sign-in\?token=")


def _spoken(path: Path, speakers: frozenset[str] = SPEAKERS, form: str = r"[A-Za-z]{2,}") -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and _name(node) in speakers:
            for argument in node.args:
                text = _words(argument)
                if re.search(form, _ADDRESS.sub("", text)):
                    yield f"{path.name}:{node.lineno}: {text}"


def test_nothing_is_printed_past_the_catalogue() -> None:
    checks = sorted((sayings.PACKAGE / "bootstrap").glob("*_checks.py"))
    found = {line for path in [*sorted(FOLDER.glob("*.py")), *checks] for line in _spoken(path)}
    assert found == set(), "say it by a key of healer/text"


def test_nothing_that_it_prints_is_made_past_the_catalogue() -> None:
    found = {
        line for folder, speakers in MADE_BY.items()
        for path in sorted((sayings.PACKAGE / folder).glob("*.py"))
        for line in _spoken(path, speakers, _SENTENCE)
    }  # fmt: skip
    assert found == set(), "say it by a key of healer/text"


def _sentences(path: Path) -> Iterator[str]:
    """Literals of several words, but for docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    notes = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant | ast.JoinedStr) or id(node) in notes:
            continue
        text = _words(node)
        if re.search(_SENTENCE, text) and not text.startswith("#") and text not in OF_OTHERS:
            yield f"{path.name}:{node.lineno}: {text}"


def test_files_that_people_read_have_no_sentence_of_their_own() -> None:
    places = (sayings.PACKAGE / name for name in ALL_SPOKEN)
    paths = (path for place in places for path in (place.rglob("*.py") if place.is_dir() else (place,)))
    found = {line for path in paths for line in _sentences(path)}
    assert found == set(), "say it by a key of healer/text"


#: The values of a table are under such keys; settings have an underscore.
_HEADING = re.compile(r"[A-Z][A-Z+() -]*")


def _headings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Dict(keys=keys):
                yield from filter(_HEADING.fullmatch, map(_words, filter(None, keys)))
            case ast.Call(func=ast.Name(id="print_table"), args=[ast.Tuple(elts=titles), *_]):
                yield from map(_words, titles)


def test_each_heading_of_a_table_is_in_chinese() -> None:
    known = sayings.by_english("zh", "terms")
    missing = {
        title for path in FOLDER.glob("*.py") for title in _headings(path)
        if title and title not in known
    }  # fmt: skip
    assert missing == set()


def test_lines_fit_the_width_in_any_script() -> None:
    text = "节点 gpu0001 已排空，作业 4711 已重新排队；healer 等待下一个检查点（最多 30 分钟）。"
    lines = list(wrapped(text, 40))
    assert max(map(columns, lines)) <= 40
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert not any(line[0] in "，。；：）" for line in lines)
    assert list(wrapped("one two three", 7)) == ["one two", "three"]


@pytest.mark.parametrize("width", [60, 80])
def test_a_table_fits_the_terminal_and_cuts_nothing(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    row = [
        "rd03f501d1991f9ded1b953c",
        "slow-node",
        "gpu0005",
        "running",
        "demo technician",
        "2026-11-26T14:02:25",
    ]
    print_table(["RUN", "PLAYBOOK", "ON", "STATE", "BY", "CREATED (UTC)"], [row])
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= width and "…" not in "".join(lines)
    (begin,) = [number for number, line in enumerate(lines) if line.startswith(row[0])]
    shown = sorted("".join(lines[begin:]).replace(" ", ""))
    assert shown == sorted("".join(row).replace(" ", ""))


def test_a_table_has_no_colors_outside_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["NODE", "WHY"], [["gpu0001", "fell off the bus " * 20]])
    out = capsys.readouterr().out
    assert "\x1b" not in out and len(out.splitlines()) == 2
