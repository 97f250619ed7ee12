"""What several of the node's programs have: each is installed alone, so each has its own copy."""

import ast
import re
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

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


def loaded(program: str) -> Any:
    loader = SourceFileLoader("node_program", str(HOOKS / program))
    spec = spec_from_loader("node_program", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "programs"), [("without_processes", 3), ("seen", 3), ("unquoted", 3), ("misread", 2)]
)
def test_the_copies_of_a_function_do_the_same(name: str, programs: int) -> None:
    copies = [code for program in PROGRAMS if (code := function(program, name)) is not None]
    assert len(copies) == programs and len(set(copies)) == 1


@pytest.mark.parametrize("program", ["healer-follow", "healer-hook", "healer-ship"])
def test_a_key_without_a_value_has_its_default(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a site takes the `#` from a line of the package's settings and has nothing to write there."""
    module = loaded(program)
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


@pytest.mark.parametrize("program", ["healer-follow", "healer-hook"])
def test_both_know_every_setting_that_the_documentation_explains(program: str) -> None:
    page = (Path(healer.__file__).parents[1] / "docs" / "nodes.md").read_text()
    table = page.partition("## Settings on the node")[2].partition("\n## ")[0]
    explained = {
        key
        for row in table.splitlines() if row.startswith("| `")
        for key in re.findall(r"`(HEALER_\w+)`", row.split(" | ")[0])
    }  # fmt: skip
    module = loaded(program)
    assert set(module.SETTINGS) == explained
    assert (
        module.CERTAIN == loaded("healer-hook").CERTAIN and module.SETTINGS == loaded("healer-hook").SETTINGS
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("HEALER_HOOK_WRITEABLE=/scratch", "line 2: HEALER_HOOK_WRITEABLE is not a setting"),
        ("export HEALER_NODE=gpu0001", "line 2: export HEALER_NODE is not a setting"),
        (
            "HEALER_HOOK_GPUS=8 # of them",
            "line 2: HEALER_HOOK_GPUS is 8 # of them, not a whole number, and is ignored",
        ),
        ("HEALER_HOOK_JITTER_S=-1", "line 2: HEALER_HOOK_JITTER_S is -1, not a whole number, and is ignored"),
        (
            "HEALER_HOOK_WRITABLE=/a, scratch",
            "line 2: HEALER_HOOK_WRITABLE is /a, scratch, expected a full path",
        ),
        ("HEALER_HOOK_PROBE=nhc", "line 2: HEALER_HOOK_PROBE is nhc, expected a full path"),
        (
            "HEALER_HOOK_FAIL_CLOSED=probe,gpu-lots",
            "line 2: HEALER_HOOK_FAIL_CLOSED: gpu-lots is not one of"
            " gpu-lost, gpu-count, fs-readonly, fs-full, probe",
        ),
        ("HEALER_URL=http://y", "line 2: HEALER_URL replaces line 1"),
        ("nonsense", "line 2: expected KEY=VALUE"),
        ("# HEALER_GPUS=8", ""),
        ("HEALER_HOOK_GPUS=", ""),
        ("HEALER_HOOK_GPUS = '8'", ""),
        ('HEALER_HOOK_PROBE="/opt/our own/nhc"', ""),
        ("HEALER_HOOK_SPOOL=/local/%n", ""),
        ("HEALER_HOOK_FAIL_CLOSED=probe, gpu-lost", ""),
    ],
)
def test_a_line_that_no_program_reads_as_it_is_meant_is_named(line: str, said: str) -> None:
    """A check that a typing mistake keeps away is missed only when it matters."""
    found = loaded("healer-hook").misread(["HEALER_URL=http://x", line])
    assert found == ([said] if said else [])


def test_hook_and_follower_both_say_it_and_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HEALER_URL", raising=False)
    conf = tmp_path / "hook.conf"
    conf.write_text("HEALER_GPUS=8\nHEALER_URL=http://x\n")
    said = f"{conf}, line 1: HEALER_GPUS is not a setting"
    assert loaded("healer-hook").Conf(str(conf)).problem == said
    assert loaded("healer-follow").read_conf(str(conf))["HEALER_URL"] == "http://x"
    assert capsys.readouterr().err == f"healer-follow: {said}\n"


@pytest.mark.parametrize("program", ["healer-follow", "healer-hook", "healer-ship"])
@pytest.mark.parametrize(
    "text", [b"\xef\xbb\xbfHEALER_URL=http://x\r\n", b"# caf\xe9\nHEALER_URL=http://x\n"]
)
def test_a_file_of_another_editors_is_read(
    program: str, text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mark of the byte order hid the first setting; a comment in Latin-1 stopped the follower."""
    monkeypatch.delenv("HEALER_URL", raising=False)
    conf = tmp_path / "hook.conf"
    conf.write_bytes(text)
    module = loaded(program)
    given = module.Conf(str(conf)).values if program == "healer-hook" else module.read_conf(str(conf))
    assert given["HEALER_URL"] == "http://x"


def test_healer_node_reads_the_same_file_of_another_editors(tmp_path: Path) -> None:
    """Its name of the node decides whether it obeys a request: with a comment in Latin-1 it obeyed none."""
    module = loaded("healer-node")
    conf = tmp_path / "hook.conf"
    conf.write_bytes(b"\xef\xbb\xbfHEALER_NODE=gpu0017\r\n# caf\xe9\n")
    conf.chmod(0o600)
    assert module.read_owned(str(conf)).splitlines()[0] == "HEALER_NODE=gpu0017"
