"""What several of the node's programs have: each is installed alone, so each has its own copy."""

import ast
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
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


@pytest.mark.parametrize("program", ["healer-follow", "healer-hook", "healer-ship"])
def test_a_key_without_a_value_has_its_default(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a site takes the `#` from a line of the package's settings and has nothing to write there."""
    loader = SourceFileLoader("node_program", str(HOOKS / program))
    spec = spec_from_loader("node_program", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    conf = tmp_path / "hook.conf"
    conf.write_text("HEALER_URL=http://x\nHEALER_TOKEN_FILE=\nHEALER_HOOK_SPOOL=\n")
    for key in ("HEALER_TOKEN_FILE", "HEALER_HOOK_SPOOL"):
        monkeypatch.delenv(key, raising=False)
    if program == "healer-hook":
        given = module.Conf(str(conf))
        assert given.get("HEALER_HOOK_SPOOL", "/var/spool/healer") == "/var/spool/healer"
        assert given.get("HEALER_TOKEN_FILE", "/etc/healer/token") == "/etc/healer/token"
    else:
        given = module.read_conf(str(conf))
        assert (given["HEALER_TOKEN_FILE"], given["HEALER_HOOK_SPOOL"]) == (
            "/etc/healer/token", "/var/spool/healer",
        )  # fmt: skip
