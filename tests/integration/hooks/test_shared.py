"""What several of the node's programs have: each is installed alone, so each has its own copy."""

import ast
from pathlib import Path

import pytest

import healer

HOOKS = Path(healer.__file__).parent / "hooks"
PROGRAMS = ("healer-follow", "healer-hook", "healer-node", "healer-ship")


def function(program: str, name: str) -> str | None:
    """Its code, without what describes it; None where the program has none of that name."""
    for node in ast.parse((HOOKS / program).read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return "\n".join(map(ast.unparse, (node.args, *node.body[bool(ast.get_docstring(node)) :])))
    return None


@pytest.mark.parametrize(("name", "programs"), [("without_processes", 3), ("seen", 3), ("unquoted", 2)])
def test_the_copies_of_a_function_do_the_same(name: str, programs: int) -> None:
    copies = [code for program in PROGRAMS if (code := function(program, name)) is not None]
    assert len(copies) == programs and len(set(copies)) == 1
