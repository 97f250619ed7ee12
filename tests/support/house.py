"""What a newcomer should not have to read: long functions, wide objects, long lists of parameters.

    python -m tests.support.house [healer/api …]
    python -m tests.support.house --words [healer/api …]

`--words` lists names that say nothing, and comments and docstrings in words that no engineer uses.
An object with more than 15 public fields or 12 public methods gives its reason in a comment that starts with
`# Wide:`, right above its class or its decorators. Fields are annotated in the class or set in `__init__`.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES, PARAMETERS, FIELDS, METHODS = 50, 6, 15, 12
#: A habit of frameworks and tools: these names may recur.
COMMON_NAMES = frozenset({"__init__.py", "__main__.py"})
#: As names they fit everything: call a thing after what it is (`incident`, `reported`, `open_roots`).
VAGUE_NAMES = frozenset(
    {"one", "told", "tells", "tell", "known", "said", "mine", "own", "stands", "beside", "aside"}
)
#: Where such a name may be bound: before `=`, `,`, `:` or `)`, after `for`, `as`, `def`, or in `(one, two)`.
_BOUND = re.compile(
    rf"(for|as|def|[(,]) +?_*({'|'.join(VAGUE_NAMES)})_*\b|\b_*({'|'.join(VAGUE_NAMES)})_*\s*[=,:)]"
)
ODD_WORDS = re.compile(
    r"\b(told|tells?|telling|foretold|anew|nobody|stands?|aside|beside|whoever)\b", re.IGNORECASE
)


@dataclass(frozen=True, order=True)
class Offence:
    what: str
    count: int
    where: str

    def __str__(self) -> str:
        return f"{self.where}: {self.count} {self.what}"


def offences(folders: Sequence[Path]) -> list[Offence]:
    found: list[Offence] = []
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            source = path.read_text()
            found.extend(_of_module(ast.parse(source), source.splitlines(), str(path.relative_to(ROOT))))
    return sorted(found)


def _of_module(tree: ast.Module, lines: Sequence[str], path: str) -> Iterator[Offence]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _of_function(node, path)
        elif isinstance(node, ast.ClassDef) and not _is_wide_for_a_reason(node, lines):
            yield from _of_class(node, path)


def _of_function(node: ast.FunctionDef | ast.AsyncFunctionDef, path: str) -> Iterator[Offence]:
    where = f"{path}:{node.lineno} {node.name}"
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if lines > LINES:
        yield Offence("lines", lines, where)
    names = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    count = len(names) - (names[:1] in (["self"], ["cls"]))
    if count > PARAMETERS:
        yield Offence("parameters", count, where)


def _of_class(node: ast.ClassDef, path: str) -> Iterator[Offence]:
    where = f"{path}:{node.lineno} {node.name}"
    functions = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    methods = sum(not one.name.startswith("_") for one in functions)
    fields = {_name(one.target) for one in node.body if isinstance(one, ast.AnnAssign)}
    for function in functions:
        if function.name == "__init__":
            fields |= {_name(target) for target in _targets(function)}
    public = sum(bool(name) and not name.startswith("_") for name in fields)
    if public > FIELDS:
        yield Offence("public fields", public, where)
    if methods > METHODS:
        yield Offence("public methods", methods, where)


def _targets(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from target.elts if isinstance(target, ast.Tuple) else [target]
        elif isinstance(node, ast.AnnAssign):
            yield node.target


def _name(target: ast.expr) -> str:
    if isinstance(target, ast.Name):
        return target.id
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        return target.attr if target.value.id == "self" else ""
    return ""


def _is_wide_for_a_reason(node: ast.ClassDef, lines: Sequence[str]) -> bool:
    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    above = first - 2
    while above >= 0 and lines[above].lstrip().startswith("#"):
        if lines[above].lstrip().startswith("# Wide:"):
            return True
        above -= 1
    return False


def vague_names(path: Path) -> Iterator[Offence]:
    """Names bound in a module that say nothing of what they hold, with their number."""
    text = path.read_text()
    if not _BOUND.search(text):
        return  # nothing to parse for
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                pass
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.alias(asname=str(name)):
                pass
            case _:
                continue
        if name.strip("_") in VAGUE_NAMES:
            yield Offence("vague name", 1, f"{path.relative_to(ROOT)}:{node.lineno} {name}")


def odd_words(path: Path) -> Iterator[Offence]:
    """Lines of comments and docstrings with a word of `ODD_WORDS`; sentences for people are not looked at."""
    text = path.read_text()
    if not ODD_WORDS.search(text):
        return  # nothing to parse for
    lines = text.splitlines()
    prose: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            prose[token.start[0]] = token.string
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    prose[number] = lines[number - 1]
    for number, line in sorted(prose.items()):
        if found := ODD_WORDS.findall(re.sub(r"`[^`]*`|stand-in", "", line)):
            yield Offence("odd words", len(found), f"{path.relative_to(ROOT)}:{number} {', '.join(found)}")


def recurring_names(folder: Path) -> dict[str, list[str]]:
    """File names that occur in several folders, with the files."""
    by_name: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        if path.name not in COMMON_NAMES:
            by_name.setdefault(path.name, []).append(str(path.relative_to(ROOT)))
    return {name: paths for name, paths in by_name.items() if len(paths) > 1}


def words(folders: Sequence[Path]) -> list[Offence]:
    paths = [
        path for folder in folders for path in sorted(folder.rglob("*.py") if folder.is_dir() else [folder])
    ]
    return [offence for path in paths for offence in (*vague_names(path), *odd_words(path))]


def main() -> None:
    if sys.argv[1:2] == ["--words"]:
        print(*words([ROOT / name for name in sys.argv[2:] or ["healer"]]), sep="\n")
        return
    for offence in offences([ROOT / name for name in sys.argv[1:] or ["healer"]]):
        print(offence)
    for paths in recurring_names(ROOT / "healer").values():
        if len(sys.argv) == 1 or any(path.startswith(tuple(sys.argv[1:])) for path in paths):
            print(f"one name: {', '.join(paths)}")


if __name__ == "__main__":
    main()
