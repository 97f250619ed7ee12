"""What the lines of healer are: statements, blanks, signatures …, and how many are in files of later work.

    python -m tests.support.line_kinds [COMMIT]

With a commit it also counts, by folder, the files that were not there then. A renamed file is not new.
"""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]


def line_kinds(source: str) -> Counter[str]:
    """Kind -> number of lines. Each line has one kind; what is none of the others is a statement."""
    lines = source.splitlines()
    kinds = ["statements"] * len(lines)
    for node in ast.walk(ast.parse(source)):
        for kind, first, last in _parts(node):
            kinds[first - 1 : last] = [kind] * (last - first + 1)
    for index, line in enumerate(lines):
        text = line.strip()
        if kinds[index] == "docstrings":
            continue
        if not text:
            kinds[index] = "blank"
        elif text.startswith("#"):
            kinds[index] = "comments"
        elif kinds[index] == "statements" and not text.strip("()[]{},:"):
            kinds[index] = "closing brackets"
    return Counter(kinds)


def _parts(node: ast.AST) -> list[tuple[str, int, int]]:
    """(kind, first line, last line) of what the node itself writes."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [("imports", node.lineno, node.end_lineno or node.lineno)]
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    found: list[tuple[str, int, int]] = []
    if not isinstance(node, ast.Module):
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        last = max(node.lineno, node.body[0].lineno - 1)
        found.append(("heads of classes" if isinstance(node, ast.ClassDef) else "signatures", first, last))
    if isinstance(node, ast.ClassDef):
        fields = (part for part in node.body if isinstance(part, ast.AnnAssign))
        found += [("fields of types", part.lineno, part.end_lineno or part.lineno) for part in fields]
    if node.body and ast.get_docstring(node, clean=False) is not None:
        found.append(("docstrings", node.body[0].lineno, node.body[0].end_lineno or node.body[0].lineno))
    return found


def new_since(commit: str) -> Counter[str]:
    """Folder -> lines of files of healer that were not there at this commit."""
    asked = ["git", "diff", "--diff-filter=A", "-M40%", "--name-only", commit, "--", "healer"]
    names = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    found: Counter[str] = Counter()
    for name in names:
        if name.endswith(".py"):
            found["/".join(name.split("/")[:2])] += len((ROOT / name).read_text().splitlines())
    return found


def main() -> None:
    paths = sorted((ROOT / "healer").rglob("*.py"))
    kinds = sum((line_kinds(path.read_text()) for path in paths), Counter())
    print(f"{kinds.total()} lines in {len(paths)} files")
    for kind, count in kinds.most_common():
        print(f"  {count:6} {kind}")
    if sys.argv[1:]:
        found = new_since(sys.argv[1])
        print(f"{found.total()} lines in files that are new since {sys.argv[1]}")
        for folder, count in found.most_common():
            print(f"  {count:6} {folder}")


if __name__ == "__main__":
    main()
