"""`rules/commands.yaml`: a closed list of programs; what is wrong is named by line, here and in playbooks."""

import shutil
from pathlib import Path

import pytest

from healer.bootstrap import doctor_checks
from healer.rulebook.playbook_rules import read_commands
from healer.rulebook.ruleset import RulesInvalid, load
from healer.rulebook.source import Problem, Source
from healer.settings import load_executor as load_settings
from tests.support.loop import SHIPPED

pytestmark = pytest.mark.heavy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED, tmp_path / "rules"))


def problems(folder: Path) -> list[str]:
    with pytest.raises(RulesInvalid) as caught:
        load(folder, prove=False)
    return [str(one) for one in caught.value.problems]


GOOD = '- {name: reroute, title: Reroute, argv: [/site/reroute, "{node}", "--port={port}"], timeout_s: 300}\n'


def test_a_command_of_the_site(folder: Path) -> None:
    (folder / "commands.yaml").write_text(GOOD)
    found = load(folder, prove=False).commands
    assert found["reroute"].argv == ("/site/reroute", "{node}", "--port={port}")
    assert not found["reroute"].takes_capacity


def test_the_file_may_be_left_out(folder: Path) -> None:
    (folder / "commands.yaml").unlink()
    assert load(folder, prove=False).commands == {}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "name: reroute",
            "name: Re Route",
            "name: 'Re Route' must consist of lowercase letters, digits and dashes",
        ),
        ("/site/reroute", "reroute", "must be the full path of a program"),
        ("/site/reroute", '"/site/{node}"', "must be the full path of a program"),
        ("/site/reroute", "/bin/bash", "argv: bash can run any program"),
        ("{node}", "{secret}", "argv: there is no placeholder {secret}"),
        ('[/site/reroute, "{node}", "--port={port}"]', "[]", "argv: the list is empty"),
        ("timeout_s: 300", "timeout_s: 0", "timeout_s: must be above 0 and at most 86400"),
        ("timeout_s: 300", "timeout_s: 300, shell: true", "unknown field shell"),
    ],
)
def test_mistakes(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = tmp_path / "commands.yaml"
    wrong: list[Problem] = []
    path.write_text("# ours\n" + GOOD.replace(old, new))
    read_commands(Source(path, path.name, wrong))
    (problem,) = (str(one) for one in wrong)
    assert problem.startswith("commands.yaml:2:") and says in problem


def test_a_command_that_takes_capacity_needs_a_drain_before_it(folder: Path) -> None:
    (folder / "commands.yaml").write_text(GOOD.replace("timeout_s", "takes_capacity: true, timeout_s"))
    (problem,) = problems(folder)
    assert (
        problem.startswith("playbooks/switch-or-link.yaml:") and "so a drain must come before it" in problem
    )


def test_a_step_waits_as_long_as_each_command_that_it_may_start(folder: Path) -> None:
    text = "- {name: storage-failover, title: x, argv: [/site/x], timeout_s: 80000}\n"
    (folder / "commands.yaml").write_text(text)
    (problem,) = problems(folder)
    assert (
        problem.startswith("playbooks/storage.yaml:") and "storage-failover may take up to 80000 s" in problem
    )


def test_doctor_names_what_is_missing_or_cannot_be_started(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    (tmp_path / "good").write_text("#!/bin/sh\n")
    (tmp_path / "good").chmod(0o755)
    (folder / "commands.yaml").write_text(
        "".join(
            f"- {{name: {name}, title: x, argv: [{tmp_path / name}], timeout_s: 3}}\n"
            for name in ("good", "gone", "plain")
        )
    )
    settings = load_settings({"HEALER_RULES_DIR": str(folder), "HEALER_DATA_DIR": str(tmp_path)})
    found = {one.name: one for one in doctor_checks.check_site_commands(settings)}
    assert {name.rpartition(" ")[2]: one.ok for name, one in found.items()} == {
        "good": True, "gone": False, "plain": False,
    }  # fmt: skip
    assert "is missing" in found["site commands: gone"].text
    assert found["site commands: plain"].repair.startswith("chmod a+x ")


def test_doctor_finds_nothing_wrong_with_an_empty_list(tmp_path: Path) -> None:
    (only,) = doctor_checks.check_site_commands(load_settings({"HEALER_DATA_DIR": str(tmp_path)}))
    assert only.ok and only.text.startswith("none")


def test_steps_of_an_included_playbook_are_checked_in_the_outer_one(folder: Path) -> None:
    """The inner playbook has its own drain; the outer one includes only its command."""
    (folder / "commands.yaml").write_text(GOOD.replace("timeout_s", "takes_capacity: true, timeout_s"))
    inner = (folder / "playbooks" / "switch-or-link.yaml").read_text()
    (folder / "playbooks" / "switch-or-link.yaml").unlink()
    (folder / "playbooks" / "inner.yaml").write_text(inner.replace("name: switch-or-link", "name: inner"))
    outer = "{name: outer, title: x, target: node, steps: [{id: all, use: inner}, {id: tell, do: notify}]}"
    (folder / "playbooks" / "outer.yaml").write_text(outer)
    wrong = problems(folder)
    assert [one.partition(":")[0] for one in wrong] == ["playbooks/inner.yaml", "playbooks/outer.yaml"]
    assert all("so a drain must come before it" in one for one in wrong)
