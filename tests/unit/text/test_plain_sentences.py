"""No sentence for people is made without a key: no text of the rooms that speak reads like one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.sayings import PACKAGE

ROOMS = ("decisions", "engine", "incidents", "telling", "actions", "playbooks", "console/views")
#: Three words in a row, with a hole for what is known only when it runs.
_SENTENCE = re.compile(r"(?:[A-Za-z\u2019']{2,}|\{\})(?:,? [A-Za-z\u2019']{2,}){2,}")
#: What reads like one and is none, or stays English: why.
PLAIN = {
    "the reason of a freed slot, for the database alone": (
        "Slurm no longer knows the node",
        "its run ended before the node was drained",
        "{}'s drain came first",
        "the drain was undone",
        "the node returned to service",
    ),
    "a comment of Slurm": ("Nothing was done to the job",),
    "for the log": ("run {} was paused before its effect", "run {} could not be proven in time"),
    "why a delivery failed, as its row keeps it": (
        "rules/notifications.yaml names this channel no longer",
        "the process that made the last try ended before its answer was noted",
    ),
    "what Slurm shows of a test": ("healer: its turn to be tested",),
    "what incidents of older versions say": ("nobody tells of it any more",),
    "an error for who wrote the code": ("no rule takes the fault {} ({})", "open_own takes every finding"),
}


def _texts(tree: ast.AST) -> Iterator[str]:
    """Without docstrings, arguments of `say`, and what is raised for who calls it wrongly."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Expr(value=ast.Constant()):
                continue
            case ast.Call(func=ast.Name(id="say")):
                for argument in node.keywords:
                    yield from _texts(argument)
                continue
            case ast.Raise(exc=ast.Call(func=ast.Name(id="ValueError" | "TypeError" | "KeyError"))):
                continue
            case (
                ast.Call(func=ast.Attribute(value=ast.Name(id="log")))
                | ast.Call(func=ast.Attribute(value=ast.Name(id="re")))
            ):
                continue
            case ast.Constant(value=str(text)):
                yield text
            case ast.JoinedStr():
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
                )
            case _:
                yield from _texts(node)


def _plain(path: Path) -> list[str]:
    """A text of several lines is a script."""
    texts = _texts(ast.parse(path.read_text("utf-8")))
    return [text for text in texts if _SENTENCE.search(text) and "\n" not in text]


def test_no_sentence_is_made_without_a_key() -> None:
    known = {text for texts in PLAIN.values() for text in texts}
    paths = (path for room in ROOMS for path in sorted((PACKAGE / room).rglob("*.py")))
    found = {
        f"{path.relative_to(PACKAGE)}: {text}" for path in paths for text in _plain(path) if text not in known
    }
    assert found == set()
