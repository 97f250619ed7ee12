"""The sentences that a module of Python holds, for a test that each is known in another language.

A sentence is a text or an f-string that reads like words for people: with a space between two of its words;
or a label: what is given as `label`, `title`, `word`, the values of a table named `..._WORDS`, and a single
word with a capital.
"""

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from healer.console.language import Catalogue

import healer

PACKAGE = Path(healer.__file__).parent

#: What stands for a part that is known only when it runs: it fits a name, a number and a moment.
SAMPLE = "x7"
#: The same for an entry that asks for more: a word, a figure, a span of time or a moment.
SAMPLES = (SAMPLE, "7", "4 min", "4 min ago")

_SPOKEN = re.compile(r"[A-Za-z\d,;:.)!?’'%] +[A-Za-z(]|[A-Za-z]{2} +\d")
_WORD = re.compile(r"[A-Za-z]{2,}")
_HEADING = re.compile(r"[A-Z][a-z]{2,}")
#: Words that stay as they are in every language, and the names of a program's own things.
TERMS = frozenset(
    """GPUs GiB Xid SXid NVLink NVSwitch PCIe Slurm healer slurmctld slurmdbd slurmd Prometheus PostgreSQL
    Redis Redfish InfiniBand RoCE Linux Markdown rank""".split()  # noqa: SIM905
)
_LATIN = re.compile(r"(?<![\w./_`-])[A-Za-z][a-z]+(?![\w/_`=-]|\.\w)")
#: Code, and commands that a person types.
_COMMANDS = "doctor|detector|scheduler|worker|scraper|rules|messages|token|signals|runs"
_QUOTED = re.compile(rf"`[^`]*`|（[a-z-]+）|healer ({_COMMANDS})( [a-z]+)?")
_SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH|CREATE|ALTER|DROP|LOCK|SET|NOTIFY|LISTEN)\s")
_LABELS = frozenset({"label", "title", "effect", "word", "text", "todo", "help", "note", "meaning", "why"})
_TABLE = re.compile(r"_?[A-Z_]*(WORDS|LABELS|TITLES)")
_NO_WORDS = frozenset({"log", "logger", "logging"})
#: Raised for those who write the code or call it wrongly: no page shows them.
_INNER_ERRORS = frozenset(
    {"ValueError", "TypeError", "KeyError", "RuntimeError", "LookupError", "AssertionError", "OSError"}
)


class Sentence(NamedTuple):
    """`text` has `{}` where a part is known only later, `filled` something in its place."""

    module: str
    line: int
    text: str
    filled: str


def modules(*names: str) -> list[Path]:
    """Files and whole folders below `healer/`: `explain.py`, `console`."""
    found: list[Path] = []
    for name in names:
        path = PACKAGE / name
        assert path.exists(), f"{name}: no such module"
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return found


def sentences(path: Path) -> list[Sentence]:
    """Without docstrings, words of the log, SQL, annotations, decorators, and errors that no page shows."""
    module = path.relative_to(PACKAGE).as_posix()
    found: dict[str, Sentence] = {}
    for node, label in _texts(ast.parse(path.read_text("utf-8")), label=False):
        text = _text(node)
        spoken = _SPOKEN.search(text.replace("{}", SAMPLE)) and _WORD.search(text)
        labels = (label and _WORD.search(text)) or _HEADING.fullmatch(text)
        if _SQL.match(text) or not (spoken or labels):
            continue
        found.setdefault(text, Sentence(module, node.lineno, text, text.replace("{}", SAMPLE)))
    return list(found.values())


def english_in(text: str) -> list[str]:
    """Words of a translated sentence that were left in English."""
    words = _LATIN.findall(_QUOTED.sub("", text))
    return [word for word in words if word not in TERMS]


class Reader:
    """Who reads one language only. `kept`: words that are the same in it."""

    def __init__(self, catalogue: Catalogue, kept: Collection[str] = ()) -> None:
        self._catalogue = catalogue
        self._kept = kept

    def left(self, text: str) -> list[str]:
        """Words that the translated sentence leaves in English."""
        return [word for word in english_in(self._catalogue.translate(text)) if word not in self._kept]

    def understands(self, text: str) -> bool:
        return self._catalogue.knows(text) and not self.left(text)

    def understands_some(self, text: str) -> bool:
        """With one of the samples for its parts."""
        return any(self.understands(text.replace("{}", sample)) for sample in SAMPLES)


def _texts(node: ast.AST, *, label: bool) -> Iterator[tuple[ast.Constant | ast.JoinedStr, bool]]:
    if isinstance(node, ast.JoinedStr):
        yield node, label
        for part in node.values:  # a word within a hole is one by itself
            if isinstance(part, ast.FormattedValue):
                yield from _texts(part.value, label=False)
        return
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node, label
        return
    if _is_silent(node):
        return
    for name, value in ast.iter_fields(node):
        if name in ("decorator_list", "annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _texts(child, label=_is_label(node, name, label=label))


def _is_silent(node: ast.AST) -> bool:
    """A docstring, a word of the log, an error of the code's own."""
    match node:
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name))):
            return name in _NO_WORDS
        case ast.Raise(exc=ast.Call(func=ast.Name(id=name))):
            return name in _INNER_ERRORS
        case _:
            return False


def _is_label(node: ast.AST, field: str, *, label: bool) -> bool:
    match node:
        case ast.keyword(arg=name):
            return name in _LABELS
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return bool(_TABLE.fullmatch(name))
        case ast.Dict():
            return label and field == "values"
        case ast.IfExp():
            return label and field != "test"
        case ast.Tuple() | ast.BoolOp() | ast.BinOp(op=ast.Add()):
            return label
        case _:
            return False


def _text(node: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    return "".join(str(one.value) if isinstance(one, ast.Constant) else "{}" for one in node.values)
