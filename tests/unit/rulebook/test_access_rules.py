"""What `healer rules check` says of `rules/access.yaml`."""

from pathlib import Path

import pytest

from healer.model import Role
from healer.model.grants import AccessRules, strongest
from healer.rulebook.access_rules import read_access
from healer.rulebook.source import Problem, Source

GOOD = """\
claim: roles
grants:
  - {name: ops, groups: [gpu-ops], role: operator, clusters: [pod1], playbooks: ["drain*"]}
  - {name: lead, subjects: ["42"], role: admin}
duties:
  - {playbooks: [drain], never: [students]}
"""
PLAYBOOKS = ("drain", "drain-soft", "resume")


def read(folder: Path, text: str) -> tuple[AccessRules, list[str]]:
    path = folder / "access.yaml"
    path.write_text(text)
    problems: list[Problem] = []
    found = read_access(Source(path, "access.yaml", problems), PLAYBOOKS)
    return found, [str(problem) for problem in problems]


def test_groups_and_subjects_have_what_their_entries_say(tmp_path: Path) -> None:
    rules, problems = read(tmp_path, GOOD)
    assert (problems, rules.claim) == ([], "roles")
    assert [grant.name for grant in rules.grants_of("7", ["gpu-ops", "all"])] == ["ops"]
    assert strongest(rules.grants_of("42", ["gpu-ops"])) is Role.admin
    assert rules.grants_of("gpu-ops", []) == (), "a subject is no group"
    assert rules.grants_of("", [""]) == ()
    assert [duty.never for duty in rules.duties_of("drain")] == [("students",)]
    assert rules.duties_of("resume") == ()
    assert rules.needs_second("drain")
    assert not rules.needs_second("resume")
    assert not read(tmp_path, GOOD.replace("never", "second_person: false, never"))[0].needs_second("drain")


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("groups: [gpu-ops], ", "", 3, "this entry gives the role to no one"),
        ("[gpu-ops]", '[""]', 3, "groups: the name of a group must not be empty"),
        ("role: operator", "role: operater", 3, "did you mean operator?"),
        ("role: operator", "role: signals", 3, "role: people cannot have the role signals"),
        ("clusters: [pod1]", "clusters: []", 3, "clusters: the list is empty"),
        ('["drain*"]', "[drian]", 3, "playbooks: there is no playbook drian (did you mean drain?)"),
        ("subjects:", "users:", 4, "unknown field users"),
        ("name: lead", "name: ops", 4, "the name ops is already in use"),
        ("never: [students]", "second_person: false", 6, "second_person: this entry has no effect"),
    ],
)
def test_each_mistake_is_shown_with_its_line(
    tmp_path: Path, old: str, new: str, line: int, says: str
) -> None:
    assert old in GOOD
    _, found = read(tmp_path, GOOD.replace(old, new))
    assert any(text.startswith(f"access.yaml:{line}:") and says in text for text in found), found
