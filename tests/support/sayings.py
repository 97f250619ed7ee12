"""Every sentence by key: where the code says it, and what the catalogues have for it.

`python -m tests.support.sayings [ROOM ...]` prints what does not fit.
"""

import ast
import re
import string
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from babel.messages.pofile import read_po

import healer
from healer.text.catalogues import FOLDER

PACKAGE = Path(healer.__file__).parent
#: Given to `say` for a key that is only known when it runs: `say(f"words.month_{month}")`.
_PART = re.compile(r"\{\}")


#: Files whose entries have English for keys.
BY_ENGLISH = frozenset({"terms", "templates", "scripts", "help", "system"})


class Call(NamedTuple):
    """A call of `say`. `key` may be a pattern with `{}`; `args` None: `**something`."""

    where: str
    key: str
    args: frozenset[str] | None


class Entry(NamedTuple):
    key: str
    forms: tuple[str, ...]

    @property
    def names(self) -> frozenset[str]:
        """Of the arguments. Raises ValueError for a form that is no format of Python."""
        fields = (name for form in self.forms for _, name, _, _ in string.Formatter().parse(form))
        return frozenset(re.split(r"[.\[]", name)[0] for name in fields if name is not None)


def calls(folder: Path = PACKAGE) -> Iterator[Call]:
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        if not any(_imports_say(node) for node in ast.walk(tree)):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "say":
                yield from _calls(node, f"{path.relative_to(PACKAGE)}:{node.lineno}")


def _imports_say(node: ast.AST) -> bool:
    """The command line has a `say` of its own."""
    return (
        isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("healer.text")
        and "say" in {alias.name for alias in node.names}
    )


def _calls(node: ast.Call, where: str) -> Iterator[Call]:
    names = [keyword.arg for keyword in node.keywords]
    args = None if None in names else frozenset(name for name in names if name)
    for key in _keys(node.args[0]) if node.args else ():
        yield Call(where, key, args)


def _keys(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr():
            yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)  # pyright: ignore
        case ast.IfExp():
            yield from _keys(node.body)
            yield from _keys(node.orelse)
        case _:
            yield ""


def entries(language: str) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for path in sorted((FOLDER / language).glob("*.po")):
        if path.stem in BY_ENGLISH:
            continue
        with path.open("rb") as file:
            for message in read_po(file, locale=language, abort_invalid=True):
                if not message.id:
                    continue
                key = message.id if isinstance(message.id, str) else message.id[0]
                forms = (message.string,) if isinstance(message.string, str) else tuple(message.string)
                assert key.partition(".")[0] == path.stem, f"{path}: {key} belongs into another file"
                found[key] = Entry(key, forms)
    return found


def by_english(language: str, name: str) -> dict[str, str]:
    """A file whose entries have English for keys; each form of a plural by itself."""
    found: dict[str, str] = {}
    with (FOLDER / language / f"{name}.po").open("rb") as file:
        for message in read_po(file, locale=language, abort_invalid=True):
            text = message.string if isinstance(message.string, str) else message.string[0]
            ids = (message.id,) if isinstance(message.id, str) else message.id
            found |= {english: text for english in ids if english}
    return found


def faults(rooms: tuple[str, ...] = ()) -> list[str]:
    """One line for each call or entry that does not fit."""
    english, chinese = entries("en"), entries("zh")
    found: list[str] = []
    said: set[str] = set()
    for call in calls():
        keys = _matching(call.key, english)
        said |= keys
        if not keys:
            found.append(f"{call.where}: no English for {call.key!r}")
        for key in keys:
            wanted = english[key].names
            if (
                call.args is not None
                and call.args - {"count"} != wanted - {"count"}
                and not (wanted <= call.args and "{}" in call.key)
            ):
                found.append(f"{call.where}: {key} has {sorted(wanted)}, is given {sorted(call.args)}")
    for key, entry in english.items():
        if key not in said and not key.startswith("words."):
            found.append(f"en: {key} is said nowhere")
        if key not in chinese:
            found.append(f"zh: {key} is missing: {entry.forms[0]}")
        elif not chinese[key].names <= entry.names:
            found.append(f"zh: {key} has {sorted(chinese[key].names)}, English {sorted(entry.names)}")
        elif not all(chinese[key].forms) or not all(entry.forms):
            found.append(f"{key}: an empty text")
    found += [f"zh: {key} is not in English" for key in chinese if key not in english]
    return [line for line in found if not rooms or any(room in line for room in rooms)]


def _matching(key: str, english: dict[str, Entry]) -> set[str]:
    if "{}" not in key:
        return {key} & set(english)
    form = re.compile("[a-z0-9_-]+".join(map(re.escape, _PART.split(key))))
    return {known for known in english if form.fullmatch(known)}


if __name__ == "__main__":
    for line in faults(tuple(sys.argv[1:])):
        print(line)
