"""New or changed rules and playbooks: their first runs wait for a person, and only theirs."""

from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from healer.decisions.consent import open_trial
from healer.model import Mode, Rule, RunState, Severity, Step, Trial
from healer.rulebook.ruleset import load
from tests.support.loop import LOST, SHIPPED, START, Site, name, rules_in, shipped

RULE, PLAYBOOK = "rule/gpu-lost", "playbook/gpu-fatal"


class NotingSite(Site):
    """One whose detector notes what its rules say, as the real one does before each walk."""

    def look(self) -> None:
        super().look()
        self.ledger.note_texts(self.rules.texts, self.rules.guards.trial_runs, self.now)

    def change(self, **fields: object) -> None:
        changed = tuple(
            msgspec.structs.replace(one, **fields) if one.name == "gpu-lost" else one
            for one in self.rules.rules
        )
        self.rules = msgspec.structs.replace(self.rules, rules=changed)

    def change_playbook(self) -> None:
        book = self.rules.playbooks["gpu-fatal"]
        steps = (*book.steps, Step(id="more", title="Tell people again", check="node_answers"))
        books = {**self.rules.playbooks, "gpu-fatal": msgspec.structs.replace(book, steps=steps)}
        self.rules = msgspec.structs.replace(self.rules, playbooks=books)

    def lose(self, number: int) -> None:
        self.run_for(6, *self.say(number, LOST))

    def state(self, number: int) -> RunState:
        return next(run for run in self.ledger.tables.runs.values() if run.node == name(number)).state

    def approve_on(self, number: int) -> None:
        runs = self.ledger.tables.runs
        run = next(run for run in runs.values() if run.node == name(number))
        runs[run.id] = msgspec.structs.replace(run, approved_by="ann")
        self.run_for(6)


@pytest.fixture
def site() -> NotingSite:
    roomy = msgspec.structs.replace(
        shipped().guards, max_nodes=20, max_share=0.5, share_per_hour=0.5, breaker_share=1.0
    )
    return NotingSite(48, rules=rules_in(Mode.auto, guards=roomy))


def test_a_new_installation_takes_its_files_as_they_are(site: NotingSite) -> None:
    site.lose(1)
    assert site.state(1) is RunState.waiting
    assert site.ledger.facts().trials == ()


@pytest.mark.parametrize("what", ["rule", "playbook"])
def test_the_first_three_runs_after_a_change_are_let_go_by_a_person(site: NotingSite, what: str) -> None:
    site.look()
    site.change(severity=Severity.P2) if what == "rule" else site.change_playbook()
    for number in (1, 2, 3):
        site.lose(number)
        assert site.state(number) is RunState.waiting_approval
        assert not site.node(number).drain
        site.approve_on(number)
        assert site.node(number).drain
    site.lose(4)
    assert site.state(4) is RunState.waiting and site.node(4).drain


def test_it_says_what_changed_and_how_many_are_left(site: NotingSite) -> None:
    site.look()
    site.change(severity=Severity.P2)
    site.lose(1)
    site.approve_on(1)
    site.lose(2)
    decided = site.ledger.tables.decisions[-1]
    assert (
        decided.why
        == "Rule gpu-lost is new or changed since 03:00 on 20 Nov UTC: 2 more runs require approval."
    )
    assert [one.data["names"] for one in site.ledger.tables.audit if one.verb == "rules.changed"] == [[RULE]]


def test_a_run_that_got_stuck_or_was_called_off_counts_for_nothing(site: NotingSite) -> None:
    site.look()
    site.change(severity=Severity.P2)
    for number, end in ((1, RunState.stuck), (2, RunState.cancelled), (3, RunState.undone)):
        site.lose(number)
        site.approve_on(number)
        runs = site.ledger.tables.runs
        run = next(run for run in runs.values() if run.node == name(number))
        runs[run.id] = msgspec.structs.replace(run, state=end)
    site.look()
    assert [one.left for one in site.ledger.facts().trials] == [3]


def test_rules_set_back_to_an_earlier_version_need_no_new_trial(site: NotingSite) -> None:
    before = site.rules
    site.look()
    site.change(severity=Severity.P2)
    site.look()
    site.rules = before
    site.lose(1)
    assert site.state(1) is RunState.waiting


def test_a_run_under_way_goes_on_as_it_began(site: NotingSite) -> None:
    site.walk(*site.say(1, LOST))
    site.clock.advance(3)
    site.walk()
    assert site.state(1) is RunState.running
    site.clock.advance(1)
    site.change_playbook()
    site.run_for(10)
    assert site.state(1) is RunState.waiting
    assert all(entry.event != "held" for log in site.ledger.tables.log.values() for entry in log)


def test_with_no_first_runs_a_change_acts_at_once(site: NotingSite) -> None:
    guards = msgspec.structs.replace(site.rules.guards, trial_runs=0)
    site.rules = msgspec.structs.replace(site.rules, guards=guards)
    site.look()
    site.change(severity=Severity.P2)
    site.lose(1)
    assert site.state(1) is RunState.waiting


def test_what_only_people_read_is_no_change(site: NotingSite) -> None:
    site.look()
    site.change(title="A GPU has fallen off the bus", runbook="https://wiki.example/gpu-lost")
    books = site.rules.playbooks
    book = books["gpu-fatal"]
    steps = tuple(msgspec.structs.replace(step, title=f"{step.title}, as before") for step in book.steps)
    reworded = msgspec.structs.replace(book, title="Another name", steps=steps)
    site.rules = msgspec.structs.replace(site.rules, playbooks={**books, "gpu-fatal": reworded})
    site.lose(1)
    assert site.state(1) is RunState.waiting
    assert not [one for one in site.ledger.tables.audit if one.verb == "rules.changed"]


# --- what is a change -------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_comments_and_the_mode_are_no_change(tmp_path: Path) -> None:
    folder = tmp_path / "rules"
    folder.mkdir()
    for path in SHIPPED.rglob("*"):
        if path.is_file():
            to = folder / path.relative_to(SHIPPED)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(path.read_bytes())
    book = folder / "playbooks" / "drain.yaml"
    book.write_text("# Ours since the audit.\n" + book.read_text())
    file = folder / "policies.yaml"
    file.write_text(file.read_text().replace("- name: gpu-lost\n", "- name: gpu-lost\n  mode: approve\n", 1))
    read = load(folder, default_mode=Mode.auto, prove=False)
    assert read.by_name["gpu-lost"].mode is Mode.approve and read.version != shipped().version
    assert read.texts == shipped().texts
    book.write_text(book.read_text().replace("timeout_s: 30", "timeout_s: 31", 1))
    changed = load(folder, default_mode=Mode.auto, prove=False).texts
    assert {key for key in changed if changed[key] != shipped().texts.get(key)} == {"playbook/drain"}


def test_a_changed_script_changes_the_playbooks_that_run_it() -> None:
    scripts = {**shipped().scripts, "gpus": "#!/bin/sh\nexit 0\n"}
    changed = rules_in(scripts=scripts).texts
    mine = {key for key, value in changed.items() if value != shipped().texts[key]}
    assert {"playbook/validate", "playbook/reboot-validate"} <= mine
    assert all(key.startswith("playbook/") for key in mine)


def test_the_one_with_the_most_runs_left_is_named() -> None:
    rules = shipped()
    rule: Rule = rules.by_name["gpu-lost"]
    both = [
        Trial(name=key, digest=rules.texts[key], since=START - timedelta(hours=1), left=left)
        for key, left in ((RULE, 1), (PLAYBOOK, 2))
    ]
    found = open_trial(rule.name, rule.playbook, both, rules)
    assert found is not None and found.name == PLAYBOOK
    other = [msgspec.structs.replace(one, digest="of another text") for one in both]
    assert open_trial(rule.name, rule.playbook, other, rules) is None
