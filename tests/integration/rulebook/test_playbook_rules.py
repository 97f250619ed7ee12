"""What `healer rules check` says of a playbook's file: each mistake with its line."""

import shutil
from pathlib import Path

import pytest

from healer.rulebook.ruleset import RulesInvalid, load
from tests.support.up import ROOT

pytestmark = pytest.mark.heavy

GOOD = """\
name: burn-in
title: Let a node burn in
target: node
inputs:
  lasts: {type: duration, default: 10m}
  ask: {type: bool, default: true}
  service: {type: choice, choices: [slurmd, nvidia-dcgm], default: slurmd}
steps:
  - {id: drain, do: drain}
  - {id: empty, wait: empty}
  - {id: again, do: restart_service, input: {service: "{input.service}"}, verify: node_answers, back_off_s: 5}
  - {id: burn, wait: time, input: {lasts_s: "{input.lasts}"}}
  - {id: test, do: diagnose}
  - {id: leave, wait: approval, when: input.ask and test.failed}
  - {id: back, use: resume, when: test.passed or leave.passed}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "rules", tmp_path / "rules"))


def problems(folder: Path, text: str) -> list[str]:
    (folder / "playbooks" / "burn-in.yaml").write_text(text)
    try:
        load(folder)
    except RulesInvalid as error:
        return [str(one) for one in error.problems]
    return []


def test_a_playbook_with_all_of_it_is_taken(folder: Path) -> None:
    assert problems(folder, GOOD) == []
    book = load(folder).playbooks["burn-in"]
    assert [one.id for one in book.steps][-3:] == ["leave", "back-verify", "back-resume"]


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("type: bool, default", "typ: bool, default", 6, "unknown field typ (did you mean type?)"),
        ("default: 10m", "default: soon", 5, "lasts must be a duration"),
        ("choices: [slurmd, nvidia-dcgm]", "choices: []", 7, "service needs choices"),
        ("choice, choices: [slurmd, nvidia-dcgm]", "str", 11, "service takes a single input of type choice"),
        ("nvidia-dcgm]", "'a; reboot']", 11, "input: 'a; reboot' is not the name of a service"),
        ("{input.lasts}", "{input.last}", 12, "the playbook has no input last (did you mean lasts?)"),
        ("{input.lasts}", "{input.ask}", 12, "input: lasts_s must be a whole number, but ask is bool"),
        ('{lasts_s: "{input.lasts}"}', "{lasts_s: 0}", 12, "input: lasts_s must be above 0"),
        (', input: {lasts_s: "{input.lasts}"}', "", 12, "time needs input.lasts_s"),
        ("wait: empty", "wait: job_runs", 10, "job_runs is for a job, but this playbook is for a node"),
        ("wait: empty", "wait: lifted", 10, "lifted may end the run"),
        ("verify: node_answers", "verify: job_works", 11, "verify: there is no job_works"),
        ("target: node", "target: job", 10, "empty is for a node, but this playbook is for a job"),
        ("wait: empty", "wait: approval, wait_s: 60", 10, "wait_s: allowed only with `wait`"),
        ("input.ask and test.failed", "input.ask and", 14, "column 14: the condition is incomplete"),
        ("input.ask and test.failed", "input.asks", 14, "the playbook has no input asks"),
        ("input.ask and test.failed", "severity == P7", 14, "severity is never P7"),
        ("input.ask and test.failed", "drain.failed", 14, "the step drain never fails: it asks a person"),
        ("input.ask and test.failed", "back.passed", 14, "there is no step back"),
        ("wait: empty", "do: requeue, for_each: jobs_hit", 10, "no earlier step lists the jobs for jobs_hit"),
        ("wait: empty", "do: notify, for_each: jobs_all", 10, "no earlier step lists the jobs for jobs_all"),
        ("use: resume", "use: resum", 15, "there is no playbook resum (did you mean resume?)"),
        ("use: resume", "use: burn-in", 15, "burn-in -> burn-in is circular"),
        ("use: resume", "use: requeue", 15, "use: requeue is for a job, but this playbook is for a node"),
        ("verify: node_answers", "verify: jobs_hit", 11, "verify: there is no jobs_hit"),
        ("back_off_s: 5", "back_off_s: 500", 11, "back_off_max_s: must be at least back_off_s"),
        ("wait: time", "wait: time, undo: keep", 12, "undo: the step burn does not support this field"),
        ("id: burn", "id: undo", 12, "id: undo is reserved for the log of the run"),
        ("do: diagnose", "do: diagnose, input: {depth: softer}", 13, "there is no depth softer"),
        ("do: diagnose", "do: diagnose, input: {depth: soft}", 13, "its tests may take up to 600 s"),
        ("do: diagnose", "do: diagnose, input: {depth: '{input.service}'}", 13, "there is no depth slurmd"),
        ("do: diagnose", "do: diagnose, input: {depth: quick, script: gpus}", 13, "a depth and a script"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_line(folder: Path, old: str, new: str, line: int, says: str) -> None:
    assert old in GOOD
    found = problems(folder, GOOD.replace(old, new, 1))
    assert any(one.startswith(f"playbooks/burn-in.yaml:{line}: ") and says in one for one in found), found
